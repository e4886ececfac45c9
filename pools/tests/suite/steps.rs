//! Steps that are planned: no search once they repeat themselves, and nothing alive is written over.

use std::panic::{AssertUnwindSafe, catch_unwind};

use mempool_pools::{MemPool, StepPlan};
use proptest::prelude::*;

use crate::suite::contents::Pattern;
use crate::suite::{BIG, big};

/// Blocks of some sizes, each ending before the one after the next begins.
fn chain(sizes: &[usize]) -> usize {
    let mut last = Vec::new();
    let mut sum = 0;
    for &size in sizes {
        let block = vec![3_u8; size];
        sum += block.len() + last.len();
        last = block;
    }
    sum
}

const SIZES: [usize; 6] = [BIG, 3 * BIG, 2 * BIG, BIG / 2, 4 * BIG, BIG];

fn planned(pool: &MemPool) -> StepPlan {
    let mut step = pool.step();
    for _ in 0..3 {
        step.run(|| chain(&SIZES));
    }
    assert_eq!(step.stats().planned_runs, 1, "{:?}", step.stats());
    step
}

#[test]
fn a_planned_step_maps_and_searches_nothing() {
    let pool = MemPool::new().unwrap();
    let mut step = planned(&pool);
    let before = (pool.stats(), step.stats());
    for _ in 0..10 {
        step.run(|| chain(&SIZES));
    }
    let after = (pool.stats(), step.stats());
    assert_eq!(after.0.map_calls, before.0.map_calls);
    // The pool placed no block of its own: only what it placed counts there.
    assert_eq!(after.0.blocks.total_allocated, before.0.blocks.total_allocated);
    assert_eq!(after.0.hits - before.0.hits, 60, "each request is a hit all the same");
    assert_eq!(after.1.planned - before.1.planned, 60);
    assert_eq!(after.1.slab_bytes, after.1.max_live_bytes);
    assert_eq!(after.1.slab_bytes, 5 * BIG, "no more than what is alive at once");
    assert!(after.0.reserved.current <= 6 * BIG, "what served before has gone back: {:?}", after.0.reserved);
}

#[test]
fn planned_blocks_lie_where_they_lay_and_zeroed_ones_are_zero() {
    let pool = MemPool::new().unwrap();
    let mut step = pool.step();
    let mut addresses = Vec::new();
    for run in 0..6 {
        let (one, two) = step.run(|| {
            let mut one = vec![0_u8; BIG];
            assert!(one.iter().all(|&byte| byte == 0), "run {run}");
            one.fill(9);
            let two = big();
            (one.as_ptr().addr(), two.as_ptr().addr())
        });
        addresses.push((one, two));
    }
    assert!(addresses[3..].iter().all(|pair| *pair == addresses[2]), "{addresses:x?}");
}

#[test]
fn a_result_may_be_kept_for_as_long_as_one_likes() {
    let pool = MemPool::new().unwrap();
    let mut step = pool.step();
    let mut kept = Vec::new();
    for tag in 0..12_u8 {
        kept.push(step.run(|| {
            let scratch = big();
            let result = Pattern::new(vec![0; BIG], tag);
            drop(scratch);
            drop(big());
            result
        }));
        kept.iter().for_each(Pattern::check);
        if tag == 8 {
            // From here on the last one only.
            kept.drain(..8);
        } else if tag > 8 {
            kept.remove(0);
        }
    }
    let stats = step.stats();
    assert!(stats.own > 0, "{stats:?}");
    assert_eq!(stats.slab_bytes, BIG, "results are kept out of it: {stats:?}");
    drop(step);
    kept.iter().for_each(Pattern::check);
    pool.validate().unwrap();
}

#[test]
fn what_is_allocated_inside_other_scopes_and_on_other_threads_is_not_planned() {
    let (pool, inner) = (MemPool::new().unwrap(), MemPool::new().unwrap());
    let mut step = pool.step();
    for _ in 0..4 {
        step.run(|| {
            let own = big();
            let nested = inner.with(big);
            let scopes = mempool_pools::propagate();
            let other = std::thread::scope(|threads| threads.spawn(|| scopes.with(big)).join().unwrap());
            assert_eq!(inner.stats().blocks.current, 1);
            drop((own, nested, other));
        });
    }
    let stats = step.stats();
    // Where the threshold is zero, what starting a thread takes is planned too.
    assert_eq!((stats.recorded, stats.unexpected, stats.planned_runs), (stats.planned, 0, 2), "{stats:?}");
}

