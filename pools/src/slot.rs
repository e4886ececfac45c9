//! A pool's place: its lock, its arena, its counters.
//!
//! Slots are never freed, only used again, so a reference to one is valid for ever: a thread
//! that frees a block needs no reference count to reach the block's pool. A pool ends when its
//! last handle is gone *and* its last block is freed; whoever comes second tears it down.

use std::fmt;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use mempool_arena::{
    AddressRange, Arena, ArenaError, BufferId, Effort, HeapId, HeapOptions, MappedSegment, Placed, Placement,
    Request, Violation,
};

use crate::buffer::Spot;
use crate::device::Busy;
use crate::history::{self, Observed};
use crate::host_copy;
use crate::host_upstream::{HostArena, HostUpstream};
use crate::lock::Lock;
use crate::os;
use crate::recording::{self, Change, Listener, Source};
use crate::sizing::growth_bytes;
use crate::stats::{Figures, GroupStats, PoolStats, StepStats};
use crate::step::StepNumber;
use crate::thread_state::inside;

/// Requests that went to the inner allocator instead, and their bytes.
#[derive(Debug, Default)]
struct Elsewhere {
    count: AtomicU64,
    bytes: AtomicU64,
}

impl Elsewhere {
    const fn new() -> Self {
        Self { count: AtomicU64::new(0), bytes: AtomicU64::new(0) }
    }

    #[inline]
    fn add(&self, bytes: usize) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn read(&self) -> (u64, u64) {
        (self.count.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }

    fn reset(&self) {
        self.count.store(0, Ordering::Relaxed);
        self.bytes.store(0, Ordering::Relaxed);
    }
}

/// How a pool is set up.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) name: String,
    pub(crate) placement: Box<dyn Placement>,
    pub(crate) min_bytes: usize,
    pub(crate) limit_bytes: Option<usize>,
    pub(crate) hard_limit: bool,
    /// The pool becomes so many times as large when it grows; `None` for no more than is needed.
    pub(crate) growth_factor: Option<f64>,
}

/// A pool as it is.
pub(crate) struct Look {
    pub(crate) pool_id: u64,
    pub(crate) limit_bytes: Option<usize>,
    pub(crate) stats: PoolStats,
    pub(crate) maps_pages: bool,
    pub(crate) layout: Vec<MappedSegment>,
}

/// What a request gets.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Outcome {
    /// The address of a block of the pool.
    Placed(usize),
    /// Nothing here: the inner allocator serves it.
    Overflow,
    /// Nothing at all: the pool has a hard limit.
    Refused,
}

/// A pool's place. See the module's text. Two cache lines, which processors fetch in pairs, keep
/// the locks of two pools apart.
#[repr(align(128))]
pub(crate) struct Slot {
    index: u32,
    /// Never holds a pool: what is asked of it is counted and goes to the inner allocator.
    counts_only: bool,
    /// Smaller requests inside the pool's scope go to the default pool.
    min_bytes: AtomicUsize,
    hard_limit: AtomicBool,
    bypassed: Elsewhere,
    overflowed: Elsewhere,
    /// What a hard limit refused.
    refused: Elsewhere,
    core: Lock<Option<Core>>,
}

/// What a pool in a slot consists of.
pub(crate) struct Core {
    id: u64,
    name: String,
    arena: HostArena,
    growth_factor: Option<f64>,
    /// The last handle is gone.
    /// The most it may hold.
    limit_bytes: Option<usize>,
    retired: bool,
    at_step_start: StepStats,
    last_step: StepStats,
}

impl Core {
    fn source(&self) -> Source {
        Source { device: None, pool_id: self.id, order: None }
    }

    #[inline]
    fn allocate(&mut self, request: Request) -> Result<Placed, ArenaError> {
        let placed = self.try_to_allocate(request);
        if matches!(placed, Err(ArenaError::OutOfMemory { .. })) && self.arena.has_heaps() {
            return self.allocate_compacting(request, placed);
        }
        placed
    }

    fn try_to_allocate(&mut self, request: Request) -> Result<Placed, ArenaError> {
        match self.growth_factor {
            None => self.arena.allocate(request),
            Some(factor) => self.allocate_growing(request, factor),
        }
    }

