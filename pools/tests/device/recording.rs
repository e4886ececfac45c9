//! Recordings of what device pools do.

use std::collections::HashMap;
use std::sync::Arc;

use mempool_pools::MemPool;
use mempool_pools::arena::trace::Event as Row;
use mempool_pools::device::simulated::Simulator;
use mempool_pools::device::{Allocation, Free, Stream};
use proptest::prelude::*;

use crate::expected::{Expected, Logged};
use crate::program::{ops, run};
use crate::recorded::{Trace, replayed_peak};
use crate::support::{Block, MIB, Machine};
use crate::world::World;

const OWN: Stream = Stream::PER_THREAD;

#[derive(Debug, Clone)]
enum Op {
    /// `None` is synchronous.
    Allocate {
        pool: usize,
        bytes: usize,
        stream: Option<usize>,
    },
    Free {
        block: prop::sample::Index,
        stream: Option<usize>,
    },
    Step,
    WorkEnds,
}

fn op() -> impl Strategy<Value = Op> {
    let stream = || prop_oneof![9 => (0..3_usize).prop_map(Some), 1 => Just(None)];
    let bytes = prop_oneof![prop::sample::select(vec![700_usize, MIB, 3 * MIB]), 1..5_000_000_usize];
    prop_oneof![
        6 => (0..2_usize, bytes, stream()).prop_map(|(pool, bytes, stream)| Op::Allocate { pool, bytes, stream }),
        5 => (any::<prop::sample::Index>(), stream()).prop_map(|(block, stream)| Op::Free { block, stream }),
        1 => Just(Op::Step),
        1 => Just(Op::WorkEnds),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    #[test]
    fn a_recording_is_what_was_done(ops in prop::collection::vec(op(), 1..120)) {
        let machine = Machine::new();
        let named = machine.device.pool().unwrap();
        let pools = [machine.device.default_pool(), named.clone()];
        let streams = [OWN, machine.simulator.create_stream(false).unwrap(), machine.simulator.create_stream(true).unwrap()];
        let traces = [Trace::plain(), Trace::gzipped()];
        let recordings =
            [machine.device.record_trace(traces[0].path()).unwrap(), named.record_trace(traces[1].path()).unwrap()];
        // Of all pools, and of the second.
        let mut expected = [Expected::default(), Expected::default()];
        let mut live = Vec::new();
        let mut steps = 0;
        for op in ops {
            match op {
                Op::Allocate { pool, bytes, stream } => {
                    let stream = stream.map(|at| streams[at]);
                    let addr = pools[pool].with(|| match stream {
                        Some(stream) => {
                            let block = machine.allocate(bytes, stream);
                            block.write(stream);
                            block.addr
                        }
                        None => synchronous(&machine, bytes),
                    });
                    expected[..=pool].iter_mut().for_each(|trace| trace.allocate(addr, bytes, stream));
                    live.push((addr, pool, stream));
                }
                Op::Free { block, stream } if !live.is_empty() => {
                    let (addr, pool, owner) = live.swap_remove(block.index(live.len()));
                    let stream = stream.map(|at| streams[at]);
                    if owner.is_some() {
                        machine.simulator.note_free(addr);
                    }
                    let freed = match stream {
                        Some(stream) => machine.platform.free(addr, stream),
                        None => machine.platform.free_synchronous(addr),
                    };
                    prop_assert_eq!(freed, Free::Done);
                    let waits = stream.is_some() && stream != owner;
                    expected[..=pool].iter_mut().for_each(|trace| trace.free(addr, waits));
                }
                Op::Free { .. } => {}
                Op::Step => {
                    steps += 1;
                    machine.device.mark_step();
                    expected.iter_mut().for_each(|trace| trace.rows.push(Row::StepEnd { step: steps }));
                }
                Op::WorkEnds => machine.simulator.finish(),
            }
        }
        // Now nothing waits any more.
        for pool in &pools {
            pool.trim().unwrap();
        }
        for ((recording, trace), expected) in recordings.into_iter().zip(&traces).zip(&expected) {
            let summary = recording.finish().unwrap();
            let rows = trace.events();
            expected.check(&rows);
            prop_assert_eq!(rows.len(), expected.rows.len() + expected.waited.len());
            prop_assert_eq!((summary.events, summary.steps), (rows.len() as u64, steps));
            prop_assert_eq!(summary.allocations, expected.addrs.len() as u64);
            replayed_peak(&rows);
        }
        machine.check();
    }

    #[test]
    fn the_peak_of_a_stream_is_that_of_its_pools_figures(
        before in prop::collection::vec((1..4_000_000_usize, any::<bool>()), 0..30),
        recorded in prop::collection::vec((1..4_000_000_usize, any::<bool>()), 0..60),
    ) {
        let machine = Machine::new();
        let (pool, trace) = (machine.device.pool().unwrap(), Trace::plain());
        let mut live: Vec<Block> = Vec::new();
        before.into_iter().for_each(|op| step(&machine, &pool, &mut live, op));
        pool.reset_peak_stats();
        let recording = pool.record_trace(trace.path()).unwrap();
        recorded.into_iter().for_each(|op| step(&machine, &pool, &mut live, op));
        recording.finish().unwrap();
        prop_assert_eq!(replayed_peak(&trace.events()), pool.stats().requested.peak);
    }

    /// Captures, threads and streams that end, pools that end, memory that is short.
    #[test]
    fn whatever_a_program_does_can_be_replayed(seed in any::<u64>(), ops in ops(true)) {
        let trace = Trace::plain();
        let world = Arc::new(Logged::new(seed));
        world.bind();
        let recording = world.device().record_trace(trace.path()).unwrap();
        let log = Arc::clone(&world);
        prop_assert_eq!(run(world, &ops), Vec::<String>::new());
        recording.finish().unwrap();
        let rows = trace.events();
        replayed_peak(&rows);
        let anonymous = |row| match row {
            Row::Allocate { id, size_bytes, .. } => Some(Row::Allocate { id, size_bytes, stream: 0 }),
            Row::Free { .. } => Some(row),
            Row::FreeCompleted { .. } | Row::StepEnd { .. } => None,
        };
        let done: Vec<Row> = rows.into_iter().filter_map(anonymous).collect();
        let expected = &log.expected().rows;
        prop_assert_eq!(done.len(), expected.len());
        for (row, expected) in done.iter().zip(expected) {
            let with_margins = match *expected {
                // A guarded pool asks for its margins, too.
                Row::Allocate { id, size_bytes, stream } => {
                    Row::Allocate { id, size_bytes: size_bytes + 2 * 512, stream }
                }
                other => other,
            };
            prop_assert!(row == expected || *row == with_margins, "{row:?} is not {expected:?}");
        }
    }
}

#[test]
fn two_recordings_do_not_share_a_file() {
    let machine = Machine::new();
    let trace = Trace::plain();
    let pool = machine.device.pool().unwrap();
    let first = pool.record_trace(trace.path()).unwrap();
    pool.with(|| machine.allocate(MIB, OWN)).free(OWN);
    let refused = machine.device.record_trace(trace.path()).unwrap_err().to_string();
    assert!(refused.contains("another recording"), "{refused}");
    first.finish().unwrap();
    assert_eq!(trace.events().len(), 3, "the first is whole");
    machine.device.record_trace(trace.path()).unwrap().finish().unwrap();
    assert_eq!(trace.events().len(), 0, "the next begins anew");
}

/// Allocates or frees.
fn step<'m>(machine: &'m Machine, pool: &MemPool, live: &mut Vec<Block<'m>>, (bytes, frees): (usize, bool)) {
    if live.is_empty() || !frees {
        live.push(pool.with(|| machine.allocate(bytes, OWN)));
    } else {
        live.swap_remove(bytes % live.len()).free(OWN);
    }
}

