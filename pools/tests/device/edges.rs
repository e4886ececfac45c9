//! Captures of several threads, uses by streams in capture and by other devices, streams that end
//! while locks are held, calls that fail half-way: what once went wrong.

use std::sync::mpsc;
use std::time::Duration;

use mempool_pools::Policy;
use mempool_pools::device::simulated::{Access, CaptureMode, Simulator};
use mempool_pools::device::{Allocation, Free, Stream};

use crate::support::{MIB, Machine};

const OWN: Stream = Stream::PER_THREAD;

#[test]
fn two_threads_capture_their_own_streams() {
    let machine = Machine::new();
    let m = &machine;
    m.allocate(MIB, OWN).free(OWN);
    let (ready, begun) = mpsc::channel();
    let (go, goes) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            m.simulator.bind(0);
            m.allocate(MIB, OWN).free(OWN);
            // second to begin, last to end
            ready.send(()).unwrap();
            goes.recv().unwrap();
            m.platform.capture_begins(OWN);
            m.simulator.begin_capture(OWN, CaptureMode::ThreadLocal).unwrap();
            ready.send(()).unwrap();
            goes.recv().unwrap();
            // allocate and free in capture, then after the capture the memory is served again
            let block = m.allocate(MIB, OWN);
            block.write(OWN);
            block.free(OWN);
            let _ = m.device.empty_cache();
            let graph = m.simulator.end_capture(OWN);
            m.platform.capture_ends(OWN);
            let graph = graph.expect("nothing ended the capture");
            let next = m.allocate(MIB, OWN);
            m.simulator.launch_graph(graph, OWN).unwrap();
            next.free(OWN);
            ready.send(()).unwrap();
        });
        begun.recv().unwrap();
        m.platform.capture_begins(OWN);
        m.simulator.begin_capture(OWN, CaptureMode::ThreadLocal).unwrap();
        go.send(()).unwrap();
        begun.recv().unwrap();
        m.simulator.end_capture(OWN).unwrap();
        m.platform.capture_ends(OWN);
        go.send(()).unwrap();
        begun.recv().expect("the other thread's capture");
    });
    machine.check();
}

#[test]
fn a_capture_of_a_threads_own_stream_is_counted_by_its_thread() {
    let machine = Machine::new();
    let m = &machine;
    let (ready, begun) = mpsc::channel();
    let (go, goes) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            m.simulator.bind(0);
            m.allocate(MIB, OWN).free(OWN);
            ready.send(()).unwrap();
            goes.recv().unwrap();
            m.platform.capture_begins(OWN);
            m.simulator.begin_capture(OWN, CaptureMode::ThreadLocal).unwrap();
            ready.send(()).unwrap();
            goes.recv().unwrap();
            let block = m.allocate(MIB, OWN);
            block.write(OWN);
            block.free(OWN);
            let graph = m.simulator.end_capture(OWN).unwrap();
            m.platform.capture_ends(OWN);
            let next = m.allocate(MIB, OWN);
            m.simulator.launch_graph(graph, OWN).unwrap();
            next.free(OWN);
        });
        begun.recv().unwrap();
        m.platform.capture_begins(OWN);
        m.simulator.begin_capture(OWN, CaptureMode::ThreadLocal).unwrap();
        go.send(()).unwrap();
        begun.recv().unwrap();
        m.simulator.end_capture(OWN).unwrap();
        m.platform.capture_ends(OWN);
        go.send(()).unwrap();
    });
    machine.check();
}

#[test]
fn captures_of_one_thread_two_devices() {
    let machine = Machine::with(Simulator::builder().devices(2));
    let m = &machine;
    let second = m.platform.device(1).unwrap();
    let _ = second;
    m.platform.capture_begins(OWN);
    m.simulator.begin_capture(OWN, CaptureMode::ThreadLocal).unwrap();
    m.simulator.bind(1);
    m.platform.capture_begins(OWN);
    m.simulator.begin_capture(OWN, CaptureMode::ThreadLocal).unwrap();
    m.simulator.end_capture(OWN).unwrap();
    m.platform.capture_ends(OWN);
    m.simulator.bind(0);
    assert!(m.platform.is_capturing());
}