    /// Allocates what the buffers leave that are to be moved together when memory is short.
    #[cold]
    fn allocate_compacting(
        &mut self,
        request: Request,
        refused: Result<Placed, ArenaError>,
    ) -> Result<Placed, ArenaError> {
        let effort = Effort::for_memory();
        if host_copy::compact_on_oom(&mut self.arena, effort) == 0 {
            return refused;
        }
        self.try_to_allocate(request)
    }

    fn allocate_growing(&mut self, request: Request, factor: f64) -> Result<Placed, ArenaError> {
        match growth_bytes(self.arena.stats().reserved.current, factor, request.size_bytes) {
            None => self.arena.allocate(request),
            Some(growth_bytes) => self.arena.allocate_growing(request, growth_bytes),
        }
    }

    /// Tells recordings of what became of a block. The slot's lock is held, so a free is told of before
    /// its memory serves again.
    #[inline]
    fn note(&self, change: Change) {
        if recording::is_on() {
            if self.arena.is_buffer(change.addr()) {
                history::note(self.source(), change);
            } else {
                recording::note(self.source(), change);
            }
        }
    }

    /// Tells recordings of the making and the end of a buffer.
    pub(crate) fn note_buffer(&self, change: Change) {
        if recording::is_on() {
            recording::note_kept(self.source(), change);
        }
    }
}

/// Figures of pools of the host that are no more.
static PAST: Lock<Option<Box<PoolStats>>> = Lock::new(None);

/// The lock of what is kept of pools that are no more, for the fork handlers.
pub(crate) fn lock_past_for_fork() -> &'static Lock<Option<Box<PoolStats>>> {
    &PAST
}

/// The figures of all pools of the host, of which `slots` are all. The caller is inside pool code.
pub(crate) fn stats_of_host(slots: impl Iterator<Item = &'static Slot>) -> GroupStats {
    let past = PAST.lock().clone();
    let mut group = GroupStats::new("host".to_owned(), None, past.as_deref());
    slots.filter_map(Slot::stats_if_open).for_each(|pool| group.push(pool));
    group
}

/// Totals of pools of the host that are no more begin at 0. The caller is inside pool code.
pub(crate) fn reset_accumulated_past() {
    if let Some(past) = PAST.lock().as_mut() {
        past.reset_accumulated();
    }
}

impl Slot {
    /// An empty slot.
    pub(crate) const fn new(index: u32) -> Self {
        Self::with(index, false)
    }

    /// A slot that never holds a pool. Its lock is never taken, so a fork need not know of it.
    pub(crate) const fn counting() -> Self {
        Self::with(u32::MAX, true)
    }

    const fn with(index: u32, counts_only: bool) -> Self {
        Self {
            index,
            counts_only,
            min_bytes: AtomicUsize::new(0),
            hard_limit: AtomicBool::new(false),
            bypassed: Elsewhere::new(),
            overflowed: Elsewhere::new(),
            refused: Elsewhere::new(),
            core: Lock::new(None),
        }
    }

    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    /// Puts a pool into the empty slot.
    pub(crate) fn open(&self, id: u64, setup: Setup) {
        self.min_bytes.store(setup.min_bytes, Ordering::Relaxed);
        self.hard_limit.store(setup.hard_limit, Ordering::Relaxed);
        self.bypassed.reset();
        self.overflowed.reset();
        self.refused.reset();
        let source = Source { device: None, pool_id: id, order: None };
        let upstream = Observed::new(HostUpstream::new(self.index), source);
        let arena = Arena::from_boxed(setup.placement, upstream);
        let before = self.core.lock().replace(Core {
            id,
            name: setup.name,
            arena,
            growth_factor: setup.growth_factor,
            limit_bytes: setup.limit_bytes,
            retired: false,
            at_step_start: StepStats::default(),
            last_step: StepStats::default(),
        });
        assert!(before.is_none(), "slot {} was in use", self.index);
    }

    /// Takes what the open pool `id` is to have from the start, which it then keeps. The caller is
    /// [`Inside`](crate::thread_state::Inside) or a pool's maker.
    pub(crate) fn begin_with(&self, id: u64, bytes: usize) -> Result<(), ArenaError> {
        let begin = |core: &mut Core| {
            core.arena.keep(bytes);
            core.arena.upstream_mut().touch_what_is_mapped(true);
            let taken = core.arena.take_in_advance(bytes);
            core.arena.upstream_mut().touch_what_is_mapped(false);
            taken
        };
        inside(|| self.read(id, begin)).unwrap_or(Ok(()))
    }

