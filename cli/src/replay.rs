//! What a policy would have needed for a recorded run.

use mempool_pools::arena::trace::Event;
use mempool_pools::arena::{
    BUCKET_COUNT, BucketStats, Conf, ConfError, CostModel, Replay, ReplayDevice, ReplayError, ReplayTimes,
    renumbered,
};
use serde::Serialize;
use thiserror::Error;

/// How a trace is replayed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Options {
    /// The policy and its options.
    pub conf: Conf,
    /// The device's memory, if it has an end.
    pub limit_bytes: Option<usize>,
    /// Queued work uses a freed block until so many operations later.
    pub lag: u64,
    /// What mapping takes.
    pub costs: CostModel,
    /// Whether the smallest device is looked for on which the trace completes.
    pub min_capacity: bool,
}

/// A replay that failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The options make no sense.
    #[error(transparent)]
    Conf(#[from] ConfError),
    /// The trace, or the policy on it.
    #[error(transparent)]
    Replay(#[from] ReplayError),
}

/// What a policy needed for a trace. Sizes are bytes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Name of the trace.
    pub trace: String,
    /// Name of the policy.
    pub policy: String,
    /// Steps, if the trace marks where they end; the end of the trace ends the last one.
    pub steps: u64,
    /// Allocations.
    pub allocations: u64,
    /// The most that was asked for at once.
    pub peak_requested_bytes: usize,
    /// The most that blocks took at once.
    pub peak_allocated_bytes: usize,
    /// The most that was mapped at once.
    pub peak_reserved_bytes: usize,
    /// 1 - peak requested / peak reserved.
    pub fragmentation: f64,
    /// 1 - requested / allocated, when the most was mapped.
    pub internal_fragmentation: f64,
    /// 1 - largest free block / free bytes, when the most was mapped.
    pub external_fragmentation: f64,
    /// Handles that were mapped, the moved ones included.
    pub map_calls: u64,
    /// Pages that went from one place to another.
    pub moved_pages: u64,
    /// What mapping, moving and unmapping would have taken, in microseconds.
    pub mapping_us: f64,
    /// Mean time of the bookkeeping for an allocation or a free, in nanoseconds.
    pub ns_per_op: f64,
    /// 99.9% of them took no longer.
    pub ns_p999: f64,
    /// The slowest.
    pub ns_max: f64,
    /// Share of allocations served from memory that was mapped already.
    pub hit_rate: f64,
    /// The smallest device on which the trace completes, if that was asked for.
    pub min_capacity_bytes: Option<usize>,
    /// Hits and misses by size: bucket `k` has requests of `[2^k, 2^(k+1))` bytes.
    #[serde(skip)]
    pub buckets: [BucketStats; BUCKET_COUNT],
}

/// Replays a trace. `advanced` is told now and then of how many events were done.
///
/// # Errors
/// [`enum@Error`]; among others when the device's memory does not suffice.
pub fn replay(
    name: &str,
    events: &[Event],
    options: &Options,
    mut advanced: impl FnMut(usize),
) -> Result<Report, Error> {
    /// Events between two calls of `advanced`, which may cost as much as some of them.
    const PART: usize = 1 << 16;
    let capacity = options.limit_bytes;
    let mut replay = new_replay(options, capacity)?;
    for part in events.chunks(PART) {
        for &event in part {
            replay.apply(event)?;
        }
        advanced(part.len());
    }
    let (stats, totals, at_peak) = (replay.stats(), replay.totals(), replay.at_peak());
    let counters = replay.upstream().counters();
    let times = ReplayTimes::measure::<Error>(&renumbered(events), || Ok(new_replay(options, capacity)?))?;
    Ok(Report {
        trace: name.to_owned(),
        policy: options.conf.policy().to_string(),
        steps: steps(events, replay.step_count()),
        allocations: stats.blocks.total_allocated,
        peak_requested_bytes: totals.requested.peak,
        peak_allocated_bytes: totals.allocated.peak,
        peak_reserved_bytes: totals.reserved.peak,
        fragmentation: replay.fragmentation(),
        internal_fragmentation: at_peak.internal_fragmentation(),
        external_fragmentation: at_peak.external_fragmentation(),
        map_calls: counters.map_calls,
        moved_pages: counters.relocated_pages,
        mapping_us: replay.upstream().mapping_us(),
        ns_per_op: times.mean_ns,
        ns_p999: times.p999_ns,
        ns_max: times.slowest_ns,
        hit_rate: stats.hit_rate(),
        min_capacity_bytes: match options.min_capacity {
            true => Some(min_capacity(events, options, totals.requested.peak, totals.reserved.peak)?),
            false => None,
        },
        buckets: *stats.buckets,
    })
}

/// The end of a trace ends its last step; what only frees after the last mark is none.
fn steps(events: &[Event], marked: u64) -> u64 {
    let rest = events.rsplit(|event| matches!(event, Event::StepEnd { .. })).next().unwrap_or_default();
    let goes_on = marked > 0 && rest.iter().any(|event| matches!(event, Event::Allocate { .. }));
    marked + u64::from(goes_on)
}

fn new_replay(options: &Options, capacity_bytes: Option<usize>) -> Result<Replay<'_>, ConfError> {
    let (lag, costs) = (options.lag, options.costs.clone());
    ReplayDevice { capacity_bytes, lag, costs, ..ReplayDevice::default() }.replay(&options.conf)
}

/// The smallest device on which the trace completes, to a page: at least what is live at most, and at
/// most what the policy takes when it may.
fn min_capacity(
    events: &[Event],
    options: &Options,
    live_bytes: usize,
    reserved_bytes: usize,
) -> Result<usize, Error> {
    let page_bytes = ReplayDevice::default().page_bytes;
    let completes = |pages: usize| -> Result<bool, Error> {
        let mut replay = new_replay(options, Some(pages * page_bytes))?;
        for &event in events {
            match replay.apply(event) {
                Ok(()) => {}
                Err(ReplayError::Refused { .. }) => return Ok(false),
                Err(other) => return Err(other.into()),
            }
        }
        Ok(true)
    };
    let (mut low, mut high) = (live_bytes.div_ceil(page_bytes), reserved_bytes.div_ceil(page_bytes));
    while low < high {
        let middle = low + (high - low) / 2;
        if completes(middle)? { high = middle } else { low = middle + 1 }
    }
    Ok(high * page_bytes)
}
