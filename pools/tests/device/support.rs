//! A program on a simulated machine.

use mempool_pools::device::simulated::{Access, CaptureMode, Graph, Simulator, SimulatorBuilder};
use mempool_pools::device::{Allocation, Free, Platform, PoolDevice, Stream};

/// A simulated machine with pools, and a program on it that keeps the books the simulator needs.
pub struct Machine {
    pub simulator: Simulator,
    pub platform: Platform,
    pub device: PoolDevice,
}

pub const MIB: usize = 1 << 20;

impl Machine {
    pub fn new() -> Self {
        Self::with(Simulator::builder())
    }

    pub fn with(builder: SimulatorBuilder) -> Self {
        let simulator = builder.build();
        let platform = simulator.platform();
        simulator.bind(0);
        let device = platform.device(0).expect("the machine has a device");
        Self { simulator, platform, device }
    }

    /// Allocates; `None` when memory is out.
    pub fn try_allocate(&self, bytes: usize, stream: Stream) -> Option<Block<'_>> {
        match self.platform.allocate(bytes, stream) {
            Allocation::Block(addr) => {
                let id = next_id();
                self.simulator.note_allocation(addr, bytes, id);
                Some(Block { machine: self, addr, bytes, id })
            }
            Allocation::OutOfMemory => None,
            Allocation::PassThrough => panic!("pools do not serve {bytes} bytes on {stream:?}"),
        }
    }

    pub fn allocate(&self, bytes: usize, stream: Stream) -> Block<'_> {
        self.try_allocate(bytes, stream).unwrap_or_else(|| {
            panic!("no memory: {}", self.device.last_oom().expect("a failure leaves a report"))
        })
    }

    /// Nothing that must not happen has happened, and all pools are in order.
    pub fn check(&self) {
        assert_eq!(self.simulator.violations(), []);
        self.device.default_pool().validate().expect("the default pool is in order");
    }

    /// Begins a capture of this thread's own mode.
    pub fn begin_capture(&self, stream: Stream) {
        assert!(self.platform.capture_begins(stream), "the stream is known");
        self.simulator.begin_capture(stream, CaptureMode::ThreadLocal).expect("a capture begins");
    }

    /// Ends a capture that nothing has broken.
    pub fn end_capture(&self, stream: Stream) -> Graph {
        self.platform.capture_is_ending(stream);
        let graph = self.simulator.end_capture(stream);
        self.platform.capture_ends(stream);
        graph.expect("nothing ended the capture")
    }

    /// A machine with this much memory.
    pub fn small(mib: usize) -> Self {
        Self::with(Simulator::builder().capacity_bytes(mib * MIB))
    }

    pub fn device_free(&self) -> usize {
        self.simulator.memory_info(0).0
    }
}

fn next_id() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A live allocation. It is not freed by itself.
#[derive(Clone, Copy)]
pub struct Block<'m> {
    machine: &'m Machine,
    pub addr: usize,
    pub bytes: usize,
    pub id: u64,
}

impl Block<'_> {
    /// Queues work that writes the whole block.
    pub fn write(&self, stream: Stream) {
        let access = Access::write(self.addr, self.bytes, self.id);
        self.machine.simulator.launch(stream, &[access]).expect("work is queued");
    }

    pub fn free(self, stream: Stream) {
        self.machine.simulator.note_free(self.addr);
        assert_eq!(self.machine.platform.free(self.addr, stream), Free::Done);
    }
}
