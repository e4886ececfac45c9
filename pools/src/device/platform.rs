//! A driver with everything that pools keep for it.

use std::collections::HashSet;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use mempool_arena::{AddressRange, Moment};

use crate::device::arena_slot::ArenaSlot;
use crate::device::driver::{CaptureId, CaptureState, Context, Driver, Stream, StreamId};
use crate::device::fault::{Fault, planted};
use crate::device::state::DeviceState;
use crate::device::thread_cache;
use crate::device::{DeviceId, PoolDevice};
use crate::error::PoolError;
use crate::lock::Lock;
use crate::region::Region;
use crate::thread_state::inside;
use crate::{os, registry};

/// Streams times pools that can have memory at once.
const MAX_ARENAS: usize = 8192;

/// A driver whose allocations go through pools.
///
/// Whatever stands between a program and the driver (the hooks of feature `cuda`, a simulated
/// program) hands each allocation and each free to [`allocate`](Self::allocate),
/// [`free`](Self::free) and their synchronous kin, and makes the driver's own call when told to
/// [pass it through](Allocation::PassThrough). Lives as long as the process.
#[derive(Debug, Clone, Copy)]
pub struct Platform {
    pub(crate) inner: &'static Inner,
}

pub(crate) struct Inner {
    pub(crate) driver: Box<dyn Driver>,
    pub(crate) region: Region,
    /// Segments that lie outside the region, by address.
    pub(crate) segments: ArcSwap<Vec<(AddressRange, u32)>>,
    arenas: Box<[OnceLock<&'static ArenaSlot>]>,
    /// Counts streams that began: what threads remember of handles is no older.
    stream_epoch: AtomicU64,
    /// Captures that go on, over all devices.
    captures: AtomicUsize,
    /// Captures that began.
    capture_generation: AtomicU64,
    pub(crate) registry: Lock<Registry>,
}

/// What changes when devices, pools and streams come and go. The last lock anyone takes.
#[derive(Default)]
pub(crate) struct Registry {
    devices: Vec<&'static DeviceState>,
    vacant: Vec<u32>,
    used: u32,
    /// Streams whose beginning and end are seen.
    streams: HashSet<Stream>,
}

/// A stream at one moment.
pub(crate) enum Resolved {
    /// Its work runs when it is queued.
    Running(&'static DeviceState, StreamId),
    /// Its work is recorded into a graph.
    Captured(&'static DeviceState, CaptureId),
    /// It has to leave a failed capture first.
    Invalidated,
}

// A panic inside pool code ends the process, so nobody ever sees what it left behind.
impl std::panic::RefUnwindSafe for Inner {}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Platform").field("driver", &self.driver).finish_non_exhaustive()
    }
}

/// What an allocation gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allocation {
    /// The address of a block.
    Block(usize),
    /// Nothing here: the driver's own call serves it.
    PassThrough,
    /// Nothing at all: pools have no memory left for it, and know why
    /// ([`PoolDevice::last_oom`]).
    OutOfMemory,
}

/// What became of a free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Free {
    /// The block is a pool's again, now or once the work that uses it is done.
    Done,
    /// No pool's: the driver's own call frees it.
    PassThrough,
    /// Lies in a pool, but is not the start of a live block: freed twice, perhaps.
    Unknown,
}

