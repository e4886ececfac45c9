//! Histories: who has what, what happened lately, and what grew.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use mempool_pools::snapshot::{Action, BlockState, Snapshot, TraceEntry};
use mempool_pools::{HistoryOptions, MemPool, PoolError, label, mark_step, record_history, stop_history};
use proptest::prelude::*;

use crate::suite::BIG;

/// There is one history in a process.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn with_entries(max_entries: usize) {
    record_history(HistoryOptions { max_entries }).unwrap();
}

/// Follows a trace backwards from what is live, as PyTorch's page does.
fn follow_backwards(snapshot: &Snapshot) {
    let blocks = snapshot.segments.iter().flat_map(|segment| &segment.blocks);
    let mut there: HashSet<usize> = blocks
        .filter(|block| block.state != BlockState::Inactive && !block.is_kept)
        .map(|block| block.address)
        .collect();
    for entry in snapshot.device_traces.iter().flatten().rev() {
        let addr = entry.addr.unwrap_or(0);
        let mut segments = snapshot.segments.iter();
        let is_mapped = segments.any(|one| addr >= one.address && addr - one.address < one.total_size);
        assert!(is_mapped || entry.action == Action::Oom, "{entry:?} lies in no segment");
        match entry.action {
            Action::Alloc => assert!(there.remove(&addr), "{entry:?} is not there afterwards"),
            Action::FreeCompleted => assert!(there.insert(addr), "{entry:?} is there afterwards"),
            Action::FreeRequested => assert!(there.contains(&addr), "{entry:?} is of nothing"),
            Action::Oom => {}
        }
    }
}

#[test]
fn each_block_knows_who_allocated_it() {
    let _alone = alone();
    stop_history();
    let pool = MemPool::new().unwrap();
    let before = pool.with(|| vec![1_u8; 3 * BIG]);
    assert_eq!(pool.snapshot().live_blocks()[0].owner, None);
    with_entries(1000);
    let outer = label("encoder");
    let first = pool.with(|| {
        let _inner = label("layer 3");
        vec![1_u8; BIG]
    });
    mark_step();
    let second = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("loader".into());
        let work = || {
            let _label = label("batch");
            pool.with(|| vec![1_u8; 2 * BIG])
        };
        thread.spawn_scoped(scope, work).unwrap().join().unwrap()
    });
    drop(outer);
    let third = pool.with(|| vec![1_u8; BIG / 2]);
    let snapshot = pool.snapshot();
    let owner_of = |block: &[u8]| {
        let blocks = snapshot.live_blocks();
        let found = blocks.into_iter().find(|other| other.address == block.as_ptr().addr());
        found.unwrap().owner.clone().unwrap()
    };
    let first_owner = owner_of(&first);
    assert_eq!((&*first_owner.label, first_owner.step), ("encoder/layer 3", 0));
    let second_owner = owner_of(&second);
    assert_eq!((&*second_owner.label, &*second_owner.thread), ("batch", "loader"));
    assert!(second_owner.step >= 1 && second_owner.time_us >= first_owner.time_us);
    assert_eq!(owner_of(&third).label, "");
    assert!(owner_of(&before).is_older && !first_owner.is_older);
    // For PyTorch's viewers a label is a stack.
    let block = snapshot.live_blocks().into_iter().find(|block| block.address == first.as_ptr().addr());
    let names: Vec<&str> = block.unwrap().frames.iter().map(|frame| &*frame.name).collect();
    assert_eq!(names, ["layer 3", "encoder"]);
    let sizes: Vec<usize> = snapshot.live_blocks().iter().map(|block| block.requested_size).collect();
    assert_eq!(sizes, [3 * BIG, 2 * BIG, BIG, BIG / 2]);
    let oldest: Vec<usize> = snapshot.oldest_blocks().iter().map(|block| block.requested_size).collect();
    assert_eq!(oldest, [3 * BIG, BIG, 2 * BIG, BIG / 2]);
    stop_history();
    assert_eq!(pool.snapshot().live_blocks()[0].owner, None);
    drop((before, first, second, third));
}

#[test]
fn what_grew_is_told_by_label() {
    let _alone = alone();
    with_entries(0);
    let pool = MemPool::new().unwrap();
    let mut losses: Vec<Vec<u8>> = Vec::new();
    let mut step = |number: u8| {
        let _label = label("step");
        let activations = pool.with(|| vec![number; 3 * BIG]);
        let _label = label("log");
        losses.push(pool.with(|| vec![number; 20_000]));
        drop(activations);
        mark_step();
    };
    step(0);
    let before = pool.snapshot();
    (1..5).for_each(&mut step);
    let grown = pool.snapshot().diff(&before);
    assert_eq!(grown.len(), 1, "{grown:?}");
    assert_eq!((&*grown[0].label, grown[0].blocks, grown[0].bytes), ("step/log", 4, 80_000));
    assert!(grown[0].steps.0 < grown[0].steps.1);
    assert_eq!(before.diff(&before), []);
    // Nothing is kept of what happened, only who has what.
    assert!(before.device_traces.iter().all(Vec::is_empty));
    stop_history();
}

#[test]
fn the_oldest_entries_go_first_and_are_counted() {
    let _alone = alone();
    with_entries(50);
    let pool = MemPool::new().unwrap();
    let mut kept = Vec::new();
    for number in 0..100_u8 {
        let block = pool.with(|| vec![number; 20_000]);
        if number % 3 == 0 {
            kept.push(block);
        }
    }
    let snapshot = pool.snapshot();
    let trace: &[TraceEntry] = &snapshot.device_traces[0];
    // Other tests of this process are told of, too.
    assert!(!trace.is_empty() && trace.len() <= 50, "{}", trace.len());
    assert!(snapshot.mempool.dropped_entries.unwrap() >= 100 + 2 * 66 - 50);
    assert!(trace.is_sorted_by_key(|entry| entry.time_us));
    follow_backwards(&snapshot);
    stop_history();
    let too_many = record_history(HistoryOptions { max_entries: usize::MAX }).unwrap_err();
    assert!(matches!(too_many, PoolError::Option { option: "max_entries", .. }));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]
    #[test]
    fn a_trace_ends_at_what_is_there(
        ops in prop::collection::vec((0_u8..6, 0_usize..64, 16_384_usize..3_000_000), 1..80),
        max_entries in 1_usize..200,
        begins_at in 0_usize..40,
    ) {
        let _alone = alone();
        stop_history();
        let pool = MemPool::new().unwrap();
        let mut blocks: Vec<Vec<u8>> = Vec::new();
        for (number, (kind, which, bytes)) in ops.into_iter().enumerate() {
            if number == begins_at {
                with_entries(max_entries);
            }
            match kind {
                0..=2 => blocks.push(pool.with(|| Vec::with_capacity(bytes))),
                3 if !blocks.is_empty() => drop(blocks.swap_remove(which % blocks.len())),
                4 if !blocks.is_empty() => {
                    let at = which % blocks.len();
                    pool.with(|| blocks[at].reserve_exact(bytes));
                }
                5 => drop(pool.trim().unwrap()),
                _ => {}
            }
            follow_backwards(&pool.snapshot());
        }
        stop_history();
    }
}
