//! How large a pool has to be for a recorded run.
//!
//! The run is replayed on pools of fixed size, each with all its memory taken in advance, and the smallest is
//! looked for on which it completes. So what a policy loses to rounding, to classes of sizes and to
//! fragmentation is in the answer. A margin is added, since the next run is not quite the recorded one; and
//! where steps of the policy are longer than that, what the run needs when all its sizes are 5% larger.

use std::fmt;

use thiserror::Error;

use crate::conf::{Conf, ConfError, Setting};
use crate::error::ArenaError;
use crate::placement::Placement;
use crate::policy::Policy;
use crate::replay::{Replay, ReplayError};
use crate::trace::Event;
use crate::upstream::simulated::SimulatedUpstream;

/// What is added to the least that a run needs: 10% to 20% of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Margin(f64);

impl Margin {
    /// A share of 0.1 to 0.2.
    ///
    /// # Errors
    /// [`SizingError::Margin`] for another number.
    pub fn new(share: f64) -> Result<Self, SizingError> {
        if (0.1..=0.2).contains(&share) { Ok(Self(share)) } else { Err(SizingError::Margin { share }) }
    }

    /// The share.
    #[must_use]
    pub const fn share(self) -> f64 {
        self.0
    }
}

impl Default for Margin {
    /// 15%.
    fn default() -> Self {
        Self(0.15)
    }
}

impl fmt::Display for Margin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.0 * 100.0)
    }
}

/// A size that could not be found.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum SizingError {
    /// A margin beyond what is sensible.
    #[error("a margin of {share} cannot be: a number from 0.1 to 0.2 is needed")]
    Margin {
        /// The number given.
        share: f64,
    },
    /// Options that make no sense, or those of a policy that cannot take memory in advance.
    #[error(transparent)]
    Conf(#[from] ConfError),
    /// The trace, or the policy on it with no limit at all.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// A policy that needs far more with memory in advance than without.
    #[error("the run does not complete on a pool of fixed size of {tried_bytes} bytes either")]
    TooLarge {
        /// The largest size that was tried.
        tried_bytes: usize,
    },
    /// A run that asks for no memory.
    #[error("nothing is allocated in the trace")]
    Empty,
}

/// What a run needs, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// The most that was asked for at once.
    pub peak_requested_bytes: usize,
    /// The smallest pool that was found on which the run completes, whole pages. Policies are not monotonic:
    /// that one smaller by a page does not suffice does not prove that none does.
    pub least_bytes: usize,
    /// That and the margin, or more if the run would not complete on that with all its sizes 5% larger; whole
    /// pages.
    pub size_bytes: usize,
}

/// How a size is looked for.
#[derive(Debug, Clone, PartialEq)]
pub struct Sizing {
    /// The policy and its options.
    pub conf: Conf,
    /// What the pool's blocks are like; its limit is not looked at.
    pub setting: Setting,
    /// Bytes of a page.
    pub page_bytes: usize,
    /// What is added.
    pub margin: Margin,
}

impl Sizing {
    /// For a pool of a device with such options: pages of 2 MiB, sizes in multiples of 512 bytes.
    #[must_use]
    pub fn new(conf: Conf, margin: Margin) -> Self {
        /// Policies that have one range for each kind of request never need a second.
        const RANGE_BYTES: usize = 1 << (if usize::BITS == 64 { 38 } else { 26 });
        let setting = Setting { range_bytes: RANGE_BYTES, ..Setting::default() };
        Self { conf, setting, page_bytes: 2 << 20, margin }
    }

