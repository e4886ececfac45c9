//! Buffers that may move in device memory: in the order of their stream, never under anybody who knows where they are.

use mempool_pools::device::simulated::{Access, Simulator};
use mempool_pools::device::{Allocation, Stream};
use mempool_pools::{Buffer, BufferSet, CompactionOptions, PoolError};
use proptest::prelude::*;

use crate::moving_program::{self, Op};
use crate::support::{Block, MIB, Machine};

const OWN: Stream = Stream::PER_THREAD;

/// Takes a buffer and fills it with `value`.
fn fill<'m>(machine: &'m Machine, buffer: &mut Buffer, value: u8) -> Block<'m> {
    let bytes = buffer.bytes();
    let block = buffer.place_next(bytes, || machine.allocate(bytes, OWN)).unwrap();
    assert_eq!(block.addr, buffer.addr());
    block.write(OWN);
    machine.simulator.poke(block.addr, bytes, value);
    block
}

fn holds(machine: &Machine, buffer: &Buffer, value: u8) -> bool {
    [0, buffer.bytes() / 2, buffer.bytes() - 1]
        .iter()
        .all(|at| machine.simulator.peek(buffer.addr() + at) == value)
}

#[test]
fn contents_move_with_their_buffers_and_the_host_does_not_wait() {
    let machine = Machine::new();
    let pool = machine.device.pool_builder().build().unwrap();
    let mut set = BufferSet::new_on(&pool, OWN);
    set.reserve(16 * MIB).unwrap();
    let mut buffers: Vec<Buffer> = [1, 4, 2, 3].iter().map(|mib| set.add(mib * MIB).unwrap()).collect();
    for (value, buffer) in (1..).zip(&mut buffers) {
        fill(&machine, buffer, value).free(OWN);
    }
    drop(buffers.remove(0));
    let before = machine.simulator.counters();
    let done = set.defrag_if(|fragmentation| fragmentation > 0.05).unwrap().unwrap();
    assert_eq!((done.moved, done.moved_bytes), (3, 9 * MIB));
    for (value, buffer) in (2..).zip(&buffers) {
        assert!(holds(&machine, buffer, value));
    }
    let after = machine.simulator.counters();
    for call in ["synchronize", "wait_for_event", "synchronize_stream"] {
        assert_eq!(before.get(call), after.get(call), "{call}");
    }
    assert_eq!(set.fragmentation(), 0.0);
    assert!(set.defrag_if(|fragmentation| fragmentation > 0.05).unwrap().is_none());
    machine.check();
}

#[test]
fn what_another_streams_work_still_reads_stays() {
    let machine = Machine::new();
    let other = machine.simulator.create_stream(false).unwrap();
    let pool = machine.device.pool_builder().build().unwrap();
    let mut set = BufferSet::new_on(&pool, OWN);
    set.reserve(16 * MIB).unwrap();
    let (first, mut second) = (set.add(4 * MIB).unwrap(), set.add(4 * MIB).unwrap());
    let block = fill(&machine, &mut second, 7);
    let event = machine.simulator.create_event();
    machine.simulator.record_event(event, OWN).unwrap();
    machine.simulator.wait_event(other, event).unwrap();
    block.write(other);
    block.free(other);
    drop(first);
    let at = second.addr();
    while set.defrag_if(|_| true).unwrap().unwrap().moved == 0 {
        assert_eq!(second.addr(), at);
        assert_eq!(set.defrag_if(|_| true).unwrap().unwrap().held, 1);
        machine.simulator.advance(1);
    }
    assert!(holds(&machine, &second, 7));
    machine.simulator.finish();
    machine.check();
}

#[test]
fn another_streams_thread_cannot_move_buffers() {
    let machine = Machine::new();
    let pool = machine.device.pool_builder().build().unwrap();
    let mut set = BufferSet::new_on(&pool, OWN);
    let first = set.add(MIB).unwrap();
    let refused = std::thread::scope(|scope| {
        let there = scope.spawn(|| {
            machine.simulator.bind(0);
            (set.compact().unwrap_err(), set.add(MIB).unwrap_err())
        });
        there.join().unwrap()
    });
    assert!(matches!(refused.0, PoolError::NotHere { option: "compact", .. }), "{refused:?}");
    assert!(matches!(refused.1, PoolError::NotHere { option: "buffer", .. }), "{refused:?}");
    drop(first);
}

