//! What is placed so far, and the lowest free place for an item, in any order of items.
//!
//! A list in the order of offsets ([`list`]) is walked from below until there is a gap. Where most lifetimes are
//! short, most of what is placed lives at another time: then there are further lists of what lives within a *window*
//! of sections, and an item looks only through the shortest window that holds its lifetime.
//!
//! Where many live at one time the walk stays `O(n)` for an item, and is still the fastest that was tried up to 60,000
//! items: a segment tree over the sections, with what is taken over all and over any of a node's sections as unions
//! of ranges, took four times as long, because deep nets leave the unions as many holes as there are items. So for
//! large problems sweeps come first ([`super::sweep`]), and this is done for as long as there is time.

mod list;

use std::ops::RangeInclusive;

use super::clock::Limit;
use super::problem::{Item, Problem};
use list::List;

/// Fewer items have one list: they are walked through faster than windows are kept.
const FEWEST_FOR_WINDOWS: usize = 1000;
/// Shorter windows are worth their lists only if these have so many times fewer items each.
const SHORTER_BY: u64 = 16;
/// In all lists together there are no more items than so many times those there are.
const MOST_COPIES: u64 = 12;

/// Items with their places.
#[derive(Debug)]
pub(super) struct Occupied {
    /// From the longest windows to the shortest. The first is one list of all.
    levels: Vec<Level>,
}

/// Windows of one length.
#[derive(Debug)]
struct Level {
    /// A window begins every `1 << shift` sections and is twice as long: whatever is no longer than that lies within
    /// the window that it begins in.
    shift: u32,
    windows: Vec<List>,
}

impl Level {
    fn new(shift: u32, sections: u32) -> Self {
        let count = (sections.max(1) - 1) >> shift;
        Self { shift, windows: vec![List::default(); count as usize + 1] }
    }

    /// Whether the item's lifetime lies within the window that it begins in.
    fn holds(&self, item: &Item) -> bool {
        item.length() <= 1 << self.shift
    }

    /// The windows that share a section with the item.
    fn touched(&self, item: &Item) -> RangeInclusive<usize> {
        touched(item, self.shift)
    }
}

fn touched(item: &Item, shift: u32) -> RangeInclusive<usize> {
    ((item.first >> shift) as usize).saturating_sub(1)..=((item.end - 1) >> shift) as usize
}

impl Occupied {
    /// Nothing, of a problem's items.
    pub(super) fn new(problem: &Problem) -> Self {
        // One window holds all.
        let most = u32::BITS - problem.sections.leading_zeros();
        let mut levels = vec![Level::new(most, problem.sections)];
        let count = problem.items.len() as u64;
        if count as usize >= FEWEST_FOR_WINDOWS {
            let (mut in_window, mut copies) = (count, count);
            for shift in (0..most).rev() {
                let touched = |item| touched(item, shift).count() as u64;
                let more: u64 = problem.items.iter().map(touched).sum();
                let level = Level::new(shift, problem.sections);
                let in_shorter = more / level.windows.len() as u64;
                if copies + more > MOST_COPIES * count {
                    break;
                }
                if in_shorter <= in_window / SHORTER_BY {
                    (in_window, copies) = (in_shorter, copies + more);
                    levels.push(level);
                }
            }
        }
        Self { levels }
    }

    /// Forgets everything that is placed.
    pub(super) fn clear(&mut self) {
        for window in self.levels.iter_mut().flat_map(|level| &mut level.windows) {
            window.clear();
        }
    }

    /// The lowest free place for an item; nothing at the limit.
    pub(super) fn lowest(&self, item: &Item, limit: &mut Limit) -> Option<usize> {
        let shortest = self.levels.iter().rev().find(|level| level.holds(item)).unwrap_or(&self.levels[0]);
        shortest.windows[(item.first >> shortest.shift) as usize].lowest(item, limit)
    }

    /// Enters an item.
    pub(super) fn place(&mut self, item: &Item, offset: usize) {
        for level in &mut self.levels {
            let touched = level.touched(item);
            for window in &mut level.windows[touched] {
                window.insert(item, offset);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::random::Random;

    #[test]
    fn windows_find_the_place_that_a_look_at_all_finds() {
        let mut random = Random::new(1);
        let buffers = (0..4000).map(|at| {
            let lower = random.below(3000) as u64;
            let length = if at % 100 == 0 { random.below(3000) } else { random.below(20) };
            (lower, lower + 1 + length as u64, 1 + random.below(1000), 1 + random.below(3))
        });
        let buffers: Vec<_> = buffers.collect();
        let problem = Problem::new(buffers.into_iter());
        let mut occupied = Occupied::new(&problem);
        assert_eq!(occupied.levels.len(), 2, "windows that are shorter by little are not worth it");
        occupied.levels.push(Level::new(1, problem.sections));
        for _ in 0..2 {
            let mut placed: Vec<(usize, &Item)> = Vec::new();
            for item in &problem.items {
                let mut offset = 0;
                for &(bottom, other) in &placed {
                    if other.first < item.end && item.first < other.end {
                        if bottom >= offset + item.size {
                            break;
                        }
                        offset = offset.max(item.aligned(bottom + other.size));
                    }
                }
                assert_eq!(occupied.lowest(item, &mut Limit::none()), Some(offset));
                occupied.place(item, offset);
                placed.insert(placed.partition_point(|&(bottom, _)| bottom < offset), (offset, item));
            }
            occupied.clear();
        }
    }

    #[test]
    fn many_short_lifetimes_have_windows_of_several_lengths() {
        let short = (0..40_000_u32).map(|at| (u64::from(at), u64::from(at) + 2, 1, 1));
        let occupied = Occupied::new(&Problem::new(short));
        assert!(occupied.levels.len() > 2, "{}", occupied.levels.len());
        let shifts: Vec<u32> = occupied.levels.iter().map(|level| level.shift).collect();
        assert!(shifts.is_sorted_by(|longer, shorter| longer > shorter));
    }

    #[test]
    fn few_items_and_long_lifetimes_have_one_list() {
        let long = (0..2000_u32).map(|at| (u64::from(at), u64::from(4000 - at), 1, 1));
        assert_eq!(Occupied::new(&Problem::new(long)).levels.len(), 1);
        let few = (0..100_u32).map(|at| (u64::from(at), u64::from(at) + 1, 1, 1));
        assert_eq!(Occupied::new(&Problem::new(few)).levels.len(), 1);
    }
}
