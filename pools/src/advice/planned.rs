//! What planning would make of a run: steps served by position, and offsets for known lifetimes.

use mempool_arena::plan::{Buffer, Planner};
use mempool_arena::trace::Event;
use mempool_arena::{
    AddressRange, Arena, Conf, PlanJob, ReplayDevice, Request, SimulatedUpstream, StepId, StepOptions,
    StepPlanStats,
};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use super::sizes::Live;
use super::{AdviceError, repeats};

/// More buffers are not planned: it would take longer than all replays together.
const MOST_BUFFERS: usize = 400_000;

/// What [`StepPlan`](crate::StepPlan) would have made of the run, by running it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PlannedSteps {
    /// Share of all requests that got their place without a search, the first runs included, in which nothing is
    /// planned.
    pub planned: f64,
    /// Share of the steps that went as planned from the first request to the last.
    pub whole_steps: f64,
    /// Plans that were kept at the end.
    pub plans: u64,
    /// The most that was mapped at once, in bytes.
    pub peak_reserved_bytes: usize,
    /// Calls that mapped memory.
    pub map_calls: u64,
}

/// An offline plan: offsets for all that lives in the step that needs most, or in the whole run where no steps are
/// marked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfflinePlan {
    /// Buffers that were planned.
    pub buffers: u64,
    /// The most that lives at one time, in bytes, rounding included: no plan needs less.
    pub live_bytes: usize,
    /// What the plan needs, in bytes.
    pub peak_bytes: usize,
}

impl PlannedSteps {
    /// Runs a trace that is known to be valid with its steps planned, in a pool with these options. `None` where steps
    /// do not repeat.
    pub(super) fn of(
        events: &[Event],
        conf: &Conf,
        device: &ReplayDevice,
    ) -> Result<Option<Self>, AdviceError> {
        let mut run = Run { conf, device, streams: FxHashMap::default(), reserved_bytes: 0, peak_bytes: 0 };
        let mut live: FxHashMap<u64, (u64, usize)> = FxHashMap::default();
        let mut requests = 0_u64;
        for event in events {
            match *event {
                Event::Allocate { id, size_bytes, stream } => {
                    requests += 1;
                    live.insert(id, (stream, run.allocate(stream, size_bytes)?));
                }
                Event::Free { id } => {
                    if let Some((stream, addr)) = live.remove(&id) {
                        run.free(stream, addr)?;
                    }
                }
                Event::StepEnd { .. } => run.end_step()?,
                Event::FreeCompleted { .. } => {}
            }
        }
        run.end_step()?;
        let mut stats = StepPlanStats::default();
        let mut map_calls = 0;
        for arena in run.streams.values() {
            stats.add(&arena.step_stats(STEP).unwrap_or_default());
            map_calls += arena.upstream().counters().map_calls;
        }
        Ok((stats.runs > 1).then(|| Self {
            planned: repeats::share(stats.planned + stats.own, requests),
            whole_steps: repeats::share(stats.planned_runs, stats.runs),
            plans: stats.plans as u64,
            peak_reserved_bytes: run.peak_bytes,
            map_calls,
        }))
    }
}

const STEP: StepId = StepId(1);

/// A pool with a planned step.
struct Run<'a> {
    conf: &'a Conf,
    device: &'a ReplayDevice,
    streams: FxHashMap<u64, Arena<SimulatedUpstream>>,
    reserved_bytes: usize,
    peak_bytes: usize,
}

