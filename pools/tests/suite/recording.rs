//! Recordings of what host pools do.

use std::collections::BTreeSet;

use mempool_pools::arena::trace::Event;
use mempool_pools::{MemPool, PoolError, record_trace};
use proptest::prelude::*;

use crate::suite::recorded::{Trace, replayed_peak};
use crate::suite::{BIG, big};

#[derive(Debug, Clone)]
enum Op {
    Allocate { bytes: usize, zeroed: bool },
    Free(prop::sample::Index),
    Resize(prop::sample::Index, usize),
    Trim,
}

fn op() -> impl Strategy<Value = Op> {
    // From the threshold of the suite's allocators upwards.
    let bytes = || prop_oneof![Just(BIG), 16_384..20_000_usize, 16_384..4_000_000_usize];
    let block = any::<prop::sample::Index>;
    prop_oneof![
        6 => (bytes(), any::<bool>()).prop_map(|(bytes, zeroed)| Op::Allocate { bytes, zeroed }),
        4 => block().prop_map(Op::Free),
        3 => (block(), bytes()).prop_map(|(at, bytes)| Op::Resize(at, bytes)),
        1 => Just(Op::Trim),
    ]
}

/// A program in a pool, and the trace that it should leave.
struct Program {
    pool: MemPool,
    blocks: Vec<(u64, Vec<u8>)>,
    expected: Vec<Event>,
    next_id: u64,
}

impl Program {
    fn new() -> Self {
        Self { pool: MemPool::new().unwrap(), blocks: Vec::new(), expected: Vec::new(), next_id: 0 }
    }

