//! `mempool plan`.

use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bytesize::ByteSize;
use flate2::read::MultiGzDecoder;
use indicatif::ProgressBar;
use mempool_cli::plan::buffers::{self, Buffers, HEADER};
use mempool_cli::plan::steps::{Step, steps};
use mempool_cli::plan::{Report, plan};
use mempool_pools::arena::plan::{Buffer, Plan, PlanError, Planner};

use crate::input;

/// What is read, what is printed, and what the exit status means.
const DETAILS: &str = "\
Files of buffers have a header and one buffer a line, as google/minimalloc writes them:
  id,lower,upper,size        in any order; `start` and `begin` are `lower`, `buffer` is `id`
  upper                      is when the buffer is dead; `end` instead of it is the last time it is alive
  alignment                  its offset is a multiple of this
  other columns              are passed over; a buffer with gaps counts as alive throughout
Any other file is a trace, as `mempool replay` reads it. Each of its steps is planned by itself: the buffers
are what is born and dies within it. Each file may be compressed with gzip.

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
    #[arg(long, value_name = "BYTES")]
    capacity: Option<ByteSize>,
    /// How long may be searched where the quick plans, which take milliseconds, are not good enough; for each step of
    /// a trace.
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
    Trace(String, Vec<Step>),
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let planner = planner(args)?;
    let bar = input::bar()?;
    let mut output = match &args.output {
        Some(_) if args.files.len() > 1 => {
            anyhow::bail!("--output takes the plans of one file, not of {}", args.files.len())
        }
        Some(path) => Some(Output::new(path)),
        None => None,
    };
    if !args.json {
        print_header()?;
    }
    let (mut count, mut unfit) = (0, 0);
    let mut done = |report: &Report, name: &str| -> Result<()> {
        count += 1;
        unfit += usize::from(!report.feasible);
        bar.suspend(|| print(report, name, args))
    };
    for path in &args.files {
        match read(path, &bar)? {
            Input::Buffers(Buffers { buffers, ids, lines }) => {
                let bar = waiting(&bar, 1, format!("planning {}", path.display()));
                let planned = plan(&buffers, &planner);
                bar.disable_steady_tick();
                let (plan, report) = planned
                    .map_err(|error| at_line(error, &lines))
                    .with_context(|| format!("planning {}", path.display()))?;
                if let Some(output) = &mut output {
                    output.write(&ids, &buffers, &plan)?;
                }
                done(&report, &path.file_stem().unwrap_or_default().to_string_lossy())?;
            }
            Input::Trace(name, steps) => {
                let bar = waiting(&bar, steps.len() as u64, format!("planning {}", path.display()));
                for Step { step, buffers, ids } in steps {
                    let (plan, report) = plan(&buffers, &planner)
                        .with_context(|| format!("planning step {step} of {}", path.display()))?;
                    if let Some(output) = &mut output {
                        output.write(&ids, &buffers, &plan)?;
                    }
                    bar.inc(1);
                    let report = Report { trace: Some(name.clone()), step: Some(step), ..report };
                    done(&report, &name)?;
                }
                bar.disable_steady_tick();
            }
        }
    }
    bar.finish_and_clear();
    if let Some(output) = output {
        output.finish()?;
    }
    ensure!(
        unfit == 0,
        "{unfit} of {count} plans do not fit {} bytes",
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
    Ok(Planner {
        granule_bytes: args.granule,
        capacity_bytes: args.capacity.map(|capacity| usize::try_from(capacity.as_u64())).transpose()?,
        budget,
        tolerance: tolerance / 100.0,
    })
}

/// The bar, which goes on moving while a plan is searched for.
fn waiting(bar: &ProgressBar, length: u64, message: String) -> ProgressBar {
    bar.set_position(0);
    bar.set_length(length);
    bar.set_message(message);
    bar.enable_steady_tick(Duration::from_millis(200));
    bar.clone()
}

fn read(path: &Path, bar: &ProgressBar) -> Result<Input> {
    let context = || format!("reading {}", path.display());
    let mut source = opened(path).with_context(context)?;
    if begins_buffers(&mut source).with_context(context)? {
        bar.set_length(fs::metadata(path).map_or(0, |file| file.len()));
        bar.set_message(context());
        // From the start again: the header has to be read, too.
        let source = opened(path).with_context(context)?;
        return Ok(Input::Buffers(buffers::parse(source).with_context(context)?));
    }
    let (name, trace) = input::read(path, bar)?;
    Ok(Input::Trace(name, steps(&trace.events)))
}

fn opened(path: &Path) -> io::Result<BufReader<Box<dyn Read>>> {
    let mut plain = BufReader::new(File::open(path)?);
    let is_gzip = plain.fill_buf()?.starts_with(&[0x1f, 0x8b]);
    let source: Box<dyn Read> = if is_gzip { Box::new(MultiGzDecoder::new(plain)) } else { Box::new(plain) };
    Ok(BufReader::new(source))
}

fn begins_buffers(source: &mut impl Read) -> io::Result<bool> {
    /// No header is longer.
    const LONGEST: u64 = 1024;
    let mut line = Vec::new();
    BufReader::new(source).take(LONGEST).read_until(b'\n', &mut line)?;
    Ok(buffers::begins(&String::from_utf8_lossy(&line)))
}

/// The error, and the line of the buffer it is about.
fn at_line(error: PlanError, lines: &[u64]) -> anyhow::Error {
    let index = match error {
        PlanError::Lifetime { index, .. } | PlanError::Alignment { index, .. } => Some(index),
        PlanError::TooLarge { count, .. } => count.checked_sub(1),
        _ => None,
    };
    let error = anyhow::Error::new(error);
    match index.and_then(|index| lines.get(index)) {
        Some(line) => error.context(format!("line {line}")),
        None => error,
    }
}

