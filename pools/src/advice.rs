//! Which way to handle memory suits a run, with reasons.
//!
//! [`advise`] looks at a recorded run: which sizes it asks for, what of it repeats, what each policy would have needed
//! by replay, what planning would make of it. From that it says what to do and how to ask for it, and which figures
//! say so. Where there is less than a run (a moment's layout, a pool's counters) there is less advice, and it says what
//! could not be known.
//!
//! All of this is arithmetic on sizes: nothing here touches a pool but [`MemPool::advise`](crate::MemPool::advise), which
//! hands over what its pool knows.

mod apart;
mod decide;
mod figures;
mod finding;
mod growth;
mod live;
mod planned;
mod predict;
mod repeats;
mod sample;
mod sizes;
mod stuck;
mod text;
mod thresholds;
mod unknown;
mod window;

use std::time::Duration;

use mempool_arena::trace::Event;
use mempool_arena::{
    ArenaError, Conf, ConfError, CostModel, Margin, Policy, ReplayDevice, ReplayError, Sizing, renumbered,
};
use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use self::decide::{Choice, Measure, Recommendation, Strategy};
pub use self::figures::{Layout, LayoutSegment, advise_on_layout, advise_on_stats};
pub use self::finding::Finding;
use self::growth::Grown;
pub use self::growth::Growth;
pub use self::planned::{OfflinePlan, PlannedSteps};
pub use self::predict::Prediction;
pub use self::repeats::{Repeats, StepRepeats};
pub use self::sizes::{SizeBucket, Sizes};
pub use self::stuck::Stuck;
pub use self::thresholds::FEW_REQUESTS;
pub use self::unknown::Unknown;
pub use self::window::{Happening, Window};

/// The kind of memory that a run used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A device's: sizes are multiples of 512 bytes, and policy `segments` is there.
    #[default]
    Device,
    /// The host's: sizes are multiples of 64 bytes.
    Host,
}

/// What is known beside the run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AdviceOptions {
    /// The kind of memory.
    pub kind: Kind,
    /// The memory there is, in bytes. Without it memory is taken to be short, and that no pool is needed is never said.
    pub device_bytes: Option<usize>,
    /// How long the run took. Without it nobody can say what allocations matter beside it.
    pub duration: Option<Duration>,
    /// Queued work uses a freed block until so many operations later.
    pub lag: u64,
    /// What mapping takes; an NVIDIA H200's by default.
    pub costs: CostModel,
}

impl AdviceOptions {
    fn device(&self) -> ReplayDevice {
        ReplayDevice {
            granule_bytes: match self.kind {
                Kind::Device => 512,
                Kind::Host => 64,
            },
            capacity_bytes: self.device_bytes,
            lag: self.lag,
            costs: self.costs.clone(),
            ..ReplayDevice::default()
        }
    }
}

/// Advice that cannot be given.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum AdviceError {
    /// The trace makes no sense, or a policy cannot serve it.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// Options that make no sense.
    #[error(transparent)]
    Conf(#[from] ConfError),
    /// A policy cannot serve the trace with its steps planned.
    #[error("with planned steps: {0}")]
    Arena(#[from] ArenaError),
    /// There is nothing to give advice on.
    #[error("nothing was allocated")]
    Empty,
}

/// How far advice has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress<'a> {
    /// What is done next.
    pub doing: &'a str,
    /// Parts that are done, ...
    pub done: u64,
    /// ... of so many.
    pub of: u64,
}

/// What advice rests on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Evidence {
    /// A recorded run.
    Run {
        /// What happened, in events.
        events: u64,
        /// Events that were replayed: a window around the peak where it is less.
        replayed: u64,
        /// Allocations among those.
        allocations: u64,
    },
    /// What lay where at one moment.
    Layout {
        /// Segments.
        segments: u64,
        /// Blocks that were not free.
        blocks: u64,
        /// Allocations of the history, too few for replays.
        allocations: u64,
    },
    /// A pool's counters.
    Counters {
        /// Requests that were counted.
        requests: u64,
    },
}

