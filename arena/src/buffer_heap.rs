//! Buffers that may move: places in a few blocks of the pool, which compaction slides together.
//!
//! A buffer keeps its contents while nobody has it, and is taken again and again. What is in nobody's hands may
//! lie anywhere, so [`compact`](BufferHeaps::compact) moves such buffers down into the holes that removed ones left, and
//! the caller copies what they hold. A buffer that is somebody's is never moved: its address is known outside.
//!
//! Buffers are of two generations. Young ones may move at each compaction, or every few; a buffer that
//! survived many compactions is old, settles in front, and is looked at much more rarely.
//!
//! Nothing here allocates from a pool or is synchronised: the pool's lock is the caller's.

mod compaction;
mod heap;

use self::heap::Heap;
use crate::invariant::Violation;
use crate::placement::LiveBlock;
use crate::range::AddressRange;
use crate::step_plan::Freed;

pub use self::compaction::{Compaction, Effort};

/// The name of a heap in its pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HeapId(pub u64);

/// The name of a buffer in its heap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub u64);

/// How the buffers of a heap are placed and moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeapOptions {
    /// Places are multiples of this power of two, in bytes.
    pub granule_bytes: usize,
    /// Young buffers are moved at every so many compactions. At least 1.
    pub every: u32,
    /// Old buffers are moved at every so many compactions. At least 1.
    pub old_every: u32,
    /// A buffer is old when it has survived so many compactions.
    pub old_after: u32,
    /// Whether buffers are moved when the pool finds no memory.
    pub on_oom: bool,
}

/// When a buffer was in somebody's hands, in a clock of the caller's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Moment {
    /// Never goes back. What a clock of captures shows is the number of those that began.
    pub count: u64,
    /// Something is going on that whoever has a buffer takes part in: a capture.
    pub recording: bool,
}

/// What a heap holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HeapStats {
    /// Number of buffers, those included that were removed and are still somebody's.
    pub buffers: usize,
    /// Their bytes, rounded up to places.
    pub buffer_bytes: usize,
    /// Bytes of the pool's blocks that they lie in.
    pub block_bytes: usize,
    /// Bytes between and in front of buffers, which only smaller buffers can use.
    pub hole_bytes: usize,
}

impl HeapStats {
    /// Share of the bytes up to the last buffers that holes have: between 0 and 1.
    #[must_use]
    pub fn fragmentation(&self) -> f64 {
        let used = self.buffer_bytes + self.hole_bytes;
        if used == 0 { 0.0 } else { self.hole_bytes as f64 / used as f64 }
    }
}

/// The heaps of one pool and stream. Few.
#[derive(Debug, Default)]
pub struct BufferHeaps {
    heaps: Vec<(HeapId, Heap)>,
    now: Moment,
}

