//! Where each allocation and each free of a device enters.

use std::any::Any;
use std::cell::RefCell;
use std::sync::MutexGuard;

use crate::buffer::BufferPlace;
use crate::device::arena_slot::{ArenaCore, ArenaSlot, Owner, Use, UsedBy, Waits};
use crate::device::driver::{CaptureId, CaptureState, Stream, StreamId};
use crate::device::fault::{Fault, planted};
use crate::device::guard::{self, MARGIN_BYTES};
use crate::device::platform::{Allocation, Free, Inner, Resolved};
use crate::device::pool_slot::GraphToken;
use crate::device::state::DeviceState;
use crate::device::thread_cache;
use crate::thread_state::{DeviceScope, Inside, device_scope, inside, is_steering};
use crate::{history, steering};

/// Who asks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call {
    pub(crate) device: &'static DeviceState,
    pub(crate) owner: Owner,
    /// The stream's handle; `None` for synchronous calls.
    pub(crate) stream: Option<Stream>,
}

impl Call {
    fn of(platform: &'static Inner, stream: Option<Stream>) -> Option<Self> {
        let Some(stream) = stream else {
            let device = platform.device_of_context(platform.driver.current_context()?)?;
            return Some(Self { device, owner: Owner::Synchronous, stream: None });
        };
        match platform.resolve(stream)? {
            Resolved::Running(device, id) => {
                Some(Self { device, owner: Owner::Stream(id), stream: Some(stream) })
            }
            Resolved::Captured(device, capture) => {
                Some(Self { device, owner: captured(capture, stream), stream: Some(stream) })
            }
            Resolved::Invalidated => None,
        }
    }

    /// A call of a stream of this device that is not in capture. The context is current.
    pub(crate) fn running(device: &'static DeviceState, stream: Stream) -> Option<Self> {
        Self::of(device.platform, Some(stream))
            .filter(|call| std::ptr::eq(call.device, device) && matches!(call.owner, Owner::Stream(_)))
    }

    /// The stream, if the host may wait for it.
    pub(crate) fn waitable(&self) -> Option<Stream> {
        match self.owner {
            Owner::Stream(_) => self.stream,
            Owner::Capture(..) | Owner::Synchronous | Owner::Ended => None,
        }
    }

    /// For a capture: what is set when its graph is gone.
    pub(crate) fn graph_token(&self) -> Option<GraphToken> {
        let (Owner::Capture(capture, ..), Some(stream)) = (self.owner, self.stream) else { return None };
        Some(self.device.graph_token_of(capture, stream))
    }

    /// Has the memory of the calling thread's own stream handed on when the thread ends.
    pub(crate) fn notice_thread_end(&self) {
        if let (Owner::Stream(id), Some(Stream::PER_THREAD)) = (self.owner, self.stream) {
            // Too late for a thread that is ending already: its memory waits for a trim.
            let _ = THREAD_END.try_with(|end| {
                let mut streams = end.streams.borrow_mut();
                if !streams.iter().any(|&(_, other)| other == id) {
                    streams.push((self.device, id));
                }
            });
        }
    }
}

/// The owner of memory that is handed out while `stream` is in capture.
fn captured(capture: CaptureId, stream: Stream) -> Owner {
    let thread = if stream == Stream::PER_THREAD { thread_cache::thread_number() } else { 0 };
    Owner::Capture(capture, stream, thread)
}

