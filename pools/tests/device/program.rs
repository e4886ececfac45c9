//! Random programs on several threads and streams, right by the rules that programs are under:
//! work on a block is ordered behind earlier work on it, uses on other streams are declared, and
//! a stream lives until the blocks are freed that it is declared for. Whatever else happens is
//! the pools' responsibility.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use mempool_pools::device::simulated::Access;
use mempool_pools::device::{Event, Stream};
use mempool_pools::{MemPool, PoolError};
use proptest::prelude::*;

use crate::world::{GraphId, World};
use crate::{memory_viz, recount};

/// Whether programs look at what a history has, which takes its time.
pub static FOLLOWS_HISTORY: AtomicBool = AtomicBool::new(false);

const WORKERS: usize = 3;
const POOLS: usize = 3;

/// One thing that a program does. Numbers choose among what exists, modulo how much there is.
#[derive(Debug, Clone)]
pub enum Op {
    Allocate {
        worker: usize,
        stream: usize,
        pool: usize,
        bytes: usize,
    },
    Work {
        worker: usize,
        stream: usize,
        block: usize,
        writes: bool,
    },
    Free {
        worker: usize,
        stream: usize,
        block: usize,
    },
    EndThread {
        worker: usize,
    },
    NewStream {
        blocking: bool,
    },
    EndStream {
        stream: usize,
    },
    ReplacePool {
        pool: usize,
        kind: String,
    },
    Trim {
        pool: usize,
    },
    EmptyCache,
    Synchronize {
        worker: usize,
        stream: usize,
    },
    FailNext {
        call: &'static str,
    },
    MarkStep,
    /// Captures work on blocks made in the capture, some of which end in it, and on one from before.
    Capture {
        worker: usize,
        stream: usize,
        pool: usize,
        sizes: Vec<usize>,
        kept: usize,
        block: usize,
    },
    LaunchGraph {
        worker: usize,
        graph: usize,
    },
    EndGraph {
        graph: usize,
    },
}

/// Driver calls whose failure pools have to bear.
const CALLS: &[&str] = &[
    "create",
    "map",
    "set_access",
    "unmap",
    "reserve",
    "create_event",
    "record_event",
    "event_done",
    "stream_wait",
    "wait_for_event",
    "synchronize",
    "stream_id",
    "capture_state",
];

/// How a pool places its blocks: each policy, and what changes its course.
const PLACEMENTS: &[&str] = &[
    "policy:none",
    "policy:simple",
    "policy:buckets",
    "policy:buckets,small_limit_mb:2,medium_limit_mb:4,max_cached_mb:8,slack_percent:off",
    "policy:buddy",
    "policy:bfc",
    "policy:bfc,allow_growth:False",
    "policy:torch",
    "policy:torch,max_split_size_mb:20,roundup_power2_divisions:4,large_segment_size_mb:4",
    "policy:expandable",
    "policy:expandable,large_segment_size_mb:4",
    "policy:segments",
    "policy:segments,no_split:True",
    "policy:pages",
    "policy:pages,mode:moving",
    "policy:pages,separate_lifetimes:True",
    "policy:pages,no_split:True",
];

/// What a pool of any policy can have besides.
const BESIDES: &[&str] = &[
    "",
    "limit_mb:24",
    "guard:True",
    "garbage_collection_threshold:0.5,release_threshold_mb:4",
    "guard:True,limit_mb:24,garbage_collection_threshold:0.7",
];

/// What a pool can have besides whose memory serves requests of other sizes than it was taken for.
const SIZES: &[&str] = &[
    "fixed_size_mb:20,headroom_percent:0",
    "initial_size_mb:6,headroom_percent:5",
    "growth_factor:2,guard:True,limit_mb:40",
    "initial_size_mb:10,growth_factor:1.5,headroom_percent:0,garbage_collection_threshold:0.4,release_threshold_mb:2",
];

/// Every kind of pool, as options spell it; the first is that of a pool without options.
pub fn kinds() -> Vec<String> {
    let all = PLACEMENTS.iter().flat_map(|how| BESIDES.iter().map(move |besides| format!("{how},{besides}")));
    let sized = PLACEMENTS.iter().filter(|how| {
        !["policy:none", "policy:simple", "no_split:True"].iter().any(|without| how.ends_with(without))
    });
    let sized = sized.flat_map(|how| SIZES.iter().map(move |size| format!("{how},{size}")));
    std::iter::once(String::new()).chain(all).chain(sized).collect()
}

