//! One recording: names for blocks and streams, and what was counted.

use std::collections::HashMap;
use std::io;

use mempool_arena::LiveBlock;
use mempool_arena::trace::Event;

use crate::device::Owner;
use crate::error::PoolError;
use crate::recording::output::Output;
use crate::recording::{Change, RecordingId, Scope, TraceSummary};

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Recorder {
    id: RecordingId,
    scope: Scope,
    /// The id of each block in the trace by its address, from its allocation until no work uses it. What
    /// is not here was freed before the recording could list it, and is nobody's in the trace.
    ids: HashMap<usize, u64>,
    /// Numbers of streams, in order of appearance.
    streams: HashMap<Owner, u64>,
    /// Its events are [`TraceSummary::events`], and so on.
    allocations: u64,
    events: u64,
    steps: u64,
    output: Output,
    failure: Option<io::Error>,
    /// This process is a forked child; the recording is its parent's.
    parents: bool,
}

impl Recorder {
    pub(super) fn new(id: RecordingId, scope: Scope, output: Output) -> Self {
        Self {
            id,
            scope,
            ids: HashMap::new(),
            streams: HashMap::new(),
            allocations: 0,
            events: 0,
            steps: 0,
            output,
            failure: None,
            parents: false,
        }
    }

    pub(super) fn id(&self) -> RecordingId {
        self.id
    }

    pub(super) fn scope(&self) -> Scope {
        self.scope
    }

    pub(super) fn is_parents(&self) -> bool {
        self.parents
    }

    pub(super) fn leave_to_parent(&mut self) {
        self.parents = true;
    }

    /// Writes what became of a block.
    pub(super) fn note(&mut self, order: Option<Owner>, change: Change) {
        match change {
            Change::Allocated { addr, size_bytes } => self.allocate(order, addr, size_bytes),
            Change::Freed { addr } => {
                if let Some(&id) = self.ids.get(&addr) {
                    self.write(Event::Free { id });
                }
            }
            Change::Completed { addr } => {
                if let Some(id) = self.ids.remove(&addr) {
                    self.write(Event::FreeCompleted { id });
                }
            }
            Change::Ended { addr } => self.end(addr),
            Change::Resized { addr, size_bytes } => {
                self.end(addr);
                self.allocate(order, addr, size_bytes);
            }
        }
    }

    /// Writes a block that was live when the recording began, unless it was told of since.
    pub(super) fn list(&mut self, order: Option<Owner>, block: LiveBlock) {
        if !self.ids.contains_key(&block.addr) {
            self.allocate(order, block.addr, block.requested_bytes);
        }
    }

    pub(super) fn end_step(&mut self) {
        self.steps += 1;
        self.write(Event::StepEnd { step: self.steps });
    }

    fn allocate(&mut self, order: Option<Owner>, addr: usize, size_bytes: usize) {
        let next = self.streams.len() as u64;
        let stream = order.map_or(0, |order| *self.streams.entry(order).or_insert(next));
        let id = self.allocations;
        self.allocations += 1;
        let before = self.ids.insert(addr, id);
        debug_assert!(before.is_none(), "a block is handed out once");
        self.write(Event::Allocate { id, size_bytes, stream });
    }

    fn end(&mut self, addr: usize) {
        if let Some(id) = self.ids.remove(&addr) {
            self.write(Event::Free { id });
            self.write(Event::FreeCompleted { id });
        }
    }

    fn write(&mut self, event: Event) {
        if self.parents {
            return;
        }
        self.events += 1;
        if self.failure.is_none() {
            self.failure = self.output.write(event).err();
        }
    }

    /// Writes what is left. In a forked child nothing is written.
    pub(super) fn finish(mut self) -> Result<TraceSummary, PoolError> {
        if self.parents {
            return Err(PoolError::RecordedByParent);
        }
        if self.failure.is_none() {
            self.failure = self.output.finish().err();
        }
        let Some(error) = self.failure else {
            return Ok(TraceSummary {
                events: self.events,
                allocations: self.allocations,
                steps: self.steps,
                bytes_written: self.output.written_bytes(),
            });
        };
        Err(self.output.error(&error, self.events - self.output.written_events()))
    }
}