#[test]
fn memory_of_a_non_blocking_stream_without_an_event_waits_for_an_idle_device() {
    let machine = Machine::new();
    let m = &machine;
    let s = m.simulator.create_stream(false).unwrap();
    m.platform.stream_begins(s);
    let block = m.allocate(MIB, s);
    block.write(s);
    block.free(s);
    m.simulator.fail("create_event", 1, 2);
    m.platform.stream_ends(s);
    m.simulator.destroy_stream(s).unwrap();
    let t = m.simulator.create_stream(false).unwrap();
    m.platform.stream_begins(t);
    let next = m.allocate(MIB, t);
    next.write(t);
    next.free(t);
    machine.check();
}

#[test]
fn a_stream_in_capture_can_be_declared() {
    let machine = Machine::new();
    let m = &machine;
    let _block = m.allocate(MIB, OWN);
    let s = m.simulator.create_stream(false).unwrap();
    m.platform.stream_begins(s);
    m.platform.capture_begins(s);
    m.simulator.begin_capture(s, CaptureMode::ThreadLocal).unwrap();
    let ended = m.simulator.end_capture(s);
    m.platform.capture_ends(s);
    ended.expect("the capture is whole");
}

#[test]
fn a_block_that_a_stream_in_capture_uses_is_freed_behind_the_graph() {
    let machine = Machine::with(Simulator::builder().capacity_bytes(8 * MIB));
    let m = &machine;
    let (s, t) = (m.simulator.create_stream(false).unwrap(), m.simulator.create_stream(false).unwrap());
    m.platform.stream_begins(s);
    m.platform.stream_begins(t);
    let block = m.allocate(6 * MIB, s);
    assert!(m.device.record_stream(block.addr, t, ()));
    m.platform.capture_begins(t);
    m.simulator.begin_capture(t, CaptureMode::ThreadLocal).unwrap();
    block.free(s);
    // Short of memory: the freed block is wanted again.
    let _ = m.try_allocate(6 * MIB, s);
    // A plain call on s must still run when queued, and not be recorded.
    use mempool_pools::device::{CaptureState, Driver};
    let state = m.simulator.driver().capture_state(s);
    let ended = m.simulator.end_capture(t);
    m.platform.capture_ends(t);
    assert_eq!(state, Ok(CaptureState::None));
    ended.unwrap();
}

struct EndsStream {
    platform: mempool_pools::device::Platform,
    simulator: Simulator,
    stream: Stream,
}
impl Drop for EndsStream {
    fn drop(&mut self) {
        // what cuStreamDestroy's hook does
        self.platform.stream_ends(self.stream);
        self.simulator.destroy_stream(self.stream).unwrap();
    }
}

fn within(seconds: u64, f: impl FnOnce() + Send + 'static) {
    let (done, is_done) = mpsc::channel();
    std::thread::spawn(move || {
        f();
        done.send(()).unwrap();
    });
    is_done.recv_timeout(Duration::from_secs(seconds)).expect("no deadlock");
}

#[test]
fn a_synchronous_free_may_end_a_stream() {
    within(5, || {
        let m = Machine::new();
        let block = m.allocate(MIB, OWN);
        let t = m.simulator.create_stream(false).unwrap();
        m.platform.stream_begins(t);
        let keep = EndsStream { platform: m.platform, simulator: m.simulator.clone(), stream: t };
        assert!(m.device.record_stream(block.addr, t, keep));
        m.simulator.note_free(block.addr);
        assert_eq!(m.platform.free_synchronous(block.addr), Free::Done);
    });
}

