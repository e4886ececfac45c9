//! Improving on sweeps: others are tried, from where the best one ends highest and from elsewhere.
//!
//! A sweep wastes nothing where it starts. So where the best one ends highest is a good start for the next (squeaky
//! wheel optimization, as in [`super::reorder`]). Not each time: that one may be tried in vain.

use super::clock::Limit;
use super::first_fit::Placement;
use super::problem::Problem;
use super::random::Random;
use super::sweep::{Center, Schedule, Within, center};

/// Of so many sweeps one starts anywhere, one in the fullest section, and the others where the best one is highest.
const STARTS_IN: usize = 4;

/// Sweeps that go on being tried.
#[derive(Debug)]
pub(super) struct Resweep {
    schedule: Schedule,
}

impl Resweep {
    pub(super) fn new(problem: &Problem) -> Self {
        Self { schedule: Schedule::new(problem) }
    }

    /// Improves on `best` until it ends at `goal` or below, or at the limit.
    pub(super) fn improve(
        &mut self,
        problem: &Problem,
        best: &mut Placement,
        goal: usize,
        random: &mut Random,
        limit: &mut Limit,
    ) {
        const WITHIN: [Within; 3] = [Within::Length, Within::Size, Within::Area];
        while best.peak > goal && !limit.is_over() {
            let start = match random.below(STARTS_IN) {
                0 => random.below(problem.sections as usize) as u32,
                1 => self.schedule.fullest,
                _ => highest(problem, best, random),
            };
            self.schedule.order(problem, WITHIN[random.below(WITHIN.len())]);
            let center = center(problem, start, Center::Shaken, random);
            if let Some(found) = self.schedule.sweep(problem, start, center, best.peak - 1, limit) {
                *best = found;
            }
        }
    }
}

/// A section in which the highest item lives.
fn highest(problem: &Problem, placement: &Placement, random: &mut Random) -> u32 {
    let ends = problem.items.iter().zip(&placement.offsets).map(|(item, offset)| offset + item.size);
    let highest = ends.zip(&problem.items).max_by_key(|&(end, _)| end);
    highest.map_or(0, |(_, item)| item.first + random.below(item.length() as usize) as u32)
}
