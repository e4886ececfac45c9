//! Planned steps in device memory. The simulator reports work of two owners on one byte, however far the
//! program runs ahead.

use mempool_pools::device::Stream;
use mempool_pools::{MemPool, StepPlan};
use proptest::prelude::*;

use crate::support::{Block, MIB, Machine};

const OWN: Stream = Stream::PER_THREAD;

/// Blocks of some MiB, each written, and ended when so many more have come.
fn run(machine: &Machine, requests: &[(usize, usize)]) {
    let mut live: Vec<(usize, Block<'_>)> = Vec::new();
    for (at, &(mib, lifetime)) in requests.iter().enumerate() {
        let (ended, rest) = live.into_iter().partition(|&(end, _)| end <= at);
        live = rest;
        ended.into_iter().for_each(|(_, block): (usize, Block<'_>)| block.free(OWN));
        let block = machine.allocate(mib * MIB, OWN);
        block.write(OWN);
        live.push((at + lifetime, block));
    }
    live.into_iter().for_each(|(_, block)| {
        block.write(OWN);
        block.free(OWN);
    });
}

const REQUESTS: [(usize, usize); 6] = [(3, 2), (5, 1), (2, 3), (8, 1), (1, 2), (4, 1)];

fn planned(machine: &Machine, pool: &MemPool) -> StepPlan {
    let mut step = pool.step();
    for _ in 0..3 {
        step.run(|| run(machine, &REQUESTS));
    }
    assert!(step.stats().planned_runs > 0, "{:?}", step.stats());
    step
}

fn pool(machine: &Machine) -> MemPool {
    machine.device.pool_builder().build().unwrap()
}

#[test]
fn a_planned_step_calls_the_driver_for_nothing() {
    let machine = Machine::new();
    let pool = pool(&machine);
    let mut step = planned(&machine, &pool);
    let before = (pool.stats(), step.stats());
    for _ in 0..10 {
        step.run(|| run(&machine, &REQUESTS));
    }
    let after = (pool.stats(), step.stats());
    assert_eq!(after.0.map_calls, before.0.map_calls);
    assert_eq!(after.0.blocks.total_allocated, before.0.blocks.total_allocated);
    assert_eq!(after.1.planned - before.1.planned, 60);
    assert_eq!(after.1.planned_runs - before.1.planned_runs, 10);
    machine.check();
    pool.validate().unwrap();
}

#[test]
fn a_place_freed_on_another_stream_waits_for_that_streams_work() {
    let machine = Machine::new();
    let other = machine.simulator.create_stream(false).unwrap();
    let pool = pool(&machine);
    let mut step = pool.step();
    for _ in 0..12 {
        step.run(|| {
            let one = machine.allocate(4 * MIB, OWN);
            one.write(OWN);
            let event = machine.simulator.create_event();
            machine.simulator.record_event(event, OWN).unwrap();
            machine.simulator.wait_event(other, event).unwrap();
            one.write(other);
            // Freed where it was used last: its place is not to be used before that is done.
            one.free(other);
            let two = machine.allocate(4 * MIB, OWN);
            two.write(OWN);
            two.free(OWN);
        });
        pool.validate().unwrap();
    }
    machine.check();
    drop(step);
    pool.trim().unwrap();
    assert_eq!(pool.stats().reserved.current, 0);
}

#[test]
fn each_stream_of_a_step_has_a_plan_of_its_own() {
    let machine = Machine::new();
    let other = machine.simulator.create_stream(false).unwrap();
    let pool = pool(&machine);
    let mut step = pool.step();
    for _ in 0..6 {
        step.run(|| {
            for stream in [OWN, other, OWN, other] {
                let block = machine.allocate(4 * MIB, stream);
                block.write(stream);
                block.free(stream);
            }
        });
    }
    let stats = step.stats();
    assert_eq!((stats.plans, stats.slab_bytes), (2, 8 * MIB), "{stats:?}");
    machine.check();
}

#[test]
fn results_that_are_kept_and_pools_that_go_leave_nothing_behind() {
    let machine = Machine::new();
    let free_before = machine.device_free();
    let pool = pool(&machine);
    let mut step = pool.step();
    let mut kept: Vec<Block<'_>> = Vec::new();
    for number in 0..9 {
        let result = step.run(|| {
            let scratch = machine.allocate(6 * MIB, OWN);
            let result = machine.allocate(2 * MIB, OWN);
            result.write(OWN);
            scratch.free(OWN);
            run(&machine, &REQUESTS);
            result
        });
        kept.push(result);
        if number % 3 == 2 {
            kept.drain(..2).for_each(|block| block.free(OWN));
        }
        kept.iter().for_each(|block| block.write(OWN));
    }
    drop(step);
    drop(pool);
    kept.into_iter().for_each(|block| {
        block.write(OWN);
        block.free(OWN);
    });
    machine.check();
    machine.simulator.finish();
    // Memory goes when the next pool looks after what is left.
    assert_eq!(machine.device.empty_cache(), 0);
    assert_eq!(machine.device_free(), free_before);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn whatever_a_run_does_no_two_blocks_share_a_byte(
        usual in prop::collection::vec((1..9_usize, 1..6_usize), 1..12),
        runs in prop::collection::vec(
            prop::option::of((any::<prop::sample::Index>(), 1..12_usize, 1..20_usize)),
            4..14,
        ),
    ) {
        let machine = Machine::new();
        let pool = pool(&machine);
        let mut step = pool.step().max_plans(2);
        for change in runs {
            let mut requests = usual.clone();
            if let Some((at, mib, lifetime)) = change {
                let at = at.index(requests.len() + 1);
                match requests.get_mut(at) {
                    Some(request) => *request = (mib, lifetime),
                    None => requests.push((mib, lifetime)),
                }
            }
            step.run(|| run(&machine, &requests));
            pool.validate().unwrap();
            machine.check();
        }
    }
}