/// The file of offsets.
struct Output {
    text: Vec<u8>,
    path: PathBuf,
}

impl Output {
    fn new(path: &Path) -> Self {
        Self { text: format!("{HEADER}\n").into_bytes(), path: path.to_owned() }
    }

    fn write<I: std::fmt::Display>(&mut self, ids: &[I], buffers: &[Buffer], plan: &Plan) -> Result<()> {
        buffers::write(&mut self.text, ids, buffers, plan)
            .with_context(|| format!("writing {}", self.path.display()))
    }

    /// Only when all went well: the file may be the input, or hold what somebody wants.
    fn finish(self) -> Result<()> {
        fs::write(&self.path, self.text).with_context(|| format!("writing {}", self.path.display()))
    }
}

fn print_header() -> Result<()> {
    writeln!(
        io::stdout().lock(),
        "{:<22} {:>5} {:>8} {:>11} {:>11} {:>8} {:>8} {:>5}",
        "file",
        "step",
        "buffers",
        "live MiB",
        "peak MiB",
        "ratio",
        "seconds",
        "fits",
    )?;
    Ok(())
}

fn print(report: &Report, name: &str, args: &Args) -> Result<()> {
    let mut out = io::stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string(report)?)?;
        return Ok(());
    }
    let mib = |bytes: usize| bytes as f64 / f64::from(1 << 20);
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
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    /// A file of its own for each test.
    fn file(name: &str, text: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("mempool-plan-{}-{name}", std::process::id()));
        fs::write(&path, text).unwrap();
        path
    }

    fn run_with(path: &Path, args: &[&str]) -> Result<()> {
        let command = ["plan", path.to_str().unwrap()].into_iter().chain(args.iter().copied());
        run(&Command::try_parse_from(command)?.args)
    }

    /// MiniMalloc's example.
    const EXAMPLE: &str = "id,lower,upper,size\nb1,0,3,4\nb2,3,9,4\nb3,0,9,4\nb4,9,21,4\nb5,0,21,4\n";

    #[test]
    fn what_is_written_can_be_read_and_is_a_plan() {
        let path = file("example.csv", EXAMPLE);
        let output = file("placed.csv", "");
        run_with(&path, &["--capacity", "12", "--json", "--output", output.to_str().unwrap()]).unwrap();
        let written = fs::read_to_string(&output).unwrap();
        let read = buffers::parse(written.as_bytes()).unwrap();
        assert_eq!(read.buffers, buffers::parse(EXAMPLE.as_bytes()).unwrap().buffers);
        assert_eq!(read.ids, ["b1", "b2", "b3", "b4", "b5"]);
        let offsets = written.lines().skip(1).map(|line| line.rsplit(',').next().unwrap().parse().unwrap());
        let plan = Plan { offsets: offsets.collect(), peak_bytes: 12, max_live_bytes: 12, ..Plan::default() };
        assert_eq!(mempool_pools::arena::plan::verify(&read.buffers, 1, &plan), Ok(()));
    }

    #[test]
    fn a_plan_that_does_not_fit_fails() {
        let path = file("unfit.csv", EXAMPLE);
        let error = run_with(&path, &["--capacity", "11"]).unwrap_err().to_string();
        assert_eq!(error, "1 of 1 plans do not fit 11 bytes");
    }

    #[test]
    fn each_step_of_a_trace_is_planned() {
        let trace = "op,id,bytes,stream\na,1,100,0\nf,1,,\ns,0,,\na,2,10,0\na,3,20,0\nf,3,,\nf,2,,\ns,1,,\n";
        let path = file("trace.csv", trace);
        let output = file("steps.csv", "");
        run_with(&path, &["--output", output.to_str().unwrap()]).unwrap();
        assert_eq!(fs::read_to_string(&output).unwrap().lines().count(), 1 + 3);
        let error = run_with(&path, &["--capacity", "29"]).unwrap_err().to_string();
        assert_eq!(error, "2 of 2 plans do not fit 29 bytes");
    }

    #[test]
    fn errors_name_the_file_and_the_line() {
        let large = format!("id,lower,upper,size\n\n0,0,1,1\n1,0,1,{}\n", u64::MAX);
        for (name, text, expected) in [
            ("large.csv", large.as_str(), "line 4"),
            ("damaged.csv", "id,lower,upper,size\n0,1,0,3\n", "line 2"),
            ("neither.csv", "a,b\n", "line 1"),
        ] {
            let path = file(name, text);
            let error = input::explain(&run_with(&path, &[]).unwrap_err());
            assert!(error.contains(name) && error.contains(expected), "{error}");
        }
    }

    #[test]
    fn numbers_that_make_no_sense_are_refused() {
        let path = file("numbers.csv", EXAMPLE);
        for args in [["--budget", "-1"], ["--budget", "NaN"], ["--tolerance", "inf"], ["--granule", "0"]] {
            let [option, value] = args;
            assert!(run_with(&path, &[&format!("{option}={value}")]).is_err(), "{args:?}");
        }
    }

    #[test]
    fn one_json_object_has_the_keys_that_are_promised() {
        let (_, report) = plan(&[Buffer::new(0, 1, 8)], &Planner::default()).unwrap();
        let json = serde_json::to_value(report).unwrap();
        let keys: Vec<&String> = json.as_object().unwrap().keys().collect();
        let mut expected = ["buffers", "max_live_bytes", "peak_bytes", "ratio", "seconds", "feasible"];
        expected.sort_unstable();
        assert_eq!(keys, expected);
    }
}
