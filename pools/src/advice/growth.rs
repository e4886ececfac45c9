//! Buffers that grow by being allocated anew, as a cache does that `cat` makes longer.
//!
//! Each time a larger block is allocated, filled from the old one, and the old one is freed. What gives it away is
//! that the blocks follow each other by the same number of bytes, again and again.

use std::collections::VecDeque;

use mempool_arena::trace::Event;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

/// So many sizes in a row, each larger than the last by the same, are growth. By chance that does not happen: where
/// one in ten blocks has a neighbour of the right size, one in 10^8 chains is as long.
const CHAIN: usize = 8;
/// The larger block is one of so many that were allocated last when the smaller one is freed: a layer's work lies
/// between the two.
const LOOKED_BACK: usize = 32;
/// Blocks below this are not looked at: what they cost is not memory.
const SMALLEST_BYTES: usize = 4096;

/// Buffers that grow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Growth {
    /// Buffers that grew in at least eight equal steps.
    pub buffers: u64,
    /// The most of them that lived at once.
    pub live_buffers: u64,
    /// The size that the largest of them came to, in bytes.
    pub largest_bytes: usize,
    /// What those that lived at once came to at most, in bytes: what they need as buffers of their last size, if
    /// each has memory of its own.
    pub final_bytes: usize,
    /// Share of all bytes asked for that went into copies of them.
    pub share: f64,
}

#[derive(Debug, Clone, Copy)]
struct Block {
    size_bytes: usize,
    stream: u64,
    /// The chain that it is the last of.
    chain: Option<usize>,
}

/// Blocks of which each takes the place of the one before.
#[derive(Debug, Clone, Default)]
struct Chain {
    step_bytes: usize,
    /// Events that allocated its blocks, ...
    born: Vec<usize>,
    /// ... and those that freed them: all, or all but the last.
    freed: Vec<usize>,
    /// Bytes of all its blocks.
    bytes: u64,
    /// Bytes of the last one.
    size_bytes: usize,
}

/// The chains of a run, for what is made of them.
#[derive(Debug, Clone)]
pub(super) struct Grown {
    chains: Vec<Chain>,
    all_bytes: u64,
}

impl Grown {
    /// Those of a trace that is known to be valid.
    pub(super) fn find(events: &[Event]) -> Self {
        let mut finder = Finder::default();
        let mut all_bytes = 0_u64;
        for (at, event) in events.iter().enumerate() {
            match *event {
                Event::Allocate { id, size_bytes, stream } => {
                    all_bytes += size_bytes as u64;
                    if size_bytes >= SMALLEST_BYTES {
                        finder.allocate(at, id, size_bytes, stream);
                    }
                }
                Event::Free { id } => finder.free(at, id),
                Event::FreeCompleted { .. } | Event::StepEnd { .. } => {}
            }
        }
        finder.chains.retain(|chain| chain.born.len() > CHAIN);
        Self { chains: finder.chains, all_bytes }
    }

    /// What they come to; `None` where nothing grows.
    pub(super) fn growth(&self) -> Option<Growth> {
        let largest_bytes = self.chains.iter().map(|chain| chain.size_bytes).max()?;
        let copies: u64 = self.chains.iter().map(|chain| chain.bytes).sum();
        let mut changes: Vec<(usize, bool, usize)> = Vec::with_capacity(2 * self.chains.len());
        for chain in &self.chains {
            changes.push((chain.born[0], true, chain.size_bytes));
            changes.extend(chain.last_free().map(|at| (at, false, chain.size_bytes)));
        }
        changes.sort_unstable();
        let (mut live, mut bytes) = (0_u64, 0_usize);
        let (mut live_buffers, mut final_bytes) = (0, 0);
        for (_, begins, size_bytes) in changes {
            if begins {
                (live, bytes) = (live + 1, bytes + size_bytes);
                (live_buffers, final_bytes) = (live_buffers.max(live), final_bytes.max(bytes));
            } else {
                (live, bytes) = (live - 1, bytes - size_bytes);
            }
        }
        let buffers = self.chains.len() as u64;
        let share = super::repeats::share(copies, self.all_bytes);
        Some(Growth { buffers, live_buffers, largest_bytes, final_bytes, share })
    }

