//! Trains a small CNN on real handwritten digits with and without a memory pool, and fails
//! unless both runs agree to the last bit.
//!
//! ```text
//! cargo run --release -p mempool-examples --example train_digits
//! ```

mod batches;
mod digits;
mod model;
mod report;
mod run;
mod train;

use std::num::NonZeroUsize;

use anyhow::{Context, Result, ensure};
use candle_core::Device;
use candle_mempool::{MemPool, PoolAllocator};
use clap::{ArgGroup, Parser};
use mempool_examples::{Summary, median_ms};

use digits::Digits;
use run::{Memory, Settings};
use train::train;

#[global_allocator]
static ALLOCATOR: PoolAllocator = PoolAllocator::new();

/// Trains a small CNN on 1,797 handwritten digits, by default twice: without and with a pool.
#[derive(Debug, Parser)]
#[command(group(ArgGroup::new("mode").args(["compare", "no_pool", "pool"])))]
struct Args {
    /// Passes over the training images.
    #[arg(long, default_value = "8")]
    epochs: NonZeroUsize,
    /// Images in a step.
    #[arg(long, default_value = "32")]
    batch: NonZeroUsize,
    /// Decides the split, the initial weights and the order of the images.
    #[arg(long, default_value_t = 42)]
    seed: u64,
    /// Learning rate of AdamW.
    #[arg(long, default_value_t = 3e-3)]
    lr: f64,
    /// Fail below this share of the test images recognised.
    #[arg(long, default_value_t = 0.97)]
    min_accuracy: f64,
    /// Train twice in lockstep, pool off and on, and compare (the default).
    #[arg(long)]
    compare: bool,
    /// Train once, without a pool.
    #[arg(long)]
    no_pool: bool,
    /// Train once, with a pool.
    #[arg(long)]
    pool: bool,
}

fn main() -> Result<()> {
    let args = Args::parse();
    ensure!(args.lr.is_finite() && args.lr > 0.0, "--lr is {}, it must be above 0", args.lr);
    ensure!(
        (0.0..=1.0).contains(&args.min_accuracy),
        "--min-accuracy is {}, it must be from 0 to 1",
        args.min_accuracy
    );
    let settings =
        Settings { epochs: args.epochs.get(), batch: args.batch.get(), seed: args.seed, lr: args.lr };
    let digits = Digits::bundled()?;

    let pool = MemPool::builder(&Device::Cpu).name("train_digits").build().context("creating the pool")?;

    let mut names = Vec::new();
    let mut memories = Vec::new();
    if !args.pool {
        names.push("pool off");
        memories.push(Memory::System);
    }
    if !args.no_pool {
        names.push("pool on");
        memories.push(Memory::Pool(&pool));
    }
    let outcomes = train(&digits, settings, &memories)?;
    report::print(&names, &outcomes);
    if !args.no_pool {
        eprint!("{}", Summary::new("train_digits").pool(&pool.stats()));
    }
    if let [off, on] = outcomes.as_slice() {
        let ratio = median_ms(&off.step_times) / median_ms(&on.step_times);
        println!("{:16}  {ratio:.3} (off / on)", "step time ratio");
        report::check_same(off, on)?;
        println!("both runs agree in every bit of loss and weights");
    }
    for outcome in &outcomes {
        report::check_accuracy(outcome, args.min_accuracy)?;
    }
    Ok(())
}
