//! Sizes in units that fit 31 bits, so that a search handles four at a time.
//!
//! The unit is the greatest common divisor of all sizes, and of the alignments but 1: what is pushed down lies at
//! sums of sizes, rounded up to alignments. Where sizes in it would be too large the unit is larger,
//! and sizes are rounded up: what fits then fits in bytes, too, but that nothing fits proves nothing.

use std::ops::Range;

use super::divisor;
use super::problem::{Item, Problem};

/// Sums of a place and all sizes left stay below twice this.
const MOST_UNITS: usize = 1 << 29;

/// What sizes are counted in.
#[derive(Debug, Clone, Copy)]
pub(super) struct Units {
    unit: usize,
    /// The capacity in units.
    pub(super) capacity: u32,
    /// Whether all places that can be of use are multiples of the unit.
    pub(super) is_exact: bool,
}

/// An item with its size in units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct InUnits {
    pub(super) first: u32,
    pub(super) end: u32,
    pub(super) size: u32,
    align: u32,
}

impl InUnits {
    /// The sections it lives in.
    pub(super) fn sections(&self) -> Range<usize> {
        self.first as usize..self.end as usize
    }

    /// The sections from which it lives on into the next.
    pub(super) fn links(&self) -> Range<usize> {
        self.first as usize..self.end as usize - 1
    }

    /// Whether it lives in a section.
    pub(super) fn lives_in(&self, section: u32) -> bool {
        self.first <= section && section < self.end
    }

    /// How many sections it lives in.
    pub(super) fn length(&self) -> u32 {
        self.end - self.first
    }

    /// The lowest place that is not below `offset`.
    pub(super) fn aligned(&self, offset: u32) -> u32 {
        if self.align == 1 { offset } else { offset.next_multiple_of(self.align) }
    }
}

impl Units {
    /// For placements that end at `capacity` bytes or below.
    pub(super) fn of(problem: &Problem, capacity: usize) -> Self {
        let steps = |item: &Item| if item.align == 1 { item.size } else { divisor(item.size, item.align) };
        let common = problem.items.iter().fold(0, |common, item| divisor(common, steps(item))).max(1);
        let needed = capacity.max(problem.max_live()).div_ceil(MOST_UNITS);
        let is_exact = needed <= common;
        let unit = if is_exact { common } else { needed };
        Self { unit, capacity: (capacity / unit) as u32, is_exact }
    }

    /// An item in units.
    pub(super) fn item(&self, item: &Item) -> InUnits {
        let Item { first, end, size, align } = *item;
        // A place of so many units is a multiple of the alignment in bytes. Beyond the capacity all are alike.
        let align = (align / divisor(align, self.unit)).min(MOST_UNITS);
        InUnits { first, end, size: size.div_ceil(self.unit) as u32, align: align as u32 }
    }

    /// A place in bytes.
    pub(super) fn bytes(&self, offset: u32) -> usize {
        offset as usize * self.unit
    }
}
