//! Buffers of an arena that may move: see [`buffer_heap`](crate::buffer_heap).

use super::Arena;
use crate::buffer_heap::{BufferId, Compaction, Effort, HeapId, HeapOptions, HeapStats, Moment};
use crate::error::ArenaError;
use crate::placement::{LiveBlock, Placement};
use crate::range::AddressRange;
use crate::request::Request;
use crate::step_plan::Freed;
use crate::upstream::Upstream;

impl<U: Upstream, P: Placement + ?Sized> Arena<U, P> {
    /// Sets how a heap's buffers move, if it exists.
    pub fn set_heap_options(&mut self, id: HeapId, options: HeapOptions) {
        if self.heaps.has(id) {
            self.heaps.add_heap(id, options);
        }
    }

    /// Lets buffers of a heap lie in a live block of the placement, which is the heap's from now on. The heap begins to
    /// exist if it does not.
    pub fn add_heap_block(&mut self, id: HeapId, options: HeapOptions, block: AddressRange) {
        self.heaps.add_heap(id, options);
        self.heaps.add_block(id, block);
    }

    /// Whether the heap exists.
    #[must_use]
    pub fn has_heap(&self, id: HeapId) -> bool {
        self.heaps.has(id)
    }

    /// Whether there is a heap.
    #[inline]
    #[must_use]
    pub fn has_heaps(&self) -> bool {
        !self.heaps.is_empty()
    }

    /// The heap ends to exist. Buffers that are somebody's stay valid.
    pub fn remove_heap(&mut self, id: HeapId) {
        let released = self.heaps.remove_heap(id);
        self.free_released(released);
    }

