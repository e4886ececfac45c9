//! A device pool's place: its arenas, its options, its counters.
//!
//! Slots are never freed, only used again. A pool ends when its last handle is gone, its last
//! block is freed and no graph uses its memory any more; whoever notices tears it down.

mod figures;
mod sizes;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use mempool_arena::{AddressRange, ArenaError, PlanJob, Request, StepId, UpstreamError, Violation};

pub(crate) use self::figures::Busy;
use self::figures::Counters;
use self::sizes::Sizes;
use crate::blocks::Blocks;
use crate::device::arena_slot::{ArenaCore, ArenaSlot, Owner};
use crate::device::driver::{Event, Stream, StreamId};
use crate::device::entry::Call;
use crate::device::fault::{Fault, planted};
use crate::device::guard::{self, Guarded, MARGIN_BYTES};
use crate::device::platform::Allocation;
use crate::device::state::DeviceState;
use crate::device::thread_cache;
use crate::error::PoolError;
use crate::lock::Lock;
use crate::options::Resolved;
use crate::recording::Listener;
use crate::stats::{Figures, StepStats};
use crate::step::StepNumber;

/// How a device pool is set up.
#[derive(Debug, Clone)]
pub(crate) struct PoolSetup {
    pub(crate) name: String,
    pub(crate) blocks: Blocks,
    pub(crate) options: Resolved,
}

/// So many graphs may be gone whose memory is not known to be idle before it is waited for.
const GRAPHS_BEFORE_WAITING: usize = 64;

/// See the module's text.
pub(crate) struct PoolSlot {
    pub(crate) device: &'static DeviceState,
    id: AtomicU64,
    /// The last handle is gone.
    retired: AtomicBool,
    min_bytes: AtomicUsize,
    limit_bytes: AtomicUsize,
    use_on_oom: AtomicBool,
    /// Blocks lie between margins.
    guard: AtomicBool,
    /// Share of the allowed bytes, as bits of an `f64`; 0 for none.
    garbage_collection_threshold: AtomicU64,
    release_threshold_bytes: AtomicUsize,
    sizes: Sizes,
    /// Bytes the pool holds.
    held: AtomicUsize,
    counters: Counters,
    core: Lock<Option<PoolCore>>,
}

