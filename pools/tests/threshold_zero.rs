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

#[test]
fn a_name_that_lies_in_a_pool_is_not_freed_under_a_lock() {
    let outer = mempool_pools::MemPool::new().unwrap();
    // The name is the only block of `outer`, which ends with it.
    let name = outer.with(|| String::from("lies in another pool"));
    drop(outer);
    let named = mempool_pools::MemPool::builder().name(name).build().unwrap();
    assert_eq!(named.stats().name, "lies in another pool");
    drop(named);
}