#[test]
fn a_free_in_capture_ends_a_stream_later() {
    within(5, || {
        let m = Machine::new();
        let block = m.allocate(MIB, OWN);
        let t = m.simulator.create_stream(false).unwrap();
        m.platform.stream_begins(t);
        let keep = EndsStream { platform: m.platform, simulator: m.simulator.clone(), stream: t };
        assert!(m.device.record_stream(block.addr, t, keep));
        m.platform.capture_begins(OWN);
        m.simulator.begin_capture(OWN, CaptureMode::ThreadLocal).unwrap();
        block.free(OWN);
        let graph = m.simulator.end_capture(OWN).unwrap();
        m.platform.capture_ends(OWN);
        m.simulator.destroy_graph(graph);
        let _ = m.device.empty_cache();
    });
}

#[test]
fn a_handle_is_another_streams_after_an_end_too() {
    let machine = Machine::new();
    let m = &machine;
    let a = m.simulator.create_stream(false).unwrap();
    m.platform.stream_begins(a);
    m.allocate(MIB, a).free(a); // remembered as known
    m.allocate(MIB, a).free(a);
    m.platform.stream_ends(a);
    m.simulator.destroy_stream(a).unwrap();
    // Made where nobody sees it, with the same handle.
    let b = m.simulator.create_stream(false).unwrap();
    assert_eq!(a, b);
    let block = m.allocate(MIB, b);
    block.write(b);
    block.free(b);
    m.platform.stream_ends(b);
    m.simulator.destroy_stream(b).unwrap();
    let c = m.simulator.create_stream(false).unwrap();
    assert_eq!(b, c);
    let block = m.allocate(MIB, c);
    block.write(c);
    block.free(c);
    machine.check();
}

#[test]
fn sizes_that_no_memory_has_are_refused() {
    for mapping in [true, false] {
        let builder = Simulator::builder();
        let m = Machine::with(if mapping { builder } else { builder.without_mapping() });
        let works = |policy: &Policy| mapping || !policy.needs_mapping();
        let of = |policy| m.device.pool_builder().policy(policy).build().unwrap();
        let mut pools: Vec<_> = Policy::ALL.into_iter().filter(works).map(of).collect();
        pools.push(m.device.default_pool());
        pools.push(m.device.pool_builder().garbage_collection_threshold(0.5).build().unwrap());
        m.device.set_headroom(0.1).unwrap();
        for pool in pools {
            for size in [
                usize::MAX,
                usize::MAX - 1,
                usize::MAX - 511,
                usize::MAX - (2 << 20),
                usize::MAX / 2,
                usize::MAX / 2 + 1,
                1 << 63,
                (1 << 63) + 1,
                1 << 47,
                1 << 44,
                (1 << 44) + 1,
                1 << 45,
                1 << 40,
            ] {
                assert_eq!(pool.with(|| m.platform.allocate(size, OWN)), Allocation::OutOfMemory, "{size}");
                assert_eq!(pool.with(|| m.platform.allocate_synchronous(size)), Allocation::OutOfMemory);
                let _ = std::panic::catch_unwind(|| ());
            }
            let block = pool.with(|| m.allocate(MIB, OWN));
            block.free(OWN);
        }
        m.check();
    }
}

#[test]
fn advice_bears_any_size() {
    let m = Machine::new();
    let pool = m.device.pool_builder().limit(64 * MIB).build().unwrap();
    let block = pool.with(|| m.allocate(MIB, OWN));
    assert_eq!(pool.with(|| m.platform.allocate(usize::MAX, OWN)), Allocation::OutOfMemory);
    block.free(OWN);
}

#[test]
fn a_second_free_by_another_stream_leaks_no_event() {
    let m = Machine::new();
    let s = m.simulator.create_stream(false).unwrap();
    let block = m.allocate(MIB, OWN);
    block.free(s);
    let before = m.simulator.event_count();
    for _ in 0..10 {
        assert_eq!(m.platform.free(block.addr, s), Free::Unknown);
    }
    assert_eq!(m.simulator.event_count(), before);
}