pub fn ops(with_failures: bool) -> impl Strategy<Value = Vec<Op>> {
    let index = 0..1000_usize;
    let worker = 0..WORKERS;
    // Few sizes, so that blocks serve again; some large, so that memory runs out.
    let bytes = prop_oneof![
        4 => prop::sample::select(vec![512_usize, 4096, 100_000, 1 << 20]),
        3 => prop::sample::select(vec![3_usize << 20, 7 << 20, 20 << 20]),
        1 => (1..40_000_usize).prop_map(|units| units * 512),
    ];
    let op = prop_oneof![
        20 => (worker.clone(), 0..4_usize, 0..=POOLS, bytes.clone())
            .prop_map(|(worker, stream, pool, bytes)| Op::Allocate { worker, stream, pool, bytes }),
        24 => (worker.clone(), 0..4_usize, index.clone(), any::<bool>())
            .prop_map(|(worker, stream, block, writes)| Op::Work { worker, stream, block, writes }),
        16 => (worker.clone(), 0..4_usize, index.clone())
            .prop_map(|(worker, stream, block)| Op::Free { worker, stream, block }),
        3 => worker.clone().prop_map(|worker| Op::EndThread { worker }),
        2 => any::<bool>().prop_map(|blocking| Op::NewStream { blocking }),
        3 => index.clone().prop_map(|stream| Op::EndStream { stream }),
        1 => (0..POOLS, prop::sample::select(kinds())).prop_map(|(pool, kind)| Op::ReplacePool { pool, kind }),
        1 => (0..POOLS).prop_map(|pool| Op::Trim { pool }),
        1 => Just(Op::EmptyCache),
        1 => (worker.clone(), index.clone()).prop_map(|(worker, stream)| Op::Synchronize { worker, stream }),
        1 => prop::sample::select(CALLS).prop_map(move |call| {
            if with_failures { Op::FailNext { call } } else { Op::MarkStep }
        }),
        1 => Just(Op::MarkStep),
        2 => (worker, 0..4_usize, 0..=POOLS, prop::collection::vec(bytes, 1..5), 0..3_usize, index.clone())
            .prop_map(|(worker, stream, pool, sizes, kept, block)| Op::Capture {
                worker,
                stream,
                pool,
                sizes,
                kept,
                block,
            }),
        3 => (0..WORKERS, index.clone()).prop_map(|(worker, graph)| Op::LaunchGraph { worker, graph }),
        1 => index.prop_map(|graph| Op::EndGraph { graph }),
    ];
    prop::collection::vec(op, 1..120)
}

type Job = Box<dyn FnOnce() + Send>;

/// A thread that does what it is told, one thing at a time.
struct Worker {
    number: u64,
    jobs: Sender<Job>,
    done: Receiver<()>,
    thread: JoinHandle<()>,
}

impl Worker {
    fn start(world: &Arc<dyn World>) -> Self {
        use std::sync::atomic::{AtomicU64, Ordering};
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let (jobs, todo) = channel::<Job>();
        let (finished, done) = channel();
        let world = Arc::clone(world);
        let thread = std::thread::spawn(move || {
            world.bind();
            while let Ok(job) = todo.recv() {
                job();
                finished.send(()).expect("somebody waits");
            }
        });
        Self { number: NEXT.fetch_add(1, Ordering::Relaxed), jobs, done, thread }
    }

    fn run<R: Send + 'static>(&self, f: impl FnOnce() -> R + Send + 'static) -> R {
        let (send, receive) = channel();
        self.jobs.send(Box::new(move || send.send(f()).expect("somebody waits"))).expect("a worker");
        self.done.recv().expect("the worker lives");
        receive.recv().expect("a result")
    }

    fn end(self) {
        drop(self.jobs);
        self.thread.join().expect("the worker ends well");
    }
}

/// A stream as a program means it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Where {
    /// A worker's own.
    Own(u64),
    Explicit(u64),
}

struct Block {
    addr: usize,
    bytes: usize,
    id: u64,
    /// Index of its pool; none for the default pool.
    pool: Option<u64>,
    owner: Where,
    users: Vec<Where>,
    /// Behind work of streams that are gone.
    events: Vec<Event>,
    written: bool,
}

struct CapturedGraph {
    graph: GraphId,
    /// The stream that it was captured on and is launched on.
    stream: (u64, Stream),
    /// Blocks that it uses and that were live at its end.
    blocks: Vec<u64>,
    /// Behind other uses of such blocks, which are over.
    events: Vec<Event>,
}

