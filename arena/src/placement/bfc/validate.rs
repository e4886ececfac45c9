//! The invariants of policy `bfc`, walked.

use super::{Bfc, Region, is_whole_region};
use crate::block::{BlockId, BlockState};
use crate::invariant::Violation;
use crate::stats::ClassCounts;

/// What the walk has counted so far.
#[derive(Default)]
struct Counted {
    live: usize,
    requested: usize,
    allocated: usize,
    reserved: usize,
    free: usize,
    releasable: usize,
    split: usize,
    split_blocks: usize,
    regions: usize,
    empty_regions: usize,
}

impl Bfc {
    pub(super) fn check_all(&self) -> Result<(), Violation> {
        let mut counted = Counted::default();
        for (slot, region) in self.regions.iter().enumerate() {
            match region {
                Some(region) => self.check_region(slot, region, &mut counted)?,
                None => {
                    let noted = self.unused_regions.contains(&(slot as u16));
                    Violation::unless(noted, || format!("unused region {slot} is not noted"))?;
                }
            }
        }
        self.free.check().map_err(Violation::new)?;
        let stats = &self.stats;
        for (what, found, expected) in [
            ("blocks", stats.blocks.current, counted.live),
            ("blocks by address", self.blocks.published_count(), counted.live),
            ("free blocks", self.free.len(), counted.free),
            ("requested", stats.requested.current, counted.requested),
            ("allocated", stats.allocated.current, counted.allocated),
            ("reserved", stats.reserved.current, counted.reserved),
            ("releasable", stats.releasable_bytes, counted.releasable),
            ("inactive split", stats.inactive_split.current, counted.split),
            ("inactive split blocks", stats.inactive_split_blocks.current, counted.split_blocks),
            ("segments", stats.segments.current, counted.regions),
            ("small segments", stats.small.segments.current, 0),
            ("empty regions", self.empty_regions.len(), counted.empty_regions),
        ] {
            Violation::unless(found == expected, || format!("{what}: {found}, expected {expected}"))?;
        }
        stats.check_classes(ClassCounts::default())
    }

    fn check_region(&self, slot: usize, region: &Region, counted: &mut Counted) -> Result<(), Violation> {
        let Region { reserved, mapped, first_block, clean_from } = *region;
        Violation::unless(reserved.covers(mapped), || format!("{mapped} is mapped outside {reserved}"))?;
        Violation::unless(mapped.is_empty() == first_block.is_none(), || {
            format!("{mapped} of {reserved} is mapped, but its blocks say otherwise")
        })?;
        let listed = self.empty_regions.iter().filter(|&&other| other as usize == slot).count();
        Violation::unless(listed == usize::from(mapped.is_empty()), || {
            format!("{reserved} is {listed} times in the list of empty regions")
        })?;
        counted.regions += 1;
        counted.empty_regions += listed;
        counted.reserved += mapped.len;
        let (mut at, mut previous, mut id) = (mapped.start, BlockId::NONE, first_block);
        let mut after_free = false;
        while !id.is_none() {
            let block = self.blocks.get(id);
            let range = block.range();
            Violation::unless(block.start == at && block.prev == previous, || {
                format!("{range} does not follow {at:#x}")
            })?;
            Violation::unless(block.segment as usize == slot, || format!("{range} names another region"))?;
            Violation::unless(block.len.is_multiple_of(self.options.granule_bytes) && block.len > 0, || {
                format!("{range} is not whole granules")
            })?;
            match block.state {
                BlockState::Live => {
                    counted.live += 1;
                    counted.allocated += block.len;
                    counted.requested += block.len - block.extra as usize;
                    let found = self.blocks.find(block.start) == Some(id);
                    Violation::unless(found, || format!("{range} is not found by its address"))?;
                }
                BlockState::Free => {
                    counted.free += 1;
                    if is_whole_region(block) {
                        counted.releasable += block.len;
                    } else {
                        counted.split += block.len;
                        counted.split_blocks += 1;
                    }
                    let indexed = self.free.contains(block.len, block.start, id);
                    Violation::unless(indexed, || format!("free {range} is not in the index"))?;
                    Violation::unless(!after_free, || {
                        format!("{range} was not joined with the block before")
                    })?;
                }
                BlockState::Parked | BlockState::Unmapped | BlockState::Vacant => {
                    return Err(Violation::new(format!("{range} is in no state of this policy")));
                }
            }
            after_free = block.state == BlockState::Free;
            (at, previous, id) = (block.end(), id, block.next);
        }
        Violation::unless(at == mapped.end(), || format!("blocks of {mapped} end at {at:#x}"))?;
        Violation::unless(clean_from <= reserved.end(), || {
            format!("what was used of {reserved} ends at {clean_from:#x}")
        })
    }
}