    /// Smaller requests are not this pool's.
    #[inline]
    pub(crate) fn min_bytes(&self) -> usize {
        self.min_bytes.load(Ordering::Relaxed)
    }

    /// Serves a request. The caller is [`Inside`](crate::thread_state::Inside).
    #[inline]
    pub(crate) fn allocate(&self, request: Request, step: Option<StepNumber>) -> Outcome {
        self.place(request, step, false, |_, outcome| outcome)
    }

    /// As [`allocate`](Self::allocate), with the parts of the block that read as zero already,
    /// in order of address.
    #[inline]
    pub(crate) fn allocate_zeroed(
        &self,
        request: Request,
        step: Option<StepNumber>,
    ) -> (Outcome, Vec<AddressRange>) {
        self.place(request, step, true, |core, outcome| match (core, outcome) {
            (Some(core), Outcome::Placed(addr)) => (outcome, core.arena.clean_ranges(addr)),
            _ => (outcome, Vec::new()),
        })
    }

    /// Serves a request and runs `then` before the lock is let go of, with the core unless the block was
    /// written before.
    #[inline]
    fn place<R>(
        &self,
        request: Request,
        step: Option<StepNumber>,
        zeroed: bool,
        then: impl FnOnce(Option<&Core>, Outcome) -> R,
    ) -> R {
        if self.counts_only {
            return then(None, Outcome::Overflow);
        }
        let mut guard = self.core.lock();
        let Some(core) = guard.as_mut() else {
            return then(None, Outcome::Overflow);
        };
        if let Some(step) = step
            && let Some(placed) = core.arena.allocate_in_step(step.id(), request, zeroed)
        {
            core.note(Change::Allocated { addr: placed.addr, size_bytes: request.size_bytes });
            return then(None, Outcome::Placed(placed.addr));
        }
        let outcome = match core.allocate(request) {
            Ok(placed) => {
                if let Some(step) = step {
                    core.arena.placed_in_step(step.id(), placed);
                }
                core.note(Change::Allocated { addr: placed.addr, size_bytes: request.size_bytes });
                Outcome::Placed(placed.addr)
            }
            Err(error) => {
                let free_bytes = core
                    .limit_bytes
                    .map_or(0, |limit| limit.saturating_sub(core.arena.stats().reserved.current));
                history::note_oom(core.source(), request.size_bytes, free_bytes);
                self.overflow(&core.name, request, &error)
            }
        };
        then(Some(core), outcome)
    }

    #[cold]
    fn overflow(&self, name: &str, request: Request, error: &ArenaError) -> Outcome {
        if self.hard_limit.load(Ordering::Relaxed) {
            self.refused.add(request.size_bytes);
            os::report(format_args!("pool \"{name}\" has a hard limit: {error}"));
            return Outcome::Refused;
        }
        Outcome::Overflow
    }

    /// Counts a request that reached the threshold and that the inner allocator served.
    pub(crate) fn count_overflow(&self, bytes: usize) {
        if self.counts_only { self.bypassed.add(bytes) } else { self.overflowed.add(bytes) }
    }

    /// Counts a request inside the pool's scope that the inner allocator serves.
    #[inline]
    pub(crate) fn count_bypassed(&self, bytes: usize) {
        self.bypassed.add(bytes);
    }

    /// Requests and bytes counted by [`count_bypassed`](Self::count_bypassed).
    pub(crate) fn bypassed(&self) -> (u64, u64) {
        self.bypassed.read()
    }

    /// Ends a block. The caller is [`Inside`](crate::thread_state::Inside).
    #[inline]
    pub(crate) fn free(&self, addr: usize) {
        let mut guard = self.core.lock();
        let core = guard.as_mut().unwrap_or_else(|| foreign(addr));
        if core.arena.free(addr).is_err() {
            foreign(addr);
        }
        core.note(Change::Ended { addr });
        if core.retired && core.arena.live_count() == 0 {
            self.close(guard);
        }
    }

