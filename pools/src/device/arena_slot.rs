//! The memory of one pool in the order of one stream.
//!
//! A block that its stream freed serves that stream again at once; whoever else freed it, or
//! used it, is waited for first. So each pool has an arena for each stream that allocates from
//! it, and only that stream's requests are placed there. Slots are never freed, only used
//! again, so a reference to one is valid for ever.

use std::any::Any;
use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicBool, Ordering};

use mempool_arena::{
    Arena, ArenaError, Compaction, Effort, HeapId, LiveBlock, Placed, Placement, Request, SizeClass,
};

use crate::buffer::Spot;
use crate::device::driver::{CaptureId, CaptureState, DriverResult, Event, Stream, StreamId};
use crate::device::fault::{Fault, planted};
use crate::device::guard::Guarded;
use crate::device::pool_slot::{GraphToken, PoolSlot};
use crate::device::state::DeviceState;
use crate::device::upstream::{DeviceArena, DeviceUpstream, Taking};
use crate::device::waiting::Waiting;
use crate::history::{self, Observed};
use crate::lock::Lock;
use crate::recording::{self, Change, Listener, Source};
use crate::stats::Figures;
use crate::step::{DEVICE_GRANULE_BYTES, StepNumber};

/// In whose order an arena's memory is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Owner {
    /// Work of this stream.
    Stream(StreamId),
    /// Work of a graph, captured on this stream. A thread's own stream has one handle on all threads,
    /// so there the thread's number tells them apart.
    Capture(CaptureId, Stream, u64),
    /// Nobody's: what is handed out is idle.
    Synchronous,
    /// The stream is gone.
    Ended,
}

/// Another stream that uses a block.
pub(crate) struct Use {
    /// The stream's device, which need not be the block's.
    pub(crate) device: &'static DeviceState,
    pub(crate) stream: Stream,
    pub(crate) by: UsedBy,
    /// Keeps the stream alive.
    pub(crate) _keep: Box<dyn Any + Send>,
}

/// What it is that uses a block.
pub(crate) enum UsedBy {
    /// Work queued in the stream.
    Work(StreamId),
    /// A graph that the stream was captured into.
    Graph(GraphToken),
}

