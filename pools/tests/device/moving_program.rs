//! Random programs on buffers that may move: written, held, used on other streams and by graphs, removed, and moved
//! together at any time. Whoever holds a buffer, and every graph, must find it where it was, with what it held.

use mempool_pools::device::simulated::{Access, CaptureMode, Graph, Simulator};
use mempool_pools::device::{Allocation, Free, Platform, Stream};
use mempool_pools::{Buffer, BufferSet, CompactionOptions, MemPool};

const OWN: Stream = Stream::PER_THREAD;
const KIB: usize = 1 << 10;

/// What a program does next, by numbers that choose among what there is.
pub type Op = (u8, u16, u16);

struct Known {
    buffer: Buffer,
    bytes: usize,
    /// What its first and its last byte are.
    value: u8,
    /// While somebody has it: where, and as which allocation.
    held: Option<(usize, u64)>,
    /// The address that graphs read, by their number.
    graphs: Vec<(usize, u64)>,
}

struct Program {
    simulator: Simulator,
    platform: Platform,
    pool: MemPool,
    set: BufferSet,
    other: Stream,
    buffers: Vec<Known>,
    graphs: Vec<(u64, Graph)>,
    next_number: u64,
    wrong: Vec<String>,
}

/// Runs a program, and says what went wrong.
pub fn run(seed: u64, ops: &[Op]) -> Vec<String> {
    let simulator = Simulator::builder().seed(seed).capacity_bytes(64 << 20).build();
    let platform = simulator.platform();
    simulator.bind(0);
    let device = platform.device(0).expect("the machine has a device");
    let policies = ["policy:pages", "policy:pages,mode:moving", "policy:torch", "policy:buddy", "policy:bfc"];
    let conf = policies[seed as usize % policies.len()];
    let pool = device.pool_builder().conf(conf).expect("a policy").build().expect("a pool");
    let other = simulator.create_stream(false).expect("a stream");
    let mut set = BufferSet::new_on(&pool, OWN);
    let on_oom = seed.is_multiple_of(2);
    let options =
        CompactionOptions { old_every: 3, old_after: 4, on_oom, budget_share: 0.5, ..Default::default() };
    set.set_options(options).expect("options that can work");
    set.reserve(4 << 20).expect("there is memory");
    let mut program = Program {
        simulator,
        platform,
        pool,
        set,
        other,
        buffers: Vec::new(),
        graphs: Vec::new(),
        next_number: 1,
        wrong: Vec::new(),
    };
    for &op in ops {
        program.step(op);
        program.check();
    }
    program.finish()
}

impl Program {
    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    fn step(&mut self, (kind, which, size): Op) {
        match kind % 16 {
            0..=3 => self.add(usize::from(size)),
            4 | 5 => self.remove(usize::from(which)),
            6 | 7 => self.hold(usize::from(which), size as u8),
            8 => self.release(usize::from(which), OWN),
            9 => self.release(usize::from(which), self.other),
            10 => self.capture(usize::from(which)),
            11 => self.end_graph(usize::from(which)),
            12 => self.allocate_much(usize::from(size)),
            13 => self.simulator.advance(usize::from(size % 16)),
            14 => drop(self.set.compact().expect("the stream is the set's")),
            _ => {
                let most = f64::from(size % 100) / 100.0;
                self.set.defrag_if(|fragmentation| fragmentation >= most).expect("the stream is the set's");
            }
        }
    }

    fn add(&mut self, size: usize) {
        let bytes = (1 + size % 700) * KIB;
        // The machine is small: sometimes there is no memory.
        let Ok(buffer) = self.set.add(bytes) else { return };
        self.buffers.push(Known { buffer, bytes, value: 0, held: None, graphs: Vec::new() });
        let at = self.buffers.len() - 1;
        self.hold(at, size as u8);
        self.release(at, OWN);
    }

    fn remove(&mut self, which: usize) {
        if self.buffers.len() > 1 {
            let at = which % self.buffers.len();
            self.release(at, OWN);
            self.buffers.swap_remove(at);
        }
    }

    /// Somebody takes the buffer, and writes it.
    fn hold(&mut self, which: usize, value: u8) {
        let Some(at) = which.checked_rem(self.buffers.len()) else { return };
        let number = self.number();
        let (platform, known) = (self.platform, &mut self.buffers[at]);
        let bytes = known.bytes;
        let taken = known.buffer.place_next(bytes, || platform.allocate(bytes, OWN));
        let Ok(Allocation::Block(addr)) = taken else { return };
        if addr != known.buffer.addr() {
            // Other work used it a moment ago.
            let freed = platform.free(addr, OWN);
            assert_eq!(freed, Free::Done);
            return;
        }
        self.simulator.note_allocation(addr, bytes, number);
        self.simulator.launch(OWN, &[Access::write(addr, bytes, number)]).expect("work is queued");
        self.simulator.poke(addr, 1, value);
        self.simulator.poke(addr + bytes - 1, 1, value);
        known.value = value;
        known.held = Some((addr, number));
        if value.is_multiple_of(3) {
            self.use_elsewhere(at);
        }
    }

