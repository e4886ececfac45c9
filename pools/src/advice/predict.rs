//! What each policy would have needed, by replay.

use std::time::Duration;

use mempool_arena::trace::Event;
use mempool_arena::{ArenaError, Conf, ReplayDevice, ReplayError, ReplayTimes};
use serde::{Deserialize, Serialize};

use super::{AdviceError, Kind};

/// How long the bookkeeping of a policy is measured at most, but for the first run. The shortest of some runs is
/// what no other program disturbed.
const MEASURED: Duration = Duration::from_millis(20);

/// What a policy would have needed. Sizes are bytes, times microseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// The policy and its options, as `MEMPOOL_CONF` spells them.
    pub conf: String,
    /// It is there to compare with and never advised: `none` and `simple` show what pools are for.
    pub is_for_comparison: bool,
    /// Whether the run completes on the device. The other figures are those without its end where it does not.
    pub completes: bool,
    /// The most that was asked for at once.
    pub peak_requested_bytes: usize,
    /// The most that was mapped at once.
    pub peak_reserved_bytes: usize,
    /// 1 - peak requested / peak reserved.
    pub fragmentation: f64,
    /// Share of requests that were served from memory that was mapped already.
    pub hit_rate: f64,
    /// Calls that mapped memory.
    pub map_calls: u64,
    /// Pages that went from one place to another.
    pub moved_pages: u64,
    /// What mapping, moving and unmapping would have taken, by the cost model.
    pub mapping_us: f64,
    /// What the bookkeeping took here, all of it.
    pub bookkeeping_us: f64,
}

impl Prediction {
    /// Mapping and bookkeeping together, in microseconds.
    #[must_use]
    pub fn time_us(&self) -> f64 {
        self.mapping_us + self.bookkeeping_us
    }

    /// Replays a trace. `renumbered` is the same with small ids.
    pub(super) fn of(
        text: &str,
        events: &[Event],
        renumbered: &[Event],
        device: &ReplayDevice,
    ) -> Result<Self, AdviceError> {
        let conf: Conf = text.parse()?;
        let limited = replay(&conf, events, device);
        let (mut device, mut completes) = (device.clone(), true);
        let replay = match limited {
            Err(AdviceError::Replay(ReplayError::Refused {
                source: ArenaError::OutOfMemory { .. }, ..
            })) => {
                (device.capacity_bytes, completes) = (None, false);
                replay(&conf, events, &device)?
            }
            other => other?,
        };
        let operations = renumbered
            .iter()
            .filter(|event| matches!(event, Event::Allocate { .. } | Event::Free { .. }))
            .count();
        let new_replay = || Ok::<_, AdviceError>(device.replay(&conf)?);
        let mean_ns = ReplayTimes::mean_ns(renumbered, MEASURED, new_replay)?;
        let (totals, counters) = (replay.totals(), replay.upstream().counters());
        Ok(Self {
            conf: text.to_owned(),
            is_for_comparison: COMPARED.contains(&text),
            completes,
            peak_requested_bytes: totals.requested.peak,
            peak_reserved_bytes: totals.reserved.peak,
            fragmentation: replay.fragmentation(),
            hit_rate: replay.stats().hit_rate(),
            map_calls: counters.map_calls,
            moved_pages: counters.relocated_pages,
            mapping_us: replay.upstream().mapping_us(),
            bookkeeping_us: mean_ns * operations as f64 / 1e3,
        })
    }
}

fn replay<'a>(
    conf: &'a Conf,
    events: &[Event],
    device: &ReplayDevice,
) -> Result<mempool_arena::Replay<'a>, AdviceError> {
    let mut replay = device.replay(conf)?;
    events.iter().try_for_each(|&event| replay.apply(event))?;
    Ok(replay)
}

/// The default, and what others are preferred to only for a reason.
pub(super) const DEFAULT: &str = "policy:pages";
/// Where pages move before more is mapped than was ever asked for.
pub(super) const MOVING: &str = "policy:pages,mode:moving";
/// PyTorch's default.
pub(super) const TORCH: &str = "policy:torch";
/// Of the same size only: what a cache in front of the driver's calls does.
pub(super) const SAME_SIZE: &str = "policy:simple";
const COMPARED: [&str; 2] = ["policy:none", SAME_SIZE];

/// The policies that are looked at for memory of this kind. Among equals the first is preferred: the default, then
/// those that map pages, then those that take segments.
pub(super) fn candidates(kind: Kind) -> impl Iterator<Item = &'static str> {
    let segments = (kind == Kind::Device).then_some("policy:segments");
    [DEFAULT, MOVING, "policy:buckets", "policy:expandable"]
        .into_iter()
        .chain(segments)
        .chain([TORCH, "policy:bfc", "policy:buddy"])
        .chain(COMPARED)
}
