//! Worker under the C library's malloc, without a pool.

use mempool_benches::allocator::Allocator;
use mempool_benches::worker::run_worker;

#[global_allocator]
static GLOBAL: std::alloc::System = std::alloc::System;

fn main() -> anyhow::Result<()> {
    run_worker(Allocator::Glibc)
}
