//! What happened, as PyTorch's traces have it.

use serde::{Deserialize, Serialize};

use super::{BlockOwner, Empty};
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
    pub(super) compile_context: String,
    /// The label.
    pub user_metadata: String,
    /// As [`Segment::segment_pool_id`](super::Segment::segment_pool_id).
    pub pool_id: (u64, u64),
    /// As that of blocks.
    pub stack: Option<u32>,
    pub(super) frames: Empty,
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
    /// A segment was taken that does not grow.
    SegmentAlloc,
    /// A segment was given back that does not grow.
    SegmentFree,
    /// Memory of a segment that grows was mapped.
    SegmentMap,
    /// Memory of a segment that grows was unmapped.
    SegmentUnmap,
    /// Something that is not known here.
    #[serde(other)]
    Other,
}

impl Action {
    /// As it stands in files.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Alloc => "alloc",
            Self::FreeRequested => "free_requested",
            Self::FreeCompleted => "free_completed",
            Self::Oom => "oom",
            Self::SegmentAlloc => "segment_alloc",
            Self::SegmentFree => "segment_free",
            Self::SegmentMap => "segment_map",
            Self::SegmentUnmap => "segment_unmap",
            Self::Other => "other",
        }
    }

    /// The one that stands in files as this.
    pub(super) fn named(name: &str) -> Self {
        const ALL: [Action; 8] = [
            Action::Alloc,
            Action::FreeRequested,
            Action::FreeCompleted,
            Action::Oom,
            Action::SegmentAlloc,
            Action::SegmentFree,
            Action::SegmentMap,
            Action::SegmentUnmap,
        ];
        ALL.into_iter().find(|action| action.name() == name).unwrap_or(Self::Other)
    }
}

/// What PyTorch has where nothing is compiled.
pub(super) const NO_CONTEXT: &str = "N/A";

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

/// The history's number of a call stack, in whose place that in [`Extra::stacks`](super::Extra::stacks) comes.
pub(super) fn number_of(by: Owned) -> Option<u32> {
    (by.stack > 0).then_some(by.stack)
}

/// An entry of the history, of a pool whose segments grow or do not. The caller is inside pool code.
pub(super) fn entry(entry: &Entry, grows: bool) -> TraceEntry {
    let owner = owner(entry.by);
    let action = match entry.kind {
        Kind::Allocated => Action::Alloc,
        Kind::Freed => Action::FreeRequested,
        Kind::Completed => Action::FreeCompleted,
        Kind::OutOfMemory => Action::Oom,
        Kind::Mapped if grows => Action::SegmentMap,
        Kind::Mapped => Action::SegmentAlloc,
        Kind::Unmapped if grows => Action::SegmentUnmap,
        Kind::Unmapped => Action::SegmentFree,
    };
    let is_oom = action == Action::Oom;
    TraceEntry {
        action,
        addr: (!is_oom).then_some(entry.addr),
        device_free: is_oom.then_some(entry.addr),
        size: entry.bytes,
        stream: stream(entry.source.order),
        time_us: entry.by.time_us,
        compile_context: NO_CONTEXT.to_owned(),
        stack: number_of(entry.by),
        frames: Empty,
        user_metadata: owner.label,
        pool_id: (0, entry.source.pool_id),
        thread: owner.thread,
        step: entry.by.step,
        position: entry.by.position,
    }
}
