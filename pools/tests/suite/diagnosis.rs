//! What diagnoses say of programs without candle: faults of which sizes and times differ, and programs that have none.

use mempool_pools::diagnosis::{Cause, Diagnosis, Severity};
use mempool_pools::{
    CallStacks, HistoryMode, HistoryOptions, MemPool, label, mark_step, record_history, stop_history,
};

use crate::suite::BIG;
use crate::suite::history::alone;

fn block(bytes: usize) -> Vec<u8> {
    // Memory that is reserved and never touched costs the test nothing.
    Vec::with_capacity(bytes)
}

fn problems(diagnosis: &Diagnosis) -> Vec<Cause> {
    diagnosis.problems().map(|finding| finding.cause).collect()
}

#[test]
fn a_model_that_is_loaded_and_a_window_of_the_last_things_do_not_grow() {
    let _alone = alone();
    record_history(HistoryOptions::new()).unwrap();
    let pool = MemPool::new().unwrap();
    let weights: Vec<Vec<u8>> = pool.with(|| (0..100).map(|_| block(BIG)).collect());
    let diagnosis = pool.snapshot().diagnose();
    assert_eq!(problems(&diagnosis), [], "{diagnosis}");
    drop(weights);
    for options in [
        HistoryOptions::new().mode(HistoryMode::State),
        HistoryOptions::new(),
        HistoryOptions::new().max_entries(40),
    ] {
        record_history(options).unwrap();
        let pool = MemPool::new().unwrap();
        let mut window = std::collections::VecDeque::new();
        for _ in 0..1000 {
            let _label = label("window");
            window.push_back(pool.with(|| block(BIG)));
            if window.len() > 20 {
                window.pop_front();
            }
            mark_step();
        }
        let diagnosis = pool.snapshot().diagnose();
        assert_eq!(diagnosis.find(Cause::GrowsEachStep), None, "{options:?}: {diagnosis}");
    }
    stop_history();
}

#[test]
fn what_grows_is_found_whatever_its_sizes_and_however_seldom_it_is() {
    let _alone = alone();
    for (leaks_each, stacks) in [(1, CallStacks::All), (12, CallStacks::None)] {
        record_history(HistoryOptions::new().call_stacks(stacks)).unwrap();
        let pool = MemPool::new().unwrap();
        let mut kept = Vec::new();
        for step in 0..60_usize {
            let _label = label("step");
            drop(pool.with(|| block(5 * BIG)));
            if step % leaks_each == 0 {
                let _label = label("leak");
                kept.push(pool.with(|| block(leaks_each * BIG + step * 1000)));
            }
            mark_step();
        }
        let diagnosis = pool.snapshot().diagnose();
        let grows =
            diagnosis.find(Cause::GrowsEachStep).unwrap_or_else(|| panic!("{leaks_each}: {diagnosis}"));
        assert_eq!((grows.severity, grows.sites[0].blocks), (Severity::Problem, 60 / leaks_each));
        let site = &grows.sites[0].name;
        assert!(site.starts_with("diagnosis.rs:") || site == "step/leak", "{site}");
    }
    stop_history();
}

#[test]
fn a_service_whose_requests_find_what_the_last_one_left_has_no_problem() {
    let _alone = alone();
    record_history(HistoryOptions::new()).unwrap();
    let pool = MemPool::new().unwrap();
    let weights: Vec<Vec<u8>> = pool.with(|| (0..12).map(|_| block(BIG)).collect());
    for _ in 0..300 {
        drop(pool.with(|| block(BIG)));
        mark_step();
    }
    let diagnosis = pool.snapshot().diagnose();
    assert_eq!(problems(&diagnosis), [], "{diagnosis}");
    drop(weights);
    stop_history();
}

#[test]
fn a_pool_that_was_hardly_used_yet_is_not_called_too_large_for_good() {
    let _alone = alone();
    stop_history();
    let pool = MemPool::builder().fixed_size(100 * BIG).build().unwrap();
    let kept = pool.with(|| block(10 * BIG));
    let diagnosis = pool.snapshot().diagnose();
    let finding = diagnosis.find(Cause::PoolTooLarge).unwrap();
    assert_eq!(finding.severity, Severity::Notice);
    assert!(finding.text.contains("since peaks were last reset"), "{finding}");
    drop(kept);
}

#[test]
fn nothing_grows_between_snapshots_because_a_history_begins_or_ends() {
    let _alone = alone();
    stop_history();
    let pool = MemPool::new().unwrap();
    let kept = pool.with(|| block(BIG));
    let mut before = pool.snapshot();
    let begin = || record_history(HistoryOptions::new()).unwrap();
    for change in [begin, begin, stop_history] {
        change();
        let now = pool.snapshot();
        assert_eq!(now.diff(&before), []);
        before = now;
    }
    begin();
    let before = pool.snapshot();
    let address = kept.as_ptr().addr();
    drop(kept);
    let new = pool.with(|| block(BIG));
    assert_eq!(new.as_ptr().addr(), address, "the same place");
    assert_eq!(pool.snapshot().diff(&before).len(), 1);
    stop_history();
}
