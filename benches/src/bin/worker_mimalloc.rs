//! Worker under mimalloc, without a pool.

use mempool_benches::allocator::Allocator;
use mempool_benches::worker::run_worker;

#[global_allocator]
static GLOBAL: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> anyhow::Result<()> {
    run_worker(Allocator::Mimalloc)
}
