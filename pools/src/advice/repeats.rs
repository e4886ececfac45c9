//! How much of a run repeats itself.

use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher};

use mempool_arena::trace::Event;
use rustc_hash::{FxBuildHasher, FxHashMap};
use serde::{Deserialize, Serialize};

/// Shares of requests that come again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Repeats {
    /// Share of requests for which a freed block of their size and stream waits: what a cache of equal sizes
    /// serves at best, if it may keep everything.
    pub same_size: f64,
    /// The same, as a share of the bytes asked for.
    pub same_size_bytes: f64,
    /// What is known of steps; `None` where the trace marks fewer than two.
    pub steps: Option<StepRepeats>,
}

/// How steps repeat themselves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct StepRepeats {
    /// Steps that ask for memory.
    pub steps: u64,
    /// Share of the requests after the first step that have the size of the one at the same position in the step
    /// before.
    pub same_position: f64,
    /// Share of the steps after the first that ask for the same as one of the last few shapes did, in the same
    /// order: as many shapes as a planned step keeps.
    pub exact: f64,
}

/// Shapes that [`StepPlan`](crate::StepPlan) keeps by default.
pub(super) const SHAPES: usize = 4;

impl Repeats {
    /// Those of a trace that is known to be valid.
    pub(super) fn of(events: &[Event]) -> Self {
        let mut waiting: FxHashMap<(u64, usize), u64> = FxHashMap::default();
        let mut live: FxHashMap<u64, (u64, usize)> = FxHashMap::default();
        let (mut requests, mut bytes, mut repeated, mut repeated_bytes) = (0_u64, 0_u64, 0_u64, 0_u64);
        for event in events {
            match *event {
                Event::Allocate { id, size_bytes, stream } => {
                    requests += 1;
                    bytes += size_bytes as u64;
                    live.insert(id, (stream, size_bytes));
                    if let Some(count) = waiting.get_mut(&(stream, size_bytes)).filter(|count| **count > 0) {
                        *count -= 1;
                        repeated += 1;
                        repeated_bytes += size_bytes as u64;
                    }
                }
                Event::Free { id } => {
                    if let Some(key) = live.remove(&id) {
                        *waiting.entry(key).or_default() += 1;
                    }
                }
                Event::FreeCompleted { .. } | Event::StepEnd { .. } => {}
            }
        }
        Self {
            same_size: share(repeated, requests),
            same_size_bytes: share(repeated_bytes, bytes),
            steps: StepRepeats::of(events),
        }
    }
}

impl StepRepeats {
    fn of(events: &[Event]) -> Option<Self> {
        let steps = events.split(|event| matches!(event, Event::StepEnd { .. }));
        let (mut count, mut exact) = (0_u64, 0_u64);
        let (mut compared, mut same) = (0_u64, 0_u64);
        let mut before: Vec<usize> = Vec::new();
        let mut shapes: VecDeque<u64> = VecDeque::new();
        for step in steps {
            let sizes: Vec<usize> = step
                .iter()
                .filter_map(|event| match event {
                    Event::Allocate { size_bytes, .. } => Some(*size_bytes),
                    _ => None,
                })
                .collect();
            if sizes.is_empty() {
                continue;
            }
            count += 1;
            if count > 1 {
                compared += sizes.len() as u64;
                same += sizes.iter().zip(&before).filter(|(one, other)| one == other).count() as u64;
            }
            let shape = hash(&sizes);
            match shapes.iter().position(|other| *other == shape) {
                Some(at) => {
                    exact += 1;
                    shapes.remove(at);
                }
                None if shapes.len() == SHAPES => drop(shapes.pop_front()),
                None => {}
            }
            shapes.push_back(shape);
            before = sizes;
        }
        (count > 1).then(|| Self {
            steps: count,
            same_position: share(same, compared),
            exact: share(exact, count - 1),
        })
    }
}

fn hash(sizes: &[usize]) -> u64 {
    let mut hasher = FxBuildHasher.build_hasher();
    sizes.iter().for_each(|&size| hasher.write_usize(size));
    hasher.finish()
}

/// A part of a whole; 0 where there is no whole.
pub(super) fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}