#[test]
fn a_run_that_ends_early_or_unwinds_leaves_the_step_as_it_was() {
    let pool = MemPool::new().unwrap();
    let mut step = planned(&pool);
    for _ in 0..2 {
        let result = catch_unwind(AssertUnwindSafe(|| {
            step.run(|| {
                let _block = vec![1_u8; BIG];
                panic!("on purpose");
            })
        }));
        assert!(result.is_err());
        let early: Result<(), ()> = step.run(|| {
            let _block = vec![1_u8; BIG];
            Err(())
        });
        assert!(early.is_err());
    }
    let before = step.stats();
    step.run(|| chain(&SIZES));
    let after = step.stats();
    assert_eq!((after.planned - before.planned, after.recorded - before.recorded), (6, 0), "{after:?}");
    // Outside of runs the thread is in no scope.
    let requests = pool.stats().blocks.total_allocated;
    drop(big());
    assert_eq!(pool.stats().blocks.total_allocated, requests);
}

#[test]
fn blocks_that_grow_leave_their_place() {
    let pool = MemPool::new().unwrap();
    let mut step = pool.step();
    for run in 0..6_u8 {
        step.run(|| {
            let mut growing = vec![run; BIG];
            let beside = Pattern::new(vec![0; BIG], 77);
            growing.resize(5 * BIG, run);
            growing.shrink_to(2 * BIG);
            assert!(growing.iter().all(|&byte| byte == run));
            beside.check();
        });
    }
    pool.validate().unwrap();
}

#[test]
fn a_trim_gives_the_slab_back_and_the_step_is_planned_anew() {
    let pool = MemPool::new().unwrap();
    let mut step = planned(&pool);
    assert!(pool.trim().unwrap() >= 5 * BIG);
    assert_eq!(pool.stats().reserved.current, 0);
    for _ in 0..3 {
        step.run(|| chain(&SIZES));
    }
    assert_eq!(step.stats().planned_runs, 2);
    // While it runs its memory stays.
    step.run(|| {
        let block = Pattern::new(vec![0; BIG], 5);
        pool.trim().unwrap();
        block.check();
    });
}

#[test]
fn a_step_and_its_pool_go_when_their_last_block_goes() {
    let pool = MemPool::new().unwrap();
    let mut step = planned(&pool);
    // This one was to end within its run.
    let kept = step.run(|| Pattern::new(vec![0; BIG], 1));
    drop(step);
    drop(pool);
    kept.check();
    // A pool that is not gone would be one too many in the end.
    for _ in 0..3000 {
        let pool = MemPool::new().unwrap();
        let mut step = pool.step();
        let kept = (0..3).map(|_| step.run(|| vec![1_u8; 1 << 16])).next_back();
        drop((pool, step));
        drop(kept);
    }
    kept.check();
}

#[test]
fn without_memory_for_a_slab_the_step_goes_on() {
    let pool = MemPool::builder().limit(6 * BIG).build().unwrap();
    let mut step = pool.step();
    let kept = pool.with(|| vec![1_u8; 2 * BIG]);
    for _ in 0..6 {
        assert!(step.run(|| chain(&[BIG, BIG, 2 * BIG, 2 * BIG])) > 0);
        pool.validate().unwrap();
    }
    drop(kept);
}

#[test]
fn a_step_may_move_to_another_thread_between_runs() {
    let pool = MemPool::new().unwrap();
    let mut step = planned(&pool);
    let mut step = std::thread::spawn(move || {
        step.run(|| chain(&SIZES));
        step
    })
    .join()
    .unwrap();
    step.run(|| chain(&SIZES));
    assert_eq!(step.stats().planned_runs, 3);
}

#[test]
fn a_recording_of_a_planned_step_holds_each_of_its_blocks() {
    let path = std::env::temp_dir().join(format!("mempool-steps-{}-{:p}.csv", std::process::id(), &BIG));
    let pool = MemPool::new().unwrap();
    let mut step = planned(&pool);
    let recording = pool.record_trace(&path).unwrap();
    step.run(|| chain(&SIZES));
    let summary = recording.finish().unwrap();
    std::fs::remove_file(path).unwrap();
    assert_eq!(summary.allocations, 6);
}

/// What becomes of the blocks of a run.
#[derive(Debug, Clone)]
struct Request {
    size: usize,
    zeroed: bool,
    /// How many more requests it lives for; `None` for longer than its run.
    lifetime: Option<usize>,
}