struct Pool {
    number: u64,
    pool: MemPool,
    /// Bytes of the margins around each block.
    margin_bytes: usize,
}

struct Program {
    world: Arc<dyn World>,
    workers: Vec<Worker>,
    streams: Vec<(u64, Stream)>,
    pools: Vec<Pool>,
    blocks: Vec<Block>,
    graphs: Vec<CapturedGraph>,
    next: u64,
    /// Times that the books were checked.
    checks: usize,
}

/// Runs a program and returns everything that went wrong.
pub fn run(world: Arc<dyn World>, ops: &[Op]) -> Vec<String> {
    run_on(world, "", ops)
}

/// Runs a program that begins with pools of this kind and returns everything that went wrong.
pub fn run_on(world: Arc<dyn World>, kind: &str, ops: &[Op]) -> Vec<String> {
    world.bind();
    let mut program = Program {
        workers: (0..WORKERS).map(|_| Worker::start(&world)).collect(),
        streams: Vec::new(),
        pools: Vec::new(),
        blocks: Vec::new(),
        graphs: Vec::new(),
        next: 1,
        checks: 0,
        world,
    };
    for _ in 0..POOLS {
        program.new_pool(kind);
    }
    program.new_stream(false);
    program.new_stream(true);
    let mut wrong = Vec::new();
    for op in ops {
        program.step(op, &mut wrong);
    }
    program.finish(wrong)
}

/// Streams that get one handle, one after the other, each with work under way when the next begins.
pub fn streams_of_one_handle(world: Arc<dyn World>) -> Vec<String> {
    const BYTES: usize = 5 << 20;
    world.bind();
    let pool = world.device().pool().expect("a pool");
    let mut wrong = Vec::new();
    for id in 1..20 {
        let stream = world.create_stream(false);
        let Some(addr) = pool.with(|| world.allocate(BYTES, stream, id)) else {
            wrong.push("there is no memory".to_owned());
            break;
        };
        world.launch(stream, Access::write(addr, BYTES, id));
        if !world.free(addr, stream) {
            wrong.push("a free was refused".to_owned());
        }
        world.destroy_stream(stream);
    }
    wrong.extend(world.verdict());
    wrong
}

impl Program {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn new_pool(&mut self, kind: &str) {
        let builder = self.world.device().pool_builder().conf(kind).expect("a kind of pool");
        match builder.build() {
            Ok(pool) => {
                let number = self.number();
                let margin_bytes = if kind.contains("guard") { 2 * 512 } else { 0 };
                self.pools.push(Pool { number, pool, margin_bytes });
            }
            // A device without virtual memory management.
            Err(PoolError::NeedsMapping { .. }) => {}
            // A device that has less than the pool is to begin with, or whose driver refuses it.
            Err(PoolError::Size { .. }) => {}
            Err(error) => panic!("{kind}: {error}"),
        }
    }

    fn new_stream(&mut self, blocking: bool) {
        let stream = self.world.create_stream(blocking);
        let number = self.number();
        self.streams.push((number, stream));
    }

    /// The stream that number means on this worker: its own one at 0, else one that everybody has.
    fn choose(&self, worker: usize, stream: usize) -> (Where, Stream) {
        match stream.checked_sub(1) {
            Some(at) if !self.streams.is_empty() => {
                let (number, stream) = self.streams[at % self.streams.len()];
                (Where::Explicit(number), stream)
            }
            _ => (Where::Own(self.workers[worker].number), Stream::PER_THREAD),
        }
    }

    /// An event behind everything queued in a stream that exists.
    fn record(&self, of: Where) -> Event {
        let world = Arc::clone(&self.world);
        match of {
            Where::Own(number) => {
                let worker = self.workers.iter().find(|worker| worker.number == number);
                worker.expect("it lives").run(move || world.record(Stream::PER_THREAD))
            }
            Where::Explicit(number) => {
                let (_, stream) = self.streams.iter().find(|(other, _)| *other == number).expect("it lives");
                world.record(*stream)
            }
        }
    }

    /// Before a stream goes: events stand for its work from here on.
    fn leave(&mut self, gone: Where) {
        let touched: Vec<usize> =
            (0..self.blocks.len()).filter(|&at| self.blocks[at].users.contains(&gone)).collect();
        for at in touched {
            let event = self.record(gone);
            self.blocks[at].users.retain(|user| *user != gone);
            self.blocks[at].events.push(event);
        }
    }

