//! A history's entries and owners.

use std::collections::{HashMap, VecDeque};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use mempool_arena::LiveBlock;
use rustc_hash::FxBuildHasher;

use super::observed::Mapping;
use super::{label, stacks};
use crate::device::DeviceId;
use crate::recording::{Change, Source};

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A block was handed out.
    Allocated,
    /// Its owner freed it.
    Freed,
    /// Nothing uses it any more.
    Completed,
    /// A request found no memory: the address is what the device had free.
    OutOfMemory,
    /// Memory was mapped.
    Mapped,
    /// Memory was unmapped.
    Unmapped,
}

/// One thing that happened.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) kind: Kind,
    pub(crate) addr: usize,
    /// Bytes requested, or mapped.
    pub(crate) bytes: usize,
    pub(crate) source: Source,
    pub(crate) by: Owned,
}

/// When, by whom and for what.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Owned {
    /// Microseconds since 1970.
    pub(crate) time_us: u64,
    /// By number, see [`label`]; 0 for what was there before the history began.
    pub(crate) thread: u32,
    pub(crate) label: u32,
    /// Steps that had ended.
    pub(crate) step: u32,
    /// Allocations of the step that came before.
    pub(crate) position: u32,
    /// By number, see [`stacks`]; 0 where it is not kept.
    pub(crate) stack: u32,
}

/// A live block.
#[derive(Debug, Clone, Copy)]
struct Live {
    bytes: usize,
    by: Owned,
}

/// See the module's text.
#[derive(Debug, Clone)]
pub(crate) struct Log {
    /// The clock at the beginning: now, and in microseconds since 1970.
    start: (Instant, u64),
    max_entries: usize,
    entries: VecDeque<Entry>,
    /// Entries that are no longer kept.
    dropped: u64,
    live: HashMap<(Option<DeviceId>, usize), Live, FxBuildHasher>,
    step: u32,
    position: u32,
}

impl Log {
    pub(crate) fn new(max_entries: usize) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            start: (Instant::now(), since.as_micros() as u64),
            max_entries,
            entries: VecDeque::new(),
            dropped: 0,
            live: HashMap::default(),
            step: 0,
            position: 0,
        }
    }

    /// The entries that are kept, the first first.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter()
    }

    /// When it began, in microseconds since 1970.
    pub(crate) fn began_us(&self) -> u64 {
        self.start.1
    }

    /// Entries that are no longer kept.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Who has the live block at an address.
    pub(crate) fn owner(&self, device: Option<DeviceId>, addr: usize) -> Option<Owned> {
        self.live.get(&(device, addr)).map(|live| live.by)
    }

    fn now(&self) -> Owned {
        Owned {
            time_us: self.start.1 + self.start.0.elapsed().as_micros() as u64,
            thread: label::thread(),
            label: label::current(),
            step: self.step,
            position: self.position,
            stack: 0,
        }
    }

    /// As [`now`](Self::now), for what the request in progress causes.
    fn requested_now(&self) -> Owned {
        Owned { stack: stacks::taken(), ..self.now() }
    }

    pub(super) fn note(&mut self, source: Source, change: Change) {
        match change {
            Change::Allocated { addr, size_bytes } => self.allocate(source, addr, size_bytes),
            Change::Freed { addr } => {
                let bytes = self.live.get(&(source.device, addr)).map_or(0, |live| live.bytes);
                self.push(Kind::Freed, source, addr, bytes);
            }
            Change::Completed { addr } => self.complete(source, addr),
            Change::Ended { addr } => self.end(source, addr),
            Change::Resized { addr, size_bytes } => {
                self.end(source, addr);
                self.allocate(source, addr, size_bytes);
            }
        }
    }

    fn allocate(&mut self, source: Source, addr: usize, bytes: usize) {
        let by = self.requested_now();
        self.position = self.position.saturating_add(1);
        self.live.insert((source.device, addr), Live { bytes, by });
        self.keep(Entry { kind: Kind::Allocated, addr, bytes, source, by });
    }

    fn end(&mut self, source: Source, addr: usize) {
        let bytes = self.live.get(&(source.device, addr)).map_or(0, |live| live.bytes);
        self.push(Kind::Freed, source, addr, bytes);
        self.complete(source, addr);
    }

    fn complete(&mut self, source: Source, addr: usize) {
        let bytes = self.live.remove(&(source.device, addr)).map_or(0, |live| live.bytes);
        self.push(Kind::Completed, source, addr, bytes);
    }

    /// A block that was live before the history began, unless it was told of since.
    pub(super) fn list(&mut self, source: Source, block: LiveBlock) {
        let by = Owned { time_us: self.start.1, thread: 0, label: 0, step: 0, position: 0, stack: 0 };
        let live = Live { bytes: block.requested_bytes, by };
        self.live.entry((source.device, block.addr)).or_insert(live);
    }

    pub(crate) fn note_oom(&mut self, source: Source, bytes: usize, free_bytes: usize) {
        let by = self.requested_now();
        self.keep(Entry { kind: Kind::OutOfMemory, addr: free_bytes, bytes, source, by });
    }

    pub(super) fn note_mapping(&mut self, source: Source, mapping: Mapping) {
        let (kind, range) = match mapping {
            Mapping::Mapped(range) => (Kind::Mapped, range),
            Mapping::Unmapped(range) => (Kind::Unmapped, range),
        };
        if !range.is_empty() {
            let by = self.requested_now();
            self.keep(Entry { kind, addr: range.start, bytes: range.len, source, by });
        }
    }

    pub(super) fn end_step(&mut self) {
        self.step = self.step.saturating_add(1);
        self.position = 0;
    }

    fn push(&mut self, kind: Kind, source: Source, addr: usize, bytes: usize) {
        let by = self.now();
        self.keep(Entry { kind, addr, bytes, source, by });
    }

    fn keep(&mut self, entry: Entry) {
        if self.entries.len() >= self.max_entries {
            self.dropped += 1;
            if self.entries.pop_front().is_none() {
                return;
            }
        }
        self.entries.push_back(entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_that_ended_is_nobodys() {
        let source = Source { device: None, pool_id: 3, order: None };
        let mut log = Log::new(10);
        for end in [Change::Ended { addr: 64 }, Change::Completed { addr: 64 }] {
            log.note(source, Change::Allocated { addr: 64, size_bytes: 100 });
            assert!(log.owner(None, 64).is_some());
            log.note(source, end);
            assert!(log.owner(None, 64).is_none());
        }
        assert!(log.entries().all(|entry| entry.bytes == 100));
    }
}
