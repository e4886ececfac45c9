//! Memory of known size that is allocated once and written every step.

use std::sync::Arc;

use mempool_arena::{Arena, BufferId, HeapId, Placed, Request, Upstream};

use crate::buffer_set::Heap;

use crate::device::{ArenaSlot, PoolSlot, Stream};
use crate::error::PoolError;
use crate::host_upstream::HostArena;
use crate::pool::{MemPool, Place};
use crate::recording::Change;
use crate::slot::Slot;
use crate::steering::{self, Learned};
use crate::step::HOST_GRANULE_BYTES;
use crate::thread_state::inside;

/// Results of so many sizes are known by heart.
const LEARNED_SIZES: usize = 16;

/// A buffer's block.
#[derive(Debug, Clone, Copy)]
pub(crate) enum BufferPlace {
    Host { slot: &'static Slot, pool_id: u64, spot: Spot },
    Device { pool: &'static PoolSlot, arena: &'static ArenaSlot, spot: Spot },
}

/// Where it lies in its arena.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Spot {
    /// Always here.
    Fixed(usize),
    /// Wherever its heap has it.
    Moving(HeapId, BufferId),
}

impl Spot {
    pub(crate) fn take<U: Upstream>(self, arena: &mut Arena<U>, size_bytes: usize) -> Option<usize> {
        match self {
            Self::Fixed(addr) => arena.take_buffer(addr, size_bytes).then_some(addr),
            Self::Moving(heap, buffer) => arena.take_moving_buffer(heap, buffer, size_bytes),
        }
    }

    fn addr<U: Upstream>(self, arena: &Arena<U>) -> Option<usize> {
        match self {
            Self::Fixed(addr) => Some(addr),
            Self::Moving(heap, buffer) => arena.moving_buffer_addr(heap, buffer),
        }
    }

    fn is_free<U: Upstream>(self, arena: &Arena<U>) -> bool {
        match self {
            Self::Fixed(addr) => arena.is_free_buffer(addr),
            Self::Moving(heap, buffer) => arena.is_free_moving_buffer(heap, buffer),
        }
    }

    fn remove<U: Upstream>(self, arena: &mut Arena<U>) {
        match self {
            Self::Fixed(addr) => arena.remove_buffer(addr),
            Self::Moving(heap, buffer) => arena.remove_moving_buffer(heap, buffer),
        }
    }
}

impl BufferPlace {
    fn addr(&self) -> Option<usize> {
        match *self {
            Self::Host { spot: Spot::Fixed(addr), .. } | Self::Device { spot: Spot::Fixed(addr), .. } => {
                Some(addr)
            }
            Self::Host { slot, pool_id, spot } => slot.with_arena(pool_id, |arena| spot.addr(arena))?,
            Self::Device { arena, spot, .. } => inside(|| spot.addr(&arena.lock().as_ref()?.arena)),
        }
    }

    fn is_free(&self) -> bool {
        match *self {
            Self::Host { slot, pool_id, spot } => {
                slot.with_arena(pool_id, |arena| spot.is_free(arena)).unwrap_or(false)
            }
            Self::Device { pool, arena, spot } => inside(|| {
                // What was freed elsewhere may be done by now.
                pool.device.with_context(|| {
                    let mut guard = arena.lock();
                    let Some(core) = guard.as_mut() else { return false };
                    core.drain();
                    spot.is_free(&core.arena)
                })
            })
            .unwrap_or(false),
        }
    }

    fn has_lost_contents(&self) -> bool {
        let (Self::Host { spot, .. } | Self::Device { spot, .. }) = *self;
        let Spot::Moving(heap, buffer) = spot else { return false };
        let lost = match *self {
            Self::Host { slot, pool_id, .. } => {
                slot.with_arena(pool_id, |arena| arena.has_lost_contents(heap, buffer))
            }
            Self::Device { arena, .. } => {
                inside(|| arena.lock().as_ref().map(|core| core.arena.has_lost_contents(heap, buffer)))
            }
        };
        lost.unwrap_or(false)
    }

