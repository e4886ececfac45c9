//! Histories: who has what, what happened lately, and what grew.

use std::sync::{Mutex, MutexGuard, PoisonError};

use std::num::NonZeroU32;
use std::process::{Command, Stdio};

use mempool_pools::snapshot::{Action, Snapshot, TraceEntry};
use mempool_pools::{
    CallStacks, HistoryMode, HistoryOptions, MemPool, PoolError, label, mark_step, record_history,
    stop_history,
};
use proptest::prelude::*;

use crate::suite::{BIG, memory_viz};

/// There is one history in a process.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn with_entries(max_entries: usize) {
    record_history(HistoryOptions::new().max_entries(max_entries)).unwrap();
}

/// The names of the frames that PyTorch's viewers show of a block, as Python reads them.
fn frames_in_pickle(snapshot: &Snapshot, addr: usize) -> Vec<String> {
    const SCRIPT: &str = "import pickle, sys\n\
        for segment in pickle.load(sys.stdin.buffer)['segments']:\n \
        for block in segment['blocks']:\n  \
        if block['address'] == int(sys.argv[1]): print(*(frame['name'] for frame in block['frames']), sep='\\n')";
    let mut python = Command::new("python3");
    python.args(["-c", SCRIPT, &addr.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut python = python.spawn().expect("python3 is there: the project's other tests need it, too");
    snapshot.write_pickle(std::io::BufWriter::new(python.stdin.take().unwrap())).unwrap();
    let output = python.wait_with_output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
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
    assert_eq!(frames_in_pickle(&snapshot, first.as_ptr().addr()), ["layer 3", "encoder"]);
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
    memory_viz::draw(&snapshot).unwrap();
    stop_history();
    let too_many = record_history(HistoryOptions::new().max_entries(usize::MAX)).unwrap_err();
    assert!(matches!(too_many, PoolError::Option { option: "max_entries", .. }));
}

#[test]
fn mapping_is_told_of_and_what_it_was_for() {
    let _alone = alone();
    with_entries(1000);
    let pool = MemPool::new().unwrap();
    let _label = label("first use");
    drop(pool.with(|| vec![1_u8; 5 * BIG]));
    pool.trim().unwrap();
    let snapshot = pool.snapshot();
    let of = |action: Action| snapshot.device_traces[0].iter().filter(move |entry| entry.action == action);
    let mapped: usize = of(Action::SegmentMap).map(|entry| entry.size).sum();
    assert!(mapped >= 5 * BIG, "{mapped}");
    assert_eq!(of(Action::SegmentUnmap).map(|entry| entry.size).sum::<usize>(), mapped);
    assert!(of(Action::SegmentMap).all(|entry| entry.user_metadata == "first use"));
    stop_history();
}

#[inline(never)]
fn a_function_of_this_test(pool: &MemPool, bytes: usize) -> Vec<u8> {
    pool.with(|| Vec::with_capacity(bytes))
}

#[test]
fn call_stacks_are_kept_of_what_was_chosen_and_begin_with_the_users_function() {
    let _alone = alone();
    let pool = MemPool::new().unwrap();
    let site_of = |snapshot: &Snapshot, block: &[u8]| {
        let blocks = snapshot.live_blocks();
        let found = blocks.into_iter().find(|other| other.address == block.as_ptr().addr()).unwrap();
        snapshot.call_site(found.stack).map(|frame| frame.name.clone())
    };
    for (stacks, small, large) in [
        (CallStacks::None, false, false),
        (CallStacks::All, true, true),
        (CallStacks::AtLeast(2 * BIG), false, true),
    ] {
        let options = HistoryOptions::new().mode(HistoryMode::State).call_stacks(stacks);
        record_history(options).unwrap();
        let blocks = (a_function_of_this_test(&pool, BIG), a_function_of_this_test(&pool, 2 * BIG));
        let snapshot = pool.snapshot();
        assert!(snapshot.device_traces[0].is_empty());
        for (block, expected) in [(&blocks.0, small), (&blocks.1, large)] {
            let site = site_of(&snapshot, block);
            assert_eq!(site.is_some(), expected, "{stacks:?}: {site:?}");
            // Names are short where a function was put into another.
            assert!(site.is_none_or(|name| name.contains("a_function_of_this_test")), "{stacks:?}");
        }
    }
    let every = NonZeroU32::new(4).unwrap();
    record_history(HistoryOptions::new().call_stacks(CallStacks::Sampled(every))).unwrap();
    let blocks: Vec<Vec<u8>> = (0..40).map(|_| a_function_of_this_test(&pool, BIG)).collect();
    let snapshot = pool.snapshot();
    let sampled = blocks.iter().filter(|block| site_of(&snapshot, block).is_some()).count();
    assert_eq!(sampled, 10);
    // Stacks that are the same are there once, and in each format.
    assert!(snapshot.mempool.stacks.len() <= 2, "{}", snapshot.mempool.stacks.len());
    let sampled = blocks.iter().find(|block| site_of(&snapshot, block).is_some()).unwrap();
    let frames = frames_in_pickle(&snapshot, sampled.as_ptr().addr());
    assert!(frames.iter().any(|name| name.contains("a_function_of_this_test")), "{frames:?}");
    assert!(!frames.iter().any(|name| name.contains("PoolAllocator")), "{frames:?}");
    // What frees has no part in what was asked for.
    drop(blocks);
    let snapshot = pool.snapshot();
    let freed = snapshot.device_traces[0].iter().filter(|entry| entry.action == Action::FreeCompleted);
    assert!(freed.clone().count() > 0 && freed.clone().all(|entry| entry.stack.is_none()));
    // Nor has what is mapped later for no allocation.
    record_history(HistoryOptions::new().call_stacks(CallStacks::All)).unwrap();
    let block = a_function_of_this_test(&pool, BIG);
    let fixed = MemPool::builder().fixed_size(8 * BIG).build().unwrap();
    let snapshot = fixed.snapshot();
    let mapped = snapshot.device_traces[0].iter().filter(|entry| entry.action == Action::SegmentMap);
    assert!(mapped.clone().count() > 0 && mapped.clone().all(|entry| entry.stack.is_none()));
    drop(block);
    stop_history();
    assert!(a_function_of_this_test(&pool, BIG).capacity() > 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]
    #[test]
    fn a_trace_ends_at_what_is_there(
        ops in prop::collection::vec((0_u8..6, 0_usize..64, 16_384_usize..3_000_000), 1..80),
        max_entries in 1_usize..200,
        begins_at in 0_usize..40,
        policy in 0_usize..7,
    ) {
        let _alone = alone();
        stop_history();
        const POLICIES: [&str; 7] = ["pages", "pages,mode:moving", "buckets", "buddy", "bfc", "torch", "simple"];
        let conf = format!("policy:{}", POLICIES[policy]);
        let pool = MemPool::builder().conf(&conf).unwrap().build().unwrap();
        let (mut whole, mut told) = (true, 0);
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
            let snapshot = pool.snapshot();
            if let Err(stumbled) = memory_viz::draw(&snapshot) {
                return Err(TestCaseError::fail(format!("{conf}: {stumbled}")));
            }
            whole &= snapshot.mempool.dropped_entries.unwrap_or(0) == 0;
            let entries = snapshot.device_traces[0].len();
            prop_assert!(!whole || entries >= told, "{conf}: {entries} entries after {told}");
            told = entries;
        }
        stop_history();
    }
}
