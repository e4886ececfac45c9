//! What pools do for each other when memory is short, what graphs leave behind, and what guards
//! must leave alone: what once went wrong.

use mempool_pools::Policy;
use mempool_pools::device::simulated::{Access, Simulator};
use mempool_pools::device::{Allocation, Free, Stream};
use mempool_pools::diagnosis::Cause;

use crate::support::{MIB, Machine};

const OWN: Stream = Stream::PER_THREAD;

#[test]
fn a_lender_lends_after_its_figures_were_read() {
    let machine = Machine::small(32);
    let lender = machine.device.pool_builder().use_on_oom(true).build().unwrap();
    lender.with(|| machine.allocate(30 * MIB, OWN)).free(OWN);
    // Reading them joins the free block with what is not mapped behind it.
    assert_eq!(lender.stats().allocated.current, 0);
    machine.allocate(30 * MIB, OWN).free(OWN);
    machine.check();
}

#[test]
fn a_pool_whose_blocks_have_pages_of_their_own_borrows_none_that_share_theirs() {
    let machine = Machine::small(32);
    let lender = machine.device.pool_builder().use_on_oom(true).build().unwrap();
    let (_kept, lent) = lender.with(|| (machine.allocate(3 * MIB, OWN), machine.allocate(29 * MIB, OWN)));
    lent.free(OWN);
    let pool = machine.device.pool_builder().no_split(true).build().unwrap();
    if let Some(block) = pool.with(|| machine.try_allocate(3 * MIB, OWN)) {
        assert_eq!(block.addr % (2 * MIB), 0, "its pages are its own");
    }
    machine.check();
}

#[test]
fn the_cache_of_a_dropped_pool_is_had_when_memory_is_out() {
    let machine = Machine::small(64);
    let pool = machine.device.pool().unwrap();
    let (kept, large) = pool.with(|| (machine.allocate(2 * MIB, OWN), machine.allocate(40 * MIB, OWN)));
    large.free(OWN);
    drop(pool);
    machine.allocate(50 * MIB, OWN).free(OWN);
    kept.write(OWN);
    machine.check();
}

#[test]
fn a_pool_at_its_own_limit_leaves_the_caches_of_others_alone() {
    let machine = Machine::new();
    machine.allocate(100 * MIB, OWN).free(OWN);
    let lender = machine.device.pool_builder().use_on_oom(true).build().unwrap();
    lender.with(|| machine.allocate(30 * MIB, OWN)).free(OWN);
    let pool = machine.device.pool_builder().limit(4 * MIB).build().unwrap();
    assert!(pool.with(|| machine.try_allocate(20 * MIB, OWN)).is_none(), "nothing is borrowed either");
    assert_eq!(machine.device.default_pool().stats().reserved.current, 100 * MIB);
}

#[test]
fn a_threshold_holds_for_synchronous_allocations_too() {
    let machine = Machine::small(100);
    let pool = machine.device.pool_builder().garbage_collection_threshold(0.5).build().unwrap();
    let get = |bytes| match machine.platform.allocate_synchronous(bytes) {
        Allocation::Block(addr) => addr,
        other => panic!("{other:?}"),
    };
    pool.with(|| {
        let first = get(20 * MIB);
        get(20 * MIB);
        assert_eq!(machine.platform.free_synchronous(first), Free::Done);
        get(30 * MIB);
        assert!(pool.stats().reserved.current <= 50 * MIB, "{:?}", pool.stats().reserved);
    });
}

#[test]
fn a_request_that_fails_in_a_capture_costs_the_capture_no_block() {
    let cached = Policy::ALL.into_iter().filter(|&policy| policy != Policy::None);
    let whole = [(Policy::Pages, true), (Policy::Segments, true)];
    for (policy, no_split) in cached.map(|policy| (policy, false)).chain(whole) {
        let machine = Machine::small(64);
        let pool = machine.device.pool_builder().policy(policy).no_split(no_split).build().unwrap();
        let stream = machine.simulator.create_stream(false).unwrap();
        machine.begin_capture(stream);
        pool.with(|| {
            for _ in 0..4 {
                machine.allocate(20 * MIB, stream).free(stream);
                assert!(machine.try_allocate(70 * MIB, stream).is_none(), "{policy:?}");
            }
        });
        let graph = machine.end_capture(stream);
        machine.simulator.destroy_graph(graph);
        drop(pool);
        assert!(machine.device.empty_cache() < 65 * MIB);
        machine.check();
    }
}

#[test]
fn a_free_without_reuse_breaks_no_capture() {
    let machine = Machine::with(Simulator::builder().without_mapping());
    let pool = machine.device.pool_builder().policy(Policy::None).build().unwrap();
    let stream = || {
        let stream = machine.simulator.create_stream(false).unwrap();
        machine.platform.stream_begins(stream);
        stream
    };
    let (working, captured) = (stream(), stream());
    let block = pool.with(|| machine.allocate(4 * MIB, working));
    block.write(working);
    machine.begin_capture(captured);
    block.free(working);
    machine.end_capture(captured);
    machine.check();
    drop(pool);
    assert_eq!(machine.device.reserved_bytes(), 0);
}