    /// What recordings know it by.
    fn name(&self) -> usize {
        let (Self::Host { spot, .. } | Self::Device { spot, .. }) = *self;
        match spot {
            Spot::Fixed(addr) => addr,
            Spot::Moving(heap, buffer) => HostArena::name_of_moving_buffer(heap, buffer),
        }
    }

    /// Tells recordings of its making or its end.
    fn note(&self, change: Change) {
        match *self {
            Self::Host { slot, pool_id, .. } => slot.note_buffer(pool_id, change),
            Self::Device { arena, .. } => inside(|| {
                if let Some(core) = arena.lock().as_ref() {
                    core.note_buffer(change);
                }
            }),
        }
    }

    fn remove(&self) {
        match *self {
            Self::Host { slot, pool_id, spot } => {
                slot.with_arena(pool_id, |arena| spot.remove(arena));
            }
            Self::Device { arena, spot, .. } => inside(|| {
                if let Some(core) = arena.lock().as_mut() {
                    spot.remove(&mut core.arena);
                }
            }),
        }
    }
}

/// How the writes of a buffer went.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BufferStats {
    /// Results that were computed right in the buffer.
    pub placed: u64,
    /// Results that were computed elsewhere and had to be copied.
    pub copied: u64,
}

/// Memory of a pool that is allocated once and holds one result after the other.
///
/// [`write`](Self::write) runs a computation and has its result allocated in the buffer. Whoever knows the type of
/// results ([`candle_mempool::Buffer`](https://docs.rs/candle-mempool) for candle's tensors) says afterwards where the
/// result lies, and copies it if it lies elsewhere, which the first does. The result owns the buffer's memory as it
/// would own any: the buffer can be written again once it has been dropped.
#[derive(Debug)]
pub struct Buffer {
    pool: MemPool,
    place: BufferPlace,
    bytes: usize,
    learned: Vec<Learned>,
    stats: BufferStats,
    /// Of a buffer that may move: what it lies in.
    _heap: Option<Arc<Heap>>,
}

/// What a write came to.
#[derive(Debug)]
#[must_use = "the buffer is to be told where the result lies"]
pub struct Written {
    outcome: steering::Outcome,
}

impl MemPool {
    /// A buffer of `bytes` of the host's memory in this pool.
    ///
    /// # Errors
    /// [`PoolError::Arena`] when the pool has no memory for it, [`PoolError::NotHere`] for a pool of a device.
    pub fn buffer(&self, bytes: usize) -> Result<Buffer, PoolError> {
        let Place::Host(slot) = self.place() else {
            return Err(PoolError::NotHere {
                option: "buffer",
                rule: "a device's pool needs a stream for it",
            });
        };
        let request = Request::new(bytes).aligned_to(HOST_GRANULE_BYTES);
        let placed = slot.with_arena(self.id(), |arena| {
            let placed = arena.allocate(request)?;
            arena.add_buffer(placed.addr, placed.allocated_bytes);
            Ok::<Placed, PoolError>(placed)
        });
        let addr = placed.ok_or(PoolError::Closed)??.addr;
        Ok(self.make_buffer(BufferPlace::Host { slot, pool_id: self.id(), spot: Spot::Fixed(addr) }, bytes))
    }

    /// A buffer of `bytes` in this pool of a device, to be written by work of `stream`.
    ///
    /// # Errors
    /// [`PoolError::Arena`] when the pool has no memory for it, [`PoolError::NotHere`] for a pool of the host and
    /// for a stream that is in capture.
    pub fn buffer_on(&self, bytes: usize, stream: Stream) -> Result<Buffer, PoolError> {
        let Place::Device(pool) = self.place() else {
            return Err(PoolError::NotHere { option: "stream", rule: "a pool of the host has none" });
        };
        let (arena, addr) = inside(|| pool.buffer(bytes, stream))?;
        Ok(self.make_buffer(BufferPlace::Device { pool, arena, spot: Spot::Fixed(addr) }, bytes))
    }

