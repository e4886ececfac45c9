//! Unused parts of virtual ranges.

use std::collections::{BTreeMap, BTreeSet};

use crate::range::AddressRange;

/// The unused parts of a set of ranges, in whole pages. Parts of one range join; parts of
/// different ranges never do, so that a range can be given back as it was reserved.
#[derive(Debug, Default)]
pub struct Holes {
    ranges: BTreeMap<usize, usize>,
    by_start: BTreeMap<usize, usize>,
    by_len: BTreeSet<(usize, usize)>,
}

impl Holes {
    /// Adds a range, all of it unused.
    pub fn add_range(&mut self, range: AddressRange) {
        self.ranges.insert(range.start, range.len);
        self.insert(range);
    }

    /// Takes the smallest hole's first `len` bytes that are aligned to `align`, a power of two.
    pub fn take(&mut self, len: usize, align: usize) -> Option<AddressRange> {
        let fitting = self.by_len.range((len, 0)..).find_map(|&(hole, start)| {
            let aligned = start.checked_next_multiple_of(align)?;
            let end = aligned.checked_add(len)?;
            (end <= start + hole).then_some((AddressRange::new(start, hole), AddressRange::new(aligned, len)))
        });
        let (hole, taken) = fitting?;
        self.remove(hole);
        for rest in hole.without(&[taken]) {
            self.insert(rest);
        }
        Some(taken)
    }

    /// Makes a part of a range unused, and returns the range if that was all of it that was used.
    ///
    /// # Panics
    /// When the part lies in no range.
    pub fn give(&mut self, part: AddressRange) -> Option<AddressRange> {
        let (&start, &len) = self.ranges.range(..=part.start).next_back().expect("a part lies in a range");
        let range = AddressRange::new(start, len);
        let mut joined = part;
        if let Some((&start, &len)) = self.by_start.range(..part.start).next_back()
            && start + len == part.start
            && range.contains(start)
        {
            self.remove(AddressRange::new(start, len));
            joined = AddressRange::between(start, joined.end());
        }
        if let Some(&len) = self.by_start.get(&part.end())
            && range.contains(part.end())
        {
            self.remove(AddressRange::new(part.end(), len));
            joined.len += len;
        }
        self.insert(joined);
        Some(range).filter(|&range| range == joined)
    }

    /// Ranges of which nothing is used.
    #[must_use]
    pub fn unused_ranges(&self) -> Vec<AddressRange> {
        let unused = self.ranges.iter().filter(|&(start, len)| self.by_start.get(start) == Some(len));
        unused.map(|(&start, &len)| AddressRange::new(start, len)).collect()
    }

    /// Forgets a range of which nothing is used.
    pub fn remove_range(&mut self, range: AddressRange) {
        self.remove(range);
        self.ranges.remove(&range.start);
    }

    /// The unused parts, in order of address.
    pub fn iter(&self) -> impl Iterator<Item = AddressRange> + '_ {
        self.by_start.iter().map(|(&start, &len)| AddressRange::new(start, len))
    }

    /// All ranges, in order of address.
    pub fn ranges(&self) -> impl Iterator<Item = AddressRange> + '_ {
        self.ranges.iter().map(|(&start, &len)| AddressRange::new(start, len))
    }

    fn insert(&mut self, hole: AddressRange) {
        self.by_start.insert(hole.start, hole.len);
        self.by_len.insert((hole.len, hole.start));
    }

    fn remove(&mut self, hole: AddressRange) {
        self.by_start.remove(&hole.start);
        self.by_len.remove(&(hole.len, hole.start));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_one_range_join_and_parts_of_two_never_do() {
        let mut holes = Holes::default();
        holes.add_range(AddressRange::new(0x1000, 0x1000));
        holes.add_range(AddressRange::new(0x2000, 0x1000));
        assert_eq!(holes.take(0x1800, 1), None);
        let first = holes.take(0x800, 1).unwrap();
        let second = holes.take(0x800, 1).unwrap();
        assert_eq!((first.start, second.start), (0x1000, 0x1800));
        assert_eq!(holes.give(first), None);
        assert_eq!(holes.give(second), Some(AddressRange::new(0x1000, 0x1000)));
        assert_eq!(holes.unused_ranges().len(), 2);
        holes.remove_range(AddressRange::new(0x1000, 0x1000));
        assert_eq!(holes.iter().collect::<Vec<_>>(), [AddressRange::new(0x2000, 0x1000)]);
    }

    #[test]
    fn alignment_leaves_the_parts_before_and_behind() {
        let mut holes = Holes::default();
        holes.add_range(AddressRange::new(0x1000, 0x8000));
        assert_eq!(holes.take(0x1000, 0x4000), Some(AddressRange::new(0x4000, 0x1000)));
        let left: Vec<_> = holes.iter().collect();
        assert_eq!(left, [AddressRange::new(0x1000, 0x3000), AddressRange::new(0x5000, 0x4000)]);
        assert_eq!(holes.take(0x1000, 0x10000), None);
    }
}