/// What suits a run, and why. [`Display`](std::fmt::Display) writes it for people, serde for machines.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Advice {
    /// What it rests on.
    pub evidence: Evidence,
    /// What to do.
    pub recommendation: Recommendation,
    /// Why, each with its figures, what matters most first.
    pub findings: Vec<Finding>,
    /// What could not be known.
    pub unknown: Vec<Unknown>,
    /// Which sizes were asked for.
    pub sizes: Sizes,
    /// What of it repeats; of runs.
    pub repeats: Option<Repeats>,
    /// Buffers that grow by being allocated anew; of runs.
    pub growth: Option<Growth>,
    /// The run with those taken once at their last size, under the policy that was chosen, or the one that was best.
    pub grown_once: Option<Prediction>,
    /// The run with those made larger in four steps only, where once needs too much.
    pub grown_in_parts: Option<Prediction>,
    /// Segments that small blocks keep: of PyTorch's policy when it has most reserved, or of what lay where.
    pub stuck: Option<Stuck>,
    /// What each policy would have needed; of runs.
    pub predictions: Vec<Prediction>,
    /// What planned steps would have made of it, where steps repeat.
    pub planned_steps: Option<PlannedSteps>,
    /// What an offline plan needs for the step that needs most.
    pub offline_plan: Option<OfflinePlan>,
    /// What it needs if nothing serves twice within a step, in bytes.
    pub preallocated_bytes: Option<usize>,
    /// Each request mapped by itself and unmapped, by the cost model: what allocations take at most where no pool is,
    /// in microseconds.
    pub unpooled_us: Option<f64>,
}

