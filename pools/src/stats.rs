//! What a pool tells about itself.

mod flat;
mod group;
mod in_use;
mod line;
mod summary;

use std::ops::{Deref, Sub};
use std::time::Duration;

use mempool_arena::{Stat, Stats};
use serde::{Deserialize, Serialize};

pub use flat::MemoryStats;
pub use group::GroupStats;
pub(crate) use in_use::Figures;
pub use in_use::InUse;
pub use line::PoolLine;
pub use summary::SummaryRows;

/// Counters of one step, as [`mark_step`](crate::mark_step) ends it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepStats {
    /// Requests served from memory that was mapped already.
    pub hits: u64,
    /// Requests that had to map pages.
    pub misses: u64,
    /// Times the pool took memory from the system.
    pub map_calls: u64,
    /// Times the pool returned memory to the system.
    pub unmap_calls: u64,
    /// Bytes requested.
    pub requested_bytes: u64,
}

impl StepStats {
    /// The counters from the start of the pool.
    pub(crate) fn counted(stats: &Stats) -> Self {
        Self {
            hits: stats.hits,
            misses: stats.misses,
            map_calls: stats.map_calls,
            unmap_calls: stats.unmap_calls,
            requested_bytes: stats.requested.total_allocated,
        }
    }
}

impl Sub for StepStats {
    type Output = Self;

    /// What came since `earlier`; nothing when another thread ended a step in between.
    fn sub(self, earlier: Self) -> Self {
        Self {
            hits: self.hits.saturating_sub(earlier.hits),
            misses: self.misses.saturating_sub(earlier.misses),
            map_calls: self.map_calls.saturating_sub(earlier.map_calls),
            unmap_calls: self.unmap_calls.saturating_sub(earlier.unmap_calls),
            requested_bytes: self.requested_bytes.saturating_sub(earlier.requested_bytes),
        }
    }
}

/// Figures of a pool at one moment. Those of its placement ([`Stats`]: `requested`,
/// `allocated`, `reserved`, `small`, `large`, `hits`, `misses` ...) are fields of this too.
///
/// `requested <= allocated <= active <= reserved` holds for the current values. A pool of a device has an
/// arena for each stream, whose peaks are added: see [`GroupStats::total`]. The peak of `reserved` is the
/// pool's own.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolStats {
    /// The pool's name.
    pub name: String,
    /// Its id: [`MemPool::id`](crate::MemPool::id).
    pub id: u64,
    /// The number of its device; `None` for the host.
    pub device: Option<u32>,
    /// The figures of its placement. What is `requested`, `allocated` and counted in `blocks` is
    /// somebody's: on a device, blocks that were freed and that queued work still uses are not.
    pub placement: Stats,
    /// Bytes of blocks that are live, or freed and still in use by queued work.
    pub active: Stat,
    /// Number of such blocks.
    pub active_blocks: Stat,
    /// The part of `active` and `active_blocks` that lies in small segments.
    pub active_small: InUse,
    /// The part that lies in large segments.
    pub active_large: InUse,
    /// The largest request that needs no new page.
    pub largest_free_bytes: usize,
    /// Requests inside the pool's scope that went to the inner allocator instead: those below
    /// the allocator's threshold, and those beyond the pool's limit.
    pub bypassed_count: u64,
    /// Their bytes.
    pub bypassed_bytes: u64,
    /// Requests that the pool's limit, or the system, had no memory for: on the host a part of
    /// `bypassed_count`, on a device those that failed.
    pub overflow_count: u64,
    /// The part of `bypassed_bytes` that the pool's limit, or the system, had no memory for.
    pub overflow_bytes: u64,
    /// Requests that failed: on the host those that a hard limit refused.
    pub out_of_memory_count: u64,
    /// The part of these that a limit, the memory fraction or the headroom refused, and not the driver.
    pub limit_refusals: u64,
    /// Requests for which memory was given back, from this pool or others, and that were tried again. 0 on
    /// the host, where what does not fit goes to the inner allocator.
    pub retries: u64,
    /// Times that all work of the device was waited for, on behalf of this pool. 0 on the host.
    pub synchronizations: u64,
    /// Time spent in the system's or the driver's calls that map, move and unmap memory.
    pub mapping_time: Duration,
    /// The last whole step.
    pub last_step: StepStats,
}

