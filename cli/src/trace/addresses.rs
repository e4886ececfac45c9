//! Numbers for allocations that a format names by their address, which serves again.

use std::collections::HashMap;

use mempool_pools::arena::trace::Event;

use super::Trace;

/// A trace as its events come in.
#[derive(Debug, Default)]
pub(super) struct ByAddress {
    trace: Trace,
    live: HashMap<u64, u64>,
    next: u64,
}

impl ByAddress {
    /// An allocation. One that is live at the same address was freed unseen.
    pub(super) fn allocate(&mut self, addr: u64, size_bytes: usize, stream: u64) {
        self.next += 1;
        if let Some(id) = self.live.insert(addr, self.next) {
            self.trace.events.push(Event::Free { id });
        }
        self.trace.events.push(Event::Allocate { id: self.next, size_bytes, stream });
    }

    pub(super) fn free(&mut self, addr: u64) {
        match self.live.remove(&addr) {
            Some(id) => self.trace.events.push(Event::Free { id }),
            None => self.trace.unknown_frees += 1,
        }
    }

    pub(super) fn finish(self) -> Trace {
        self.trace
    }
}
