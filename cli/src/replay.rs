//! `mempool replay`: what a policy would have needed for a recorded run.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use mempool_pools::arena::trace::Event;
use mempool_pools::arena::{
    Arena, Buddy, BuddyOptions, Pages, PagesOptions, Placement, Replay, SimulatedUpstream,
};
use serde::Serialize;

use crate::trace_file;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The traces.
    #[arg(required = true)]
    traces: Vec<PathBuf>,
    /// How blocks are placed; may be given more than once.
    #[arg(long, value_enum, default_values_t = [Policy::Pages])]
    policy: Vec<Policy>,
    /// Keep mapped memory at or below this many bytes.
    #[arg(long, value_name = "BYTES")]
    limit: Option<usize>,
    /// Print one JSON object a trace and policy instead of a table.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Policy {
    /// Best fit in virtual ranges whose pages are mapped where they are needed.
    Pages,
    /// Blocks of powers of two, split in halves.
    Buddy,
}

/// What a policy needed for a trace.
#[derive(Debug, Serialize)]
struct Report {
    trace: String,
    policy: String,
    steps: u64,
    allocations: u64,
    peak_requested_bytes: usize,
    peak_allocated_bytes: usize,
    peak_reserved_bytes: usize,
    /// 1 - peak requested / peak reserved.
    fragmentation: f64,
    map_calls: u64,
    hit_rate: f64,
    ns_per_op: f64,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let bar = ProgressBar::new(0);
    bar.set_style(ProgressStyle::with_template("{bar:40} {msg}")?);
    if !args.json {
        println!(
            "{:<22} {:<7} {:>6} {:>9} {:>14} {:>14} {:>8} {:>9} {:>8} {:>8}",
            "trace",
            "policy",
            "steps",
            "allocs",
            "requested MiB",
            "reserved MiB",
            "frag",
            "map calls",
            "hits",
            "ns/op"
        );
    }
    for path in &args.traces {
        bar.set_position(0);
        bar.set_length(std::fs::metadata(path).map_or(0, |file| file.len()));
        bar.set_message(format!("reading {}", path.display()));
        let events = trace_file::read(path, &bar)?;
        for policy in &args.policy {
            bar.set_position(0);
            bar.set_length(events.len() as u64);
            bar.set_message(format!("replaying {}", path.display()));
            let report = replay(path, *policy, args.limit, &events, &bar)
                .with_context(|| format!("replaying {}", path.display()))?;
            bar.suspend(|| print(&report, args.json))?;
        }
    }
    bar.finish_and_clear();
    Ok(())
}

fn placement(policy: Policy, limit_bytes: Option<usize>) -> Result<Box<dyn Placement>> {
    Ok(match policy {
        Policy::Pages => Box::new(Pages::new(PagesOptions { limit_bytes, ..PagesOptions::default() })?),
        Policy::Buddy => Box::new(Buddy::new(BuddyOptions { limit_bytes, ..BuddyOptions::default() })?),
    })
}

fn replay(
    path: &Path,
    policy: Policy,
    limit: Option<usize>,
    events: &[Event],
    bar: &ProgressBar,
) -> Result<Report> {
    /// Events between two looks at the progress bar, which costs as much as some of them.
    const PART: usize = 1 << 16;
    let upstream = SimulatedUpstream::builder().build();
    let mut replay = Replay::new(Arena::from_boxed(placement(policy, limit)?, upstream));
    let mut nanoseconds = 0;
    for part in events.chunks(PART) {
        let start = Instant::now();
        for &event in part {
            replay.apply(event)?;
        }
        nanoseconds += start.elapsed().as_nanos();
        bar.inc(part.len() as u64);
    }
    let stats = replay.stats();
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    Ok(Report {
        trace: name.trim_end_matches(".gz").trim_end_matches(".csv").to_owned(),
        policy: replay.arena().placement().name().to_owned(),
        steps: replay.step_count(),
        allocations: stats.blocks.total_allocated,
        peak_requested_bytes: stats.requested.peak,
        peak_allocated_bytes: stats.allocated.peak,
        peak_reserved_bytes: stats.reserved.peak,
        fragmentation: stats.run_fragmentation(),
        map_calls: stats.map_calls,
        hit_rate: stats.hit_rate(),
        ns_per_op: nanoseconds as f64 / events.len().max(1) as f64,
    })
}

fn print(report: &Report, json: bool) -> Result<()> {
    if json {
        println!("{}", serde_json::to_string(report)?);
        return Ok(());
    }
    let mib = |bytes: usize| bytes as f64 / f64::from(1 << 20);
    println!(
        "{:<22} {:<7} {:>6} {:>9} {:>14.1} {:>14.1} {:>7.2}% {:>9} {:>7.2}% {:>8.1}",
        report.trace,
        report.policy,
        report.steps,
        report.allocations,
        mib(report.peak_requested_bytes),
        mib(report.peak_reserved_bytes),
        100.0 * report.fragmentation,
        report.map_calls,
        100.0 * report.hit_rate,
        report.ns_per_op,
    );
    Ok(())
}
