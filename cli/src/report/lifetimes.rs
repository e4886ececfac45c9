//! From when to when each block was there.
//!
//! A moment is a number of events: at moment `n` the first `n` have happened, so a snapshot with `n` events has `n + 1`
//! moments and is the last of them. The history is followed backwards from the snapshot's blocks, because it is what is left
//! of a longer one: what its beginning looked like is known only from its end.
//!
//! No two blocks of one moment overlap. Events that would have it otherwise are left out and counted.

use std::collections::BTreeMap;
use std::ops::Range;

use super::data::{Device, Event, Held, Hold, Kind, NONE, Origin};
use super::mapped::{Mapped, Piece};

/// A moment that does not come.
pub(super) const NEVER: u32 = u32::MAX;

/// A block from its allocation to its end.
#[derive(Debug, Clone)]
pub(super) struct Lifetime {
    pub range: Range<usize>,
    pub requested_bytes: usize,
    pub owner: u32,
    /// The first moment at which it is there: 0 for what is older than the history.
    pub begin: u32,
    /// The first moment at which its owner has freed it.
    pub freed: u32,
    /// The first moment at which it is gone.
    pub end: u32,
    /// A planned step or a buffer keeps it, and nobody has it. Such a block lies under those that are handed out of it.
    pub is_kept: bool,
    pub origin: Option<Origin>,
}

/// What was there when.
#[derive(Debug, Default)]
pub(super) struct Lifetimes {
    /// By address, and those at one address by time.
    pub blocks: Vec<Lifetime>,
    /// By owner, address and time.
    pub pieces: Vec<Piece>,
    /// For each event the block that it is about, by its place in `blocks`, or [`NONE`].
    pub blocks_of_events: Vec<u32>,
    /// Events that contradict the others.
    pub contradictions: u32,
}

impl Lifetimes {
    pub(super) fn of(device: &Device) -> Self {
        let mut rewind = Rewind::new(device);
        for (index, event) in device.events.iter().enumerate().rev() {
            rewind.undo(index, event);
        }
        rewind.finish()
    }
}

/// A history on its way backwards.
struct Rewind {
    granule_bytes: usize,
    mapped: Mapped,
    /// Blocks that are there at the moment that is looked at, by address.
    now: BTreeMap<usize, Tracked>,
    done: Vec<Tracked>,
    contradictions: u32,
    events: usize,
}

/// A block with the events about it, by number.
struct Tracked {
    block: Lifetime,
    events: Vec<u32>,
}

impl Rewind {
    fn new(device: &Device) -> Self {
        let mapped = Mapped::new(&device.segments);
        let mut rewind = Self {
            granule_bytes: device.granule_bytes,
            mapped,
            now: BTreeMap::new(),
            done: Vec::new(),
            contradictions: 0,
            events: device.events.len(),
        };
        device.blocks.iter().for_each(|held| rewind.hold(held));
        rewind
    }

    /// A block of the snapshot.
    fn hold(&mut self, held: &Held) {
        let block = Lifetime {
            range: held.range.clone(),
            requested_bytes: held.requested_bytes,
            owner: self.mapped.owner(held.range.start).unwrap_or(NONE),
            begin: 0,
            // A pending block is pending from the start, unless the history has its free.
            freed: if held.hold == Hold::Pending { 0 } else { NEVER },
            end: NEVER,
            is_kept: held.hold == Hold::Kept,
            origin: held.origin,
        };
        let tracked = Tracked { block, events: Vec::new() };
        if tracked.block.is_kept {
            self.done.push(tracked);
        } else {
            self.now.insert(held.range.start, tracked);
        }
    }

    /// Goes back over an event.
    fn undo(&mut self, index: usize, event: &Event) {
        let number = u32::try_from(index).expect("events are counted in 32 bits");
        let moment = number + 1;
        let range = event.address..event.address.saturating_add(event.bytes);
        match event.kind {
            Kind::Allocated => match self.now.remove(&event.address) {
                Some(mut tracked) => {
                    tracked.block.begin = moment;
                    tracked.block.origin = Some(event.origin);
                    tracked.events.push(number);
                    self.done.push(tracked);
                }
                None => self.contradictions += 1,
            },
            Kind::FreeCompleted => {
                if let Some(tracked) = self.insert(event, moment) {
                    tracked.block.freed = 0;
                    tracked.events.push(number);
                }
            }
            Kind::FreeRequested => {
                let is_pending = self.now.get(&event.address).is_some_and(|tracked| tracked.block.freed == 0);
                let tracked = match is_pending {
                    true => self.now.get_mut(&event.address),
                    false => self.insert(event, moment),
                };
                if let Some(tracked) = tracked {
                    tracked.block.freed = moment;
                    tracked.events.push(number);
                }
            }
            Kind::Mapped | Kind::PageMapped if !range.is_empty() => self.mapped.begin(range, moment),
            Kind::Unmapped | Kind::PageUnmapped if !range.is_empty() => {
                self.mapped.add(range, event.owner, event.kind == Kind::PageUnmapped, moment);
            }
            Kind::Mapped | Kind::PageMapped | Kind::Unmapped | Kind::PageUnmapped | Kind::OutOfMemory => {}
        }
    }

    /// A block that was there until this moment; `None` if it would overlap another.
    fn insert(&mut self, event: &Event, moment: u32) -> Option<&mut Tracked> {
        let start = event.address;
        let next = self.now.range(start..).next().map_or(usize::MAX, |(&next, _)| next);
        let before = self.now.range_mut(..start).next_back().map(|(_, tracked)| &mut tracked.block);
        let before_end = before.as_ref().map_or(0, |block| block.range.start + block.requested_bytes);
        if event.bytes == 0 || next - start < event.bytes || before_end > start {
            self.contradictions += 1;
            return None;
        }
        if let Some(block) = before {
            // It was not as long as rounding up made it.
            block.range.end = block.range.end.min(start);
        }
        let len = event.bytes.checked_next_multiple_of(self.granule_bytes).unwrap_or(event.bytes);
        let range = start..start.saturating_add(len).min(next);
        // What of it is not mapped the snapshot has no more, and the history does not tell of its end.
        self.mapped.add(start..start + event.bytes, event.owner, true, moment);
        let block = Lifetime {
            range,
            requested_bytes: event.bytes,
            owner: self.mapped.owner(start).unwrap_or(event.owner),
            begin: 0,
            freed: NEVER,
            end: moment,
            is_kept: false,
            origin: None,
        };
        Some(self.now.entry(start).or_insert(Tracked { block, events: Vec::new() }))
    }

    fn finish(mut self) -> Lifetimes {
        self.done.extend(self.now.into_values());
        self.done.sort_by_key(|tracked| (tracked.block.range.start, tracked.block.begin, tracked.block.end));
        let mut blocks_of_events = vec![NONE; self.events];
        for (index, tracked) in self.done.iter().enumerate() {
            let index = u32::try_from(index).expect("there are no more blocks than events and addresses");
            tracked.events.iter().for_each(|&event| blocks_of_events[event as usize] = index);
        }
        Lifetimes {
            blocks: self.done.into_iter().map(|tracked| tracked.block).collect(),
            pieces: self.mapped.finish(),
            blocks_of_events,
            contradictions: self.contradictions,
        }
    }
}

#[cfg(test)]
mod tests;
