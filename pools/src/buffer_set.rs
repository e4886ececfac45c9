//! Buffers that may move while nobody has them.

mod pace;

use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mempool_arena::{Compaction, Effort, HeapId, HeapOptions, HeapStats};

use self::pace::Pace;
use crate::buffer::{Buffer, BufferPlace, Spot};
use crate::device::{ArenaCore, ArenaSlot, Call, PoolSlot, Stream};
use crate::error::PoolError;
use crate::host_copy;
use crate::pool::{MemPool, Place};
use crate::slot::Slot;
use crate::step::{DEVICE_GRANULE_BYTES, HOST_GRANULE_BYTES};
use crate::thread_state::inside;

/// How the buffers of a set are moved together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CompactionOptions {
    /// Young buffers may move at every so many calls of [`BufferSet::compact`]; 1 by default.
    pub every: u32,
    /// Old buffers may move at every so many calls; 100 by default.
    pub old_every: u32,
    /// A buffer is old after so many calls; 10 by default.
    pub old_after: u32,
    /// Share of the time between calls that copies may take: between 0 and 1, 0.05 by default. What a call
    /// does not use is saved for about 20 more, and for a larger buffer that waits until it is enough.
    pub budget_share: f64,
    /// Whether buffers move, as many as it takes and whatever the budget, before an allocation from their pool fails.
    /// Not by default.
    pub on_oom: bool,
}

impl Default for CompactionOptions {
    fn default() -> Self {
        Self { every: 1, old_every: 100, old_after: 10, budget_share: 0.05, on_oom: false }
    }
}

impl CompactionOptions {
    fn check(&self) -> Result<(), PoolError> {
        for (option, value) in [("every", self.every), ("old_every", self.old_every)] {
            if value == 0 {
                return Err(PoolError::Option { option, value: 0, rule: "at least 1 is needed" });
            }
        }
        if !(0.0..=1.0).contains(&self.budget_share) {
            let value = self.budget_share.to_string();
            return Err(PoolError::Share { option: "budget_share", value, rule: "between 0 and 1" });
        }
        Ok(())
    }

    fn of_heap(&self, granule_bytes: usize) -> HeapOptions {
        let Self { every, old_every, old_after, on_oom, .. } = *self;
        HeapOptions { granule_bytes, every, old_every, old_after, on_oom }
    }
}

/// What all compactions of a set came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct CompactionStats {
    /// Calls of [`BufferSet::compact`], and those of [`BufferSet::defrag_if`] that moved.
    pub compactions: u64,
    /// Buffers that they moved.
    pub moved: u64,
    /// Bytes that they copied.
    pub moved_bytes: u64,
    /// Time that the copies took: on a device its own time, as far as it is known yet.
    pub time: Duration,
    /// Time from the first to the last compaction, on a device its own, as far as it is known yet.
    pub span: Duration,
}

impl CompactionStats {
    /// Share of the time that copies took; 0 while nothing is known.
    #[must_use]
    pub fn share(&self) -> f64 {
        if self.span.is_zero() { 0.0 } else { self.time.as_secs_f64() / self.span.as_secs_f64() }
    }
}

/// Where a set's buffers lie.
#[derive(Debug, Clone, Copy)]
enum Home {
    Host(&'static Slot),
    Device(&'static PoolSlot, Stream),
}

/// What the buffers of a set lie in. It ends with the set and its last buffer.
pub(crate) struct Heap {
    pub(crate) id: HeapId,
    home: Home,
    /// On a device: where it is, once there was a buffer.
    arena: Mutex<Option<&'static ArenaSlot>>,
    pool: MemPool,
}

impl fmt::Debug for Heap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Heap").field("id", &self.id).field("home", &self.home).finish_non_exhaustive()
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        inside(|| match self.home {
            Home::Host(slot) => {
                slot.with_arena(self.pool.id(), |arena| arena.remove_heap(self.id));
            }
            Home::Device(..) => {
                self.with_core(|core| core.arena.remove_heap(self.id));
            }
        });
    }
}

/// Buffers of a pool that lie together, keep their contents while nobody has them, and can be moved then.
///
/// Buffers that come and go leave holes. [`compact`](Self::compact), called between two parts of a step, slides the others
/// together: copies in the order of the set's stream, for which the host does not wait. A buffer moves only while
/// nobody can know where it lies: not while a result in it is alive, freed on another stream whose work is not done, or
/// declared to be used there, and not while a graph lives that was captured while the buffer was held.
///
/// Young buffers may move at each call, those that have survived some at every hundredth, and copies
/// take at most a part of the time, which is measured: see [`CompactionOptions`].
///
/// A set of a device belongs to one stream. It is used on threads on which that stream's handle means the same.
///
/// ```
/// # use mempool_pools::{BufferSet, MemPool, PoolAllocator};
/// # #[global_allocator]
/// # static ALLOC: PoolAllocator = PoolAllocator::new();
/// let mut set = BufferSet::new(&MemPool::new()?);
/// set.reserve(16 << 20)?;
/// let buffers = [1 << 20, 4 << 20, 2 << 20].map(|bytes| set.add(bytes));
/// let [first, second, third] = buffers.map(Result::unwrap);
/// drop(first);
/// assert_eq!(set.fragmentation(), 1.0 / 7.0);
/// let before = second.addr();
/// let done = set.defrag_if(|fragmentation| fragmentation > 0.10)?.unwrap();
/// assert_eq!(done.moved, 2);
/// assert_eq!(second.addr(), before - (1 << 20));
/// # drop(third);
/// # Ok::<(), mempool_pools::PoolError>(())
/// ```
#[derive(Debug)]
pub struct BufferSet {
    heap: Arc<Heap>,
    options: CompactionOptions,
    pace: Pace,
    /// Keeps the stream alive.
    keep: Keep,
}

