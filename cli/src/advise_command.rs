//! `mempool advise`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use mempool_cli::advise::{DeviceMemory, Input, read};
use mempool_pools::advice::{
    self, Advice, AdviceError, AdviceOptions, FEW_REQUESTS, Kind, Progress, advise_on_layout,
    advise_on_window,
};
use serde::Serialize;

use crate::console::{self, Console};
use crate::input;

/// What is looked at, what is printed, and what it means.
const DETAILS: &str = "\
Strategies:
  no pool               memory is plenty and allocations take no time that matters: needs --device-memory and
                        --duration, since neither can be seen in a trace
  a pool                what is freed serves later requests; the policy is the one that reserves least, or where the run
                        takes less than half of --device-memory the quickest
  a planned step        more than half of the steps ask for exactly what one before did: each request finds its place by
                        position
  memory in advance     fewer than half of the requests come again in their size, so a cache does not help
  buffers               copies of buffers that grow by being made anew are a quarter of all bytes or more: taken once at
                        their last size nothing is copied; where that needs too much memory, grown in four steps

The policy that is advised is the best by the measure that is named, or as good: within 5% of the least that is reserved,
or 25% of the least time (0.5 us a request, 1% of --duration). Times are those of mapping by the cost model and of
bookkeeping as measured here, so they differ a little from run to run.

Columns of the replays:
  hits         requests served from memory that was mapped already
  reserved     the most that was mapped at once
  unused       1 - the most that was asked for at once / reserved
  maps, moved  calls that mapped memory, and pages (of 2 MiB) that went where memory was needed
  mapping      what mapping calls take together, by the cost model
  bookkeeping  what finding places took, all of it

A trace of more than 3,000,000 events is replayed in part: a window around the moment when most is live, with what lived
before it. A snapshot (PyTorch's or this project's, a pickle or JSON) holds the last events of each device; with 100 or
more allocations among them they are replayed, with what was live before, and the time between the first and the last
stands for --duration. With fewer the advice is on what lies where. What could not be known is listed.

With --json: one object a line for each file and device, with file, device (of snapshots), recommendation (strategy,
conf, environment, builder, pool_bytes), findings, unknown, sizes, repeats, growth, stuck, predictions, grown_once,
grown_in_parts, planned_steps, offline_plan, preallocated_bytes and unpooled_us. Sizes are bytes, times microseconds, shares numbers from 0 to 1.

The exit status is 0 if advice could be given on all files, and 1 otherwise.

Examples:
  mempool advise run.csv.gz --device-memory 80GiB --duration 36
  mempool advise snapshot.pickle
  mempool advise run.csv.gz --json | jq -r .recommendation.environment";

#[derive(Debug, clap::Args)]
#[command(after_help = DETAILS)]
pub(crate) struct Args {
    /// Traces, as `mempool replay` reads them, or snapshots; `-` is standard input.
    #[arg(required = true, value_name = "TRACE|SNAPSHOT")]
    files: Vec<PathBuf>,
    /// The device has this many bytes: 80000000000, or with a unit, such as 80GB or 79.6GiB. Without it memory is taken to
    /// be short, and replays have no limit.
    #[arg(long, value_name = "BYTES", value_parser = input::bytes)]
    device_memory: Option<usize>,
    /// How long the recorded run took, to see allocations beside it.
    #[arg(long, value_name = "SECONDS")]
    duration: Option<f64>,
    /// The run's memory is the host's: sizes are multiples of 64 bytes instead of 512, and policy `segments` is left out.
    #[arg(long)]
    host: bool,
    /// Work that is queued uses a freed block until this many operations later.
    #[arg(long, default_value_t = 0, value_name = "OPERATIONS")]
    lag: u64,
    /// A JSON file with what calls take by the handle's size, as for `mempool replay`. An NVIDIA H200's by default.
    #[arg(long, value_name = "FILE")]
    costs: Option<PathBuf>,
    /// Print one JSON object a line instead of text.
    #[arg(long)]
    json: bool,
}

/// What is printed of a file, or of a device in it.
#[derive(Debug, Serialize)]
struct Report<'a> {
    file: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<usize>,
    #[serde(flatten)]
    advice: &'a Advice,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let options = options(args)?;
    input::check(&args.files)?;
    let console = Console::new()?;
    let (mut failures, mut printed) = (0, 0);
    for path in &args.files {
        // What one file does not hold keeps nobody from the others.
        let advised = advise(path, &options, &console, |device, advice| {
            let file = &input::name(path);
            printed += 1;
            if args.json {
                return console.print_json(&Report { file, device, advice });
            }
            let of = device.map_or_else(String::new, |device| format!(", device {device}"));
            let gap = if printed > 1 { "\n" } else { "" };
            console.print(|out| writeln!(out, "{gap}{file}{of}\n\n{advice}"))
        });
        if let Err(error) = advised {
            if console::is_closed(&error) {
                return Err(error);
            }
            failures += 1;
            console.tell(console::explain(&error));
        }
    }
    console.finish();
    ensure!(failures == 0, "no advice on {failures} of {} files", args.files.len());
    Ok(())
}

fn options(args: &Args) -> Result<AdviceOptions> {
    let duration = match args.duration {
        Some(seconds) => {
            let duration = Duration::try_from_secs_f64(seconds).ok().filter(|duration| !duration.is_zero());
            Some(duration.with_context(|| format!("--duration {seconds} is not a number of seconds"))?)
        }
        None => None,
    };
    ensure!(
        args.device_memory != Some(0),
        "--device-memory 0: nothing can be advised on a device without memory"
    );
    Ok(AdviceOptions {
        kind: if args.host { Kind::Host } else { Kind::Device },
        device_bytes: args.device_memory,
        duration,
        lag: args.lag,
        costs: match &args.costs {
            Some(path) => input::costs(path)?,
            None => AdviceOptions::default().costs,
        },
    })
}

/// Reads a file and gives advice on it, or on each device in it.
fn advise(
    path: &Path,
    options: &AdviceOptions,
    console: &Console,
    mut print: impl FnMut(Option<usize>, &Advice) -> Result<()>,
) -> Result<()> {
    let file = input::described(path);
    let read = input::open(path, console).and_then(|source| Ok(read(source)?));
    let progress = |progress: Progress<'_>| {
        console.begin(format!("{file}: {}", progress.doing), progress.of);
        console.advance(progress.done);
    };
    match read.with_context(|| format!("reading {file}"))? {
        Input::Run(trace) => {
            input::tell_left_out(path, &trace, console);
            let advice = advice::advise(&trace.events, options, progress);
            print(None, &advice.with_context(|| format!("giving advice on {file}"))?)
        }
        Input::Snapshot(devices) => devices.into_iter().try_for_each(|memory| {
            let advice = on_device(&memory, options, progress);
            let context = || format!("giving advice on {file}, device {}", memory.device);
            print(Some(memory.device), &advice.with_context(context)?)
        }),
    }
}

fn on_device(
    memory: &DeviceMemory,
    options: &AdviceOptions,
    progress: impl FnMut(Progress<'_>),
) -> Result<Advice, AdviceError> {
    let DeviceMemory { layout, window, dropped, .. } = memory;
    if window.allocations >= FEW_REQUESTS {
        advise_on_window(window, *dropped, options, progress)
    } else {
        advise_on_layout(layout, window.allocations, options)
    }
}
