//! Memory that was mapped, while a history is followed backwards.

use std::ops::Range;

use rangemap::RangeMap;

use super::data::{Mapping, NONE};
use super::lifetimes::NEVER;

/// Memory that was mapped from one moment to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    pub range: Range<usize>,
    pub region: Region,
    /// The first moment at which it is there, and the first at which it is not any more.
    pub begin: u32,
    pub end: u32,
}

/// What a piece is part of. Pieces of one region that touch are one segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Region {
    pub owner: u32,
    /// A number of its own for a segment that does not grow; [`NONE`] for what is one with what lies beside it.
    pub segment: u32,
}

/// What is mapped at the moment that is looked at, and what was mapped later.
#[derive(Debug, Default)]
pub(super) struct Mapped {
    /// With the moment at which it ends.
    now: RangeMap<usize, (Region, u32)>,
    later: Vec<Piece>,
    segments: u32,
}

impl Mapped {
    /// What the snapshot has.
    pub(super) fn new(segments: &[Mapping]) -> Self {
        let mut mapped = Self::default();
        for Mapping { range, owner, is_expandable } in segments.iter().filter(|one| !one.range.is_empty()) {
            mapped.add(range.clone(), *owner, *is_expandable, NEVER);
        }
        mapped
    }

    /// Whose the memory at an address is.
    pub(super) fn owner(&self, address: usize) -> Option<u32> {
        self.now.get(&address).map(|(region, _)| region.owner)
    }

    /// The range is mapped from here on backwards, until `end`. What of it is mapped already stays as it is: a history
    /// that says otherwise contradicts itself.
    pub(super) fn add(&mut self, range: Range<usize>, owner: u32, is_expandable: bool, end: u32) {
        let segment = if is_expandable {
            NONE
        } else {
            self.segments += 1;
            self.segments - 1
        };
        let gaps: Vec<Range<usize>> = self.now.gaps(&range).collect();
        gaps.into_iter().for_each(|gap| self.now.insert(gap, (Region { owner, segment }, end)));
    }

    /// The range was mapped at `begin`: before that it is not there.
    pub(super) fn begin(&mut self, range: Range<usize>, begin: u32) {
        let parts = self.now.overlapping(range.clone()).map(|(part, &(region, end))| Piece {
            range: part.start.max(range.start)..part.end.min(range.end),
            region,
            begin,
            end,
        });
        self.later.extend(parts);
        self.now.remove(range);
    }

    /// All pieces, by owner and address.
    pub(super) fn finish(mut self) -> Vec<Piece> {
        let from_the_start = self.now.into_iter();
        self.later.extend(from_the_start.map(|(range, (region, end))| Piece {
            range,
            region,
            begin: 0,
            end,
        }));
        self.later.sort_by_key(|piece| (piece.region.owner, piece.range.start, piece.begin));
        self.later
    }
}
