//! The suite over mimalloc.

#[global_allocator]
static ALLOC: mempool_pools::PoolAllocator<mimalloc::MiMalloc> =
    mempool_pools::PoolAllocator::over(mimalloc::MiMalloc);

mod suite;
