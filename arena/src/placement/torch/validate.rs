//! The invariants of policy `torch`, walked.

use super::{LARGE, SMALL, Torch};
use crate::block::{BlockId, BlockState};
use crate::invariant::Violation;
use crate::stats::ClassCounts;

impl Torch {
    pub(super) fn check_all(&self) -> Result<(), Violation> {
        let stats = &self.stats;
        let (mut live, mut requested, mut allocated, mut reserved) = (0, 0, 0, 0);
        let (mut releasable, mut split) = (0, 0);
        let max_split = self.options.max_split_bytes.unwrap_or(usize::MAX);
        let (mut small, mut small_segments, mut oversize) = (ClassCounts::default(), 0, (0, 0));
        let (mut free, mut unmapped) = ([0, 0], [0, 0]);
        for (slot, segment) in self.segments.iter().enumerate() {
            let Some(segment) = segment else { continue };
            let is_small = segment.pool == SMALL;
            small_segments += usize::from(is_small);
            oversize.1 += usize::from(segment.page_bytes.is_none() && segment.range.len >= max_split);
            let (mut at, mut previous, mut id) = (segment.range.start, BlockId::NONE, segment.first_block);
            let mut before = None;
            while !id.is_none() {
                let block = self.blocks.get(id);
                let range = block.range();
                Violation::unless(block.start == at && block.prev == previous, || {
                    format!("{range} does not follow {at:#x}")
                })?;
                Violation::unless(block.segment as usize == slot, || {
                    format!("{range} names another segment")
                })?;
                match block.state {
                    BlockState::Live => {
                        live += 1;
                        allocated += block.len;
                        requested += block.len - block.extra as usize;
                        oversize.0 += usize::from(block.len >= max_split);
                        if is_small {
                            small.add_live(block.len - block.extra as usize, block.len);
                        }
                        let found = self.blocks.find(block.start) == Some(id);
                        Violation::unless(found, || format!("{range} is not found by its address"))?;
                    }
                    BlockState::Free => {
                        free[segment.pool] += 1;
                        let (whole, rest) = self.free_parts(id);
                        releasable += whole;
                        split += rest;
                        if is_small {
                            small.add_split(rest);
                        }
                        let indexed = self.free[segment.pool].contains(block.len, block.start, id);
                        Violation::unless(indexed, || format!("free {range} is in no index"))?;
                    }
                    BlockState::Unmapped => {
                        let noted = self.unmapped[segment.pool].contains(&(block.start, id.number()));
                        unmapped[segment.pool] += usize::from(noted);
                        Violation::unless(noted || segment.page_bytes.is_none(), || {
                            format!("unmapped {range} is not noted")
                        })?;
                    }
                    BlockState::Parked | BlockState::Vacant => {
                        return Err(Violation::new(format!("{range} is in no state of this policy")));
                    }
                }
                Violation::unless(before != Some(block.state) || block.state == BlockState::Live, || {
                    format!("{range} was not joined with the block before")
                })?;
                if block.state != BlockState::Unmapped {
                    reserved += block.len;
                    small.reserved += if is_small { block.len } else { 0 };
                }
                (at, before, previous, id) = (block.end(), Some(block.state), id, block.next);
            }
            Violation::unless(at == segment.range.end(), || {
                format!("blocks of {} end at {at:#x}", segment.range)
            })?;
        }
        for pool in [SMALL, LARGE] {
            self.free[pool].check().map_err(Violation::new)?;
            for (what, found, expected) in [
                ("free blocks", self.free[pool].len(), free[pool]),
                ("unmapped parts", self.unmapped[pool].len(), unmapped[pool]),
            ] {
                Violation::unless(found == expected, || format!("{what}: {found}, expected {expected}"))?;
            }
        }
        for (what, found, expected) in [
            ("blocks", stats.blocks.current, live),
            ("blocks by address", self.blocks.published_count(), live),
            ("requested", stats.requested.current, requested),
            ("allocated", stats.allocated.current, allocated),
            ("reserved", stats.reserved.current, reserved),
            ("releasable", stats.releasable_bytes, releasable),
            ("inactive split", stats.inactive_split.current, split),
            ("segments", stats.segments.current, self.segments.iter().flatten().count()),
            ("small segments", stats.small.segments.current, small_segments),
            ("oversize blocks", stats.oversize_blocks.current, oversize.0),
            ("oversize segments", stats.oversize_segments.current, oversize.1),
        ] {
            Violation::unless(found == expected, || format!("{what}: {found}, expected {expected}"))?;
        }
        stats.check_classes(small)
    }
}