    /// The size of a pool for the run.
    ///
    /// # Errors
    /// [`SizingError`].
    pub fn size_from(&self, events: &[Event]) -> Result<Size, SizingError> {
        let policy = self.conf.policy();
        if self.placement(&self.conf)?.part_in_advance(self.page_bytes).is_none() {
            return Err(ConfError::NotOfPolicy { key: "fixed_size_mb", policy }.into());
        }
        // Without growth a limit would be needed; in a pool of fixed size both are the same.
        let growing = self.conf.allow_growth.map(|_| true);
        let growing = Conf { allow_growth: growing, ..self.conf.clone() };
        let mut unlimited = self.replay(&growing, usize::MAX)?;
        events.iter().try_for_each(|&event| unlimited.apply(event))?;
        let (requested, reserved) = (unlimited.totals().requested.peak, unlimited.totals().reserved.peak);
        if requested == 0 {
            return Err(SizingError::Empty);
        }
        let pages = |bytes: usize| bytes.div_ceil(self.page_bytes);
        let least = self.least_pages(events, pages(requested), pages(reserved.max(requested)))?;
        let with_margin = (least as f64 * (1.0 + self.margin.share())).ceil() as usize;
        let larger: Vec<Event> = events.iter().map(|&event| larger(event)).collect();
        let size = self.least_pages(&larger, with_margin, with_margin)?;
        Ok(Size {
            peak_requested_bytes: requested,
            least_bytes: least * self.page_bytes,
            size_bytes: size * self.page_bytes,
        })
    }

    /// The fewest pages from `low` on on which the run completes, if it does on `high`; else the fewest
    /// above.
    fn least_pages(&self, events: &[Event], mut low: usize, mut high: usize) -> Result<usize, SizingError> {
        /// No more is tried than so many times what suffices without memory in advance.
        const TRIED: usize = 4;
        let most = high.saturating_mul(TRIED);
        // With memory cut up in advance a policy may need more than without.
        while !self.completes(events, high)? {
            if high > most {
                return Err(SizingError::TooLarge { tried_bytes: high.saturating_mul(self.page_bytes) });
            }
            (low, high) = (high + 1, high + high.div_ceil(8));
        }
        while low < high {
            let middle = low + (high - low) / 2;
            if self.completes(events, middle)? { high = middle } else { low = middle + 1 }
        }
        Ok(high)
    }

    /// Whether the run completes on a pool of fixed size.
    ///
    /// # Errors
    /// [`SizingError`], but not for a lack of memory.
    pub fn completes_on(&self, events: &[Event], size_bytes: usize) -> Result<bool, SizingError> {
        self.completes(events, size_bytes / self.page_bytes)
    }

    fn completes(&self, events: &[Event], pages: usize) -> Result<bool, SizingError> {
        let size_bytes = pages * self.page_bytes;
        let mut replay = self.replay(&self.conf, size_bytes)?.with_memory_in_advance(size_bytes);
        for &event in events {
            match replay.apply(event) {
                Ok(()) => {}
                Err(ReplayError::Refused { source: ArenaError::OutOfMemory { .. }, .. }) => return Ok(false),
                Err(other) => return Err(other.into()),
            }
        }
        Ok(true)
    }

    fn replay<'a>(&'a self, conf: &'a Conf, capacity_bytes: usize) -> Result<Replay<'a>, SizingError> {
        // The rest of what a policy can refuse is found here.
        self.placement(conf)?;
        let upstream = SimulatedUpstream::builder()
            .page_bytes(self.page_bytes)
            .capacity_bytes(capacity_bytes)
            .handles(conf.policy() != Policy::Buddy)
            .falling_addresses(true)
            .build();
        let make = move || match self.placement(conf) {
            Ok(placement) => Ok(placement),
            Err(ConfError::Refused(error)) => Err(error),
            Err(other) => unreachable!("checked above: {other}"),
        };
        Ok(Replay::new(upstream, make))
    }

    fn placement(&self, conf: &Conf) -> Result<Box<dyn Placement>, ConfError> {
        conf.placement(Setting { limit_bytes: None, ..self.setting })
    }
}

/// The event of a run whose sizes are 5% larger.
fn larger(event: Event) -> Event {
    match event {
        Event::Allocate { id, size_bytes, stream } => {
            Event::Allocate { id, size_bytes: size_bytes.saturating_add(size_bytes / 20), stream }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests;
