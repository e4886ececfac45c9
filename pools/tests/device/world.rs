//! What a random program needs of a machine: the simulated one, or a real device.

use std::sync::Mutex;

use mempool_pools::device::simulated::{Access, CaptureMode, Graph, Simulator};
use mempool_pools::device::{Allocation, Event, Free, Platform, PoolDevice, Stream};

/// A graph as its world numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GraphId(pub usize);

/// A machine that programs run on. Every method works on the calling thread.
pub trait World: Send + Sync {
    /// The device with its pools.
    fn device(&self) -> PoolDevice;
    /// Makes the device's context current.
    fn bind(&self);
    /// A block, or `None` when there is no memory.
    fn allocate(&self, bytes: usize, stream: Stream, allocation: u64) -> Option<usize>;
    /// Whether the free went through.
    fn free(&self, addr: usize, stream: Stream) -> bool;
    fn create_stream(&self, blocking: bool) -> Stream;
    fn destroy_stream(&self, stream: Stream);
    /// Queues work that takes a while.
    fn launch(&self, stream: Stream, access: Access);
    /// An event behind what is queued in `stream`.
    fn record(&self, stream: Stream) -> Event;
    fn wait(&self, stream: Stream, event: Event);
    fn synchronize(&self, stream: Stream);
    /// Begins a capture of `stream` on this thread, in thread-local mode.
    fn begin_capture(&self, stream: Stream);
    /// The captured graph, unless something made the capture fail.
    fn end_capture(&self, stream: Stream) -> Option<GraphId>;
    fn launch_graph(&self, graph: GraphId, stream: Stream);
    fn destroy_graph(&self, graph: GraphId);
    /// Makes the next driver call of this name fail, where that can be arranged.
    fn fail(&self, call: &'static str);
    /// Lets all work end, and says what went wrong.
    fn verdict(&self) -> Vec<String>;
}

/// A simulated machine.
pub struct SimulatedWorld {
    pub simulator: Simulator,
    platform: Platform,
    graphs: Mutex<Vec<Graph>>,
}

impl SimulatedWorld {
    pub fn new(seed: u64) -> Self {
        // Small machines run out often, large ones hardly.
        let capacity_bytes = [32_usize << 20, 64 << 20, 256 << 20][(seed % 3) as usize];
        let builder = Simulator::builder().seed(seed).capacity_bytes(capacity_bytes);
        // Some drivers cannot manage virtual memory.
        let maps = seed % 8 != 7;
        let simulator = if maps { builder } else { builder.without_mapping() }.build();
        let platform = simulator.platform();
        Self { simulator, platform, graphs: Mutex::new(Vec::new()) }
    }
}

impl World for SimulatedWorld {
    fn device(&self) -> PoolDevice {
        self.platform.device(0).expect("the machine has a device")
    }

    fn bind(&self) {
        self.simulator.bind(0);
    }

    fn allocate(&self, bytes: usize, stream: Stream, allocation: u64) -> Option<usize> {
        match self.platform.allocate(bytes, stream) {
            Allocation::Block(addr) => {
                self.simulator.note_allocation(addr, bytes, allocation);
                Some(addr)
            }
            Allocation::PassThrough | Allocation::OutOfMemory => None,
        }
    }

    fn free(&self, addr: usize, stream: Stream) -> bool {
        self.simulator.note_free(addr);
        self.platform.free(addr, stream) == Free::Done
    }

    fn create_stream(&self, blocking: bool) -> Stream {
        let stream = self.simulator.create_stream(blocking).expect("a stream");
        // Some streams are made where nobody sees it.
        if !blocking {
            self.platform.stream_begins(stream);
        }
        stream
    }

    fn destroy_stream(&self, stream: Stream) {
        self.platform.stream_ends(stream);
        self.simulator.destroy_stream(stream).expect("the stream exists");
    }

    fn launch(&self, stream: Stream, access: Access) {
        self.simulator.launch(stream, &[access]).expect("work is queued");
    }

    fn record(&self, stream: Stream) -> Event {
        let event = self.simulator.create_event();
        self.simulator.record_event(event, stream).expect("the stream exists");
        event
    }

    fn wait(&self, stream: Stream, event: Event) {
        self.simulator.wait_event(stream, event).expect("the stream exists");
    }

    fn synchronize(&self, stream: Stream) {
        self.simulator.synchronize_stream(stream).expect("the stream exists");
    }

    fn begin_capture(&self, stream: Stream) {
        // Failures that were asked for may hit this call, of each of the two questions that it asks the
        // driver: then it is told again.
        let told = (0..3).any(|_| self.platform.capture_begins(stream));
        assert!(told, "the stream is in no capture");
        self.simulator.begin_capture(stream, CaptureMode::ThreadLocal).expect("a capture");
    }

    fn end_capture(&self, stream: Stream) -> Option<GraphId> {
        self.platform.capture_is_ending(stream);
        let graph = self.simulator.end_capture(stream).ok();
        self.platform.capture_ends(stream);
        let mut graphs = self.graphs.lock().expect("one thread at a time");
        graphs.push(graph?);
        Some(GraphId(graphs.len() - 1))
    }

    fn launch_graph(&self, graph: GraphId, stream: Stream) {
        let graph = self.graphs.lock().expect("one thread at a time")[graph.0];
        self.simulator.launch_graph(graph, stream).expect("the graph exists");
    }

    fn destroy_graph(&self, graph: GraphId) {
        let graph = self.graphs.lock().expect("one thread at a time")[graph.0];
        self.simulator.destroy_graph(graph);
    }

    fn fail(&self, call: &'static str) {
        self.simulator.fail(call, 1, 2);
    }

    fn verdict(&self) -> Vec<String> {
        self.simulator.clear_failures();
        self.simulator.finish();
        self.simulator.violations().iter().map(ToString::to_string).collect()
    }
}
