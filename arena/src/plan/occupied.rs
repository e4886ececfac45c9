//! What is placed so far, and the lowest free place for an item.
//!
//! A flat list in the order of offsets, walked from below until there is a gap. That is `O(n)` for an item, and still
//! the fastest that was tried up to 60,000 items: a segment tree over the sections, with what is taken over all and
//! over any of a node's sections as unions of ranges, took four times as long, because deep nets leave the unions as
//! many holes as there are items. Lifetimes and places lie apart, since most items are passed over by lifetime.

use super::problem::Item;

/// Items with their places.
#[derive(Debug, Default)]
pub(super) struct Occupied {
    /// The sections each lives in, `(first, end)`.
    lifetimes: Vec<(u32, u32)>,
    /// Where each begins and ends, ascending.
    places: Vec<(usize, usize)>,
}

impl Occupied {
    /// Forgets everything that is placed.
    pub(super) fn clear(&mut self) {
        self.lifetimes.clear();
        self.places.clear();
    }

    /// The lowest free place for an item.
    pub(super) fn lowest(&self, item: &Item) -> usize {
        let mut offset = 0;
        for (&(first, end), &(bottom, top)) in self.lifetimes.iter().zip(&self.places) {
            if first < item.end && item.first < end {
                if bottom >= offset + item.size {
                    break;
                }
                if top > offset {
                    offset = item.aligned(top);
                }
            }
        }
        offset
    }

    /// Enters an item.
    pub(super) fn place(&mut self, item: &Item, offset: usize) {
        let at = self.places.partition_point(|place| place.0 < offset);
        self.places.insert(at, (offset, offset + item.size));
        self.lifetimes.insert(at, (item.first, item.end));
    }
}
