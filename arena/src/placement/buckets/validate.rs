//! The invariants of policy `buckets`, walked.

use std::collections::HashSet;

use super::{Buckets, Class};
use crate::block::{BlockId, BlockState};
use crate::invariant::Violation;
use crate::stats::{ClassCounts, SizeClass};

impl Buckets {
    pub(super) fn check_all(&self) -> Result<(), Violation> {
        let stats = &self.stats;
        let (mut live, mut requested, mut allocated, mut reserved) = (0, 0, 0, 0);
        let (mut releasable, mut split, mut split_blocks) = (0, 0, 0);
        let mut small = ClassCounts::default();
        let mut free = [0; 3];
        let mut idle = HashSet::new();
        for (slot, segment) in (0..).zip(&self.segments) {
            let Some(segment) = segment else { continue };
            let range = segment.mapped;
            reserved += range.len;
            let is_small = segment.class == Class::Small;
            small.reserved += if is_small { range.len } else { 0 };
            let whole = range == segment.place.range;
            let mut id = segment.first_block;
            Violation::unless(id.is_none() != whole, || format!("blocks or none in {range}"))?;
            if id.is_none() {
                releasable += range.len;
                idle.insert(slot);
                continue;
            }
            let (mut at, mut previous, mut before) = (range.start, BlockId::NONE, None);
            while !id.is_none() {
                let block = self.blocks.get(id);
                let range = block.range();
                let in_place = block.start == at && block.prev == previous && block.segment == slot;
                Violation::unless(in_place, || format!("{range} does not follow {at:#x}"))?;
                match block.state {
                    BlockState::Live => {
                        live += 1;
                        allocated += block.len;
                        requested += block.len - block.extra as usize;
                        if is_small {
                            small.add_live(block.len - block.extra as usize, block.len);
                        }
                        let found = self.blocks.find(block.start) == Some(id);
                        Violation::unless(found, || format!("{range} is not found by its address"))?;
                    }
                    BlockState::Free => {
                        free[segment.class as usize] += 1;
                        let index = &self.free[segment.class as usize];
                        let indexed = index.contains(block.len, block.start, id);
                        Violation::unless(indexed, || format!("free {range} is not in its index"))?;
                        if self.is_whole(id) {
                            releasable += block.len;
                            idle.insert(slot);
                        } else {
                            split += block.len;
                            split_blocks += 1;
                            if is_small {
                                small.add_split(block.len);
                            }
                        }
                        let joined = before != Some(BlockState::Free);
                        Violation::unless(joined, || format!("{range} is not joined with the one before"))?;
                    }
                    BlockState::Parked | BlockState::Unmapped | BlockState::Vacant => {
                        return Err(Violation::new(format!("{range} is in no state of this policy")));
                    }
                }
                let cut = block.len < segment.mapped.len;
                Violation::unless(!cut || segment.class != Class::Large, || {
                    format!("large {} was cut at {range}", segment.mapped)
                })?;
                (at, before, previous, id) = (block.end(), Some(block.state), id, block.next);
            }
            Violation::unless(at == range.end(), || format!("blocks of {range} end at {at:#x}"))?;
        }
        for class in Class::ALL {
            let index = &self.free[class as usize];
            index.check().map_err(Violation::new)?;
            let (found, expected) = (index.len(), free[class as usize]);
            Violation::unless(found == expected, || format!("{class:?} free: {found}, expected {expected}"))?;
        }
        let listed: HashSet<u16> = self.idle.iter().collect();
        Violation::unless(listed == idle, || format!("segments {listed:?} are free, expected {idle:?}"))?;
        let ranges = self.addresses.check(self.segments.iter().flatten().map(|segment| segment.place))?;
        let own = self.segments.iter().flatten().filter_map(|segment| segment.place.own_class());
        for (what, found, expected) in [
            ("small segments", stats.small.segments.current, own.filter(|c| *c == SizeClass::Small).count()),
            ("blocks", stats.blocks.current, live),
            ("blocks by address", self.blocks.published_count(), live),
            ("requested", stats.requested.current, requested),
            ("allocated", stats.allocated.current, allocated),
            ("reserved", stats.reserved.current, reserved),
            ("releasable", stats.releasable_bytes, releasable),
            ("inactive split", stats.inactive_split.current, split),
            ("inactive split blocks", stats.inactive_split_blocks.current, split_blocks),
            ("segments", stats.segments.current, ranges),
        ] {
            Violation::unless(found == expected, || format!("{what}: {found}, expected {expected}"))?;
        }
        stats.check_classes(small)
    }
}
