//! `mempool plan`.

mod output;

use std::io::{self, BufRead as _, Cursor, Read as _, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use mempool_cli::plan::buffers::{self, Buffers};
use mempool_cli::plan::steps::{Step, steps};
use mempool_cli::plan::{Report, plan};
use mempool_cli::trace::{self, ReadError};
use mempool_pools::arena::plan::{Buffer, Cut, Plan, PlanError, Planner};

use crate::console::{Console, mib};
use crate::input;
use output::Output;

/// What is read, what is printed, and what the exit status means.
const DETAILS: &str = "\
Files of buffers have a header and one buffer a line, as google/minimalloc writes them:
  id,lower,upper,size        in any order; `start` and `begin` are `lower`, `buffer` is `id`
  upper                      is when the buffer is dead; `end` instead of it is the last time it is alive
  alignment                  its offset is a multiple of this
  other columns              are passed over; a buffer with gaps counts as alive throughout
Numbers are whole and not negative, and no two buffers have one id. Any other file is a trace, as `mempool replay` reads it. Each of its steps is planned by itself: the buffers
are what is born and dies within it. Each file may be compressed with gzip, and `-` is standard input.

Columns:
  buffers     how many there are
  live MiB    the most that lives at one time: no plan needs less
  peak MiB    the highest end of a buffer: what the plan needs
  ratio       peak / live
  seconds     how long planning took
  fits        whether the plan fits the capacity; `yes` without one

With --json: one object a line with buffers, max_live_bytes, peak_bytes, ratio, seconds and feasible, and trace
and step where it is a trace's step.

The exit status is 0 if all was planned and, with --capacity, each plan fits it; 1 otherwise.

Examples:
  mempool plan net.csv --capacity 1048576 --output placed.csv
  mempool plan run.csv.gz --budget 1 --json";

#[derive(Debug, clap::Args)]
#[command(after_help = DETAILS)]
pub(crate) struct Args {
    /// Traces, or files of buffers.
    #[arg(required = true, value_name = "TRACE|BUFFERS.csv")]
    files: Vec<PathBuf>,
    /// The memory there is, 1048576 or with a unit, such as 1MiB: the first plan that fits is taken. Without it the
    /// lowest peak is looked for.
    #[arg(long, value_name = "BYTES", value_parser = input::bytes)]
    capacity: Option<usize>,
    /// How long planning may take, for each step of a trace. The first quick plan is made in any case, of 100,000 buffers
    /// in 0.2 s or so; others and a search follow while there is time and the plan is not good enough. 0 makes the
    /// quick plans alone, which are the same each time.
    #[arg(long, default_value_t = 10.0, value_name = "SECONDS")]
    budget: f64,
    /// Without a capacity, a plan that needs no more than this above what lives is good enough.
    #[arg(long, default_value_t = 0.1, value_name = "PERCENT")]
    tolerance: f64,
    /// Offsets are multiples of this many bytes. Sizes are taken as they are.
    #[arg(long, default_value_t = 1, value_name = "BYTES")]
    granule: usize,
    /// Write where each buffer lies, as lines `id,lower,upper,size,offset`. Of a trace's steps all are written; times
    /// are the numbers of its events.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print one JSON object a line instead of a table.
    #[arg(long)]
    json: bool,
}

/// What a file holds.
enum Input {
    Buffers(Buffers),
    Steps(Vec<Step>),
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let planner = planner(args)?;
    input::check(&args.files)?;
    let output = match &args.output {
        Some(_) if args.files.len() > 1 => {
            bail!("--output takes the plans of one file, not of {}", args.files.len())
        }
        path => path.as_deref().map(Output::new),
    };
    let console = Console::new()?;
    if !args.json {
        console.print(print_header)?;
    }
    let mut run = Run { args, planner, console, output, planned: 0, unfit: 0 };
    for path in &args.files {
        run.file(path)?;
    }
    let Run { planner, console, output, planned, unfit, .. } = run;
    console.finish();
    if let Some(output) = output {
        output.finish()?;
    }
    ensure!(
        unfit == 0,
        "{unfit} of {planned} plans do not fit {} bytes",
        planner.capacity_bytes.unwrap_or_default()
    );
    Ok(())
}

fn planner(args: &Args) -> Result<Planner> {
    let budget = Duration::try_from_secs_f64(args.budget)
        .with_context(|| format!("--budget {} is not a number of seconds", args.budget))?;
    let tolerance = args.tolerance;
    ensure!(tolerance.is_finite() && tolerance >= 0.0, "--tolerance {tolerance} is not a number of percent");
    ensure!(args.granule > 0, "--granule 0: offsets are multiples of 1 byte at least");
    let (granule_bytes, capacity_bytes) = (args.granule, args.capacity);
    Ok(Planner { granule_bytes, capacity_bytes, budget, tolerance: tolerance / 100.0 })
}

/// The plans of all files.
struct Run<'a> {
    args: &'a Args,
    planner: Planner,
    console: Console,
    output: Option<Output>,
    planned: usize,
    unfit: usize,
}