#[test]
fn a_pool_at_its_limit_moves_buffers_where_that_is_wanted() {
    for on_oom in [false, true] {
        let machine = Machine::new();
        let pool = machine.device.pool_builder().limit(32 * MIB).build().unwrap();
        let mut set = BufferSet::new_on(&pool, OWN);
        set.set_options(CompactionOptions { on_oom, ..CompactionOptions::default() }).unwrap();
        set.reserve(32 * MIB).unwrap();
        let mut buffers: Vec<Option<Buffer>> = (0..8).map(|_| set.add(4 * MIB).ok()).collect();
        assert!(buffers.iter().all(Option::is_some), "32 MiB are full");
        for (value, buffer) in (1..).zip(buffers.iter_mut().flatten()) {
            fill(&machine, buffer, value).free(OWN);
        }
        // Half of it gets free, in pieces of 4 MiB.
        (0..4).for_each(|k| buffers[2 * k] = None);
        let block = pool.with(|| machine.platform.allocate(14 * MIB, OWN));
        match block {
            Allocation::Block(addr) => {
                assert!(on_oom);
                assert_eq!(machine.platform.free(addr, OWN), mempool_pools::device::Free::Done);
            }
            _ => assert!(!on_oom, "{}", machine.device.last_oom().unwrap()),
        }
        for (value, buffer) in (1..).zip(&buffers) {
            assert!(buffer.as_ref().is_none_or(|buffer| holds(&machine, buffer, value)));
        }
        machine.check();
    }
}

#[test]
fn copies_keep_to_their_share_of_the_time() {
    let machine = Machine::new();
    let pool = machine.device.pool_builder().build().unwrap();
    let mut set = BufferSet::new_on(&pool, OWN);
    set.reserve(96 * MIB).unwrap();
    let written = |set: &mut BufferSet, bytes| {
        let mut buffer = set.add(bytes).unwrap();
        fill(&machine, &mut buffer, 1).free(OWN);
        buffer
    };
    let mut kept: Vec<Buffer> = (0..64).map(|_| written(&mut set, MIB)).collect();
    for step in 0..400 {
        // A step that takes about a millisecond, in which a buffer goes and another one comes.
        let work = machine.allocate(64 * MIB, OWN);
        (0..16).for_each(|_| work.write(OWN));
        work.free(OWN);
        drop(kept.remove((step * 31) % kept.len()));
        kept.push(written(&mut set, (1 + step % 3) * MIB / 2));
        set.compact().unwrap();
        machine.simulator.finish();
    }
    let stats = set.compaction_stats();
    assert_eq!(stats.compactions, 400);
    assert!(stats.moved > 100, "{stats:?}");
    assert!(stats.share() > 0.0 && stats.share() <= 0.05, "{}", stats.share());
    machine.check();
    let events = machine.simulator.event_count();
    assert!(events < 200, "{events} events");
    drop((kept, set));
    assert!(machine.simulator.event_count() < events, "the set's events end with it");
}

#[test]
fn a_graph_that_is_gone_may_still_run() {
    let machine = Machine::new();
    let other = machine.simulator.create_stream(false).unwrap();
    let pool = machine.device.pool_builder().build().unwrap();
    let mut set = BufferSet::new_on(&pool, OWN);
    set.reserve(16 * MIB).unwrap();
    let (first, mut second) = (set.add(4 * MIB).unwrap(), set.add(4 * MIB).unwrap());
    let block = fill(&machine, &mut second, 3);
    machine.begin_capture(OWN);
    machine.simulator.launch(OWN, &[Access::read(block.addr, block.bytes, block.id)]).unwrap();
    let graph = machine.end_capture(OWN);
    block.free(OWN);
    drop(first);
    let event = machine.simulator.create_event();
    machine.simulator.record_event(event, OWN).unwrap();
    machine.simulator.wait_event(other, event).unwrap();
    machine.simulator.launch_graph(graph, other).unwrap();
    assert_eq!(set.defrag_if(|_| true).unwrap().unwrap().recorded, 1, "the graph lives");
    machine.simulator.destroy_graph(graph);
    assert_eq!(set.defrag_if(|_| true).unwrap().unwrap().recorded, 1, "its launch may run");
    // A trim waits for the device.
    pool.trim().unwrap();
    assert_eq!(set.defrag_if(|_| true).unwrap().unwrap().moved, 1);
    assert!(holds(&machine, &second, 3));
    let mut third = set.add(4 * MIB).unwrap();
    fill(&machine, &mut third, 4).free(OWN);
    machine.check();
}

