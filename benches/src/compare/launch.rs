//! Starting worker processes and reading their reports.

use crate::allocator::Allocator;
use crate::compare::outcome::Round;
use crate::report::WorkerReport;
use crate::workload::{Spec, Steps};
use anyhow::{Context, Result, bail, ensure};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The four worker binaries, found beside this executable.
#[derive(Debug)]
pub struct Launcher {
    workers: [PathBuf; Allocator::ALL.len()],
}

impl Launcher {
    /// Looks for the workers beside this executable, where cargo puts all binaries of a package.
    pub fn beside_this_executable() -> Result<Self> {
        let this = std::env::current_exe().context("finding this executable")?;
        let directory = this.parent().context("this executable has no directory")?;
        Self::in_directory(directory)
    }

    fn in_directory(directory: &Path) -> Result<Self> {
        let workers = Allocator::ALL.map(|allocator| {
            let file = format!("{}{}", allocator.worker(), std::env::consts::EXE_SUFFIX);
            directory.join(file)
        });
        let missing: Vec<_> = workers.iter().filter(|worker| !worker.is_file()).collect();
        if !missing.is_empty() {
            let list: Vec<_> = missing.iter().map(|worker| worker.display().to_string()).collect();
            bail!(
                "missing: {}\nbuild all workers first: cargo build --release -p mempool-benches",
                list.join(", ")
            );
        }
        Ok(Self { workers })
    }

    /// Runs one workload under every allocator, each in a process of its own. The processes take
    /// turns: one runs while the others wait.
    pub fn round(&self, spec: &Spec, steps: Steps, mut progress: impl FnMut(Allocator)) -> Result<Round> {
        let mut running = Vec::with_capacity(Allocator::ALL.len());
        for allocator in Allocator::ALL {
            progress(allocator);
            let mut worker = Running::start(&self.workers[allocator.index()], allocator, spec, steps)?;
            worker.wait_for_line()?; // warmed up
            running.push(worker);
        }
        for turn in 0..steps.measured.div_ceil(steps.turn) {
            // Nobody always runs behind the same neighbour.
            for place in 0..running.len() {
                let at = (turn + place) % running.len();
                progress(running[at].allocator);
                running[at].take_turn()?;
            }
        }
        let reports = running.into_iter().map(|worker| worker.finish(spec)).collect::<Result<Vec<_>>>()?;
        let reports: Option<Round> = reports.try_into().ok();
        reports.context("a round without a report of each allocator")
    }
}

/// A worker that runs its turns.
#[derive(Debug)]
struct Running {
    allocator: Allocator,
    what: String,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Running {
    fn start(worker: &Path, allocator: Allocator, spec: &Spec, steps: Steps) -> Result<Self> {
        let mut child = Command::new(worker)
            .args(["--workload", spec.name])
            .args(["--steps", &steps.measured.to_string()])
            .args(["--warmup", &steps.warmup.to_string()])
            .args(["--turn", &steps.turn.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {}", worker.display()))?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (input, output) = pipes.context("a worker without pipes")?;
        let what = format!("{} on {}", allocator.worker(), spec.name);
        Ok(Self { allocator, what, child, input, output: BufReader::new(output) })
    }

    fn take_turn(&mut self) -> Result<()> {
        writeln!(self.input).with_context(|| format!("{} is gone", self.what))?;
        self.wait_for_line()
    }

    fn wait_for_line(&mut self) -> Result<()> {
        let mut line = String::new();
        let read = self.output.read_line(&mut line)?;
        if read == 0 {
            let status = self.child.wait()?;
            bail!("{} failed ({status}); its message is above", self.what);
        }
        Ok(())
    }

    /// Lets the worker report and end.
    fn finish(mut self, spec: &Spec) -> Result<WorkerReport> {
        writeln!(self.input).with_context(|| format!("{} is gone", self.what))?;
        let mut text = String::new();
        self.output.read_to_string(&mut text)?;
        let status = self.child.wait()?;
        ensure!(status.success(), "{} failed ({status}); its message is above", self.what);
        let report: WorkerReport =
            serde_json::from_str(&text).with_context(|| format!("reading the report of {}", self.what))?;
        ensure!(
            report.allocator == self.allocator && report.workload == spec.name,
            "{} reported {} on {}",
            self.what,
            report.allocator.name(),
            report.workload
        );
        Ok(report)
    }
}

#[cfg(test)]
mod tests {
    use super::Launcher;
    use std::path::Path;

    #[test]
    fn a_missing_worker_names_the_build_command() {
        let error = Launcher::in_directory(Path::new("no-such-directory")).unwrap_err();
        let message = error.to_string();
        assert!(message.contains("worker-jemalloc"), "{message}");
        assert!(message.contains("cargo build --release -p mempool-benches"), "{message}");
    }
}
