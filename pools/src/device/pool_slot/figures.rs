//! What a device pool tells about itself.

use std::sync::MutexGuard;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use mempool_arena::Stats;

use super::{PoolCore, PoolSlot};
use crate::device::arena_slot::{ArenaCore, ArenaSlot};
use crate::stats::{Figures, PoolStats};

/// Requests and their bytes.
#[derive(Debug, Default)]
pub(super) struct Requests {
    count: AtomicU64,
    bytes: AtomicU64,
}

impl Requests {
    pub(super) fn add(&self, bytes: usize) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// What is counted without a lock.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) bypassed: Requests,
    pub(super) refused: Requests,
    limit_refusals: AtomicU64,
    retries: AtomicU64,
    synchronizations: AtomicU64,
    /// Nanoseconds spent in the driver's mapping calls.
    mapping_ns: AtomicU64,
    /// The most the pool held, what it took, and what it held when that was reset.
    held_peak: AtomicUsize,
    held_total: AtomicU64,
    held_at_reset: AtomicUsize,
}

impl Counters {
    /// All begin at 0, while the pool holds so much.
    pub(super) fn reset(&self, held: usize) {
        for counter in [
            &self.bypassed.count,
            &self.bypassed.bytes,
            &self.refused.count,
            &self.refused.bytes,
            &self.limit_refusals,
            &self.retries,
            &self.synchronizations,
            &self.mapping_ns,
            &self.held_total,
        ] {
            counter.store(0, Ordering::Relaxed);
        }
        self.held_at_reset.store(held, Ordering::Relaxed);
    }

    pub(super) fn reset_peak(&self, held: usize) {
        self.held_peak.store(held, Ordering::Relaxed);
    }

    /// The pool took `bytes`, and holds `held` now.
    pub(super) fn note_held(&self, held: usize, bytes: usize) {
        self.held_peak.fetch_max(held, Ordering::Relaxed);
        self.held_total.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn note_mapping(&self, time: Duration) {
        self.mapping_ns.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }
}

impl PoolSlot {
    pub(crate) fn stats(&'static self) -> PoolStats {
        self.stats_if_open().expect("a pool with a handle is open")
    }

    pub(crate) fn stats_if_open(&'static self) -> Option<PoolStats> {
        // The lock is held throughout, so that no arena moves into the past meanwhile.
        let guard = self.core.lock();
        self.stats_with(guard, |arena| Some(arena.lock()))
    }

    /// The figures, unless one of the pool's locks is held. `Ok(None)` when no pool is here.
    pub(crate) fn stats_now(&'static self) -> Result<Option<PoolStats>, Busy> {
        let guard = self.core.try_lock().ok_or(Busy)?;
        if guard.is_none() {
            return Ok(None);
        }
        self.stats_with(guard, ArenaSlot::try_lock).map(Some).ok_or(Busy)
    }

    fn stats_with<'a>(
        &'static self,
        guard: MutexGuard<'_, Option<PoolCore>>,
        lock: impl Fn(&'static ArenaSlot) -> Option<MutexGuard<'a, Option<ArenaCore>>>,
    ) -> Option<PoolStats> {
        let core = guard.as_ref()?;
        let (mut figures, mut largest) = (core.past.clone(), 0);
        for arena in core.arenas() {
            let mut guard = lock(arena)?;
            let Some(core) = guard.as_mut() else { continue };
            core.arena.settle();
            figures.add(&core.figures());
            largest = largest.max(core.arena.largest_free_bytes());
        }
        figures.raise_peaks(&core.highest);
        Some(self.stats_of(core, figures, largest))
    }

    /// The figures of the pool, whose arenas come to these.
    pub(super) fn stats_of(&self, core: &PoolCore, mut figures: Figures, largest: usize) -> PoolStats {
        self.count_held(&mut figures.placement);
        let mut stats = PoolStats {
            name: core.name.clone(),
            id: core.id,
            device: Some(self.device.ordinal),
            largest_free_bytes: largest,
            last_step: core.last_step,
            ..PoolStats::default()
        };
        stats.set_figures(figures);
        self.read_counters(&mut stats);
        stats
    }

    /// What is known of the pool without a lock, when it was never seen.
    pub(crate) fn unseen_stats(&self) -> PoolStats {
        let id = self.id();
        let is_default = id == crate::registry::DEFAULT_ID;
        let name = if is_default { "default".to_owned() } else { format!("pool {id}") };
        PoolStats { name, id, device: Some(self.device.ordinal), ..PoolStats::default() }
    }

    /// Brings figures up to date as far as no lock is needed: what the pool holds, and counters.
    pub(crate) fn update_counters(&self, stats: &mut PoolStats) {
        self.count_held(&mut stats.placement);
        self.read_counters(stats);
    }

    fn read_counters(&self, stats: &mut PoolStats) {
        let Counters { bypassed, refused, .. } = &self.counters;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        stats.bypassed_count = count(&bypassed.count);
        stats.bypassed_bytes = count(&bypassed.bytes);
        stats.overflow_count = count(&refused.count);
        stats.overflow_bytes = count(&refused.bytes);
        stats.out_of_memory_count = count(&refused.count);
        stats.limit_refusals = count(&self.counters.limit_refusals);
        stats.retries = count(&self.counters.retries);
        stats.synchronizations = count(&self.counters.synchronizations);
        stats.mapping_time = Duration::from_nanos(count(&self.counters.mapping_ns));
    }

    /// Counts pages that are set aside, which are still the pool's and in no segment: as large, unless
    /// nothing else is. They were counted as they came, and are again when they come back to a segment.
    fn count_held(&self, stats: &mut Stats) {
        let aside = self.held_bytes().saturating_sub(stats.reserved.current);
        stats.reserved.current = self.held_bytes();
        stats.reserved.peak = self.counters.held_peak.load(Ordering::Relaxed);
        stats.reserved.total_allocated = self.counters.held_total.load(Ordering::Relaxed);
        stats.reserved.at_reset = self.counters.held_at_reset.load(Ordering::Relaxed);
        let small = stats.small.reserved;
        if small.current == 0 && small.total_allocated == 0 {
            stats.large.reserved = stats.reserved;
            return;
        }
        let large = &mut stats.large.reserved;
        large.current += aside;
        large.total_allocated += aside as u64;
        large.peak = large.peak.max(large.current);
    }

    /// Waits for all work of the device on behalf of this pool: see
    /// [`DeviceState::synchronize`](crate::device::DeviceState::synchronize).
    pub(crate) fn synchronize(&self) -> bool {
        let done = self.device.synchronize();
        self.counters.synchronizations.fetch_add(u64::from(done), Ordering::Relaxed);
        done
    }

    /// Counts a request that is tried again with memory that was given back.
    pub(crate) fn count_retry(&self) {
        self.counters.retries.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a request that failed because of a limit.
    pub(crate) fn count_limit_refusal(&self) {
        self.counters.limit_refusals.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn reset_peaks(&'static self) {
        self.for_each_arena(ArenaCore::reset_peaks);
        self.counters.reset_peak(self.held_bytes());
        if let Some(core) = self.core.lock().as_mut() {
            core.past.reset_peaks();
            core.highest = Figures::default();
        }
    }

    /// Totals and counters begin at 0.
    pub(crate) fn reset_accumulated(&'static self) {
        self.for_each_arena(ArenaCore::reset_accumulated);
        self.counters.reset(self.held_bytes());
        if let Some(core) = self.core.lock().as_mut() {
            core.past.reset_accumulated();
            core.at_step_start = crate::stats::StepStats::default();
        }
    }
}

/// A lock is held that figures are behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Busy;
