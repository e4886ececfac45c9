//! A small survivor in the middle of a big freed block keeps all of it from being used again. Under a
//! limit that ends PyTorch's algorithm out of memory; a pool for what survives cures it, and so does policy
//! `pages` without a pool. First on addresses alone, then with candle's tensors on the GPU, or on the CPU where
//! there is none.
//!
//! ```text
//! cargo run --release --example isolate
//! cargo run --release --features cuda --example isolate
//! ```

mod report;
mod simulated;
mod steps;
mod tensors;

use anyhow::Result;
use candle_core::{Device, DeviceLocation};
use candle_mempool::{Policy, PoolAllocator};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};

use report::Expected;
use steps::{LIMIT_BYTES, Memory, SURVIVORS_BYTES, run};

#[global_allocator]
static ALLOCATOR: PoolAllocator = PoolAllocator::new();

/// Runs a big block each step and a small survivor inside it, with and without a pool for the survivors.
#[derive(Debug, Parser)]
struct Args {
    /// Steps of each run.
    #[arg(long, default_value_t = 1000)]
    steps: usize,
    /// Run candle's part on the CPU although there is a GPU.
    #[arg(long)]
    cpu: bool,
    /// Leave out candle's part.
    #[arg(long)]
    simulated_only: bool,
}

/// The three runs: how blocks are placed, whether survivors have a pool, and how it has to end.
const RUNS: [(&str, Policy, bool, Expected); 3] = [
    ("torch, no pool", Policy::Torch, false, Expected::OutOfMemory),
    ("torch, a pool for survivors", Policy::Torch, true, Expected::Flat),
    ("pages, no pool", Policy::Pages, false, Expected::Flat),
];

/// The limits of the pool that the program is in, and of the survivors' pool: the same sum with and without.
fn limits(isolated: bool) -> (usize, Option<usize>) {
    if isolated { (LIMIT_BYTES - SURVIVORS_BYTES, Some(SURVIVORS_BYTES)) } else { (LIMIT_BYTES, None) }
}

fn main() -> Result<()> {
    let args = Args::parse();
    println!("{}", report::scenario());
    println!("\nsimulated");
    all(args.steps, simulated::Simulated::new)?;
    if args.simulated_only {
        return Ok(());
    }
    let device = if args.cpu { Device::Cpu } else { Device::cuda_if_available(0)? };
    match device.location() {
        DeviceLocation::Cuda { gpu_id } => println!("\ncandle on GPU {gpu_id}"),
        _ => println!("\ncandle on the CPU, where what does not fit into a pool counts as out of memory"),
    }
    all(args.steps, |policy, isolated| tensors::Tensors::new(&device, policy, isolated))
}

/// Does all runs, prints how they ended and fails when one ended otherwise than it has to.
fn all<M: Memory>(steps: usize, new: impl Fn(Policy, bool) -> Result<M>) -> Result<()> {
    let bar = ProgressBar::new((RUNS.len() * steps) as u64)
        .with_style(ProgressStyle::with_template("{bar:40} {pos}/{len} steps [{elapsed}] {msg}")?);
    for (name, policy, isolated, expected) in RUNS {
        bar.set_message(name);
        let outcome = run(&mut new(policy, isolated)?, steps, || bar.inc(1))?;
        bar.suspend(|| print!("{}", report::lines(name, &outcome)));
        expected.check(name, &outcome, steps)?;
    }
    bar.finish_and_clear();
    Ok(())
}
