//! PyTorch's tests of its allocator and its memory pools, as behaviours of ours. The list of all
//! of them, with what became of each, is `pytorch.md` beside this file.

use std::collections::BTreeSet;
use std::thread;

use mempool_pools::device::simulated::{CaptureMode, Simulator};
use mempool_pools::device::{Allocation, Stream};

use crate::support::{MIB, Machine};

const OWN: Stream = Stream::PER_THREAD;

fn small_machine(mib: usize) -> Machine {
    Machine::with(Simulator::builder().capacity_bytes(mib * MIB))
}

#[test]
fn the_default_pool_has_id_zero_and_others_count_up() {
    let machine = Machine::new();
    assert_eq!(machine.device.default_pool().id(), 0);
    let (one, other) = (machine.device.pool().unwrap(), machine.device.pool().unwrap());
    assert!(0 < one.id() && one.id() < other.id());
}

#[test]
fn a_dropped_pool_is_gone_before_empty_cache_and_the_default_cache_is_not() {
    let machine = Machine::new();
    machine.allocate(4 * MIB, OWN).free(OWN);
    let pool = machine.device.pool().unwrap();
    pool.with(|| machine.allocate(8 * MIB, OWN)).free(OWN);
    drop(pool);
    assert_eq!(machine.device.reserved_bytes(), 4 * MIB, "the default pool keeps its cache");
    assert_eq!(machine.device.empty_cache(), 4 * MIB);
}

#[test]
fn a_pool_with_no_split_has_a_segment_for_each_block() {
    for builder in [Simulator::builder(), Simulator::builder().without_mapping()] {
        let machine = Machine::with(builder);
        let before = machine.device_free();
        let pool = machine.device.pool_builder().no_split(true).build().unwrap();
        pool.with(|| {
            // cut, the second and the third would lie in what the first leaves
            machine.allocate(20 * MIB, OWN).free(OWN);
            let blocks: Vec<_> = (0..3).map(|_| machine.allocate(4 * MIB, OWN)).collect();
            blocks.iter().for_each(|block| block.write(OWN));
            assert_eq!(pool.stats().reserved.current, 28 * MIB);
            assert_eq!(pool.stats().blocks.current, 3);
            assert_eq!(pool.stats().inactive_split_blocks.current, 0);
            // the first holds all of the 20 MiB, and they go back with it
            assert_eq!(pool.stats().allocated.current, 28 * MIB);
            blocks.into_iter().for_each(|block| block.free(OWN));
        });
        assert_eq!(pool.trim().unwrap(), 28 * MIB);
        drop(pool);
        assert_eq!(machine.device_free(), before);
        machine.check();
    }
}

#[test]
fn three_blocks_of_a_mebibyte_take_two_pages() {
    let machine = Machine::new();
    let pool = machine.device.pool().unwrap();
    let reserved = pool.with(|| {
        [1, 2, 3].map(|_| {
            let _ = machine.allocate(MIB, OWN);
            pool.stats().reserved.current
        })
    });
    assert_eq!(reserved, [2 * MIB, 2 * MIB, 4 * MIB]);
}

#[test]
fn out_of_memory_falls_to_a_pool_marked_for_it_and_to_no_other() {
    let machine = small_machine(64);
    let lender = machine.device.pool_builder().use_on_oom(true).build().unwrap();
    let keeper = machine.device.pool().unwrap();
    let lent = lender.with(|| machine.allocate(20 * MIB, OWN));
    let kept = keeper.with(|| machine.allocate(20 * MIB, OWN));
    let rest = machine.allocate(24 * MIB, OWN);
    lent.free(OWN);
    kept.free(OWN);
    let borrowed = machine.allocate(20 * MIB, OWN);
    assert_eq!(borrowed.addr, lent.addr, "the lender's block serves");
    assert_eq!(lender.stats().requested.current, 20 * MIB);
    assert!(machine.try_allocate(20 * MIB, OWN).is_none(), "the other pool's block does not");
    borrowed.write(OWN);
    borrowed.free(OWN);
    rest.free(OWN);
    machine.check();
}

#[test]
fn a_deleted_pool_lends_nothing() {
    let machine = small_machine(32);
    let lender = machine.device.pool_builder().use_on_oom(true).build().unwrap();
    let lent = lender.with(|| machine.allocate(20 * MIB, OWN));
    drop(lender);
    assert!(machine.try_allocate(20 * MIB, OWN).is_none());
    lent.free(OWN);
    machine.allocate(20 * MIB, OWN).free(OWN);
}