impl PoolStats {
    /// How scattered the free bytes are, now: 1 - largest free block / free bytes.
    #[must_use]
    pub fn external_fragmentation(&self) -> f64 {
        let free = self.free_bytes();
        if free == 0 { 0.0 } else { 1.0 - self.largest_free_bytes as f64 / free as f64 }
    }

    /// Mapped bytes that no block holds and no queued work uses.
    #[must_use]
    pub fn free_bytes(&self) -> usize {
        self.reserved.current.saturating_sub(self.active.current)
    }

    pub(crate) fn set_figures(&mut self, figures: Figures) {
        let Figures { placement, active, active_small, active_large } = figures;
        (self.active, self.active_blocks) = (active.bytes, active.blocks);
        (self.active_small, self.active_large, self.placement) = (active_small, active_large, placement);
    }

    /// Adds the figures of another pool. Peaks are added too.
    pub(crate) fn add(&mut self, other: &Self) {
        self.placement.add(&other.placement);
        self.active.add(&other.active);
        self.active_blocks.add(&other.active_blocks);
        self.active_small.add(&other.active_small);
        self.active_large.add(&other.active_large);
        self.largest_free_bytes = self.largest_free_bytes.max(other.largest_free_bytes);
        self.bypassed_count += other.bypassed_count;
        self.bypassed_bytes += other.bypassed_bytes;
        self.overflow_count += other.overflow_count;
        self.overflow_bytes += other.overflow_bytes;
        self.out_of_memory_count += other.out_of_memory_count;
        self.limit_refusals += other.limit_refusals;
        self.retries += other.retries;
        self.synchronizations += other.synchronizations;
        self.mapping_time += other.mapping_time;
        let StepStats { hits, misses, map_calls, unmap_calls, requested_bytes } = other.last_step;
        self.last_step.hits += hits;
        self.last_step.misses += misses;
        self.last_step.map_calls += map_calls;
        self.last_step.unmap_calls += unmap_calls;
        self.last_step.requested_bytes += requested_bytes;
    }

    /// These figures as they count once the pool is no more: nothing is left in it, and it has no peak.
    pub(crate) fn of_the_past(mut self) -> Self {
        let mut figures = Figures {
            placement: self.placement,
            active: InUse { bytes: self.active, blocks: self.active_blocks },
            active_small: self.active_small,
            active_large: self.active_large,
        };
        figures.reset_peaks();
        self.placement = Stats::default();
        self.set_figures(figures);
        (self.largest_free_bytes, self.last_step) = (0, StepStats::default());
        self
    }

    /// Forgets totals and counters.
    pub(crate) fn reset_accumulated(&mut self) {
        self.placement.reset_accumulated();
        let all = InUse { bytes: self.active, blocks: self.active_blocks };
        let mut figures = Figures {
            active: all,
            active_small: self.active_small,
            active_large: self.active_large,
            placement: std::mem::take(&mut self.placement),
        };
        figures.reset_accumulated();
        self.set_figures(figures);
        (self.bypassed_count, self.bypassed_bytes) = (0, 0);
        (self.overflow_count, self.overflow_bytes) = (0, 0);
        (self.out_of_memory_count, self.limit_refusals) = (0, 0);
        (self.retries, self.synchronizations) = (0, 0);
        self.mapping_time = Duration::ZERO;
    }
}

impl Deref for PoolStats {
    type Target = Stats;

    fn deref(&self) -> &Stats {
        &self.placement
    }
}
