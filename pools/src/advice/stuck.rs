//! Large segments that small blocks keep from being used whole, and from going back.

use mempool_arena::trace::Event;
use mempool_arena::{Conf, LiveBlock, Policy, ReplayDevice};
use serde::{Deserialize, Serialize};

use super::AdviceError;

/// A segment is stuck when its live blocks take no more than this share of it: then most of it is lost to requests of
/// its size.
const USED_SHARE: f64 = 0.5;
/// Segments below this are small ones, which large requests do not miss: PyTorch's segments for large requests begin
/// here.
const LARGE_BYTES: usize = 20 << 20;

/// Segments that are stuck.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stuck {
    /// How many.
    pub segments: u64,
    /// What is free in them, in bytes.
    pub free_bytes: usize,
    /// What was reserved then, in bytes.
    pub reserved_bytes: usize,
    /// The largest of them, in bytes.
    pub largest_segment_bytes: usize,
    /// The largest block that keeps one, in bytes.
    pub largest_survivor_bytes: usize,
}

impl Stuck {
    /// What is stuck when policy `torch` has most reserved. `None` if nothing is.
    pub(super) fn of(events: &[Event], device: &ReplayDevice) -> Result<Option<Self>, AdviceError> {
        let conf = Conf::of(Policy::Torch);
        let device = ReplayDevice { capacity_bytes: None, ..device.clone() };
        let mut replay = device.replay(&conf)?;
        let (mut peak_bytes, mut peak_at) = (0, 0);
        for (at, &event) in events.iter().enumerate() {
            replay.apply(event)?;
            let now = replay.totals().reserved.peak;
            if now > peak_bytes {
                (peak_bytes, peak_at) = (now, at + 1);
            }
        }
        let mut replay = device.replay(&conf)?;
        events[..peak_at].iter().try_for_each(|&event| replay.apply(event))?;
        let mut found = Self { reserved_bytes: peak_bytes, ..Self::default() };
        for (_, placement) in replay.placements() {
            let mut blocks = placement.live_blocks();
            blocks.sort_unstable_by_key(|block| block.addr);
            for range in placement.mapped_ranges() {
                let first = blocks.partition_point(|block| block.addr < range.start);
                let within = blocks[first..].iter().take_while(|block| block.addr < range.end());
                found.look_at(range.len, within.map(|block: &LiveBlock| block.allocated_bytes));
            }
        }
        Ok((found.segments > 0).then_some(found))
    }

    /// Counts a segment if it is stuck, by the bytes of the blocks in it that are not free.
    pub(super) fn look_at(&mut self, segment_bytes: usize, used: impl Iterator<Item = usize>) {
        let (used_bytes, largest) = used.fold((0, 0), |(sum, most), bytes| (sum + bytes, most.max(bytes)));
        let is_stuck = used_bytes > 0 && used_bytes as f64 <= USED_SHARE * segment_bytes as f64;
        if segment_bytes >= LARGE_BYTES && is_stuck {
            self.segments += 1;
            self.free_bytes += segment_bytes - used_bytes;
            self.largest_segment_bytes = self.largest_segment_bytes.max(segment_bytes);
            self.largest_survivor_bytes = self.largest_survivor_bytes.max(largest);
        }
    }

    /// Share of what was reserved that is free in them.
    #[must_use]
    pub fn share(&self) -> f64 {
        super::repeats::share(self.free_bytes as u64, self.reserved_bytes as u64)
    }

    /// Values of `max_split_size_mb` that keep blocks of the largest stuck segment's size whole: the largest power of
    /// two below it, and two smaller ones, each a quarter. Fewer where PyTorch does not take them.
    pub(super) fn max_split_sizes_mb(&self) -> impl Iterator<Item = usize> {
        /// PyTorch's least.
        const LEAST_MB: usize = 20;
        let below = (self.largest_segment_bytes >> 20).saturating_sub(1);
        let largest = below.checked_ilog2().map_or(0, |log| 1_usize << log);
        [largest, largest / 4, largest / 16].into_iter().filter(|&mb| mb > LEAST_MB)
    }
}
