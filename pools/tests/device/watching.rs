//! Watching pools of devices, in a process with few drivers: a process knows only so many for what concerns
//! all of its pools.

#[allow(dead_code)] // shared with the other tests of devices
mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::{Duration, Instant};

use mempool_pools::device::simulated::{SimulatedDriver, Simulator};
use mempool_pools::device::{
    Allocation, CaptureState, Context, Driver, DriverResult, Event, Physical, Platform, Stream, StreamId,
};
use mempool_pools::{Monitor, metrics};

use support::{MIB, Machine};

const OWN: Stream = Stream::PER_THREAD;

/// A gate in which a call of the driver stays while it is shut.
#[derive(Debug, Default)]
struct Gate {
    shut: Mutex<bool>,
    moves: Condvar,
}

impl Gate {
    fn set(&self, shut: bool) {
        *self.shut.lock().unwrap() = shut;
        self.moves.notify_all();
    }

    fn pass(&self, waiting: &AtomicBool) {
        let mut shut = self.shut.lock().unwrap();
        while *shut {
            waiting.store(true, Ordering::Release);
            shut = self.moves.wait(shut).unwrap();
        }
        waiting.store(false, Ordering::Release);
    }
}

/// The simulated driver, whose `create` gets stuck.
#[derive(Debug)]
struct Stuck {
    driver: SimulatedDriver,
    gate: Arc<Gate>,
    waiting: Arc<AtomicBool>,
}

impl Driver for Stuck {
    fn create(&self, ordinal: u32, bytes: usize) -> DriverResult<Physical> {
        self.gate.pass(&self.waiting);
        self.driver.create(ordinal, bytes)
    }

    fn current_context(&self) -> Option<Context> {
        self.driver.current_context()
    }
    fn set_current_context(&self, context: Option<Context>) -> DriverResult<()> {
        self.driver.set_current_context(context)
    }
    fn device_of(&self, context: Context) -> Option<u32> {
        self.driver.device_of(context)
    }
    fn retain_primary_context(&self, ordinal: u32) -> DriverResult<Context> {
        self.driver.retain_primary_context(ordinal)
    }
    fn synchronize(&self) -> DriverResult<()> {
        self.driver.synchronize()
    }
    fn stream_id(&self, stream: Stream) -> DriverResult<StreamId> {
        self.driver.stream_id(stream)
    }
    fn stream_context(&self, stream: Stream) -> DriverResult<Context> {
        self.driver.stream_context(stream)
    }
    fn capture_state(&self, stream: Stream) -> DriverResult<CaptureState> {
        self.driver.capture_state(stream)
    }
    fn when_graph_ends(&self, stream: Stream, token: Arc<AtomicBool>) -> DriverResult<()> {
        self.driver.when_graph_ends(stream, token)
    }
    fn relax_captures(&self) -> Option<u32> {
        self.driver.relax_captures()
    }
    fn restore_captures(&self, mode: u32) {
        self.driver.restore_captures(mode);
    }
    fn create_event(&self) -> DriverResult<Event> {
        self.driver.create_event()
    }
    fn create_timed_event(&self) -> DriverResult<Event> {
        self.driver.create_timed_event()
    }
    fn destroy_event(&self, event: Event) -> DriverResult<()> {
        self.driver.destroy_event(event)
    }
    fn record_event(&self, event: Event, stream: Stream) -> DriverResult<()> {
        self.driver.record_event(event, stream)
    }
    fn event_done(&self, event: Event) -> DriverResult<bool> {
        self.driver.event_done(event)
    }
    fn wait_for_event(&self, event: Event) -> DriverResult<()> {
        self.driver.wait_for_event(event)
    }
    fn elapsed(&self, start: Event, end: Event) -> DriverResult<Option<Duration>> {
        self.driver.elapsed(start, end)
    }
    fn stream_wait(&self, stream: Stream, event: Event) -> DriverResult<()> {
        self.driver.stream_wait(stream, event)
    }
    fn page_bytes(&self, ordinal: u32) -> Option<usize> {
        self.driver.page_bytes(ordinal)
    }
    fn can_access(&self, peer: u32, ordinal: u32) -> bool {
        self.driver.can_access(peer, ordinal)
    }
    fn reserve(&self, bytes: usize) -> DriverResult<usize> {
        self.driver.reserve(bytes)
    }
    fn release(&self, physical: Physical) -> DriverResult<()> {
        self.driver.release(physical)
    }
    fn map(&self, addr: usize, bytes: usize, physical: Physical) -> DriverResult<()> {
        self.driver.map(addr, bytes, physical)
    }
    fn set_access(&self, addr: usize, bytes: usize, ordinals: &[u32]) -> DriverResult<()> {
        self.driver.set_access(addr, bytes, ordinals)
    }
    fn unmap(&self, addr: usize, bytes: usize) -> DriverResult<()> {
        self.driver.unmap(addr, bytes)
    }
    fn allocate_segment(&self, bytes: usize) -> DriverResult<usize> {
        self.driver.allocate_segment(bytes)
    }
    fn free_segment(&self, addr: usize) -> DriverResult<()> {
        self.driver.free_segment(addr)
    }
    fn memory_info(&self) -> DriverResult<(usize, usize)> {
        self.driver.memory_info()
    }
    fn copy(&self, from: usize, to: usize, bytes: usize, stream: Stream) -> DriverResult<()> {
        self.driver.copy(from, to, bytes, stream)
    }
    fn fill(&self, addr: usize, bytes: usize, value: u8, stream: Stream) -> DriverResult<()> {
        self.driver.fill(addr, bytes, value, stream)
    }
    fn read(&self, addr: usize, into: &mut [u8], stream: Stream) -> DriverResult<()> {
        self.driver.read(addr, into, stream)
    }
}

