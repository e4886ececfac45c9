//! Advice on a pool that runs, from its history or from its counters.

use mempool_pools::advice::{AdviceError, AdviceOptions, Evidence, Strategy, Unknown};
use mempool_pools::{HistoryOptions, MemPool, mark_step, record_history, stop_history};

use crate::suite::BIG;
use crate::suite::history::alone;

fn options() -> AdviceOptions {
    // Less than what the host has, so that how much that is changes nothing.
    AdviceOptions { device_bytes: Some(64 * BIG), ..AdviceOptions::default() }
}

/// Steps of the same ten blocks.
fn run(pool: &MemPool, steps: usize) {
    for _ in 0..steps {
        let blocks: Vec<Vec<u8>> = (1..=10).map(|size| pool.with(|| vec![1; size * BIG / 2])).collect();
        drop(blocks);
        mark_step();
    }
}

#[test]
fn a_history_is_replayed_and_advised_on() {
    let _alone = alone();
    let pool = MemPool::new().unwrap();
    let kept = pool.with(|| vec![1_u8; 3 * BIG]);
    record_history(HistoryOptions::default()).unwrap();
    run(&pool, 20);
    let advice = pool.advise(&options()).unwrap();
    stop_history();
    let Evidence::Run { allocations, .. } = advice.evidence else { panic!("{advice}") };
    // Steps of other tests are marked meanwhile, but nobody else allocates here.
    assert_eq!(allocations, 201, "what was live before is one of them");
    assert!(advice.unknown.contains(&Unknown::Before { blocks: 1 }), "{advice}");
    assert!(!advice.unknown.contains(&Unknown::Duration), "entries have times");
    let sum_bytes: usize = (1..=10).map(|size| size * BIG / 2).sum();
    assert_eq!(advice.sizes.peak_requested_bytes, sum_bytes + 3 * BIG);
    assert!(advice.predictions.iter().all(|policy| policy.conf != "policy:segments"), "it is no host's");
    // Advice changes nothing of what it is about.
    assert_eq!(pool.stats().blocks.current, 1);
    drop(kept);
}

#[test]
fn without_a_history_counters_have_to_do() {
    let _alone = alone();
    stop_history();
    let pool = MemPool::new().unwrap();
    assert_eq!(pool.advise(&options()), Err(AdviceError::Empty));
    run(&pool, 20);
    let advice = pool.advise(&options()).unwrap();
    assert_eq!(advice.evidence, Evidence::Counters { requests: 200 });
    assert_eq!(advice.recommendation.strategy, Strategy::Pool, "most requests are hits: {advice}");
    assert!(
        advice.unknown.contains(&Unknown::Lifetimes) && advice.unknown.contains(&Unknown::SizesInBuckets)
    );
    let counted: u64 = advice.sizes.buckets.iter().map(|bucket| bucket.requests).sum();
    assert_eq!(counted, 200);
    // A history that has just begun tells too little, too.
    record_history(HistoryOptions::default()).unwrap();
    run(&pool, 1);
    let advice = pool.advise(&options()).unwrap();
    stop_history();
    assert_eq!(advice.evidence, Evidence::Counters { requests: 210 });
}
