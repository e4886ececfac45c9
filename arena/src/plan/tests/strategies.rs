//! Each way of placing by itself: whatever it returns is a placement, and as low as it says.

use std::thread;

use proptest::prelude::*;

use super::super::clock::Limit;
use super::super::corner::{Outcome, Search};
use super::super::first_fit::{ORDER_COUNT, Placement, order, place};
use super::super::occupied::Occupied;
use super::super::preorder::{PREORDERS, Preorder};
use super::super::random::Random;
use super::super::reorder::Reorder;
use super::super::resweep::Resweep;
use super::super::sweep::{Center, Schedule, Within, center};
use super::super::*;
use super::buffer;

const SOON: Duration = Duration::from_millis(20);

/// Fails unless the placement is one of the problem's.
fn check(problem: &Problem, placement: &Placement, made_by: &str) -> Result<(), TestCaseError> {
    let buffer = |item: &problem::Item| Buffer {
        align_bytes: item.align,
        ..Buffer::new(item.first.into(), item.end.into(), item.size)
    };
    let buffers: Vec<Buffer> = problem.items.iter().map(buffer).collect();
    let (offsets, peak_bytes) = (placement.offsets.clone(), placement.peak);
    let plan = Plan { offsets, peak_bytes, ..Plan::default() };
    prop_assert_eq!(verify(&buffers, 1, &plan), Ok(()), "{}", made_by);
    prop_assert!(peak_bytes >= problem.max_live(), "{}: {} is too low", made_by, peak_bytes);
    Ok(())
}

