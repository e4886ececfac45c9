//! Improving the order in which items are placed first-fit.
//!
//! What ends too high in one placement is placed earlier in the next (squeaky wheel optimization: Joslin and
//! Clements, JAIR 10, 1999). That scales to nets that a corner search cannot take, and gets near what lives where
//! nothing has to fit exactly.

use super::clock::Limit;
use super::first_fit::{Placement, place};
use super::occupied::Occupied;
use super::problem::Problem;
use super::random::Random;

/// So many items at most are moved at once.
const MOST_MOVES: usize = 3;
/// A small move is by no more places than this.
const SMALL_MOVE: usize = 20;
/// One in so many placements may be worse than the one before,
const WORSE_IN: usize = 50;
/// by no more than this part of what is between that and the goal.
const WORSE_BY: usize = 8;

/// An order that goes on being improved.
#[derive(Debug)]
pub(super) struct Reorder {
    order: Vec<u32>,
    current: Placement,
    occupied: Occupied,
}

impl Reorder {
    /// Begins with an order and what it leads to.
    pub(super) fn new(problem: &Problem, order: Vec<u32>, current: Placement) -> Self {
        Self { order, current, occupied: Occupied::new(problem) }
    }

    /// Improves on `best` until it ends at `goal` or below, or to the limit.
    pub(super) fn improve(
        &mut self,
        problem: &Problem,
        best: &mut Placement,
        goal: usize,
        random: &mut Random,
        limit: &mut Limit,
    ) {
        while best.peak > goal && !limit.is_over() {
            let order = self.moved(problem, goal, random);
            // A little worse is a way out.
            let worse = if random.below(WORSE_IN) == 0 { (self.current.peak - goal) / WORSE_BY } else { 0 };
            let most = self.current.peak + worse;
            let Some(found) = place(problem, &order, &mut self.occupied, most, limit) else {
                continue;
            };
            if found.peak < best.peak {
                *best = found.clone();
            }
            (self.order, self.current) = (order, found);
        }
    }

    /// The order with some of the items that end above the goal moved forward.
    fn moved(&self, problem: &Problem, goal: usize, random: &mut Random) -> Vec<u32> {
        let ends_high =
            |item: u32| self.current.offsets[item as usize] + problem.items[item as usize].size > goal;
        let high: Vec<u32> = self.order.iter().copied().filter(|&item| ends_high(item)).collect();
        let mut order = self.order.clone();
        if high.is_empty() {
            return order;
        }
        for _ in 0..=random.below(MOST_MOVES) {
            let item = high[random.below(high.len())];
            let from = order.iter().position(|&other| other == item).unwrap_or(0);
            if from > 0 {
                let to = match random.below(2) {
                    0 => random.below(from),
                    _ => from - 1 - random.below(from.min(SMALL_MOVE)),
                };
                order[to..=from].rotate_right(1);
            }
        }
        order
    }
}