pub(crate) struct PoolCore {
    id: u64,
    name: String,
    blocks: Blocks,
    arenas: Vec<(Owner, &'static ArenaSlot)>,
    ended: Vec<Ended>,
    /// Figures of arenas that are no more.
    past: Figures,
    /// The highest sums of peaks that there were when arenas ended.
    highest: Figures,
    at_step_start: StepStats,
    last_step: StepStats,
}

impl PoolCore {
    /// The pool's arenas, all of them.
    fn arenas(&self) -> impl Iterator<Item = &'static ArenaSlot> + '_ {
        let current = self.arenas.iter().map(|&(_, arena)| arena);
        current.chain(self.ended.iter().map(|ended| ended.arena))
    }
}

/// An arena whose stream is gone.
struct Ended {
    arena: &'static ArenaSlot,
    /// Stands for the stream's last work, if there is one.
    event: Option<Event>,
    /// The stream was a thread's own, which the legacy stream waits for.
    per_thread: bool,
    /// The last work is done once the device was idle after this, see [`DeviceState::epoch`].
    mark: u64,
}

impl PoolSlot {
    /// An empty slot.
    pub(crate) fn leak(device: &'static DeviceState) -> &'static Self {
        Box::leak(Box::new(Self {
            device,
            id: AtomicU64::new(0),
            retired: AtomicBool::new(false),
            min_bytes: AtomicUsize::new(0),
            limit_bytes: AtomicUsize::new(usize::MAX),
            use_on_oom: AtomicBool::new(false),
            guard: AtomicBool::new(false),
            garbage_collection_threshold: AtomicU64::new(0),
            release_threshold_bytes: AtomicUsize::new(usize::MAX),
            sizes: Sizes::default(),
            held: AtomicUsize::new(0),
            counters: Counters::default(),
            core: Lock::new(None),
        }))
    }

    /// Puts a pool into the empty slot.
    pub(crate) fn open(&self, id: u64, setup: PoolSetup) {
        let options = setup.options;
        self.min_bytes.store(options.min_bytes, Ordering::Relaxed);
        self.use_on_oom.store(options.use_on_oom, Ordering::Relaxed);
        self.guard.store(options.guard, Ordering::Relaxed);
        self.set_limit(options.limit_bytes);
        self.set_garbage_collection_threshold(options.garbage_collection_threshold);
        self.set_release_threshold(options.release_threshold_bytes);
        self.sizes.open(options.growth_factor, options.headroom_share);
        self.counters.reset(self.held_bytes());
        self.counters.reset_peak(self.held_bytes());
        self.retired.store(false, Ordering::Release);
        self.id.store(id, Ordering::Release);
        *self.core.lock() = Some(PoolCore {
            id,
            name: setup.name,
            blocks: setup.blocks,
            arenas: Vec::new(),
            ended: Vec::new(),
            past: Figures::default(),
            highest: Figures::default(),
            at_step_start: StepStats::default(),
            last_step: StepStats::default(),
        });
    }

    pub(crate) fn id(&self) -> u64 {
        self.id.load(Ordering::Acquire)
    }

    #[inline]
    pub(crate) fn min_bytes(&self) -> usize {
        self.min_bytes.load(Ordering::Relaxed)
    }

    /// Whether its blocks lie between margins.
    pub(crate) fn has_guards(&self) -> bool {
        self.guard.load(Ordering::Relaxed)
    }

    pub(crate) fn is_used_on_oom(&self) -> bool {
        self.use_on_oom.load(Ordering::Relaxed) && !self.retired.load(Ordering::Acquire)
    }

    /// Whether each of its blocks has pages of its own.
    pub(crate) fn has_own_pages(&self) -> bool {
        self.core.lock().as_ref().is_some_and(|core| core.blocks.own_pages())
    }

    pub(crate) fn limit_bytes(&self) -> usize {
        self.limit_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn set_limit(&self, bytes: Option<usize>) {
        self.limit_bytes.store(bytes.unwrap_or(usize::MAX), Ordering::Relaxed);
    }

    pub(crate) fn set_garbage_collection_threshold(&self, share: Option<f64>) {
        self.garbage_collection_threshold.store(share.unwrap_or(0.0).to_bits(), Ordering::Relaxed);
    }

    pub(crate) fn set_release_threshold(&self, bytes: Option<usize>) {
        self.release_threshold_bytes.store(bytes.unwrap_or(usize::MAX), Ordering::Relaxed);
    }

    pub(crate) fn held_bytes(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    pub(crate) fn name(&self) -> String {
        self.core.lock().as_ref().map_or_else(String::new, |core| core.name.clone())
    }

    pub(crate) fn count_bypassed(&self, bytes: usize) {
        self.counters.bypassed.add(bytes);
    }

    /// Counts `bytes` as held if the pool's limit, the device's memory fraction and its headroom
    /// allow them.
    pub(crate) fn admit(&self, bytes: usize) -> Result<(), UpstreamError> {
        let device = self.device;
        let exhausted = |held: usize, capacity_bytes: usize| UpstreamError::Exhausted {
            requested_bytes: bytes,
            mapped_bytes: held,
            capacity_bytes,
        };
        let take = |held: &AtomicUsize, most: usize| {
            held.fetch_update(Ordering::AcqRel, Ordering::Acquire, |held| {
                held.checked_add(bytes).filter(|&sum| sum <= most)
            })
        };
        let before =
            take(&self.held, self.limit_bytes()).map_err(|held| exhausted(held, self.limit_bytes()))?;
        if let Err(held) = take(&device.physical, device.allowed_bytes()) {
            self.held.fetch_sub(bytes, Ordering::AcqRel);
            return Err(exhausted(held, device.allowed_bytes()));
        }
        let headroom = device.headroom_bytes();
        if headroom > 0
            && let Ok((free, total)) = device.memory_info()
            && free < bytes.saturating_add(headroom)
        {
            self.held.fetch_sub(bytes, Ordering::AcqRel);
            device.physical.fetch_sub(bytes, Ordering::AcqRel);
            return Err(exhausted(total - free, total - headroom.min(total)));
        }
        device.note_physical();
        self.counters.note_held(before + bytes, bytes);
        Ok(())
    }

    /// Runs calls of the driver that map or unmap memory, and counts their time.
    pub(crate) fn timed<R>(&self, call: impl FnOnce() -> R) -> R {
        let start = Instant::now();
        let result = call();
        self.counters.note_mapping(start.elapsed());
        result
    }

    /// Counts `bytes` as no longer held.
    pub(crate) fn give_up(&self, bytes: usize) {
        self.held.fetch_sub(bytes, Ordering::AcqRel);
        self.device.physical.fetch_sub(bytes, Ordering::AcqRel);
    }

    /// Serves a request.
    #[inline]
    pub(crate) fn allocate(&'static self, call: &Call, bytes: usize, step: Option<StepNumber>) -> Allocation {
        if self.has_guards() {
            self.allocate_guarded(call, bytes, step)
        } else {
            self.place(call, bytes, step)
        }
    }

    /// Serves a request with margins around the block.
    #[cold]
    fn allocate_guarded(&'static self, call: &Call, bytes: usize, step: Option<StepNumber>) -> Allocation {
        // A size that overflows is refused as any that no memory has.
        let placed = self.place(call, bytes.saturating_add(2 * MARGIN_BYTES), step);
        let Allocation::Block(start) = placed else { return placed };
        let addr = start + MARGIN_BYTES;
        // The block may be another pool's, which lent it.
        if let Some(arena) = self.device.platform.owner(start)
            && let Some(core) = arena.lock().as_mut()
        {
            // In a capture nothing is filled: the graph would do so at each launch.
            let armed = call.waitable().is_some() || call.stream.is_none();
            core.guards.insert(addr, Guarded { bytes, armed });
            arena.guarded.store(true, Ordering::Relaxed);
            if armed {
                let stream = call.stream.unwrap_or(Stream::LEGACY);
                self.device.with_context(|| guard::arm(self.device, addr, bytes, stream));
            }
        }
        Allocation::Block(addr)
    }

    /// Places a block.
    #[inline]
    fn place(&'static self, call: &Call, bytes: usize, step: Option<StepNumber>) -> Allocation {
        let request = Request::new(bytes);
        let pool_id = self.id.load(Ordering::Acquire);
        let mut asked = false;
        if let Some(arena) = thread_cache::arena(self, pool_id, call.owner)
            && let Some(mut guard) = arena.lock_for(self, pool_id, call.owner)
            && let Some(core) = guard.as_mut()
            && let Some(placed) = core.serve(request, step, &mut asked)
        {
            return Allocation::Block(placed.addr);
        }
        let placed = call.device.with_context(|| self.allocate_slowly(call, request, step, asked));
        placed.unwrap_or(Allocation::OutOfMemory)
    }

    /// As [`allocate`](Self::allocate), by all means. The context is current.
    #[cold]
    fn allocate_slowly(
        &'static self,
        call: &Call,
        request: Request,
        step: Option<StepNumber>,
        mut asked: bool,
    ) -> Allocation {
        if step.is_some() {
            // A plan may have the place: then no memory is needed.
            let served = self.with_arena(call, |core| {
                core.drain();
                core.serve(request, step, &mut asked)
            });
            if let Ok(Some(placed)) = served {
                return Allocation::Block(placed.addr);
            }
        }
        self.collect_garbage(call, request.size_bytes);
        let growth_bytes = self.growth_for(call, request);
        let placed = self.with_arena(call, |core| {
            core.drain();
            let placed = match growth_bytes {
                None => core.allocate(request, call.waitable()),
                Some(growth_bytes) => core.allocate_growing(request, growth_bytes, call.waitable()),
            }?;
            if let Some(step) = step {
                core.arena.placed_in_step(step.id(), placed);
            }
            Ok(placed)
        });
        let refused = match placed {
            Ok(Ok(placed)) => return Allocation::Block(placed.addr),
            Ok(Err(refused)) => refused,
            Err(_) => return Allocation::PassThrough,
        };
        match super::oom::make_room(self, call, request, refused) {
            Some(addr) => Allocation::Block(addr),
            None => {
                self.counters.refused.add(request.size_bytes);
                Allocation::OutOfMemory
            }
        }
    }

    /// Runs `f` on the pool's arena for the caller's stream. The context is current.
    pub(crate) fn with_arena<R>(
        &'static self,
        call: &Call,
        f: impl FnOnce(&mut ArenaCore) -> R,
    ) -> Result<R, PoolError> {
        loop {
            let arena = self.arena_for(call)?;
            let serves = |core: &&mut ArenaCore| {
                let same = std::ptr::eq(core.pool, self) && core.owner == call.owner;
                same || planted(Fault::ForgetOwner)
            };
            // Another thread may have ended it in between, because it held nothing.
            if let Some(core) = arena.lock().as_mut().filter(serves) {
                return Ok(f(core));
            }
        }
    }

    /// The pool's arena for the caller's stream: the one there is, one whose stream is gone, or
    /// a new one. The context is current.
    pub(crate) fn arena_for(&'static self, call: &Call) -> Result<&'static ArenaSlot, PoolError> {
        let mut guard = self.core.lock();
        let core = guard.as_mut().ok_or(PoolError::Closed)?;
        let serves = |owner: Owner| owner == call.owner || planted(Fault::ForgetOwner);
        let found = core.arenas.iter().find(|(owner, _)| serves(*owner)).map(|&(_, arena)| arena);
        let arena = match found.or_else(|| self.adopt(core, call)) {
            Some(arena) => arena,
            None => {
                self.end_arenas_of_graphs(core, false);
                let placement = core.blocks.for_device(self.device)?;
                let taking = core.blocks.taking();
                let arena = self.device.platform.take_arena()?;
                arena.open(self, core.id, call.owner, placement, taking, call.graph_token());
                core.arenas.push((call.owner, arena));
                call.notice_thread_end();
                arena
            }
        };
        thread_cache::remember_arena(self, core.id, call.owner, arena);
        Ok(arena)
    }

    /// Gives back what graphs held that are gone, and their arenas. The context is current.
    fn end_arenas_of_graphs(&self, core: &mut PoolCore, may_wait: bool) {
        for wait in [false, true] {
            let (mut gone, mut waiting) = (0, 0);
            for &(_, arena) in core.arenas.iter().filter(|(owner, _)| matches!(owner, Owner::Capture(..))) {
                let mut guard = arena.lock();
                let Some(ended) = guard.as_mut().filter(|ended| !ended.serves_graph()) else { continue };
                gone += 1;
                ended.drain();
                ended.set_aside(usize::MAX);
                ended.arena.upstream_mut().flush();
                ended.set_aside(0);
                waiting += usize::from(ended.arena.upstream().has_set_aside());
            }
            if gone > waiting {
                self.end_empty_arenas(core);
            }
            // A graph's last launch may run yet. It is waited for when many graphs have gone.
            let many = waiting >= GRAPHS_BEFORE_WAITING;
            if wait || !may_wait || !many || !self.synchronize() {
                return;
            }
        }
    }

    /// Takes over the arena of a stream that is gone, behind that stream's last work.
    fn adopt(&'static self, core: &mut PoolCore, call: &Call) -> Option<&'static ArenaSlot> {
        let (Owner::Stream(_), stream) = (call.owner, call.stream?) else { return None };
        let driver = &self.device.platform.driver;
        let at = core.ended.iter().rposition(|ended| {
            ended.event.is_some() || ended.per_thread || self.device.is_idle(ended.mark)
        })?;
        let ended = &mut core.ended[at];
        if ended.event.is_none() && !self.device.is_idle(ended.mark) {
            // One on the legacy stream stands for every per-thread stream, also of threads that have ended.
            ended.event = Some(self.device.record(Stream::LEGACY)?);
        }
        let ordered = planted(Fault::AdoptAtOnce)
            || ended.event.is_none_or(|event| driver.stream_wait(stream, event).is_ok());
        if !ordered {
            return None;
        }
        let Ended { arena, event, .. } = core.ended.swap_remove(at);
        if let Some(event) = event {
            self.device.recycle(event);
        }
        if let Some(adopted) = arena.lock().as_mut() {
            adopted.hand_to(call.owner);
        }
        core.arenas.push((call.owner, arena));
        call.notice_thread_end();
        Some(arena)
    }

    /// Notes that a stream is gone, or is about to go; `stream` is its handle, if the calling
    /// thread can name it. The context is current.
    pub(crate) fn stream_ended(&self, id: StreamId, stream: Option<Stream>, per_thread: bool) {
        let mut guard = self.core.lock();
        let Some(core) = guard.as_mut() else { return };
        let owner = Owner::Stream(id);
        let Some(at) = core.arenas.iter().position(|(other, _)| *other == owner) else { return };
        let (_, arena) = core.arenas.swap_remove(at);
        let mut arena_guard = arena.lock();
        let event = stream.and_then(|stream| self.device.record(stream));
        if let Some(ended) = arena_guard.as_mut() {
            ended.hand_to(Owner::Ended);
        }
        // Non-blocking streams do not block the legacy one: without an event of their own, their memory
        // serves again once the device was idle.
        core.ended.push(Ended { arena, event, per_thread, mark: self.device.epoch() });
    }

    /// The pool's arenas, all of them.
    pub(crate) fn arenas(&self) -> Vec<&'static ArenaSlot> {
        let guard = self.core.lock();
        guard.as_ref().map_or_else(Vec::new, |core| core.arenas().collect())
    }

    /// Runs `f` on each arena of the pool, one after the other.
    pub(crate) fn for_each_arena(&'static self, mut f: impl FnMut(&mut ArenaCore)) {
        for arena in self.arenas() {
            let mut guard = arena.lock();
            if let Some(core) = guard.as_mut().filter(|core| std::ptr::eq(core.pool, self)) {
                f(core);
            }
        }
    }

    /// Ends a run of a step on every stream, and makes plans where it agreed with an earlier one. Nothing is
    /// locked while they are made.
    pub(crate) fn end_step(&'static self, id: StepId, is_whole: bool) {
        for arena in self.arenas() {
            let of_pool = |core: &&mut ArenaCore| std::ptr::eq(core.pool, self);
            let job = arena.lock().as_mut().filter(of_pool).and_then(|core| core.arena.end_step(id));
            let Some(solved) = job.filter(|_| is_whole).and_then(PlanJob::solve) else { continue };
            self.device.with_context(|| {
                let mut guard = arena.lock();
                let Some(core) = guard.as_mut().filter(of_pool) else { return };
                // Its pages may be new: then they are mapped without waiting for the stream.
                let slab = core.arena.wanted_slab(&solved).map(|request| {
                    let block = core.arena.allocate(request)?;
                    core.note_kept_block();
                    Ok::<_, ArenaError>(AddressRange::new(block.addr, request.size_bytes))
                });
                // Without memory for it the step goes on as it is.
                if let Ok(slab) = slab.transpose() {
                    core.arena.install_plan(solved, slab);
                }
            });
        }
    }

    /// Gives free pages back until `target_bytes` are returned or none is left that is not kept, and is idle or
    /// made so by waiting, and returns how many bytes it were.
    pub(crate) fn trim(&'static self, target_bytes: usize) -> usize {
        self.deal_out();
        self.trim_arenas(target_bytes)
    }

    /// As [`trim`](Self::trim), where each arena keeps what it was told last.
    fn trim_arenas(&'static self, target_bytes: usize) -> usize {
        let held = self.held_bytes();
        let trimmed = self.device.with_context(|| {
            let mut wanted = target_bytes;
            // What waits for work becomes free by waiting, and can be given back in a second round.
            for _ in 0..2 {
                let (mut aside, mut waiting) = (false, false);
                self.for_each_arena(|core| {
                    core.drain();
                    wanted -= core.set_aside(wanted).min(wanted);
                    aside |= core.arena.upstream().has_set_aside();
                    waiting |= core.waits_for_work();
                });
                let idle = (aside || waiting) && self.synchronize();
                self.flush();
                if !idle || !waiting {
                    break;
                }
            }
        });
        self.device.end_uses();
        debug_assert!(trimmed.is_some() || held == 0, "a device's context can be made current");
        held.saturating_sub(self.held_bytes())
    }

    /// Gives pages back that were set aside and are idle by now, and ends arenas that hold nothing.
    /// The context is current.
    pub(crate) fn flush(&'static self) {
        self.for_each_arena(|core| {
            core.drain();
            if core.arena.upstream_mut().flush() > 0 {
                // Ranges whose last pages these were can go now.
                core.set_aside(0);
            }
        });
        let mut guard = self.core.lock();
        if let Some(core) = guard.as_mut() {
            self.end_empty_arenas(core);
        }
    }

    fn end_empty_arenas(&self, core: &mut PoolCore) {
        let (mut before, mut any_ends) = (Figures::default(), false);
        for arena in core.arenas() {
            if let Some(core) = arena.lock().as_ref() {
                before.add(&core.figures());
                any_ends |= core.is_empty();
            }
        }
        if any_ends {
            core.highest.raise_peaks(&before);
        }
        let PoolCore { arenas, ended, past, .. } = core;
        let mut keep = |arena: &'static ArenaSlot| {
            let mut guard = arena.lock();
            let Some(last) = guard.take_if(|core| core.is_empty()) else { return guard.is_some() };
            let mut figures = last.figures();
            // What is no more has no peak of its own.
            figures.reset_peaks();
            past.add(&figures);
            self.device.platform.return_arena(arena.index);
            false
        };
        arenas.retain(|&(_, arena)| keep(arena));
        ended.retain(|ended| {
            let kept = keep(ended.arena);
            if let Some(event) = ended.event.filter(|_| !kept) {
                self.device.recycle(event);
            }
            kept
        });
    }

    /// Keeps the device's pools below the threshold by giving free pages back before new ones are taken.
    fn collect_garbage(&'static self, call: &Call, bytes: usize) {
        let share = f64::from_bits(self.garbage_collection_threshold.load(Ordering::Relaxed));
        if share == 0.0 || (call.waitable().is_none() && call.owner != Owner::Synchronous) {
            return;
        }
        let bytes = bytes.checked_next_multiple_of(self.device.unit_bytes()).unwrap_or(bytes);
        let most = (self.device.allowed_bytes().min(self.limit_bytes()) as f64 * share) as usize;
        let over = self.held_bytes().saturating_add(bytes).saturating_sub(most);
        if over > 0 {
            self.trim(over);
        }
    }

    /// Notes that the last handle of the pool is gone.
    pub(crate) fn retire(&'static self, id: u64) {
        if self.id() == id {
            self.keep_nothing();
            self.retired.store(true, Ordering::Release);
            self.close_if_unused();
        }
    }

    #[inline]
    pub(crate) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Acquire)
    }

    /// Ends the pool if it is retired and nobody holds a block of it.
    #[cold]
    pub(crate) fn close_if_unused(&'static self) {
        let mut in_use = false;
        self.for_each_arena(|core| {
            core.drain();
            in_use |= core.live_blocks() > 0 || core.serves_graph() || core.waits_for_graph();
        });
        if in_use || !self.is_retired() {
            return;
        }
        self.trim(usize::MAX);
        let mut guard = self.core.lock();
        let empty = guard.as_ref().is_some_and(|core| core.arenas.is_empty() && core.ended.is_empty());
        if empty && self.is_retired() {
            if let Some(core) = guard.take() {
                self.device.remember_pool(self.stats_of(&core, core.past.clone(), 0).of_the_past());
            }
            self.retired.store(false, Ordering::Release);
            drop(guard);
            self.device.return_slot(self);
        }
        // Otherwise work still uses the pool, or a capture forbids waiting: it is tried again by
        // `sweep`.
    }

    pub(crate) fn validate(&'static self) -> Result<(), Violation> {
        let mut result = Ok(());
        self.for_each_arena(|core| {
            if result.is_ok() {
                result = core.arena.validate();
            }
        });
        result
    }

    /// Tells a listener of the pool's blocks that are live for their users.
    pub(crate) fn list_live(&'static self, listener: Listener) {
        self.for_each_arena(|core| core.list_live(listener));
    }

    /// Bytes on free pages that a trim gives back.
    pub(crate) fn releasable_bytes(&'static self) -> usize {
        let mut bytes = 0;
        self.for_each_arena(|core| {
            if !core.serves_graph() {
                core.arena.settle();
                bytes += core.arena.spare_bytes() + core.arena.upstream().set_aside_bytes();
            }
        });
        bytes
    }

    /// Ends a step.
    pub(crate) fn mark_step(&'static self) {
        let Some(stats) = self.stats_if_open() else { return };
        let now = StepStats::counted(&stats.placement);
        if let Some(core) = self.core.lock().as_mut() {
            core.last_step = now - core.at_step_start;
            core.at_step_start = now;
            if core.arenas.iter().any(|(owner, _)| matches!(owner, Owner::Capture(..))) {
                self.device.with_context(|| self.end_arenas_of_graphs(core, true));
            }
        }
        let threshold = self.release_threshold_bytes.load(Ordering::Relaxed);
        if threshold != usize::MAX {
            let cached = self.releasable_bytes();
            if cached > threshold {
                self.trim(cached - threshold);
            }
        }
    }

    /// The slot's lock, for the fork handlers.
    pub(crate) fn lock_for_fork(&'static self) -> &'static Lock<Option<PoolCore>> {
        &self.core
    }
}

/// Set when a graph is gone, for pools that hold its memory.
pub(crate) type GraphToken = Arc<AtomicBool>;

impl fmt::Debug for PoolSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolSlot").field("id", &self.id()).finish_non_exhaustive()
    }
}
