//! The invariants of blocks that are never cut, walked.

use super::Whole;
use crate::invariant::Violation;
use crate::range::AddressRange;
use crate::stats::{ClassCounts, SizeClass};

impl Whole {
    pub(super) fn check_all(&self) -> Result<(), Violation> {
        let stats = &self.stats;
        let (mut reserved, mut releasable, mut split_blocks, mut listed) = (0, 0, 0, 0);
        let (mut small, mut small_segments) = (ClassCounts::default(), 0);
        for (index, chunk) in self.chunks.iter().enumerate() {
            let Some(chunk) = chunk else { continue };
            let mut end = chunk.place.range.start;
            let (mut live, mut live_bytes) = (0, 0);
            let is_small = chunk.class == SizeClass::Small;
            small_segments += usize::from(chunk.place.own_class() == Some(SizeClass::Small));
            for addr in &chunk.blocks {
                let block = self.blocks.get(addr);
                let rule = || format!("block {addr:#x} of chunk {} is unknown", chunk.place.range);
                let block = block.ok_or_else(|| Violation::new(rule()))?;
                let range = AddressRange::new(*addr, block.len);
                let in_place =
                    range.start >= end && chunk.place.range.covers(range) && block.chunk as usize == index;
                Violation::unless(in_place, || format!("{range} is out of place in {}", chunk.place.range))?;
                end = range.end();
                let Some(requested) = block.requested else { continue };
                live += 1;
                live_bytes += block.len;
                if is_small {
                    small.add_live(requested, block.len);
                }
            }
            listed += chunk.blocks.len();
            Violation::unless(live == chunk.live, || format!("{live} live, counted {}", chunk.live))?;
            let whole = chunk.is_whole() || chunk.blocks.is_empty();
            Violation::unless(whole, || {
                format!("blocks in {}, which is not mapped whole", chunk.place.range)
            })?;
            reserved += chunk.mapped.len;
            releasable += if live == 0 { chunk.mapped.len } else { 0 };
            split_blocks += if live == 0 { 0 } else { chunk.blocks.len() - live };
            if is_small {
                small.reserved += chunk.mapped.len;
                small.inactive_split_blocks += if live == 0 { 0 } else { chunk.blocks.len() - live };
                small.inactive_split += if live == 0 { 0 } else { chunk.mapped.len - live_bytes };
            }
        }
        let ranges = self.addresses.check(self.chunks.iter().flatten().map(|chunk| chunk.place))?;
        let free: usize = self.free.values().map(Vec::len).sum();
        for (&len, addrs) in &self.free {
            for addr in addrs {
                let right = self.blocks.get(addr).is_some_and(|b| b.len == len && b.requested.is_none());
                Violation::unless(right, || format!("{addr:#x} is listed as free with {len} bytes"))?;
            }
        }
        let live = || self.blocks.values().filter_map(|block| Some((block.requested?, block.len)));
        let unlisted =
            if self.options.reuse == super::Reuse::Never { stats.blocks.current + free } else { listed };
        let allocated: usize = live().map(|(_, len)| len).sum();
        for (what, found, expected) in [
            ("blocks of chunks", listed, self.blocks.len()),
            ("blocks", stats.blocks.current, live().count()),
            ("live and free", stats.blocks.current + free, unlisted),
            ("requested", stats.requested.current, live().map(|(requested, _)| requested).sum()),
            ("allocated", stats.allocated.current, allocated),
            ("reserved", stats.reserved.current, reserved),
            ("releasable", stats.releasable_bytes, releasable),
            ("inactive split", stats.inactive_split.current, reserved - allocated - releasable),
            ("inactive split blocks", stats.inactive_split_blocks.current, split_blocks),
            ("segments", stats.segments.current, ranges),
            ("small segments", stats.small.segments.current, small_segments),
        ] {
            Violation::unless(found == expected, || format!("{what}: {found}, expected {expected}"))?;
        }
        stats.check_classes(small)
    }
}
