//! Worker under `PoolAllocator`, with every step inside one pool.

use mempool_benches::allocator::Allocator;
use mempool_benches::worker::run_worker;

#[global_allocator]
static GLOBAL: candle_mempool::PoolAllocator = candle_mempool::PoolAllocator::new();

fn main() -> anyhow::Result<()> {
    run_worker(Allocator::Pool)
}