impl Platform {
    /// Pools for `driver`.
    #[must_use]
    pub fn new(driver: impl Driver + 'static) -> Self {
        inside(|| {
            let inner: &'static Inner = Box::leak(Box::new(Inner {
                driver: Box::new(driver),
                region: Region::new(),
                segments: ArcSwap::from_pointee(Vec::new()),
                stream_epoch: AtomicU64::new(0),
                captures: AtomicUsize::new(0),
                capture_generation: AtomicU64::new(0),
                arenas: (0..MAX_ARENAS).map(|_| OnceLock::new()).collect(),
                registry: Lock::new(Registry::default()),
            }));
            registry::add_platform(inner);
            Self { inner }
        })
    }

    /// The device of this number, which gets a default pool at its first use.
    ///
    /// # Errors
    /// [`PoolError::Driver`] when there is no such device, [`PoolError::Environment`] when `MEMPOOL_CONF`
    /// is malformed.
    pub fn device(&self, ordinal: u32) -> Result<PoolDevice, PoolError> {
        inside(registry::environment)?;
        self.serving_device(ordinal)
    }

    /// As [`device`](Self::device), whatever the environment says: what is served already has rules to keep.
    pub(crate) fn serving_device(&self, ordinal: u32) -> Result<PoolDevice, PoolError> {
        inside(|| self.inner.device(ordinal)).map(|state| PoolDevice { state })
    }

    /// The device whose primary context is current on this thread.
    #[inline]
    #[must_use]
    pub fn current_device(&self) -> Option<PoolDevice> {
        let context = self.inner.driver.current_context()?;
        let state = thread_cache::device_of(context, self.inner)
            .or_else(|| inside(|| self.inner.device_of_context(context)))?;
        Some(PoolDevice { state })
    }

    /// Whether a capture goes on that was [told of](Self::capture_begins).
    #[inline]
    #[must_use]
    pub fn is_capturing(&self) -> bool {
        self.inner.captures.load(Ordering::Acquire) > 0
    }

    /// An allocation in the order of `stream`.
    #[inline]
    #[must_use]
    pub fn allocate(&self, bytes: usize, stream: Stream) -> Allocation {
        super::entry::allocate(self.inner, bytes, Some(stream))
    }

    /// An allocation that every stream can use at once.
    #[must_use]
    pub fn allocate_synchronous(&self, bytes: usize) -> Allocation {
        super::entry::allocate(self.inner, bytes, None)
    }

    /// A free in the order of `stream`.
    #[inline]
    #[must_use]
    pub fn free(&self, addr: usize, stream: Stream) -> Free {
        super::entry::free(self.inner, addr, Some(stream))
    }

    /// A free after all queued work.
    #[must_use]
    pub fn free_synchronous(&self, addr: usize) -> Free {
        super::entry::free(self.inner, addr, None)
    }

    /// To be called after a stream was created. Such a stream's calls are served without asking
    /// the driver who it is, unless a capture goes on; its end must be told too.
    pub fn stream_begins(&self, stream: Stream) {
        inside(|| self.inner.registry.lock().streams.insert(stream));
        if !planted(Fault::StaleStreams) {
            // Whatever a thread remembers of this handle belongs to a stream that is gone.
            self.inner.stream_epoch.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// To be called before a stream is destroyed: its cached memory goes to the next new stream.
    pub fn stream_ends(&self, stream: Stream) {
        inside(|| {
            super::entry::stream_ends(self.inner, stream);
            self.inner.registry.lock().streams.remove(&stream);
            self.inner.devices().iter().for_each(|state| state.captured_stream_ends(stream));
        });
        if !planted(Fault::StaleStreams) {
            self.inner.stream_epoch.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// To be called before `stream` goes into capture. Until
    /// [`capture_ends`](Self::capture_ends), nothing in pools waits for the whole device.
    /// `false` when it is not counted: because it is in capture already, or unknown.
    pub fn capture_begins(&self, stream: Stream) -> bool {
        inside(|| {
            let running = self.inner.capture_state(stream) == Some(CaptureState::None);
            let known = if running { self.inner.identify(stream) } else { None };
            known.is_some_and(|(state, id)| state.capture_begins(id, stream))
        })
    }

    /// To be called before `stream` leaves capture, while its graph can still be known by its stream. Buffers that
    /// were held meanwhile stay where they are as long as the graph lives.
    pub fn capture_is_ending(&self, stream: Stream) {
        inside(|| {
            if self.inner.devices().iter().any(|device| device.has_moving_buffers())
                && let Some(CaptureState::Active(capture)) = self.inner.capture_state(stream)
                && let Some(device) = self.inner.device_of_stream(stream)
            {
                device.with_context(|| device.graph_token_of(capture, stream));
            }
        });
    }

    /// To be called after `stream` has left capture, or could not enter it. One that is in capture
    /// still stays counted.
    pub fn capture_ends(&self, stream: Stream) {
        inside(|| {
            if self.inner.capture_state(stream) == Some(CaptureState::None)
                && let Some((state, id)) = self.inner.identify(stream)
            {
                state.capture_ends(id);
            }
        });
    }

    /// Counts the captures that began, as far as it was told.
    #[inline]
    #[must_use]
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub(crate) fn capture_generation(&self) -> u64 {
        self.inner.capture_generation.load(Ordering::Acquire)
    }
}

impl Inner {
    pub(crate) fn devices(&self) -> Vec<&'static DeviceState> {
        self.registry.lock().devices.clone()
    }

    /// As [`devices`](Self::devices), unless a device is just being opened.
    pub(crate) fn devices_now(&self) -> Option<Vec<&'static DeviceState>> {
        self.registry.try_lock().map(|registry| registry.devices.clone())
    }

    pub(crate) fn device(&'static self, ordinal: u32) -> Result<&'static DeviceState, PoolError> {
        let known =
            |registry: &Registry| registry.devices.iter().copied().find(|state| state.ordinal == ordinal);
        if let Some(state) = known(&self.registry.lock()) {
            return Ok(state);
        }
        // The driver is asked without the lock; whoever comes second uses what the first made.
        let made = DeviceState::new(self, ordinal)?;
        let mut registry = self.registry.lock();
        if let Some(state) = known(&registry) {
            return Ok(state);
        }
        if made.page_bytes.is_some() && self.region.len() == 0 {
            let reserve = |len| {
                self.driver
                    .reserve(len)
                    .map(|start| AddressRange::new(start, len))
                    .map_err(|error| super::upstream::refused(error, len))
            };
            if let Err(reason) = self.region.open(None, reserve) {
                return Err(PoolError::PassThrough { reason });
            }
        }
        let state: &'static DeviceState = Box::leak(Box::new(made));
        if state.page_bytes.is_none() {
            os::report(format_args!(
                "device {ordinal} cannot manage virtual memory: its pools use whole segments"
            ));
        }
        registry.devices.push(state);
        drop(registry);
        // What others have mapped becomes visible to this device too.
        for slot in self.arenas() {
            slot.grant(state);
        }
        Ok(state)
    }

    /// The device whose primary context this is.
    pub(crate) fn device_of_context(&'static self, context: Context) -> Option<&'static DeviceState> {
        if let Some(state) = thread_cache::device_of(context, self) {
            return Some(state);
        }
        let known = self.registry.lock().devices.iter().copied().find(|state| state.context == context);
        let state = match known {
            Some(state) => state,
            None => self.device(self.driver.device_of(context)?).ok()?,
        };
        thread_cache::remember_device(context, state);
        Some(state)
    }

    /// The device of a stream.
    fn device_of_stream(&'static self, stream: Stream) -> Option<&'static DeviceState> {
        let context = if stream.is_default() {
            self.driver.current_context()?
        } else {
            self.driver.stream_context(stream).ok()?
        };
        self.device_of_context(context)
    }

    /// Identity and device of a stream that is not in capture.
    #[inline]
    pub(crate) fn identify(&'static self, stream: Stream) -> Option<(&'static DeviceState, StreamId)> {
        if planted(Fault::KeyByHandle) {
            let state = self.device_of_stream(stream)?;
            return Some((state, StreamId(stream.0 as u64)));
        }
        if stream.is_default() {
            let context = self.driver.current_context()?;
            if stream == Stream::PER_THREAD
                && let Some(found) = thread_cache::per_thread(context, self)
            {
                return Some(found);
            }
            let state = self.device_of_context(context)?;
            if stream != Stream::PER_THREAD {
                return Some((state, state.legacy_id));
            }
            let id = self.driver.stream_id(stream).ok()?;
            thread_cache::remember_per_thread(context, id, state);
            return Some((state, id));
        }
        let id = self.driver.stream_id(stream).ok()?;
        if let Some(state) = thread_cache::device_of_stream(id) {
            return Some((state, id));
        }
        let state = self.device_of_context(self.driver.stream_context(stream).ok()?)?;
        thread_cache::remember_stream(id, state);
        Some((state, id))
    }

    /// Whether the stream is in capture. The legacy stream never is.
    #[inline]
    pub(crate) fn capture_state(&self, stream: Stream) -> Option<CaptureState> {
        if stream == Stream::LEGACY || stream == Stream::LEGACY_ALIAS {
            return Some(CaptureState::None);
        }
        self.driver.capture_state(stream).ok()
    }

    /// What a stream is now; `None` when the driver does not know it.
    #[inline]
    pub(crate) fn resolve(&'static self, stream: Stream) -> Option<Resolved> {
        // While nothing is in capture, a thread's own stream and streams whose beginning was seen
        // are known without asking: each question takes a lock in the driver.
        if self.captures.load(Ordering::Acquire) == 0 && !planted(Fault::KeyByHandle) {
            let known = if stream == Stream::PER_THREAD {
                thread_cache::per_thread(self.driver.current_context()?, self)
            } else {
                thread_cache::known_stream(self, stream, self.stream_epoch.load(Ordering::Acquire))
            };
            if let Some((state, id)) = known {
                return Some(Resolved::Running(state, id));
            }
        }
        self.resolve_slowly(stream)
    }

    #[cold]
    fn resolve_slowly(&'static self, stream: Stream) -> Option<Resolved> {
        let epoch = self.stream_epoch.load(Ordering::Acquire);
        match self.capture_state(stream)? {
            CaptureState::None => {
                let (state, id) = self.identify(stream)?;
                if self.registry.lock().streams.contains(&stream) {
                    thread_cache::remember_known_stream(self, stream, epoch, id, state);
                }
                Some(Resolved::Running(state, id))
            }
            CaptureState::Active(capture) => {
                Some(Resolved::Captured(self.device_of_stream(stream)?, capture))
            }
            CaptureState::Invalidated => Some(Resolved::Invalidated),
        }
    }

    /// What is going on, as far as [captures](Platform::capture_begins) were told of.
    pub(crate) fn capture_moment(&self) -> Moment {
        let recording = self.captures.load(Ordering::Acquire) > 0;
        Moment { count: self.capture_generation.load(Ordering::Acquire), recording }
    }

    /// Counts captures that go on.
    pub(crate) fn count_captures(&self, begun: bool) {
        if begun {
            self.capture_generation.fetch_add(1, Ordering::AcqRel);
            self.captures.fetch_add(1, Ordering::AcqRel);
        } else {
            self.captures.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// The arena that an address belongs to.
    #[inline]
    pub(crate) fn owner(&self, addr: usize) -> Option<&'static ArenaSlot> {
        match self.region.owner(addr) {
            Some(index) if planted(Fault::FreeIntoWrongPool) => self.arena(index ^ 1).or(self.arena(index)),
            Some(index) => self.arena(index),
            None => self.owner_of_segment(addr),
        }
    }

    fn owner_of_segment(&self, addr: usize) -> Option<&'static ArenaSlot> {
        let segments = self.segments.load();
        let after = segments.partition_point(|(range, _)| range.start <= addr);
        let (range, index) = segments.get(after.checked_sub(1)?)?;
        if range.contains(addr) { self.arena(*index) } else { None }
    }

    #[inline]
    fn arena(&self, index: u32) -> Option<&'static ArenaSlot> {
        self.arenas.get(index as usize)?.get().copied()
    }

    /// A place for an arena.
    pub(crate) fn take_arena(&self) -> Result<&'static ArenaSlot, PoolError> {
        let mut registry = self.registry.lock();
        let index = match registry.vacant.pop() {
            Some(index) => index,
            None if (registry.used as usize) < MAX_ARENAS => {
                registry.used += 1;
                registry.used - 1
            }
            None => return Err(PoolError::TooManyPools { limit: MAX_ARENAS }),
        };
        Ok(self.arenas[index as usize].get_or_init(|| Box::leak(Box::new(ArenaSlot::new(index)))))
    }

    pub(crate) fn return_arena(&self, index: u32) {
        self.registry.lock().vacant.push(index);
    }

    /// Every arena that was ever used, in order of index.
    pub(crate) fn arenas(&self) -> impl Iterator<Item = &'static ArenaSlot> + '_ {
        self.arenas.iter().map_while(|slot| slot.get().copied())
    }

    /// Runs `f` with the device's context current on this thread.
    pub(crate) fn with_context<R>(&self, context: Context, f: impl FnOnce() -> R) -> Option<R> {
        let before = self.driver.current_context();
        if before == Some(context) {
            return Some(f());
        }
        self.driver.set_current_context(Some(context)).ok()?;
        let result = f();
        // A context that was current can be made so again; if not, the driver is beyond help.
        let _ = self.driver.set_current_context(before);
        Some(result)
    }

    /// Runs `f` with the calls allowed that a capture on this thread would forbid.
    pub(crate) fn beside_captures<R>(&self, f: impl FnOnce() -> R) -> R {
        let before = self.driver.relax_captures();
        let result = f();
        if let Some(before) = before {
            self.driver.restore_captures(before);
        }
        result
    }
}

/// Tells devices of all platforms apart.
pub(crate) fn next_device_id() -> DeviceId {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(1);
    DeviceId(NEXT.fetch_add(1, Ordering::Relaxed))
}