/// The value of a sample that names this pool.
fn sample(text: &str, metric: &str, pool: &str, class: Option<&str>) -> f64 {
    let class = class.map_or(String::new(), |class| format!("class=\"{class}\""));
    let is_it = |line: &&str| {
        let name = line.split('{').next();
        name == Some(metric) && line.contains(&format!("pool=\"{pool}\"")) && line.contains(&class)
    };
    let line = text.lines().find(is_it).unwrap_or_else(|| panic!("{metric} of {pool} is not in\n{text}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn metrics_are_told_while_an_allocation_is_stuck_in_the_driver() {
    let simulator = Simulator::builder().build();
    let (gate, waiting) = (Arc::new(Gate::default()), Arc::new(AtomicBool::new(false)));
    let driver = Stuck { driver: simulator.driver(), gate: Arc::clone(&gate), waiting: Arc::clone(&waiting) };
    let platform = Platform::new(driver);
    simulator.bind(0);
    let device = platform.device(0).unwrap();
    let pool = device.pool_builder().name("stuck in the driver").build().unwrap();
    let Allocation::Block(first) = pool.with(|| platform.allocate(4 * MIB, OWN)) else { panic!() };
    let name = "stuck in the driver";
    let before = metrics();
    assert_eq!(sample(&before, "mempool_pool_figures_age_seconds", name, None), 0.0);
    gate.set(true);
    std::thread::scope(|threads| {
        let (simulator, pool, platform) = (&simulator, &pool, platform);
        let stuck = threads.spawn(move || {
            simulator.bind(0);
            // Another stream's arena, so that the pool has two, of which one is stuck.
            pool.with(|| platform.allocate(8 * MIB, OWN))
        });
        while !waiting.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        // A monitor must not get stuck either.
        let monitor = Monitor::start(Duration::from_millis(5)).unwrap();
        let (tell, told) = mpsc::channel();
        threads.spawn(move || tell.send(metrics()).unwrap());
        let text = told.recv_timeout(Duration::from_secs(60));
        let start = Instant::now();
        drop(monitor);
        let stopped = start.elapsed();
        gate.set(false);
        let text = text.expect("metrics wait for nobody");
        assert!(stopped < Duration::from_secs(30), "a monitor stops while a pool is stuck");
        assert!(sample(&text, "mempool_pool_figures_age_seconds", name, None) > 0.0);
        let large = sample(&text, "mempool_pool_requested_bytes", name, Some("large"));
        assert_eq!(large, 4.0 * MIB as f64, "as it was seen last");
        let Allocation::Block(second) = stuck.join().unwrap() else { panic!("it is served in the end") };
        let text = metrics();
        assert_eq!(sample(&text, "mempool_pool_figures_age_seconds", name, None), 0.0);
        assert_eq!(sample(&text, "mempool_pool_requested_bytes", name, Some("large")), 12.0 * MIB as f64);
        let _ = platform.free(second, OWN);
    });
    let _ = platform.free(first, OWN);
}

/// A pool of which much is free but split, and what keeps it so.
fn split_pool<'m>(machine: &'m Machine, name: &str) -> (mempool_pools::MemPool, Vec<support::Block<'m>>) {
    let pool = machine.device.pool_builder().name(name).build().unwrap();
    let blocks: Vec<_> = pool.with(|| (0..16).map(|_| machine.allocate(MIB / 2, OWN)).collect());
    let spare = pool.with(|| machine.allocate(12 * MIB, OWN));
    let (kept, gone): (Vec<_>, Vec<_>) = blocks.into_iter().enumerate().partition(|(at, _)| at % 4 == 0);
    gone.into_iter().for_each(|(_, block)| block.free(OWN));
    spare.free(OWN);
    machine.simulator.finish();
    let stats = pool.stats();
    assert!(stats.split_share() > 0.1 && stats.releasable_bytes >= 12 * MIB, "{stats:?}");
    (pool, kept.into_iter().map(|(_, block)| block).collect())
}

fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_monitor_gives_free_memory_of_a_pool_back_that_is_cut_up() {
    let machine = Machine::new();
    let (pool, kept) = split_pool(&machine, "given back");
    let reserved = pool.stats().reserved.current;
    let monitor = Monitor::builder().interval(Duration::from_millis(10)).trims().start().unwrap();
    wait_until("it is given back", || {
        machine.device.mark_step();
        pool.stats().reserved.current <= reserved - 12 * MIB
    });
    // Nothing more is to be had: figures do not change, and nobody tries again.
    std::thread::sleep(Duration::from_millis(100));
    let waits = || pool.stats().synchronizations;
    wait_until("it comes to rest", || {
        let before = waits();
        machine.device.mark_step();
        std::thread::sleep(Duration::from_millis(100));
        machine.device.mark_step();
        waits() == before
    });
    drop(monitor);
    kept.into_iter().for_each(|block| block.free(OWN));
    machine.check();
}