    /// Makes a block hold `size_bytes` where it lies. The caller is
    /// [`Inside`](crate::thread_state::Inside).
    pub(crate) fn resize(&self, addr: usize, size_bytes: usize) -> bool {
        let mut core = self.core.lock();
        let core = core.as_mut().unwrap_or_else(|| foreign(addr));
        let resized = core.arena.resize_in_place(addr, size_bytes).is_ok_and(|block| block.is_some());
        if resized {
            core.note(Change::Resized { addr, size_bytes });
        }
        resized
    }

    /// Notes that the last handle of the pool is gone.
    pub(crate) fn retire(&self, id: u64) {
        let mut guard = self.core.lock();
        let Some(core) = guard.as_mut().filter(|core| core.id == id) else { return };
        core.retired = true;
        if core.arena.live_count() == 0 {
            self.close(guard);
        }
    }

    /// Gives the pool's memory back and makes the slot ready for another pool.
    #[cold]
    fn close(&self, mut guard: MutexGuard<'_, Option<Core>>) {
        let core = guard.as_mut().expect("an open pool");
        // When the system refuses to take memory back, the slot stays as it is; nobody can
        // allocate from it, and nothing is lost but the slot.
        if core.arena.release_all().is_ok() {
            let past = self.stats_of(core).of_the_past();
            *guard = None;
            drop(guard);
            PAST.lock().get_or_insert_default().add(&past);
            crate::registry::return_slot(self.index);
        }
    }

    /// Hands a free buffer out that holds `size_bytes`: its address.
    pub(crate) fn take_buffer(&self, id: u64, spot: Spot, size_bytes: usize) -> Option<usize> {
        self.read(id, |core| {
            let addr = spot.take(&mut core.arena, size_bytes)?;
            core.note(Change::Allocated { addr, size_bytes });
            Some(addr)
        })?
    }

    /// A buffer in a heap of the open pool `id`, by all means. `None` when the slot holds another pool or none.
    pub(crate) fn add_moving_buffer(
        &self,
        id: u64,
        heap: HeapId,
        options: HeapOptions,
        size_bytes: usize,
    ) -> Option<Result<BufferId, ArenaError>> {
        inside(|| {
            self.read(id, |core| {
                let added = core.arena.add_moving_buffer(heap, options, size_bytes);
                if matches!(added, Err(ArenaError::OutOfMemory { .. }))
                    && host_copy::compact_on_oom(&mut core.arena, Effort::for_memory()) > 0
                {
                    return core.arena.add_moving_buffer(heap, options, size_bytes);
                }
                added
            })
        })
    }

    /// Tells recordings of the making and the end of a buffer.
    pub(crate) fn note_buffer(&self, id: u64, change: Change) {
        inside(|| self.read(id, |core| core.note_buffer(change)));
    }

    /// Runs `f` on the arena of the open pool `id`; `None` when the slot holds another pool or none.
    pub(crate) fn with_arena<R>(&self, id: u64, f: impl FnOnce(&mut HostArena) -> R) -> Option<R> {
        inside(|| self.read(id, |core| f(&mut core.arena)))
    }

    /// Runs `f` on the open pool `id`; `None` when the slot holds another pool or none.
    fn read<R>(&self, id: u64, f: impl FnOnce(&mut Core) -> R) -> Option<R> {
        self.core.lock().as_mut().filter(|core| core.id == id).map(f)
    }

    /// Gives free pages back, and returns their bytes.
    pub(crate) fn trim(&self, id: u64, target_bytes: usize) -> usize {
        inside(|| self.read(id, |core| core.arena.trim(target_bytes))).unwrap_or(0)
    }

    pub(crate) fn stats(&self, id: u64) -> PoolStats {
        inside(|| self.read(id, |core| self.stats_of(core))).expect("a pool with a handle is open")
    }