/// Something that is dropped with its owner.
struct Keep(#[allow(dead_code)] Option<Box<dyn Any + Send + Sync>>);

impl fmt::Debug for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keep")
    }
}

impl BufferSet {
    /// A set of buffers in the host's memory, or for a pool of a device on the calling thread's own stream.
    #[must_use]
    pub fn new(pool: &MemPool) -> Self {
        Self::new_on(pool, Stream::PER_THREAD)
    }

    /// A set of buffers of a device that work of `stream` writes, which has to live as long as the set: see
    /// [`keeping`](Self::keeping). For a pool of the host there are no streams.
    #[must_use]
    pub fn new_on(pool: &MemPool, stream: Stream) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = HeapId(NEXT.fetch_add(1, Ordering::Relaxed));
        let (home, pace) = match pool.place() {
            Place::Host(slot) => (Home::Host(slot), Pace::of_host()),
            Place::Device(slot) => (Home::Device(slot, stream), Pace::of_device(slot.device, stream)),
        };
        let heap = Heap { id, home, arena: Mutex::new(None), pool: pool.clone() };
        Self {
            heap: inside(|| Arc::new(heap)),
            options: CompactionOptions::default(),
            pace,
            keep: Keep(None),
        }
    }

    /// Keeps something for as long as the set: what keeps its stream alive.
    #[must_use]
    pub fn keeping(mut self, keep: impl Any + Send + Sync) -> Self {
        self.keep = Keep(Some(Box::new(keep)));
        self
    }

    /// Sets how buffers are moved.
    ///
    /// # Errors
    /// [`PoolError::Option`] and [`PoolError::Share`] for numbers that cannot work.
    pub fn set_options(&mut self, options: CompactionOptions) -> Result<(), PoolError> {
        options.check()?;
        self.options = options;
        let id = self.heap.id;
        inside(|| match self.heap.home {
            Home::Host(slot) => {
                let of_heap = options.of_heap(HOST_GRANULE_BYTES);
                slot.with_arena(self.heap.pool.id(), |arena| arena.set_heap_options(id, of_heap));
            }
            Home::Device(..) => {
                self.heap.with_core(|core| {
                    core.arena.set_heap_options(id, options.of_heap(DEVICE_GRANULE_BYTES));
                });
            }
        });
        Ok(())
    }

    /// How buffers are moved.
    #[must_use]
    pub fn options(&self) -> CompactionOptions {
        self.options
    }

    /// The pool.
    #[must_use]
    pub fn pool(&self) -> &MemPool {
        &self.heap.pool
    }

    /// Takes a block of `bytes` from the pool for buffers to come: those that fit lie together from the start. Without it
    /// the set grows by what a buffer needs, or by half. The block goes back when nothing lies in it at a compaction, when the
    /// pool is trimmed or when it finds no memory otherwise; what lies behind its last buffer goes back then, too, in pools
    /// whose policy cuts blocks (`pages`).
    ///
    /// # Errors
    /// As [`add`](Self::add).
    pub fn reserve(&mut self, bytes: usize) -> Result<(), PoolError> {
        let Heap { id, home, ref pool, .. } = *self.heap;
        match home {
            Home::Host(slot) => {
                let options = self.options.of_heap(HOST_GRANULE_BYTES);
                let reserved = slot.with_arena(pool.id(), |arena| arena.reserve_heap(id, options, bytes));
                Ok(reserved.ok_or(PoolError::Closed)??)
            }
            Home::Device(slot, stream) => {
                let options = self.options.of_heap(DEVICE_GRANULE_BYTES);
                inside(|| slot.reserve_heap(&self.heap, options, bytes, stream))
            }
        }
    }

    /// A buffer of `bytes`. It may be dropped before the set and after it.
    ///
    /// # Errors
    /// [`PoolError::Arena`] and [`PoolError::NoMemory`] when the pool has no memory for it; [`PoolError::NotHere`] in a
    /// capture, on a thread whose stream of this handle is another one, and for a pool with guards.
    pub fn add(&mut self, bytes: usize) -> Result<Buffer, PoolError> {
        let Heap { id, home, ref pool, .. } = *self.heap;
        let place = match home {
            Home::Host(slot) => {
                let options = self.options.of_heap(HOST_GRANULE_BYTES);
                let added = slot.add_moving_buffer(pool.id(), id, options, bytes);
                let buffer = added.ok_or(PoolError::Closed)??;
                BufferPlace::Host { slot, pool_id: pool.id(), spot: Spot::Moving(id, buffer) }
            }
            Home::Device(slot, stream) => {
                let options = self.options.of_heap(DEVICE_GRANULE_BYTES);
                let (arena, buffer) = inside(|| slot.moving_buffer(&self.heap, options, bytes, stream))?;
                BufferPlace::Device { pool: slot, arena, spot: Spot::Moving(id, buffer) }
            }
        };
        Ok(Buffer::new(pool.clone(), place, bytes, Some(Arc::clone(&self.heap))))
    }

    /// Slides buffers together that nobody has, within the budget, and gives blocks back to the pool that are empty then.
    ///
    /// The first call moves nothing: no time has been saved yet. On the host copies run in the call, and others who use the pool
    /// wait for them; on a device they are queued.
    ///
    /// # Errors
    /// [`PoolError::NotHere`] in a capture, and on a thread whose stream of the set's handle is another one.
    /// [`PoolError::Driver`] when the driver refuses a copy: a buffer of which a part was copied has then
    /// [lost](Buffer::has_lost_contents) what it held.
    pub fn compact(&mut self) -> Result<Compaction, PoolError> {
        self.move_together(false)
    }

    /// Slides all buffers together that nobody has, whatever generation and budget, if `wanted` says so for the
    /// [fragmentation](Self::fragmentation).
    ///
    /// # Errors
    /// As [`compact`](Self::compact).
    pub fn defrag_if(&mut self, wanted: impl FnOnce(f64) -> bool) -> Result<Option<Compaction>, PoolError> {
        if wanted(self.fragmentation()) { self.move_together(true).map(Some) } else { Ok(None) }
    }

    fn move_together(&mut self, all: bool) -> Result<Compaction, PoolError> {
        let Self { heap, options, pace, .. } = self;
        let id = heap.id;
        inside(|| match heap.home {
            Home::Host(slot) => {
                pace.begin(options.budget_share);
                let budget_bytes = if all { usize::MAX } else { pace.budget_bytes() };
                let effort = Effort { budget_bytes, all, counts: true, recordings: false, held_too: false };
                let done = slot.with_arena(heap.pool.id(), |arena| host_copy::compact(arena, id, effort));
                let done = done.ok_or(PoolError::Closed)?;
                pace.end(&done);
                Ok(done)
            }
            Home::Device(slot, stream) => {
                let elsewhere = PoolError::NotHere { option: "compact", rule: ANOTHER_STREAM };
                let moved = slot.device.with_context(|| {
                    let call = Call::running(slot.device, stream).ok_or(elsewhere.clone())?;
                    pace.begin(options.budget_share);
                    let budget_bytes = if all { usize::MAX } else { pace.budget_bytes() };
                    let effort =
                        Effort { budget_bytes, all, counts: true, recordings: true, held_too: false };
                    // Without a buffer there is no arena yet, and nothing to do.
                    let done = heap.with_core(|core| {
                        (core.owner == call.owner).then(|| {
                            core.drain();
                            core.compact(id, effort, stream)
                        })
                    });
                    let (done, copied) = done
                        .map_or(Ok((Compaction::default(), Ok(()))), |done| done.ok_or(elsewhere.clone()))?;
                    pace.end(&done);
                    let ordinal = slot.device.ordinal;
                    copied.map_err(|source| PoolError::Driver { ordinal, source })?;
                    Ok(done)
                });
                moved.unwrap_or(Err(elsewhere))
            }
        })
    }

    /// What the set holds.
    #[must_use]
    pub fn stats(&self) -> HeapStats {
        let id = self.heap.id;
        inside(|| match self.heap.home {
            Home::Host(slot) => slot.with_arena(self.heap.pool.id(), |arena| arena.heap_stats(id)),
            Home::Device(..) => self.heap.with_core(|core| core.arena.heap_stats(id)),
        })
        .unwrap_or_default()
    }

    /// Share of the bytes up to the last buffers that lie in holes between them: between 0 and 1.
    #[must_use]
    pub fn fragmentation(&self) -> f64 {
        self.stats().fragmentation()
    }

    /// What all compactions came to.
    #[must_use]
    pub fn compaction_stats(&self) -> CompactionStats {
        self.pace.stats()
    }
}

pub(crate) const ANOTHER_STREAM: &str = "the set belongs to another stream, or the stream is in capture";

impl Heap {
    /// The arena that the heap was in last.
    pub(crate) fn arena(&self) -> Option<&'static ArenaSlot> {
        *self.arena.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_arena(&self, arena: &'static ArenaSlot) {
        *self.arena.lock().unwrap_or_else(PoisonError::into_inner) = Some(arena);
    }

    /// Runs `f` on the arena that the heap is in; `None` when it is in none.
    pub(crate) fn with_core<R>(&self, f: impl FnOnce(&mut ArenaCore) -> R) -> Option<R> {
        let arena = self.arena()?;
        arena.lock().as_mut().filter(|core| core.arena.has_heap(self.id)).map(f)
    }
}
