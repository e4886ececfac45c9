//! Moving buffers in the host's memory.
#![allow(unsafe_code)] // listed in ARCHITECTURE.md

use mempool_arena::{Compaction, Effort, HeapId};

use crate::host_upstream::HostArena;

/// See [`Arena::compact_heap`].
pub(crate) fn compact(arena: &mut HostArena, heap: HeapId, effort: Effort) -> Compaction {
    arena.compact_heap(heap, effort, &mut copy)
}

/// See [`Arena::compact_on_oom`].
pub(crate) fn compact_on_oom(arena: &mut HostArena, effort: Effort) -> usize {
    arena.compact_on_oom(effort, &mut copy)
}

/// Copies a part of a buffer to the place that it gets.
fn copy(from: usize, to: usize, bytes: usize) -> bool {
    let source = std::ptr::with_exposed_provenance::<u8>(from);
    let target = std::ptr::with_exposed_provenance_mut::<u8>(to);
    // SAFETY: only the arena above calls this, with ranges in the blocks of a heap, which are live and mapped. It is
    // borrowed to be changed and nobody has the buffer, so nobody else reads or writes either range.
    unsafe { std::ptr::copy(source, target, bytes) };
    true
}
