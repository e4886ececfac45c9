//! Figures kept on the way, so that reading them costs no walk.

mod buckets;
mod class;
mod counting;
mod stat;

use serde::{Deserialize, Serialize};

use crate::invariant::Violation;

pub use buckets::{BUCKET_COUNT, BucketStats, bucket_of};
pub(crate) use class::ClassCounts;
pub use class::{ClassStats, SizeClass};
pub use stat::Stat;

/// The figures of one placement. Sizes are bytes.
///
/// `requested <= allocated <= reserved` holds for the current values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// What callers asked for.
    pub requested: Stat,
    /// Bytes of live blocks, rounding included.
    pub allocated: Stat,
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
    /// The part of the figures above that is of small segments.
    pub small: ClassStats,
    /// The part that is of large segments.
    pub large: ClassStats,
    /// Live blocks that are not cut from larger ones because of their size: those from `max_split_bytes` on.
    pub oversize_blocks: Stat,
    /// Segments from `max_split_bytes` on.
    pub oversize_segments: Stat,
    /// Free blocks from this size on are not cut; `None` where any block is, or none.
    pub max_split_bytes: Option<usize>,
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
            reserved: Stat::default(),
            blocks: Stat::default(),
            segments: Stat::default(),
            inactive_split_blocks: Stat::default(),
            inactive_split: Stat::default(),
            small: ClassStats::default(),
            large: ClassStats::default(),
            oversize_blocks: Stat::default(),
            oversize_segments: Stat::default(),
            max_split_bytes: None,
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

    /// Share of reserved bytes that are free on pages which also hold a live block, now: inactive split /
    /// reserved. Of all free memory only these can neither go back nor go where they are needed.
    #[must_use]
    pub fn split_share(&self) -> f64 {
        let reserved = self.reserved.current;
        if reserved == 0 { 0.0 } else { self.inactive_split.current as f64 / reserved as f64 }
    }

    /// Mapped bytes that no block holds.
    #[must_use]
    pub fn free_bytes(&self) -> usize {
        self.reserved.current.saturating_sub(self.allocated.current)
    }

    /// Share of requests served without mapping; 1 when there were none.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        let served = self.hits + self.misses;
        if served == 0 { 1.0 } else { self.hits as f64 / served as f64 }
    }

    /// Share of the requests of each size that were served without mapping, for those sizes that were asked
    /// for: the least size of a [bucket](bucket_of), which is half of the next one's, and the share.
    pub fn hit_rates(&self) -> impl Iterator<Item = (usize, f64)> + '_ {
        let asked_for = self.buckets.iter().enumerate().filter(|(_, bucket)| bucket.requests() > 0);
        asked_for.map(|(at, bucket)| (1 << at, bucket.hits as f64 / bucket.requests() as f64))
    }

    /// The part of the figures that is of segments of this class.
    #[must_use]
    pub fn of_class(&self, class: SizeClass) -> &ClassStats {
        match class {
            SizeClass::Small => &self.small,
            SizeClass::Large => &self.large,
        }
    }

    /// Forgets the peaks of all figures.
    pub fn reset_peaks(&mut self) {
        self.for_each_figure(Stat::reset_peak);
    }

    /// Makes each peak at least that of `other`.
    pub fn raise_peaks(&mut self, other: &Self) {
        for (stat, other) in self.figures_mut().into_iter().zip(other.clone().figures_mut()) {
            stat.peak = stat.peak.max(other.peak);
        }
    }

    /// Forgets what came and went: totals and counters begin at 0, what is there now and peaks stay.
    pub fn reset_accumulated(&mut self) {
        self.for_each_figure(Stat::reset_totals);
        (self.hits, self.misses, self.failures) = (0, 0, 0);
        (self.map_calls, self.unmap_calls, self.growths, self.moved_bytes) = (0, 0, 0, 0);
        self.buckets.fill(BucketStats::default());
    }

    /// Adds the figures of another placement. Peaks are added too: their sum is what the two
    /// together reached at most.
    pub fn add(&mut self, other: &Self) {
        for (stat, other) in self.figures_mut().into_iter().zip(other.clone().figures_mut()) {
            stat.add(other);
        }
        self.max_split_bytes = match (self.max_split_bytes, other.max_split_bytes) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
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

    /// Whether classes add up to all, and `small` is what a walk found in small segments.
    pub(crate) fn check_classes(&self, small: ClassCounts) -> Result<(), Violation> {
        self.small.check(small)?;
        let (mut all, mut small, mut large) = (self.clone(), self.small, self.large);
        let parts = small.figures_mut().into_iter().zip(large.figures_mut());
        for (at, (all, (small, large))) in all.figures_mut().into_iter().zip(parts).enumerate() {
            let mut sum = *small;
            sum.add(large);
            let adds_up = (sum.current, sum.total_allocated, sum.total_freed())
                == (all.current, all.total_allocated, all.total_freed());
            let peaks = all.peak <= sum.peak && small.peak.max(large.peak) <= all.peak;
            Violation::unless(adds_up && peaks, || {
                format!("figure {at}: small {small:?} and large {large:?} are not {all:?}")
            })?;
        }
        Ok(())
    }

    fn for_each_figure(&mut self, change: impl Fn(&mut Stat)) {
        self.figures_mut().into_iter().for_each(change);
    }

    /// All figures that have a peak, first those that classes have, in their order.
    fn figures_mut(&mut self) -> Vec<&mut Stat> {
        let mut figures = vec![
            &mut self.requested,
            &mut self.allocated,
            &mut self.blocks,
            &mut self.reserved,
            &mut self.segments,
            &mut self.inactive_split_blocks,
            &mut self.inactive_split,
            &mut self.oversize_blocks,
            &mut self.oversize_segments,
        ];
        figures.extend(self.small.figures_mut());
        figures.extend(self.large.figures_mut());
        figures
    }
}

/// 1 - used / whole, and 0 when there is no whole.
pub(crate) fn unused_share(used: usize, whole: usize) -> f64 {
    if whole == 0 { 0.0 } else { 1.0 - used as f64 / whole as f64 }
}
