//! A driver without a device: streams, events, contexts, captures and memory, in memory.
//!
//! Work is queued and done later, in any order that streams and events allow. For each byte the
//! simulator knows which queued work still uses it, so it sees at once, whatever order the work
//! happens to be done in, when two allocations share a byte without an order between their work:
//! a [`Violation`]. Calls that a real driver forbids during a capture end the capture here too.
//!
//! The same seed gives the same run, as long as one thread calls at a time.
//!
//! ```
//! use mempool_pools::device::simulated::{Access, Simulator};
//! use mempool_pools::device::{Allocation, Stream};
//!
//! let simulator = Simulator::builder().seed(7).build();
//! let platform = simulator.platform();
//! simulator.bind(0);
//! let Allocation::Block(addr) = platform.allocate(1 << 20, Stream::PER_THREAD) else { panic!() };
//! simulator.note_allocation(addr, 1 << 20, 1);
//! simulator.launch(Stream::PER_THREAD, &[Access::write(addr, 1 << 20, 1)])?;
//! simulator.note_free(addr);
//! platform.free(addr, Stream::PER_THREAD);
//! assert!(simulator.violations().is_empty());
//! # Ok::<(), mempool_pools::device::DriverError>(())
//! ```

mod captures;
mod clock;
mod driver;
mod memory;
mod state;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::device::driver::{DriverError, DriverResult, Event, Stream};
use crate::device::platform::Platform;
use state::State;

pub use captures::{CaptureMode, Graph};
pub use driver::SimulatedDriver;

/// A use of memory by queued work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// First byte.
    pub addr: usize,
    /// Number of bytes.
    pub bytes: usize,
    /// Whether the bytes are written; they are read otherwise.
    pub writes: bool,
    /// The allocation that the program means.
    pub allocation: u64,
}

impl Access {
    /// Work that reads.
    #[must_use]
    pub fn read(addr: usize, bytes: usize, allocation: u64) -> Self {
        Self { addr, bytes, writes: false, allocation }
    }

    /// Work that writes.
    #[must_use]
    pub fn write(addr: usize, bytes: usize, allocation: u64) -> Self {
        Self { addr, bytes, writes: true, allocation }
    }
}