impl Run<'_> {
    /// Plans what a file holds.
    fn file(&mut self, path: &Path) -> Result<()> {
        let (name, file) = (input::name(path), input::described(path));
        match read(path, &self.console).with_context(|| format!("reading {file}"))? {
            Input::Buffers(Buffers { buffers, ids, lines }) => {
                self.console.begin(format!("planning {file}"), 1);
                let place = |index: usize| lines.get(index).map(|line| format!("line {line}"));
                let report = self.plan(&file, &buffers, &ids, place)?;
                self.tell(&report, &name)
            }
            Input::Steps(steps) => {
                self.console.begin(format!("planning {file}"), steps.len() as u64);
                for Step { step, buffers, ids } in steps {
                    let of = match step {
                        Some(step) => format!("{file}, step {step}"),
                        None => format!("{file}, the last step"),
                    };
                    let place = |index: usize| ids.get(index).map(|id| format!("allocation {id}"));
                    let report = self.plan(&of, &buffers, &ids, place)?;
                    self.console.advance(1);
                    self.tell(&Report { trace: Some(name.clone()), step, ..report }, &name)?;
                }
                Ok(())
            }
        }
    }

    /// Makes one plan and writes it. `of` is what is planned, and `place` where a buffer stands there.
    fn plan<I: std::fmt::Display>(
        &mut self,
        of: &str,
        buffers: &[Buffer],
        ids: &[I],
        place: impl Fn(usize) -> Option<String>,
    ) -> Result<Report> {
        self.tell_what_cannot_fit(of, buffers, &place);
        let planned = self.console.wait_for(|| plan(buffers, &self.planner));
        let (plan, report) = planned
            .map_err(|error| match named(&error).and_then(place) {
                Some(place) => anyhow::Error::new(error).context(place),
                None => anyhow!(error),
            })
            .with_context(|| format!("planning {of}"))?;
        self.tell_what_was_cut(of, &plan, report.feasible);
        if let Some(output) = &mut self.output {
            output.write(ids, buffers, &plan)?;
        }
        Ok(report)
    }

    /// Says which buffer alone is larger than the capacity.
    fn tell_what_cannot_fit(&self, of: &str, buffers: &[Buffer], place: impl Fn(usize) -> Option<String>) {
        let Some(capacity) = self.planner.capacity_bytes else { return };
        let largest = buffers.iter().enumerate().max_by_key(|(_, buffer)| buffer.size_bytes);
        if let Some((index, &Buffer { size_bytes, .. })) = largest
            && size_bytes > capacity
        {
            let place = place(index).unwrap_or_default();
            self.console.tell(format_args!(
                "{of}: {place}: {size_bytes} bytes are more than --capacity {capacity}: no plan fits"
            ));
        }
    }

    /// Says what was not tried, where that may have left something to be found.
    fn tell_what_was_cut(&self, of: &str, plan: &Plan, is_feasible: bool) {
        let seconds = self.args.budget;
        let capacity = self.planner.capacity_bytes.unwrap_or(usize::MAX);
        if plan.max_live_bytes > capacity {
            let live = plan.max_live_bytes;
            self.console.tell(format_args!(
                "{of}: {live} bytes live at one time, more than --capacity {capacity}: no plan fits"
            ));
        } else if plan.cut == Cut::Quick {
            self.console.tell(format_args!(
                "{of}: --budget {seconds} ended before all quick plans were made; more time may find a lower peak"
            ));
        } else if plan.cut == Cut::Search && !is_feasible {
            self.console.tell(format_args!(
                "{of}: --budget {seconds} ended before a plan was found that fits; there may be one"
            ));
        }
    }

    /// Prints what was planned.
    fn tell(&mut self, report: &Report, name: &str) -> Result<()> {
        self.planned += 1;
        self.unfit += usize::from(!report.feasible);
        if self.args.json {
            self.console.print_json(report)
        } else {
            self.console.print(|out| print(report, name, out))
        }
    }
}

/// Reads a file once, as what its first line tells it is.
fn read(path: &Path, console: &Console) -> Result<Input> {
    /// No header is longer.
    const LONGEST_HEADER: u64 = 4096;
    let mut source = trace::decompressed(input::open(path, console)?)?;
    let mut first = Vec::new();
    source.by_ref().take(LONGEST_HEADER).read_until(b'\n', &mut first)?;
    let begins_buffers = buffers::begins(&String::from_utf8_lossy(&first));
    let source = Cursor::new(first).chain(source);
    if begins_buffers {
        return Ok(Input::Buffers(buffers::parse(source)?));
    }
    let trace = trace::parse(source).map_err(|error| match error {
        ReadError::UnknownFormat { found } => anyhow!(
            "line 1: {found:?} is neither a header of buffers, with id, lower, upper and size, nor the beginning of a \
             trace: {:?}, or another that `mempool replay` reads",
            mempool_pools::arena::trace::HEADER,
        ),
        other => anyhow!(other),
    })?;
    input::tell_left_out(path, &trace, console);
    Ok(Input::Steps(steps(&trace.events)?))
}

/// The buffer that an error is about.
fn named(error: &PlanError) -> Option<usize> {
    match *error {
        PlanError::Lifetime { index, .. } | PlanError::Alignment { index, .. } => Some(index),
        PlanError::TooLarge { count, .. } => count.checked_sub(1),
        _ => None,
    }
}

fn print_header(out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "{:<22} {:>5} {:>8} {:>11} {:>11} {:>8} {:>8} {:>5}",
        "file", "step", "buffers", "live MiB", "peak MiB", "ratio", "seconds", "fits",
    )
}

fn print(report: &Report, name: &str, out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "{name:<22} {:>5} {:>8} {:>11.3} {:>11.3} {:>8.5} {:>8.3} {:>5}",
        report.step.map_or_else(String::new, |step| step.to_string()),
        report.buffers,
        mib(report.max_live_bytes),
        mib(report.peak_bytes),
        report.ratio,
        report.seconds,
        if report.feasible { "yes" } else { "no" },
    )
}

#[cfg(test)]
mod tests;
