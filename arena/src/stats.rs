//! Figures kept on the way, so that reading them costs no walk.

use std::ops::Sub;

use serde::{Deserialize, Serialize};

/// Number of size buckets: bucket `k` counts requests of `[2^k, 2^(k+1))` bytes.
pub const BUCKET_COUNT: usize = usize::BITS as usize;

/// The bucket of a request of `size_bytes`; zero counts as one byte.
#[must_use]
#[inline]
pub const fn bucket_of(size_bytes: usize) -> usize {
    (usize::BITS - 1 - (size_bytes | 1).leading_zeros()) as usize
}

/// One figure: its value now, the highest it was, and what went in and out over the run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stat {
    /// The value now.
    pub current: usize,
    /// The highest value since the start or the last reset.
    pub peak: usize,
    /// Sum of all increases.
    pub total_allocated: u64,
}

impl Stat {
    /// Adds `amount`.
    #[inline]
    pub fn increase(&mut self, amount: usize) {
        self.current += amount;
        self.peak = self.peak.max(self.current);
        self.total_allocated += amount as u64;
    }

    /// Takes `amount` away.
    #[inline]
    pub fn decrease(&mut self, amount: usize) {
        debug_assert!(amount <= self.current, "{amount} taken from {}", self.current);
        self.current -= amount;
    }

    /// Makes the value `now`.
    pub fn set(&mut self, now: usize) {
        if now > self.current { self.increase(now - self.current) } else { self.decrease(self.current - now) }
    }

    /// Sum of all decreases: what came and is no longer there.
    #[must_use]
    pub fn total_freed(&self) -> u64 {
        self.total_allocated - self.current as u64
    }

    /// Forgets the peak: the highest value is the one now.
    pub fn reset_peak(&mut self) {
        self.peak = self.current;
    }
}

/// Requests of one size bucket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketStats {
    /// Served from memory that was mapped already.
    pub hits: u64,
    /// Served after mapping.
    pub misses: u64,
}

/// The figures of one placement. Sizes are bytes.
///
/// `requested <= allocated <= active <= reserved` holds for the current values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// What callers asked for.
    pub requested: Stat,
    /// Bytes of live blocks, rounding included.
    pub allocated: Stat,
    /// Bytes of blocks that are live, or freed and still in use by queued work.
    pub active: Stat,
    /// Mapped bytes.
    pub reserved: Stat,
    /// Live blocks.
    pub blocks: Stat,
    /// Ranges reserved from upstream.
    pub segments: Stat,
    /// Free blocks that share a page with a live block.
    pub inactive_split_blocks: Stat,
    /// Free bytes on pages that also hold a live block: they can serve small requests only.
    pub inactive_split: Stat,
    /// Requests served from memory that was mapped already.
    pub hits: u64,
    /// Requests that had to map pages.
    pub misses: u64,
    /// Requests that could not be served.
    pub failures: u64,
    /// Hits and misses by [`bucket_of`] the requested size.
    #[serde(with = "buckets")]
    pub buckets: Box<[BucketStats; BUCKET_COUNT]>,
    /// Calls of upstream's `map`.
    pub map_calls: u64,
    /// Calls of upstream's `unmap`.
    pub unmap_calls: u64,
    /// Times that more memory was taken than a request needed, for later ones.
    pub growths: u64,
    /// Bytes of pages that went from where they were free to where they were needed.
    pub moved_bytes: u64,
    /// Bytes of freed blocks that wait for another request of their size before they join their
    /// neighbours: free, and counted neither as releasable nor as inactive split until then.
    pub parked_bytes: usize,
    /// Bytes on free mapped pages, which [`trim`](crate::Placement::trim) would give back.
    pub releasable_bytes: usize,
}

impl Default for Stats {
    fn default() -> Self {
        Self {
            requested: Stat::default(),
            allocated: Stat::default(),
            active: Stat::default(),
            reserved: Stat::default(),
            blocks: Stat::default(),
            segments: Stat::default(),
            inactive_split_blocks: Stat::default(),
            inactive_split: Stat::default(),
            hits: 0,
            misses: 0,
            failures: 0,
            buckets: Box::new([BucketStats::default(); BUCKET_COUNT]),
            map_calls: 0,
            unmap_calls: 0,
            growths: 0,
            moved_bytes: 0,
            parked_bytes: 0,
            releasable_bytes: 0,
        }
    }
}

impl Stats {
    /// Share of live bytes that nobody asked for, now: 1 - requested / allocated.
    #[must_use]
    pub fn internal_fragmentation(&self) -> f64 {
        unused_share(self.requested.current, self.allocated.current)
    }

    /// How scattered the free bytes are, now: 1 - largest free block / free bytes, with
    /// `largest_free_bytes` from [`Placement::largest_free_bytes`](crate::Placement::largest_free_bytes).
    #[must_use]
    pub fn external_fragmentation(&self, largest_free_bytes: usize) -> f64 {
        unused_share(largest_free_bytes, self.free_bytes())
    }

    /// Share of reserved memory that was never needed: 1 - peak requested / peak reserved.
    #[must_use]
    pub fn run_fragmentation(&self) -> f64 {
        unused_share(self.requested.peak, self.reserved.peak)
    }

    /// Mapped bytes that no block holds.
    #[must_use]
    pub fn free_bytes(&self) -> usize {
        self.reserved.current.saturating_sub(self.active.current)
    }

