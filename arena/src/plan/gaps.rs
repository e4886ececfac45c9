//! The free places at one time, while time goes on.
//!
//! Best fit: of all gaps that hold an item the smallest is taken, of equal ones the lowest, and what is above all
//! only where there is none. Taking the lowest instead left 1% to 2% unused where the smallest left 0.1% (100,000
//! buffers with random lifetimes and sizes). Each call takes `O(log n)`.

use std::collections::{BTreeMap, BTreeSet};

use super::problem::Item;

/// So many gaps are tried that are long enough but for their alignment; then one is taken that surely is.
const TRIED: usize = 8;

/// Free ranges below an end above which all is free.
#[derive(Debug, Clone, Default)]
pub(super) struct Gaps {
    /// `bottom` and `top` of each. No two of them touch, and none touches `end`.
    by_place: BTreeMap<usize, usize>,
    /// The same as `(length, bottom)`.
    by_length: BTreeSet<(usize, usize)>,
    /// From here on all is free.
    end: usize,
}

impl Gaps {
    /// Takes a place for an item.
    pub(super) fn take(&mut self, item: &Item) -> usize {
        let Some((bottom, top)) = self.fitting(item) else {
            let offset = item.aligned(self.end);
            if offset > self.end {
                self.insert(self.end, offset);
            }
            self.end = offset + item.size;
            return offset;
        };
        self.remove(bottom, top);
        let offset = item.aligned(bottom);
        if offset > bottom {
            self.insert(bottom, offset);
        }
        if offset + item.size < top {
            self.insert(offset + item.size, top);
        }
        offset
    }

    /// Gives the place of an item back.
    pub(super) fn give(&mut self, item: &Item, offset: usize) {
        let (mut bottom, mut top) = (offset, offset + item.size);
        if let Some((&before, &end)) = self.by_place.range(..bottom).next_back()
            && end == bottom
        {
            self.remove(before, end);
            bottom = before;
        }
        if top == self.end {
            self.end = bottom;
            return;
        }
        if let Some(&end) = self.by_place.get(&top) {
            self.remove(top, end);
            top = end;
        }
        self.insert(bottom, top);
    }

    /// The gap that an item is put into.
    fn fitting(&self, item: &Item) -> Option<(usize, usize)> {
        let of = |&(length, bottom): &(usize, usize)| (bottom, bottom + length);
        let fits = |&(bottom, top): &(usize, usize)| item.aligned(bottom) + item.size <= top;
        let long_enough = self.by_length.range((item.size, 0)..).map(of);
        // With an alignment of 1 the first one fits.
        long_enough.take(TRIED).find(fits).or_else(|| {
            let surely = item.size + (item.align - 1);
            self.by_length.range((surely, 0)..).next().map(of)
        })
    }

    fn insert(&mut self, bottom: usize, top: usize) {
        self.by_place.insert(bottom, top);
        self.by_length.insert((top - bottom, bottom));
    }

    fn remove(&mut self, bottom: usize, top: usize) {
        self.by_place.remove(&bottom);
        self.by_length.remove(&(top - bottom, bottom));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::random::Random;

    fn item(size: usize, align: usize) -> Item {
        Item { first: 0, end: 1, size, align }
    }

    #[test]
    fn the_smallest_gap_that_holds_an_item_is_taken_and_of_equal_ones_the_lowest() {
        let mut gaps = Gaps::default();
        let sizes = [3, 1, 2, 1, 2, 1, 5, 1];
        let offsets = sizes.map(|size| gaps.take(&item(size, 1)));
        assert_eq!(offsets, [0, 3, 4, 6, 7, 9, 10, 15], "one above the other while there is no gap");
        for at in [0, 2, 4, 6] {
            gaps.give(&item(sizes[at], 1), offsets[at]);
        }
        assert_eq!(gaps.take(&item(2, 1)), 4);
        assert_eq!(gaps.take(&item(4, 1)), 10);
        assert_eq!(gaps.take(&item(1, 1)), 14, "what is left of a gap is one");
        assert_eq!(gaps.take(&item(9, 1)), 16);
    }

    #[test]
    fn alignments_are_kept_also_where_many_gaps_are_just_too_short_for_them() {
        let mut gaps = Gaps::default();
        // Gaps of 7 behind each multiple of 8, and one that is longer.
        for _ in 0..2 * TRIED {
            assert_eq!(gaps.take(&item(1, 1)) % 8, 0);
            gaps.take(&item(7, 1));
        }
        gaps.take(&item(3, 1));
        let long = gaps.take(&item(11, 1));
        gaps.take(&item(1, 1));
        for place in 0..2 * TRIED {
            gaps.give(&item(7, 1), 8 * place + 1);
        }
        gaps.give(&item(11, 1), long);
        assert_eq!(gaps.take(&item(4, 8)), long.next_multiple_of(8));
    }

    #[test]
    fn what_is_given_back_joins_its_neighbours() {
        let mut random = Random::new(7);
        let mut gaps = Gaps::default();
        let mut taken = Vec::new();
        for _ in 0..2000 {
            if taken.is_empty() || random.below(5) > 1 {
                let item = item(1 + random.below(100), 1 << random.below(5));
                let offset = gaps.take(&item);
                assert_eq!(offset % item.align, 0);
                let is_apart =
                    |(other, at): &(Item, usize)| at + other.size <= offset || offset + item.size <= *at;
                assert!(taken.iter().all(is_apart), "{offset} is taken");
                taken.push((item, offset));
            } else {
                let (item, offset) = taken.swap_remove(random.below(taken.len()));
                gaps.give(&item, offset);
            }
            let mut below = None;
            for (&bottom, &top) in &gaps.by_place {
                assert!(bottom < top && below < Some(bottom) && top < gaps.end);
                assert!(gaps.by_length.contains(&(top - bottom, bottom)));
                below = Some(top);
            }
            assert_eq!(gaps.by_place.len(), gaps.by_length.len());
        }
        for (item, offset) in taken {
            gaps.give(&item, offset);
        }
        assert_eq!((gaps.by_place.len(), gaps.by_length.len(), gaps.end), (0, 0, 0));
    }
}
