//! What was reserved and free at each moment, and how large the largest free range was.
//!
//! A free range ends where its segment does: what touches it in another segment cannot serve the same request.

use std::collections::BTreeMap;
use std::ops::Range;

use rangemap::{RangeMap, RangeSet};

use super::lifetimes::{Lifetimes, NEVER};
use super::mapped::Region;

/// Bytes at each moment, the one before the first event included.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Figures {
    pub reserved: Vec<usize>,
    pub free: Vec<usize>,
    pub largest_free: Vec<usize>,
}

/// What changes at a moment, in the order in which it is done: memory is there before what lies in it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Change {
    Release(usize),
    Unmap(usize),
    Map(usize),
    Occupy(usize),
}

impl Figures {
    /// Those of a history with so many events.
    pub(super) fn of(lifetimes: &Lifetimes, events: usize) -> Self {
        let mut changes = Vec::new();
        for (index, piece) in lifetimes.pieces.iter().enumerate() {
            changes.push((piece.begin, Change::Map(index)));
            changes.push((piece.end, Change::Unmap(index)));
        }
        for (index, block) in lifetimes.blocks.iter().enumerate().filter(|(_, block)| !block.is_kept) {
            changes.push((block.begin, Change::Occupy(index)));
            changes.push((block.end, Change::Release(index)));
        }
        changes.retain(|&(moment, _)| moment != NEVER);
        changes.sort_unstable();
        let mut changes = changes.into_iter().peekable();
        let mut memory = Memory::new(lifetimes);
        let mut figures = Self::default();
        for moment in 0..=events {
            while let Some((_, change)) = changes.next_if(|&(at, _)| at as usize <= moment) {
                match change {
                    Change::Map(index) => {
                        let piece = &lifetimes.pieces[index];
                        memory.map(&piece.range, piece.region);
                    }
                    Change::Unmap(index) => memory.unmap(&lifetimes.pieces[index].range),
                    Change::Occupy(index) => memory.occupy(&lifetimes.blocks[index].range),
                    Change::Release(index) => memory.release(&lifetimes.blocks[index].range),
                }
            }
            figures.reserved.push(memory.reserved);
            figures.free.push(memory.free_bytes);
            figures.largest_free.push(memory.largest());
        }
        figures
    }
}

/// Memory at one moment.
#[derive(Default)]
struct Memory {
    mapped: RangeMap<usize, Region>,
    free: RangeMap<usize, Region>,
    /// How many free ranges there are of each length.
    lengths: BTreeMap<usize, usize>,
    /// What steps and buffers keep is never free.
    kept: RangeSet<usize>,
    reserved: usize,
    free_bytes: usize,
}

impl Memory {
    fn new(lifetimes: &Lifetimes) -> Self {
        let kept = lifetimes.blocks.iter().filter(|block| block.is_kept && !block.range.is_empty());
        Self { kept: kept.map(|block| block.range.clone()).collect(), ..Self::default() }
    }

    fn map(&mut self, range: &Range<usize>, region: Region) {
        self.reserved += range.len();
        self.mapped.insert(range.clone(), region);
        self.add_free(range, region);
    }

    fn unmap(&mut self, range: &Range<usize>) {
        self.reserved -= range.len();
        self.mapped.remove(range.clone());
        self.occupy(range);
    }

    /// Nothing of the range is free any more.
    fn occupy(&mut self, range: &Range<usize>) {
        if range.is_empty() {
            return;
        }
        let hit: Vec<Range<usize>> =
            self.free.overlapping(range.clone()).map(|(free, _)| free.clone()).collect();
        for free in hit {
            self.forget(&free);
            self.note(free.start..range.start);
            self.note(range.end..free.end);
        }
        self.free.remove(range.clone());
    }

    /// What of the range is mapped becomes free.
    fn release(&mut self, range: &Range<usize>) {
        let mapped: Vec<(Range<usize>, Region)> = self
            .mapped
            .overlapping(range.clone())
            .map(|(mapped, &region)| (mapped.clone(), region))
            .collect();
        for (mapped, region) in mapped {
            self.add_free(&(mapped.start.max(range.start)..mapped.end.min(range.end)), region);
        }
    }

    /// Adds what of a range is neither kept nor free already, and joins it with what touches it in its segment.
    fn add_free(&mut self, range: &Range<usize>, region: Region) {
        let parts: Vec<Range<usize>> =
            self.kept.gaps(range).flat_map(|part| self.free.gaps(&part).collect::<Vec<_>>()).collect();
        for part in parts {
            let before = part.start.checked_sub(1).and_then(|last| self.free.get_key_value(&last));
            let behind = self.free.get_key_value(&part.end);
            let joined: Vec<Range<usize>> = [before, behind]
                .into_iter()
                .flatten()
                .filter(|&(_, &other)| other == region)
                .map(|(free, _)| free.clone())
                .collect();
            joined.iter().for_each(|free| self.forget(free));
            let start = joined.iter().map(|free| free.start).min().unwrap_or(part.start).min(part.start);
            let end = joined.iter().map(|free| free.end).max().unwrap_or(part.end).max(part.end);
            self.note(start..end);
            self.free.insert(part, region);
        }
    }

    fn note(&mut self, free: Range<usize>) {
        if !free.is_empty() {
            self.free_bytes += free.len();
            *self.lengths.entry(free.len()).or_default() += 1;
        }
    }

    fn forget(&mut self, free: &Range<usize>) {
        self.free_bytes -= free.len();
        if let Some(count) = self.lengths.get_mut(&free.len()) {
            *count -= 1;
            if *count == 0 {
                self.lengths.remove(&free.len());
            }
        }
    }

    fn largest(&self) -> usize {
        self.lengths.last_key_value().map_or(0, |(&len, _)| len)
    }
}
