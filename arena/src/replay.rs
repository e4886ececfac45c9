//! Running a recorded trace through a policy, to see what it would have needed.
//!
//! A block is freed when its owner frees it: the traces' `c` rows, which say when another stream
//! may reuse it, do not count for one stream.

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use thiserror::Error;

use crate::arena::Arena;
use crate::error::ArenaError;
use crate::placement::Placement;
use crate::request::Request;
use crate::stats::Stats;
use crate::trace::Event;
use crate::upstream::Upstream;

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

/// A replay in progress.
#[derive(Debug)]
pub struct Replay<U: Upstream, P: Placement + ?Sized = dyn Placement> {
    arena: Arena<U, P>,
    live: HashMap<u64, usize, FxBuildHasher>,
    events: u64,
    steps: u64,
}

impl<U: Upstream, P: Placement + ?Sized> Replay<U, P> {
    /// A replay on an empty arena.
    pub fn new(arena: Arena<U, P>) -> Self {
        Self { arena, live: HashMap::default(), events: 0, steps: 0 }
    }

    /// Does what the event says.
    ///
    /// # Errors
    /// [`ReplayError`]; the replay is where it was before the event.
    pub fn apply(&mut self, event: Event) -> Result<(), ReplayError> {
        let number = self.events + 1;
        match event {
            Event::Allocate { id, size_bytes, .. } => {
                if self.live.contains_key(&id) {
                    return Err(ReplayError::LiveAlready { event: number, id });
                }
                let placed = self.arena.allocate(Request::new(size_bytes));
                let placed = placed.map_err(|source| ReplayError::Refused { event: number, source })?;
                self.live.insert(id, placed.addr);
            }
            Event::Free { id } => {
                let addr = self.live.remove(&id).ok_or(ReplayError::NotLive { event: number, id })?;
                self.arena.free(addr).expect("a live block can be freed");
            }
            Event::FreeCompleted { .. } => {}
            Event::StepEnd { .. } => self.steps += 1,
        }
        self.events = number;
        Ok(())
    }

    /// The figures so far.
    pub fn stats(&self) -> &Stats {
        self.arena.stats()
    }

    /// The arena as the replay left it.
    pub fn arena(&self) -> &Arena<U, P> {
        &self.arena
    }

    /// Events so far.
    pub fn event_count(&self) -> u64 {
        self.events
    }

    /// Steps that ended so far.
    pub fn step_count(&self) -> u64 {
        self.steps
    }
}

#[cfg(test)]
mod tests;