/// The streams that end with a thread.
struct ThreadEnd {
    streams: RefCell<Vec<(&'static DeviceState, StreamId)>>,
}

thread_local! {
    // A thread-local of its own, with a destructor, only to notice the thread's end: everything
    // works without it, before it exists and after it is gone.
    static THREAD_END: ThreadEnd = const { ThreadEnd { streams: RefCell::new(Vec::new()) } };
}

impl Drop for ThreadEnd {
    fn drop(&mut self) {
        inside(|| {
            for (device, id) in std::mem::take(&mut *self.streams.borrow_mut()) {
                device.with_context(|| {
                    // The driver may have forgotten this thread; then its stream has another identity.
                    let known = device.platform.driver.stream_id(Stream::PER_THREAD) == Ok(id);
                    let stream = known.then_some(Stream::PER_THREAD);
                    device.pools().iter().for_each(|pool| pool.stream_ended(id, stream, true));
                });
            }
        });
    }
}

/// Serves an allocation.
#[inline]
pub(crate) fn allocate(platform: &'static Inner, bytes: usize, stream: Option<Stream>) -> Allocation {
    if bytes == 0 {
        return Allocation::PassThrough;
    }
    let steering = is_steering();
    let Some(stay) = Inside::enter() else { return Allocation::PassThrough };
    let result = history::with_stack(bytes, || match Call::of(platform, stream) {
        Some(call) if steering => serve_steering(&call, bytes),
        Some(call) => serve(&call, bytes),
        None => Allocation::PassThrough,
    });
    stay.leave();
    result
}

/// Serves an allocation that may be meant for a buffer.
#[cold]
fn serve_steering(call: &Call, bytes: usize) -> Allocation {
    let here = |place: &BufferPlace| match place {
        BufferPlace::Device { pool, .. } => std::ptr::eq(pool.device, call.device),
        BufferPlace::Host { .. } => false,
    };
    let buffer = steering::buffer_for(bytes, here, |place| {
        let BufferPlace::Device { arena, spot, .. } = *place else { return None };
        let mut guard = arena.lock();
        // Another stream would have to wait for what the buffer's last result was used by.
        guard.as_mut().filter(|core| core.owner == call.owner)?.take_buffer(spot, bytes)
    });
    if let Some(addr) = buffer {
        return Allocation::Block(addr);
    }
    let served = serve(call, bytes);
    if let Allocation::Block(addr) = served {
        steering::note(bytes, addr);
    }
    served
}

#[inline]
fn serve(call: &Call, bytes: usize) -> Allocation {
    let pool = match device_scope(call.device.id) {
        DeviceScope::None => call.device.default_pool(),
        DeviceScope::PassThrough => return Allocation::PassThrough,
        DeviceScope::Pool(pool, step) if bytes >= pool.min_bytes() => {
            return pool.allocate(call, bytes, step);
        }
        DeviceScope::Pool(pool, _) => {
            pool.count_bypassed(bytes);
            call.device.default_pool()
        }
    };
    pool.allocate(call, bytes, None)
}

/// Serves a free.
#[inline]
pub(crate) fn free(platform: &'static Inner, addr: usize, stream: Option<Stream>) -> Free {
    let Some(arena) = platform.owner(addr) else { return Free::PassThrough };
    let stay = Inside::enter_nested();
    let freed = free_to(platform, arena, addr, stream);
    stay.leave();
    freed
}

fn free_to(platform: &'static Inner, arena: &'static ArenaSlot, addr: usize, stream: Option<Stream>) -> Free {
    if let Some(stream) = stream
        && let Some(Resolved::Running(_, id)) = platform.resolve(stream)
        && !arena.has_guards()
    {
        let mut guard = arena.lock();
        let Some(core) = guard.as_mut() else { return Free::Unknown };
        if core.owner == Owner::Stream(id) && !core.is_used_elsewhere(addr) && !core.is_pending(addr) {
            return end_block(guard, addr);
        }
    }
    free_slowly(platform, arena, addr, stream)
}

/// The block that a pool with guards handed out as `addr`, once its margins have been looked at; `None`
/// for an address inside a margin. The context is current.
fn unguard(
    platform: &'static Inner,
    device: &'static DeviceState,
    arena: &'static ArenaSlot,
    addr: usize,
    stream: Option<Stream>,
) -> Option<usize> {
    let (guarded, pool, owner, used_elsewhere) = {
        let mut lock = arena.lock();
        let Some(core) = lock.as_mut() else { return Some(addr) };
        let Some(guarded) = core.guards.remove(&addr) else {
            return Some(addr).filter(|addr| !core.guards.contains_key(&(addr + MARGIN_BYTES)));
        };
        (guarded, core.pool, core.owner, core.is_used_elsewhere(addr - MARGIN_BYTES))
    };
    let start = addr - MARGIN_BYTES;
    let (stream, id) = match stream.map(|stream| (stream, platform.resolve(stream))) {
        Some((stream, Some(Resolved::Running(_, id)))) => (stream, Some(id)),
        // In a capture nothing may be waited for.
        Some(_) => return Some(start),
        None => (Stream::LEGACY, None),
    };
    let in_order = id.is_some_and(|id| owner == Owner::Stream(id));
    // The margins were filled in the owner's order: another stream would read them too early.
    let readable = guarded.armed && (in_order || device.synchronize());
    if readable && let Some(report) = guard::inspect(device, &pool.name(), addr, guarded.bytes, stream) {
        guard::keep(&mut device.guard_reports.lock(), report);
    }
    // Who was declared to use the block may read it yet.
    if in_order && !used_elsewhere {
        guard::poison(device, addr, guarded.bytes, stream);
    }
    Some(start)
}

/// Ends a block that nothing but its owner's earlier work uses, and its pool, if it was the last.
#[inline]
fn end_block(mut guard: MutexGuard<'_, Option<ArenaCore>>, addr: usize) -> Free {
    let Some(core) = guard.as_mut() else { return Free::Unknown };
    if !core.free(addr) {
        return Free::Unknown;
    }
    close_if_last(guard);
    Free::Done
}

/// Ends the pool if it is retired and has lost its last block.
#[inline]
fn close_if_last(guard: MutexGuard<'_, Option<ArenaCore>>) {
    let Some(core) = guard.as_ref() else { return };
    let pool = core.pool;
    if pool.is_retired() && core.live_blocks() == 0 {
        drop(guard);
        pool.close_if_unused();
    }
}

/// A free by another stream than the owner's, of a block that other streams use, in a capture,
/// or of no stream.
#[cold]
fn free_slowly(
    platform: &'static Inner,
    arena: &'static ArenaSlot,
    addr: usize,
    stream: Option<Stream>,
) -> Free {
    let Some(device) = arena.lock().as_ref().map(|core| core.pool.device) else { return Free::Unknown };
    // A default stream is meant to be the block's device's, whichever context is current.
    let freed = device.with_context(|| {
        let Some(addr) = unguard(platform, device, arena, addr, stream) else { return Free::Unknown };
        match stream {
            None => free_after_everything(device, arena, addr),
            Some(stream) => match platform.capture_state(stream) {
                Some(CaptureState::None) => free_behind_events(platform, device, arena, addr, stream),
                Some(CaptureState::Active(capture)) => free_in_capture(device, arena, addr, capture, stream),
                Some(CaptureState::Invalidated) | None => defer(arena, addr, Waits::for_all(device)),
            },
        }
    });
    let freed = freed.unwrap_or_else(|| defer(arena, addr, Waits::for_all(device)));
    device.end_uses();
    freed
}

fn free_after_everything(device: &'static DeviceState, arena: &'static ArenaSlot, addr: usize) -> Free {
    let idle = device.synchronize();
    let mut guard = arena.lock();
    let Some(core) = guard.as_mut() else { return Free::Unknown };
    if core.is_pending(addr) {
        return Free::Unknown;
    }
    // Uses by other devices, or by graphs, are not over with this device's work.
    let elsewhere = core.is_used_elsewhere(addr);
    if !idle || elsewhere {
        let uses = core.take_uses(addr);
        drop(guard);
        let mut waits = Waits::for_all(device);
        add_uses(&mut waits, &uses, None);
        let freed = defer(arena, addr, waits);
        drop(uses);
        return freed;
    }
    end_block(guard, addr)
}

/// Adds what declared uses of a block wait for. The freeing stream's own work is waited for elsewhere.
fn add_uses(waits: &mut Waits, uses: &[Use], freeing: Option<StreamId>) {
    for used in uses {
        match &used.by {
            UsedBy::Graph(token) => waits.graphs.push(GraphToken::clone(token)),
            UsedBy::Work(id) if Some(*id) == freeing || planted(Fault::ForgetDeclaredUses) => {}
            // Another thread's own stream cannot be named here; the legacy stream waits for it.
            UsedBy::Work(_) if used.stream == Stream::PER_THREAD => {
                waits.add_stream(used.device, Stream::LEGACY)
            }
            UsedBy::Work(_) => waits.add_stream(used.device, used.stream),
        }
    }
}

fn free_behind_events(
    platform: &'static Inner,
    device: &'static DeviceState,
    arena: &'static ArenaSlot,
    addr: usize,
    stream: Stream,
) -> Free {
    let freeing = platform.identify(stream).map(|(_, id)| id);
    let (uses, is_owner) = {
        let mut guard = arena.lock();
        let Some(core) = guard.as_mut() else { return Free::Unknown };
        if !core.is_live(addr) {
            return Free::Unknown;
        }
        let is_owner = freeing.is_some_and(|id| core.owner == Owner::Stream(id));
        (core.take_uses(addr), is_owner)
    };
    let mut waits = Waits::default();
    if !is_owner && !planted(Fault::ForgetFreeingStream) {
        waits.add_stream(device, stream);
    }
    add_uses(&mut waits, &uses, freeing);
    let freed = if waits.is_empty() {
        let guard = arena.lock();
        if guard.as_ref().is_none_or(|core| core.is_pending(addr)) {
            return Free::Unknown;
        }
        end_block(guard, addr)
    } else {
        defer(arena, addr, waits)
    };
    // No lock is held: what a use keeps may be a stream, whose end needs them.
    drop(uses);
    freed
}

fn free_in_capture(
    device: &'static DeviceState,
    arena: &'static ArenaSlot,
    addr: usize,
    capture: CaptureId,
    stream: Stream,
) -> Free {
    let uses = {
        let mut guard = arena.lock();
        let Some(core) = guard.as_mut() else { return Free::Unknown };
        let own = core.owner == captured(capture, stream);
        if own && !core.is_used_elsewhere(addr) && !core.is_pending(addr) {
            return end_block(guard, addr);
        }
        core.take_uses(addr)
    };
    // The graph may use the block at every launch, so it stays as long as the graph.
    let mut waits = Waits::for_graph(device.graph_token_of(capture, stream));
    add_uses(&mut waits, &uses, None);
    let freed = defer(arena, addr, waits);
    drop(uses);
    freed
}

fn defer(arena: &'static ArenaSlot, addr: usize, waits: Waits) -> Free {
    let mut guard = arena.lock();
    let Some(core) = guard.as_mut() else { return Free::Unknown };
    if let Err(waits) = core.defer(addr, waits) {
        drop(guard);
        waits.end();
        return Free::Unknown;
    }
    close_if_last(guard);
    Free::Done
}

/// Declares that work queued in `stream`, of the device whose context is current if it is a default
/// one, uses the block of `device` at `addr`: when it is freed, that work is waited for too. `keep` is
/// held until the free and keeps the stream alive.
pub(crate) fn record_use(
    device: &'static DeviceState,
    addr: usize,
    stream: Stream,
    keep: Box<dyn Any + Send>,
) -> bool {
    let platform = device.platform;
    let Some(arena) = platform.owner(addr) else { return false };
    let resolve = || match platform.resolve(stream)? {
        Resolved::Running(used, id) => Some((used, UsedBy::Work(id))),
        Resolved::Captured(used, capture) => {
            Some((used, UsedBy::Graph(used.graph_token_of(capture, stream))))
        }
        // Its work will never run.
        Resolved::Invalidated => None,
    };
    // A default stream without a context is meant to be the block's device's.
    let current = platform.driver.current_context().is_some() || !stream.is_default();
    let resolved = if current { resolve() } else { device.with_context(resolve).flatten() };
    let Some((used_device, by)) = resolved else { return false };
    let mut guard = arena.lock();
    let Some(core) = guard.as_mut().filter(|core| std::ptr::eq(core.pool.device, device)) else {
        return false;
    };
    let addr = if core.guards.contains_key(&addr) { addr - MARGIN_BYTES } else { addr };
    if !core.is_live(addr) {
        return false;
    }
    if matches!(by, UsedBy::Work(id) if core.owner == Owner::Stream(id)) {
        // The owner's order holds anyway. `keep` is dropped without the lock.
        drop(guard);
        return true;
    }
    let known = core.record_use(addr, Use { device: used_device, stream, by, _keep: keep });
    drop(guard);
    drop(known);
    true
}

/// See [`Platform::stream_ends`](super::Platform::stream_ends).
pub(crate) fn stream_ends(platform: &'static Inner, stream: Stream) {
    if stream.is_default() {
        return;
    }
    match platform.capture_state(stream) {
        Some(CaptureState::None) => {}
        _ => return,
    }
    let Some((device, id)) = platform.identify(stream) else { return };
    device.with_context(|| device.pools().iter().for_each(|pool| pool.stream_ended(id, Some(stream), false)));
}