    fn step(&mut self, op: &Op, wrong: &mut Vec<String>) {
        match *op {
            Op::Allocate { worker, stream, pool, bytes } => self.allocate(worker, stream, pool, bytes),
            Op::Work { worker, stream, block, writes } => self.work(worker, stream, block, writes),
            Op::Free { worker, stream, block } => self.free(worker, stream, block, wrong),
            Op::EndThread { worker } => {
                self.leave(Where::Own(self.workers[worker].number));
                let fresh = Worker::start(&self.world);
                std::mem::replace(&mut self.workers[worker], fresh).end();
            }
            Op::NewStream { blocking } => self.new_stream(blocking),
            Op::EndStream { stream } => self.end_stream(stream),
            Op::ReplacePool { pool, ref kind } => {
                if pool < self.pools.len() {
                    self.pools.swap_remove(pool);
                    self.new_pool(kind);
                }
            }
            Op::Trim { pool } => {
                if let Some(pool) = self.pools.get(pool) {
                    pool.pool.trim().expect("trimming does not fail");
                }
            }
            Op::EmptyCache => drop(self.world.device().empty_cache()),
            Op::Synchronize { worker, stream } => {
                let (_, stream) = self.choose(worker, stream);
                let world = Arc::clone(&self.world);
                self.workers[worker].run(move || world.synchronize(stream));
            }
            Op::FailNext { call } => self.world.fail(call),
            Op::Capture { worker, stream, pool, ref sizes, kept, block } => {
                self.capture(worker, stream, pool, sizes, kept, block, wrong);
            }
            Op::LaunchGraph { worker, graph } => self.launch_graph(worker, graph),
            Op::EndGraph { graph } => {
                if !self.graphs.is_empty() {
                    let ended = self.graphs.swap_remove(graph % self.graphs.len());
                    self.world.destroy_graph(ended.graph);
                }
            }
            Op::MarkStep => {
                self.world.device().mark_step();
            }
        }
        self.check_books(wrong);
    }

    fn allocate(&mut self, worker: usize, stream: usize, pool: usize, bytes: usize) {
        let (owner, stream) = self.choose(worker, stream);
        let pool = self.pools.get(pool).map(|pool| (pool.number, pool.pool.clone()));
        let id = self.number();
        let (world, scope) = (Arc::clone(&self.world), pool.as_ref().map(|(_, pool)| pool.clone()));
        let addr = self.workers[worker].run(move || {
            let _scope = scope.as_ref().map(MemPool::enter);
            world.allocate(bytes, stream, id)
        });
        if let Some(addr) = addr {
            self.blocks.push(Block {
                addr,
                bytes,
                id,
                pool: pool.map(|(number, _)| number),
                owner,
                users: vec![owner],
                events: Vec::new(),
                written: false,
            });
        }
    }

    fn work(&mut self, worker: usize, stream: usize, block: usize, writes: bool) {
        if self.blocks.is_empty() {
            return;
        }
        let (user, stream) = self.choose(worker, stream);
        let at = block % self.blocks.len();
        let (addr, bytes, id, owner) =
            (self.blocks[at].addr, self.blocks[at].bytes, self.blocks[at].id, self.blocks[at].owner);
        let writes = writes || !self.blocks[at].written;
        let others: Vec<Where> =
            self.blocks[at].users.iter().copied().filter(|&other| other != user).collect();
        let mut events: Vec<Event> = others.into_iter().map(|other| self.record(other)).collect();
        events.extend(&self.blocks[at].events);
        let world = Arc::clone(&self.world);
        let queued = self.workers[worker].run(move || {
            if user != owner && !world.device().record_stream(addr, stream, ()) {
                return false;
            }
            events.into_iter().for_each(|event| world.wait(stream, event));
            let access = if writes { Access::write(addr, bytes, id) } else { Access::read(addr, bytes, id) };
            world.launch(stream, access);
            true
        });
        let block = &mut self.blocks[at];
        if queued {
            block.written |= writes;
            if !block.users.contains(&user) {
                block.users.push(user);
            }
        }
    }

    fn free(&mut self, worker: usize, stream: usize, block: usize, wrong: &mut Vec<String>) {
        if self.blocks.is_empty() {
            return;
        }
        let (_, stream) = self.choose(worker, stream);
        let at = block % self.blocks.len();
        self.leave_graphs(at);
        let block = self.blocks.swap_remove(at);
        let world = Arc::clone(&self.world);
        if !self.workers[worker].run(move || world.free(block.addr, stream)) {
            wrong.push(format!("the free of allocation {} was refused", block.id));
        }
    }

