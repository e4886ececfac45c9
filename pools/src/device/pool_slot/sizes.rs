//! What a device pool has from the start, keeps, and grows by.
//!
//! Memory in advance lies in an arena without a stream, which the first stream takes over that allocates. Each
//! arena keeps its part of what the pool keeps, against trims and what other pools need. Where
//! the pool itself needs that memory for another stream it goes there, over the device, and the parts are dealt
//! out anew.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use mempool_arena::Request;

use super::{Ended, PoolSlot};
use crate::device::arena_slot::{ArenaCore, Owner};
use crate::device::entry::Call;
use crate::error::PoolError;
use crate::sizing::{Start, growth_bytes};

/// Options of a pool's size.
#[derive(Debug, Default)]
pub(super) struct Sizes {
    kept_bytes: AtomicUsize,
    /// Bits of an `f64`; that of 0 for a pool that takes no more than it needs.
    growth_factor: AtomicU64,
    /// Bits of an `f64`.
    headroom_share: AtomicU64,
}

impl Sizes {
    pub(super) fn open(&self, growth_factor: Option<f64>, headroom_share: f64) {
        self.kept_bytes.store(0, Ordering::Relaxed);
        self.growth_factor.store(growth_factor.unwrap_or(0.0).to_bits(), Ordering::Relaxed);
        self.headroom_share.store(headroom_share.to_bits(), Ordering::Relaxed);
    }
}

impl PoolSlot {
    /// Takes what the pool, which is just opened, is to have from the start.
    pub(crate) fn begin_with(&'static self, start: Start) -> Result<(), PoolError> {
        let Start { bytes, available } = start;
        let taken = self.device.with_context(|| {
            let mut guard = self.core.lock();
            let core = guard.as_mut().ok_or(PoolError::Closed)?;
            let (placement, taking) = (core.blocks.for_device(self.device)?, core.blocks.taking());
            let arena = self.device.platform.take_arena()?;
            arena.open(self, core.id, Owner::Ended, placement, taking, None);
            let mut arena_guard = arena.lock();
            let begun = arena_guard.as_mut().expect("it was opened just now");
            begun.arena.keep(bytes);
            let taken = begun.arena.take_in_advance(bytes);
            if taken.is_err() {
                begun.arena.keep(0);
            }
            drop(arena_guard);
            // No stream has used it: it is idle whatever the device does.
            core.ended.push(Ended { arena, event: None, per_thread: false, mark: 0 });
            taken.map_err(|error| available.refused(bytes, Some(error)))
        });
        let refused = || available.refused(bytes, None);
        let taken = taken.unwrap_or_else(|| Err(refused()));
        match taken {
            Ok(()) => self.sizes.kept_bytes.store(bytes, Ordering::Relaxed),
            // What was taken all the same goes back.
            Err(_) => drop(self.trim(usize::MAX)),
        }
        taken
    }

    fn kept_bytes(&self) -> usize {
        self.sizes.kept_bytes.load(Ordering::Relaxed)
    }

    /// The pool ends: nothing is kept any more.
    pub(super) fn keep_nothing(&'static self) {
        if self.sizes.kept_bytes.swap(0, Ordering::Relaxed) > 0 {
            self.for_each_arena(|core| core.arena.keep(0));
        }
    }

    /// How much of the pool's own memory is given up in turn for a request that found none: at first what
    /// it needs, where the rest is to be kept.
    pub(crate) fn own_targets(&self, request: Request) -> impl Iterator<Item = usize> {
        let unit = self.device.unit_bytes();
        // Pages at both ends may have to be had.
        let needed = request.size_bytes.checked_next_multiple_of(unit).and_then(|len| len.checked_add(unit));
        let needed = needed.filter(|_| self.kept_bytes() > 0);
        needed.into_iter().chain([usize::MAX])
    }

    /// As [`trim`](Self::trim), and below what the pool keeps, for the pool's own request `call`. In a capture
    /// nothing can be waited for, so that it would be given up and not be had.
    pub(crate) fn trim_for_own(&'static self, call: &Call, target_bytes: usize) -> usize {
        if self.kept_bytes() == 0 || matches!(call.owner, Owner::Capture(..)) {
            return self.trim(target_bytes);
        }
        self.for_each_arena(|core| core.arena.keep(0));
        let returned = self.trim_arenas(target_bytes);
        self.deal_out();
        returned
    }

    /// Takes again what the pool keeps and had to give up for one of its requests, for the caller's stream. The
    /// context is current.
    pub(crate) fn fill_up(&'static self, call: &Call) {
        let missing = self.kept_bytes().saturating_sub(self.held_bytes());
        if missing > 0 && call.waitable().is_some() {
            // If there is no memory now, it is tried again at the next shortage.
            let _ = self.with_arena(call, |core| {
                core.arena.upstream_mut().serve(call.waitable());
                let taken = core.arena.take_in_advance(missing);
                core.arena.upstream_mut().serve(None);
                taken
            });
        }
        self.deal_out();
    }

    /// Has the arenas keep together what the pool keeps, or all that they have. What graphs use stays as
    /// long as they do anyway.
    pub(super) fn deal_out(&'static self) {
        let mut rest = self.kept_bytes();
        if rest == 0 {
            return;
        }
        self.for_each_arena(|core: &mut ArenaCore| {
            if matches!(core.owner, Owner::Capture(..)) {
                return;
            }
            let part = core.arena.stats().reserved.current.min(rest);
            core.arena.keep(part);
            rest -= part;
        });
    }

    /// By how much the pool is to grow for a request, if it does: never so far that less than the headroom
    /// stays free.
    pub(super) fn growth_for(&self, call: &Call, request: Request) -> Option<usize> {
        let factor = f64::from_bits(self.sizes.growth_factor.load(Ordering::Relaxed));
        if factor == 0.0 || matches!(call.owner, Owner::Capture(..)) {
            return None;
        }
        let growth_bytes = growth_bytes(self.held_bytes(), factor, request.size_bytes)?;
        let share = f64::from_bits(self.sizes.headroom_share.load(Ordering::Relaxed));
        let available = self.device.available_for(share).ok()?;
        let left = available.free_bytes.saturating_sub(growth_bytes);
        (left >= available.headroom_bytes).then_some(growth_bytes)
    }
}