impl Run<'_> {
    fn allocate(&mut self, stream: u64, size_bytes: usize) -> Result<usize, AdviceError> {
        if !self.streams.contains_key(&stream) {
            let device = ReplayDevice { capacity_bytes: None, ..self.device.clone() };
            let placement = self.conf.placement(device.setting())?;
            let mut arena = Arena::from_boxed(placement, device.upstream(self.conf.policy()));
            let granule_bytes = self.device.granule_bytes;
            arena.add_step(STEP, StepOptions { granule_bytes, max_plans: repeats::SHAPES });
            arena.begin_step(STEP);
            self.streams.insert(stream, arena);
        }
        let request = Request::new(size_bytes);
        self.with(stream, |arena| {
            if let Some(placed) = arena.allocate_in_step(STEP, request, false) {
                return Ok(placed.addr);
            }
            let placed = arena.allocate(request)?;
            arena.placed_in_step(STEP, placed);
            Ok(placed.addr)
        })
    }

    fn free(&mut self, stream: u64, addr: usize) -> Result<(), AdviceError> {
        self.with(stream, |arena| Ok(arena.free(addr).map(drop)?))
    }

    fn end_step(&mut self) -> Result<(), AdviceError> {
        let streams: Vec<u64> = self.streams.keys().copied().collect();
        for stream in streams {
            self.with(stream, |arena| {
                if let Some(solved) = arena.end_step(STEP).and_then(PlanJob::solve) {
                    let slab = match arena.wanted_slab(&solved) {
                        Some(request) => {
                            let placed = arena.allocate(request)?;
                            Some(AddressRange::new(placed.addr, request.size_bytes))
                        }
                        None => None,
                    };
                    arena.install_plan(solved, slab);
                }
                arena.begin_step(STEP);
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Does something in a stream's arena, and keeps the sum of what is reserved.
    fn with<R>(
        &mut self,
        stream: u64,
        work: impl FnOnce(&mut Arena<SimulatedUpstream>) -> Result<R, AdviceError>,
    ) -> Result<R, AdviceError> {
        let arena = self.streams.get_mut(&stream).expect("made when the stream allocated first");
        let before = arena.stats().reserved.current;
        let result = work(arena)?;
        self.reserved_bytes = self.reserved_bytes - before + arena.stats().reserved.current;
        self.peak_bytes = self.peak_bytes.max(self.reserved_bytes);
        Ok(result)
    }
}

impl OfflinePlan {
    /// For a trace that is known to be valid; `None` where there is nothing to plan, or too much.
    pub(super) fn of(events: &[Event], granule_bytes: usize) -> Option<Self> {
        let step = largest_step(events);
        let mut open: FxHashMap<u64, usize> = FxHashMap::default();
        let mut buffers: Vec<Buffer> = Vec::new();
        let end = step.end as u64 + 1;
        for (at, event) in events[..step.end].iter().enumerate() {
            match *event {
                Event::Allocate { id, size_bytes, .. } => {
                    open.insert(id, buffers.len());
                    let rounded = size_bytes.max(1).checked_next_multiple_of(granule_bytes)?;
                    buffers.push(Buffer::new(at.max(step.start) as u64, end, rounded));
                }
                Event::Free { id } => {
                    if let Some(which) = open.remove(&id) {
                        buffers[which].upper = at as u64;
                    }
                }
                Event::FreeCompleted { .. } | Event::StepEnd { .. } => {}
            }
        }
        // What ended before the step is of no concern.
        buffers.retain(|buffer| buffer.upper > buffer.lower);
        if buffers.is_empty() || buffers.len() > MOST_BUFFERS {
            return None;
        }
        let plan = Planner { granule_bytes, ..Planner::default() }.plan(&buffers).ok()?;
        let (live_bytes, peak_bytes) = (plan.max_live_bytes, plan.peak_bytes);
        Some(Self { buffers: buffers.len() as u64, live_bytes, peak_bytes })
    }
}

/// The events of the step in which most is live.
fn largest_step(events: &[Event]) -> std::ops::Range<usize> {
    let mut live = Live::default();
    let (mut peak_bytes, mut largest, mut start) = (0, 0..0, 0);
    let mut holds_peak = false;
    for (at, event) in events.iter().enumerate() {
        live.apply(event);
        if live.bytes > peak_bytes {
            (peak_bytes, holds_peak) = (live.bytes, true);
        }
        if matches!(event, Event::StepEnd { .. }) || at + 1 == events.len() {
            if std::mem::take(&mut holds_peak) {
                largest = start..at + 1;
            }
            start = at + 1;
        }
    }
    largest
}
