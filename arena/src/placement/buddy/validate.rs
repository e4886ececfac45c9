//! The invariants of policy `buddy`, walked.

use super::Buddy;
use crate::invariant::Violation;
use crate::range::AddressRange;
use crate::stats::ClassCounts;

impl Buddy {
    pub(super) fn check_all(&self) -> Result<(), Violation> {
        let stats = &self.stats;
        let mut blocks: Vec<AddressRange> = self.tree.free_blocks().collect();
        blocks.extend(self.live.iter().map(|(&start, live)| AddressRange::new(start, 1 << live.order)));
        blocks.sort();
        for region in self.tree.regions() {
            let inside = blocks.iter().filter(|block| region.contains(block.start));
            let mut end = region.start;
            for block in inside {
                Violation::unless(block.start == end, || format!("{block} does not follow {end:#x}"))?;
                end = block.end();
            }
            Violation::unless(end == region.end(), || format!("blocks of {region} end at {end:#x}"))?;
        }
        let (mut reserved, mut releasable) = (0, 0);
        for region in self.regions.values() {
            reserved += region.pages.mapped_page_count(region.pages.range()) * self.page_bytes;
            for (page, &users) in region.users.iter().enumerate() {
                let range =
                    AddressRange::new(region.pages.range().start + page * self.page_bytes, self.page_bytes);
                let mapped = region.pages.is_mapped(range);
                Violation::unless(users == 0 || mapped, || format!("live page {range} is unmapped"))?;
                releasable += if users == 0 && mapped { self.page_bytes } else { 0 };
            }
        }
        let users: usize = self.regions.values().flat_map(|region| &region.users).map(|&n| n as usize).sum();
        let pages_of_live: usize = self
            .live
            .iter()
            .map(|(&start, live)| AddressRange::new(start, 1 << live.order).outer_pages(self.page_bytes))
            .map(|range| range.len / self.page_bytes)
            .sum();
        let short_free_blocks = self.tree.free_blocks().filter(|block| block.len < self.page_bytes).count();
        let requested: usize = self.live.values().map(|live| live.requested).sum();
        let allocated: usize = self.live.values().map(|live| 1_usize << live.order).sum();
        for (what, found, expected) in [
            ("users of pages", users, pages_of_live),
            ("blocks", stats.blocks.current, self.live.len()),
            ("requested", stats.requested.current, requested),
            ("allocated", stats.allocated.current, allocated),
            ("reserved", stats.reserved.current, reserved),
            ("releasable", stats.releasable_bytes, releasable),
            ("inactive split", stats.inactive_split.current, reserved - allocated - releasable),
            ("inactive split blocks", stats.inactive_split_blocks.current, short_free_blocks),
            ("segments", stats.segments.current, self.regions.len()),
            ("small segments", stats.small.segments.current, 0),
        ] {
            Violation::unless(found == expected, || format!("{what}: {found}, expected {expected}"))?;
        }
        stats.check_classes(ClassCounts::default())
    }
}
