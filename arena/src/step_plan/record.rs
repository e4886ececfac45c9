//! What a run asked for, and when it ended.

use std::collections::HashMap;

use rustc_hash::FxBuildHasher;

/// The end of what outlives its step.
pub(super) const LEAVES: u32 = u32::MAX;

/// What tells one request from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) size_bytes: usize,
    pub(super) align_bytes: usize,
    pub(super) zeroed: bool,
}

/// The requests of one run, in order.
#[derive(Debug, Clone, Default)]
pub(super) struct Record {
    pub(super) keys: Vec<Key>,
    /// How many requests had come when each block ended, or [`LEAVES`].
    pub(super) ends: Vec<u32>,
    /// Blocks of this run that are alive, by address.
    live: HashMap<usize, u32, FxBuildHasher>,
}

impl Record {
    /// A request that will be told of by [`placed`](Self::placed), or is known to lie at `addr`.
    pub(super) fn asked(&mut self, key: Key, addr: Option<usize>) {
        // 2^32 requests in a step would need 100 GiB for their record.
        let at = self.keys.len() as u32;
        self.keys.push(key);
        self.ends.push(LEAVES);
        if let Some(addr) = addr {
            self.live.insert(addr, at);
        }
    }

    /// The last request lies at `addr`.
    pub(super) fn placed(&mut self, addr: usize) {
        if let Some(last) = self.keys.len().checked_sub(1) {
            self.live.insert(addr, last as u32);
        }
    }

    pub(super) fn freed(&mut self, addr: usize) {
        if let Some(at) = self.live.remove(&addr) {
            self.ends[at as usize] = self.keys.len() as u32;
        }
    }

    /// The run is over: what lives now has left it.
    pub(super) fn close(&mut self) {
        self.live = HashMap::default();
    }

    /// Whether both ask for the same in the same order.
    pub(super) fn agrees(&self, other: &Self) -> bool {
        self.keys == other.keys
    }

    /// Takes the later of both ends.
    pub(super) fn merge(&mut self, other: &Self) {
        for (end, &other) in self.ends.iter_mut().zip(&other.ends) {
            *end = (*end).max(other);
        }
    }
}