fn synchronous(machine: &Machine, bytes: usize) -> usize {
    match machine.platform.allocate_synchronous(bytes) {
        Allocation::Block(addr) => addr,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_block_that_another_stream_frees_completes_when_its_work_is_done() {
    let machine = Machine::small(64);
    let side = machine.simulator.create_stream(false).unwrap();
    let trace = Trace::plain();
    let waiting = machine.allocate(2 * MIB, OWN);
    let kept = machine.allocate(3 * MIB, OWN);
    waiting.write(side);
    waiting.free(side);
    // Freed before, and in use by queued work: it is nobody's.
    let recording = machine.device.record_trace(trace.path()).unwrap();
    kept.write(side);
    kept.free(side);
    let other = machine.allocate(MIB, side);
    // Memory is short: the stream waits for what other work uses.
    let large = machine.allocate(60 * MIB, OWN);
    other.free(side);
    large.free(OWN);
    recording.finish().unwrap();
    assert_eq!(
        trace.events(),
        [
            Row::Allocate { id: 0, size_bytes: 3 * MIB, stream: 0 },
            Row::Free { id: 0 },
            Row::Allocate { id: 1, size_bytes: MIB, stream: 1 },
            Row::FreeCompleted { id: 0 },
            Row::Allocate { id: 2, size_bytes: 60 * MIB, stream: 0 },
            Row::Free { id: 1 },
            Row::FreeCompleted { id: 1 },
            Row::Free { id: 2 },
            Row::FreeCompleted { id: 2 },
        ]
    );
    machine.check();
}

#[test]
fn a_recording_of_one_pool_or_device_does_not_see_another() {
    let machine = Machine::with(Simulator::builder().devices(2));
    let second = machine.platform.device(1).unwrap();
    let traces = [Trace::plain(), Trace::plain(), Trace::plain()];
    let recordings = [
        machine.device.default_pool().record_trace(traces[0].path()).unwrap(),
        machine.device.record_trace(traces[1].path()).unwrap(),
        second.record_trace(traces[2].path()).unwrap(),
    ];
    let late = machine.device.pool().unwrap();
    late.with(|| machine.allocate(MIB, OWN)).free(OWN);
    machine.allocate(2 * MIB, OWN).free(OWN);
    machine.simulator.bind(1);
    machine.allocate(3 * MIB, OWN).free(OWN);
    second.mark_step();
    machine.simulator.bind(0);
    let summaries = recordings.map(|recording| recording.finish().unwrap());
    let sizes = traces.map(|trace| {
        let size =
            |row| if let Row::Allocate { size_bytes, .. } = row { Some(size_bytes / MIB) } else { None };
        trace.events().into_iter().filter_map(size).collect::<Vec<_>>()
    });
    assert_eq!(sizes, [vec![2], vec![1, 2], vec![3]]);
    assert_eq!(summaries.map(|summary| summary.steps), [0, 0, 1]);
}

#[test]
fn a_block_that_was_lent_is_its_pools() {
    let machine = Machine::small(64);
    let lender = machine.device.pool_builder().use_on_oom(true).build().unwrap();
    let pool = machine.device.pool().unwrap();
    lender.with(|| machine.allocate(50 * MIB, OWN)).free(OWN);
    let traces = [Trace::plain(), Trace::plain()];
    let recordings =
        [lender.record_trace(traces[0].path()).unwrap(), pool.record_trace(traces[1].path()).unwrap()];
    pool.with(|| machine.allocate(40 * MIB, OWN)).free(OWN);
    let rows = recordings.map(|recording| recording.finish().unwrap().events);
    assert_eq!(rows, [3, 0]);
    assert_eq!(traces[0].events()[0], Row::Allocate { id: 0, size_bytes: 40 * MIB, stream: 0 });
}

#[test]
fn threads_with_streams_of_their_own_are_recorded_apart() {
    let (machine, trace) = (Machine::new(), Trace::gzipped());
    let recording = machine.device.record_trace(trace.path()).unwrap();
    std::thread::scope(|threads| {
        for thread in 1..=4_usize {
            let machine = &machine;
            threads.spawn(move || {
                machine.simulator.bind(0);
                let pool = machine.device.pool().unwrap();
                for round in 0..300 {
                    let blocks =
                        pool.with(|| [0, 1].map(|k| machine.allocate(thread * MIB + round + k, OWN)));
                    blocks.into_iter().for_each(|block| block.free(OWN));
                }
            });
        }
    });
    recording.finish().unwrap();
    let rows = trace.events();
    assert_eq!(rows.len(), 4 * 300 * 2 * 3);
    assert!(replayed_peak(&rows) >= 8 * MIB);
    let mut streams: HashMap<u64, Vec<usize>> = HashMap::new();
    for row in rows {
        if let Row::Allocate { size_bytes, stream, .. } = row {
            streams.entry(stream).or_default().push(size_bytes);
        }
    }
    assert_eq!(streams.len(), 4);
    for sizes in streams.values() {
        let thread = sizes[0] / MIB;
        let expected = (0..300).flat_map(|round| [0, 1].map(|k| thread * MIB + round + k));
        assert!(sizes.iter().copied().eq(expected));
    }
}

#[test]
fn a_pool_may_end_while_it_is_recorded() {
    let (machine, trace) = (Machine::new(), Trace::plain());
    let pool = machine.device.pool().unwrap();
    let recording = pool.record_trace(trace.path()).unwrap();
    let block = pool.with(|| machine.allocate(MIB, OWN));
    drop(pool);
    block.free(OWN);
    assert_eq!(machine.device.reserved_bytes(), 0, "the pool has ended");
    // Another pool takes its place.
    machine.device.pool().unwrap().with(|| machine.allocate(MIB, OWN)).free(OWN);
    assert_eq!(recording.finish().unwrap().events, 3);
}
