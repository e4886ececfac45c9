//! What a pool tells about itself.

use std::ops::{Deref, Sub};
use std::time::Duration;

use mempool_arena::Stats;
use serde::{Deserialize, Serialize};

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
/// `allocated`, `active`, `reserved`, `hits`, `misses` ...) are fields of this too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolStats {
    /// The pool's name.
    pub name: String,
    /// The figures of its placement.
    pub placement: Stats,
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
    /// Time spent in the system's or the driver's calls that map, move and unmap memory.
    pub mapping_time: Duration,
    /// The last whole step.
    pub last_step: StepStats,
}

impl PoolStats {
    /// How scattered the free bytes are, now: 1 - largest free block / free bytes.
    #[must_use]
    pub fn external_fragmentation(&self) -> f64 {
        self.placement.external_fragmentation(self.largest_free_bytes)
    }
}

impl Deref for PoolStats {
    type Target = Stats;

    fn deref(&self) -> &Stats {
        &self.placement
    }
}
