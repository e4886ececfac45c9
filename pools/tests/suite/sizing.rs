//! Pools of host memory with memory from the start, and pools that grow.

use mempool_pools::{MemPool, Policy, PoolError, available_bytes};

use crate::suite::BIG;

const POLICIES: [&str; 7] = [
    "policy:pages",
    "policy:pages,mode:moving",
    "policy:buckets",
    "policy:buddy",
    "policy:bfc",
    "policy:torch",
    "policy:expandable",
];

fn pool(conf: &str) -> MemPool {
    let builder = MemPool::builder().conf(conf).unwrap().headroom_share(0.0);
    builder.build().unwrap_or_else(|error| panic!("{conf}: {error}"))
}

#[test]
fn a_pool_of_fixed_size_has_its_memory_from_the_start_and_keeps_it() {
    for conf in POLICIES {
        let pool = pool(&format!("{conf},fixed_size_mb:64"));
        let stats = pool.stats();
        assert_eq!((stats.reserved.current, stats.requested.peak, stats.misses), (64 * BIG, 0, 0), "{conf}");
        for _ in 0..3 {
            let blocks = pool.with(|| [20 * BIG, 100_000, 7 * BIG, 3 * BIG].map(|bytes| vec![1_u8; bytes]));
            assert!(blocks.iter().flatten().all(|&byte| byte == 1));
        }
        assert_eq!(pool.stats().map_calls, stats.map_calls, "{conf}");
        assert_eq!(pool.stats().overflow_count, 0, "{conf}");
        assert_eq!(pool.trim().unwrap(), 0, "{conf}");
        drop(pool.with(|| vec![1_u8; 65 * BIG]));
        assert_eq!(pool.stats().overflow_count, 1, "{conf}: it never has more");
        pool.validate().unwrap();
    }
}

#[test]
fn memory_from_the_start_reads_as_zero_where_that_is_asked_for() {
    for conf in POLICIES {
        let pool = pool(&format!("{conf},fixed_size_mb:32"));
        for _ in 0..2 {
            let mut zeroed = pool.with(|| vec![0_u8; 9 * BIG]);
            assert!(zeroed.iter().all(|&byte| byte == 0), "{conf}");
            zeroed.fill(3);
        }
    }
}

#[test]
fn a_system_with_less_is_an_error_with_the_numbers() {
    let error = MemPool::builder().fixed_size(1 << 46).build().unwrap_err();
    let PoolError::Size { asked_bytes, free_bytes, total_bytes, headroom_bytes, cause } = &error else {
        panic!("{error}");
    };
    assert_eq!((*asked_bytes, cause), (1 << 46, &None));
    assert!(free_bytes <= total_bytes);
    // A share of a number of bytes.
    assert!(headroom_bytes.abs_diff(total_bytes / 10) <= 1, "{headroom_bytes} of {total_bytes}");
    assert!(matches!(MemPool::builder().initial_size(usize::MAX).build(), Err(PoolError::Size { .. })));
}

#[test]
fn a_growing_pool_doubles_and_moves_nothing() {
    for conf in POLICIES {
        let pool = pool(&format!("{conf},initial_size_mb:32,growth_factor:2"));
        let kept = pool.with(|| vec![9_u8; 20 * BIG]);
        let place = kept.as_ptr();
        for (megabytes, growths) in [(8, 0), (24, 1), (64, 2)] {
            let blocks: Vec<Vec<u8>> = pool.with(|| (0..megabytes / 4).map(|_| vec![1; 4 * BIG]).collect());
            assert!(blocks.iter().flatten().all(|&byte| byte == 1));
            // Regions and blocks of powers of two, and pages of 20 MiB, fill the size less well.
            if !matches!(conf, "policy:bfc" | "policy:buddy" | "policy:expandable") {
                assert_eq!(pool.stats().growths, growths, "{conf}, {megabytes}");
            }
        }
        assert_eq!(kept.as_ptr(), place);
        assert!(kept.iter().all(|&byte| byte == 9));
        drop(kept);
        pool.trim().unwrap();
        let left = pool.stats().reserved.current;
        // Regions and segments go back whole.
        assert!((32 * BIG..=64 * BIG).contains(&left), "{conf}: {left} bytes stay");
        pool.validate().unwrap();
    }
}

#[test]
fn options_that_contradict_each_other_are_refused() {
    let build = |conf: &str| MemPool::builder().conf(conf).unwrap().build().unwrap_err();
    for policy in [Policy::None, Policy::Simple] {
        assert!(matches!(build(&format!("policy:{policy},fixed_size_mb:8")), PoolError::Conf(_)), "{policy}");
    }
    assert!(matches!(build("no_split:True,growth_factor:2"), PoolError::Conf(_)));
    assert!(matches!(build("fixed_size_mb:8,hard_limit_mb:4"), PoolError::Option { option: "limit", .. }));
}

#[test]
fn what_is_kept_is_not_what_others_can_have() {
    let before = available_bytes();
    let pool = pool("fixed_size_mb:64");
    // Other tests take and give back meanwhile; the pool's memory was never counted as both.
    assert!(available_bytes() <= before.saturating_add(1 << 30));
    drop(pool);
}
