//! Worker under jemalloc, without a pool.

use mempool_benches::allocator::Allocator;
use mempool_benches::worker::run_worker;

#[global_allocator]
static GLOBAL: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> anyhow::Result<()> {
    run_worker(Allocator::Jemalloc)
}
