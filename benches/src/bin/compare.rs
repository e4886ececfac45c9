//! Runs every workload under every allocator in turn and prints the tables.

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use mempool_benches::compare::launch::Launcher;
use mempool_benches::compare::outcome::Outcome;
use mempool_benches::compare::targets::{self, Check};
use mempool_benches::compare::views;
use mempool_benches::workload::{self, Spec};
use std::path::PathBuf;
use std::process::ExitCode;

/// Compares allocators on candle workloads.
#[derive(Debug, Parser)]
#[command(after_help = "Build all workers first: cargo build --release -p mempool-benches")]
struct Args {
    /// Rounds; each runs every allocator once. 5, or 2 with --quick.
    #[arg(long)]
    rounds: Option<usize>,
    /// Run this workload only; may be given more than once.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Fewer steps and rounds, for a first look.
    #[arg(long)]
    quick: bool,
    /// Write every report and check to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Exit with a failure when a target is missed.
    #[arg(long)]
    check: bool,
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    if cfg!(debug_assertions) {
        eprintln!("warning: this is a debug build; its times say nothing");
    }
    let specs = selected(&args.only)?;
    let rounds = args.rounds.unwrap_or(if args.quick { 2 } else { 5 });
    ensure!(rounds > 0, "--rounds must be at least 1");

    let outcomes = run(&specs, rounds, args.quick)?;
    let checks = targets::check(&outcomes);
    println!("{}", views::time(&outcomes));
    println!("{}", views::memory(&outcomes));
    println!("{}", views::pool(&outcomes));
    print!("{}", views::checks(&checks));
    if let Some(path) = &args.json {
        write_json(path, &args, rounds, &outcomes, &checks)?;
    }

    let failed = args.check && checks.iter().any(Check::missed);
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn selected(only: &[String]) -> Result<Vec<&'static Spec>> {
    for name in only {
        workload::find(name)?;
    }
    let chosen = |spec: &&Spec| only.is_empty() || only.iter().any(|name| name == spec.name);
    Ok(workload::ALL.iter().filter(chosen).collect())
}

fn run(specs: &[&Spec], rounds: usize, quick: bool) -> Result<Vec<Outcome>> {
    let launcher = Launcher::beside_this_executable()?;
    let bar = ProgressBar::new((specs.len() * rounds) as u64);
    bar.set_style(ProgressStyle::with_template(
        "{bar:32} {pos}/{len} [{elapsed_precise} < {eta_precise}] {msg}",
    )?);
    let mut outcomes = Vec::with_capacity(specs.len());
    for spec in specs {
        let steps = if quick { spec.quick } else { spec.full };
        let mut done = Vec::with_capacity(rounds);
        for round in 0..rounds {
            let report = launcher.round(spec, steps, |allocator| {
                bar.set_message(format!("{} round {}: {}", spec.name, round + 1, allocator.name()));
            })?;
            done.push(report);
            bar.inc(1);
        }
        outcomes.push(Outcome {
            workload: spec.name.to_owned(),
            fixed_shape: spec.fixed_shape,
            rounds: done,
        });
    }
    bar.finish_and_clear();
    Ok(outcomes)
}

fn write_json(
    path: &PathBuf,
    args: &Args,
    rounds: usize,
    outcomes: &[Outcome],
    checks: &[Check],
) -> Result<()> {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let document = serde_json::json!({
        "cores": cores,
        "quick": args.quick,
        "rounds": rounds,
        "outcomes": outcomes,
        "geomean_against_glibc": targets::geomean_against_glibc(outcomes),
        "checks": checks,
    });
    std::fs::write(path, serde_json::to_string_pretty(&document)?)
        .with_context(|| format!("writing {}", path.display()))
}
