//! Searching for a better placement until time is over.
//!
//! Three searches take turns, because none is good at all problems: corners ([`super::corner`]) where items have to
//! fit exactly, reordering ([`super::reorder`]) where there are many or some slack, and sweeps ([`super::resweep`])
//! where one time is fuller than all others, which for thousands of items makes two attempts at reordering take as
//! long as a hundred sweeps.
//!
//! A corner search mostly either finds a placement with few steps back or gets lost. So it begins anew with another
//! order after some steps, and each round of orders is allowed more (such heavy-tailed searches need restarts: Gomes,
//! Selman and Kautz, "Boosting combinatorial search through randomization", AAAI 1998).

use std::thread;
use std::time::Duration;

use super::clock::{Deadline, Limit};
use super::corner::{MOST_DEPTH, Outcome, Search};
use super::first_fit::Placement;
use super::preorder::{PREORDERS, Preorder};
use super::problem::Problem;
use super::random::Random;
use super::reorder::Reorder;
use super::resweep::Resweep;

/// Steps an item in the first round of orders: a placement takes one or two an item.
const STEPS_AN_ITEM: f64 = 5.0;
/// How much more each round has than the one before.
const GROWTH: f64 = 1.2;
/// How far the values that an order is made of are off in the rounds after the first: no one serves all problems.
const SPREADS: [f64; 3] = [0.3, 1.0, 3.0];
/// Corners are searched with no more items: a step looks at all of them, and each knows all it meets.
const MOST_ITEMS: usize = 4_000;
/// The first turn of each search; each next one is half as long again.
const TURN: Duration = Duration::from_millis(500);
/// The more items, the less promising are corners: with so many, reordering has as long a turn.
const ITEMS_FOR_A_TURN: f64 = 1000.0;
/// Sweeps are fast: a part of that turn tells whether they lead anywhere.
const SWEEPING: f64 = 0.25;
/// What is tried between the goal and what is known ends where less than one in so many of it is left.
const FRACTION: usize = 16;
/// Stack of a level of the corner search, enough without optimisation, too.
const LEVEL_BYTES: usize = 8 << 10;

/// Improves on `best`, which `order` led to, until it ends at `goal` or below, nothing is better, or time is over.
pub(super) fn search(
    problem: &Problem,
    order: Vec<u32>,
    best: &mut Placement,
    goal: usize,
    deadline: Deadline,
) {
    if deadline.is_over() {
        return;
    }
    if problem.items.len() > MOST_ITEMS {
        return without_corners(problem, order, best, goal, deadline);
    }
    // A corner search goes as deep as there are items; a caller's stack may be too short for that.
    thread::scope(|scope| {
        let turns = || take_turns(problem, order, best, goal, deadline);
        let thread = thread::Builder::new().name("plan".to_owned()).stack_size(MOST_DEPTH * LEVEL_BYTES);
        // Without a thread the quick placement is what there is. A panic in it is passed on by the scope.
        drop(thread.spawn_scoped(scope, turns));
    });
}

/// The search for so many items that corners are out of the question.
fn without_corners(
    problem: &Problem,
    order: Vec<u32>,
    best: &mut Placement,
    goal: usize,
    deadline: Deadline,
) {
    let mut random = Random::new(0);
    let mut resweep = Resweep::new(problem);
    let mut reorder = Reorder::new(problem, order, best.clone());
    let mut turn = TURN;
    while best.peak > goal && !deadline.is_over() {
        resweep.improve(problem, best, goal, &mut random, &mut Limit::time(deadline.within(turn)));
        reorder.improve(problem, best, goal, &mut random, &mut Limit::time(deadline.within(turn)));
        turn += turn / 2;
    }
}

fn take_turns(problem: &Problem, order: Vec<u32>, best: &mut Placement, goal: usize, deadline: Deadline) {
    let mut random = Random::new(0);
    let mut reorder = Reorder::new(problem, order, best.clone());
    let mut resweep = Resweep::new(problem);
    // Nothing below this is looked for: at first the goal, later what was proven.
    let mut least = goal.max(problem.max_live());
    let mut at_least = Corners::new(problem, least);
    // With no slack at all a search soon sees what cannot be; where the goal leaves some, both are tried.
    let mut without_slack = (least > problem.max_live()).then(|| Corners::new(problem, problem.max_live()));
    // As long as the goal is not reached, half the way to it, then half of what is left if that was too far.
    let mut between = least;
    let mut turn = TURN;
    let reordering = problem.items.len() as f64 / ITEMS_FOR_A_TURN;
    while best.peak > least && !deadline.is_over() {
        match at_least.run(problem, &mut random, deadline.within(turn)) {
            Attempt::Found(placement) => *best = placement,
            Attempt::Infeasible => {
                least += 1;
                at_least = Corners::new(problem, least);
                without_slack = None;
            }
            Attempt::Stopped => {}
        }
        if best.peak > least
            && let Some(corners) = &mut without_slack
        {
            match corners.run(problem, &mut random, deadline.within(turn)) {
                Attempt::Found(placement) => *best = placement,
                Attempt::Infeasible => without_slack = None,
                Attempt::Stopped => {}
            }
        }
        if best.peak > least {
            between = between.max(least);
            between += (best.peak - between) / 2;
            let mut corners = Corners::new(problem, between.min(best.peak - 1));
            match corners.run(problem, &mut random, deadline.within(turn / 4)) {
                Attempt::Found(placement) => (*best, between) = (placement, least),
                Attempt::Infeasible => {
                    least = corners.capacity + 1;
                    at_least = Corners::new(problem, least);
                }
                // Too little is left to be worth a turn: from the goal on again.
                Attempt::Stopped if best.peak - between <= (best.peak - least) / FRACTION => between = least,
                Attempt::Stopped => {}
            }
        }
        let end = deadline.within(turn.mul_f64(SWEEPING * reordering));
        resweep.improve(problem, best, least, &mut random, &mut Limit::time(end));
        let end = deadline.within(turn.mul_f64(reordering));
        reorder.improve(problem, best, least, &mut random, &mut Limit::time(end));
        turn += turn / 2;
    }
}

/// How looking for a placement below one capacity ended.
enum Attempt {
    Found(Placement),
    Infeasible,
    Stopped,
}

/// A corner search that begins anew with one order after the other.
struct Corners {
    search: Search,
    capacity: usize,
    steps: f64,
    round: u32,
}

impl Corners {
    fn new(problem: &Problem, capacity: usize) -> Self {
        let steps = STEPS_AN_ITEM * problem.items.len() as f64;
        Self { search: Search::new(problem, capacity), capacity, steps, round: 0 }
    }

    /// Searches on.
    fn run(&mut self, problem: &Problem, random: &mut Random, deadline: Deadline) -> Attempt {
        loop {
            for by in PREORDERS {
                let order = match self.round {
                    0 => Preorder::new(by),
                    round => {
                        let spread = SPREADS[round as usize % SPREADS.len()];
                        Preorder::shaken(by, problem.items.len(), spread, random)
                    }
                };
                match self.search.run(&order, self.steps as u64, deadline) {
                    Outcome::Found => return Attempt::Found(Placement::new(problem, self.search.offsets())),
                    Outcome::Infeasible => return Attempt::Infeasible,
                    Outcome::Stopped if deadline.is_over() => return Attempt::Stopped,
                    Outcome::Stopped => {}
                }
            }
            self.round += 1;
            self.steps *= GROWTH;
        }
    }
}
