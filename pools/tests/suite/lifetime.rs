//! How long memory lives, and where it goes afterwards.

use mempool_pools::{MemPool, Policy, PoolError, available_bytes, default_pool, empty_cache};

use crate::suite::{BIG, big};

#[test]
fn memory_outlives_scope_thread_and_pool() {
    let block = std::thread::spawn(|| {
        let pool = MemPool::new().unwrap();
        pool.with(|| {
            let mut block = big();
            block.iter_mut().enumerate().for_each(|(k, byte)| *byte = k as u8);
            block
        })
    })
    .join()
    .unwrap();
    // Pools made and dropped in between must not be given the block's memory.
    for _ in 0..20 {
        drop(MemPool::new().unwrap().with(big));
    }
    assert!(block.iter().enumerate().all(|(k, &byte)| byte == k as u8));
    drop(block);
}

#[test]
fn a_pool_without_blocks_is_gone_with_its_last_handle() {
    // More pools than can exist at once, one after the other.
    for _ in 0..10_000 {
        let pool = MemPool::new().unwrap();
        drop(pool.clone());
        drop(pool);
    }
}

#[test]
fn a_pool_with_blocks_is_gone_with_its_last_block() {
    let mut blocks = Vec::new();
    // In all, more pools than can exist at once.
    for _ in 0..25 {
        for _ in 0..200 {
            blocks.push(MemPool::new().unwrap().with(big));
        }
        assert!(blocks.iter().all(|block| block[BIG / 2] == 7));
        blocks.clear();
    }
}

#[test]
fn trim_gives_back_what_is_free_and_keeps_what_is_live() {
    let pool = MemPool::new().unwrap();
    let (kept, dropped) = pool.with(|| (big(), vec![1_u8; 64 * BIG]));
    drop(dropped);
    let before = pool.stats().reserved.current;
    let returned = pool.trim().unwrap();
    assert!(returned >= 62 * BIG, "{returned} bytes returned");
    assert_eq!(pool.stats().reserved.current, before - returned);
    assert!(kept.iter().all(|&byte| byte == 7));
    assert_eq!(pool.trim().unwrap(), 0);
    pool.validate().unwrap();
}

#[test]
fn empty_cache_leaves_pools_alone() {
    let pool = MemPool::new().unwrap();
    drop(pool.with(|| vec![1_u8; 64 * BIG]));
    let reserved = pool.stats().reserved.current;
    drop(vec![1_u8; 512 * BIG]);
    let cached = default_pool().unwrap().stats().reserved.current;
    assert!(empty_cache().unwrap() >= 256 * BIG);
    assert!(default_pool().unwrap().stats().reserved.current < cached);
    assert_eq!(pool.stats().reserved.current, reserved);
    assert_eq!(default_pool().unwrap().id(), 0);
}

#[test]
fn what_does_not_fit_under_a_limit_goes_to_the_inner_allocator_and_is_counted() {
    let pool = MemPool::builder().limit(8 * BIG).build().unwrap();
    let blocks: Vec<Vec<u8>> = (0..12).map(|_| pool.with(big)).collect();
    let stats = pool.stats();
    assert!(stats.reserved.peak <= 8 * BIG);
    assert_eq!(stats.blocks.current as u64 + stats.overflow_count, 12);
    assert!(stats.overflow_count >= 4);
    assert_eq!(stats.overflow_bytes, stats.overflow_count * BIG as u64);
    assert!(stats.bypassed_bytes >= stats.overflow_bytes);
    assert!(blocks.iter().flatten().all(|&byte| byte == 7));
    drop(blocks);
    assert_eq!(pool.stats().requested.current, 0);
}

#[test]
fn a_pool_emptied_again_and_again_is_as_good_as_new() {
    let pools = [MemPool::new().unwrap(), MemPool::new().unwrap()];
    for _ in 0..80 {
        for pool in &pools {
            drop(pool.with(|| vec![1_u8; 4 * BIG]));
            assert!(pool.trim().unwrap() >= 4 * BIG);
        }
    }
    let other = MemPool::new().unwrap();
    drop(other.with(big));
    assert_eq!(other.stats().overflow_count, 0);
}