    fn allocated(&mut self, size_bytes: usize) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.expected.push(Event::Allocate { id, size_bytes, stream: 0 });
        id
    }

    fn freed(&mut self, id: u64) {
        self.expected.extend([Event::Free { id }, Event::FreeCompleted { id }]);
    }

    fn run(&mut self, op: &Op) {
        match op {
            Op::Allocate { bytes, zeroed } => {
                let block =
                    self.pool.with(|| if *zeroed { vec![0; *bytes] } else { Vec::with_capacity(*bytes) });
                let id = self.allocated(*bytes);
                self.blocks.push((id, block));
            }
            Op::Free(at) if !self.blocks.is_empty() => {
                let (id, block) = self.blocks.swap_remove(at.index(self.blocks.len()));
                drop(block);
                self.freed(id);
            }
            Op::Resize(at, bytes) if !self.blocks.is_empty() => {
                let at = at.index(self.blocks.len());
                let (id, mut block) = std::mem::take(&mut self.blocks[at]);
                let (before, old_bytes) = (block.as_ptr(), block.capacity());
                block.truncate(*bytes);
                // At most one call of `realloc`.
                if *bytes < old_bytes {
                    block.shrink_to(*bytes)
                } else {
                    block.reserve_exact(bytes - block.len())
                }
                let id = match (block.capacity() == old_bytes, block.as_ptr() == before) {
                    (true, _) => id,
                    (false, true) => {
                        self.freed(id);
                        self.allocated(*bytes)
                    }
                    (false, false) => {
                        let new = self.allocated(*bytes);
                        self.freed(id);
                        new
                    }
                };
                self.blocks[at] = (id, block);
            }
            Op::Trim => {
                self.pool.trim().unwrap();
            }
            Op::Free(_) | Op::Resize(..) => {}
        }
    }

    /// What a recording that begins now has to list: live blocks by address, named anew.
    fn list(&mut self) {
        self.next_id = 0;
        self.expected.clear();
        let mut blocks = std::mem::take(&mut self.blocks);
        blocks.sort_by_key(|(_, block)| block.as_ptr().addr());
        for (_, block) in blocks {
            let id = self.allocated(block.capacity());
            self.blocks.push((id, block));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_recording_is_what_was_done(
        before in prop::collection::vec(op(), 0..20),
        recorded in prop::collection::vec(op(), 0..80),
        after in prop::collection::vec(op(), 0..5),
    ) {
        let trace = Trace::plain();
        let mut program = Program::new();
        before.iter().for_each(|op| program.run(op));
        program.list();
        program.pool.reset_peak_stats();
        let recording = program.pool.record_trace(trace.path()).unwrap();
        recorded.iter().for_each(|op| program.run(op));
        let (expected, peak) = (program.expected.clone(), program.pool.stats().requested.peak);
        let summary = recording.finish().unwrap();
        after.iter().for_each(|op| program.run(op));
        let changes = changes(&trace);
        prop_assert_eq!(&changes, &expected);
        prop_assert_eq!(replayed_peak(&changes), peak);
        let allocations = expected.iter().filter(|event| matches!(event, Event::Allocate { .. })).count();
        prop_assert_eq!(summary.allocations, allocations as u64);
        prop_assert_eq!(summary.events - summary.steps, expected.len() as u64);
        prop_assert_eq!(summary.bytes_written, length(&trace));
    }
}

#[test]
fn a_block_that_grows_where_it_lies_is_freed_and_allocated_anew() {
    let (pool, trace) = (MemPool::new().unwrap(), Trace::plain());
    let recording = pool.record_trace(trace.path()).unwrap();
    let mut block: Vec<u8> = pool.with(|| Vec::with_capacity(BIG));
    let before = block.as_ptr();
    block.reserve_exact(2 * BIG);
    assert_eq!(block.as_ptr(), before, "an empty pool has room behind its only block");
    drop(block);
    drop(recording);
    assert_eq!(
        changes(&trace),
        [
            Event::Allocate { id: 0, size_bytes: BIG, stream: 0 },
            Event::Free { id: 0 },
            Event::FreeCompleted { id: 0 },
            Event::Allocate { id: 1, size_bytes: 2 * BIG, stream: 0 },
            Event::Free { id: 1 },
            Event::FreeCompleted { id: 1 },
        ]
    );
}

/// What is recorded but the ends of steps, which others in this process may mark.
fn changes(trace: &Trace) -> Vec<Event> {
    trace.events().into_iter().filter(|event| !matches!(event, Event::StepEnd { .. })).collect()
}

/// Bytes of the file.
fn length(trace: &Trace) -> u64 {
    std::fs::metadata(trace.path()).unwrap().len()
}

fn sizes(events: &[Event]) -> Vec<usize> {
    let size = |event: &Event| match event {
        Event::Allocate { size_bytes, .. } => Some(*size_bytes),
        _ => None,
    };
    events.iter().filter_map(size).collect()
}

#[test]
fn a_recording_of_one_pool_does_not_see_another() {
    let pools = [MemPool::new().unwrap(), MemPool::new().unwrap()];
    let traces = [Trace::plain(), Trace::plain()];
    let recordings = [0, 1].map(|k| pools[k].record_trace(traces[k].path()).unwrap());
    for round in 1..10 {
        drop(pools[0].with(|| vec![1_u8; round * BIG]));
        drop(big());
        drop(pools[1].with(|| vec![1_u8; 2 * round * BIG]));
    }
    for recording in recordings {
        recording.finish().unwrap();
    }
    for (trace, factor) in traces.iter().zip([1, 2]) {
        let expected: Vec<usize> = (1..10).map(|round| factor * round * BIG).collect();
        assert_eq!(sizes(&changes(trace)), expected);
    }
}

#[test]
fn a_recording_of_all_pools_sees_those_made_meanwhile() {
    // Sizes that nobody else in this process asks for.
    let size = |k: usize| 777_777 + k;
    let trace = Trace::gzipped();
    let old = MemPool::new().unwrap();
    let live = old.with(|| vec![1_u8; size(0)]);
    let recording = record_trace(trace.path()).unwrap();
    let blocks = (old.with(|| vec![1_u8; size(1)]), MemPool::new().unwrap().with(|| vec![1_u8; size(2)]));
    drop(vec![1_u8; size(3)]);
    drop((live, blocks));
    let summary = recording.finish().unwrap();
    drop(vec![1_u8; size(4)]);
    let changes = changes(&trace);
    let ours: Vec<usize> =
        sizes(&changes).into_iter().filter(|bytes| (size(0)..=size(4)).contains(bytes)).collect();
    assert_eq!(ours, [size(0), size(1), size(2), size(3)]);
    assert_eq!(summary.allocations, sizes(&changes).len() as u64);
    assert_eq!(summary.bytes_written, length(&trace));
    assert!(replayed_peak(&changes) >= size(0) + size(1) + size(2));
}

#[test]
fn several_recordings_of_one_pool_tell_the_same_plain_and_compressed() {
    let pool = MemPool::new().unwrap();
    let (plain, gzipped, late) = (Trace::plain(), Trace::gzipped(), Trace::plain());
    let first = pool.record_trace(plain.path()).unwrap();
    let second = pool.record_trace(gzipped.path()).unwrap();
    // More than one buffer is filled.
    for round in 0..4000_usize {
        drop(pool.with(|| Vec::<u8>::with_capacity(20_000 + round)));
    }
    let last = pool.record_trace(late.path()).unwrap();
    drop(pool.with(big));
    let first = first.finish().unwrap();
    let second = second.finish().unwrap();
    drop(last);
    assert_eq!(changes(&plain), changes(&gzipped));
    assert_eq!((first.allocations, second.allocations), (4001, 4001));
    assert!(second.bytes_written < first.bytes_written / 2, "{second:?} {first:?}");
    assert_eq!(sizes(&changes(&late)), [BIG]);
}

#[test]
fn many_threads_are_recorded_in_an_order_that_can_be_replayed() {
    let (pool, trace) = (MemPool::new().unwrap(), Trace::plain());
    let recording = pool.record_trace(trace.path()).unwrap();
    std::thread::scope(|threads| {
        for thread in 0..4_usize {
            let pool = &pool;
            threads.spawn(move || {
                for round in 0..500_usize {
                    let blocks: [Vec<u8>; 3] = pool.with(|| {
                        [0, 1, 2].map(|k| Vec::with_capacity(20_000 + 512 * ((round + k + thread) % 50)))
                    });
                    drop(blocks);
                }
            });
        }
    });
    let summary = recording.finish().unwrap();
    let changes = changes(&trace);
    assert_eq!((summary.allocations, changes.len()), (6000, 18_000));
    assert_eq!(replayed_peak(&changes), pool.stats().requested.peak, "no other order has the same peak");
}

#[test]
fn recordings_may_begin_and_end_while_threads_allocate() {
    let pool = MemPool::new().unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|threads| {
        for _ in 0..3 {
            threads.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    drop(pool.with(|| (big(), vec![0_u8; 100_000])));
                    drop(MemPool::new().unwrap().with(big));
                }
            });
        }
        for _ in 0..50 {
            let (one, all) = (Trace::plain(), Trace::gzipped());
            let recordings = [pool.record_trace(one.path()), record_trace(all.path())];
            drop(pool.with(big));
            for recording in recordings {
                recording.unwrap().finish().unwrap();
            }
            replayed_peak(&changes(&one));
            replayed_peak(&changes(&all));
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn a_pool_may_end_while_it_is_recorded() {
    let (pool, trace) = (MemPool::new().unwrap(), Trace::plain());
    let recording = pool.record_trace(trace.path()).unwrap();
    let block = pool.with(big);
    drop(pool);
    drop(block);
    // The next pool may get the place of the one before, and is another one.
    drop(MemPool::new().unwrap().with(|| vec![1_u8; 3 * BIG]));
    let summary = recording.finish().unwrap();
    assert_eq!(summary.events - summary.steps, 3);
    assert_eq!(sizes(&changes(&trace)), [BIG]);
}

#[test]
fn what_a_pool_does_not_serve_is_not_recorded() {
    let pool = MemPool::builder().min_bytes(BIG).limit(8 * BIG).build().unwrap();
    let trace = Trace::plain();
    let recording = pool.record_trace(trace.path()).unwrap();
    let blocks = pool.with(|| (vec![1_u8; BIG / 2], big(), vec![1_u8; 16 * BIG]));
    drop(blocks);
    mempool_pools::without_pools(|| drop(big()));
    drop(recording);
    assert_eq!(sizes(&changes(&trace)), [BIG]);
}

#[test]
fn a_trace_that_cannot_be_made_is_an_error() {
    let pool = MemPool::new().unwrap();
    let error = pool.record_trace("/no such folder/trace.csv").unwrap_err();
    assert!(matches!(error, PoolError::Trace { kind: std::io::ErrorKind::NotFound, .. }), "{error}");
    assert!(error.to_string().contains("/no such folder/trace.csv"), "{error}");
    drop(pool.with(big));
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_ends_the_trace_and_nothing_else() {
    let pool = MemPool::new().unwrap();
    let trace = Trace::gzipped();
    let recording = pool.record_trace("/dev/full").unwrap();
    let other = pool.record_trace(trace.path()).unwrap();
    for _ in 0..4000 {
        drop(pool.with(|| Vec::<u8>::with_capacity(BIG)));
    }
    let error = recording.finish().unwrap_err();
    let PoolError::Trace { path, kind, lost_events, .. } = &error else { panic!("{error}") };
    assert_eq!((path.to_str(), *kind), (Some("/dev/full"), std::io::ErrorKind::StorageFull));
    assert!(*lost_events >= 12_000, "{error}");
    assert!(other.finish().unwrap().allocations == 4000);
    pool.validate().unwrap();
    // What is written at the end may fail, too.
    let recording = pool.record_trace("/dev/full").unwrap();
    drop(pool.with(big));
    assert!(matches!(recording.finish(), Err(PoolError::Trace { lost_events: 3.., .. })));
    drop(pool.record_trace("/dev/full").unwrap());
    drop(pool.with(big));
}

#[test]
fn live_blocks_are_listed_once_under_every_policy() {
    for policy in mempool_pools::Policy::ALL {
        let Ok(pool) = MemPool::builder().policy(policy).build() else { continue };
        let blocks: Vec<Vec<u8>> = (1..30).map(|k| pool.with(|| Vec::with_capacity(k * 50_000))).collect();
        let kept: Vec<Vec<u8>> = blocks.into_iter().step_by(2).collect();
        let trace = Trace::plain();
        drop(pool.record_trace(trace.path()).unwrap());
        let listed: BTreeSet<usize> = sizes(&changes(&trace)).into_iter().collect();
        assert_eq!(listed, kept.iter().map(Vec::capacity).collect());
        assert_eq!(sizes(&changes(&trace)).len(), kept.len());
    }
}
