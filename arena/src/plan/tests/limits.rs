//! What is left out when the budget ends, and that it ends planning.

use std::time::Instant;

use super::super::*;
use super::nets;

/// More than a machine without optimisation and with other work needs for the first plan of 20,000 buffers.
const FIRST: Duration = Duration::from_secs(5);

fn timed(planner: &Planner, buffers: &[Buffer]) -> (Plan, Duration) {
    let start = Instant::now();
    let plan = planner.plan(buffers).unwrap();
    let taken = start.elapsed();
    assert_eq!(verify(buffers, planner.granule_bytes, &plan), Ok(()));
    (plan, taken)
}

#[test]
fn a_budget_that_ends_before_the_quick_plans_leaves_a_plan_and_says_so() {
    let planner = Planner { budget: Duration::from_nanos(1), tolerance: 0.0, ..Planner::default() };
    for buffers in [nets::random_lifetimes(20_000, 1), nets::short_lifetimes(20_000, 1)] {
        let (plan, taken) = timed(&planner, &buffers);
        assert_eq!(plan.cut, Cut::Quick);
        assert!(plan.ratio() < 1.3, "{}", plan.ratio());
        assert!(taken < FIRST, "{taken:?}");
    }
}

#[test]
fn a_search_ends_with_the_budget_whatever_it_does() {
    let budget = Duration::from_millis(300);
    let planner = Planner { budget, tolerance: 0.0, ..Planner::default() };
    // Below and above what corners are searched with.
    for count in [300, 3_900, 20_000] {
        let (plan, taken) = timed(&planner, &nets::random_lifetimes(count, 2));
        assert!(plan.cut != Cut::Nothing || plan.ratio() == 1.0, "{count}: the search ends only there");
        assert!(taken < budget + FIRST, "{count}: {taken:?}");
    }
}

#[test]
fn what_is_good_enough_is_not_cut() {
    let nested = nets::trained_decoder(100, 1);
    for budget in [Duration::ZERO, Duration::from_secs(5)] {
        let (plan, _) = timed(&Planner { budget, ..Planner::default() }, &nested);
        assert_eq!(plan.cut, Cut::Nothing);
    }
}

#[test]
fn without_a_budget_nothing_is_searched() {
    let buffers = nets::random_lifetimes(500, 1);
    let (plan, _) = timed(&Planner { tolerance: 0.0, ..Planner::default() }, &buffers);
    assert_eq!(plan.cut, Cut::Search);
}

#[test]
fn deeply_nested_lifetimes_are_cut_into_parts_for_a_while_only() {
    // Each round of cutting takes out one buffer.
    let buffers: Vec<Buffer> =
        (0..5_000_u64).map(|at| Buffer::new(at, 20_000 - at, 3 + at as usize)).collect();
    let (plan, taken) = timed(&Planner::default(), &buffers);
    assert_eq!(plan.peak_bytes, plan.max_live_bytes);
    assert!(taken < FIRST, "{taken:?}");
}
