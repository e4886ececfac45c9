//! Pools for a program on cudarc, without candle: batches of changing size go to the device, are
//! worked on there and come back.
//!
//! `cargo run --release --features cuda --example cudarc_pool`

use std::time::Instant;

use anyhow::{Result, ensure};
use clap::Parser;
use cudarc::driver::{CudaContext, CudaStream};
use mempool_pools::{cuda, mark_step, without_pools};
use std::sync::Arc;

/// Sends batches through a device, with and without a pool.
#[derive(Parser)]
struct Options {
    /// Batches of each run.
    #[arg(long, default_value_t = 500)]
    batches: usize,
    /// Numbers in the largest batch.
    #[arg(long, default_value_t = 1 << 20)]
    numbers: usize,
    /// The device.
    #[arg(long, default_value_t = 0)]
    device: usize,
}

/// One batch: up, a copy, zeros beside it, and back. The sum of what came back.
fn batch(stream: &Arc<CudaStream>, host: &[f32]) -> Result<f64> {
    let input = stream.clone_htod(host)?;
    let copy = stream.clone_dtod(&input)?;
    let padding = stream.alloc_zeros::<f32>(host.len() / 2)?;
    let back = stream.clone_dtoh(&copy)?;
    let zeros = stream.clone_dtoh(&padding)?;
    Ok(back.iter().chain(&zeros).map(|&number| f64::from(number)).sum())
}

fn main() -> Result<()> {
    let options = Options::parse();
    let context = CudaContext::new(options.device)?;
    let device = cuda::device(&context)?;
    let stream = context.new_stream()?;
    let pool = device.pool_builder().name("batches").build()?;
    let host: Vec<f32> = (0..options.numbers).map(|k| (k % 10) as f32).collect();
    let run = || -> Result<f64> {
        let sizes = (0..options.batches).map(|k| options.numbers - k % 8 * (options.numbers / 16));
        sizes.map(|size| batch(&stream, &host[..size])).sum()
    };
    // Once for what the driver does the first time.
    without_pools(run)?;
    pool.with(run)?;
    mark_step();
    let start = Instant::now();
    let expected = without_pools(run)?;
    let without = start.elapsed();
    let start = Instant::now();
    let sum = pool.with(run)?;
    let with = start.elapsed();
    mark_step();
    ensure!(sum == expected, "the pool changed the result: {sum} instead of {expected}");
    let per_batch = |took: std::time::Duration| took.as_secs_f64() * 1e6 / options.batches as f64;
    println!("sum of all numbers      {sum}");
    println!("without a pool          {:.1} us a batch", per_batch(without));
    println!("in a pool               {:.1} us a batch", per_batch(with));
    let stats = pool.stats();
    println!("driver memory calls     {}", stats.last_step.map_calls + stats.last_step.unmap_calls);
    println!("hits                    {} of {}", stats.hits, stats.hits + stats.misses);
    println!("peak reserved           {} MiB", stats.reserved.peak >> 20);
    drop(pool);
    println!("reserved after the pool {} MiB", device.reserved_bytes() >> 20);
    Ok(())
}