fn request() -> impl Strategy<Value = Request> {
    let size = prop::sample::select(vec![20_000_usize, 65_536, 100_000, BIG, 3 * BIG]);
    (size, any::<bool>(), prop::option::weighted(0.95, 1..10_usize))
        .prop_map(|(size, zeroed, lifetime)| Request { size, zeroed, lifetime })
}

/// How a run differs from the usual one.
#[derive(Debug, Clone)]
enum Change {
    Insert(prop::sample::Index, Request),
    Replace(prop::sample::Index, Request),
    Remove(prop::sample::Index),
    Stop(prop::sample::Index),
}

fn change() -> impl Strategy<Value = Change> {
    let at = any::<prop::sample::Index>;
    prop_oneof![
        (at(), request()).prop_map(|(at, request)| Change::Insert(at, request)),
        (at(), request()).prop_map(|(at, request)| Change::Replace(at, request)),
        at().prop_map(Change::Remove),
        at().prop_map(Change::Stop),
    ]
}

/// Runs the requests; what outlives the run is returned.
fn run(requests: &[Request], tag: u8) -> Vec<Pattern> {
    let (mut live, mut kept): (Vec<(usize, Pattern)>, _) = (Vec::new(), Vec::new());
    for (at, request) in requests.iter().enumerate() {
        live.retain(|(end, pattern)| {
            pattern.check();
            *end > at
        });
        let bytes = if request.zeroed {
            let bytes = vec![0; request.size];
            assert!(bytes.iter().step_by(512).all(|&byte| byte == 0));
            bytes
        } else {
            let mut bytes = Vec::with_capacity(request.size);
            bytes.resize(request.size, 1);
            bytes
        };
        let pattern = Pattern::new(bytes, tag.wrapping_add(at as u8));
        match request.lifetime {
            Some(lifetime) => live.push((at + lifetime, pattern)),
            None => kept.push(pattern),
        }
    }
    live.iter().for_each(|(_, pattern)| pattern.check());
    kept
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn whatever_a_run_does_every_block_keeps_its_contents(
        usual in prop::collection::vec(request(), 1..20),
        runs in prop::collection::vec((prop::collection::vec(change(), 0..2), any::<bool>()), 4..16),
        elsewhere in any::<bool>(),
    ) {
        let pool = MemPool::new().unwrap();
        let mut step = pool.step().max_plans(2);
        let mut kept: Vec<Pattern> = Vec::new();
        for (number, (changes, drops)) in runs.into_iter().enumerate() {
            let mut requests = usual.clone();
            for change in changes {
                let len = requests.len();
                match change {
                    Change::Insert(at, request) => requests.insert(at.index(len + 1), request),
                    _ if len == 0 => {}
                    Change::Replace(at, request) => requests[at.index(len)] = request,
                    Change::Remove(at) => drop(requests.remove(at.index(len))),
                    Change::Stop(at) => requests.truncate(at.index(len)),
                }
            }
            kept.extend(step.run(|| run(&requests, number as u8)));
            pool.validate().unwrap();
            kept.iter().for_each(Pattern::check);
            if drops {
                let ended = std::mem::take(&mut kept);
                if elsewhere {
                    std::thread::spawn(move || drop(ended)).join().unwrap();
                }
            }
        }
        drop(step);
        pool.validate().unwrap();
        kept.iter().for_each(Pattern::check);
        drop(kept);
        prop_assert_eq!(pool.stats().blocks.current, 0);
    }
}

#[test]
fn a_step_at_rest_gives_its_memory_up_before_a_limit_refuses() {
    let pool = MemPool::builder().hard_limit(8 * BIG).build().unwrap();
    let mut step = pool.step();
    // Never more than five at once.
    for mib in [5, 5, 5, 4, 5, 5] {
        step.run(|| drop(std::hint::black_box(vec![1_u8; mib * BIG])));
    }
    for _ in 0..3 {
        step.run(|| drop(std::hint::black_box(vec![1_u8; 5 * BIG])));
    }
    drop(pool.with(|| vec![1_u8; 6 * BIG]));
    let mut other = pool.step();
    for _ in 0..4 {
        other.run(|| drop(std::hint::black_box(vec![1_u8; 7 * BIG])));
    }
    assert_eq!(pool.stats().overflow_bytes, 0);
    pool.validate().unwrap();
}
