//! Running a recorded trace through a policy, to see what it would have needed.
//!
//! Each stream of the trace has a placement of its own, as in pools, and all share one device. A
//! block is freed when its owner frees it and serves its stream again at once. Work that was
//! queued before still uses it for a while ([`SimulatedBuilder::lag`](crate::SimulatedBuilder::lag)):
//! until then its pages stay where they are.

use std::fmt;

use thiserror::Error;

pub use self::device::ReplayDevice;
use self::live::Live;
pub use self::times::{ReplayTimes, renumbered};
use crate::error::ArenaError;
use crate::in_advance::take_for_a_start;
use crate::placement::Placement;
use crate::request::Request;
use crate::stats::{Stat, Stats};
use crate::trace::Event;
use crate::upstream::simulated::SimulatedUpstream;

/// A replay that could not go on.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// An allocation that the policy could not serve.
    #[error("event {event} cannot be served")]
    Refused {
        /// The event's number, counted from 1.
        event: u64,
        /// The policy's answer.
        source: ArenaError,
    },
    /// A placement for another stream that could not be made.
    #[error("event {event}: no placement for stream {stream}")]
    Placement {
        /// The event's number, counted from 1.
        event: u64,
        /// The stream.
        stream: u64,
        /// Why.
        source: ArenaError,
    },
    /// An id that is allocated while it is live.
    #[error("event {event}: allocation {id} is live already")]
    LiveAlready {
        /// The event's number, counted from 1.
        event: u64,
        /// The id.
        id: u64,
    },
    /// An id that is freed while it is not live.
    #[error("event {event}: allocation {id} is freed, but not live")]
    NotLive {
        /// The event's number, counted from 1.
        event: u64,
        /// The id.
        id: u64,
    },
}

/// Makes the placement of a stream.
type MakePlacement<'a> = Box<dyn FnMut() -> Result<Box<dyn Placement>, ArenaError> + 'a>;

/// Sizes of all streams together, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// What the trace asked for.
    pub requested: Stat,
    /// Bytes of blocks, rounding included.
    pub allocated: Stat,
    /// Mapped bytes.
    pub reserved: Stat,
}

/// How memory stood when the most of it was reserved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AtPeak {
    /// What was asked for then.
    pub requested_bytes: usize,
    /// Bytes of blocks then.
    pub allocated_bytes: usize,
    /// Mapped bytes then.
    pub reserved_bytes: usize,
    /// The largest free block then.
    pub largest_free_bytes: usize,
}

impl AtPeak {
    /// 1 - requested / allocated.
    #[must_use]
    pub fn internal_fragmentation(&self) -> f64 {
        unused(self.requested_bytes, self.allocated_bytes)
    }

    /// 1 - largest free block / free bytes.
    #[must_use]
    pub fn external_fragmentation(&self) -> f64 {
        let free_bytes = self.reserved_bytes - self.allocated_bytes;
        unused(self.largest_free_bytes.min(free_bytes), free_bytes)
    }
}

fn unused(used: usize, whole: usize) -> f64 {
    if whole == 0 { 0.0 } else { 1.0 - used as f64 / whole as f64 }
}

/// A replay in progress.
pub struct Replay<'a> {
    upstream: SimulatedUpstream,
    make: MakePlacement<'a>,
    streams: Vec<(u64, Box<dyn Placement>)>,
    live: Live,
    totals: Totals,
    at_peak: AtPeak,
    events: u64,
    steps: u64,
    in_advance_bytes: usize,
    keeps_totals: bool,
}

impl<'a> Replay<'a> {
    /// A replay of nothing yet. `make` makes the placement of each stream.
    pub fn new(
        upstream: SimulatedUpstream,
        make: impl FnMut() -> Result<Box<dyn Placement>, ArenaError> + 'a,
    ) -> Self {
        Self {
            upstream,
            make: Box::new(make),
            streams: Vec::new(),
            live: Live::default(),
            totals: Totals::default(),
            at_peak: AtPeak::default(),
            events: 0,
            steps: 0,
            in_advance_bytes: 0,
            keeps_totals: true,
        }
    }

    /// Has the first stream begin with so many bytes, taken in advance and kept, as a pool of this size
    /// does. Other streams get them when memory is short.
    #[must_use]
    pub fn with_memory_in_advance(mut self, bytes: usize) -> Self {
        self.in_advance_bytes = bytes;
        self
    }

    /// Leaves out [`totals`](Self::totals), [`at_peak`](Self::at_peak) and what the device checks and models
    /// ([`SimulatedUpstream::trust_callers`]), which take time that is not the policy's: for measuring.
    #[must_use]
    pub fn without_totals(mut self) -> Self {
        self.keeps_totals = false;
        self.upstream.trust_callers();
        self
    }

    /// Does what the event says.
    ///
    /// # Errors
    /// [`ReplayError`]; the replay is where it was before the event.
    #[inline]
    pub fn apply(&mut self, event: Event) -> Result<(), ReplayError> {
        match event {
            Event::Allocate { id, size_bytes, stream } => self.allocate(id, size_bytes, stream)?,
            Event::Free { id } => {
                let number = self.events + 1;
                let (at, addr) = self.live.remove(id).ok_or(ReplayError::NotLive { event: number, id })?;
                self.change(at, |placement, upstream| {
                    placement.free(addr, upstream).expect("a live block can be freed");
                });
                self.upstream.advance();
            }
            Event::FreeCompleted { .. } => {}
            Event::StepEnd { .. } => self.steps += 1,
        }
        self.events += 1;
        Ok(())
    }