/// What must never happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Violation {
    /// Work touches a byte that work of another allocation still uses, with no order between them.
    Race {
        /// The byte.
        addr: usize,
        /// The allocation whose work came first.
        earlier: u64,
        /// The allocation whose work came now.
        later: u64,
    },
    /// As [`Race`](Self::Race), but within one allocation: the program's own fault, a use on
    /// another stream that it did not order.
    ProgramRace {
        /// The byte.
        addr: usize,
        /// The allocation.
        allocation: u64,
    },
    /// Work touches memory that is not mapped.
    Unmapped {
        /// The byte.
        addr: usize,
        /// The allocation that the program means.
        allocation: u64,
    },
    /// Memory was unmapped or freed that queued work still uses.
    UnmappedInUse {
        /// The byte.
        addr: usize,
        /// The allocation whose work uses it.
        allocation: u64,
    },
    /// A block was handed out over a live one.
    Overlap {
        /// First byte of the new block.
        addr: usize,
        /// The live allocation.
        live: u64,
        /// The new allocation.
        new: u64,
    },
    /// A graph is launched whose memory belongs to an allocation by now that it does not know.
    GraphMemoryReused {
        /// The byte.
        addr: usize,
        /// The allocation that has it.
        allocation: u64,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// How often each driver call was made.
pub type Counters = BTreeMap<&'static str, u64>;

/// The simulated machine. Clones are the same machine.
#[derive(Debug, Clone)]
pub struct Simulator {
    state: Arc<Mutex<State>>,
}

/// Options of a [`Simulator`].
#[derive(Debug, Clone)]
pub struct SimulatorBuilder {
    pub(crate) seed: u64,
    pub(crate) devices: u32,
    pub(crate) capacity_bytes: usize,
    pub(crate) page_bytes: Option<usize>,
}

impl SimulatorBuilder {
    /// Decides what is done when.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Number of devices; 1 unless set.
    #[must_use]
    pub fn devices(mut self, count: u32) -> Self {
        self.devices = count;
        self
    }

    /// Bytes of each device; 1 GiB unless set.
    #[must_use]
    pub fn capacity_bytes(mut self, bytes: usize) -> Self {
        self.capacity_bytes = bytes;
        self
    }

    /// Makes the devices unable to manage virtual memory.
    #[must_use]
    pub fn without_mapping(mut self) -> Self {
        self.page_bytes = None;
        self
    }

    /// The machine.
    #[must_use]
    pub fn build(self) -> Simulator {
        Simulator { state: Arc::new(Mutex::new(State::new(&self))) }
    }
}

impl Simulator {
    /// Options, all with defaults.
    #[must_use]
    pub fn builder() -> SimulatorBuilder {
        SimulatorBuilder { seed: 0, devices: 1, capacity_bytes: 1 << 30, page_bytes: Some(2 << 20) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The machine's driver.
    #[must_use]
    pub fn driver(&self) -> SimulatedDriver {
        SimulatedDriver::new(self.clone())
    }

    /// Pools over the machine's driver.
    #[must_use]
    pub fn platform(&self) -> Platform {
        Platform::new(self.driver())
    }

    /// Makes the device's context current on this thread.
    pub fn bind(&self, ordinal: u32) {
        let context = self.lock().context_of(ordinal);
        state::set_current(context);
    }

    /// Leaves this thread without a context.
    pub fn unbind(&self) {
        state::set_current(None);
    }

    /// A new stream in the current context. A blocking one waits for the legacy stream, and it for
    /// that one.
    ///
    /// # Errors
    /// Without a current context.
    pub fn create_stream(&self, blocking: bool) -> DriverResult<Stream> {
        self.lock().create_stream(blocking)
    }

    /// Ends a stream; work that is queued in it will still be done.
    ///
    /// # Errors
    /// For a handle of no live stream.
    pub fn destroy_stream(&self, stream: Stream) -> DriverResult<()> {
        self.lock().destroy_stream(stream)
    }

    /// Queues work that uses memory, or records it into the graph that the stream is captured into.
    ///
    /// # Errors
    /// For a handle of no live stream, and in a capture that has become invalid.
    pub fn launch(&self, stream: Stream, accesses: &[Access]) -> DriverResult<()> {
        let mut state = self.lock();
        state.progress();
        state.launch(stream, accesses)
    }

    /// A new event of the program's own.
    #[must_use]
    pub fn create_event(&self) -> Event {
        self.lock().create_event()
    }

    /// Makes the event stand for the work queued in `stream` so far.
    ///
    /// # Errors
    /// For a handle of no live stream.
    pub fn record_event(&self, event: Event, stream: Stream) -> DriverResult<()> {
        self.lock().record_event(event, stream)
    }

    /// Lets later work of `stream` wait for what the event stands for.
    ///
    /// # Errors
    /// For a handle of no live stream.
    pub fn wait_event(&self, stream: Stream, event: Event) -> DriverResult<()> {
        self.lock().wait_event(stream, event)
    }

    /// Waits until the work queued in `stream` is done.
    ///
    /// # Errors
    /// For a stream in capture.
    pub fn synchronize_stream(&self, stream: Stream) -> DriverResult<()> {
        self.lock().synchronize_stream(stream)
    }

    /// Waits until all work is done, on every device. For the end of a test.
    pub fn finish(&self) {
        self.lock().finish_all();
    }

    /// Does up to `count` pieces of queued work.
    pub fn advance(&self, count: usize) {
        self.lock().advance(count);
    }

    /// Tells the machine that the bytes are an allocation's from now on.
    pub fn note_allocation(&self, addr: usize, bytes: usize, allocation: u64) {
        self.lock().note_allocation(addr, bytes, allocation);
    }

    /// Tells the machine that the allocation at `addr` is no more.
    pub fn note_free(&self, addr: usize) {
        self.lock().note_free(addr);
    }

    /// Changes memory behind everybody's back, as a stray write does.
    pub fn poke(&self, addr: usize, bytes: usize, value: u8) {
        self.lock().set_contents(addr, bytes, value);
    }

    /// What pools filled memory with, or what was poked; 0 where neither.
    #[must_use]
    pub fn peek(&self, addr: usize) -> u8 {
        let mut byte = [0];
        self.lock().contents(addr, &mut byte);
        byte[0]
    }

    /// Begins a capture of `stream`.
    ///
    /// # Errors
    /// For a default stream other than the thread's own, and one in capture already.
    pub fn begin_capture(&self, stream: Stream, mode: CaptureMode) -> DriverResult<()> {
        self.lock().begin_capture(stream, mode)
    }

    /// Ends the capture that began on `stream`.
    ///
    /// # Errors
    /// When something made the capture fail.
    pub fn end_capture(&self, stream: Stream) -> DriverResult<Graph> {
        self.lock().end_capture(stream)
    }

    /// Queues all work of a graph.
    ///
    /// # Errors
    /// For a graph that was destroyed.
    pub fn launch_graph(&self, graph: Graph, stream: Stream) -> DriverResult<()> {
        self.lock().launch_graph(graph, stream)
    }

    /// Ends a graph.
    pub fn destroy_graph(&self, graph: Graph) {
        self.lock().destroy_graph(graph);
    }

    /// Memory that others use on the device, outside this process.
    pub fn set_foreign_bytes(&self, ordinal: u32, bytes: usize) {
        self.lock().set_foreign_bytes(ordinal, bytes);
    }

    /// Free and total bytes of a device.
    #[must_use]
    pub fn memory_info(&self, ordinal: u32) -> (usize, usize) {
        self.lock().memory_info(ordinal)
    }

    /// Makes the `number`th call from now (1 is the next) of this name fail with `code`.
    pub fn fail(&self, call: &'static str, number: u64, code: u32) {
        self.lock().fail(call, number, code);
    }

    /// Drops every failure that was asked for and has not happened.
    pub fn clear_failures(&self) {
        self.lock().clear_failures();
    }

    /// How often each driver call was made.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.lock().counters.clone()
    }

    /// Calls that took memory from the driver or gave it back.
    #[must_use]
    pub fn memory_calls(&self) -> u64 {
        const MEMORY: [&str; 7] =
            ["create", "release", "map", "unmap", "set_access", "allocate_segment", "free_segment"];
        let counters = self.counters();
        MEMORY.iter().filter_map(|call| counters.get(call)).sum()
    }

    /// Everything that must not have happened and did.
    #[must_use]
    pub fn violations(&self) -> Vec<Violation> {
        self.lock().violations.clone()
    }

    /// Events that were created and not destroyed.
    #[must_use]
    pub fn event_count(&self) -> usize {
        self.lock().event_count()
    }
}

/// An error of the simulated driver.
pub(crate) fn error(call: &'static str, code: u32) -> DriverError {
    DriverError { call, code }
}
