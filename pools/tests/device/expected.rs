//! The trace that a program should leave, and a world that writes it down.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard};

use mempool_pools::arena::trace::Event as Row;
use mempool_pools::device::simulated::Access;
use mempool_pools::device::{Event, PoolDevice, Stream};

use crate::world::{GraphId, SimulatedWorld, World};

/// The trace that a program should leave.
#[derive(Default)]
pub struct Expected {
    /// Without the completions of blocks that waited.
    pub rows: Vec<Row>,
    /// The address of each allocation, by its id.
    pub addrs: Vec<usize>,
    live: HashMap<usize, u64>,
    streams: Vec<Option<Stream>>,
    pub waited: HashSet<u64>,
}

impl Expected {
    pub fn allocate(&mut self, addr: usize, size_bytes: usize, stream: Option<Stream>) {
        let number = self.streams.iter().position(|&other| other == stream).unwrap_or_else(|| {
            self.streams.push(stream);
            self.streams.len() - 1
        });
        let id = self.addrs.len() as u64;
        self.addrs.push(addr);
        assert_eq!(self.live.insert(addr, id), None);
        self.rows.push(Row::Allocate { id, size_bytes, stream: number as u64 });
    }

    pub fn free(&mut self, addr: usize, waits: bool) {
        let Some(id) = self.live.remove(&addr) else { return };
        self.rows.push(Row::Free { id });
        if waits {
            self.waited.insert(id);
        } else {
            self.rows.push(Row::FreeCompleted { id });
        }
    }

    /// Compares but for the moment when waiting ended: that lies behind the free and before the memory
    /// serves again.
    pub fn check(&self, recorded: &[Row]) {
        let ended = |row: &Row| matches!(row, Row::FreeCompleted { id } if self.waited.contains(id));
        let rest: Vec<Row> = recorded.iter().copied().filter(|row| !ended(row)).collect();
        assert_eq!(rest, self.rows);
        let mut waiting = HashSet::new();
        for row in recorded {
            match row {
                Row::Free { id } if self.waited.contains(id) => {
                    waiting.insert(self.addrs[*id as usize]);
                }
                Row::FreeCompleted { id } if self.waited.contains(id) => {
                    assert!(waiting.remove(&self.addrs[*id as usize]), "{row:?} was freed before");
                }
                Row::Allocate { id, .. } => {
                    assert!(!waiting.contains(&self.addrs[*id as usize]), "{row:?} was still in use");
                }
                _ => {}
            }
        }
    }
}

/// A world that writes down what is allocated and freed.
pub struct Logged {
    world: SimulatedWorld,
    log: Mutex<Expected>,
}

impl Logged {
    pub fn new(seed: u64) -> Self {
        Self { world: SimulatedWorld::new(seed), log: Mutex::default() }
    }

    /// All blocks on one stream, and none completed.
    pub fn expected(&self) -> MutexGuard<'_, Expected> {
        self.log.lock().expect("no thread panicked")
    }
}

impl World for Logged {
    fn device(&self) -> PoolDevice {
        self.world.device()
    }

    fn bind(&self) {
        self.world.bind();
    }

    fn allocate(&self, bytes: usize, stream: Stream, allocation: u64) -> Option<usize> {
        let addr = self.world.allocate(bytes, stream, allocation)?;
        self.expected().allocate(addr, bytes, None);
        Some(addr)
    }

    fn free(&self, addr: usize, stream: Stream) -> bool {
        let freed = self.world.free(addr, stream);
        if freed {
            self.expected().free(addr, true);
        }
        freed
    }

    fn create_stream(&self, blocking: bool) -> Stream {
        self.world.create_stream(blocking)
    }

    fn destroy_stream(&self, stream: Stream) {
        self.world.destroy_stream(stream);
    }

    fn launch(&self, stream: Stream, access: Access) {
        self.world.launch(stream, access);
    }

    fn record(&self, stream: Stream) -> Event {
        self.world.record(stream)
    }

    fn wait(&self, stream: Stream, event: Event) {
        self.world.wait(stream, event);
    }

    fn synchronize(&self, stream: Stream) {
        self.world.synchronize(stream);
    }

    fn begin_capture(&self, stream: Stream) {
        self.world.begin_capture(stream);
    }

    fn end_capture(&self, stream: Stream) -> Option<GraphId> {
        self.world.end_capture(stream)
    }

    fn launch_graph(&self, graph: GraphId, stream: Stream) {
        self.world.launch_graph(graph, stream);
    }

    fn destroy_graph(&self, graph: GraphId) {
        self.world.destroy_graph(graph);
    }

    fn fail(&self, call: &'static str) {
        self.world.fail(call);
    }

    fn verdict(&self) -> Vec<String> {
        self.world.verdict()
    }
}