    #[inline]
    fn allocate(&mut self, id: u64, size_bytes: usize, stream: u64) -> Result<(), ReplayError> {
        let number = self.events + 1;
        if self.live.contains(id) {
            return Err(ReplayError::LiveAlready { event: number, id });
        }
        let at = match self.streams.iter().position(|(other, _)| *other == stream) {
            Some(at) => at,
            None => {
                let placement = (self.make)();
                let placement =
                    placement.map_err(|source| ReplayError::Placement { event: number, stream, source })?;
                self.streams.push((stream, placement));
                let at = self.streams.len() - 1;
                self.take_in_advance(at).map_err(|source| ReplayError::Refused { event: number, source })?;
                at
            }
        };
        let request = Request::new(size_bytes);
        let mut placed = self.change(at, |placement, upstream| placement.allocate(request, upstream));
        if matches!(placed, Err(ArenaError::OutOfMemory { .. })) && self.streams.len() > 1 {
            // What other streams have free can be had too, by waiting for them.
            for other in (0..self.streams.len()).filter(|&other| other != at) {
                self.change(other, |placement, upstream| {
                    placement.keep(0);
                    placement.trim(upstream, usize::MAX)
                });
            }
            placed = self.change(at, |placement, upstream| placement.allocate(request, upstream));
        }
        let placed = placed.map_err(|source| ReplayError::Refused { event: number, source })?;
        self.live.insert(id, (at, placed.addr));
        self.upstream.advance();
        Ok(())
    }

    /// Takes what is to be taken in advance, once.
    fn take_in_advance(&mut self, at: usize) -> Result<(), ArenaError> {
        let bytes = std::mem::take(&mut self.in_advance_bytes);
        if bytes == 0 {
            return Ok(());
        }
        self.change(at, |placement, upstream| {
            placement.keep(bytes);
            take_for_a_start(placement, upstream, bytes, bytes)
        })
    }

    /// Does something to a stream's placement and keeps the totals.
    #[inline]
    fn change<R>(&mut self, at: usize, f: impl FnOnce(&mut dyn Placement, &mut SimulatedUpstream) -> R) -> R {
        let placement = &mut *self.streams[at].1;
        if !self.keeps_totals {
            return f(placement, &mut self.upstream);
        }
        let figures =
            |stats: &Stats| [stats.requested.current, stats.allocated.current, stats.reserved.current];
        let before = figures(placement.stats());
        let result = f(placement, &mut self.upstream);
        let after = figures(placement.stats());
        let Totals { requested, allocated, reserved } = &mut self.totals;
        let peak = reserved.peak;
        for (stat, (before, after)) in
            [requested, allocated, reserved].into_iter().zip(before.into_iter().zip(after))
        {
            if after > before { stat.increase(after - before) } else { stat.decrease(before - after) }
        }
        if self.totals.reserved.peak > peak {
            let largest = |(_, placement): &(u64, Box<dyn Placement>)| placement.largest_free_bytes();
            self.at_peak = AtPeak {
                requested_bytes: self.totals.requested.current,
                allocated_bytes: self.totals.allocated.current,
                reserved_bytes: self.totals.reserved.current,
                largest_free_bytes: self.streams.iter().map(largest).max().unwrap_or(0),
            };
        }
        result
    }

    /// Sizes of all streams together.
    #[must_use]
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// How memory stood when the most of it was reserved.
    #[must_use]
    pub fn at_peak(&self) -> &AtPeak {
        &self.at_peak
    }

    /// 1 - peak requested / peak reserved.
    #[must_use]
    pub fn fragmentation(&self) -> f64 {
        unused(self.totals.requested.peak, self.totals.reserved.peak)
    }

    /// The figures of all streams, added. For peaks see [`totals`](Self::totals).
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut sum = Stats::default();
        self.streams.iter().for_each(|(_, placement)| sum.add(placement.stats()));
        sum
    }

    /// The placements, by stream.
    pub fn placements(&self) -> impl Iterator<Item = (u64, &dyn Placement)> {
        self.streams.iter().map(|(stream, placement)| (*stream, &**placement))
    }

    /// The device.
    #[must_use]
    pub fn upstream(&self) -> &SimulatedUpstream {
        &self.upstream
    }

    /// Where a live allocation lies.
    #[must_use]
    pub fn address_of(&self, id: u64) -> Option<usize> {
        self.live.get(id).map(|(_, addr)| addr)
    }

    /// Events so far.
    #[must_use]
    pub fn event_count(&self) -> u64 {
        self.events
    }

    /// Steps that ended so far.
    #[must_use]
    pub fn step_count(&self) -> u64 {
        self.steps
    }
}

impl fmt::Debug for Replay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replay")
            .field("events", &self.events)
            .field("streams", &self.streams.len())
            .field("totals", &self.totals)
            .finish_non_exhaustive()
    }
}

mod device;
mod live;
#[cfg(test)]
mod tests;
mod times;
