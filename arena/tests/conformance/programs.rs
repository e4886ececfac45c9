//! Random programs against the model, with limits and injected upstream failures.

use proptest::prelude::*;

use crate::model::Checked;
use crate::{MakePlacement, arena};

#[derive(Debug, Clone)]
pub enum Step {
    Allocate { size: usize, align_shift: u32 },
    Free(prop::sample::Index),
    Resize(prop::sample::Index, usize),
    Trim(usize),
    TakeInAdvance(usize),
    AllocateGrowing { size: usize, growth_bytes: usize },
    Keep(usize),
    FailMap { number: u64, partial_pages: usize },
    FailUnmap { number: u64, partial_pages: usize },
    FailReserve(u64),
    FailRelease(u64),
    Capacity(usize),
    ResetPeaks,
}

fn size() -> impl Strategy<Value = usize> {
    // Mostly few distinct sizes, as models have, and now and then any size.
    prop_oneof![
        4 => prop::sample::select(vec![0, 1, 255, 256, 4096, 40_000, 65_536, 100_000, 262_144]),
        3 => 1..3_000_usize,
        2 => 1..300_000_usize,
        1 => 1..3_000_000_usize,
    ]
}

pub fn step() -> impl Strategy<Value = Step> {
    let any_block = any::<prop::sample::Index>();
    prop_oneof![
        12 => (size(), prop_oneof![4 => Just(0_u32), 1 => 0..20_u32])
            .prop_map(|(size, align_shift)| Step::Allocate { size, align_shift }),
        10 => any_block.clone().prop_map(Step::Free),
        3 => (any_block, size()).prop_map(|(at, size)| Step::Resize(at, size)),
        1 => prop_oneof![Just(usize::MAX), 0..1_000_000_usize].prop_map(Step::Trim),
        1 => (0..3_000_000_usize).prop_map(Step::TakeInAdvance),
        2 => (size(), 0..2_000_000_usize)
            .prop_map(|(size, growth_bytes)| Step::AllocateGrowing { size, growth_bytes }),
        1 => prop_oneof![Just(0), 0..3_000_000_usize].prop_map(Step::Keep),
        1 => (1..4_u64, 0..4_usize)
            .prop_map(|(number, partial_pages)| Step::FailMap { number, partial_pages }),
        1 => (1..4_u64, 0..4_usize)
            .prop_map(|(number, partial_pages)| Step::FailUnmap { number, partial_pages }),
        1 => (1..3_u64).prop_map(Step::FailReserve),
        1 => (1..3_u64).prop_map(Step::FailRelease),
        1 => prop_oneof![Just(usize::MAX), 0..8_000_000_usize].prop_map(Step::Capacity),
        1 => Just(Step::ResetPeaks),
    ]
}

pub fn run(make: MakePlacement, limit_bytes: Option<usize>, steps: Vec<Step>) {
    let mut checked = Checked::new(arena(make, limit_bytes), limit_bytes);
    for step in steps {
        match step {
            Step::Allocate { size, align_shift } => {
                checked.allocate(size, 1 << align_shift);
            }
            Step::Free(at) if !checked.live.is_empty() => checked.free(at.index(checked.live.len())),
            Step::Resize(at, size) if !checked.live.is_empty() => {
                checked.resize(at.index(checked.live.len()), size);
            }
            Step::Free(_) | Step::Resize(..) => {}
            Step::Trim(target) => {
                let before = checked.arena.stats().reserved.current;
                let returned = checked.arena.trim(target);
                assert_eq!(before - returned, checked.arena.stats().reserved.current);
                let least = before.min(checked.kept_bytes);
                assert!(checked.arena.stats().reserved.current >= least, "no less than {least} stays");
            }
            Step::TakeInAdvance(bytes) => checked.take_in_advance(bytes),
            Step::AllocateGrowing { size, growth_bytes } => checked.allocate_growing(size, growth_bytes),
            Step::Keep(bytes) => checked.keep(bytes),
            Step::FailMap { number, partial_pages } => {
                checked.arena.upstream_mut().fail_map(number);
                checked.arena.upstream_mut().complete_before_failing(partial_pages);
            }
            Step::FailUnmap { number, partial_pages } => {
                checked.arena.upstream_mut().fail_unmap(number);
                checked.arena.upstream_mut().complete_before_failing(partial_pages);
            }
            Step::FailReserve(number) => checked.arena.upstream_mut().fail_reserve(number),
            Step::FailRelease(number) => checked.arena.upstream_mut().fail_release(number),
            Step::Capacity(bytes) => checked.arena.upstream_mut().set_capacity_bytes(bytes),
            Step::ResetPeaks => checked.arena.reset_peaks(),
        }
        checked.check();
    }
    checked.finish();
}

macro_rules! instantiate {
    ($make:path) => {
        mod programs {
            use proptest::prelude::*;

            use $crate::programs::{run, step};

            proptest! {
                #![proptest_config(ProptestConfig::with_cases(256))]
                #[test]
                fn random_programs_keep_every_invariant(
                    limit in prop_oneof![Just(None), (1..4_000_000_usize).prop_map(Some)],
                    steps in prop::collection::vec(step(), 1..120),
                ) {
                    run($make, limit, steps);
                }
            }
        }
    };
}
pub(crate) use instantiate;
