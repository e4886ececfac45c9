//! The quick placements: the same each time, and near what lives in most nets.
//!
//! Sweeps come first: they take `O(n log n)`, and most large problems are done with one. Then items are placed first
//! fit in a few orders, which is better where items have to fit closely and `O(n^2)` where many live at one time.

use super::clock::Limit;
use super::first_fit::{self, Placement};
use super::occupied::Occupied;
use super::problem::Problem;
use super::random::Random;
use super::sweep::{Center, Schedule, Within, center};

/// Where a sweep starts.
#[derive(Debug, Clone, Copy)]
enum Start {
    Fullest,
    First,
    Last,
}

/// The sweeps that are tried, the best ones on random lifetimes and trained nets first.
const SWEEPS: [(Within, [(Start, Center); 6]); 2] = [(Within::Size, STARTS), (Within::Length, STARTS)];
const STARTS: [(Start, Center); 6] = [
    (Start::Fullest, Center::Nearer),
    (Start::Fullest, Center::Birth),
    (Start::Fullest, Center::Length),
    (Start::Fullest, Center::Death),
    (Start::First, Center::Length),
    (Start::Last, Center::Length),
];

/// The best so far of the quick placements of a problem.
#[derive(Debug)]
pub(super) struct Quick {
    pub(super) best: Placement,
    /// The order that led to it first fit, if one did.
    order: Option<Vec<u32>>,
    /// How many of them were tried.
    tried: usize,
    schedule: Schedule,
}

const SWEEP_COUNT: usize = SWEEPS.len() * STARTS.len();

impl Quick {
    /// The first sweep: there is a placement, whatever the limit is.
    pub(super) fn new(problem: &Problem, limit: &mut Limit) -> Self {
        let best = Placement { peak: usize::MAX, ..Placement::default() };
        let mut found = Self { best, order: None, tried: 0, schedule: Schedule::new(problem) };
        found.sweep(problem, &mut Limit::none());
        limit.spend(Schedule::steps(problem));
        found
    }

    /// Tries those that were not tried, until one ends at `goal` or below, or to the limit.
    pub(super) fn improve(&mut self, problem: &Problem, goal: usize, limit: &mut Limit) {
        let mut occupied = None;
        while !self.is_complete() && self.best.peak > goal && !limit.is_over() {
            if self.tried < SWEEP_COUNT {
                self.sweep(problem, limit);
                continue;
            }
            let order = first_fit::order(problem, self.tried - SWEEP_COUNT);
            let occupied = occupied.get_or_insert_with(|| Occupied::new(problem));
            if let Some(found) = first_fit::place(problem, &order, occupied, self.best.peak - 1, limit) {
                (self.best, self.order) = (found, Some(order));
            }
            self.tried += usize::from(!limit.is_over());
        }
    }

    /// Whether all were tried.
    pub(super) fn is_complete(&self) -> bool {
        self.tried == SWEEP_COUNT + first_fit::ORDER_COUNT
    }

    /// Tries the next sweep.
    fn sweep(&mut self, problem: &Problem, limit: &mut Limit) {
        let (within, starts) = SWEEPS[self.tried / STARTS.len()];
        let (start, order) = starts[self.tried % STARTS.len()];
        if self.tried.is_multiple_of(STARTS.len()) {
            self.schedule.order(problem, within);
        }
        let start = match start {
            Start::Fullest => self.schedule.fullest,
            Start::First => 0,
            Start::Last => problem.sections.saturating_sub(1),
        };
        // None of these orders is random.
        let center = center(problem, start, order, &mut Random::new(0));
        let most = self.best.peak.saturating_sub(1);
        if let Some(found) = self.schedule.sweep(problem, start, center, most, limit) {
            (self.best, self.order) = (found, None);
        }
        self.tried += usize::from(!limit.is_over());
    }

    /// An order that leads to the best one or a lower one, first fit.
    pub(super) fn order(&mut self, problem: &Problem) -> Vec<u32> {
        let best = &self.best;
        self.order.take().unwrap_or_else(|| {
            // What lies below an item is placed before it, so it cannot come to lie higher.
            let mut order: Vec<u32> = (0..problem.items.len() as u32).collect();
            order.sort_by_key(|&at| best.offsets[at as usize]);
            order
        })
    }
}
