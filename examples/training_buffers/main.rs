//! A training loop whose steps repeat themselves: forward, backward and optimizer as one planned step, beside the same
//! loop in a pool and in stock candle. Losses have to be the same to the bit.
//!
//! ```text
//! cargo run --release -p mempool-examples --example training_buffers
//! cargo run --release --features cuda -p mempool-examples --example training_buffers
//! ```

mod training;

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use candle_core::Device;
use candle_mempool::{MemPool, PoolAllocator, StepPlan, mark_step, without_pools};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use mempool_examples::{BitDigest, human_bytes, median_ms};

use training::Training;

#[global_allocator]
static ALLOCATOR: PoolAllocator = PoolAllocator::new();

/// Trains a small network three times, each time with its memory had in another way.
#[derive(Debug, Parser)]
struct Args {
    /// Steps of each way.
    #[arg(long, default_value_t = 60)]
    steps: usize,
    /// Examples in a batch.
    #[arg(long, default_value_t = 64)]
    batch: usize,
    /// Run on the CPU although there is a GPU.
    #[arg(long)]
    cpu: bool,
}

/// Steps that are not measured.
const WARM_UP: usize = 5;

/// How memory is had.
enum Way {
    Stock,
    Pool(MemPool),
    Plan(MemPool, StepPlan),
}

/// One training, and how it went.
struct Run {
    name: &'static str,
    way: Way,
    training: Training,
    times: Vec<Duration>,
    losses: BitDigest,
    last_loss: f32,
}

impl Run {
    fn new(name: &'static str, way: Way, args: &Args, device: &Device) -> Result<Self> {
        let training = without_pools(|| Training::new(args.batch, device))?;
        Ok(Self { name, way, training, times: Vec::new(), losses: BitDigest::new(), last_loss: 0.0 })
    }

    fn step(&mut self, number: usize) -> Result<()> {
        let training = &mut self.training;
        let start = Instant::now();
        self.last_loss = match &mut self.way {
            Way::Stock => without_pools(|| training.step(number)),
            Way::Pool(pool) => pool.with(|| training.step(number)),
            Way::Plan(_, plan) => plan.run(|| training.step(number)),
        }?;
        if number >= WARM_UP {
            self.times.push(start.elapsed());
        }
        self.losses.update(&[self.last_loss]);
        Ok(())
    }

    fn reserved_bytes(&self) -> Option<usize> {
        match &self.way {
            Way::Stock => None,
            Way::Pool(pool) | Way::Plan(pool, _) => Some(pool.stats().reserved.current),
        }
    }
}

fn main() -> Result<()> {
    let args = Args::parse();
    let device = if args.cpu { Device::Cpu } else { Device::cuda_if_available(0)? };
    let pool = |name| MemPool::builder(&device).name(name).build();
    let plan_pool = pool("step plan")?;
    let plan = plan_pool.step();
    let mut runs = [
        Run::new("stock candle", Way::Stock, &args, &device)?,
        Run::new("pool", Way::Pool(pool("pool")?), &args, &device)?,
        Run::new("step plan", Way::Plan(plan_pool, plan), &args, &device)?,
    ];
    let bar = ProgressBar::new((runs.len() * (args.steps + WARM_UP)) as u64)
        .with_style(ProgressStyle::with_template("{bar:40} {pos}/{len} steps [{elapsed}]")?);
    // They take turns, so that all see the same machine.
    for number in 0..args.steps + WARM_UP {
        for run in &mut runs {
            run.step(number)?;
            bar.inc(1);
        }
        mark_step();
    }
    bar.finish_and_clear();

    let stock = &runs[0];
    for run in &runs[1..] {
        let same = run.losses == stock.losses;
        ensure!(
            same,
            "losses differ: {} of stock candle, {} of {}",
            stock.last_loss,
            run.last_loss,
            run.name
        );
    }
    println!(
        "{} steps of {} examples; last loss {:.6}, the same in all three",
        args.steps, args.batch, stock.last_loss
    );
    let median = median_ms(&stock.times);
    for run in &runs {
        let own = median_ms(&run.times);
        let memory =
            run.reserved_bytes().map_or(String::new(), |bytes| format!("{} held", human_bytes(bytes)));
        println!("{:<14} {own:>9.3} ms a step {:>6.2}x  {memory}", run.name, median / own);
    }
    let Way::Plan(_, plan) = &runs[2].way else { return Ok(()) };
    let stats = plan.stats();
    println!(
        "\n{} of {} runs went as planned: {} allocations a step, {} at most at once, a slab of {}",
        stats.planned_runs,
        stats.runs,
        stats.planned / stats.planned_runs.max(1),
        human_bytes(stats.max_live_bytes),
        human_bytes(stats.slab_bytes),
    );
    Ok(())
}
