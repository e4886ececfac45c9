//! `mempool replay`.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Context as _, Result, anyhow, ensure};
use mempool_cli::replay::{self, Options, Report};
use mempool_pools::arena::{Conf, CostModel, Policy};

use crate::console::{self, Console, mib};
use crate::input;

/// What the columns of the table are.
const COLUMNS: &str = "\
Columns:
  live MiB    the most that was asked for at once
  reserved    the most that was mapped at once, MiB
  frag        1 - live / reserved
  maps        calls that mapped memory
  moved       pages that went where memory was needed (of 2 MiB)
  mapping ms  what mapping calls take together, by the cost model
  hits        requests served from memory that was mapped already
  ns/op       bookkeeping of an allocation or a free: the mean, what 99.9% take at most, the slowest";

#[derive(Debug, clap::Args)]
#[command(after_help = COLUMNS)]
pub(crate) struct Args {
    /// The traces; `-` is standard input.
    #[arg(required = true)]
    traces: Vec<PathBuf>,
    /// How blocks are placed: none, simple, buckets, buddy, bfc, torch, expandable, segments or pages.
    /// May be given more than once, or as `all`.
    #[arg(long, value_name = "POLICY")]
    policy: Vec<String>,
    /// Options of the policy, as `key:value,...`.
    #[arg(long, default_value = "", value_name = "OPTIONS")]
    conf: String,
    /// The device has this many bytes: 6000000000, or with a unit, such as 6GB or 5.5GiB.
    #[arg(long, value_name = "BYTES", value_parser = input::bytes)]
    limit: Option<usize>,
    /// Work that is queued uses a freed block until this many operations later.
    #[arg(long, default_value_t = 0, value_name = "OPERATIONS")]
    lag: u64,
    /// How long the recorded run took, to see mapping as a share of it.
    #[arg(long, value_name = "SECONDS")]
    duration: Option<f64>,
    /// Find the smallest device on which the trace completes.
    #[arg(long)]
    min_capacity: bool,
    /// A JSON file with what calls take by the handle's size, in microseconds, the smallest first:
    /// {"handles": [{"bytes": 2097152, "create_us": 9.5, "map_us": 1.3, "access_us": 31, "unmap_us": 17,
    /// "release_us": 11}, ...]}. An NVIDIA H200's by default.
    #[arg(long, value_name = "FILE")]
    costs: Option<PathBuf>,
    /// Show hits by size.
    #[arg(long)]
    buckets: bool,
    /// Print one JSON object a trace and policy instead of a table.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if let Some(seconds) = args.duration {
        ensure!(seconds.is_finite() && seconds > 0.0, "--duration {seconds} is not a number of seconds");
    }
    let costs = match &args.costs {
        Some(path) => input::costs(path)?,
        None => CostModel::default(),
    };
    let confs = confs(args)?;
    input::check(&args.traces)?;
    let console = Console::new()?;
    if !args.json {
        console.print(print_header)?;
    }
    // What one policy cannot do, or one trace does not hold, keeps nobody from the others.
    let mut failures = 0;
    let mut tell = |error: anyhow::Error| {
        failures += 1;
        console.tell(console::explain(&error));
    };
    for path in &args.traces {
        let (name, trace) = match input::trace(path, &console) {
            Ok(read) => read,
            Err(error) => {
                tell(error);
                continue;
            }
        };
        for conf in &confs {
            console.begin(format!("replaying {}", input::described(path)), trace.events.len() as u64);
            let options = Options {
                conf: conf.clone(),
                limit_bytes: args.limit,
                lag: args.lag,
                costs: costs.clone(),
                min_capacity: args.min_capacity,
            };
            let report =
                replay::replay(&name, &trace.events, &options, |events| console.advance(events as u64))
                    .map_err(|error| anyhow!(error))
                    .with_context(|| {
                        format!("replaying {} with policy {}", input::described(path), conf.policy())
                    });
            match report {
                Ok(report) if args.json => console.print_json(&report)?,
                Ok(report) => console.print(|out| print(&report, args, out))?,
                Err(error) => tell(error),
            }
        }
    }
    console.finish();
    ensure!(failures == 0, "{failures} of {} replays failed", args.traces.len() * confs.len());
    Ok(())
}

/// The policies with their options.
fn confs(args: &Args) -> Result<Vec<Conf>> {
    let conf: Conf = args.conf.parse()?;
    let names = match args.policy.as_slice() {
        [] => return Ok(vec![conf]),
        [all] if all == "all" => Policy::ALL.to_vec(),
        names => names.iter().map(|name| name.parse()).collect::<Result<_, _>>()?,
    };
    Ok(names.into_iter().map(|policy| conf.clone().with_policy(policy)).collect())
}

fn print_header(out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "{:<22} {:<10} {:>5} {:>8} {:>11} {:>11} {:>7} {:>8} {:>8} {:>10} {:>7} {:>7} {:>8} {:>9}",
        "trace",
        "policy",
        "steps",
        "allocs",
        "live MiB",
        "reserved",
        "frag",
        "maps",
        "moved",
        "mapping ms",
        "hits",
        "ns/op",
        "ns 99.9%",
        "ns max",
    )
}

fn print(report: &Report, args: &Args, out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "{:<22} {:<10} {:>5} {:>8} {:>11.1} {:>11.1} {:>6.2}% {:>8} {:>8} {:>10.2} {:>6.2}% {:>7.1} {:>8.0} {:>9.0}",
        report.trace,
        report.policy,
        report.steps,
        report.allocations,
        mib(report.peak_requested_bytes),
        mib(report.peak_reserved_bytes),
        100.0 * report.fragmentation,
        report.map_calls,
        report.moved_pages,
        report.mapping_us / 1e3,
        100.0 * report.hit_rate,
        report.ns_per_op,
        report.ns_p999,
        report.ns_max,
    )?;
    writeln!(
        out,
        "  when most was reserved: {:.2}% of it in rounding, {:.2}% of what was free outside the largest block",
        100.0 * report.internal_fragmentation,
        100.0 * report.external_fragmentation,
    )?;
    if let Some(seconds) = args.duration {
        writeln!(out, "  mapping is {:.2}% of {seconds} s", report.mapping_us / 1e4 / seconds)?;
    }
    if let Some(bytes) = report.min_capacity_bytes {
        let factor = bytes as f64 / report.peak_requested_bytes.max(1) as f64;
        writeln!(out, "  completes on {:.1} MiB, {factor:.3} times what was live", mib(bytes))?;
    }
    if args.buckets {
        for (bucket, counts) in
            report.buckets.iter().enumerate().filter(|(_, counts)| counts.hits + counts.misses > 0)
        {
            let rate = counts.hits as f64 / (counts.hits + counts.misses) as f64;
            writeln!(
                out,
                "  from 2^{bucket:<2} bytes {:>9} requests, hits {:>6.2}%",
                counts.hits + counts.misses,
                100.0 * rate
            )?;
        }
    }
    Ok(())
}
