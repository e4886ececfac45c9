//! A service that decodes for many sessions at once, each with a cache of keys and values of its own length. Sessions come
//! and go, so their caches leave holes. Here they lie in a set of buffers, once left where they are and once moved
//! together while the service runs. What the sessions decode has to be the same to the bit.
//!
//! ```text
//! cargo run --release -p mempool-examples --example session_caches
//! cargo run --release --features cuda -p mempool-examples --example session_caches -- --width 1024 --longest 4096
//! ```

mod service;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use candle_core::Device;
use candle_mempool::{
    BufferSet, CallStacks, CompactionOptions, HistoryOptions, MemPool, PoolAllocator, label, mark_step,
    record_history, snapshot,
};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use mempool_examples::{human_bytes, median_ms};

use service::{Service, Sizes};

#[global_allocator]
static ALLOCATOR: PoolAllocator = PoolAllocator::new();

/// Decodes for sessions that come and go, with their caches left where they are and moved together.
#[derive(Debug, Parser)]
struct Args {
    /// Steps; each decodes a token for every session.
    #[arg(long, default_value_t = 600)]
    steps: usize,
    /// Sessions at once.
    #[arg(long, default_value_t = 16)]
    sessions: usize,
    /// Numbers of a key, and of a value.
    #[arg(long, default_value_t = 256)]
    width: usize,
    /// Tokens of the longest session; the shortest has a sixteenth.
    #[arg(long, default_value_t = 1024)]
    longest: usize,
    /// Share of the time that moving may take.
    #[arg(long, default_value_t = 0.05)]
    budget: f64,
    /// Write what lies where at the end, and what happened lately, into this file: for `mempool report`, `mempool doctor` and
    /// PyTorch's viewers. A history is kept for it, with call stacks, which takes its time.
    #[arg(long)]
    snapshot: Option<PathBuf>,
    /// Run on the CPU although there is a GPU.
    #[arg(long)]
    cpu: bool,
}

/// A service, and how it went.
struct Run {
    name: &'static str,
    moves: bool,
    service: Service,
    times: Vec<Duration>,
    most_bytes: usize,
    fragmentation: f64,
}

impl Run {
    fn new(name: &'static str, moves: bool, args: &Args, device: &Device) -> Result<Self> {
        let pool = MemPool::builder(device).name(name).build()?;
        let mut caches = BufferSet::new(&pool);
        caches.set_compaction(CompactionOptions { budget_share: args.budget, ..Default::default() })?;
        let sizes = Sizes { sessions: args.sessions, width: args.width, longest: args.longest };
        let service = Service::new(sizes, pool, caches, device)?;
        Ok(Self { name, moves, service, times: Vec::new(), most_bytes: 0, fragmentation: 0.0 })
    }

    fn step(&mut self, device: &Device) -> Result<()> {
        let _label = label(self.name);
        let start = Instant::now();
        self.service.step()?;
        if self.moves {
            self.service.caches.compact()?;
        }
        device.synchronize()?;
        mark_step();
        self.times.push(start.elapsed());
        self.most_bytes = self.most_bytes.max(self.service.caches.stats().block_bytes);
        self.fragmentation += self.service.caches.fragmentation();
        Ok(())
    }
}

fn main() -> Result<()> {
    let args = Args::parse();
    let device = if args.cpu { Device::Cpu } else { Device::cuda_if_available(0)? };
    if args.snapshot.is_some() {
        record_history(HistoryOptions::new().call_stacks(CallStacks::All))?;
    }
    let mut runs = [
        Run::new("left where they are", false, &args, &device)?,
        Run::new("moved together", true, &args, &device)?,
    ];
    let bar = ProgressBar::new(args.steps as u64)
        .with_style(ProgressStyle::with_template("{bar:40} {pos}/{len} steps [{elapsed}]")?);
    // They take turns, so that both see the same machine.
    for _ in 0..args.steps {
        for run in &mut runs {
            run.step(&device)?;
        }
        bar.inc(1);
    }
    bar.finish_and_clear();

    let [left, moved] = &runs;
    let decoded = (left.service.decoded()?, moved.service.decoded()?);
    ensure!(decoded.0 == decoded.1, "what was decoded differs: {} and {}", decoded.0, decoded.1);
    println!(
        "{} steps of {} sessions, {} sessions in all; what was decoded is the same in both: {}",
        args.steps, args.sessions, left.service.served, decoded.0
    );
    println!("{:<22} {:>14} {:>14} {:>12}", "caches", "most held", "fragmentation", "a step");
    for run in &runs {
        println!(
            "{:<22} {:>14} {:>13.1}% {:>9.3} ms",
            run.name,
            human_bytes(run.most_bytes),
            100.0 * run.fragmentation / args.steps as f64,
            median_ms(&run.times),
        );
    }
    let stats = moved.service.caches.compaction_stats();
    println!(
        "\n{} caches moved, {}; copies took {:.2}% of the time (budget {:.2}%)",
        stats.moved,
        human_bytes(stats.moved_bytes as usize),
        100.0 * stats.share(),
        100.0 * args.budget,
    );
    if let Some(path) = &args.snapshot {
        snapshot().dump(path)?;
        println!("what lies where is in {}", path.display());
    }
    Ok(())
}