    /// The run with so many buffers for each chain, one after the other: each takes the place of an equal number of
    /// blocks, and is allocated where the first of those was, as large as the last. One is a buffer of the last size.
    pub(super) fn in_parts(&self, events: &[Event], parts: usize) -> Vec<Event> {
        let most = events.iter().filter_map(|event| match event {
            Event::Allocate { id, .. } => Some(*id),
            _ => None,
        });
        // Ids serve again while a buffer lives, so buffers have others.
        let mut id = most.max().unwrap_or(0);
        // What becomes of events of chains; `None` for nothing.
        let mut instead: FxHashMap<usize, Option<Event>> = FxHashMap::default();
        for chain in &self.chains {
            instead.extend(chain.born.iter().chain(&chain.freed).map(|&at| (at, None)));
            let blocks = chain.born.len();
            for part in 0..parts {
                let (first, last) = (blocks * part / parts, blocks * (part + 1) / parts - 1);
                id = id.saturating_add(1);
                if let (Event::Allocate { stream, .. }, Event::Allocate { size_bytes, .. }) =
                    (events[chain.born[first]], events[chain.born[last]])
                {
                    instead.insert(chain.born[first], Some(Event::Allocate { id, size_bytes, stream }));
                }
                if let Some(&at) = chain.freed.get(last) {
                    instead.insert(at, Some(Event::Free { id }));
                }
            }
        }
        let event = |(at, &event): (usize, &Event)| instead.get(&at).copied().unwrap_or(Some(event));
        // Completions tell nothing that replays look at, and may be of blocks that are no more.
        let all = events.iter().enumerate().filter_map(event);
        all.filter(|event| !matches!(event, Event::FreeCompleted { .. })).collect()
    }
}

impl Chain {
    /// The end of its last block.
    fn last_free(&self) -> Option<usize> {
        self.freed.get(self.born.len() - 1).copied()
    }
}

#[derive(Debug, Default)]
struct Finder {
    live: FxHashMap<u64, (Block, usize)>,
    last: VecDeque<u64>,
    chains: Vec<Chain>,
}

impl Finder {
    fn allocate(&mut self, at: usize, id: u64, size_bytes: usize, stream: u64) {
        self.live.insert(id, (Block { size_bytes, stream, chain: None }, at));
        if self.last.len() == LOOKED_BACK {
            self.last.pop_front();
        }
        self.last.push_back(id);
    }

    /// A block ends: the one that takes its place is larger, and was allocated lately.
    fn free(&mut self, at: usize, id: u64) {
        let Some((mut old, since)) = self.live.remove(&id) else { return };
        if let Some(chain) = old.chain {
            self.chains[chain].freed.push(at);
        }
        let mut next = self.next_of(&old, since);
        if next.is_none() && old.chain.is_some_and(|chain| self.chains[chain].born.len() == 2) {
            // What two blocks seemed to begin was chance.
            old.chain = None;
            next = self.next_of(&old, since);
        }
        let Some((next, size_bytes)) = next else { return };
        let chain = old.chain.unwrap_or_else(|| {
            self.chains.push(Chain {
                step_bytes: size_bytes - old.size_bytes,
                born: vec![since],
                freed: vec![at],
                bytes: old.size_bytes as u64,
                size_bytes: old.size_bytes,
            });
            self.chains.len() - 1
        });
        if let Some((new, born)) = self.live.get_mut(&next) {
            new.chain = Some(chain);
            let chain = &mut self.chains[chain];
            chain.born.push(*born);
            (chain.bytes, chain.size_bytes) = (chain.bytes + size_bytes as u64, size_bytes);
        }
    }

    /// The block that may be the next one of a chain, and its bytes.
    fn next_of(&self, old: &Block, since: usize) -> Option<(u64, usize)> {
        let step_bytes = old.chain.map(|chain| self.chains[chain].step_bytes);
        // The last free is that of the block itself. What was there while the one before it still was is not made of it:
        // so sizes that happen to rise, as those of layers do, are no growth.
        let before = old.chain.and_then(|chain| self.chains[chain].freed.iter().nth_back(1).copied());
        let since = before.map_or(since, |freed| freed.max(since));
        let follows = |new: &Block| {
            let is_larger = match step_bytes {
                Some(step) => new.size_bytes == old.size_bytes + step,
                // What is twice as large is something else.
                None => new.size_bytes > old.size_bytes && new.size_bytes / 2 <= old.size_bytes,
            };
            new.stream == old.stream && new.chain.is_none() && is_larger
        };
        let last = self.last.iter().rev().filter_map(|&other| Some((other, self.live.get(&other)?)));
        let later = last.filter(|(_, (new, born))| *born > since && follows(new));
        later.map(|(other, (new, _))| (other, new.size_bytes)).min_by_key(|&(_, size_bytes)| size_bytes)
    }
}
