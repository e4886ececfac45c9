use candle_mempool::Policy;

use super::*;
use crate::RUNS;
use crate::simulated::Simulated;
use crate::steps::{State, run};

fn simulated(policy: Policy, isolated: bool, steps: usize) -> Outcome {
    run(&mut Simulated::new(policy, isolated).unwrap(), steps, || {}).unwrap()
}

#[test]
fn every_run_ends_as_it_has_to() {
    for (name, policy, isolated, expected) in RUNS {
        expected.check(name, &simulated(policy, isolated, 1000), 1000).unwrap();
    }
}

#[test]
fn memory_runs_out_while_a_big_blocks_worth_of_it_is_free() {
    let (step, state) = simulated(Policy::Torch, false, 1000).out_of_memory.unwrap();
    // Five survivors fit beside the weights; the sixth lies in the big block's segment.
    assert_eq!(step, 7);
    assert!(state.reserved_bytes <= LIMIT_BYTES);
    assert!(state.largest_free_bytes < BIG_BYTES);
    assert_eq!(state.largest_free_bytes, BIG_BYTES - SURVIVOR_BYTES);
}

#[test]
fn a_run_that_ends_otherwise_is_an_error() {
    let flat = Outcome { out_of_memory: None, reserved_bytes: vec![72; 300] };
    let growing = Outcome { out_of_memory: None, reserved_bytes: (0..300).collect() };
    let out = Outcome { out_of_memory: Some((7, State::default())), reserved_bytes: vec![72; 6] };
    assert!(Expected::Flat.check("", &flat, 300).is_ok());
    assert!(Expected::OutOfMemory.check("", &out, 300).is_ok());
    for (expected, outcome) in
        [(Expected::Flat, &growing), (Expected::Flat, &out), (Expected::OutOfMemory, &flat)]
    {
        assert!(expected.check("", outcome, 300).is_err(), "{expected:?}");
    }
}

#[test]
fn what_is_reserved_is_shown_at_each_mark() {
    let flat = Outcome { out_of_memory: None, reserved_bytes: vec![72 << 20; 250] };
    let text = lines("name", &flat);
    assert!(text.contains("250 steps; reserved at most 72.0 MiB"), "{text}");
    assert!(text.ends_with(": 72 72\n"), "{text}");
}