    /// Share of requests served without mapping; 1 when there were none.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        let served = self.hits + self.misses;
        if served == 0 { 1.0 } else { self.hits as f64 / served as f64 }
    }

    /// Forgets the peaks of all figures.
    pub fn reset_peaks(&mut self) {
        for stat in [
            &mut self.requested,
            &mut self.allocated,
            &mut self.active,
            &mut self.reserved,
            &mut self.blocks,
            &mut self.segments,
            &mut self.inactive_split_blocks,
            &mut self.inactive_split,
        ] {
            stat.reset_peak();
        }
    }

    /// Adds the figures of another placement. Peaks are added too: their sum is what the two
    /// together reached at most.
    pub fn add(&mut self, other: &Self) {
        let sum = |stat: &mut Stat, other: &Stat| {
            stat.current += other.current;
            stat.peak += other.peak;
            stat.total_allocated += other.total_allocated;
        };
        sum(&mut self.requested, &other.requested);
        sum(&mut self.allocated, &other.allocated);
        sum(&mut self.active, &other.active);
        sum(&mut self.reserved, &other.reserved);
        sum(&mut self.blocks, &other.blocks);
        sum(&mut self.segments, &other.segments);
        sum(&mut self.inactive_split_blocks, &other.inactive_split_blocks);
        sum(&mut self.inactive_split, &other.inactive_split);
        self.hits += other.hits;
        self.misses += other.misses;
        self.failures += other.failures;
        for (bucket, other) in self.buckets.iter_mut().zip(other.buckets.iter()) {
            bucket.hits += other.hits;
            bucket.misses += other.misses;
        }
        self.map_calls += other.map_calls;
        self.unmap_calls += other.unmap_calls;
        self.growths += other.growths;
        self.moved_bytes += other.moved_bytes;
        self.parked_bytes += other.parked_bytes;
        self.releasable_bytes += other.releasable_bytes;
    }

    /// Counts a block of `allocated` bytes, made for a request of `requested`.
    #[inline]
    pub(crate) fn count_allocation(&mut self, requested: usize, allocated: usize, hit: bool) {
        self.requested.increase(requested);
        self.allocated.increase(allocated);
        self.active.increase(allocated);
        self.blocks.increase(1);
        let bucket = &mut self.buckets[bucket_of(requested)];
        if hit {
            self.hits += 1;
            bucket.hits += 1;
        } else {
            self.misses += 1;
            bucket.misses += 1;
        }
    }

    /// Counts a request as one that had to map pages, after it was counted as a hit.
    pub(crate) fn recount_as_miss(&mut self, requested: usize) {
        self.hits -= 1;
        self.misses += 1;
        let bucket = &mut self.buckets[bucket_of(requested)];
        bucket.hits -= 1;
        bucket.misses += 1;
    }

    /// Makes the figures of requests those of `before`: blocks that came since have ended, and nobody had
    /// asked for them. What is mapped stays as it is.
    pub(crate) fn put_requests_back(&mut self, before: Self) {
        let Self { requested, allocated, active, blocks, hits, misses, failures, buckets, .. } = before;
        debug_assert_eq!(self.blocks.current, blocks.current, "such blocks have ended");
        (self.requested, self.allocated, self.active, self.blocks) = (requested, allocated, active, blocks);
        (self.hits, self.misses, self.failures, self.buckets) = (hits, misses, failures, buckets);
        for (stat, before) in [
            (&mut self.inactive_split, before.inactive_split),
            (&mut self.inactive_split_blocks, before.inactive_split_blocks),
        ] {
            stat.peak = before.peak.max(stat.current);
        }
    }

    /// Counts the end of a block.
    #[inline]
    pub(crate) fn count_free(&mut self, requested: usize, allocated: usize) {
        self.requested.decrease(requested);
        self.allocated.decrease(allocated);
        self.active.decrease(allocated);
        self.blocks.decrease(1);
    }

    /// Counts a block that changed its size in place.
    pub(crate) fn count_resize(&mut self, requested: (usize, usize), allocated: (usize, usize)) {
        let change = |stat: &mut Stat, (old, new): (usize, usize)| {
            if new > old { stat.increase(new - old) } else { stat.decrease(old - new) }
        };
        change(&mut self.requested, requested);
        change(&mut self.allocated, allocated);
        change(&mut self.active, allocated);
    }
}

/// 1 - used / whole, and 0 when there is no whole.
fn unused_share(used: usize, whole: usize) -> f64 {
    if whole == 0 { 0.0 } else { 1.0 - used as f64 / whole as f64 }
}

impl Sub for BucketStats {
    type Output = Self;

    /// What was counted since `earlier`.
    fn sub(self, earlier: Self) -> Self {
        Self { hits: self.hits - earlier.hits, misses: self.misses - earlier.misses }
    }
}

/// Size buckets as a sequence, which serde derives for short arrays only.
mod buckets {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::{BUCKET_COUNT, BucketStats};

    type Buckets = Box<[BucketStats; BUCKET_COUNT]>;

    pub(super) fn serialize<S: Serializer>(buckets: &Buckets, serializer: S) -> Result<S::Ok, S::Error> {
        buckets.as_slice().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Buckets, D::Error> {
        let buckets = Vec::<BucketStats>::deserialize(deserializer)?;
        let count = buckets.len();
        let wrong = || D::Error::custom(format!("{count} size buckets, where there are {BUCKET_COUNT}"));
        buckets.into_boxed_slice().try_into().map_err(|_| wrong())
    }
}
