//! A planning problem in the form that the algorithms work on.
//!
//! Time is cut into *sections*: the maximal sets of buffers that live at one time, in their order. Two buffers live at
//! one time exactly if they share a section, so nothing is lost, and there are far fewer sections than events
//! (Moffitt, "MiniMalloc", ASPLOS 2023, section 4.1, calls them cross sections).

use std::ops::Range;

/// A buffer that has bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Item {
    /// The first section it lives in.
    pub(super) first: u32,
    /// The section after the last one it lives in.
    pub(super) end: u32,
    /// Its size, at least 1.
    pub(super) size: usize,
    /// What its offset is a multiple of.
    pub(super) align: usize,
}

impl Item {
    /// The sections it lives in.
    pub(super) fn sections(&self) -> Range<usize> {
        self.first as usize..self.end as usize
    }

    /// How many those are.
    pub(super) fn length(&self) -> u32 {
        self.end - self.first
    }

    /// Bytes times sections.
    pub(super) fn area(&self) -> u128 {
        self.size as u128 * u128::from(self.length())
    }

    /// The lowest place that is not below `offset`.
    pub(super) fn aligned(&self, offset: usize) -> usize {
        if self.align == 1 { offset } else { offset.next_multiple_of(self.align) }
    }
}

/// Items that are to be placed from offset 0 on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Problem {
    /// The items.
    pub(super) items: Vec<Item>,
    /// How many sections they live in.
    pub(super) sections: u32,
}

impl Problem {
    /// The problem of items with lifetimes `[first, end)` in any unit of time: `(first, end, size, align)`.
    pub(super) fn new(buffers: impl ExactSizeIterator<Item = (u64, u64, usize, usize)>) -> Self {
        let mut items = Vec::with_capacity(buffers.len());
        let mut events = Vec::with_capacity(2 * buffers.len());
        for (at, (lower, upper, size, align)) in buffers.enumerate() {
            items.push(Item { first: 0, end: 0, size, align });
            events.push((lower, true, at));
            events.push((upper, false, at));
        }
        // Deaths come first among what happens at one time.
        events.sort_unstable();
        let mut section = 0;
        let mut someone_died = false;
        for (_, born, at) in events {
            if born {
                // Only then is the set of the living not part of the one before.
                section += u32::from(std::mem::take(&mut someone_died));
                items[at].first = section;
            } else {
                someone_died = true;
                items[at].end = section + 1;
            }
        }
        let sections = if items.is_empty() { 0 } else { section + 1 };
        Self { items, sections }
    }

    /// The sum of sizes in each section.
    pub(super) fn live(&self) -> Vec<usize> {
        let mut changes = vec![(0, 0); self.sections as usize + 1];
        for item in &self.items {
            changes[item.first as usize].0 += item.size;
            changes[item.end as usize].1 += item.size;
        }
        let mut live = 0;
        let sums = changes.iter().map(|(born, dead)| {
            live = live + born - dead;
            live
        });
        sums.take(self.sections as usize).collect()
    }

    /// The most that lives at one time: no placement ends lower.
    pub(super) fn max_live(&self) -> usize {
        self.live().into_iter().max().unwrap_or(0)
    }

    /// By item: which others share a section with it.
    pub(super) fn meetings(&self) -> Vec<Vec<u32>> {
        let mut by_start: Vec<u32> = (0..self.items.len() as u32).collect();
        by_start.sort_unstable_by_key(|&at| self.items[at as usize].first);
        let mut meets: Vec<Vec<u32>> = vec![Vec::new(); by_start.len()];
        let mut live: Vec<u32> = Vec::new();
        for at in by_start {
            let first = self.items[at as usize].first;
            live.retain(|&other| self.items[other as usize].end > first);
            for &other in &live {
                meets[at as usize].push(other);
                meets[other as usize].push(at);
            }
            live.push(at);
        }
        meets
    }
}