#[test]
fn own_streams_of_two_threads_in_one_capture_share_no_block() {
    let machine = Machine::new();
    let m = &machine;
    m.platform.capture_begins(OWN);
    m.simulator.begin_capture(OWN, CaptureMode::ThreadLocal).unwrap();
    let fork = m.simulator.create_event();
    m.simulator.record_event(fork, OWN).unwrap();
    let join = m.simulator.create_event();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            m.simulator.bind(0);
            m.simulator.wait_event(OWN, fork).unwrap();
            let block = m.allocate(MIB, OWN);
            block.write(OWN);
            block.free(OWN);
            m.simulator.record_event(join, OWN).unwrap();
        });
    });
    let block = m.allocate(MIB, OWN);
    block.write(OWN);
    block.free(OWN);
    m.simulator.wait_event(OWN, join).unwrap();
    m.simulator.end_capture(OWN).unwrap();
    m.platform.capture_ends(OWN);
    machine.check();
}

#[test]
fn pages_that_a_failed_call_left_behind_never_serve() {
    let machine = Machine::new();
    let m = &machine;
    m.simulator.fail("create", 2, 2);
    m.simulator.fail("unmap", 1, 999);
    m.simulator.fail("unmap", 2, 999);
    m.simulator.fail("unmap", 3, 999);
    let first = m.try_allocate(4 * MIB, OWN);
    let block = match first {
        Some(block) => block,
        None => m.allocate(4 * MIB, OWN),
    };
    block.write(OWN);
    machine.check();
}

#[test]
fn only_live_blocks_can_be_declared() {
    let m = Machine::new();
    let block = m.allocate(MIB, OWN);
    let keep = m.allocate(MIB, OWN);
    assert!(!m.device.record_stream(keep.addr + 512, OWN, ()), "an address inside a block");
    block.free(OWN);
    assert!(!m.device.record_stream(block.addr, OWN, ()), "a freed block");
}

#[test]
fn a_use_by_another_device_is_waited_for_there() {
    let machine = Machine::with(Simulator::builder().devices(2));
    let m = &machine;
    m.platform.device(1).unwrap();
    m.simulator.bind(1);
    let far = m.simulator.create_stream(false).unwrap();
    m.simulator.bind(0);
    let block = m.allocate(4 * MIB, OWN);
    block.write(far);
    assert!(m.device.record_stream(block.addr, far, ()));
    // A real driver refuses to record an event of one context in a stream of another.
    m.simulator.fail("record_event", 1, 400);
    block.free(OWN);
    let _ = m.device.empty_cache();
    let next = m.allocate(4 * MIB, OWN);
    next.write(OWN);
    machine.check();
}

#[test]
fn what_a_graph_holds_is_not_available() {
    let m = Machine::new();
    let (total, _) = m.simulator.memory_info(0);
    m.platform.capture_begins(OWN);
    m.simulator.begin_capture(OWN, CaptureMode::ThreadLocal).unwrap();
    let block = m.allocate(64 * MIB, OWN);
    block.write(OWN);
    block.free(OWN);
    let graph = m.simulator.end_capture(OWN).unwrap();
    m.platform.capture_ends(OWN);
    let said = m.device.available_bytes().unwrap();
    let _ = m.device.empty_cache();
    assert_eq!(m.device_free(), total - 64 * MIB);
    let _ = graph;
    assert_eq!(said, total - 64 * MIB);
}

#[test]
fn a_pool_that_waits_for_a_graph_makes_no_step_wait() {
    let m = Machine::new();
    let pool = m.device.pool().unwrap();
    let block = pool.with(|| m.allocate(MIB, OWN));
    m.platform.capture_begins(OWN);
    m.simulator.begin_capture(OWN, CaptureMode::ThreadLocal).unwrap();
    m.simulator.launch(OWN, &[Access::write(block.addr, MIB, block.id)]).unwrap();
    block.free(OWN);
    let _graph = m.simulator.end_capture(OWN).unwrap();
    m.platform.capture_ends(OWN);
    drop(pool);
    let count = || m.simulator.counters().get("synchronize").copied().unwrap_or(0);
    let before = count();
    for _ in 0..10 {
        m.device.mark_step();
    }
    assert_eq!(count(), before, "steps do not wait for the device");
}

