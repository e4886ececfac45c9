//! From which size a request is better served by a pool than by the system's allocator: the
//! measurement behind the default threshold.
//!
//! For each size: a block allocated and freed again and again, and sixteen blocks allocated, then
//! freed. The first byte of each page is written, as a user of the block would.

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::time::Instant;

use mempool_benches::statistics::median;
use mempool_pools::{MemPool, PoolAllocator};

#[global_allocator]
static ALLOC: PoolAllocator = PoolAllocator::new();

/// The same pools with no threshold, to ask for blocks of any size.
static EVERY_SIZE: PoolAllocator = PoolAllocator::new().threshold_bytes(0);

const ROUNDS: usize = 9;
const BATCH: usize = 16;
const PAGE: usize = 4096;

/// Nanoseconds that a block takes, when `count` are allocated and then freed.
#[allow(unsafe_code)] // allocators are called directly, to compare two in one process
fn time(allocator: &impl GlobalAlloc, size: usize, count: usize) -> f64 {
    let layout = Layout::from_size_align(size, 16).expect("a valid layout");
    let repeats = (20_000_000 / (size / PAGE + 50) / 100 / count).max(20);
    let mut blocks = Vec::with_capacity(count);
    let start = Instant::now();
    for _ in 0..repeats {
        for _ in 0..count {
            // SAFETY: the layout has a size that is not zero.
            let block = unsafe { allocator.alloc(layout) };
            assert!(!block.is_null());
            for at in (0..size).step_by(PAGE) {
                // SAFETY: `at` lies inside the block.
                let byte = unsafe { block.add(at) };
                // SAFETY: the block is writable and nobody else's.
                unsafe { byte.write_volatile(1) };
            }
            blocks.push(black_box(block));
        }
        for block in blocks.drain(..) {
            // SAFETY: `block` was just allocated with this layout.
            unsafe { allocator.dealloc(block, layout) };
        }
    }
    start.elapsed().as_nanos() as f64 / (repeats * count) as f64
}

fn main() -> Result<(), mempool_pools::PoolError> {
    let pool = MemPool::new()?;
    println!(
        "{:>8}  {:>10} {:>8} {:>12}  {:>10} {:>8} {:>12}",
        "KiB", "system ns", "pool ns", "system/pool", "16: system", "16: pool", "system/pool"
    );
    for kib in [1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 4096] {
        let mut cells = String::new();
        for count in [1, BATCH] {
            let (mut system, mut pooled) = (Vec::new(), Vec::new());
            for _ in 0..ROUNDS {
                system.push(time(&System, kib << 10, count));
                pooled.push(pool.with(|| time(&EVERY_SIZE, kib << 10, count)));
            }
            let ratios: Vec<f64> = system.iter().zip(&pooled).map(|(a, b)| a / b).collect();
            cells +=
                &format!("  {:>10.0} {:>8.0} {:>11.2}x", median(&system), median(&pooled), median(&ratios));
        }
        println!("{kib:>8}{cells}");
    }
    Ok(())
}
