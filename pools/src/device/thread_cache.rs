//! What a thread remembers of its last calls, so that the usual call asks the driver little.
//!
//! Everything here is keyed by identities that are never reused, by a context that pools keep
//! for the life of the process, or by a handle together with a count of the streams that began or ended,
//! so nothing can go stale.

use std::cell::Cell;

use crate::device::arena_slot::{ArenaSlot, Owner};
use crate::device::driver::{Context, Stream, StreamId};
use crate::device::fault::{Fault, planted};
use crate::device::platform::Inner;
use crate::device::pool_slot::PoolSlot;
use crate::device::state::DeviceState;

/// A stream whose beginning and end are seen.
#[derive(Clone, Copy)]
struct KnownStream {
    platform: &'static Inner,
    stream: Stream,
    /// Streams that had begun when this was asked; the handle is the same stream's until another begins.
    epoch: u64,
    id: StreamId,
    state: &'static DeviceState,
}

/// The arena that served the thread's last request.
#[derive(Clone, Copy)]
struct LastArena {
    pool: &'static PoolSlot,
    pool_id: u64,
    owner: Owner,
    arena: &'static ArenaSlot,
}

struct Cache {
    context: Cell<Option<(Context, &'static DeviceState)>>,
    per_thread: Cell<Option<(Context, StreamId, &'static DeviceState)>>,
    stream: Cell<Option<(StreamId, &'static DeviceState)>>,
    known: Cell<Option<KnownStream>>,
    arena: Cell<Option<LastArena>>,
    number: Cell<u64>,
}

thread_local! {
    static CACHE: Cache = const {
        Cache {
            context: Cell::new(None),
            per_thread: Cell::new(None),
            stream: Cell::new(None),
            known: Cell::new(None),
            arena: Cell::new(None),
            number: Cell::new(0),
        }
    };
}

/// Tells threads apart.
pub(crate) fn thread_number() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(1);
    CACHE.with(|cache| {
        if cache.number.get() == 0 {
            cache.number.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        cache.number.get()
    })
}

#[inline]
pub(crate) fn device_of(context: Context, platform: &'static Inner) -> Option<&'static DeviceState> {
    let (known, state) = CACHE.with(|cache| cache.context.get())?;
    (known == context && std::ptr::eq(state.platform, platform)).then_some(state)
}

pub(crate) fn remember_device(context: Context, state: &'static DeviceState) {
    CACHE.with(|cache| cache.context.set(Some((context, state))));
}

/// The thread's own stream in this context.
#[inline]
pub(crate) fn per_thread(
    context: Context,
    platform: &'static Inner,
) -> Option<(&'static DeviceState, StreamId)> {
    let (known, id, state) = CACHE.with(|cache| cache.per_thread.get())?;
    (known == context && std::ptr::eq(state.platform, platform)).then_some((state, id))
}

pub(crate) fn remember_per_thread(context: Context, id: StreamId, state: &'static DeviceState) {
    CACHE.with(|cache| cache.per_thread.set(Some((context, id, state))));
}

#[inline]
pub(crate) fn device_of_stream(id: StreamId) -> Option<&'static DeviceState> {
    let (known, state) = CACHE.with(|cache| cache.stream.get())?;
    (known == id).then_some(state)
}

pub(crate) fn remember_stream(id: StreamId, state: &'static DeviceState) {
    CACHE.with(|cache| cache.stream.set(Some((id, state))));
}

#[inline]
pub(crate) fn known_stream(
    platform: &'static Inner,
    stream: Stream,
    epoch: u64,
) -> Option<(&'static DeviceState, StreamId)> {
    let known = CACHE.with(|cache| cache.known.get())?;
    let same = known.stream == stream && known.epoch == epoch && std::ptr::eq(known.platform, platform);
    same.then_some((known.state, known.id))
}

pub(crate) fn remember_known_stream(
    platform: &'static Inner,
    stream: Stream,
    epoch: u64,
    id: StreamId,
    state: &'static DeviceState,
) {
    let known = KnownStream { platform, stream, epoch, id, state };
    CACHE.with(|cache| cache.known.set(Some(known)));
}

/// The arena of this pool and owner, if it served the thread's last request.
#[inline]
pub(crate) fn arena(pool: &'static PoolSlot, pool_id: u64, owner: Owner) -> Option<&'static ArenaSlot> {
    let last = CACHE.with(|cache| cache.arena.get())?;
    let same_pool = std::ptr::eq(last.pool, pool) && last.pool_id == pool_id;
    ((same_pool || planted(Fault::ServeFromWrongPool)) && last.owner == owner).then_some(last.arena)
}

pub(crate) fn remember_arena(pool: &'static PoolSlot, pool_id: u64, owner: Owner, arena: &'static ArenaSlot) {
    CACHE.with(|cache| cache.arena.set(Some(LastArena { pool, pool_id, owner, arena })));
}
