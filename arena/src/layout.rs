//! What lies where in an arena at one moment.

use crate::placement::{LiveBlock, Placement};
use crate::range::AddressRange;
use crate::stats::SizeClass;

/// A stretch of mapped memory that has one use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaidOut {
    /// Where it is.
    pub range: AddressRange,
    /// What it is used for.
    pub usage: Usage,
}

impl From<LiveBlock> for LaidOut {
    fn from(block: LiveBlock) -> Self {
        Self {
            range: AddressRange::new(block.addr, block.allocated_bytes),
            usage: Usage::Live { requested_bytes: block.requested_bytes },
        }
    }
}

/// What a stretch of mapped memory is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Usage {
    /// A live block that somebody asked for with so many bytes.
    Live {
        /// Bytes requested.
        requested_bytes: usize,
    },
    /// A part that a planned step or a buffer has, and that is nobody's now.
    Kept {
        /// Bytes that are a buffer's, which keeps what it holds.
        buffer_bytes: usize,
    },
    /// Free.
    Free,
}

/// A segment of one class, cut into stretches in order of address; where memory is mapped by pages, all that is mapped without
/// gaps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MappedSegment {
    /// All of it.
    pub range: AddressRange,
    /// What its blocks are counted as.
    pub class: SizeClass,
    /// Its parts, which cover it.
    pub parts: Vec<LaidOut>,
}

/// What lies where in a placement.
#[must_use]
pub fn layout_of(placement: &dyn Placement) -> Vec<MappedSegment> {
    let owned = placement.live_blocks().into_iter().map(|block| (block, false)).collect();
    lay_out(placement.mapped_by_class(), placement.maps_pages(), owned, Vec::new())
}

/// Cuts `mapped` into segments by the blocks in it; ranges that follow each other are one segment if it `grows`. `owned` are the placement's own blocks, each with whether steps or
/// buffers keep it; `inner` is what lies in those.
pub(crate) fn lay_out(
    mut mapped: Vec<(AddressRange, SizeClass)>,
    grows: bool,
    owned: Vec<(LiveBlock, bool)>,
    mut inner: Vec<LaidOut>,
) -> Vec<MappedSegment> {
    mapped.retain(|(range, _)| !range.is_empty());
    mapped.sort_by_key(|(range, _)| *range);
    let mut used: Vec<LaidOut> =
        owned.iter().filter(|(_, is_kept)| !is_kept).map(|(block, _)| LaidOut::from(*block)).collect();
    inner.sort_by_key(|part| part.range);
    for (block, _) in owned.iter().filter(|(_, is_kept)| *is_kept) {
        let whole = AddressRange::new(block.addr, block.allocated_bytes);
        let first = inner.partition_point(|part| part.range.start < whole.start);
        let within = inner[first..].iter().take_while(|part| part.range.start < whole.end());
        let within: Vec<LaidOut> = within.copied().collect();
        let taken: Vec<AddressRange> = within.iter().map(|part| part.range).collect();
        used.extend(within);
        used.extend(
            whole.without(&taken).map(|range| LaidOut { range, usage: Usage::Kept { buffer_bytes: 0 } }),
        );
    }
    used.sort_by_key(|part| part.range);
    let mut used = used.into_iter().peekable();
    let mut segments: Vec<MappedSegment> = Vec::new();
    for (range, class) in if grows { join(mapped) } else { mapped } {
        let mut parts = Vec::new();
        let mut at = range.start;
        while let Some(part) = used.next_if(|part| part.range.start < range.end()) {
            if part.range.start > at {
                let free = AddressRange::between(at, part.range.start);
                parts.push(LaidOut { range: free, usage: Usage::Free });
            }
            at = part.range.end();
            parts.push(part);
        }
        if at < range.end() {
            parts.push(LaidOut { range: AddressRange::between(at, range.end()), usage: Usage::Free });
        }
        segments.push(MappedSegment { range, class, parts });
    }
    segments
}

/// Ranges of one class that follow each other without a gap become one.
fn join(sorted: Vec<(AddressRange, SizeClass)>) -> Vec<(AddressRange, SizeClass)> {
    let mut joined: Vec<(AddressRange, SizeClass)> = Vec::new();
    for (range, class) in sorted {
        match joined.last_mut() {
            Some((last, of_last)) if last.end() == range.start && *of_last == class => last.len += range.len,
            _ => joined.push((range, class)),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(addr: usize, allocated_bytes: usize, requested_bytes: usize) -> LiveBlock {
        LiveBlock { addr, requested_bytes, allocated_bytes }
    }

    fn parts(segment: &MappedSegment) -> Vec<(usize, usize, Usage)> {
        segment.parts.iter().map(|part| (part.range.start, part.range.len, part.usage)).collect()
    }

    #[test]
    fn parts_cover_each_stretch_of_mapped_memory() {
        let mapped = vec![
            AddressRange::new(300, 100),
            AddressRange::new(100, 100),
            AddressRange::new(200, 50),
            AddressRange::new(900, 0),
        ];
        let mapped: Vec<_> = mapped.into_iter().map(|range| (range, SizeClass::Large)).collect();
        // One block lies over the border of two mapped ranges, a kept one has a live one in it.
        let owned = vec![(block(190, 20, 15), false), (block(310, 60, 60), true), (block(100, 10, 1), false)];
        let buffer = LaidOut { range: AddressRange::new(350, 5), usage: Usage::Kept { buffer_bytes: 5 } };
        let apart = lay_out(mapped.clone(), false, vec![(block(110, 20, 15), false)], Vec::new());
        let ranges: Vec<(usize, usize)> = apart.iter().map(|one| (one.range.start, one.range.len)).collect();
        assert_eq!(ranges, [(100, 100), (200, 50), (300, 100)]);
        let segments = lay_out(mapped, true, owned, vec![block(320, 30, 25).into(), buffer]);
        assert_eq!(segments.len(), 2);
        assert_eq!(segments.iter().map(|segment| segment.class).collect::<Vec<_>>(), [SizeClass::Large; 2]);
        let live = |requested_bytes| Usage::Live { requested_bytes };
        assert_eq!(
            parts(&segments[0]),
            [(100, 10, live(1)), (110, 80, Usage::Free), (190, 20, live(15)), (210, 40, Usage::Free)]
        );
        assert_eq!(
            parts(&segments[1]),
            [
                (300, 10, Usage::Free),
                (310, 10, Usage::Kept { buffer_bytes: 0 }),
                (320, 30, live(25)),
                (350, 5, Usage::Kept { buffer_bytes: 5 }),
                (355, 15, Usage::Kept { buffer_bytes: 0 }),
                (370, 30, Usage::Free)
            ]
        );
    }
    #[test]
    fn neighbours_of_two_classes_are_two_segments() {
        let mapped = vec![
            (AddressRange::new(100, 100), SizeClass::Small),
            (AddressRange::new(200, 100), SizeClass::Large),
            (AddressRange::new(300, 100), SizeClass::Large),
        ];
        let segments = lay_out(mapped, true, Vec::new(), Vec::new());
        let found: Vec<_> = segments.iter().map(|segment| (segment.range.len, segment.class)).collect();
        assert_eq!(found, [(100, SizeClass::Small), (200, SizeClass::Large)]);
    }
}
