//! `mempool`: tools for recorded allocation traces and memory snapshots.

mod advise_command;
mod console;
mod doctor_command;
mod input;
mod plan_command;
mod replay_command;
mod report_command;
mod size_command;
mod tables_command;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Tools for recorded allocation traces and memory snapshots.
#[derive(Debug, Parser)]
#[command(name = "mempool", version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Replay traces through a placement policy and report what each would have needed.
    ///
    /// A trace has one event a line, `op,id,bytes,stream`: `a` allocates, `f` frees, `c` says that
    /// a free has completed, `s` ends a step. PyTorch's snapshots, RMM's logs and STAlloc's recordings
    /// are read too. Each may be compressed with gzip.
    Replay(replay_command::Args),
    /// Replay traces through all policies but `segments` and write the tables of the documentation, as Markdown.
    ///
    /// They show fragmentation, hits, bookkeeping and map calls of each policy, what preallocation,
    /// reuse and moving do one after the other, and what the usual advice claims beside it.
    Tables(tables_command::Args),
    /// Say what is wrong with memory, and where in the program that comes from.
    ///
    /// Fragmentation is told from what is none: tensors that are held, pools of the wrong size.
    Doctor(doctor_command::Args),
    /// Say how large a pool of fixed size has to be for recorded runs, and the option that makes it so.
    ///
    /// What is printed holds a run whose sizes are 5% larger, too.
    Size(size_command::Args),
    /// Say which way to handle memory suits recorded runs, how to ask for it, and which figures say so.
    ///
    /// Each run is replayed under every policy. From that, from the sizes that come again, and from what planning would
    /// make of it follow a strategy (a pool, a planned step, memory taken in advance, no pool at all), the option and the
    /// call that make it so, and the size of the pool. Snapshots with too little history get advice from what lies where.
    Advise(advise_command::Args),
    /// Find offsets for buffers whose lifetimes are known, such that the highest end is as low as possible.
    ///
    /// Buffers that live at one time share no byte. Quick plans are made first, which take milliseconds for some
    /// thousand buffers; where they need more than lives at one time, or than there is, better ones are searched for.
    Plan(plan_command::Args),
    /// Make a page of a memory snapshot: memory over time, what lies where, the largest and the oldest blocks.
    ///
    /// The page is one HTML file that needs no server and no network, and can be sent to others as it is.
    Report(report_command::Args),
}

fn main() -> ExitCode {
    let result = match Args::parse().command {
        Command::Replay(args) => replay_command::run(&args),
        Command::Tables(args) => tables_command::run(&args),
        Command::Doctor(args) => doctor_command::run(&args),
        Command::Size(args) => size_command::run(&args),
        Command::Advise(args) => advise_command::run(&args),
        Command::Plan(args) => plan_command::run(&args),
        Command::Report(args) => report_command::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads the output has had enough.
        Err(error) if console::is_closed(&error) => ExitCode::SUCCESS,
        Err(error) => {
            console::tell(console::explain(&error));
            ExitCode::FAILURE
        }
    }
}
