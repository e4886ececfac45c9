//! The suite over jemalloc.
#![cfg(unix)]

#[global_allocator]
static ALLOC: mempool_pools::PoolAllocator<tikv_jemallocator::Jemalloc> =
    mempool_pools::PoolAllocator::over(tikv_jemallocator::Jemalloc);

mod suite;
