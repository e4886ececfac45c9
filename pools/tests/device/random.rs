//! Random programs on a simulated machine.

use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::program::{kinds, ops, run, run_on, streams_of_one_handle};
use crate::world::SimulatedWorld;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn programs_run_right(seed in any::<u64>(), ops in ops(false)) {
        let wrong = run(Arc::new(SimulatedWorld::new(seed)), &ops);
        prop_assert!(wrong.is_empty(), "{wrong:#?}");
    }

    #[test]
    fn programs_run_right_while_driver_calls_fail(seed in any::<u64>(), ops in ops(true)) {
        let wrong = run(Arc::new(SimulatedWorld::new(seed)), &ops);
        prop_assert!(wrong.is_empty(), "{wrong:#?}");
    }
}

#[test]
fn programs_run_right_on_every_kind_of_pool() {
    for kind in kinds() {
        let config = Config { cases: cases().div_ceil(40), failure_persistence: None, ..Config::default() };
        let tried = TestRunner::new(config).run(&(any::<u64>(), ops(true)), |(seed, ops)| {
            let wrong = run_on(Arc::new(SimulatedWorld::new(seed)), &kind, &ops);
            prop_assert!(wrong.is_empty(), "{wrong:#?}");
            Ok(())
        });
        tried.unwrap_or_else(|error| panic!("{kind}: {error}"));
    }
}

#[test]
fn streams_that_get_one_handle_are_told_apart() {
    let wrong = streams_of_one_handle(Arc::new(SimulatedWorld::new(2)));
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Programs of each kind: 400, or what `PROPTEST_CASES` says.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(400)
}
