//! Buffers in a device's memory.

use mempool_arena::{AddressRange, ArenaError, BufferId, HeapId, HeapOptions};

use crate::buffer_set::{ANOTHER_STREAM, Heap};
use crate::device::arena_slot::{ArenaSlot, Owner};
use crate::device::driver::Stream;
use crate::device::entry::{self, Call};
use crate::device::platform::Allocation;
use crate::device::pool_slot::PoolSlot;
use crate::error::PoolError;
use crate::step::DEVICE_GRANULE_BYTES;

impl PoolSlot {
    /// Moves the buffers together that are to be when memory is short, as far as they are used in the order of
    /// `stream`, this owner's. The bytes that this freed. The context is current.
    pub(crate) fn compact_on_oom(&'static self, owner: Owner, stream: Stream) -> usize {
        let mut freed = 0;
        self.for_each_arena(|core| {
            if core.owner == owner && core.arena.has_heaps() {
                freed += core.compact_on_oom(stream);
            }
        });
        freed
    }

    /// A block that is kept as a buffer, in the order of a stream, and the arena it lies in.
    pub(crate) fn buffer(
        &'static self,
        bytes: usize,
        stream: Stream,
    ) -> Result<(&'static ArenaSlot, usize), PoolError> {
        let unusable = PoolError::NotHere { option: "stream", rule: "it is another device's, or in capture" };
        let made = self.device.with_context(|| {
            let call = Call::running(self.device, stream).ok_or(unusable.clone())?;
            let Allocation::Block(addr) = self.allocate(&call, bytes, None) else {
                return Err(PoolError::NoMemory { bytes, ordinal: self.device.ordinal });
            };
            // The block may be another pool's, which lent it, or lie between margins: neither can be kept.
            let arena = self.device.platform.owner(addr).ok_or(unusable.clone())?;
            let kept =
                arena.lock().as_mut().filter(|core| std::ptr::eq(core.pool, self)).is_some_and(|core| {
                    let block = core.arena.live_block(addr);
                    block.map(|block| core.arena.add_buffer(addr, block.allocated_bytes)).is_some()
                });
            if kept {
                return Ok((arena, addr));
            }
            entry::free(self.device.platform, addr, Some(stream));
            Err(PoolError::NotHere { option: "buffer", rule: "the pool borrows its memory, or has guards" })
        });
        made.unwrap_or(Err(unusable))
    }

    /// A buffer in a heap, and the arena that it lies in.
    pub(crate) fn moving_buffer(
        &'static self,
        heap: &Heap,
        options: HeapOptions,
        bytes: usize,
        stream: Stream,
    ) -> Result<(&'static ArenaSlot, BufferId), PoolError> {
        let elsewhere = PoolError::NotHere { option: "buffer", rule: ANOTHER_STREAM };
        if self.has_guards() {
            return Err(PoolError::NotHere { option: "buffer", rule: "the pool has guards" });
        }
        self.device.note_moving_buffers();
        let added = self.device.with_context(|| {
            let call = Call::running(self.device, stream).ok_or(elsewhere.clone())?;
            let ours = heap.with_core(|core| core.owner == call.owner);
            let arena = match heap.arena().filter(|_| ours.is_some()) {
                Some(_) if ours == Some(false) => return Err(elsewhere.clone()),
                Some(arena) => arena,
                None => self.arena_for(&call)?,
            };
            let add = || {
                let mut guard = arena.lock_for(self, self.id(), call.owner).ok_or(PoolError::Closed)?;
                let core = guard.as_mut().ok_or(PoolError::Closed)?;
                core.drain();
                core.arena.upstream_mut().serve(Some(stream));
                let added = core.arena.add_moving_buffer(heap.id, options, bytes);
                core.arena.upstream_mut().serve(None);
                Ok::<_, PoolError>(added)
            };
            match add()? {
                Ok(buffer) => return Ok((arena, buffer)),
                Err(ArenaError::OutOfMemory { .. }) => {}
                Err(error) => return Err(PoolError::Arena(error)),
            }
            // By all means, as for any allocation.
            let wanted = bytes.checked_next_multiple_of(DEVICE_GRANULE_BYTES).unwrap_or(bytes);
            let no_memory = PoolError::NoMemory { bytes, ordinal: self.device.ordinal };
            let Allocation::Block(addr) = self.allocate(&call, wanted, None) else {
                return Err(no_memory);
            };
            let kept = self.device.platform.owner(addr).is_some_and(|owner| std::ptr::eq(owner, arena));
            let block = AddressRange::new(addr, wanted);
            if !kept || !self.give_to_heap(arena, heap.id, block) {
                // The block is another pool's, which lent it.
                entry::free(self.device.platform, addr, Some(stream));
                return Err(no_memory);
            }
            add()?.map(|buffer| (arena, buffer)).map_err(PoolError::Arena)
        });
        let (arena, buffer) = added.unwrap_or(Err(elsewhere))?;
        heap.set_arena(arena);
        Ok((arena, buffer))
    }

    fn give_to_heap(&self, arena: &'static ArenaSlot, heap: HeapId, block: AddressRange) -> bool {
        arena.lock().as_mut().is_some_and(|core| core.arena.add_heap_block(heap, block))
    }
}
