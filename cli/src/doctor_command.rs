//! `mempool doctor`.

use std::io::{BufRead as _, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use bytesize::ByteSize;
use mempool_cli::report::readable;
use mempool_cli::trace;
use mempool_pools::arena::trace::Event;
use mempool_pools::arena::{Conf, Policy, ReplayDevice};
use mempool_pools::diagnosis::{Diagnosis, Finding, Severity, diagnose_replay};
use mempool_pools::snapshot::Snapshot;
use serde::Serialize;

use crate::console::{self, Console};
use crate::input;

/// What is found, what is needed for it, and what is printed.
const DETAILS: &str = "\
What is told apart:
  stuck_blocks            free memory shares segments or pages with small live blocks (PyTorch's inactive split)
  idle_segments           segments that hold nothing, of sizes that are no longer asked for
  unused_pages            mapped pages that nothing uses
  new_segments_each_step  memory is taken from the device in most steps
  grows_each_step         each step leaves blocks behind: a graph that is kept, a collection that grows
  growing_buffer          a buffer that is allocated anew with each step, a little longer
  held_tensors            a large block that was allocated early in the step and is held
  live_tensors            live tensors take what is reserved: this is no fragmentation
  pool_too_large          a pool with more memory than ever was used, and what it should have
  pool_too_small          a pool whose limit requests ran into, and what it should be

A snapshot alone tells of fragmentation. What grows, what is idle and what each step does takes a history
(`record_history`, in PyTorch `_record_memory_history`); where it comes from takes labels or call stacks
(`HistoryOptions::call_stacks`); steps are told by `mark_step`.

A trace is replayed through a policy up to the last moment when nearly as much was live as ever, and looked at there, or
where a request finds no memory below --limit. It names no places in the program: sizes stand for them.

With --json each input gives one line: {\"input\": FILE, \"findings\": [{\"cause\", \"severity\": problem | notice | fine,
\"pool\", \"bytes\", \"sites\": [{\"name\", \"blocks\", \"bytes\"}], \"text\", \"advice\"}]}, what matters most first.

The exit status is 0 if all inputs were read, whatever was found, and 1 otherwise.

Examples:
  mempool doctor oom.pickle
  mempool doctor run.csv.gz --policy pages --limit 24GiB
  mempool doctor now.json --json | jq '.findings[0]'";

#[derive(Debug, clap::Args)]
#[command(after_help = DETAILS)]
pub(crate) struct Args {
    /// Snapshots (`Snapshot::dump`, PyTorch's `_dump_snapshot`; pickles or JSON) and traces; `-` is standard input. Each may be
    /// compressed with gzip.
    #[arg(required = true, value_name = "SNAPSHOT|TRACE")]
    inputs: Vec<PathBuf>,
    /// The policy that traces are replayed through.
    #[arg(long, default_value = "torch", value_name = "POLICY")]
    policy: Policy,
    /// Options of that policy, as `key:value,...`.
    #[arg(long, default_value = "", value_name = "OPTIONS")]
    conf: String,
    /// The device that traces are replayed on has this many bytes: 6000000000, or with a unit, such as 6GB or 5.5GiB.
    #[arg(long, value_name = "BYTES", value_parser = input::bytes)]
    limit: Option<usize>,
    /// Print one JSON object an input.
    #[arg(long)]
    json: bool,
}

/// What is printed of an input.
#[derive(Debug, Serialize)]
struct Report<'a> {
    input: &'a str,
    findings: &'a [Finding],
}

pub(crate) fn run(args: &Args) -> Result<()> {
    input::check(&args.inputs)?;
    let conf = args.conf.parse::<Conf>()?.with_policy(args.policy);
    let device = ReplayDevice { capacity_bytes: args.limit, ..ReplayDevice::default() };
    let console = Console::new()?;
    let mut failures = 0;
    for path in &args.inputs {
        let diagnosis = diagnose(path, &device, &conf, &console)
            .with_context(|| format!("reading {}", input::described(path)));
        match diagnosis {
            Ok(diagnosis) => print(path, &diagnosis, args, &console)?,
            Err(error) => {
                failures += 1;
                console.tell(console::explain(&error));
            }
        }
    }
    console.finish();
    anyhow::ensure!(failures == 0, "{failures} of {} inputs could not be read", args.inputs.len());
    Ok(())
}

fn diagnose(path: &Path, device: &ReplayDevice, conf: &Conf, console: &Console) -> Result<Diagnosis> {
    let mut source = trace::decompressed(input::open(path, console)?)?;
    if matches!(source.fill_buf()?.first(), Some(&(trace::PICKLE_MAGIC | b'{'))) {
        let snapshot = Snapshot::read(source)?;
        return Ok(console.wait_for(|| snapshot.diagnose()));
    }
    let trace = trace::parse(source)?;
    input::tell_left_out(path, &trace, console);
    console.begin(format!("replaying {}", input::described(path)), 0);
    let allocates = |event: &Event| matches!(event, Event::Allocate { .. });
    anyhow::ensure!(trace.events.iter().any(allocates), "nothing was allocated");
    let replay = device.replay(conf)?;
    Ok(console.wait_for(|| diagnose_replay(replay, &trace.events))?)
}

fn print(path: &Path, diagnosis: &Diagnosis, args: &Args, console: &Console) -> Result<()> {
    if args.json {
        return console.print_json(&Report { input: &input::described(path), findings: &diagnosis.findings });
    }
    let name = input::name(path);
    console.print(|out| {
        let problems = diagnosis.problems().count();
        match (diagnosis.findings.len(), problems) {
            (0, _) => writeln!(out, "{name}: nothing was found")?,
            (_, 0) => writeln!(out, "{name}: no problem")?,
            (_, 1) => writeln!(out, "{name}: 1 problem")?,
            (_, problems) => writeln!(out, "{name}: {problems} problems")?,
        }
        diagnosis.findings.iter().try_for_each(|finding| print_finding(finding, out))
    })
}

fn print_finding(finding: &Finding, out: &mut dyn Write) -> std::io::Result<()> {
    let mark = match finding.severity {
        Severity::Problem => "problem",
        Severity::Notice => "notice",
        Severity::Fine => "fine",
    };
    // Names come from others: they are not to steer the terminal.
    writeln!(out, "  {mark}: pool \"{}\": {}", readable(&finding.pool), readable(&finding.text))?;
    if !finding.advice.is_empty() {
        writeln!(out, "    do: {}", finding.advice)?;
    }
    for site in finding.sites.iter().take(3) {
        let blocks = if site.blocks == 1 { "block" } else { "blocks" };
        let bytes = ByteSize(site.bytes as u64).display().iec();
        writeln!(out, "    at: {} ({} {blocks}, {bytes:.1})", readable(&site.name), site.blocks)?;
    }
    Ok(())
}
