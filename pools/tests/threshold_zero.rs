//! The suite with every request sent to pools, the test harness's own included.

#[global_allocator]
static ALLOC: mempool_pools::PoolAllocator = mempool_pools::PoolAllocator::new().threshold_bytes(0);

mod suite;

#[test]
fn small_requests_lie_in_the_pool_too() {
    let pool = mempool_pools::MemPool::new().unwrap();
    let boxes: Vec<Box<u64>> = pool.with(|| (0..100).map(Box::new).collect());
    assert_eq!(pool.stats().blocks.current, 101);
    assert_eq!(pool.stats().bypassed_count, 0);
    assert!(boxes.iter().enumerate().all(|(k, value)| **value == k as u64));
}
