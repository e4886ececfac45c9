//! What is wrong with memory, if anything, told from a snapshot: fragmentation and of which kind, or what is not
//! fragmentation at all.
//!
//! One file looks for each kind of cause in a pool's part of a snapshot (`view.rs`); none of them changes anything or asks a
//! pool. What they say has figures, and the places in the program that it comes from.

mod fragmentation;
mod growth;
mod live;
mod sizes;
mod view;
mod words;

use std::fmt;

use mempool_arena::trace::Event;
use mempool_arena::{Replay, ReplayError};
use serde::{Deserialize, Serialize};

use crate::snapshot::Snapshot;
use view::View;

/// What makes a pool take memory, or a request find none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Cause {
    /// Free memory shares segments or pages with small live blocks, so that no large request fits: PyTorch's inactive split.
    StuckBlocks,
    /// Segments that are wholly free, of sizes that are no longer asked for.
    IdleSegments,
    /// Pages that are mapped and that nothing uses.
    UnusedPages,
    /// Memory is taken from the device in most steps: what is cached does not serve them.
    NewSegmentsEachStep,
    /// Blocks that each step allocates and that live on: a graph that is kept, a collection that grows.
    GrowsEachStep,
    /// A tensor that is allocated anew with each step, a little longer each time.
    GrowingBuffer,
    /// A large block that was allocated early in the step and is still alive.
    HeldTensors,
    /// Live tensors need what is reserved.
    LiveTensors,
    /// The pool has more memory than ever was used.
    PoolTooLarge,
    /// The pool's limit is less than what is needed at once.
    PoolTooSmall,
}

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Requests fail because of it, or memory is lost to it.
    Problem,
    /// Worth knowing.
    Notice,
    /// As it should be.
    Fine,
}

/// A place in a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Site {
    /// As `optimizer.rs:88`, or a label, or the blocks' size where a history keeps neither.
    pub name: String,
    /// Blocks.
    pub blocks: usize,
    /// Their bytes.
    pub bytes: usize,
}

/// One thing that was found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Finding {
    /// What it is.
    pub cause: Cause,
    /// How much it matters.
    pub severity: Severity,
    /// The pool's name.
    pub pool: String,
    /// Bytes that it is about.
    pub bytes: usize,
    /// Where in the program it comes from, what matters most first; none where that is not known.
    pub sites: Vec<Site>,
    /// What was found, in words and figures.
    pub text: String,
    /// What to do about it; empty for nothing.
    pub advice: String,
}

/// What was found in a snapshot, what matters most first.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Diagnosis {
    /// All that was found.
    pub findings: Vec<Finding>,
}

impl Diagnosis {
    /// The first finding of a cause.
    #[must_use]
    pub fn find(&self, cause: Cause) -> Option<&Finding> {
        self.findings.iter().find(|finding| finding.cause == cause)
    }

    /// Findings that are problems.
    pub fn problems(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| finding.severity == Severity::Problem)
    }
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.findings.is_empty() {
            return f.write_str("nothing was found");
        }
        for (number, finding) in self.findings.iter().enumerate() {
            if number > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{finding}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = match self.severity {
            Severity::Problem => "problem",
            Severity::Notice => "notice",
            Severity::Fine => "fine",
        };
        write!(f, "{mark}: pool \"{}\": {}", self.pool, self.text)?;
        if !self.advice.is_empty() {
            write!(f, "; {}", self.advice)?;
        }
        Ok(())
    }
}

/// Pools of less are not looked at beside others: shares of little say nothing.
const SMALLEST_SHARE: f64 = 0.01;

impl Snapshot {
    /// What is wrong with memory here, if anything.
    ///
    /// A snapshot alone tells of fragmentation. With a [history](crate::record_history) what grows is found, too, and what is
    /// cached and no longer asked for; with [call stacks](crate::CallStacks) or [labels](crate::label) the places in the
    /// program are named, and with [steps](crate::mark_step) what each of them does.
    #[must_use]
    pub fn diagnose(&self) -> Diagnosis {
        let views: Vec<View<'_>> = self.mempool.pools.iter().map(|pool| View::of(self, pool)).collect();
        let whole = view::total(views.iter().map(|view| view.reserved));
        let counts = |view: &&View<'_>| {
            view.has_failed() || (view.reserved > 0 && view.reserved as f64 >= SMALLEST_SHARE * whole as f64)
        };
        let mut findings: Vec<Finding> = views.iter().filter(counts).flat_map(diagnose_pool).collect();
        // A limit that requests ran into comes behind what fills the pool without need, and before all else.
        let is_limit = |finding: &Finding| finding.cause == Cause::PoolTooSmall;
        let fills = |finding: &Finding| matches!(finding.cause, Cause::GrowsEachStep | Cause::HeldTensors);
        let rank = |finding: &Finding| if fills(finding) { 0 } else { u8::from(!is_limit(finding)) + 1 };
        let has_limit = findings.iter().any(is_limit);
        findings.sort_by_key(|finding| {
            let rank = if has_limit { rank(finding) } else { 0 };
            (finding.severity, rank, std::cmp::Reverse(finding.bytes))
        });
        Diagnosis { findings }
    }
}

/// What is wrong with memory in a recorded run, as a policy would serve it: when nearly as much is live as ever, for the last
/// time, or when a request finds no memory.
///
/// # Errors
/// Those of [`Replay::apply`], but for requests that find no memory: that is looked into.
pub fn diagnose_replay(replay: Replay<'_>, events: &[Event]) -> Result<Diagnosis, ReplayError> {
    Snapshot::of_replay(replay, events).map(|snapshot| snapshot.diagnose())
}

fn diagnose_pool(view: &View<'_>) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    findings.extend(growth::grows_each_step(view));
    findings.extend(growth::growing_buffer(view));
    let grows = !findings.is_empty();
    findings.extend(fragmentation::stuck_blocks(view));
    findings.extend(fragmentation::idle_segments(view));
    let is_split =
        findings.iter().any(|finding| matches!(finding.cause, Cause::StuckBlocks | Cause::IdleSegments));
    findings.extend(sizes::pool_too_small(view, is_split));
    findings.extend(sizes::pool_too_large(view, is_split));
    let is_too_large = findings.iter().any(|finding| finding.cause == Cause::PoolTooLarge);
    findings.extend(fragmentation::unused_pages(view).filter(|_| !is_too_large));
    // What grows takes new memory, and that is no second fault.
    findings.extend(fragmentation::new_segments_each_step(view).filter(|_| !grows));
    findings.extend(live::held_tensors(view).filter(|_| !grows));
    let has_problem = findings.iter().any(|finding| finding.severity == Severity::Problem);
    findings.extend(live::live_tensors(view, has_problem));
    findings
}
