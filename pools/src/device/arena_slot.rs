//! The memory of one pool in the order of one stream.
//!
//! A block that its stream freed serves that stream again at once; whoever else freed it, or
//! used it, is waited for first. So each pool has an arena for each stream that allocates from
//! it, and only that stream's requests are placed there. Slots are never freed, only used
//! again, so a reference to one is valid for ever.

use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicBool, Ordering};

use mempool_arena::{Arena, ArenaError, LiveBlock, Placed, Placement, Request};

use crate::device::driver::{CaptureId, Event, Stream, StreamId};
use crate::device::fault::{Fault, planted};
use crate::device::guard::Guarded;
use crate::device::pool_slot::PoolSlot;
use crate::device::state::DeviceState;
use crate::device::upstream::DeviceUpstream;
use crate::lock::Lock;

/// In whose order an arena's memory is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Owner {
    /// Work of this stream.
    Stream(StreamId),
    /// Work of a graph, captured on this stream.
    Capture(CaptureId, Stream),
    /// Nobody's: what is handed out is idle.
    Synchronous,
    /// The stream is gone.
    Ended,
}

/// Another stream that uses a block.
pub(crate) struct Use {
    pub(crate) stream: Stream,
    pub(crate) id: StreamId,
    /// Keeps the stream alive.
    pub(crate) _keep: Box<dyn Any + Send>,
}

/// A block that was freed and that queued work may still use.
struct Pending {
    addr: usize,
    block: LiveBlock,
    /// The work, as far as events stand for it.
    events: Vec<Event>,
    /// When events do not say it all: the mark of the free, see [`DeviceState::epoch`].
    mark: Option<u64>,
    /// Set when the graph that uses the block is gone.
    graph: Option<Arc<AtomicBool>>,
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
    pub(crate) arena: Arena<DeviceUpstream>,
    uses: HashMap<usize, Vec<Use>>,
    /// Blocks between margins, by the address that their owners know.
    pub(crate) guards: HashMap<usize, Guarded>,
    pending: VecDeque<Pending>,
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
        graph: Option<Arc<AtomicBool>>,
    ) {
        self.guarded.store(false, Ordering::Relaxed);
        let upstream = DeviceUpstream::new(pool.device, pool, self.index, graph);
        *self.core.lock() = Some(ArenaCore {
            pool,
            pool_id,
            owner,
            arena: Arena::from_boxed(placement, upstream),
            uses: HashMap::new(),
            guards: HashMap::new(),
            pending: VecDeque::new(),
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
        self.arena.allocate_mapped(request)
    }

    /// Places a block, on new memory if need be. `stream` is the owner's, unless it is in capture.
    pub(crate) fn allocate(
        &mut self,
        request: Request,
        stream: Option<Stream>,
    ) -> Result<Placed, ArenaError> {
        self.arena.upstream_mut().serve(stream);
        let placed = self.arena.allocate(request);
        self.arena.upstream_mut().serve(None);
        placed
    }

    /// Whether a live block starts here, and whether it is no other stream's.
    #[inline]
    pub(crate) fn is_used_elsewhere(&self, addr: usize) -> bool {
        !self.uses.is_empty() && self.uses.contains_key(&addr)
    }

    /// Declares another stream's use of a live block.
    pub(crate) fn record_use(&mut self, addr: usize, used: Use) -> bool {
        if self.arena.live_block(addr).is_none() || self.is_pending(addr) {
            return false;
        }
        let uses = self.uses.entry(addr).or_default();
        if !uses.iter().any(|other| other.id == used.id) {
            uses.push(used);
        }
        true
    }

    pub(crate) fn take_uses(&mut self, addr: usize) -> Vec<Use> {
        self.uses.remove(&addr).unwrap_or_default()
    }

    /// Whether the block was freed already and waits.
    #[inline]
    pub(crate) fn is_pending(&self, addr: usize) -> bool {
        !self.pending.is_empty() && self.pending.iter().any(|pending| pending.addr == addr)
    }

    /// Queues a freed block until the work that uses it is done; `false` when no live block starts there.
    pub(crate) fn defer(
        &mut self,
        addr: usize,
        events: Vec<Event>,
        mark: Option<u64>,
        graph: Option<Arc<AtomicBool>>,
    ) -> bool {
        let Some(block) = self.arena.live_block(addr).filter(|_| !self.is_pending(addr)) else {
            return false;
        };
        self.pending.push_back(Pending { addr, block, events, mark, graph });
        true
    }

    /// Number of blocks that are live for their users.
    #[inline]
    pub(crate) fn live_blocks(&self) -> usize {
        self.arena.stats().blocks.current - self.pending.len()
    }

    /// Requested and allocated bytes of freed blocks that wait.
    pub(crate) fn pending_bytes(&self) -> (usize, usize) {
        self.pending.iter().fold((0, 0), |(requested, allocated), pending| {
            (requested + pending.block.requested_bytes, allocated + pending.block.allocated_bytes)
        })
    }

    pub(crate) fn pending_count(&self) -> usize {
        self.pending.len()
    }

    /// Makes those waiting blocks free whose work is done. Never waits. The context is current.
    pub(crate) fn drain(&mut self) {
        self.requests_since_drain = 0;
        if self.pending.is_empty() {
            return;
        }
        self.pool.device.platform.beside_captures(|| {
            self.settle_pending(|device, event| {
                let done = planted(Fault::ReuseBeforeDone)
                    || device.platform.driver.event_done(event).unwrap_or(false);
                if done {
                    device.recycle(event);
                }
                done
            });
        });
    }

    /// Makes waiting blocks free by letting `stream`, the owner's, wait for the work that uses
    /// them. The host does not wait.
    pub(crate) fn drain_behind(&mut self, stream: Stream) {
        self.settle_pending(|device, event| {
            let waits =
                planted(Fault::SkipEventWait) || device.platform.driver.stream_wait(stream, event).is_ok();
            if waits {
                device.recycle(event);
            }
            waits
        });
    }

    fn settle_pending(&mut self, mut settled: impl FnMut(&'static DeviceState, Event) -> bool) {
        let device = self.pool.device;
        for _ in 0..self.pending.len() {
            let mut pending = self.pending.pop_front().expect("counted");
            if let Some(graph) = &pending.graph
                && (graph.load(Ordering::Acquire) || planted(Fault::ReuseGraphMemory))
            {
                // A launch of the graph may still run, on whichever stream.
                pending.graph = None;
                pending.mark = Some(device.epoch());
            }
            pending.events.retain(|&event| !settled(device, event));
            let idle = pending.mark.is_none_or(|mark| device.is_idle(mark));
            if pending.graph.is_none() && pending.events.is_empty() && idle {
                self.uses.remove(&pending.addr);
                let freed = self.arena.free(pending.addr);
                debug_assert!(freed.is_ok(), "a waiting block is live");
            } else {
                self.pending.push_back(pending);
            }
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
        stats.blocks.current == 0
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