    /// Before a block ends: graphs that use its bytes stay behind its other uses.
    fn leave_graphs(&mut self, at: usize) {
        for graph in 0..self.graphs.len() {
            if !self.graphs[graph].blocks.contains(&self.blocks[at].id) {
                continue;
            }
            let origin = Where::Explicit(self.graphs[graph].stream.0);
            let others: Vec<Where> =
                self.blocks[at].users.iter().copied().filter(|&other| other != origin).collect();
            let events: Vec<Event> = others.into_iter().map(|other| self.record(other)).collect();
            self.graphs[graph].events.extend(events);
            let earlier = self.blocks[at].events.clone();
            self.graphs[graph].events.extend(earlier);
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn capture(
        &mut self,
        worker: usize,
        stream: usize,
        pool: usize,
        sizes: &[usize],
        kept: usize,
        block: usize,
        wrong: &mut Vec<String>,
    ) {
        if self.streams.is_empty() {
            return;
        }
        let (number, stream) = self.streams[stream % self.streams.len()];
        let origin = Where::Explicit(number);
        // A block from before, which the graph reads and which ends in the capture.
        // Not another graph's: nothing would order the launches of the two.
        let in_graph =
            |at: &usize| self.graphs.iter().any(|graph| graph.blocks.contains(&self.blocks[*at].id));
        let read = (!self.blocks.is_empty()).then(|| block % self.blocks.len()).filter(|at| !in_graph(at));
        let mut events = Vec::new();
        if let Some(at) = read {
            let others: Vec<Where> =
                self.blocks[at].users.iter().copied().filter(|&other| other != origin).collect();
            events.extend(others.into_iter().map(|other| self.record(other)));
            events.extend(&self.blocks[at].events);
        }
        if let Some(at) = read {
            self.leave_graphs(at);
        }
        let read = read.map(|at| self.blocks.swap_remove(at));
        let scope = self.pools.get(pool).map(|pool| (pool.number, pool.pool.clone()));
        let made: Vec<(u64, usize)> = sizes.iter().map(|&bytes| (self.number(), bytes)).collect();
        let world = Arc::clone(&self.world);
        let used = read.as_ref().map(|block| (block.addr, block.bytes, block.id));
        let entered = scope.as_ref().map(|(_, pool)| pool.clone());
        let todo = made.clone();
        let (graph, addresses, refused) = self.workers[worker].run(move || {
            events.into_iter().for_each(|event| world.wait(stream, event));
            let _scope = entered.as_ref().map(MemPool::enter);
            world.begin_capture(stream);
            let mut refused = 0;
            if let Some((addr, bytes, id)) = used {
                world.launch(stream, Access::read(addr, bytes, id));
                refused += usize::from(!world.free(addr, stream));
            }
            let mut addresses = Vec::new();
            for &(id, bytes) in &todo {
                let addr = world.allocate(bytes, stream, id);
                if let Some(addr) = addr {
                    world.launch(stream, Access::write(addr, bytes, id));
                }
                addresses.push(addr);
            }
            for (addr, _) in addresses.iter().zip(&todo).skip(kept) {
                if let Some(addr) = addr {
                    refused += usize::from(!world.free(*addr, stream));
                }
            }
            // What the first ones left serves the same capture again.
            for &(id, bytes) in todo.iter().skip(kept) {
                let Some(addr) = world.allocate(bytes, stream, id) else { continue };
                world.launch(stream, Access::write(addr, bytes, id));
                refused += usize::from(!world.free(addr, stream));
            }
            (world.end_capture(stream), addresses, refused)
        });
        if refused > 0 {
            wrong.push(format!("{refused} frees in a capture were refused"));
        }
        let mut live = Vec::new();
        for (&(id, bytes), addr) in made.iter().zip(addresses).take(kept) {
            let Some(addr) = addr else { continue };
            live.push(id);
            self.blocks.push(Block {
                addr,
                bytes,
                id,
                pool: scope.as_ref().map(|&(number, _)| number),
                owner: origin,
                users: vec![origin],
                events: Vec::new(),
                written: false,
            });
        }
        match graph {
            Some(graph) => {
                self.graphs.push(CapturedGraph {
                    graph,
                    stream: (number, stream),
                    blocks: live,
                    events: Vec::new(),
                });
            }
            None => wrong.push("the capture failed".to_owned()),
        }
    }

    fn launch_graph(&mut self, worker: usize, graph: usize) {
        if self.graphs.is_empty() {
            return;
        }
        let at = graph % self.graphs.len();
        let (graph, (number, stream)) = (self.graphs[at].graph, self.graphs[at].stream);
        let origin = Where::Explicit(number);
        let mut events = self.graphs[at].events.clone();
        for at in 0..self.blocks.len() {
            if self
                .graphs
                .iter()
                .any(|other| other.graph == graph && other.blocks.contains(&self.blocks[at].id))
            {
                let others: Vec<Where> =
                    self.blocks[at].users.iter().copied().filter(|&other| other != origin).collect();
                events.extend(others.into_iter().map(|other| self.record(other)));
                events.extend(&self.blocks[at].events);
            }
        }
        let world = Arc::clone(&self.world);
        self.workers[worker].run(move || {
            events.into_iter().for_each(|event| world.wait(stream, event));
            world.launch_graph(graph, stream);
        });
        for block in &mut self.blocks {
            let used = self.graphs[at].blocks.contains(&block.id);
            if used && !block.users.contains(&origin) {
                block.users.push(origin);
            }
            block.written |= used;
        }
    }

    fn end_stream(&mut self, stream: usize) {
        if self.streams.len() < 2 {
            return;
        }
        let at = stream % self.streams.len();
        let gone = Where::Explicit(self.streams[at].0);
        if self.graphs.iter().any(|graph| graph.stream.0 == self.streams[at].0) {
            return;
        }
        // A stream lives as long as blocks are live that it was declared for.
        if self.blocks.iter().any(|block| block.owner != gone && block.users.contains(&gone)) {
            return;
        }
        self.leave(gone);
        let (_, stream) = self.streams.swap_remove(at);
        self.world.destroy_stream(stream);
    }

    /// What pools say they hold is what the program has.
    fn check_books(&mut self, wrong: &mut Vec<String>) {
        self.checks += 1;
        // Counting from scratch takes its time, so it is one pool's turn after the other's.
        let turn = self.checks % (self.pools.len() + 1);
        let live = |pool: Option<u64>, margin_bytes: usize| -> usize {
            let blocks = self.blocks.iter().filter(|block| block.pool == pool);
            blocks.map(|block| block.bytes + margin_bytes).sum()
        };
        for (at, pool) in self.pools.iter().enumerate() {
            let live = live(Some(pool.number), pool.margin_bytes);
            let said = pool.pool.stats().requested.current;
            if said != live {
                wrong.push(format!("pool {} says {said} bytes are live, and {live} are", pool.number));
            }
            if at == turn {
                let broken = recount::check(&pool.pool).err();
                wrong.extend(broken.map(|rule| format!("pool {}: {rule}", pool.number)));
            }
        }
        // Where a history is kept, what it has leads back from what is there.
        if FOLLOWS_HISTORY.load(Ordering::Relaxed) {
            wrong.extend(memory_viz::draw(&self.world.device().snapshot()).err());
        }
        let default_pool = self.world.device().default_pool();
        if turn == self.pools.len() {
            wrong.extend(recount::check(&default_pool).err());
        }
        let said = default_pool.stats().requested.current;
        let live = live(None, 0);
        if said != live {
            wrong.push(format!("the default pool says {said} bytes are live, and {live} are"));
        }
    }

    fn finish(mut self, mut wrong: Vec<String>) -> Vec<String> {
        while !self.blocks.is_empty() {
            let at = self.blocks.len();
            self.free(at % WORKERS, at % 4, at, &mut wrong);
        }
        self.check_books(&mut wrong);
        self.graphs.drain(..).for_each(|graph| self.world.destroy_graph(graph.graph));
        for pool in self.pools.drain(..) {
            if let Err(violation) = pool.pool.validate() {
                wrong.push(violation.to_string());
            }
        }
        self.workers.drain(..).for_each(Worker::end);
        wrong.extend(self.world.verdict());
        // With everything done and given back, nothing is left of any pool.
        let device = self.world.device();
        for _ in 0..100 {
            device.mark_step();
            let _ = device.empty_cache();
            if device.reserved_bytes() == 0 {
                break;
            }
            // A real driver tells of a graph's end when it comes to it.
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        if device.reserved_bytes() != 0 {
            wrong.push(format!("{} bytes stayed behind", device.reserved_bytes()));
        }
        wrong
    }
}