#[test]
fn a_copy_that_the_driver_refuses_is_an_error_and_what_was_held_counts_as_lost() {
    let machine = Machine::new();
    let pool = machine.device.pool_builder().build().unwrap();
    let mut set = BufferSet::new_on(&pool, OWN);
    set.reserve(16 * MIB).unwrap();
    let (first, mut second) = (set.add(MIB).unwrap(), set.add(4 * MIB).unwrap());
    fill(&machine, &mut second, 3).free(OWN);
    drop(first);
    for (number, lost) in [(1, false), (3, true)] {
        machine.simulator.fail("copy", number, 2);
        let refused = set.defrag_if(|_| true).unwrap_err();
        assert!(matches!(refused, PoolError::Driver { .. }), "{refused}");
        assert_eq!(second.has_lost_contents(), lost);
    }
    fill(&machine, &mut second, 4).free(OWN);
    assert!(!second.has_lost_contents());
    assert_eq!(set.defrag_if(|_| true).unwrap().unwrap().moved, 1);
    assert!(holds(&machine, &second, 4));
    machine.check();
}

#[test]
fn sets_that_found_no_memory_leave_nothing_behind() {
    let machine = Machine::small(32);
    let pool = machine.device.pool_builder().build().unwrap();
    for _ in 0..50 {
        assert!(BufferSet::new_on(&pool, OWN).add(128 * MIB).is_err());
    }
    drop(pool);
    let _ = machine.device.empty_cache();
    assert_eq!(machine.device.reserved_bytes(), 0);
}

#[test]
fn options_that_cannot_work_are_refused() {
    let machine = Machine::new();
    let mut set = BufferSet::new_on(&machine.device.default_pool(), OWN);
    let with = |every, old_every, budget_share| CompactionOptions {
        every,
        old_every,
        budget_share,
        ..CompactionOptions::default()
    };
    assert!(matches!(set.set_options(with(0, 1, 0.1)), Err(PoolError::Option { option: "every", .. })));
    assert!(matches!(set.set_options(with(1, 0, 0.1)), Err(PoolError::Option { option: "old_every", .. })));
    for share in [-0.1, 1.1, f64::NAN] {
        let set = set.set_options(with(1, 1, share));
        assert!(matches!(set, Err(PoolError::Share { option: "budget_share", .. })), "{set:?}");
    }
    assert_eq!(set.options(), CompactionOptions::default());
    let guarded = machine.device.pool_builder().guard(true).build().unwrap();
    let refused = BufferSet::new_on(&guarded, OWN).add(MIB).unwrap_err();
    assert!(matches!(refused, PoolError::NotHere { option: "buffer", .. }), "{refused:?}");
}

#[test]
fn a_device_without_memory_says_so_and_nothing_is_lost() {
    let machine = Machine::with(Simulator::builder().capacity_bytes(32 * MIB));
    let pool = machine.device.pool_builder().build().unwrap();
    let mut set = BufferSet::new_on(&pool, OWN);
    let mut first = set.add(20 * MIB).unwrap();
    let held = fill(&machine, &mut first, 9);
    assert!(matches!(set.add(20 * MIB), Err(PoolError::NoMemory { bytes, .. }) if bytes == 20 * MIB));
    assert!(matches!(set.add(usize::MAX), Err(PoolError::Arena(_) | PoolError::NoMemory { .. })));
    assert!(holds(&machine, &first, 9));
    let small = set.add(4 * MIB).unwrap();
    held.free(OWN);
    drop((first, small, set, pool));
    machine.check();
    let _ = machine.device.empty_cache();
    assert_eq!(machine.device.reserved_bytes(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]
    #[test]
    fn whoever_knows_a_buffer_finds_it(seed in any::<u64>(), ops in prop::collection::vec(any::<Op>(), 1..160)) {
        let wrong = moving_program::run(seed, &ops);
        prop_assert!(wrong.is_empty(), "{}", wrong[0]);
    }
}
