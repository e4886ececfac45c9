//! The suite over the system's allocator.

#[global_allocator]
static ALLOC: mempool_pools::PoolAllocator = mempool_pools::PoolAllocator::new();

mod suite;
