//! The random programs find planted faults: each in a process of its own that is made wrong.

#[path = "../memory_viz.rs"]
mod memory_viz;
mod moving_program;
mod program;
#[path = "../recount.rs"]
mod recount;
mod world;

use std::process::Command;
use std::sync::Arc;

use mempool_pools::device::fault::{Fault, plant};
use proptest::arbitrary::any;
use proptest::collection::vec;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use world::SimulatedWorld;

/// Programs that are tried before a fault counts as not found.
const PROGRAMS: u64 = 1000;
const NOT_FOUND: i32 = 7;

/// Runs programs until one goes wrong, and says how many it took.
fn programs_until_wrong() -> Option<(u64, String)> {
    if let Some(first) = program::streams_of_one_handle(Arc::new(SimulatedWorld::new(0))).into_iter().next() {
        return Some((1, first));
    }
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let ops = program::ops(false);
    let moving_ops = vec(any::<moving_program::Op>(), 1..160);
    (1..=PROGRAMS).find_map(|seed| {
        let ops = ops.new_tree(&mut runner).expect("a program").current();
        let moving_ops = moving_ops.new_tree(&mut runner).expect("a program").current();
        let mut wrong = program::run(Arc::new(SimulatedWorld::new(seed)), &ops);
        wrong.extend(moving_program::run(seed, &moving_ops));
        wrong.into_iter().next().map(|first| (seed, first))
    })
}

#[test]
fn each_planted_fault_is_found() {
    if let Ok(number) = std::env::var("PLANTED_FAULT") {
        let number: u8 = number.parse().expect("a number");
        if let Some(fault) = Fault::ALL.into_iter().find(|&fault| fault as u8 == number) {
            plant(fault);
        }
        match programs_until_wrong() {
            Some((count, first)) => println!("found after {count} programs: {first}"),
            None => std::process::exit(NOT_FOUND),
        }
        return;
    }
    let run = |number: u8| {
        Command::new(std::env::current_exe().expect("this program"))
            .args(["each_planted_fault_is_found", "--exact", "--nocapture"])
            .env("PLANTED_FAULT", number.to_string())
            .output()
            .expect("a process")
    };
    assert_eq!(run(0).status.code(), Some(NOT_FOUND), "without a fault nothing is found");
    let mut missed = Vec::new();
    for fault in Fault::ALL {
        let output = run(fault as u8);
        let text = String::from_utf8_lossy(&output.stdout);
        let found = text.lines().find(|line| line.contains("found after")).unwrap_or("the process ended");
        println!("{fault:?}: {found}");
        // A process that ends by itself, because its books are broken, has found the fault too.
        if output.status.code() == Some(NOT_FOUND) {
            missed.push(fault);
        }
    }
    assert_eq!(missed, [], "these are not found");
}