    /// The other stream reads what somebody holds, and tells it.
    fn use_elsewhere(&mut self, at: usize) {
        let Some((addr, number)) = self.buffers[at].held else { return };
        let bytes = self.buffers[at].bytes;
        let device = self.platform.device(0).expect("the machine has a device");
        assert!(device.record_stream(addr, self.other, ()));
        let event = self.simulator.create_event();
        self.simulator.record_event(event, OWN).expect("the stream exists");
        self.simulator.wait_event(self.other, event).expect("the stream exists");
        self.simulator.launch(self.other, &[Access::read(addr, bytes, number)]).expect("work is queued");
    }

    fn release(&mut self, which: usize, stream: Stream) {
        let Some(at) = which.checked_rem(self.buffers.len()) else { return };
        let Some((addr, _)) = self.buffers[at].held.take() else { return };
        self.simulator.note_free(addr);
        if self.platform.free(addr, stream) != Free::Done {
            self.wrong.push(format!("the free of {addr:#x} was refused"));
        }
    }

    /// A graph reads a buffer that somebody holds.
    fn capture(&mut self, which: usize) {
        let Some(at) = which.checked_rem(self.buffers.len()) else { return };
        let Some((addr, number)) = self.buffers[at].held else { return };
        let bytes = self.buffers[at].bytes;
        assert!(self.platform.capture_begins(OWN), "the stream is known");
        self.simulator.begin_capture(OWN, CaptureMode::ThreadLocal).expect("a capture");
        self.simulator.launch(OWN, &[Access::read(addr, bytes, number)]).expect("work is recorded");
        if self.set.compact().is_ok() {
            self.wrong.push("buffers were moved in a capture".to_owned());
        }
        self.platform.capture_is_ending(OWN);
        let graph = self.simulator.end_capture(OWN).expect("nothing ended the capture");
        self.platform.capture_ends(OWN);
        let graph_number = self.number();
        self.buffers[at].graphs.push((addr, graph_number));
        self.graphs.push((graph_number, graph));
    }

    /// Something else that may need all memory there is.
    fn allocate_much(&mut self, size: usize) {
        let (number, bytes) = (self.number(), (1 + size % 60) << 20);
        if let Allocation::Block(addr) = self.pool.with(|| self.platform.allocate(bytes, OWN)) {
            self.simulator.note_allocation(addr, bytes, number);
            self.simulator.launch(OWN, &[Access::write(addr, bytes, number)]).expect("work is queued");
            self.simulator.note_free(addr);
            assert_eq!(self.platform.free(addr, OWN), Free::Done);
        }
    }

    fn end_graph(&mut self, which: usize) {
        let Some(at) = which.checked_rem(self.graphs.len()) else { return };
        let (number, graph) = self.graphs.swap_remove(at);
        self.simulator.destroy_graph(graph);
        self.buffers.iter_mut().for_each(|known| known.graphs.retain(|&(_, other)| other != number));
    }

    fn check(&mut self) {
        for known in &self.buffers {
            let addr = known.buffer.addr();
            if let Some((held_at, number)) = known.held
                && held_at != addr
            {
                self.wrong.push(format!("allocation {number} moved while somebody had it"));
            }
            if known.graphs.iter().any(|&(read_at, _)| read_at != addr) {
                self.wrong.push(format!("the buffer at {addr:#x} moved while a graph reads it"));
            }
            let ends = [addr, addr + known.bytes - 1].map(|at| self.simulator.peek(at));
            if ends != [known.value; 2] {
                self.wrong.push(format!("the buffer at {addr:#x} holds {ends:?}, not {}", known.value));
            }
        }
        if let Err(violation) = self.pool.validate() {
            self.wrong.push(violation.to_string());
        }
    }

    fn finish(mut self) -> Vec<String> {
        for at in 0..self.buffers.len() {
            self.release(at, OWN);
        }
        self.simulator.finish();
        let Self { simulator, platform, pool, set, buffers, graphs, mut wrong, .. } = self;
        wrong.extend(simulator.violations().iter().map(ToString::to_string));
        graphs.into_iter().for_each(|(_, graph)| simulator.destroy_graph(graph));
        // In any order.
        if wrong.len().is_multiple_of(2) {
            drop((set, pool));
            drop(buffers);
        } else {
            drop((buffers, set, pool));
        }
        let device = platform.device(0).expect("the machine has a device");
        device.mark_step();
        let _ = device.empty_cache();
        device.mark_step();
        if device.reserved_bytes() != 0 {
            wrong.push(format!("{} bytes stayed behind", device.reserved_bytes()));
        }
        wrong
    }
}
