//! What happened, as PyTorch's traces have it.

use serde::{Deserialize, Serialize};

use super::BlockOwner;
use crate::device::Owner;
use crate::history::{self, Entry, Kind, Owned};

/// One thing that happened to memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceEntry {
    /// What.
    pub action: Action,
    /// The block's first address; none for a request that found no memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub addr: Option<usize>,
    /// For a request that found no memory: bytes that the device had free.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_free: Option<usize>,
    /// Bytes requested.
    pub size: usize,
    /// The stream, as in [`Segment::stream`](super::Segment::stream).
    pub stream: u64,
    /// Microseconds since 1970.
    pub time_us: u64,
    compile_context: String,
    /// The label.
    pub user_metadata: String,
    /// 0 and the pool's id.
    pub pool_id: (u64, u64),
    /// As those of blocks.
    pub frames: Vec<Frame>,
    /// The thread's name.
    pub thread: String,
    /// Steps that had ended.
    pub step: u32,
    /// Allocations of the step that came before.
    pub position: u32,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// A block was handed out.
    Alloc,
    /// Its owner freed it.
    FreeRequested,
    /// Nothing uses it any more.
    FreeCompleted,
    /// A request found no memory.
    Oom,
}

/// Where in a program something was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frame {
    /// A part of the label.
    pub name: String,
    /// The thread's name.
    pub filename: String,
    /// The step.
    pub line: u32,
}

/// A stream by number, 0 where there is none.
pub(crate) fn stream(order: Option<Owner>) -> u64 {
    match order {
        Some(Owner::Stream(id)) => id.0,
        Some(Owner::Capture(id, ..)) => id.0,
        Some(Owner::Synchronous | Owner::Ended) | None => 0,
    }
}

/// The names of who has a block. The caller is inside pool code.
pub(super) fn owner(by: Owned) -> BlockOwner {
    BlockOwner {
        label: history::label_name(by.label),
        thread: history::thread_name(by.thread),
        step: by.step,
        position: by.position,
        time_us: by.time_us,
        is_older: by.thread == 0,
    }
}

pub(super) fn frames(owner: &BlockOwner) -> Vec<Frame> {
    let parts = owner.label.rsplit('/').filter(|part| !part.is_empty());
    parts
        .map(|part| Frame { name: part.to_owned(), filename: owner.thread.clone(), line: owner.step })
        .collect()
}

/// An entry of the history. The caller is inside pool code.
pub(super) fn entry(entry: &Entry) -> TraceEntry {
    let owner = owner(entry.by);
    let action = match entry.kind {
        Kind::Allocated => Action::Alloc,
        Kind::Freed => Action::FreeRequested,
        Kind::Completed => Action::FreeCompleted,
        Kind::OutOfMemory => Action::Oom,
    };
    let is_oom = action == Action::Oom;
    TraceEntry {
        action,
        addr: (!is_oom).then_some(entry.addr),
        device_free: is_oom.then_some(entry.addr),
        size: entry.bytes,
        stream: stream(entry.source.order),
        time_us: entry.by.time_us,
        compile_context: "N/A".to_owned(),
        frames: frames(&owner),
        user_metadata: owner.label,
        pool_id: (0, entry.source.pool_id),
        thread: owner.thread,
        step: entry.by.step,
        position: entry.by.position,
    }
}
