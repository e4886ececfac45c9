//! A program without the allocator line gets an error that names it, never a silent no-op.

use mempool_pools::{MemPool, PoolError, default_pool, empty_cache};

#[test]
fn building_a_pool_names_the_missing_line() {
    let error = MemPool::new().unwrap_err();
    assert!(matches!(error, PoolError::AllocatorNotLinked { .. }));
    let message = error.to_string();
    assert!(message.contains("#[global_allocator]"), "{message}");
    assert!(message.contains("static ALLOC: mempool_pools::PoolAllocator"), "{message}");
}

#[test]
fn the_default_pool_and_its_cache_are_errors_too() {
    assert!(matches!(default_pool(), Err(PoolError::AllocatorNotLinked { .. })));
    assert!(matches!(empty_cache(), Err(PoolError::AllocatorNotLinked { .. })));
}