    /// A buffer of `size_bytes` in a heap, whose contents are kept while nobody has it. The heap gets these options,
    /// begins to exist if it does not, and takes a block from the placement where it has no room.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    pub fn add_moving_buffer(
        &mut self,
        id: HeapId,
        options: HeapOptions,
        size_bytes: usize,
    ) -> Result<BufferId, ArenaError> {
        self.heaps.add_heap(id, options);
        if let Some(buffer) = self.heaps.place(id, size_bytes) {
            return Ok(buffer);
        }
        let align_bytes = options.granule_bytes;
        let sizes = self.heaps.wanted_block(id, size_bytes);
        let taken =
            sizes.ok_or(ArenaError::SizeOverflow { size_bytes, align_bytes }).and_then(|(wanted, needed)| {
                match self.take_heap_block(id, wanted, align_bytes) {
                    Err(ArenaError::OutOfMemory { .. }) if needed < wanted => {
                        self.take_heap_block(id, needed, align_bytes)
                    }
                    taken => taken,
                }
            });
        if let Err(error) = taken {
            self.heaps.remove_if_empty(id);
            return Err(error);
        }
        let buffer = self.heaps.place(id, size_bytes);
        Ok(buffer.expect("the block has room for it"))
    }

    /// Takes a block of `bytes`, rounded up, from the placement for buffers of a heap to come. See
    /// [`add_moving_buffer`](Self::add_moving_buffer).
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    pub fn reserve_heap(&mut self, id: HeapId, options: HeapOptions, bytes: usize) -> Result<(), ArenaError> {
        let align_bytes = options.granule_bytes;
        let overflow = ArenaError::SizeOverflow { size_bytes: bytes, align_bytes };
        let len = bytes.max(1).checked_next_multiple_of(align_bytes).ok_or(overflow)?;
        self.heaps.add_heap(id, options);
        let taken = self.take_heap_block(id, len, align_bytes);
        self.heaps.remove_if_empty(id);
        taken
    }

    fn take_heap_block(&mut self, id: HeapId, len: usize, align_bytes: usize) -> Result<(), ArenaError> {
        let placed = self.allocate(Request::new(len).aligned_to(align_bytes))?;
        self.heaps.add_block(id, AddressRange::new(placed.addr, len));
        Ok(())
    }

    /// Removes a buffer of a heap. Its place is free once it is nobody's.
    pub fn remove_moving_buffer(&mut self, id: HeapId, buffer: BufferId) {
        self.heaps.remove_buffer(id, buffer);
    }

    /// Makes a buffer of a heap somebody's, if it is nobody's and holds `size_bytes`: its address, which stays
    /// until it is freed.
    #[inline]
    pub fn take_moving_buffer(&mut self, id: HeapId, buffer: BufferId, size_bytes: usize) -> Option<usize> {
        self.heaps.take(id, buffer, size_bytes)
    }

    /// Whether a buffer lies at the address, one that moves or one that stays, whoever has it.
    #[must_use]
    pub fn is_buffer(&self, addr: usize) -> bool {
        self.heaps.contains(addr) || self.steps.is_buffer(addr)
    }

    /// Live blocks, with all buffers instead of those that somebody has: what a run needs. A buffer that moves is listed at
    /// its [name](Self::name_of_moving_buffer).
    #[must_use]
    pub fn needed_blocks(&self) -> Vec<LiveBlock> {
        let mut blocks = self.live_blocks();
        blocks.retain(|block| !self.is_buffer(block.addr));
        let block = |addr, bytes| LiveBlock { addr, requested_bytes: bytes, allocated_bytes: bytes };
        blocks.extend(self.steps.buffers().map(|range| block(range.start, range.len)));
        let moving = self.heaps.buffers();
        blocks
            .extend(moving.map(|(id, buffer, bytes)| block(Self::name_of_moving_buffer(id, buffer), bytes)));
        blocks
    }

    /// A number for a buffer that moves, which is no address.
    #[must_use]
    pub fn name_of_moving_buffer(id: HeapId, buffer: BufferId) -> usize {
        (1 << (usize::BITS - 1)) | ((id.0 as usize) << 32) | buffer.0 as usize
    }

    /// Where a buffer of a heap lies.
    #[must_use]
    pub fn moving_buffer_addr(&self, id: HeapId, buffer: BufferId) -> Option<usize> {
        self.heaps.addr(id, buffer)
    }

    /// Whether a buffer of a heap is nobody's.
    #[must_use]
    pub fn is_free_moving_buffer(&self, id: HeapId, buffer: BufferId) -> bool {
        self.heaps.is_free(id, buffer)
    }

    /// See [`BufferHeaps::set_now`](crate::BufferHeaps::set_now).
    pub fn set_heaps_now(&mut self, now: Moment) {
        self.heaps.set_now(now);
    }

    /// Moves buffers of a heap together: see [`BufferHeaps::compact`](crate::BufferHeaps::compact). Blocks that are empty
    /// then are free.
    pub fn compact_heap(
        &mut self,
        id: HeapId,
        effort: Effort,
        copy: &mut dyn FnMut(usize, usize, usize) -> bool,
    ) -> Compaction {
        let (compaction, released) = self.heaps.compact(id, effort, copy);
        self.free_released(released);
        compaction
    }

    /// Moves the buffers of all heaps together that are to be moved when memory is short, and gives back what is behind
    /// them. The bytes that this freed.
    pub fn compact_on_oom(
        &mut self,
        effort: Effort,
        copy: &mut dyn FnMut(usize, usize, usize) -> bool,
    ) -> usize {
        let ids = self.heaps.to_compact_on_oom();
        if ids.is_empty() {
            return 0;
        }
        let before = self.placement.stats().allocated.current;
        for id in ids {
            self.compact_heap(id, effort, copy);
        }
        self.give_back_of_heaps();
        before.saturating_sub(self.placement.stats().allocated.current)
    }

    /// What a heap holds.
    #[must_use]
    pub fn heap_stats(&self, id: HeapId) -> HeapStats {
        self.heaps.stats(id)
    }

    /// Ends a buffer that is somebody's; `None` when the block is the placement's own, and an error for nobody's.
    #[inline]
    pub(super) fn free_in_heap(&mut self, addr: usize) -> Option<Result<LiveBlock, ArenaError>> {
        let (bytes, block) = match self.heaps.free(addr) {
            Freed::ByPool => return None,
            Freed::Unknown => return Some(Err(ArenaError::UnknownAddress { addr })),
            Freed::Kept { bytes } => (bytes, None),
            Freed::Last { bytes, slab } => (bytes, Some(slab)),
        };
        self.free_released(block.into_iter().collect());
        Some(Ok(LiveBlock { addr, requested_bytes: bytes, allocated_bytes: bytes }))
    }

    /// Whether a buffer of a heap lost what it held, because a copy failed in the middle.
    #[must_use]
    pub fn has_lost_contents(&self, id: HeapId, buffer: BufferId) -> bool {
        self.heaps.has_lost_contents(id, buffer)
    }

    /// Gives up what lies behind the last buffers, as far as the placement cuts blocks. Whether that was anything.
    pub(super) fn give_back_of_heaps(&mut self) -> bool {
        let unused = self.heaps.take_unused_blocks();
        let mut any = !unused.is_empty();
        self.free_released(unused);
        for used in self.heaps.used_parts() {
            let before = self.placement.live_block(used.start).map_or(0, |block| block.allocated_bytes);
            let resized = self.placement.resize_in_place(used.start, used.len, &mut self.upstream);
            debug_assert!(resized.is_ok(), "a heap's block is the placement's");
            let Ok(Some(block)) = resized else { continue };
            if block.allocated_bytes < before {
                self.heaps.resize_block(AddressRange::new(used.start, block.allocated_bytes));
                any = true;
            } else {
                // It keeps all of its block: so does the heap.
                let whole = self.placement.resize_in_place(used.start, before, &mut self.upstream);
                debug_assert!(whole.is_ok(), "a block holds what it held before");
            }
        }
        any
    }
}
