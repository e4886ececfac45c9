//! The invariants of policy `pages`, walked.

use super::{LARGE, LONG, Pages, SLACK_BITS, SMALL, Segment};
use crate::block::{BlockId, BlockState};
use crate::invariant::Violation;
use crate::page_map::PageMap;
use crate::range::AddressRange;
use crate::stats::ClassCounts;

/// What a walk over all blocks adds up to.
#[derive(Default)]
struct Sums {
    live: usize,
    requested: usize,
    allocated: usize,
    reserved: usize,
    split_bytes: usize,
    split_blocks: usize,
    releasable: usize,
    parked: usize,
    parked_blocks: usize,
    small: ClassCounts,
    resident: [usize; 3],
    sparse: [usize; 3],
}

impl Pages {
    pub(super) fn check_all(&self) -> Result<(), Violation> {
        let mut sums = Sums::default();
        for (slot, segment) in self.segments.iter().enumerate() {
            if let Some(segment) = segment {
                self.check_segment(slot, segment, &mut sums)?;
            }
        }
        for zone in [SMALL, LARGE, LONG] {
            for (name, index, expected) in [
                ("resident", &self.zones[zone].resident, sums.resident[zone]),
                ("sparse", &self.zones[zone].sparse, sums.sparse[zone]),
            ] {
                index.check().map_err(Violation::new)?;
                equal(name, index.len(), expected)?;
            }
        }
        let stats = &self.stats;
        let segments = self.segments.iter().flatten().count();
        equal("blocks by address", self.blocks.published_count(), sums.live + sums.parked_blocks)?;
        equal("parked blocks", self.parked.iter(&self.blocks).count(), sums.parked_blocks)?;
        equal("parked bytes", stats.parked_bytes, sums.parked)?;
        equal("blocks", stats.blocks.current, sums.live)?;
        equal("requested", stats.requested.current, sums.requested)?;
        equal("allocated", stats.allocated.current, sums.allocated)?;
        equal("reserved", stats.reserved.current, sums.reserved)?;
        equal("segments", stats.segments.current, segments)?;
        equal("inactive split bytes", stats.inactive_split.current, sums.split_bytes)?;
        equal("inactive split blocks", stats.inactive_split_blocks.current, sums.split_blocks)?;
        equal("releasable", stats.releasable_bytes, sums.releasable)?;
        let small = self.segments.iter().flatten().filter(|segment| segment.zone == SMALL).count();
        equal("small segments", stats.small.segments.current, small)?;
        stats.check_classes(sums.small)?;
        equal(
            "reserved as allocated + parked + inactive split + releasable",
            stats.reserved.current,
            sums.allocated + sums.parked + sums.split_bytes + sums.releasable,
        )
    }

    /// What holds for live and parked blocks alike.
    fn check_held(&self, id: BlockId, pages: &PageMap) -> Result<(), Violation> {
        let block = self.blocks.get(id);
        let extent = block.range();
        Violation::unless(self.blocks.find(block.start) == Some(id), || {
            format!("block {extent} is not found by its address")
        })?;
        Violation::unless(pages.is_mapped(extent), || format!("block {extent} has an unmapped page"))?;
        Violation::unless(!block.dirty || pages.first_clean_run(extent).is_none(), || {
            format!("dirty block {extent} has a clean page")
        })
    }

    /// Walks the blocks of one segment, which must cover it without gap, overlap or two free
    /// neighbours.
    fn check_segment(&self, slot: usize, segment: &Segment, sums: &mut Sums) -> Result<(), Violation> {
        let (range, pages) = (segment.pages.range(), &segment.pages);
        let reserved = pages.mapped_page_count(range) * self.page_bytes;
        sums.reserved += reserved;
        let is_small = segment.zone == SMALL;
        sums.small.reserved += if is_small { reserved } else { 0 };
        let (mut at, mut before, mut id) = (range.start, None, segment.first_block);
        let mut previous = BlockId::NONE;
        while !id.is_none() {
            let block = self.blocks.get(id);
            let extent = AddressRange::new(block.start, block.len);
            equal("start of a block behind its neighbour", block.start, at)?;
            equal("a block's segment", block.segment as usize, slot)?;
            Violation::unless(block.prev == previous, || format!("{extent} links to a wrong neighbour"))?;
            Violation::unless(block.len > 0 && block.len.is_multiple_of(self.options.granule_bytes), || {
                format!("{extent} is not whole granules")
            })?;
            match block.state {
                BlockState::Live => {
                    sums.live += 1;
                    let requested = block.len - (block.extra & ((1 << SLACK_BITS) - 1)) as usize;
                    sums.requested += requested;
                    sums.allocated += block.len;
                    if is_small {
                        sums.small.add_live(requested, block.len);
                    }
                    self.check_held(id, pages)?;
                }
                BlockState::Parked => {
                    sums.parked += block.len;
                    sums.parked_blocks += 1;
                    self.check_held(id, pages)?;
                    Violation::unless(block.dirty, || format!("parked block {extent} counts as clean"))?;
                    Violation::unless(self.parked.iter(&self.blocks).any(|parked| parked == id), || {
                        format!("parked block {extent} is in no list")
                    })?;
                }
                BlockState::Free => {
                    Violation::unless(before != Some(BlockState::Free), || {
                        format!("free block {extent} was not joined with the one before")
                    })?;
                    let inner = extent.inner_pages(self.page_bytes);
                    let mapped = pages.mapped_page_count(inner);
                    equal("mapped pages of a free block", block.extra as usize, mapped)?;
                    let whole = if self.handles { pages.whole_handles(inner) } else { inner };
                    let edges = extent.len - whole.len;
                    sums.split_bytes += edges;
                    sums.split_blocks += usize::from(edges > 0);
                    if is_small {
                        sums.small.add_split(edges);
                    }
                    let releasable = pages.mapped_page_count(whole);
                    sums.releasable += releasable * self.page_bytes;
                    let noted = !self.handles || self.has_whole_handles(id) == (releasable > 0);
                    Violation::unless(noted, || {
                        format!("whether free block {extent} has whole handles is noted wrongly")
                    })?;
                    let resident = mapped * self.page_bytes == inner.len;
                    Violation::unless(!resident || pages.is_mapped(extent), || {
                        format!("resident block {extent} has an unmapped page")
                    })?;
                    let zone = &self.zones[segment.zone];
                    let (index, count) = if resident {
                        (&zone.resident, &mut sums.resident)
                    } else {
                        (&zone.sparse, &mut sums.sparse)
                    };
                    count[segment.zone] += 1;
                    Violation::unless(index.contains(block.len, block.start, id), || {
                        format!("free block {extent} is not in its index")
                    })?;
                }
                BlockState::Unmapped | BlockState::Vacant => {
                    return Err(Violation::new(format!("{extent} is in no state of this policy")));
                }
            }
            (at, before, previous, id) = (extent.end(), Some(block.state), id, block.next);
        }
        equal("end of the last block of a segment", at, range.end())
    }
}

fn equal(what: &str, found: usize, expected: usize) -> Result<(), Violation> {
    Violation::unless(found == expected, || format!("{what}: {found}, expected {expected}"))
}
