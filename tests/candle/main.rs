//! candle inside pools: unmodified models, bit for bit the same as without.

mod devices;
mod models;
mod placement;
mod threads;
mod weights;

#[global_allocator]
static ALLOC: candle_mempool::PoolAllocator = candle_mempool::PoolAllocator::new();