/// Advice on a recorded run. `progress` is told before each part.
///
/// ```
/// use mempool_pools::advice::{AdviceOptions, Strategy, advise};
/// use mempool_pools::arena::trace::Event;
///
/// // Ten steps of the same two tensors.
/// let events: Vec<Event> = (0..10)
///     .flat_map(|step| {
///         let allocate = |id, size_bytes| Event::Allocate { id, size_bytes, stream: 0 };
///         [
///             allocate(0, 3 << 20),
///             allocate(1, 5 << 20),
///             Event::Free { id: 0 },
///             Event::Free { id: 1 },
///             Event::StepEnd { step },
///         ]
///     })
///     .collect();
/// let advice = advise(&events, &AdviceOptions::default(), |_| {})?;
/// assert_eq!(advice.recommendation.strategy, Strategy::StepPlan);
/// println!("{advice}");
/// # Ok::<(), mempool_pools::advice::AdviceError>(())
/// ```
///
/// # Errors
/// [`AdviceError`].
pub fn advise(
    events: &[Event],
    options: &AdviceOptions,
    progress: impl FnMut(Progress<'_>),
) -> Result<Advice, AdviceError> {
    advise_on_part(events, sample::MOST_EVENTS, options, progress)
}

/// Advice on the last entries of a history, of which `dropped` more came before. See [`FEW_REQUESTS`] for how many there
/// should be.
///
/// # Errors
/// [`AdviceError`].
pub fn advise_on_window(
    window: &Window,
    dropped: u64,
    options: &AdviceOptions,
    progress: impl FnMut(Progress<'_>),
) -> Result<Advice, AdviceError> {
    let options = AdviceOptions { duration: options.duration.or(window.duration), ..options.clone() };
    let mut advice = advise(&window.events, &options, progress)?;
    if dropped > 0 {
        advice.unknown.push(Unknown::Earlier { dropped });
    }
    if window.older_blocks > 0 {
        advice.unknown.push(Unknown::Before { blocks: window.older_blocks });
    }
    Ok(advice)
}

fn advise_on_part(
    all_events: &[Event],
    most_events: usize,
    options: &AdviceOptions,
    mut progress: impl FnMut(Progress<'_>),
) -> Result<Advice, AdviceError> {
    check(all_events)?;
    let events = &*sample::sampled(all_events, most_events);
    let device = options.device();
    let mut candidates: Vec<String> = predict::candidates(options.kind).map(str::to_owned).collect();
    let sizes = Sizes::of(events);
    let stuck = Stuck::of(events, &device)?;
    if let Some(stuck) = &stuck {
        candidates.extend(
            stuck.max_split_sizes_mb().map(|mb| format!("{},max_split_size_mb:{mb}", predict::TORCH)),
        );
    }
    /// Growing buffers, planned steps, an offline plan, survivors apart, the size of the pool.
    const OTHER_PARTS: u64 = 5;
    let of = candidates.len() as u64 + OTHER_PARTS;
    let mut done = 0;
    let mut begin = |doing: &str| {
        progress(Progress { doing, done, of });
        done += 1;
    };
    let small_ids = renumbered(events);
    let mut predictions = Vec::with_capacity(candidates.len());
    for text in &candidates {
        begin(text);
        predictions.push(Prediction::of(text, events, &small_ids, &device)?);
    }
    let repeats = Repeats::of(events);
    let choice = decide::choose(&predictions, sizes.requests, options);
    begin("growing buffers");
    let grown = Grown::find(events);
    let growth = grown.growth();
    let (mut grown_once, mut grown_in_parts) = (None, None);
    if growth.is_some_and(|growth| growth.share >= thresholds::MUCH_GROWTH) {
        let is_worth = |policy: &Prediction| {
            decide::is_worth(policy.peak_reserved_bytes, &predictions, &choice, options)
        };
        let in_parts = |parts| {
            let events = grown.in_parts(events, parts);
            let small_ids = renumbered(&events);
            let first = Prediction::of(&choice.conf, &events, &small_ids, &device)?;
            if is_worth(&first) || choice.conf == choice.best_conf {
                return Ok(first);
            }
            // What was as good for the run as it is may not be for this one.
            let best = Prediction::of(&choice.best_conf, &events, &small_ids, &device)?;
            let is_less = best.peak_reserved_bytes < first.peak_reserved_bytes;
            Ok::<_, AdviceError>(if is_less { best } else { first })
        };
        let once = in_parts(1)?;
        if !is_worth(&once) {
            grown_in_parts = Some(in_parts(thresholds::GROWTH_PARTS)?);
        }
        grown_once = Some(once);
    }
    let choice = match grown_in_parts.as_ref().or(grown_once.as_ref()).filter(|grown| {
        grown.conf == choice.best_conf
            && decide::is_worth(grown.peak_reserved_bytes, &predictions, &choice, options)
    }) {
        Some(grown) => Choice { conf: grown.conf.clone(), value: choice.best_value, ..choice },
        None => choice,
    };
    begin("planned steps");
    let planned_steps = match repeats.steps {
        Some(steps) if steps.exact > 0.0 => PlannedSteps::of(events, &choice.conf.parse()?, &device)?,
        _ => None,
    };
    begin("an offline plan");
    let offline_plan = OfflinePlan::of(events, device.granule_bytes);
    let rounded = |bytes: usize| bytes.max(1).next_multiple_of(device.granule_bytes);
    let preallocated_bytes = mempool_arena::trace::preallocated_bytes(events, rounded);
    begin("survivors apart");
    let apart = apart::Apart::of(stuck.as_ref(), events, &device)?;
    begin("the size of the pool");
    let pool_bytes = pool_bytes(events, &choice.conf, &device)?;
    let allocations = sizes.requests;
    let mut advice = Advice {
        evidence: Evidence::Run {
            events: all_events.len() as u64,
            replayed: all_events.len().min(most_events) as u64,
            allocations,
        },
        recommendation: Recommendation::undecided(),
        findings: Vec::new(),
        unknown: Vec::new(),
        growth,
        grown_once,
        grown_in_parts,
        sizes,
        repeats: Some(repeats),
        stuck,
        predictions,
        planned_steps,
        offline_plan,
        preallocated_bytes: Some(preallocated_bytes),
        unpooled_us: Some(unpooled_us(events, &device)),
    };
    decide::decide(&mut advice, choice, apart, pool_bytes, options);
    Ok(advice)
}

/// A trace whose frees are of what is live, and whose ids are each live once.
fn check(events: &[Event]) -> Result<(), AdviceError> {
    let mut live = rustc_hash::FxHashSet::default();
    let mut is_empty = true;
    for (event, number) in events.iter().zip(1..) {
        match *event {
            Event::Allocate { id, .. } if !live.insert(id) => {
                return Err(ReplayError::LiveAlready { event: number, id }.into());
            }
            Event::Free { id } if !live.remove(&id) => {
                return Err(ReplayError::NotLive { event: number, id }.into());
            }
            Event::Allocate { size_bytes, .. } => is_empty &= size_bytes == 0,
            _ => {}
        }
    }
    if is_empty { Err(AdviceError::Empty) } else { Ok(()) }
}

/// The size of a pool for the run; `None` for a policy that has no sizes, and where none is found.
fn pool_bytes(events: &[Event], conf: &str, device: &ReplayDevice) -> Result<Option<usize>, AdviceError> {
    let conf: Conf = conf.parse()?;
    if matches!(conf.policy(), Policy::None | Policy::Simple) {
        return Ok(None);
    }
    let mut sizing = Sizing::new(conf, Margin::default());
    sizing.setting.granule_bytes = device.granule_bytes;
    sizing.page_bytes = device.page_bytes;
    Ok(sizing.size_from(events).ok().map(|size| size.size_bytes))
}

fn unpooled_us(events: &[Event], device: &ReplayDevice) -> f64 {
    let cost = |event: &Event| match *event {
        Event::Allocate { size_bytes, .. } => {
            let cost = device.costs.of(size_bytes.max(device.page_bytes));
            cost.mapping_us() + cost.unmapping_us()
        }
        _ => 0.0,
    };
    events.iter().map(cost).sum()
}

#[cfg(test)]
mod tests;
