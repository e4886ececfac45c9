//! What pools need from a device's driver: one method for each call they make.
//!
//! Everything above this trait runs on the real driver and on the
//! [simulated one](crate::device::simulated) alike.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use thiserror::Error;

/// A stream's handle, as the driver spells it. Handles are reused; [`StreamId`]s are not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Stream(pub usize);

impl Stream {
    /// The legacy default stream, which waits for all blocking streams and they for it.
    pub const LEGACY: Self = Self(0);
    /// The other name of [`LEGACY`](Self::LEGACY).
    pub const LEGACY_ALIAS: Self = Self(1);
    /// The default stream of the calling thread: another stream on each thread.
    pub const PER_THREAD: Self = Self(2);

    /// Whether the current context decides which stream this is.
    #[must_use]
    pub fn is_default(self) -> bool {
        self.0 <= Self::PER_THREAD.0
    }
}

/// A stream's identity, unique for the life of the process, over all contexts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub u64);

/// A capture's identity, unique for the life of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CaptureId(pub u64);

/// A context's handle; never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Context(pub usize);

/// An event's handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Event(pub usize);

/// Physical memory that can be mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Physical(pub u64);

/// Whether a stream is being captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CaptureState {
    /// It is not: work runs when it is queued.
    None,
    /// It is: work is recorded into a graph.
    Active(CaptureId),
    /// It was, and something made the capture fail; it has to be ended before the stream works.
    Invalidated,
}

/// A call the driver refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{call} failed with driver error {code}")]
pub struct DriverError {
    /// The call.
    pub call: &'static str,
    /// The driver's error code.
    pub code: u32,
}

impl DriverError {
    /// CUDA's code for memory that is not there.
    pub const OUT_OF_MEMORY: u32 = 2;
    /// CUDA's code for a call without a context.
    pub const INVALID_CONTEXT: u32 = 201;
    /// CUDA's code for a call that a capture forbids.
    pub const CAPTURE_UNSUPPORTED: u32 = 900;
}

/// The result of a driver call.
pub type DriverResult<T> = Result<T, DriverError>;

/// A driver with all its devices.
///
/// Methods that name no context work on the calling thread's current one. None may call back
/// into pools. All are safe to call from any thread; a stream's handle must be that of a live
/// stream, or one of the default ones.
pub trait Driver: Send + Sync + std::fmt::Debug {
    /// The context that is current on this thread.
    fn current_context(&self) -> Option<Context>;
    /// Makes `context`, or none, current on this thread.
    fn set_current_context(&self, context: Option<Context>) -> DriverResult<()>;
    /// The ordinal of the device whose primary context this is.
    fn device_of(&self, context: Context) -> Option<u32>;
    /// The device's primary context, kept for the life of the process.
    fn retain_primary_context(&self, ordinal: u32) -> DriverResult<Context>;
    /// Waits until all work queued in the current context is done. No stream of it may be in capture.
    fn synchronize(&self) -> DriverResult<()>;

    /// The stream's identity. The stream must not be in capture: the call would end it.
    fn stream_id(&self, stream: Stream) -> DriverResult<StreamId>;
    /// The context of a stream that is none of the default ones.
    fn stream_context(&self, stream: Stream) -> DriverResult<Context>;
    /// Whether the stream is in capture.
    fn capture_state(&self, stream: Stream) -> DriverResult<CaptureState>;
    /// Keeps `token` from being set until the graph that the stream is captured into, and all
    /// made from it, are gone; then sets it. On an error the token may be set at any time, and says
    /// nothing.
    fn when_graph_ends(&self, stream: Stream, token: Arc<AtomicBool>) -> DriverResult<()>;
    /// Allows this thread the calls that a capture forbids in thread-local or global mode, and
    /// returns the thread's mode, as the driver numbers it, for
    /// [`restore_captures`](Self::restore_captures).
    fn relax_captures(&self) -> Option<u32>;
    /// Puts back what [`relax_captures`](Self::relax_captures) returned.
    fn restore_captures(&self, mode: u32);

    /// A new event without timing.
    fn create_event(&self) -> DriverResult<Event>;
    /// A new event that [`elapsed`](Self::elapsed) can be asked about.
    fn create_timed_event(&self) -> DriverResult<Event>;
    /// Ends an event; one that is still to happen may be ended too.
    fn destroy_event(&self, event: Event) -> DriverResult<()>;
    /// Makes `event` stand for the work queued in `stream` so far.
    fn record_event(&self, event: Event, stream: Stream) -> DriverResult<()>;
    /// Whether the work that `event` stands for is done.
    fn event_done(&self, event: Event) -> DriverResult<bool>;
    /// Waits until the work that `event` stands for is done.
    fn wait_for_event(&self, event: Event) -> DriverResult<()>;
    /// The device's time between the ends of the work that two timed events stand for; `None` while one of them is
    /// still to happen.
    fn elapsed(&self, start: Event, end: Event) -> DriverResult<Option<Duration>>;
    /// Lets later work of `stream` wait for the work that `event` stands for.
    fn stream_wait(&self, stream: Stream, event: Event) -> DriverResult<()>;

    /// Bytes of a mapped page of this device; `None` where virtual memory cannot be managed.
    fn page_bytes(&self, ordinal: u32) -> Option<usize>;
    /// Whether device `peer` can read and write the memory of device `ordinal`.
    fn can_access(&self, peer: u32, ordinal: u32) -> bool;
    /// Reserves `bytes` of address space for mapping.
    fn reserve(&self, bytes: usize) -> DriverResult<usize>;
    /// Physical memory of the device, `bytes` of whole pages.
    fn create(&self, ordinal: u32, bytes: usize) -> DriverResult<Physical>;
    /// Gives physical memory up; it ends when it is mapped nowhere.
    fn release(&self, physical: Physical) -> DriverResult<()>;
    /// Maps physical memory, whole, at `addr`.
    fn map(&self, addr: usize, bytes: usize, physical: Physical) -> DriverResult<()>;
    /// Makes mapped memory readable and writable for the devices.
    fn set_access(&self, addr: usize, bytes: usize, ordinals: &[u32]) -> DriverResult<()>;
    /// Ends mappings, whole ones. No work may still use them.
    fn unmap(&self, addr: usize, bytes: usize) -> DriverResult<()>;
    /// Memory of the current context's device at an address of the driver's choice.
    fn allocate_segment(&self, bytes: usize) -> DriverResult<usize>;
    /// Ends memory from [`allocate_segment`](Self::allocate_segment). Waits for work that uses it.
    fn free_segment(&self, addr: usize) -> DriverResult<()>;
    /// Free and total bytes of the current context's device.
    fn memory_info(&self) -> DriverResult<(usize, usize)>;

    /// Copies memory of one device in the order of `stream`. The ranges must not overlap.
    fn copy(&self, from: usize, to: usize, bytes: usize, stream: Stream) -> DriverResult<()>;
    /// Fills memory in the order of `stream`.
    fn fill(&self, addr: usize, bytes: usize, value: u8, stream: Stream) -> DriverResult<()>;
    /// Reads memory in the order of `stream`, and waits for it.
    fn read(&self, addr: usize, into: &mut [u8], stream: Stream) -> DriverResult<()>;
}
