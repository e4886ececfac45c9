//! Which end of a trace can be followed back from the segments as they are.
//!
//! PyTorch's page undoes entries one by one from the end, and stops with an error at one that cannot be: a free of a block
//! that is not there afterwards, memory that was mapped and is not. What came before such an entry says nothing about it.

use std::collections::{BTreeMap, BTreeSet};

use super::{Action, BlockState, Segment, TraceEntry};

/// What is mapped and what is live, at a moment that goes back.
struct Past {
    /// Ends of segments, by their starts.
    mapped: BTreeMap<usize, usize>,
    /// Addresses of blocks.
    blocks: BTreeSet<usize>,
}

/// The first entry from which on all can be undone, one after the other from the end.
pub(super) fn start<'a>(segments: impl Iterator<Item = &'a Segment>, trace: &[TraceEntry]) -> usize {
    let mut past = Past { mapped: BTreeMap::new(), blocks: BTreeSet::new() };
    for segment in segments {
        past.map(segment.address, segment.address + segment.total_size, segment.is_expandable);
        let blocks = segment.blocks.iter();
        let used = blocks.filter(|block| block.state != BlockState::Inactive && !block.is_kept);
        past.blocks.extend(used.map(|block| block.address));
    }
    let stop = trace.iter().rposition(|entry| past.undo(entry).is_none());
    stop.map_or(0, |at| at + 1)
}

impl Past {
    /// Undoes an entry, or says that it cannot be.
    fn undo(&mut self, entry: &TraceEntry) -> Option<()> {
        let start = entry.addr.unwrap_or(0);
        let possible = match entry.action {
            Action::Alloc => self.blocks.remove(&start),
            Action::FreeRequested => self.blocks.contains(&start),
            Action::FreeCompleted => self.end_of(start).is_some() && self.blocks.insert(start),
            Action::SegmentUnmap | Action::SegmentFree => {
                let end = start.saturating_add(entry.size);
                let is_new = self.mapped.range(..end).next_back().is_none_or(|(_, &before)| before <= start);
                if is_new {
                    self.map(start, end, entry.action == Action::SegmentUnmap);
                }
                is_new
            }
            Action::SegmentMap => self.unmap(start, start.saturating_add(entry.size)).is_some(),
            Action::SegmentAlloc => {
                self.mapped.get(&start) == Some(&start.saturating_add(entry.size))
                    && self.unmap(start, start.saturating_add(entry.size)).is_some()
            }
            Action::Oom | Action::Other => true,
        };
        possible.then_some(())
    }

    /// The end of the segment that an address lies in.
    fn end_of(&self, addr: usize) -> Option<usize> {
        let (_, &end) = self.mapped.range(..=addr).next_back()?;
        (addr < end).then_some(end)
    }

    fn map(&mut self, mut start: usize, mut end: usize, joins: bool) {
        if !joins {
            self.mapped.insert(start, end);
            return;
        }
        if let Some((&before, &until)) = self.mapped.range(..start).next_back()
            && until == start
        {
            self.mapped.remove(&before);
            start = before;
        }
        if let Some(after) = self.mapped.remove(&end) {
            end = after;
        }
        self.mapped.insert(start, end);
    }

    /// Takes a part out of a segment in which no block is.
    fn unmap(&mut self, start: usize, end: usize) -> Option<()> {
        let (&first, &until) = self.mapped.range(..=start).next_back()?;
        if until < end || self.blocks.range(start..end).next().is_some() {
            return None;
        }
        self.mapped.remove(&first);
        if first < start {
            self.mapped.insert(first, start);
        }
        if end < until {
            self.mapped.insert(end, until);
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Block, Empty, Order, SegmentType};
    use super::*;

    fn entry(action: Action, addr: usize, size: usize) -> TraceEntry {
        TraceEntry {
            action,
            addr: Some(addr),
            device_free: None,
            size,
            stream: 0,
            time_us: 0,
            compile_context: String::new(),
            user_metadata: String::new(),
            pool_id: (0, 0),
            stack: None,
            frames: Empty,
            thread: String::new(),
            step: 0,
            position: 0,
        }
    }

    /// A segment at 1000 of 300 bytes, with a block at its start.
    fn segment() -> Segment {
        let block = Block {
            address: 1000,
            size: 100,
            requested_size: 100,
            state: BlockState::ActiveAllocated,
            stack: None,
            frames: Empty,
            owner: None,
            is_kept: false,
        };
        let free = Block {
            address: 1100,
            size: 200,
            requested_size: 0,
            state: BlockState::Inactive,
            ..block.clone()
        };
        Segment {
            device: 0,
            address: 1000,
            total_size: 300,
            allocated_size: 100,
            active_size: 100,
            requested_size: 100,
            stream: 0,
            segment_type: SegmentType::Small,
            segment_pool_id: (0, 0),
            is_expandable: true,
            frames: Empty,
            blocks: vec![block, free],
            pool_name: String::new(),
            order: Order::Host,
        }
    }

    #[test]
    fn a_whole_history_is_kept_whole() {
        let trace = [
            entry(Action::SegmentMap, 900, 400),
            entry(Action::Alloc, 1000, 100),
            entry(Action::Alloc, 950, 10),
            entry(Action::FreeRequested, 950, 10),
            entry(Action::FreeCompleted, 950, 10),
            entry(Action::Oom, 0, 10),
            entry(Action::SegmentUnmap, 900, 100),
        ];
        assert_eq!(start([segment()].iter(), &trace), 0);
    }

    #[test]
    fn what_cannot_be_undone_ends_what_is_kept() {
        for (wrong, why) in [
            (entry(Action::Alloc, 1200, 10), "it is not live"),
            (entry(Action::FreeRequested, 1200, 10), "it is neither live nor waiting"),
            (entry(Action::FreeCompleted, 5000, 10), "nothing is mapped there"),
            (entry(Action::SegmentMap, 1200, 200), "its end is not mapped"),
            (entry(Action::SegmentAlloc, 1100, 200), "it is a part of a segment"),
            (entry(Action::SegmentMap, 1000, 300), "a block lies in it"),
            (entry(Action::SegmentUnmap, 1200, 200), "its start is mapped"),
        ] {
            let trace = [entry(Action::Oom, 0, 1), wrong, entry(Action::Oom, 0, 1)];
            assert_eq!(start([segment()].iter(), &trace), 2, "{why}");
        }
    }
}