    fn make_buffer(&self, place: BufferPlace, bytes: usize) -> Buffer {
        Buffer::new(self.clone(), place, bytes, None)
    }
}

impl Buffer {
    pub(crate) fn new(pool: MemPool, place: BufferPlace, bytes: usize, heap: Option<Arc<Heap>>) -> Self {
        // Making a fixed one on a device is told of as any allocation.
        if !matches!(place, BufferPlace::Device { spot: Spot::Fixed(_), .. }) {
            place.note(Change::Allocated { addr: place.name(), size_bytes: bytes });
        }
        Self { pool, place, bytes, learned: Vec::new(), stats: BufferStats::default(), _heap: heap }
    }

    /// The address, which never changes; that of a buffer of a [`BufferSet`](crate::BufferSet) changes when it is moved,
    /// and not while a result is in it.
    #[must_use]
    pub fn addr(&self) -> usize {
        self.place.addr().expect("a buffer has its memory until it is dropped")
    }

    /// Bytes that a result may have at most.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The pool it lies in.
    #[must_use]
    pub fn pool(&self) -> &MemPool {
        &self.pool
    }

    /// Whether no result is in it: the last one was dropped, and on a device the work that used it is done or comes
    /// before what the buffer's stream does next.
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.place.is_free()
    }

    /// Whether a buffer of a [set](crate::BufferSet) lost what it held, because the driver failed while it was moved.
    /// It can be written again.
    #[must_use]
    pub fn has_lost_contents(&self) -> bool {
        self.place.has_lost_contents()
    }

    /// Runs `f`. If it allocates as it did before, its result is allocated in the buffer.
    ///
    /// # Errors
    /// [`PoolError::BufferInUse`] while the last result is alive; then `f` is not run.
    pub fn write<R>(&mut self, f: impl FnOnce() -> R) -> Result<(R, Written), PoolError> {
        self.check_free()?;
        let (result, outcome) = steering::steer(self.place, &self.learned, f);
        Ok((result, Written { outcome }))
    }

    /// Says where the result of a write lies: `true` if that is the buffer. Else it is learned which allocation it
    /// was, and the result is to be copied with [`place_next`](Self::place_next).
    ///
    /// # Errors
    /// [`PoolError::BufferTaken`] when the buffer was handed to something else, which is alive.
    pub fn settle(&mut self, written: Written, addr: usize) -> Result<bool, PoolError> {
        let Written { outcome } = written;
        if outcome.taken && addr == self.addr() {
            self.stats.placed += 1;
            return Ok(true);
        }
        self.stats.copied += 1;
        if let Some(learned) = outcome.learn(addr) {
            inside(|| {
                self.learned.retain(|known| known.bytes != learned.bytes);
                if self.learned.len() >= LEARNED_SIZES {
                    self.learned.remove(0);
                }
                self.learned.push(learned);
            });
        } else if outcome.taken {
            // What was learned was another's.
            inside(|| self.learned = Vec::new());
        }
        if self.is_free() { Ok(false) } else { Err(PoolError::BufferTaken { bytes: self.bytes }) }
    }

    /// Runs `f`, whose first allocation of `bytes` gets the buffer.
    ///
    /// # Errors
    /// [`PoolError::BufferInUse`] while a result is alive.
    pub fn place_next<R>(&mut self, bytes: usize, f: impl FnOnce() -> R) -> Result<R, PoolError> {
        self.check_free()?;
        let (result, _) = steering::steer(self.place, &[Learned { bytes, before: 0 }], f);
        Ok(result)
    }

    /// How its writes went.
    #[must_use]
    pub fn stats(&self) -> BufferStats {
        self.stats
    }

    fn check_free(&self) -> Result<(), PoolError> {
        if self.is_free() { Ok(()) } else { Err(PoolError::BufferInUse { bytes: self.bytes }) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // Before its place can be another's.
        self.place.note(Change::Ended { addr: self.place.name() });
        self.place.remove();
        inside(|| self.learned = Vec::new());
    }
}