#[test]
fn a_new_pool_has_no_option_or_figure_of_the_one_before() {
    for _ in 0..20 {
        let old = MemPool::builder().hard_limit(4 * BIG).min_bytes(BIG).build().unwrap();
        old.with(|| {
            let mut refused: Vec<u8> = Vec::new();
            assert!(refused.try_reserve_exact(8 * BIG).is_err());
            drop(Box::new([1_u8; 100]));
        });
        drop(old);
        let new = MemPool::builder().limit(4 * BIG).build().unwrap();
        assert_eq!((new.stats().bypassed_count, new.stats().overflow_count), (0, 0));
        drop(new.with(|| vec![1_u8; 8 * BIG]));
        drop(new.with(|| vec![1_u8; 1 << 16]));
        assert_eq!((new.stats().overflow_count, new.stats().misses), (1, 1));
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_request_far_beyond_the_machines_memory_is_refused_as_without_pools() {
    // Under the default overcommit policy the system judges each request by itself.
    let policy = std::fs::read_to_string("/proc/sys/vm/overcommit_memory").unwrap();
    if policy.trim() == "1" {
        return;
    }
    let pool = MemPool::new().unwrap();
    let refused = |size: usize| Vec::<u8>::new().try_reserve_exact(size).is_err();
    // Some inner allocators evade that judgement; the pool does not, and then asks them.
    assert_eq!(pool.with(|| refused(4 << 40)), mempool_pools::without_pools(|| refused(4 << 40)));
    assert_eq!(pool.stats().reserved.peak, 0);
    pool.validate().unwrap();
}

#[test]
fn pools_and_guards_may_cross_a_caught_panic() {
    fn unwind_safe<T: std::panic::RefUnwindSafe + std::panic::UnwindSafe>() {}
    unwind_safe::<MemPool>();
}

#[test]
fn pools_work_without_huge_pages_too() {
    mempool_pools::set_huge_pages(false);
    let pool = MemPool::new().unwrap();
    let block = pool.with(big);
    mempool_pools::set_huge_pages(true);
    assert!(block.iter().all(|&byte| byte == 7));
}

#[test]
fn what_nobody_could_serve_is_not_counted() {
    let pool = MemPool::new().unwrap();
    pool.with(|| {
        let mut block: Vec<u8> = Vec::new();
        assert!(block.try_reserve_exact(1 << 60).is_err());
    });
    assert_eq!(pool.stats().overflow_bytes, 0);
}

#[test]
fn a_limit_below_a_page_is_refused_with_its_number() {
    let error = MemPool::builder().limit(1000).build().unwrap_err();
    assert!(matches!(error, PoolError::Option { option: "limit", value: 1000, .. }), "{error}");
    let error = MemPool::builder().hard_limit(0).build().unwrap_err();
    assert!(matches!(error, PoolError::Option { option: "hard_limit", value: 0, .. }), "{error}");
}

#[test]
fn every_policy_serves_a_pool() {
    let splits = Policy::ALL.into_iter().filter(|&policy| policy != Policy::Segments);
    for (policy, whole) in splits.map(|policy| (policy, false)).chain([(Policy::Pages, true)]) {
        let pool = MemPool::builder().policy(policy).no_split(whole).name("named").build().unwrap();
        let blocks: Vec<Vec<u8>> = pool.with(|| (1..50).map(|k| vec![k as u8; k * 50_000]).collect());
        for (k, block) in blocks.iter().enumerate() {
            assert!(block.iter().all(|&byte| byte == (k + 1) as u8));
        }
        pool.validate().unwrap();
        drop(blocks);
        assert_eq!(pool.stats().requested.current, 0);
        assert_eq!(pool.stats().name, "named");
        pool.validate().unwrap();
    }
}

#[test]
fn peaks_can_be_reset() {
    let pool = MemPool::new().unwrap();
    drop(pool.with(|| (big(), big())));
    assert_eq!(pool.stats().requested.peak, 2 * BIG);
    pool.reset_peak_stats();
    assert_eq!(pool.stats().requested.peak, 0);
    drop(pool.with(big));
    assert_eq!(pool.stats().requested.peak, BIG);
}

#[test]
fn available_bytes_counts_what_pools_could_give_back() {
    let pool = MemPool::new().unwrap();
    drop(pool.with(|| vec![1_u8; 256 * BIG]));
    // The same bytes are cached now, and not available to the system.
    assert!(available_bytes() >= 256 * BIG);
}
