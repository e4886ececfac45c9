//! `mempool size`.

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use mempool_pools::arena::{Conf, Margin, Policy, Size, Sizing};
use serde::Serialize;

use crate::console::{Console, mib};
use crate::input;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The traces; `-` is standard input.
    #[arg(required = true)]
    traces: Vec<PathBuf>,
    /// The policy and its options, as `key:value,...`.
    #[arg(long, default_value = "", value_name = "OPTIONS")]
    conf: String,
    /// What is added, in percent of the least that suffices: 10 to 20.
    #[arg(long, default_value_t = 15.0, value_name = "PERCENT")]
    margin: f64,
    /// Sizes of blocks are rounded up to this many bytes: 512 on devices, 64 on the host.
    #[arg(long, default_value_t = 512, value_name = "BYTES")]
    granule: usize,
    /// Print one JSON object a trace.
    #[arg(long)]
    json: bool,
}

/// What is printed of a trace.
#[derive(Debug, Serialize)]
struct Report<'a> {
    trace: &'a str,
    policy: &'static str,
    peak_requested_bytes: usize,
    least_bytes: usize,
    size_bytes: usize,
    conf: String,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let conf: Conf = args.conf.parse()?;
    let policy = conf.policy();
    let margin = args.margin;
    ensure!((10.0..=20.0).contains(&margin), "--margin {margin} is not a number of percent from 10 to 20");
    let mut sizing = Sizing::new(conf, Margin::new(margin / 100.0)?);
    sizing.setting.granule_bytes = args.granule;
    input::check(&args.traces)?;
    let console = Console::new()?;
    for path in &args.traces {
        let (name, trace) = input::trace(path, &console)?;
        console.begin(format!("looking for the size of {}", input::described(path)), 0);
        let size = sizing.size_from(&trace.events).with_context(|| input::described(path))?;
        print(&name, policy, size, args, &console)?;
    }
    console.finish();
    Ok(())
}

fn print(trace: &str, policy: Policy, size: Size, args: &Args, console: &Console) -> Result<()> {
    let Size { peak_requested_bytes, least_bytes, size_bytes } = size;
    // Pages are whole numbers of MiB.
    let given = args.conf.trim_end_matches([',', ' ']);
    let separator = if given.is_empty() { "" } else { "," };
    let conf = format!("{given}{separator}fixed_size_mb:{}", size_bytes >> 20);
    if args.json {
        let policy = policy.as_str();
        let report = Report { trace, policy, peak_requested_bytes, least_bytes, size_bytes, conf };
        return console.print_json(&report);
    }
    let (live, least, size) = (mib(peak_requested_bytes), mib(least_bytes), mib(size_bytes));
    console.print(|out| {
        writeln!(
            out,
            "{trace}: {live:.1} MiB live at most, policy {policy} completes on {least:.0} MiB; with what is added {size:.0} MiB",
        )?;
        writeln!(out, "{conf}")
    })
}