#[test]
fn a_use_by_a_graph_ends_with_the_graph() {
    let m = Machine::new();
    let (s, t) = (m.simulator.create_stream(false).unwrap(), m.simulator.create_stream(false).unwrap());
    m.platform.stream_begins(s);
    m.platform.stream_begins(t);
    let block = m.allocate(6 * MIB, s);
    assert!(m.device.record_stream(block.addr, t, ()));
    m.platform.capture_begins(t);
    m.simulator.begin_capture(t, CaptureMode::ThreadLocal).unwrap();
    m.simulator.launch(t, &[Access::write(block.addr, block.bytes, block.id)]).unwrap();
    block.free(s);
    let graph = m.simulator.end_capture(t).unwrap();
    m.platform.capture_ends(t);
    m.simulator.destroy_graph(graph);
    m.simulator.finish();
    let _ = m.device.empty_cache();
    assert_eq!(m.device.reserved_bytes(), 0, "the block is free for good");
}

#[test]
fn adopted_arena_and_the_last_handle_of_its_stream() {
    within(5, || {
        let m = Machine::new();
        let (a, t) = (m.simulator.create_stream(false).unwrap(), m.simulator.create_stream(false).unwrap());
        m.platform.stream_begins(a);
        m.platform.stream_begins(t);
        let block = m.allocate(MIB, a);
        let keep = EndsStream { platform: m.platform, simulator: m.simulator.clone(), stream: t };
        assert!(m.device.record_stream(block.addr, t, keep));
        m.platform.stream_ends(a);
        m.simulator.destroy_stream(a).unwrap();
        m.allocate(MIB, t).free(t); // t takes over the arena of a
        m.simulator.note_free(block.addr);
        assert_eq!(m.platform.free_synchronous(block.addr), Free::Done);
    });
}

struct EndsStreamLate(#[allow(dead_code)] EndsStream, mpsc::Sender<()>);
impl Drop for EndsStreamLate {
    fn drop(&mut self) {
        self.1.send(()).unwrap();
        std::thread::sleep(Duration::from_millis(300));
    }
}

#[test]
fn lock_order() {
    within(5, || {
        let m = Machine::new();
        let block = m.allocate(MIB, OWN);
        let t = m.simulator.create_stream(false).unwrap();
        m.platform.stream_begins(t);
        let (dropping, drops) = mpsc::channel();
        let keep = EndsStream { platform: m.platform, simulator: m.simulator.clone(), stream: t };
        assert!(m.device.record_stream(block.addr, t, EndsStreamLate(keep, dropping)));
        let device = m.device;
        let reader = std::thread::spawn(move || {
            drops.recv().unwrap();
            let _ = device.default_pool().stats();
        });
        m.simulator.note_free(block.addr);
        assert_eq!(m.platform.free_synchronous(block.addr), Free::Done);
        reader.join().unwrap();
    });
}

#[test]
fn the_same_in_a_drain() {
    within(5, || {
        let m = Machine::new();
        let block = m.allocate(MIB, OWN);
        let t = m.simulator.create_stream(false).unwrap();
        m.platform.stream_begins(t);
        let (dropping, drops) = mpsc::channel();
        let keep = EndsStream { platform: m.platform, simulator: m.simulator.clone(), stream: t };
        assert!(m.device.record_stream(block.addr, t, EndsStreamLate(keep, dropping)));
        m.platform.capture_begins(OWN);
        m.simulator.begin_capture(OWN, CaptureMode::ThreadLocal).unwrap();
        block.free(OWN);
        let graph = m.simulator.end_capture(OWN).unwrap();
        m.platform.capture_ends(OWN);
        m.simulator.destroy_graph(graph);
        let device = m.device;
        let reader = std::thread::spawn(move || {
            drops.recv().unwrap();
            let _ = device.default_pool().stats();
        });
        let _ = m.device.empty_cache();
        reader.join().unwrap();
    });
}
