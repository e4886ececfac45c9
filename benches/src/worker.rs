//! The body of every worker: run one workload, measure each step, print one JSON line.

use crate::allocator::Allocator;
use crate::checksum::Checksum;
use crate::report::{PoolReport, WorkerReport};
use crate::workload::{self, Workload};
use crate::{process, statistics};
use anyhow::{Context, Result, ensure};
use candle_core::Device;
use candle_mempool::{MemPool, default_pool};
use clap::Parser;
use std::time::Instant;

/// A worker's command line.
#[derive(Clone, Debug, Parser)]
#[command(about = "Runs one workload under this binary's allocator and prints one JSON line")]
pub struct WorkerArgs {
    /// The workload to run.
    #[arg(long)]
    pub workload: String,
    /// Steps to measure.
    #[arg(long)]
    pub steps: usize,
    /// Steps to run first, unmeasured.
    #[arg(long, default_value_t = 3)]
    pub warmup: usize,
    /// Steps of a turn. With this, the worker prints a line after the warm-up and after each turn,
    /// and begins each turn when it reads one, so that several workers can take turns.
    #[arg(long)]
    pub turn: Option<usize>,
}

/// Runs a worker whose process has `allocator` as its global allocator.
///
/// Under [`Allocator::Pool`] each step runs inside one pool. The model is built outside it, as an
/// application would load its weights before it starts to serve.
pub fn run_worker(allocator: Allocator) -> Result<()> {
    let args = WorkerArgs::parse();
    let pool = match allocator {
        Allocator::Pool => Some(MemPool::new(&Device::Cpu).context("making the pool")?),
        _ => None,
    };
    let report = measure(&args, allocator, pool.as_ref())
        .with_context(|| format!("{} under {}", args.workload, allocator.name()))?;
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}

fn measure(args: &WorkerArgs, allocator: Allocator, pool: Option<&MemPool>) -> Result<WorkerReport> {
    ensure!(args.steps > 0, "--steps must be at least 1");
    ensure!(args.turn != Some(0), "--turn must be at least 1");
    let mut workload = workload::find(&args.workload)?.build()?;
    let mut checksum = Checksum::default();
    for step in 0..args.warmup {
        checksum.fold(run_step(workload.as_mut(), pool, step)?);
    }

    // Both are filled to their capacity before the first measured step, so that recording a step
    // neither allocates nor faults.
    let mut times = vec![f64::NAN; args.steps];
    let mut faults = vec![f64::NAN; args.steps];
    let before = pool.map(MemPool::stats);
    let calls_before = pool.map(system_calls).transpose()?;
    let turn = args.turn.unwrap_or(args.steps);
    for index in 0..args.steps {
        if args.turn.is_some() && index % turn == 0 {
            pass_the_turn()?;
        }
        let faults_before = process::minor_faults()?;
        let started = Instant::now();
        let sum = run_step(workload.as_mut(), pool, args.warmup + index)?;
        times[index] = started.elapsed().as_nanos() as f64;
        faults[index] = (process::minor_faults()? - faults_before) as f64;
        checksum.fold(sum);
    }
    let after = pool.map(MemPool::stats);
    let calls_after = pool.map(system_calls).transpose()?;
    if args.turn.is_some() {
        pass_the_turn()?;
    }

    Ok(WorkerReport {
        workload: args.workload.clone(),
        allocator,
        steps: args.steps,
        warmup: args.warmup,
        median_step_ns: statistics::median(&times),
        p10_step_ns: statistics::percentile(&times, 0.1),
        p90_step_ns: statistics::percentile(&times, 0.9),
        mean_step_ns: statistics::mean(&times),
        turn_ns: times.chunks(turn).map(|steps| steps.iter().sum()).collect(),
        median_step_faults: statistics::median(&faults),
        total_faults: faults.iter().sum::<f64>() as u64,
        peak_resident_kib: process::peak_resident_kib()?,
        checksum: format!("{:016x}", checksum.bits()),
        pool: before.zip(after).map(|(before, after)| PoolReport {
            reserved_peak: after.reserved.peak,
            allocated_peak: after.allocated.peak,
            requested_peak: after.requested.peak,
            hits: after.hits - before.hits,
            misses: after.misses - before.misses,
            system_calls: calls_after.unwrap_or(0) - calls_before.unwrap_or(0),
        }),
    })
}

/// Times that `pool` and the default pool took memory from the system or returned it.
fn system_calls(pool: &MemPool) -> Result<u64> {
    let pools = [pool.stats(), default_pool(&Device::Cpu)?.stats()];
    Ok(pools.iter().map(|stats| stats.map_calls + stats.unmap_calls).sum())
}

/// Says that the turn is over and waits for the next one.
fn pass_the_turn() -> Result<()> {
    println!();
    let mut line = String::new();
    let read = std::io::stdin().read_line(&mut line).context("waiting for the next turn")?;
    ensure!(read > 0, "nobody gave this worker its next turn");
    Ok(())
}

fn run_step(workload: &mut dyn Workload, pool: Option<&MemPool>, step: usize) -> Result<u64> {
    match pool {
        Some(pool) => pool.with(|| workload.step(step)),
        None => workload.step(step),
    }
    .with_context(|| format!("step {step}"))
}
