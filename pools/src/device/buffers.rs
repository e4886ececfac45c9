//! Buffers in a device's memory.

use mempool_arena::{AddressRange, ArenaError, BufferId, HeapOptions};

use crate::buffer_set::{ANOTHER_STREAM, Heap};
use crate::device::arena_slot::{ArenaSlot, Owner};
use crate::device::driver::Stream;
use crate::device::entry::{self, Call};
use crate::device::platform::Allocation;
use crate::device::pool_slot::PoolSlot;
use crate::device::upstream::DeviceArena;
use crate::error::PoolError;
use crate::recording::Change;
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
                    let Some(block) = core.arena.live_block(addr) else { return false };
                    core.arena.add_buffer(addr, block.allocated_bytes);
                    // The history is told of who has it: nobody yet.
                    core.note_to_history(Change::Ended { addr });
                    true
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
        self.in_heap(heap, stream, |call, arena| {
            let add = || {
                self.on_arena(arena, call, stream, |arena| arena.add_moving_buffer(heap.id, options, bytes))
            };
            match add()? {
                Ok(buffer) => return Ok((arena, buffer)),
                Err(ArenaError::OutOfMemory { .. }) => {}
                Err(error) => return Err(PoolError::Arena(error)),
            }
            // By all means, as for any allocation.
            let wanted = bytes.checked_next_multiple_of(DEVICE_GRANULE_BYTES).unwrap_or(bytes);
            let no_memory = PoolError::NoMemory { bytes, ordinal: self.device.ordinal };
            let Allocation::Block(addr) = self.allocate(call, wanted, None) else { return Err(no_memory) };
            let is_own = self.device.platform.owner(addr).is_some_and(|owner| std::ptr::eq(owner, arena));
            let given = is_own
                && self
                    .on_arena(arena, call, stream, |arena| {
                        arena.add_heap_block(heap.id, options, AddressRange::new(addr, wanted));
                    })
                    .is_ok();
            if let Some(core) = arena.lock().as_ref().filter(|_| given) {
                // What is told of are the buffers in it.
                core.note_buffer(Change::Ended { addr });
                core.note_to_history(Change::Ended { addr });
            }
            if !given {
                // The block is another pool's, which lent it.
                entry::free(self.device.platform, addr, Some(stream));
                return Err(no_memory);
            }
            add()?.map(|buffer| (arena, buffer)).map_err(PoolError::Arena)
        })
    }

    /// Takes a block for buffers of a heap to come.
    pub(crate) fn reserve_heap(
        &'static self,
        heap: &Heap,
        options: HeapOptions,
        bytes: usize,
        stream: Stream,
    ) -> Result<(), PoolError> {
        self.in_heap(heap, stream, |call, arena| {
            let reserved =
                self.on_arena(arena, call, stream, |arena| arena.reserve_heap(heap.id, options, bytes))?;
            reserved.map_err(PoolError::Arena)
        })
    }

    /// Runs `f` with the arena that a heap is in, or is to be in. The context is current.
    fn in_heap<R>(
        &'static self,
        heap: &Heap,
        stream: Stream,
        f: impl FnOnce(&Call, &'static ArenaSlot) -> Result<R, PoolError>,
    ) -> Result<R, PoolError> {
        let elsewhere = PoolError::NotHere { option: "buffer", rule: ANOTHER_STREAM };
        if self.has_guards() {
            return Err(PoolError::NotHere { option: "buffer", rule: "the pool has guards" });
        }
        self.device.note_moving_buffers();
        let done = self.device.with_context(|| {
            let call = Call::running(self.device, stream).ok_or(elsewhere.clone())?;
            let ours = heap.with_core(|core| core.owner == call.owner);
            let arena = match heap.arena().filter(|_| ours.is_some()) {
                Some(_) if ours == Some(false) => return Err(elsewhere.clone()),
                Some(arena) => arena,
                None => self.arena_for(&call)?,
            };
            // Known before anything is in it: whoever ends the heap has to find it.
            heap.set_arena(arena);
            f(&call, arena)
        });
        done.unwrap_or(Err(elsewhere))
    }

    fn on_arena<R>(
        &'static self,
        arena: &'static ArenaSlot,
        call: &Call,
        stream: Stream,
        f: impl FnOnce(&mut DeviceArena) -> R,
    ) -> Result<R, PoolError> {
        let mut guard = arena.lock_for(self, self.id(), call.owner).ok_or(PoolError::Closed)?;
        let core = guard.as_mut().ok_or(PoolError::Closed)?;
        core.drain();
        core.arena.upstream_mut().serve(Some(stream));
        let done = f(&mut core.arena);
        core.arena.upstream_mut().serve(None);
        core.note_kept_block();
        Ok(done)
    }
}