#[test]
fn graphs_that_come_and_go_leave_nothing_behind() {
    let machine = Machine::with(Simulator::builder().capacity_bytes(4096 * MIB));
    let pool = machine.device.pool().unwrap();
    let stream = machine.simulator.create_stream(false).unwrap();
    for round in 0..1000 {
        machine.begin_capture(stream);
        pool.with(|| machine.allocate(1024, stream)).free(stream);
        let graph = machine.end_capture(stream);
        machine.simulator.launch_graph(graph, stream).unwrap();
        machine.simulator.destroy_graph(graph);
        machine.device.mark_step();
        let held = pool.stats().reserved.current;
        assert!(held <= 200 * MIB, "{held} bytes are held after {round} graphs");
    }
    machine.check();
}

#[test]
fn a_guard_fills_nothing_that_was_declared_for_others() {
    let machine = Machine::new();
    let side = machine.simulator.create_stream(false).unwrap();
    let pool = machine.device.pool_builder().guard(true).build().unwrap();
    let declared = || {
        let block = pool.with(|| machine.allocate(MIB, OWN));
        machine.simulator.poke(block.addr, MIB, 9);
        let event = machine.simulator.create_event();
        machine.simulator.record_event(event, OWN).unwrap();
        machine.simulator.wait_event(side, event).unwrap();
        block
    };
    // Work of another stream.
    let block = declared();
    assert!(machine.device.record_stream(block.addr, side, ()));
    machine.simulator.launch(side, &[Access::read(block.addr, MIB, block.id)]).unwrap();
    block.free(OWN);
    // A graph.
    let block = declared();
    machine.begin_capture(side);
    assert!(machine.device.record_stream(block.addr, side, ()));
    machine.simulator.launch(side, &[Access::read(block.addr, MIB, block.id)]).unwrap();
    let graph = machine.end_capture(side);
    block.free(OWN);
    assert_eq!(machine.simulator.peek(block.addr + 5), 9, "the graph reads it at each launch");
    machine.simulator.launch_graph(graph, side).unwrap();
    machine.check();
}

#[test]
fn guarded_requests_are_refused_and_freed_as_others_are() {
    let machine = Machine::new();
    let pool = machine.device.pool_builder().guard(true).build().unwrap();
    assert_eq!(pool.with(|| machine.platform.allocate(usize::MAX - 100, OWN)), Allocation::OutOfMemory);
    assert_eq!(pool.stats().overflow_count, 1);
    assert!(machine.device.last_oom().is_some(), "a failure leaves a report");
    let block = pool.with(|| machine.allocate(MIB, OWN));
    assert_eq!(machine.platform.free(block.addr - 512, OWN), Free::Unknown, "nobody has that address");
    block.free(OWN);
    machine.check();
}

#[test]
fn a_memory_fraction_reads_as_it_was_set() {
    let machine = Machine::new();
    machine.device.set_memory_fraction(0.1).unwrap();
    assert_eq!(machine.device.memory_fraction().to_bits(), 0.1_f64.to_bits());
}

#[test]
fn the_report_of_a_failure_says_whether_memory_is_split_or_live() {
    let machine = Machine::small(120);
    let pool = machine.device.pool_builder().name("split").policy(Policy::Torch).build().unwrap();
    // In each segment a small block and one that takes the rest of it, which goes.
    let (small, large): (Vec<_>, Vec<_>) = pool.with(|| {
        let segment = |_| {
            machine.allocate(24 * MIB, OWN).free(OWN);
            (machine.allocate(2 * MIB, OWN), machine.allocate(22 * MIB, OWN))
        };
        (0..4).map(segment).unzip()
    });
    large.into_iter().for_each(|block| block.free(OWN));
    assert!(pool.with(|| machine.try_allocate(80 * MIB, OWN)).is_none());
    let report = machine.device.last_oom().unwrap();
    assert_eq!(report.findings[0].cause, Cause::StuckBlocks, "{report}");
    assert!(report.to_string().contains("; problem: pool \"split\": "), "{report}");
    small.into_iter().for_each(|block| block.free(OWN));
    let whole = machine.device.pool_builder().name("full").build().unwrap();
    drop(pool);
    let live = whole.with(|| machine.allocate(100 * MIB, OWN));
    assert!(whole.with(|| machine.try_allocate(60 * MIB, OWN)).is_none());
    let report = machine.device.last_oom().unwrap();
    assert_eq!(report.findings[0].cause, Cause::LiveTensors, "{report}");
    assert!(report.to_string().contains("this is no fragmentation"), "{report}");
    live.free(OWN);
    machine.check();
}