#[test]
fn pools_made_by_many_threads_have_ids_of_their_own() {
    let machine = Machine::new();
    let device = machine.device;
    let ids: BTreeSet<u64> = thread::scope(|scope| {
        let threads: Vec<_> = (0..16)
            .map(|_| scope.spawn(move || (0..8).map(|_| device.pool().unwrap().id()).collect::<Vec<_>>()))
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(ids.len(), 128);
}

#[test]
fn empty_cache_of_one_thread_leaves_the_pool_another_is_in() {
    let machine = Machine::new();
    let pool = machine.device.pool().unwrap();
    pool.with(|| {
        machine.allocate(6 * MIB, OWN).free(OWN);
        thread::scope(|scope| scope.spawn(|| machine.device.empty_cache()).join().unwrap());
        assert_eq!(pool.stats().reserved.current, 6 * MIB);
        machine.allocate(6 * MIB, OWN).free(OWN);
    });
    assert_eq!(pool.stats().misses, 1);
}

#[test]
fn the_innermost_scope_wins_and_the_outer_one_comes_back() {
    let machine = Machine::new();
    let (outer, inner) = (machine.device.pool().unwrap(), machine.device.pool().unwrap());
    outer.with(|| {
        let _ = machine.allocate(MIB, OWN);
        inner.with(|| machine.allocate(MIB, OWN));
        let _ = machine.allocate(MIB, OWN);
    });
    let _ = machine.allocate(MIB, OWN);
    let live = |pool: &mempool_pools::MemPool| pool.stats().blocks.current;
    assert_eq!([live(&outer), live(&inner), live(&machine.device.default_pool())], [2, 1, 1]);
}

#[test]
fn a_side_thread_gets_the_default_pool_unless_the_scope_is_handed_over() {
    let machine = Machine::new();
    let pool = machine.device.pool().unwrap();
    pool.with(|| {
        let scopes = mempool_pools::propagate();
        thread::scope(|scope| {
            scope.spawn(|| {
                machine.simulator.bind(0);
                let _ = machine.allocate(MIB, OWN);
                scopes.with(|| machine.allocate(3 * MIB, OWN));
            });
        });
    });
    assert_eq!(machine.device.default_pool().stats().requested.current, MIB);
    assert_eq!(pool.stats().requested.current, 3 * MIB);
}

#[test]
fn a_request_in_a_scope_gets_the_default_pools_cache_when_memory_is_out() {
    let machine = small_machine(32);
    machine.allocate(24 * MIB, OWN).free(OWN);
    let pool = machine.device.pool().unwrap();
    let block = pool.with(|| machine.allocate(30 * MIB, OWN));
    assert_eq!(machine.device.default_pool().stats().reserved.current, 0);
    block.free(OWN);
    machine.check();
}

#[test]
fn a_pools_own_cache_serves_a_request_of_another_size_when_memory_is_out() {
    let machine = small_machine(32);
    let pool = machine.device.pool().unwrap();
    pool.with(|| {
        let blocks: Vec<_> = (0..8).map(|_| machine.allocate(3 * MIB, OWN)).collect();
        blocks.iter().for_each(|block| block.write(OWN));
        blocks.into_iter().for_each(|block| block.free(OWN));
        let large = machine.allocate(30 * MIB, OWN);
        large.write(OWN);
        large.free(OWN);
    });
    machine.check();
}

#[test]
fn a_block_declared_for_another_stream_is_reused_after_its_work_and_not_before() {
    let machine = Machine::new();
    let side = machine.simulator.create_stream(false).unwrap();
    let pool = machine.device.pool().unwrap();
    pool.with(|| {
        let block = machine.allocate(5 * MIB, OWN);
        block.write(OWN);
        let event = machine.simulator.create_event();
        machine.simulator.record_event(event, OWN).unwrap();
        machine.simulator.wait_event(side, event).unwrap();
        assert!(machine.device.record_stream(block.addr, side, ()));
        block.write(side);
        block.free(OWN);
        let stats = pool.stats();
        assert_eq!((stats.requested.current, stats.active.current), (0, 5 * MIB), "freed, and still in use");
        let other = machine.allocate(5 * MIB, OWN);
        assert_ne!(other.addr, block.addr);
        other.write(OWN);
        machine.simulator.synchronize_stream(side).unwrap();
        other.free(OWN);
        let blocks = [machine.allocate(5 * MIB, OWN), machine.allocate(5 * MIB, OWN)];
        assert!(blocks.iter().any(|again| again.addr == block.addr), "the work is done");
    });
    machine.check();
}

#[test]
fn freed_blocks_that_wait_are_had_when_memory_is_out() {
    let machine = small_machine(32);
    let side = machine.simulator.create_stream(false).unwrap();
    let block = machine.allocate(24 * MIB, OWN);
    block.write(OWN);
    let event = machine.simulator.create_event();
    machine.simulator.record_event(event, OWN).unwrap();
    machine.simulator.wait_event(side, event).unwrap();
    assert!(machine.device.record_stream(block.addr, side, ()));
    block.write(side);
    block.free(OWN);
    let again = machine.allocate(24 * MIB, OWN);
    again.write(OWN);
    again.free(OWN);
    machine.check();
}

#[test]
fn figures_return_to_where_they_were() {
    let machine = Machine::new();
    let pool = machine.device.default_pool();
    let kept = machine.allocate(3 * MIB, OWN);
    let before = pool.stats();
    let mut blocks = Vec::new();
    for step in 1..200 {
        blocks.push(machine.allocate(step * 7919 % (2 * MIB) + 1, OWN));
        if step % 3 == 0 {
            blocks.swap_remove(step % blocks.len()).free(OWN);
        }
    }
    blocks.into_iter().for_each(|block| block.free(OWN));
    let after = pool.stats();
    assert_eq!(after.requested.current, before.requested.current);
    assert_eq!(after.allocated.current, before.allocated.current);
    assert_eq!(after.active.current, before.active.current);
    assert_eq!(after.blocks.current, 1);
    kept.free(OWN);
    machine.check();
}

#[test]
fn a_block_of_a_kibibyte_moves_the_figures_by_that() {
    let machine = Machine::new();
    let pool = machine.device.default_pool();
    let before = pool.stats();
    let block = machine.allocate(1024, OWN);
    let with = pool.stats();
    assert_eq!(with.active.current - before.active.current, 1024);
    assert_eq!(with.requested.total_allocated - before.requested.total_allocated, 1024);
    block.free(OWN);
    let after = pool.stats();
    assert_eq!(after.active.current, before.active.current);
    assert_eq!(after.requested.total_freed() - before.requested.total_freed(), 1024);
}

#[test]
fn out_of_memory_says_how_memory_stood_and_harms_nothing() {
    let machine = small_machine(64);
    let pool = machine.device.pool_builder().name("images").build().unwrap();
    let kept = pool.with(|| machine.allocate(20 * MIB, OWN));
    kept.write(OWN);
    assert!(pool.with(|| machine.try_allocate(100 * MIB, OWN)).is_none());
    let report = machine.device.last_oom().expect("a report");
    assert_eq!(report.requested_bytes, 100 * MIB);
    assert_eq!((report.pool.as_str(), report.allocated_bytes), ("images", 20 * MIB));
    assert_eq!((report.device_free_bytes, report.device_total_bytes), (44 * MIB, 64 * MIB));
    let text = report.to_string();
    for part in ["images", "104857600 bytes requested", "allocated 20971520", "limit none", "try: "] {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
    // A request that no memory could serve is told the same way.
    assert_eq!(machine.platform.allocate(usize::MAX / 4, OWN), Allocation::OutOfMemory);
    let other = machine.allocate(20 * MIB, OWN);
    other.write(OWN);
    kept.write(OWN);
    other.free(OWN);
    kept.free(OWN);
    assert_eq!(pool.stats().overflow_count, 1);
    machine.check();
}

#[test]
fn half_of_the_device_can_be_had_again_after_a_free() {
    let machine = small_machine(64);
    let first = machine.allocate(34 * MIB, OWN);
    assert!(machine.try_allocate(34 * MIB, OWN).is_none());
    first.free(OWN);
    machine.allocate(36 * MIB, OWN).free(OWN);
    machine.check();
}

#[test]
fn the_memory_fraction_bounds_what_all_pools_hold() {
    let machine = small_machine(100);
    let device = machine.device;
    for wrong in [-0.1, 1.1, f64::NAN] {
        assert!(device.set_memory_fraction(wrong).is_err(), "{wrong}");
    }
    assert_eq!(device.memory_fraction(), 1.0);
    device.set_memory_fraction(0.5).unwrap();
    assert_eq!(device.memory_fraction(), 0.5);
    let block = machine.allocate(48 * MIB, OWN);
    let pool = device.pool().unwrap();
    assert!(pool.with(|| machine.try_allocate(4 * MIB, OWN)).is_none());
    let report = device.last_oom().unwrap();
    assert_eq!(report.allowed_bytes, 50 * MIB);
    assert!(report.to_string().contains("raise the process's memory fraction"), "{report}");
    assert_eq!(device.available_bytes().unwrap(), 2 * MIB);
    block.free(OWN);
    assert_eq!(device.available_bytes().unwrap(), 50 * MIB);
    device.set_memory_fraction(1.0).unwrap();
    machine.allocate(90 * MIB, OWN).free(OWN);
}

#[test]
fn without_pools_figures_do_not_move() {
    let machine = Machine::new();
    let pool = machine.device.pool().unwrap();
    pool.with(|| {
        mempool_pools::without_pools(|| {
            assert_eq!(machine.platform.allocate(MIB, OWN), Allocation::PassThrough);
        });
    });
    assert_eq!(pool.stats().requested.total_allocated, 0);
    assert_eq!(machine.device.default_pool().stats().requested.total_allocated, 0);
}

#[test]
fn a_garbage_collection_threshold_returns_the_cache_before_more_is_taken() {
    let machine = small_machine(100);
    let pool = machine.device.pool_builder().garbage_collection_threshold(0.5).build().unwrap();
    pool.with(|| {
        machine.allocate(40 * MIB, OWN).free(OWN);
        let kept = machine.allocate(30 * MIB, OWN);
        kept.free(OWN);
        machine.allocate(48 * MIB, OWN).free(OWN);
    });
    assert!(pool.stats().reserved.peak <= 70 * MIB, "{:?}", pool.stats().reserved);
    assert!(pool.stats().reserved.current <= 50 * MIB, "{:?}", pool.stats().reserved);
    machine.check();
}

#[test]
fn memory_of_a_graph_stays_until_the_graph_is_gone() {
    let machine = Machine::new();
    let stream = machine.simulator.create_stream(false).unwrap();
    let pool = machine.device.pool().unwrap();
    for bytes in [512, MIB, MIB + 512, 10 * MIB - 512, 10 * MIB + 512] {
        assert!(machine.platform.capture_begins(stream));
        machine.simulator.begin_capture(stream, CaptureMode::ThreadLocal).unwrap();
        let output = pool.with(|| {
            let block = machine.allocate(bytes, stream);
            block.write(stream);
            block.free(stream);
            let output = machine.allocate(bytes, stream);
            assert_eq!(output.addr, block.addr, "a block freed in the capture serves the capture");
            output.write(stream);
            output
        });
        let graph = machine.simulator.end_capture(stream).unwrap();
        machine.platform.capture_ends(stream);
        machine.simulator.launch_graph(graph, stream).unwrap();
        let reserved = pool.stats().reserved.current;
        output.free(stream);
        pool.with(|| machine.allocate(bytes, stream)).free(stream);
        assert_eq!(pool.trim().unwrap(), bytes.next_multiple_of(2 * MIB), "the block from outside the graph");
        assert_eq!(pool.stats().reserved.current, reserved, "what the graph uses stays");
        machine.simulator.launch_graph(graph, stream).unwrap();
        machine.simulator.destroy_graph(graph);
        pool.trim().unwrap();
        assert_eq!(pool.stats().reserved.current, 0);
    }
    machine.check();
}

#[test]
fn a_failed_capture_leaves_stream_and_pool_usable() {
    let machine = Machine::new();
    let stream = machine.simulator.create_stream(false).unwrap();
    let pool = machine.device.pool().unwrap();
    let block = pool.with(|| {
        machine.platform.capture_begins(stream);
        machine.simulator.begin_capture(stream, CaptureMode::ThreadLocal).unwrap();
        let block = machine.allocate(MIB, stream);
        block.write(stream);
        // A synchronisation is forbidden in a capture, and ends it.
        assert!(machine.simulator.synchronize_stream(stream).is_err());
        assert_eq!(machine.platform.allocate(MIB, stream), Allocation::PassThrough);
        assert!(machine.simulator.end_capture(stream).is_err());
        machine.platform.capture_ends(stream);
        block
    });
    block.free(stream);
    let other = pool.with(|| machine.allocate(MIB, stream));
    other.write(stream);
    other.free(stream);
    drop(pool);
    assert_eq!(machine.device.reserved_bytes(), 0);
    machine.check();
}

#[test]
fn allocation_asks_nothing_that_would_break_a_capture() {
    let machine = small_machine(64);
    let stream = machine.simulator.create_stream(false).unwrap();
    let pool = machine.device.pool().unwrap();
    // Memory is short and frees wait for other streams while the capture goes on.
    let waiting = pool.with(|| machine.allocate(20 * MIB, OWN));
    waiting.write(OWN);
    machine.platform.capture_begins(stream);
    machine.simulator.begin_capture(stream, CaptureMode::Global).unwrap();
    waiting.free(stream);
    pool.with(|| {
        for _ in 0..10 {
            let block = machine.allocate(30 * MIB, stream);
            block.write(stream);
            block.free(stream);
        }
        assert!(machine.try_allocate(60 * MIB, stream).is_none());
        assert!(machine.try_allocate(60 * MIB, OWN).is_none());
    });
    pool.trim().unwrap();
    let _ = machine.device.empty_cache();
    assert!(machine.simulator.end_capture(stream).is_ok());
    machine.platform.capture_ends(stream);
    machine.check();
}