    fn stats_of(&self, core: &mut Core) -> PoolStats {
        let (bypassed_count, bypassed_bytes) = self.bypassed.read();
        let (overflow_count, overflow_bytes) = self.overflowed.read();
        core.arena.settle();
        let (out_of_memory_count, _) = self.refused.read();
        let mut stats = PoolStats {
            name: core.name.clone(),
            id: core.id,
            largest_free_bytes: core.arena.largest_free_bytes(),
            // What overflowed went to the inner allocator too.
            bypassed_count: bypassed_count + overflow_count,
            bypassed_bytes: bypassed_bytes + overflow_bytes,
            overflow_count,
            overflow_bytes,
            out_of_memory_count,
            limit_refusals: out_of_memory_count,
            mapping_time: core.arena.upstream().mapping_time(),
            last_step: core.last_step,
            ..PoolStats::default()
        };
        stats.set_figures(Figures::of(core.arena.stats()));
        stats
    }

    /// The figures of whichever pool the slot holds.
    pub(crate) fn stats_if_open(&self) -> Option<PoolStats> {
        self.core.lock().as_mut().map(|core| self.stats_of(core))
    }

    /// As [`stats_if_open`](Self::stats_if_open), unless the slot's lock is held.
    pub(crate) fn stats_now(&self) -> Result<Option<PoolStats>, Busy> {
        let mut guard = self.core.try_lock().ok_or(Busy)?;
        Ok(guard.as_mut().map(|core| self.stats_of(core)))
    }

    /// Id, figures and layout of the pool that the slot holds.
    pub(crate) fn look(&self) -> Option<Look> {
        let mut guard = self.core.lock();
        let core = guard.as_mut()?;
        let (pool_id, limit_bytes) = (core.id, core.limit_bytes);
        let (stats, maps_pages) = (self.stats_of(core), core.arena.maps_pages());
        Some(Look { pool_id, limit_bytes, stats, maps_pages, layout: core.arena.layout() })
    }

    pub(crate) fn reset_peaks(&self, id: u64) {
        inside(|| self.read(id, |core| core.arena.reset_peaks()));
    }

    /// Totals and counters of whichever pool the slot holds begin at 0.
    pub(crate) fn reset_accumulated(&self, id: Option<u64>) {
        let mut guard = self.core.lock();
        let Some(core) = guard.as_mut().filter(|core| id.is_none_or(|id| core.id == id)) else { return };
        core.arena.reset_accumulated();
        core.arena.upstream_mut().reset_mapping_time();
        core.at_step_start = StepStats::default();
        [&self.bypassed, &self.overflowed, &self.refused].into_iter().for_each(Elsewhere::reset);
    }

    /// Forgets the peaks of whichever pool the slot holds.
    pub(crate) fn reset_peaks_if_open(&self) {
        if let Some(core) = self.core.lock().as_mut() {
            core.arena.reset_peaks();
        }
    }

    pub(crate) fn validate(&self, id: u64) -> Result<(), Violation> {
        inside(|| self.read(id, |core| core.arena.validate())).unwrap_or(Ok(()))
    }

    /// Bytes on free pages that a trim gives back, whichever pool the slot holds.
    pub(crate) fn releasable_bytes(&self) -> usize {
        let mut core = self.core.lock();
        core.as_mut().map_or(0, |core| {
            core.arena.settle();
            core.arena.spare_bytes()
        })
    }

    /// Tells a listener of the blocks that are live, whichever pool the slot holds. The caller is
    /// [`Inside`](crate::thread_state::Inside).
    pub(crate) fn list_live(&self, listener: Listener) {
        if let Some(core) = self.core.lock().as_ref() {
            recording::list(listener, core.source(), || match listener {
                Listener::History => core.arena.live_blocks(),
                Listener::Recording(_) => core.arena.needed_blocks(),
            });
        }
    }

    /// Ends a step for whichever pool the slot holds.
    pub(crate) fn mark_step(&self) {
        if let Some(core) = self.core.lock().as_mut() {
            let now = StepStats::counted(core.arena.stats());
            core.last_step = now - core.at_step_start;
            core.at_step_start = now;
        }
    }

    /// The slot's lock, for the fork handlers.
    pub(crate) fn lock_for_fork(&'static self) -> &'static Lock<Option<Core>> {
        &self.core
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").field("index", &self.index).finish_non_exhaustive()
    }
}

/// An address in the pools' range that no pool handed out, or that was freed already.
#[cold]
fn foreign(addr: usize) -> ! {
    os::abort_with(format_args!(
        "{} is freed or resized, but is not the start of a live block (freed twice?)",
        AddressRange::new(addr, 0)
    ))
}
