//! The most within any run of sections.

use std::ops::Range;

/// A tree of maxima: with a look at each section of each lifetime an order of 100,000 items would take a second.
#[derive(Debug)]
pub(super) struct Most {
    /// The values are in the upper half; each of the others is the larger of the two at twice its place.
    tree: Vec<usize>,
}

impl Most {
    /// Of these values.
    pub(super) fn new(values: &[usize]) -> Self {
        let mut tree = vec![0; values.len()];
        tree.extend_from_slice(values);
        for at in (1..values.len()).rev() {
            tree[at] = tree[2 * at].max(tree[2 * at + 1]);
        }
        Self { tree }
    }

    /// The largest value in a range; 0 in an empty one. Takes `O(log n)`.
    pub(super) fn within(&self, range: Range<usize>) -> usize {
        let count = self.tree.len() / 2;
        let (mut from, mut to) = (range.start + count, range.end + count);
        let mut most = 0;
        while from < to {
            if from % 2 == 1 {
                most = most.max(self.tree[from]);
                from += 1;
            }
            if to % 2 == 1 {
                to -= 1;
                most = most.max(self.tree[to]);
            }
            (from, to) = (from / 2, to / 2);
        }
        most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_range_has_the_largest_of_its_values() {
        for count in [1, 2, 3, 7, 8, 13] {
            let values: Vec<usize> = (0..count).map(|at| (at * 7 + 3) % 11).collect();
            let most = Most::new(&values);
            for from in 0..count {
                for to in from..=count {
                    let expected = values[from..to].iter().copied().max().unwrap_or(0);
                    assert_eq!(most.within(from..to), expected, "{from}..{to} of {count}");
                }
            }
        }
    }
}