/// What a freed block waits for.
#[derive(Default)]
pub(crate) struct Waits {
    /// Work that events stand for, each of a device.
    pub(crate) events: Vec<(&'static DeviceState, Event)>,
    /// Work that no event stands for: it is done once the device was idle after this mark, see
    /// [`DeviceState::epoch`].
    pub(crate) marks: Vec<(&'static DeviceState, u64)>,
    /// Graphs; each token is set when its graph is gone.
    pub(crate) graphs: Vec<GraphToken>,
}

impl Waits {
    /// For everything that is queued on the device.
    pub(crate) fn for_all(device: &'static DeviceState) -> Self {
        Self { marks: vec![(device, device.epoch())], ..Self::default() }
    }

    pub(crate) fn for_graph(graph: GraphToken) -> Self {
        Self { graphs: vec![graph], ..Self::default() }
    }

    /// For what is queued in a stream of the device so far. The stream may be in capture.
    pub(crate) fn add_stream(&mut self, device: &'static DeviceState, stream: Stream) {
        let event = device.with_context(|| match device.platform.capture_state(stream) {
            Some(CaptureState::None) => device.record(stream),
            Some(CaptureState::Active(capture)) => {
                self.graphs.push(device.graph_token_of(capture, stream));
                None
            }
            Some(CaptureState::Invalidated) | None => None,
        });
        match event.flatten() {
            Some(event) => self.events.push((device, event)),
            None => self.marks.push((device, device.epoch())),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.events.is_empty() && self.marks.is_empty() && self.graphs.is_empty()
    }

    /// Gives the events back.
    pub(crate) fn end(self) {
        self.events.into_iter().for_each(|(device, event)| device.recycle(event));
    }

    fn has_living_graph(&self) -> bool {
        self.graphs.iter().any(|gone| !gone.load(Ordering::Acquire))
    }
}

/// A block that was freed and that queued work may still use.
struct Pending {
    addr: usize,
    block: LiveBlock,
    /// What it is counted as; `None` for what lies in another block, that of a step or of buffers.
    class: Option<SizeClass>,
    waits: Waits,
}

/// See the module's text. Two cache lines, which processors fetch in pairs.
#[repr(align(128))]
pub(crate) struct ArenaSlot {
    pub(crate) index: u32,
    /// Guarded blocks have been here.
    pub(crate) guarded: AtomicBool,
    core: Lock<Option<ArenaCore>>,
}

pub(crate) struct ArenaCore {
    pub(crate) pool: &'static PoolSlot,
    pub(crate) pool_id: u64,
    pub(crate) owner: Owner,
    pub(crate) arena: DeviceArena,
    uses: HashMap<usize, Vec<Use>>,
    /// Blocks between margins, by the address that their owners know.
    pub(crate) guards: HashMap<usize, Guarded>,
    pending: VecDeque<Pending>,
    /// The addresses of what is pending.
    waiting: HashSet<usize>,
    /// Their figures.
    in_use: Waiting,
    requests_since_drain: u32,
}

/// Finished events are looked for at this many requests at the latest: a query costs as much as
/// ten hits.
const REQUESTS_BETWEEN_DRAINS: u32 = 64;

impl ArenaSlot {
    pub(crate) fn new(index: u32) -> Self {
        Self { index, guarded: AtomicBool::new(false), core: Lock::new(None) }
    }

    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, Option<ArenaCore>> {
        self.core.lock()
    }

    /// The lock, unless somebody holds it.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, Option<ArenaCore>>> {
        self.core.try_lock()
    }

    /// The arena, if it still is this pool's for this owner.
    #[inline]
    pub(crate) fn lock_for(
        &self,
        pool: &'static PoolSlot,
        pool_id: u64,
        owner: Owner,
    ) -> Option<MutexGuard<'_, Option<ArenaCore>>> {
        let guard = self.core.lock();
        let core = guard.as_ref()?;
        let same_pool = std::ptr::eq(core.pool, pool) && core.pool_id == pool_id;
        let same = (same_pool || planted(Fault::ServeFromWrongPool)) && core.owner == owner;
        same.then_some(guard)
    }

    /// Whether blocks here lie between margins.
    #[inline]
    pub(crate) fn has_guards(&self) -> bool {
        self.guarded.load(Ordering::Relaxed)
    }

    /// Puts an arena into the empty slot.
    pub(crate) fn open(
        &self,
        pool: &'static PoolSlot,
        pool_id: u64,
        owner: Owner,
        placement: Box<dyn Placement>,
        taking: Taking,
        graph: Option<Arc<AtomicBool>>,
    ) {
        self.guarded.store(false, Ordering::Relaxed);
        let source = Source { device: Some(pool.device.id), pool_id, order: Some(owner) };
        let upstream = DeviceUpstream::new(pool.device, pool, self.index, taking, graph);
        *self.core.lock() = Some(ArenaCore {
            pool,
            pool_id,
            owner,
            arena: Arena::from_boxed(placement, Observed::new(upstream, source)),
            uses: HashMap::new(),
            guards: HashMap::new(),
            pending: VecDeque::new(),
            waiting: HashSet::new(),
            in_use: Waiting::default(),
            requests_since_drain: 0,
        });
    }

    /// Lets another device use what is mapped here, if it is memory that it can use.
    pub(crate) fn grant(&self, peer: &DeviceState) {
        let guard = self.core.lock();
        let Some(core) = guard.as_ref() else { return };
        let owner = core.pool.device;
        let platform = owner.platform;
        if owner.ordinal != peer.ordinal && platform.driver.can_access(peer.ordinal, owner.ordinal) {
            core.arena.upstream().grant(peer.ordinal);
        }
    }

    /// The slot's lock, for the fork handlers.
    pub(crate) fn lock_for_fork(&'static self) -> &'static Lock<Option<ArenaCore>> {
        &self.core
    }
}

impl ArenaCore {
    /// Places a block on memory that is there and that nothing but the owner's earlier work uses.
    #[inline]
    pub(crate) fn allocate_mapped(&mut self, request: Request) -> Option<Placed> {
        if !self.pending.is_empty() {
            self.requests_since_drain += 1;
            if self.requests_since_drain >= REQUESTS_BETWEEN_DRAINS {
                self.drain();
            }
        }
        self.place_mapped(request)
    }

    /// As [`allocate_mapped`](Self::allocate_mapped); a request of a step where its plan has a place for it.
    /// `asked` is whether the step was asked before, and so it was then.
    #[inline]
    pub(crate) fn serve(
        &mut self,
        request: Request,
        step: Option<StepNumber>,
        asked: &mut bool,
    ) -> Option<Placed> {
        let Some(step) = step else { return self.allocate_mapped(request) };
        let id = step.id();
        if std::mem::replace(asked, true) {
            let placed = self.allocate_mapped(request)?;
            self.arena.placed_in_step(id, placed);
            return Some(placed);
        }
        if !self.arena.has_step(id) {
            self.arena.add_step(id, step.options(DEVICE_GRANULE_BYTES));
            self.arena.begin_step(id);
        }
        if let Some(placed) = self.arena.allocate_in_step(id, request, false) {
            self.note(Change::Allocated { addr: placed.addr, size_bytes: request.size_bytes });
            return Some(placed);
        }
        let placed = self.allocate_mapped(request)?;
        self.arena.placed_in_step(id, placed);
        Some(placed)
    }

    /// Hands a free buffer out that holds `size_bytes`: its address.
    pub(crate) fn take_buffer(&mut self, spot: Spot, size_bytes: usize) -> Option<usize> {
        self.tell_heaps();
        let addr = spot.take(&mut self.arena, size_bytes)?;
        self.note(Change::Allocated { addr, size_bytes });
        Some(addr)
    }

    /// Buffers that are held during a capture may be known to its graph.
    #[inline]
    fn tell_heaps(&mut self) {
        if self.arena.has_heaps() {
            self.arena.set_heaps_now(self.pool.device.platform.capture_moment());
        }
    }

    /// Moves buffers together in the order of `stream`, the owner's, up to a copy that the driver refuses. The context is
    /// current.
    pub(crate) fn compact(
        &mut self,
        heap: HeapId,
        effort: Effort,
        stream: Stream,
    ) -> (Compaction, DriverResult<()>) {
        let (effort, device) = (self.effort(effort), self.pool.device);
        let mut copied = Ok(());
        let done = self.arena.compact_heap(heap, effort, &mut |from, to, bytes| {
            copied = device.platform.driver.copy(from, to, bytes, stream);
            copied.is_ok()
        });
        (done, copied)
    }

    /// As [`compact`](Self::compact) all heaps that are to be compacted when memory is short; the bytes that this freed.
    pub(crate) fn compact_on_oom(&mut self, stream: Stream) -> usize {
        let (effort, device) = (self.effort(Effort::for_memory()), self.pool.device);
        self.arena.compact_on_oom(effort, &mut |from, to, bytes| {
            device.platform.driver.copy(from, to, bytes, stream).is_ok()
        })
    }

    fn effort(&self, effort: Effort) -> Effort {
        Effort {
            recordings: self.pool.device.has_graphs() && !planted(Fault::MoveGraphBuffers),
            held_too: planted(Fault::MoveHeldBuffers),
            ..effort
        }
    }

    /// As [`allocate_mapped`](Self::allocate_mapped), whatever waits.
    #[inline]
    pub(crate) fn place_mapped(&mut self, request: Request) -> Option<Placed> {
        let placed = self.arena.allocate_mapped(request)?;
        self.in_use.note_allocation(self.arena.stats());
        self.note(Change::Allocated { addr: placed.addr, size_bytes: request.size_bytes });
        Some(placed)
    }

    /// Places a block, on new memory if need be. `stream` is the owner's, unless it is in capture.
    pub(crate) fn allocate(
        &mut self,
        request: Request,
        stream: Option<Stream>,
    ) -> Result<Placed, ArenaError> {
        self.place_new(stream, request, |arena| arena.allocate(request))
    }

    /// As [`allocate`](Self::allocate); where new memory is needed `growth_bytes` are taken, if they can be.
    pub(crate) fn allocate_growing(
        &mut self,
        request: Request,
        growth_bytes: usize,
        stream: Option<Stream>,
    ) -> Result<Placed, ArenaError> {
        self.place_new(stream, request, |arena| arena.allocate_growing(request, growth_bytes))
    }

    fn place_new(
        &mut self,
        stream: Option<Stream>,
        request: Request,
        place: impl FnOnce(&mut DeviceArena) -> Result<Placed, ArenaError>,
    ) -> Result<Placed, ArenaError> {
        self.arena.upstream_mut().serve(stream);
        let placed = place(&mut self.arena);
        self.arena.upstream_mut().serve(None);
        self.in_use.note_allocation(self.arena.stats());
        if let Ok(placed) = &placed {
            self.note(Change::Allocated { addr: placed.addr, size_bytes: request.size_bytes });
        }
        placed
    }

    /// Ends a live block that nothing but the owner's earlier work uses; `false` when none starts there.
    #[inline]
    pub(crate) fn free(&mut self, addr: usize) -> bool {
        self.tell_heaps();
        let freed = self.arena.free(addr).is_ok();
        if freed {
            self.note(Change::Ended { addr });
        }
        freed
    }

    /// Tells recordings of what became of a block. The arena's lock is held, so a free is told of before
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

    /// Tells the history alone.
    pub(crate) fn note_to_history(&self, change: Change) {
        if recording::is_on() {
            history::note(self.source(), change);
        }
    }

    /// Tells recordings of the making and the end of a buffer.
    pub(crate) fn note_buffer(&self, change: Change) {
        if recording::is_on() {
            recording::note_kept(self.source(), change);
        }
    }

    fn source(&self) -> Source {
        Source { device: Some(self.pool.device.id), pool_id: self.pool_id, order: Some(self.owner) }
    }

    /// Makes the memory another owner's.
    pub(crate) fn hand_to(&mut self, owner: Owner) {
        self.owner = owner;
        let source = self.source();
        self.arena.upstream_mut().hand_to(source);
    }

    /// Tells a listener of the blocks that are live for their users.
    pub(crate) fn list_live(&self, listener: Listener) {
        recording::list(listener, self.source(), || {
            let mut blocks = match listener {
                Listener::History => self.arena.live_blocks(),
                Listener::Recording(_) => self.arena.needed_blocks(),
            };
            blocks.retain(|block| !self.is_pending(block.addr));
            blocks
        });
    }

    /// Whether other streams were declared to use the block.
    #[inline]
    pub(crate) fn is_used_elsewhere(&self, addr: usize) -> bool {
        !self.uses.is_empty() && self.uses.contains_key(&addr)
    }

    /// Whether a live block starts here that has not been freed.
    pub(crate) fn is_live(&self, addr: usize) -> bool {
        self.arena.live_block(addr).is_some() && !self.is_pending(addr)
    }

    /// Declares another stream's use of a live block. One that is declared already is returned.
    pub(crate) fn record_use(&mut self, addr: usize, used: Use) -> Option<Use> {
        let uses = self.uses.entry(addr).or_default();
        let known = uses.iter().any(|other| match (&other.by, &used.by) {
            (UsedBy::Work(one), UsedBy::Work(other)) => one == other,
            (UsedBy::Graph(one), UsedBy::Graph(other)) => Arc::ptr_eq(one, other),
            (UsedBy::Work(_), UsedBy::Graph(_)) | (UsedBy::Graph(_), UsedBy::Work(_)) => false,
        });
        if known {
            return Some(used);
        }
        uses.push(used);
        None
    }

    pub(crate) fn take_uses(&mut self, addr: usize) -> Vec<Use> {
        self.uses.remove(&addr).unwrap_or_default()
    }

    /// Whether the block was freed already and waits.
    #[inline]
    pub(crate) fn is_pending(&self, addr: usize) -> bool {
        !self.waiting.is_empty() && self.waiting.contains(&addr)
    }

    /// Queues a freed block until what it waits for is done; `waits` comes back when no live block
    /// starts there.
    pub(crate) fn defer(&mut self, addr: usize, waits: Waits) -> Result<(), Waits> {
        match self.arena.live_block(addr).filter(|_| !self.is_pending(addr)) {
            Some(block) => {
                let in_slab = self.arena.is_in_slab(addr);
                let class = (!in_slab).then(|| self.arena.class_of_block(addr));
                if let Some(class) = class {
                    self.in_use.begin(self.arena.stats(), class, block);
                }
                self.pending.push_back(Pending { addr, block, class, waits });
                self.waiting.insert(addr);
                self.note(Change::Freed { addr });
                Ok(())
            }
            None => Err(waits),
        }
    }

    /// Whether blocks wait for something that ends by waiting.
    pub(crate) fn waits_for_work(&self) -> bool {
        self.pending.iter().any(|pending| !pending.waits.has_living_graph())
    }

    /// Whether blocks wait for a graph that lives.
    pub(crate) fn waits_for_graph(&self) -> bool {
        self.pending.iter().any(|pending| pending.waits.has_living_graph())
    }

    /// Number of blocks that are live for their users.
    #[inline]
    pub(crate) fn live_blocks(&self) -> usize {
        self.arena.live_count() - self.pending.len()
    }

    /// Bytes of freed blocks that wait. What lies in the slab of a step is a part of it.
    pub(crate) fn pending_bytes(&self) -> usize {
        self.in_use.allocated_bytes()
    }

    /// The figures of what users have, and of what is in use.
    pub(crate) fn figures(&self) -> Figures {
        self.in_use.figures(self.arena.stats())
    }

    /// Follows the peaks after the arena placed a block by itself, for a step or for buffers.
    pub(crate) fn note_kept_block(&mut self) {
        self.in_use.note_allocation(self.arena.stats());
    }

    pub(crate) fn reset_peaks(&mut self) {
        self.arena.reset_peaks();
        self.in_use.reset_peaks(self.arena.stats());
    }

    pub(crate) fn reset_accumulated(&mut self) {
        self.arena.reset_accumulated();
        self.in_use.reset_accumulated();
    }

    /// Makes those waiting blocks free whose work is done. Never waits. The context is current.
    pub(crate) fn drain(&mut self) {
        self.requests_since_drain = 0;
        if self.pending.is_empty() {
            return;
        }
        self.pool.device.platform.beside_captures(|| {
            self.settle_pending(|device, event| {
                if planted(Fault::ReuseBeforeDone) {
                    return Ok(true);
                }
                device.platform.driver.event_done(event)
            });
        });
    }

    /// Makes waiting blocks free by letting `stream`, the owner's, wait for the work that uses
    /// them. The host does not wait.
    pub(crate) fn drain_behind(&mut self, stream: Stream) {
        self.settle_pending(|device, event| {
            if planted(Fault::SkipEventWait) {
                return Ok(true);
            }
            device.platform.driver.stream_wait(stream, event).map(|()| true)
        });
    }

    fn settle_pending(&mut self, mut settled: impl FnMut(&'static DeviceState, Event) -> DriverResult<bool>) {
        let own = self.pool.device;
        for _ in 0..self.pending.len() {
            let mut pending = self.pending.pop_front().expect("counted");
            let waits = &mut pending.waits;
            let (mut marks, mut kept) = (std::mem::take(&mut waits.marks), Vec::new());
            waits.graphs.retain(|gone| {
                let lives = !gone.load(Ordering::Acquire) && !planted(Fault::ReuseGraphMemory);
                if !lives {
                    // A launch of the graph may still run, on whichever stream.
                    marks.push((own, own.epoch()));
                }
                lives
            });
            for (device, event) in std::mem::take(&mut waits.events) {
                match settled(device, event) {
                    Ok(true) => device.recycle(event),
                    Ok(false) => kept.push((device, event)),
                    Err(_) => {
                        // An event that cannot be asked, or not by this call, stands for work that is
                        // done once the device was idle.
                        device.recycle(event);
                        marks.push((device, device.epoch()));
                    }
                }
            }
            marks.retain(|&(device, mark)| !device.is_idle(mark));
            *waits = Waits { events: kept, marks, graphs: std::mem::take(&mut waits.graphs) };
            if !waits.is_empty() {
                self.pending.push_back(pending);
                continue;
            }
            self.waiting.remove(&pending.addr);
            let uses = self.take_uses(pending.addr);
            own.end_uses_later(uses);
            self.tell_heaps();
            if let Some(class) = pending.class {
                self.in_use.end(class, pending.block);
            }
            let freed = self.arena.free(pending.addr);
            debug_assert!(freed.is_ok(), "a waiting block is live");
            self.note(Change::Completed { addr: pending.addr });
        }
    }

    /// Whether the graph that this arena was made for may still run.
    pub(crate) fn serves_graph(&self) -> bool {
        self.arena.upstream().serves_graph()
    }

    /// Sets free pages aside. Those of a graph stay.
    pub(crate) fn set_aside(&mut self, target_bytes: usize) -> usize {
        if self.serves_graph() {
            return 0;
        }
        self.arena.trim(target_bytes)
    }

    /// Whether nothing is left here: no block, no page.
    pub(crate) fn is_empty(&self) -> bool {
        let stats = self.arena.stats();
        self.arena.live_count() == 0
            && stats.blocks.current == 0
            && stats.segments.current == 0
            && !self.arena.upstream().has_set_aside()
            && !self.serves_graph()
    }
}

impl fmt::Debug for ArenaSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArenaSlot").field("index", &self.index).finish_non_exhaustive()
    }
}
