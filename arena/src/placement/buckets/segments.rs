//! Segments: mapped as one, kept while memory is plenty, and given back as one.

use super::{Buckets, Class};
use crate::address_space::Place;
use crate::block::{Block, BlockId, BlockState};
use crate::error::{MapError, UpstreamError};
use crate::range::AddressRange;
use crate::upstream::Upstream;

/// Pages of one class that are mapped and given back as one.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) class: Class,
    pub(super) place: Place,
    /// All of `place`, unless upstream took back or gave only a part. Such a part serves nobody and waits
    /// to be given back.
    pub(super) mapped: AddressRange,
    /// None where only a part is mapped.
    pub(super) first_block: BlockId,
}

/// Why there is no new segment.
pub(super) struct Refused {
    pub(super) missing_bytes: usize,
    /// What upstream answered; `None` when the limit is too low.
    pub(super) source: Option<UpstreamError>,
}

impl Buckets {
    pub(super) fn segment(&self, slot: u16) -> &Segment {
        self.segments[slot as usize].as_ref().expect("a block's segment exists")
    }

    fn segment_mut(&mut self, slot: u16) -> &mut Segment {
        self.segments[slot as usize].as_mut().expect("a block's segment exists")
    }

    /// A new segment of `len` bytes, whole pages, as one block in no index.
    pub(super) fn add_segment(
        &mut self,
        class: Class,
        len: usize,
        align: usize,
        upstream: &mut dyn Upstream,
    ) -> Result<BlockId, Refused> {
        let limit = self.options.limit_bytes.unwrap_or(usize::MAX);
        let over = self.stats.reserved.current.saturating_add(len).saturating_sub(limit);
        if over > 0 {
            return Err(Refused { missing_bytes: over, source: None });
        }
        let refused = |source| Refused { missing_bytes: len, source: Some(source) };
        let place = self
            .addresses
            .take(len, align, class.counted_as(), upstream, &mut self.stats)
            .map_err(refused)?;
        let Some(slot) = self.vacant_slot() else {
            self.addresses.give(place, upstream, &mut self.stats);
            return Err(refused(UpstreamError::AddressSpace { requested_bytes: len }));
        };
        self.stats.map_calls += 1;
        let result = upstream.map(place.range);
        let mapped_bytes = result.as_ref().map_or_else(|error| error.completed_bytes, |()| len);
        let mapped = AddressRange::new(place.range.start, mapped_bytes);
        let mut segment = Segment { class, place, mapped, first_block: BlockId::NONE };
        self.stats.count_mapped(class.counted_as(), mapped_bytes);
        if let Err(MapError { source, .. }) = result {
            if mapped_bytes == 0 {
                self.vacant_slots.push(slot);
                self.addresses.give(place, upstream, &mut self.stats);
            } else {
                // All or nothing. What upstream does not take back now is the first to go later.
                self.stats.releasable_bytes += mapped_bytes;
                self.segments[slot as usize] = Some(segment);
                self.idle.push_oldest(slot);
                self.give_back(slot, upstream);
            }
            return Err(refused(source));
        }
        segment.first_block = self.blocks.insert(Block {
            start: mapped.start,
            len,
            prev: BlockId::NONE,
            next: BlockId::NONE,
            extra: 0,
            segment: slot,
            state: BlockState::Free,
            dirty: false,
        });
        let id = segment.first_block;
        self.segments[slot as usize] = Some(segment);
        Ok(id)
    }

    /// A slot without a segment; `None` when as many segments as can be counted are mapped.
    fn vacant_slot(&mut self) -> Option<u16> {
        if let Some(slot) = self.vacant_slots.pop() {
            return Some(slot);
        }
        let slot = u16::try_from(self.segments.len()).ok()?;
        self.segments.push(None);
        Some(slot)
    }