fn instance() -> impl Strategy<Value = Vec<Buffer>> {
    // Dense in time and sparse, of like sizes and of unlike ones, aligned or not.
    prop_oneof![
        prop::collection::vec(buffer(8, 12, 1), 1..40),
        prop::collection::vec(buffer(40, 1 << 20, 1), 1..150),
        prop::collection::vec(buffer(500, 100, 16), 1..150),
        prop::collection::vec(buffer(60, 7, 5), 1..100),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn every_sweep_and_every_order_places_all(buffers in instance(), seed in any::<u64>()) {
        let (problem, _) = checked(&buffers, 1).unwrap();
        prop_assume!(!problem.items.is_empty());
        let mut random = Random::new(seed);
        let mut schedule = Schedule::new(&problem);
        for within in [Within::Length, Within::Size, Within::Area] {
            schedule.order(&problem, within);
            let start = random.below(problem.sections as usize) as u32;
            for by in [Center::Nearer, Center::Birth, Center::Death, Center::Length, Center::Shaken] {
                for start in [0, schedule.fullest, start, problem.sections - 1] {
                    let center = center(&problem, start, by, &mut random);
                    let found = schedule.sweep(&problem, start, center, usize::MAX, &mut Limit::none());
                    check(&problem, &found.unwrap(), &format!("{within:?}, {by:?} from {start}"))?;
                }
            }
        }
        let mut occupied = Occupied::new(&problem);
        for which in 0..ORDER_COUNT {
            let order = order(&problem, which);
            let found = place(&problem, &order, &mut occupied, usize::MAX, &mut Limit::none()).unwrap();
            check(&problem, &found, &format!("order {which}"))?;
            // What ends above a bound is given up, and only that.
            let again = place(&problem, &order, &mut occupied, found.peak, &mut Limit::none());
            prop_assert_eq!(again, Some(found.clone()));
            prop_assert_eq!(place(&problem, &order, &mut occupied, found.peak - 1, &mut Limit::none()), None);
        }
    }

    #[test]
    fn every_search_returns_placements_and_never_worse_ones(buffers in instance(), seed in any::<u64>()) {
        let (problem, _) = checked(&buffers, 1).unwrap();
        prop_assume!(!problem.items.is_empty());
        let mut random = Random::new(seed);
        let mut quick = Quick::new(&problem, &mut Limit::none());
        check(&problem, &quick.best, "the first sweep")?;
        let (first, goal) = (quick.best.clone(), problem.max_live());
        quick.improve(&problem, goal, &mut Limit::none());
        check(&problem, &quick.best, "the quick ones")?;
        prop_assert!(quick.best.peak <= first.peak);
        let order = quick.order(&problem);
        let soon = || Limit::time(Deadline::after(SOON));

        let mut found = first.clone();
        Reorder::new(&problem, order.clone(), first.clone()).improve(&problem, &mut found, goal, &mut random, &mut soon());
        check(&problem, &found, "reordering")?;
        prop_assert!(found.peak <= first.peak);

        let mut found = first.clone();
        Resweep::new(&problem).improve(&problem, &mut found, goal, &mut random, &mut soon());
        check(&problem, &found, "sweeping again")?;
        prop_assert!(found.peak <= first.peak);

        let mut found = first.clone();
        search::search(&problem, order, &mut found, goal, Deadline::after(SOON));
        check(&problem, &found, "the search")?;
        prop_assert!(found.peak <= first.peak);
    }

    #[test]
    fn what_a_corner_search_finds_ends_below_its_capacity(buffers in instance(), slack in 0..100_usize) {
        let (problem, _) = checked(&buffers, 1).unwrap();
        let capacity = problem.max_live() + problem.max_live() * slack / 200;
        // It goes as deep as there are buffers, deeper than a test's stack.
        let run = || -> Result<(), TestCaseError> {
            let mut search = Search::new(&problem, capacity);
            for by in PREORDERS {
                if search.run(&Preorder::new(by), 2_000, Deadline::never()) == Outcome::Found {
                    let found = Placement::new(&problem, search.offsets());
                    check(&problem, &found, &format!("{by:?}"))?;
                    prop_assert!(found.peak <= capacity);
                }
            }
            Ok(())
        };
        thread::scope(|scope| {
            let thread = thread::Builder::new().stack_size(64 << 20).spawn_scoped(scope, run);
            thread.unwrap().join().unwrap()
        })?;
    }

    #[test]
    fn plans_hold_whatever_the_budget_and_fit_where_they_say_so(
        buffers in instance(),
        budget_us in prop_oneof![Just(0), 1..200_u64, 1_000..20_000_u64],
        percent in prop::option::of(50..150_usize),
        granule_bytes in 1..40_usize,
    ) {
        let live = checked(&buffers, 1).unwrap().0.max_live();
        let capacity_bytes = percent.map(|percent| live * percent / 100);
        let budget = Duration::from_micros(budget_us);
        let planner = Planner { granule_bytes, capacity_bytes, budget, tolerance: 0.0 };
        let plan = planner.plan(&buffers).unwrap();
        prop_assert_eq!(verify(&buffers, granule_bytes, &plan), Ok(()));
        prop_assert_eq!(plan.max_live_bytes, live);
        prop_assert!(plan.peak_bytes >= live);
        // Whoever is told that nothing was left out has what was asked for, or it cannot be had.
        if plan.cut == Cut::Nothing && granule_bytes == 1 && capacity_bytes.is_some_and(|bytes| bytes >= live) {
            let patient = Planner { budget: Duration::from_millis(200), ..planner };
            let fits = |plan: &Plan| Some(plan.peak_bytes) <= capacity_bytes;
            prop_assert!(fits(&plan) || !fits(&patient.plan(&buffers).unwrap()));
        }
    }

    #[test]
    fn whatever_the_numbers_are_there_is_a_plan_or_an_error(
        buffers in prop::collection::vec(extreme(), 0..12),
        granule_bytes in number(),
        capacity_bytes in prop::option::of(number()),
        budget_us in prop_oneof![Just(0), 1..2_000_u64],
        tolerance in prop_oneof![Just(0.0), Just(-1.0), Just(f64::INFINITY), Just(f64::NAN), 0.0..1e300],
    ) {
        let budget = Duration::from_micros(budget_us);
        let planner = Planner { granule_bytes, capacity_bytes, budget, tolerance };
        if let Ok(plan) = planner.plan(&buffers) {
            prop_assert_eq!(verify(&buffers, granule_bytes, &plan), Ok(()));
            prop_assert!(plan.peak_bytes >= plan.max_live_bytes);
        }
    }
}

/// Any number, the ends of each range more often than others.
fn number() -> impl Strategy<Value = usize> {
    prop_oneof![0..9_usize, Just(usize::MAX), (0..64_u32).prop_map(|bit| 1 << bit), any::<usize>()]
}

fn extreme() -> impl Strategy<Value = Buffer> {
    (number(), number(), number(), prop_oneof![Just(1), number()]).prop_map(
        |(lower, upper, size_bytes, align_bytes)| Buffer {
            lower: lower.min(upper) as u64,
            upper: lower.max(upper) as u64,
            size_bytes,
            align_bytes,
        },
    )
}
