//! A device: its default pool, its pools, its budget.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use mempool_arena::Policy;

use crate::builder::default_setup_on;
use crate::device::DeviceId;
use crate::device::arena_slot::Use;
use crate::device::driver::{CaptureId, Context, DriverError, Event, Stream, StreamId};
use crate::device::fault::{Fault, planted};
use crate::device::guard::GuardReport;
use crate::device::oom::OomReport;
use crate::device::platform::{Inner, next_device_id};
use crate::device::pool_slot::{GraphToken, PoolSetup, PoolSlot};
use crate::device::upstream::SEGMENT_UNIT_BYTES;
use crate::error::PoolError;
use crate::lock::Lock;
use crate::recording::Listener;
use crate::sizing::Available;
use crate::stats::{GroupStats, PoolStats};
use crate::{os, registry};

/// Ordered against `usize::MAX`, which stands for no limit.
const NO_LIMIT: usize = usize::MAX;

pub(crate) struct DeviceState {
    pub(crate) id: DeviceId,
    pub(crate) ordinal: u32,
    pub(crate) context: Context,
    pub(crate) platform: &'static Inner,
    pub(crate) legacy_id: StreamId,
    pub(crate) total_bytes: usize,
    /// Bytes of a mapped page; `None` where virtual memory cannot be managed.
    pub(crate) page_bytes: Option<usize>,
    default: std::sync::OnceLock<&'static PoolSlot>,
    pub(super) pools: Lock<Pools>,
    /// Events that nobody uses.
    pub(super) events: Lock<Vec<Event>>,
    /// Bytes that all pools of the device hold.
    pub(crate) physical: AtomicUsize,
    /// The most that they held.
    physical_peak: AtomicUsize,
    /// Figures of pools that are no more.
    pub(super) past: Lock<Option<Box<PoolStats>>>,
    /// Bytes that they may hold, by the memory fraction.
    allowed: AtomicUsize,
    /// The share that `allowed` was computed from, as bits of an `f64`.
    fraction: AtomicU64,
    /// Bytes of the device that pools leave free.
    headroom: AtomicUsize,
    /// What became free before this number was reached ...
    epoch: AtomicU64,
    /// ... is idle once this number has been reached.
    idle_before: AtomicU64,
    /// Streams in capture. While there are any, nobody may wait for the whole context.
    pub(super) captures: Lock<BTreeMap<StreamId, Stream>>,
    /// There are, or were, buffers that may move.
    pub(super) moving_buffers: AtomicBool,
    /// All work is done that graphs queued which are gone, once the device was idle after this mark.
    graphs_ended: AtomicU64,
    /// What is set when the graphs of recent captures are gone.
    pub(super) graphs: Lock<Vec<(CaptureId, GraphToken)>>,
    pub(super) last_oom: Lock<Option<OomReport>>,
    pub(super) guard_reports: Lock<Vec<GuardReport>>,
    /// What declared uses kept alive, to be dropped while no lock is held.
    pub(super) ended_uses: Lock<Vec<Use>>,
}

#[derive(Default)]
pub(crate) struct Pools {
    /// Every slot that was ever used.
    slots: Vec<&'static PoolSlot>,
    vacant: Vec<&'static PoolSlot>,
}

impl DeviceState {
    /// Asks the driver about the device.
    pub(crate) fn new(platform: &'static Inner, ordinal: u32) -> Result<Self, PoolError> {
        let driver = &platform.driver;
        let refused = |source: DriverError| PoolError::Driver { ordinal, source };
        let context = driver.retain_primary_context(ordinal).map_err(refused)?;
        let asked = platform.with_context(context, || {
            let (_, total) = driver.memory_info()?;
            Ok((total, driver.stream_id(Stream::LEGACY)?))
        });
        let no_context = DriverError { call: "cuCtxSetCurrent", code: DriverError::INVALID_CONTEXT };
        let (total_bytes, legacy_id) = asked.ok_or(no_context).and_then(|result| result).map_err(refused)?;
        Ok(Self {
            id: next_device_id(),
            ordinal,
            context,
            platform,
            legacy_id,
            total_bytes,
            page_bytes: driver.page_bytes(ordinal),
            default: std::sync::OnceLock::new(),
            pools: Lock::new(Pools::default()),
            events: Lock::new(Vec::new()),
            physical: AtomicUsize::new(0),
            physical_peak: AtomicUsize::new(0),
            past: Lock::new(None),
            allowed: AtomicUsize::new(NO_LIMIT),
            fraction: AtomicU64::new(1_f64.to_bits()),
            headroom: AtomicUsize::new(0),
            epoch: AtomicU64::new(1),
            idle_before: AtomicU64::new(1),
            captures: Lock::new(BTreeMap::new()),
            moving_buffers: AtomicBool::new(false),
            graphs_ended: AtomicU64::new(0),
            graphs: Lock::new(Vec::new()),
            last_oom: Lock::new(None),
            guard_reports: Lock::new(Vec::new()),
            ended_uses: Lock::new(Vec::new()),
        })
    }