    /// Unmaps a segment of which nothing is used, and returns how many bytes upstream took. If it took
    /// nothing the segment serves on.
    pub(super) fn give_back(&mut self, slot: u16, upstream: &mut dyn Upstream) -> usize {
        let Segment { class, mapped, first_block, .. } = *self.segment(slot);
        self.stats.unmap_calls += 1;
        let done = match upstream.unmap(mapped) {
            Ok(()) => mapped.len,
            Err(MapError { completed_bytes, .. }) => completed_bytes,
        };
        if done == 0 {
            return 0;
        }
        if !first_block.is_none() {
            self.free[class as usize].remove(mapped.len, mapped.start);
            self.blocks.remove(first_block);
        }
        self.stats.count_unmapped(class.counted_as(), done);
        self.stats.releasable_bytes -= done;
        let segment = self.segment_mut(slot);
        segment.first_block = BlockId::NONE;
        segment.mapped = AddressRange::between(mapped.start + done, mapped.end());
        if segment.mapped.is_empty() {
            let place = segment.place;
            self.idle.remove(slot);
            self.segments[slot as usize] = None;
            self.vacant_slots.push(slot);
            self.addresses.give(place, upstream, &mut self.stats);
        }
        done
    }

    /// Gives segments back that are free for longest, until `target_bytes` are returned or none is left
    /// with which it were no more than `most_bytes`, and returns how many bytes it were.
    pub(super) fn give_back_oldest(
        &mut self,
        upstream: &mut dyn Upstream,
        target_bytes: usize,
        most_bytes: usize,
    ) -> usize {
        let mut returned = 0;
        let mut next = self.idle.oldest();
        while let Some(slot) = next
            && returned < target_bytes
        {
            next = self.idle.newer_than(slot);
            if self.segment(slot).mapped.len <= most_bytes - returned {
                returned += self.give_back(slot, upstream);
            }
        }
        returned
    }

    /// Whether so many bytes could be mapped if all that is unused were given back.
    pub(super) fn could_map(&self, bytes: usize, upstream: &dyn Upstream) -> bool {
        let possible = self.options.limit_bytes.unwrap_or(usize::MAX).min(upstream.capacity_bytes());
        let used = self.stats.reserved.current - self.stats.releasable_bytes;
        used.saturating_add(bytes) <= possible
    }

    /// Before a segment of `wanted` bytes is mapped for a block of `len`: gives back what is unused, so that
    /// no more is mapped than blocks ever took at once and the slack.
    pub(super) fn keep_to_slack(&mut self, len: usize, wanted: usize, upstream: &mut dyn Upstream) {
        let Some(percent) = self.options.slack_percent else { return };
        self.most_allocated_bytes = self.most_allocated_bytes.max(self.stats.allocated.peak);
        let reserved = self.stats.reserved.current.saturating_add(wanted);
        if !self.could_map(wanted, upstream) {
            return;
        }
        let most = self.most_allocated_bytes.max(self.stats.allocated.current.saturating_add(len));
        let most = most as u128 * (100 + percent as u128) / 100;
        let over = reserved.saturating_sub(usize::try_from(most).unwrap_or(usize::MAX));
        // What is given back is replaced by what is mapped now.
        self.give_back_oldest(upstream, over, reserved.saturating_sub(self.kept_bytes));
    }

    /// After a block of this segment ended: gives back what is kept beyond the option.
    #[inline]
    pub(super) fn keep_to_cap(&mut self, slot: u16, upstream: &mut dyn Upstream) {
        let Some(most) = self.options.max_cached_bytes else { return };
        if self.stats.releasable_bytes <= most {
            return;
        }
        let spare = |this: &Self| this.stats.reserved.current.saturating_sub(this.kept_bytes);
        // One that is too long by itself goes alone, and not behind all the others.
        let len = self.segment(slot).mapped.len;
        if len > most && len <= spare(self) && self.is_whole(self.segment(slot).first_block) {
            self.give_back(slot, upstream);
        }
        let over = self.stats.releasable_bytes.saturating_sub(most);
        self.give_back_oldest(upstream, over, spare(self));
    }
}
