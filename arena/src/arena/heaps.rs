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

    /// Lets buffers of a heap lie in a live block of the placement, which is the heap's from now on. `false` if there is
    /// no such heap.
    pub fn add_heap_block(&mut self, id: HeapId, block: AddressRange) -> bool {
        self.heaps.add_block(id, block)
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
        let align = options.granule_bytes;
        if let Some(buffer) = self.heaps.place(id, size_bytes) {
            return Ok(buffer);
        }
        let Some((wanted, needed)) = self.heaps.wanted_block(id, size_bytes) else {
            return Err(ArenaError::SizeOverflow { size_bytes, align_bytes: align });
        };
        let allocated = match self.allocate(Request::new(wanted).aligned_to(align)) {
            Err(ArenaError::OutOfMemory { .. }) if needed < wanted => {
                self.allocate(Request::new(needed).aligned_to(align)).map(|placed| (placed.addr, needed))
            }
            placed => placed.map(|placed| (placed.addr, wanted)),
        };
        let (addr, len) = allocated?;
        self.heaps.add_block(id, AddressRange::new(addr, len));
        let buffer = self.heaps.place(id, size_bytes);
        Ok(buffer.expect("the block has room for it"))
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

    /// Gives up what lies behind the last buffers. Whether that was anything.
    pub(super) fn give_back_of_heaps(&mut self) -> bool {
        let (unused, shorter) = self.heaps.give_back();
        let any = !unused.is_empty() || !shorter.is_empty();
        self.free_released(unused);
        for AddressRange { start, len } in shorter {
            let resized = self.placement.resize_in_place(start, len, &mut self.upstream);
            debug_assert!(resized.is_ok(), "a heap's block is the placement's");
        }
        any
    }
}