impl BufferHeaps {
    /// Whether there is nothing to ask for.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.heaps.is_empty()
    }

    /// A new heap begins to exist, unless it does.
    pub fn add_heap(&mut self, id: HeapId, options: HeapOptions) {
        match self.find_mut(id) {
            Some(heap) => heap.set_options(options),
            None => self.heaps.push((id, Heap::new(options))),
        }
    }

    /// Whether the heap exists.
    #[must_use]
    pub fn has(&self, id: HeapId) -> bool {
        self.find(id).is_some()
    }

    /// The heap ends to exist. What is alive stays valid. Returns blocks that are the pool's to free.
    pub fn remove_heap(&mut self, id: HeapId) -> Vec<usize> {
        let Some(at) = self.position(id) else { return Vec::new() };
        let heap = &mut self.heaps[at].1;
        heap.retire();
        self.give_back_of(at)
    }

    /// A place for a new buffer of `size_bytes`, in a block that is there; `None` when it needs another
    /// [block](Self::add_block).
    pub fn place(&mut self, id: HeapId, size_bytes: usize) -> Option<BufferId> {
        self.find_mut(id)?.place(size_bytes)
    }

    /// Bytes that a block for a buffer of `size_bytes` should have, and has to have: the heap grows by half.
    #[must_use]
    pub fn wanted_block(&self, id: HeapId, size_bytes: usize) -> Option<(usize, usize)> {
        self.find(id)?.wanted_block(size_bytes)
    }

    /// Adds a block of the pool for buffers to lie in. `false` if there is no such heap.
    pub fn add_block(&mut self, id: HeapId, block: AddressRange) -> bool {
        self.find_mut(id).map(|heap| heap.add_block(block)).is_some()
    }

    /// Removes a buffer; its place is free once it is nobody's.
    pub fn remove_buffer(&mut self, id: HeapId, buffer: BufferId) {
        if let Some(heap) = self.find_mut(id) {
            heap.remove_buffer(buffer);
        }
    }

    /// Makes a buffer that holds `size_bytes` somebody's, until it is freed: its address. `None` if it is somebody's
    /// already, or shorter.
    #[inline]
    pub fn take(&mut self, id: HeapId, buffer: BufferId, size_bytes: usize) -> Option<usize> {
        let now = self.now;
        self.find_mut(id)?.take(buffer, size_bytes, now)
    }

    /// Where a buffer lies.
    #[must_use]
    pub fn addr(&self, id: HeapId, buffer: BufferId) -> Option<usize> {
        self.find(id)?.addr(buffer)
    }

    /// Whether a buffer is nobody's.
    #[must_use]
    pub fn is_free(&self, id: HeapId, buffer: BufferId) -> bool {
        self.find(id).is_some_and(|heap| heap.is_free(buffer))
    }

    /// What the caller's clock shows when buffers are taken and freed from now on.
    pub fn set_now(&mut self, now: Moment) {
        self.now = now;
    }

    /// A buffer ended to be somebody's. When it was a heap's, the pool must not free it.
    #[inline]
    pub fn free(&mut self, addr: usize) -> Freed {
        let Some(at) = self.heaps.iter().position(|(_, heap)| heap.contains(addr)) else {
            return Freed::ByPool;
        };
        let heap = &mut self.heaps[at].1;
        let Some(bytes) = heap.free(addr, self.now) else { return Freed::Unknown };
        if heap.is_retired()
            && let Some(block) = heap.take_unused_block()
        {
            if heap.has_no_blocks() {
                self.heaps.swap_remove(at);
            }
            return Freed::Last { bytes, slab: block };
        }
        Freed::Kept { bytes }
    }

    /// Moves buffers that are nobody's down into holes. `may_move` is asked for each by the last time that it was in
    /// somebody's hands, see [`Effort`]. `copy(from, to, bytes)` copies what a buffer holds, between ranges that do not
    /// overlap, or says that it cannot.
    ///
    /// Returns what was done and the blocks that are the pool's to free.
    pub fn compact(
        &mut self,
        id: HeapId,
        effort: Effort,
        copy: &mut dyn FnMut(usize, usize, usize) -> bool,
    ) -> (Compaction, Vec<usize>) {
        let Some(at) = self.position(id) else { return (Compaction::default(), Vec::new()) };
        let heap = &mut self.heaps[at].1;
        let mut compaction = compaction::compact(heap, effort, copy);
        let released = heap.take_unused_blocks();
        compaction.released_bytes = released.iter().map(|block| block.len).sum();
        (compaction, released.into_iter().map(|block| block.start).collect())
    }

    /// The heaps whose buffers move when memory is short.
    #[must_use]
    pub fn to_compact_on_oom(&self) -> Vec<HeapId> {
        self.heaps.iter().filter(|(_, heap)| heap.options().on_oom).map(|&(id, _)| id).collect()
    }

    /// Takes the blocks in which no buffer lies out of the heaps: they are the pool's to free.
    pub fn take_unused_blocks(&mut self) -> Vec<usize> {
        let unused = self.heaps.iter_mut().flat_map(|(_, heap)| heap.take_unused_blocks());
        unused.map(|block| block.start).collect()
    }

    /// The parts of blocks that have buffers in them, up to the last, where more follows: what the pool may cut blocks to.
    #[must_use]
    pub fn used_parts(&self) -> Vec<AddressRange> {
        self.heaps.iter().flat_map(|(_, heap)| heap.used_parts()).collect()
    }

    /// A block of the pool was cut, and is so long now.
    pub fn resize_block(&mut self, block: AddressRange) {
        self.heaps.iter_mut().for_each(|(_, heap)| heap.resize_block(block.start, block.len));
    }

    /// Whether a buffer lost what it held, because a copy failed in the middle.
    #[must_use]
    pub fn has_lost_contents(&self, id: HeapId, buffer: BufferId) -> bool {
        self.find(id).is_some_and(|heap| heap.has_lost_contents(buffer))
    }

    /// The heap ends to exist if nothing is in it.
    pub fn remove_if_empty(&mut self, id: HeapId) {
        self.heaps.retain(|(other, heap)| *other != id || !heap.has_no_blocks() || heap.is_retired());
    }

    /// The live buffer that starts at `addr`: its length in bytes.
    #[must_use]
    pub fn live_bytes(&self, addr: usize) -> Option<usize> {
        self.heaps.iter().find_map(|(_, heap)| heap.live_bytes(addr))
    }

    /// Whether buffers lie in the pool's block at `addr`: it is not somebody's.
    #[must_use]
    pub fn keeps(&self, addr: usize) -> bool {
        self.heaps.iter().any(|(_, heap)| heap.blocks().iter().any(|block| block.start == addr))
    }

    /// Whether the address lies in a heap.
    #[must_use]
    pub fn contains(&self, addr: usize) -> bool {
        self.heaps.iter().any(|(_, heap)| heap.contains(addr))
    }

    /// All live buffers.
    pub fn live_blocks(&self) -> impl Iterator<Item = LiveBlock> + '_ {
        self.heaps.iter().flat_map(|(_, heap)| heap.live_blocks())
    }

    /// All buffers that were not removed, and their bytes.
    pub fn buffers(&self) -> impl Iterator<Item = (HeapId, BufferId, usize)> + '_ {
        self.heaps.iter().flat_map(|(id, heap)| heap.buffers().map(move |(buffer, len)| (*id, buffer, len)))
    }

    /// All buffers that are nobody's.
    pub fn free_buffers(&self) -> impl Iterator<Item = AddressRange> + '_ {
        self.heaps.iter().flat_map(|(_, heap)| heap.free_buffers())
    }

    /// How many buffers are alive.
    #[must_use]
    pub fn live_count(&self) -> usize {
        self.live_blocks().count()
    }

    /// How many of the pool's blocks [`keeps`](Self::keeps) is true for.
    #[must_use]
    pub fn kept_count(&self) -> usize {
        self.heaps.iter().map(|(_, heap)| heap.blocks().len()).sum()
    }

    /// What a heap holds.
    #[must_use]
    pub fn stats(&self, id: HeapId) -> HeapStats {
        self.find(id).map_or_else(HeapStats::default, Heap::stats)
    }

    /// Looks at everything; for tests.
    ///
    /// # Errors
    /// The first rule that does not hold.
    pub fn validate(&self) -> Result<(), Violation> {
        self.heaps.iter().try_for_each(|(_, heap)| heap.check())
    }

    fn give_back_of(&mut self, at: usize) -> Vec<usize> {
        let heap = &mut self.heaps[at].1;
        let unused = heap.take_unused_blocks();
        if heap.has_no_blocks() {
            self.heaps.swap_remove(at);
        }
        unused.into_iter().map(|block| block.start).collect()
    }

    fn position(&self, id: HeapId) -> Option<usize> {
        self.heaps.iter().position(|(other, heap)| *other == id && !heap.is_retired())
    }

    fn find(&self, id: HeapId) -> Option<&Heap> {
        self.position(id).map(|at| &self.heaps[at].1)
    }

    fn find_mut(&mut self, id: HeapId) -> Option<&mut Heap> {
        self.position(id).map(|at| &mut self.heaps[at].1)
    }
}

#[cfg(test)]
mod tests;
