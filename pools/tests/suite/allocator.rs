//! The global allocator's own duties: zeroed memory, growing, shrinking, alignment.

use std::alloc::{Layout, alloc_zeroed, dealloc};

use mempool_pools::MemPool;

use crate::suite::{BIG, big};

#[test]
fn zeroed_memory_reads_as_zero_whether_new_or_used_before() {
    let pool = MemPool::new().unwrap();
    for _ in 0..3 {
        let (zeroed, used) = pool.with(|| (vec![0_u8; 3 * BIG + 123], vec![0xff_u8; 5 * BIG]));
        assert!(zeroed.iter().all(|&byte| byte == 0));
        drop(used);
        drop(zeroed);
        let zeroed = pool.with(|| vec![0_u8; 7 * BIG]);
        assert!(zeroed.iter().all(|&byte| byte == 0));
        drop(vec![zeroed, pool.with(|| vec![0xee_u8; BIG])]);
    }
}

#[test]
fn zeroed_memory_reads_as_zero_after_a_trim() {
    let pool = MemPool::new().unwrap();
    drop(pool.with(|| vec![0xff_u8; 16 * BIG]));
    pool.trim().unwrap();
    assert!(pool.with(|| vec![0_u8; 16 * BIG]).iter().all(|&byte| byte == 0));
}

/// Bytes of the process that are in memory.
#[cfg(target_os = "linux")]
fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[test]
#[cfg(target_os = "linux")]
fn zeroed_memory_that_nobody_touches_stays_out_of_memory() {
    // Other tests run beside this one, so the block is far larger than all of theirs.
    const HUGE: usize = 4 << 30;
    let pool = MemPool::new().unwrap();
    let before = resident_bytes();
    let block: Vec<u8> = pool.with(|| vec![0; HUGE]);
    assert_eq!(pool.stats().requested.current, HUGE);
    assert!(resident_bytes() < before + HUGE / 2, "the zeroed block was touched");
    assert_eq!(block[HUGE - 1], 0);
}

#[test]
fn a_growing_vector_stays_in_the_pool_it_began_in() {
    let pool = MemPool::new().unwrap();
    let mut block = pool.with(big);
    // Outside the scope now.
    block.extend_from_slice(&vec![9; 3 * BIG]);
    assert_eq!(pool.stats().requested.current, block.capacity());
    assert!(block[..BIG].iter().all(|&byte| byte == 7) && block[BIG..].iter().all(|&byte| byte == 9));
    block.truncate(10);
    block.shrink_to_fit();
    assert_eq!(pool.stats().requested.current, 10);
    assert_eq!(block, [7; 10]);
}

#[test]
fn a_vector_at_the_end_of_its_memory_grows_in_place() {
    let pool = MemPool::new().unwrap();
    let mut block = pool.with(|| vec![1_u8; 4 * BIG]);
    let address = block.as_ptr();
    block.reserve_exact(60 * BIG);
    assert_eq!(block.as_ptr(), address);
    block.shrink_to(8 * BIG);
    assert_eq!(block.as_ptr(), address);
    pool.validate().unwrap();
}

#[test]
fn a_vector_that_grows_over_the_threshold_enters_the_current_scope() {
    let (pool, other) = (MemPool::new().unwrap(), MemPool::new().unwrap());
    let mut block: Vec<u8> = other.with(|| vec![3; 16]);
    // Where the threshold is zero the small block has a pool already, and stays in it.
    let has_pool = other.stats().requested.current == 16;
    pool.with(|| block.reserve_exact(BIG));
    let expected = if has_pool { (0, BIG + 16) } else { (BIG + 16, 0) };
    assert_eq!((pool.stats().requested.current, other.stats().requested.current), expected);
    assert_eq!(block, [3; 16]);
}

#[test]
#[allow(unsafe_code)] // no collection asks for alignments like these
fn every_alignment_is_met() {
    let pool = MemPool::new().unwrap();
    pool.with(|| {
        for shift in 0..24 {
            let layout = Layout::from_size_align(BIG + 1, 1 << shift).unwrap();
            // SAFETY: the layout has a size that is not zero.
            let block = unsafe { alloc_zeroed(layout) };
            assert!(!block.is_null() && block.addr().is_multiple_of(1 << shift));
            // SAFETY: the block was just allocated with this layout.
            unsafe { dealloc(block, layout) };
        }
    });
    pool.validate().unwrap();
}

#[test]
fn an_impossible_reservation_is_an_error_and_the_next_one_works() {
    let pool = MemPool::new().unwrap();
    pool.with(|| {
        let mut block: Vec<u8> = Vec::new();
        assert!(block.try_reserve_exact(isize::MAX as usize).is_err());
        assert!(block.try_reserve_exact(1 << 60).is_err());
        assert!(block.try_reserve_exact(BIG).is_ok());
    });
}

#[test]
fn the_threshold_itself_is_a_pools() {
    let pool = MemPool::new().unwrap();
    let block = pool.with(|| vec![1_u8; mempool_pools::DEFAULT_THRESHOLD_BYTES]);
    assert_eq!(pool.stats().blocks.current, 1);
    drop(block);
}

#[test]
fn zeroed_and_grown_requests_below_the_threshold_are_counted() {
    let pool = MemPool::new().unwrap();
    let mut grown = pool.with(|| vec![1_u8; 100]);
    let zeroed = pool.with(|| vec![0_u8; 100]);
    let before = pool.stats();
    pool.with(|| grown.reserve_exact(200));
    let after = pool.stats();
    if before.bypassed_count > 0 {
        assert_eq!((before.bypassed_count, before.bypassed_bytes), (2, 200));
        assert_eq!((after.bypassed_count, after.bypassed_bytes), (3, 500));
    } else {
        assert_eq!(after.requested.current, 400);
    }
    drop((grown, zeroed));
}

#[test]
fn what_the_threshold_keeps_out_is_counted() {
    let pool = MemPool::new().unwrap();
    let before = pool.stats();
    let small = pool.with(|| Box::new([1_u8; 100]));
    let after = pool.stats();
    let in_pool = after.requested.current - before.requested.current;
    assert_eq!(in_pool as u64 + after.bypassed_bytes - before.bypassed_bytes, 100);
    drop(small);
}