    /// The pool of everything that is allocated outside any scope.
    pub(crate) fn default_pool(&'static self) -> &'static PoolSlot {
        self.default.get_or_init(|| {
            let slot = PoolSlot::leak(self);
            let (setup, start, problem) = default_setup_on(self);
            // What is malformed was told when it was read.
            if let Some(error) = problem.filter(|error| !matches!(error, PoolError::Environment { .. })) {
                os::report(format_args!("the default pool has default options: {error}"));
            }
            slot.open(registry::DEFAULT_ID, setup);
            if let Some(Err(error)) = start.map(|start| slot.begin_with(start)) {
                os::report(format_args!("the default pool begins without memory: {error}"));
            }
            self.pools.lock().slots.push(slot);
            slot
        })
    }

    /// Creates a pool.
    pub(crate) fn open_pool(&'static self, id: u64, setup: PoolSetup) -> &'static PoolSlot {
        let reused = self.pools.lock().vacant.pop();
        let slot = reused.unwrap_or_else(|| {
            let slot = PoolSlot::leak(self);
            self.pools.lock().slots.push(slot);
            slot
        });
        slot.open(id, setup);
        slot
    }

    pub(crate) fn return_slot(&self, slot: &'static PoolSlot) {
        self.pools.lock().vacant.push(slot);
    }

    /// Every pool slot that was ever used.
    pub(crate) fn pools(&self) -> Vec<&'static PoolSlot> {
        self.pools.lock().slots.clone()
    }

    /// Notes that pools hold more than before.
    pub(crate) fn note_physical(&self) {
        self.physical_peak.fetch_max(self.physical.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Counts a pool that is no more.
    pub(crate) fn remember_pool(&self, pool: PoolStats) {
        self.past.lock().get_or_insert_default().add(&pool);
    }

    /// The figures of all pools.
    pub(crate) fn stats(&'static self) -> GroupStats {
        let past = self.past.lock().clone();
        let name = format!("device {}", self.ordinal);
        let mut group = GroupStats::new(name, Some(self.ordinal), past.as_deref());
        self.pools().into_iter().filter_map(PoolSlot::stats_if_open).for_each(|pool| group.push(pool));
        let reserved = &mut group.total.placement.reserved;
        // A pool may hold more by now than when that was noted last.
        reserved.peak = self.physical_peak.load(Ordering::Relaxed).max(reserved.current);
        group
    }

    pub(crate) fn reset_peaks(&'static self) {
        self.pools().into_iter().for_each(PoolSlot::reset_peaks);
        self.physical_peak.store(self.physical.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    pub(crate) fn reset_accumulated(&'static self) {
        self.pools().into_iter().for_each(PoolSlot::reset_accumulated);
        if let Some(past) = self.past.lock().as_mut() {
            past.reset_accumulated();
        }
    }

    /// The policy that a pool gets when none is asked for.
    pub(crate) fn default_policy(&self) -> Policy {
        if self.page_bytes.is_some() { Policy::Pages } else { Policy::Segments }
    }

    /// The unit in which pools take memory.
    pub(crate) fn unit_bytes(&self) -> usize {
        self.page_bytes.unwrap_or(SEGMENT_UNIT_BYTES)
    }

    /// Runs `f` with the device's context current, and with calls allowed that a capture on this
    /// thread would forbid.
    pub(crate) fn with_context<R>(&self, f: impl FnOnce() -> R) -> Option<R> {
        self.platform.with_context(self.context, || self.platform.beside_captures(f))
    }

    /// An event that stands for the work queued in `stream` so far. The context is current.
    pub(crate) fn record(&self, stream: Stream) -> Option<Event> {
        let driver = &self.platform.driver;
        // The legacy stream waits for blocking ones, and a capture of one of them would end by that.
        if (stream == Stream::LEGACY || stream == Stream::LEGACY_ALIAS) && self.is_capturing() {
            return None;
        }
        let pooled = self.events.lock().pop();
        let event = match pooled {
            Some(event) => event,
            None => driver.create_event().ok()?,
        };
        if driver.record_event(event, stream).is_ok() {
            return Some(event);
        }
        self.recycle(event);
        None
    }

    /// Makes an event available again. Recording it anew does not change what waits for it.
    pub(crate) fn recycle(&self, event: Event) {
        self.events.lock().push(event);
    }

    /// A mark for what is freed or set aside now.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Whether all work that was queued when this mark was taken is done.
    pub(crate) fn is_idle(&self, mark: u64) -> bool {
        mark < self.idle_before.load(Ordering::Acquire) || planted(Fault::UnmapInUse)
    }

    /// Waits until all work queued on the device is done; `false` when a capture forbids it or
    /// the driver refuses. Other threads may queue more meanwhile.
    pub(crate) fn synchronize(&self) -> bool {
        // Held while waiting, so that no capture begins.
        let captures = self.captures.lock();
        if !captures.is_empty() {
            return false;
        }
        let mark = self.epoch.fetch_add(1, Ordering::AcqRel);
        let done = self.with_context(|| self.platform.driver.synchronize().is_ok()).unwrap_or(false);
        if done {
            self.idle_before.fetch_max(mark + 1, Ordering::AcqRel);
        }
        done
    }

    /// This device and the others whose memory it shares, by number.
    pub(crate) fn peers(&self) -> Vec<u32> {
        let others = self.platform.devices().into_iter().map(|state| state.ordinal);
        let sharing = others
            .filter(|&peer| peer != self.ordinal && self.platform.driver.can_access(peer, self.ordinal));
        std::iter::once(self.ordinal).chain(sharing).collect()
    }

    /// Notes that the stream goes into capture. By its identity: a thread's own stream has the same
    /// handle on every thread.
    pub(crate) fn capture_begins(&self, id: StreamId, stream: Stream) -> bool {
        let begins = self.captures.lock().insert(id, stream).is_none();
        if begins {
            self.platform.count_captures(true);
        }
        begins
    }

    pub(crate) fn capture_ends(&self, id: StreamId) {
        if self.captures.lock().remove(&id).is_some() {
            self.platform.count_captures(false);
        }
    }

    /// Notes that the stream behind this handle is destroyed, in capture or not.
    pub(crate) fn captured_stream_ends(&self, stream: Stream) {
        let mut captures = self.captures.lock();
        let before = captures.len();
        captures.retain(|_, other| *other != stream);
        (captures.len()..before).for_each(|_| self.platform.count_captures(false));
    }

    fn is_capturing(&self) -> bool {
        !self.captures.lock().is_empty()
    }

    /// Takes declared uses that are over; what they keep may be a stream, whose end needs every lock.
    pub(crate) fn end_uses_later(&self, uses: Vec<Use>) {
        if !uses.is_empty() {
            self.ended_uses.lock().extend(uses);
        }
    }

    /// Drops declared uses that are over. The caller holds no lock.
    pub(crate) fn end_uses(&self) {
        let ended = std::mem::take(&mut *self.ended_uses.lock());
        drop(ended);
    }

    /// Bytes that pools may hold in all.
    pub(crate) fn allowed_bytes(&self) -> usize {
        self.allowed.load(Ordering::Relaxed).min(self.total_bytes)
    }

    pub(crate) fn set_fraction(&self, fraction: f64) {
        self.allowed.store((self.total_bytes as f64 * fraction) as usize, Ordering::Relaxed);
        self.fraction.store(fraction.to_bits(), Ordering::Relaxed);
    }

    pub(crate) fn fraction(&self) -> f64 {
        f64::from_bits(self.fraction.load(Ordering::Relaxed))
    }

    pub(crate) fn headroom_bytes(&self) -> usize {
        self.headroom.load(Ordering::Relaxed)
    }

    pub(crate) fn set_headroom(&self, bytes: usize) {
        self.headroom.store(bytes, Ordering::Relaxed);
    }

    /// What there is for a pool that takes memory in advance and leaves this share to others.
    pub(crate) fn available_for(&self, headroom_share: f64) -> Result<Available, PoolError> {
        let (free, total_bytes) = self.memory_info()?;
        let allowed = self.allowed_bytes().saturating_sub(self.physical.load(Ordering::Relaxed));
        let headroom_bytes = self.headroom_bytes().max((total_bytes as f64 * headroom_share) as usize);
        // What others have to leave does not count against what pools may have.
        let free_bytes = free.min(allowed.saturating_add(headroom_bytes));
        Ok(Available { free_bytes, total_bytes, headroom_bytes })
    }

    /// Free and total bytes of the device.
    pub(crate) fn memory_info(&self) -> Result<(usize, usize), PoolError> {
        let refused = |source| PoolError::Driver { ordinal: self.ordinal, source };
        let no_context = DriverError { call: "cuCtxSetCurrent", code: DriverError::INVALID_CONTEXT };
        self.with_context(|| self.platform.driver.memory_info()).unwrap_or(Err(no_context)).map_err(refused)
    }

    /// What is set when the graph is gone that `stream` is captured into. One that the driver does not
    /// take is never set: what it guards stays.
    pub(crate) fn graph_token_of(&self, capture: CaptureId, stream: Stream) -> GraphToken {
        let mut graphs = self.graphs.lock();
        self.forget_graphs(&mut graphs);
        if let Some((_, token)) = graphs.iter().find(|(other, _)| *other == capture) {
            return GraphToken::clone(token);
        }
        let token = GraphToken::default();
        let taken = self.platform.driver.when_graph_ends(stream, GraphToken::clone(&token));
        let token = if taken.is_ok() { token } else { GraphToken::default() };
        graphs.push((capture, GraphToken::clone(&token)));
        token
    }

    /// Whether a graph may still run that was captured while buffers were held, or such a capture goes on. Launches of a graph
    /// that is gone are over once the device was idle.
    pub(crate) fn has_graphs(&self) -> bool {
        self.forget_graphs(&mut self.graphs.lock())
            || self.platform.capture_moment().recording
            || !self.is_idle(self.graphs_ended.load(Ordering::Acquire))
    }

    /// Whether graphs are left when those that are gone are forgotten.
    fn forget_graphs(&self, graphs: &mut Vec<(CaptureId, GraphToken)>) -> bool {
        let before = graphs.len();
        graphs.retain(|(_, gone)| !gone.load(Ordering::Acquire));
        if graphs.len() < before {
            self.graphs_ended.store(self.epoch(), Ordering::Release);
        }
        !graphs.is_empty()
    }

    /// From now on graphs are known when their captures end.
    pub(crate) fn note_moving_buffers(&self) {
        self.moving_buffers.store(true, Ordering::Release);
    }

    pub(crate) fn has_moving_buffers(&self) -> bool {
        self.moving_buffers.load(Ordering::Acquire)
    }

    /// Tells a listener of the blocks that are live in all pools.
    pub(crate) fn list_live(&'static self, listener: Listener) {
        self.pools().into_iter().for_each(|pool| pool.list_live(listener));
    }

    /// Ends a step for all pools.
    pub(crate) fn mark_step(&'static self) {
        self.pools().into_iter().for_each(PoolSlot::mark_step);
        self.sweep();
        self.end_uses();
    }

    /// Ends retired pools whose last users are gone by now.
    pub(crate) fn sweep(&self) {
        self.pools().into_iter().filter(|pool| pool.is_retired()).for_each(PoolSlot::close_if_unused);
    }

    pub(crate) fn note_oom(&self, report: OomReport) {
        *self.last_oom.lock() = Some(report);
    }

    pub(crate) fn last_oom(&self) -> Option<OomReport> {
        self.last_oom.lock().clone()
    }
}

impl fmt::Debug for DeviceState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("ordinal", &self.ordinal).finish_non_exhaustive()
    }
}
