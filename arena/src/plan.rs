//! Offsets for buffers whose lifetimes are known in advance.
//!
//! A step that repeats itself, or a net that is compiled, asks for the same buffers in the same order each time. So
//! where they lie can be decided once: each buffer gets an offset such that those which live at one time share no
//! byte, and the highest end, the *peak*, is as low as can be. It is never lower than the most that lives at one time.
//!
//! ```
//! use mempool_arena::plan::{Buffer, Planner, verify};
//!
//! // The second begins where the first ends: lifetimes are half-open.
//! let buffers = [Buffer::new(0, 3, 4), Buffer::new(3, 9, 4), Buffer::new(0, 9, 4)];
//! let plan = Planner::default().plan(&buffers)?;
//! assert_eq!((plan.peak_bytes, plan.max_live_bytes), (8, 8));
//! verify(&buffers, 1, &plan)?;
//! # Ok::<(), mempool_arena::plan::PlanError>(())
//! ```
//!
//! To find the lowest peak is NP-hard (Garey and Johnson, "Computers and Intractability", SR2), and mostly easy:
//! on recorded steps and in nets that are trained, placing what lives in the fullest moment and then going on from
//! there in time ends within half a percent of what lives. So [`Planner::plan`] makes a few such quick plans, which
//! takes milliseconds for some thousand buffers and has the same result each time, and searches only for as long as it
//! is told to and only where that is not good enough.

mod clock;
mod corner;
mod error;
mod first_fit;
mod gaps;
mod most;
mod occupied;
mod parts;
mod preorder;
mod problem;
mod quick;
mod random;
mod reorder;
mod resweep;
mod search;
mod sweep;
mod units;
mod verify;

use std::time::Duration;

use clock::{Deadline, Limit};
pub use error::PlanError;
use parts::{Part, Parts};
use problem::Problem;
use quick::Quick;
pub use verify::verify;

/// Sizes and what alignments may cost add up to no more than this, so that no sum of places overflows.
const MOST_BYTES: usize = usize::MAX / 4;

/// Steps of the quick plans where there is no budget: a second or two, of which 10,000 buffers need a part.
const QUICK_STEPS: u64 = 1 << 30;
/// No more than one in so many of what may be done is done to cut a problem into parts.
const CUTTING_SHARE: usize = 8;

/// Something that needs bytes for a time. Times are in any unit, only their order matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Buffer {
    /// When it is born.
    pub lower: u64,
    /// When it is dead: from then on its bytes serve others. Later than `lower`.
    pub upper: u64,
    /// Its size; what has no bytes lies at offset 0 and is in nobody's way.
    pub size_bytes: usize,
    /// Its offset is a multiple of this, any number but 0.
    pub align_bytes: usize,
}

impl Buffer {
    /// A buffer that may lie at any multiple of the granule.
    #[must_use]
    pub const fn new(lower: u64, upper: u64, size_bytes: usize) -> Self {
        Self { lower, upper, size_bytes, align_bytes: 1 }
    }
}

/// Where buffers lie.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// Of each buffer, in the order given, in bytes.
    pub offsets: Vec<usize>,
    /// The highest end: the memory needed.
    pub peak_bytes: usize,
    /// The most that lives at one time: no plan needs less.
    pub max_live_bytes: usize,
    /// What was left out because the budget ended.
    pub cut: Cut,
}

/// What was not tried because [`Planner::budget`] ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cut {
    /// Nothing: the plan is good enough, or no better one is to be found.
    #[default]
    Nothing,
    /// A part of the search. Without a budget that is all of it.
    Search,
    /// The search, and some of the quick plans that come before it.
    Quick,
}

impl Plan {
    /// The peak as a multiple of what lives: 1 at best, also where nothing lives.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        if self.max_live_bytes == 0 { 1.0 } else { self.peak_bytes as f64 / self.max_live_bytes as f64 }
    }
}

/// How offsets are looked for.
#[derive(Debug, Clone, PartialEq)]
pub struct Planner {
    /// Offsets are multiples of this. Sizes are taken as they are.
    pub granule_bytes: usize,
    /// The memory there is: the first plan that fits is good enough. Without, the lowest peak is looked for.
    pub capacity_bytes: Option<usize>,
    /// How long planning may take. The first quick plan is made in any case, `O(n log n)`; when the budget ends what
    /// else could be tried is left out ([`Plan::cut`]), so what is found depends on how fast the machine is. Zero
    /// stands for the quick plans and no search: these are the same each time, and some are left out only where
    /// there are tens of thousands of buffers.
    pub budget: Duration,
    /// Without a capacity, a plan whose peak is above what lives by no more than this share is good enough.
    pub tolerance: f64,
}

impl Default for Planner {
    /// Any offset, no capacity, no search.
    fn default() -> Self {
        Self { granule_bytes: 1, capacity_bytes: None, budget: Duration::ZERO, tolerance: 0.001 }
    }
}

impl Planner {
    /// Offsets for buffers.
    ///
    /// A plan is returned also where none fits the capacity, and where the budget ends before all quick ones were
    /// made; its peak and [`Plan::cut`] tell.
    ///
    /// # Errors
    /// [`PlanError`] for buffers that never live, alignments that cannot be, and sizes beyond all memory.
    pub fn plan(&self, buffers: &[Buffer]) -> Result<Plan, PlanError> {
        let deadline = Deadline::after(self.budget);
        let (problem, ids) = checked(buffers, self.granule_bytes)?;
        let max_live = problem.max_live();
        let goal = self
            .capacity_bytes
            .unwrap_or_else(|| max_live.saturating_add((max_live as f64 * self.tolerance.max(0.0)) as usize));
        let mut offsets = vec![0; buffers.len()];
        let Parts { parts, placed } = Parts::of(problem, &mut self.limit(deadline, CUTTING_SHARE));
        for (id, offset) in placed {
            offsets[ids[id as usize] as usize] = offset;
        }
        let mut limit = self.limit(deadline, 1);
        let mut found: Vec<_> = parts.iter().map(|part| Quick::new(&part.problem, &mut limit)).collect();
        let cut = self.improve(&parts, &mut found, goal, max_live, deadline, &mut limit);
        for (part, Quick { best, .. }) in parts.iter().zip(&found) {
            for (&id, offset) in part.ids.iter().zip(&best.offsets) {
                offsets[ids[id as usize] as usize] = part.base + offset;
            }
        }
        let ends = buffers.iter().zip(&offsets).map(|(buffer, offset)| offset + buffer.size_bytes);
        let peak_bytes = ends.max().unwrap_or(0);
        let plan = Plan { offsets, peak_bytes, max_live_bytes: max_live, cut };
        debug_assert_eq!(verify(buffers, self.granule_bytes, &plan), Ok(()));
        Ok(plan)
    }

    /// What may be done up to the deadline, or a part of it. Without a budget steps are counted instead, so that what
    /// is found is the same each time.
    fn limit(&self, deadline: Deadline, part: usize) -> Limit {
        if self.budget.is_zero() {
            Limit::steps(QUICK_STEPS / part as u64)
        } else {
            Limit::time(deadline.share(part))
        }
    }

    /// Makes better placements of the parts that end above the goal, the highest first: what ends lower than the
    /// highest part can end is good enough. First the quick ones of all, then by searching. Tells what was left out.
    fn improve(
        &self,
        parts: &[Part],
        found: &mut [Quick],
        goal: usize,
        max_live: usize,
        deadline: Deadline,
        limit: &mut Limit,
    ) -> Cut {
        let end = |at: usize, found: &[Quick]| parts[at].base + found[at].best.peak;
        let by_end = |found: &[Quick]| {
            let mut by_end: Vec<usize> = (0..parts.len()).collect();
            by_end.sort_by_key(|&at| std::cmp::Reverse(end(at, found)));
            by_end
        };
        let mut cut = Cut::Nothing;
        // Below what lives nothing can be found.
        let mut reached = goal.max(max_live);
        for at in by_end(found) {
            if end(at, found) <= reached {
                break;
            }
            found[at].improve(&parts[at].problem, reached - parts[at].base, limit);
            if end(at, found) > reached && !found[at].is_complete() {
                cut = Cut::Quick;
            }
            reached = reached.max(end(at, found));
        }
        if reached <= goal || goal < max_live || cut == Cut::Quick {
            return cut;
        }
        reached = goal;
        let by_end = by_end(found);
        for (done, &at) in by_end.iter().enumerate() {
            if end(at, found) <= reached {
                break;
            }
            if deadline.is_over() {
                return Cut::Search;
            }
            let waiting = by_end[done..].iter().take_while(|&&at| end(at, found) > reached).count();
            let (part, quick) = (&parts[at], &mut found[at]);
            let goal = reached.saturating_sub(part.base);
            // Some were left out while a higher part was in the way.
            quick.improve(&part.problem, goal, limit);
            let order = quick.order(&part.problem);
            search::search(&part.problem, order, &mut quick.best, goal, deadline.share(waiting));
            reached = reached.max(part.base + quick.best.peak);
            // Where one part does not fit, the others need not.
            if self.capacity_bytes.is_some_and(|capacity| reached > capacity) {
                break;
            }
        }
        if reached > goal && deadline.is_over() { Cut::Search } else { Cut::Nothing }
    }
}

/// The problem of the buffers that have bytes, and which those are.
fn checked(buffers: &[Buffer], granule_bytes: usize) -> Result<(Problem, Vec<u32>), PlanError> {
    let count = buffers.len();
    if u32::try_from(count).is_err() {
        return Err(PlanError::TooMany { count });
    }
    let mut ids = Vec::with_capacity(count);
    let mut items = Vec::with_capacity(count);
    let mut sum = 0_usize;
    for (index, buffer) in buffers.iter().enumerate() {
        let &Buffer { lower, upper, size_bytes, .. } = buffer;
        if lower >= upper {
            return Err(PlanError::Lifetime { index, lower, upper });
        }
        let align = alignment(index, buffer, granule_bytes)?;
        if size_bytes == 0 {
            continue;
        }
        sum = size_bytes
            .checked_add(align - 1)
            .and_then(|most| sum.checked_add(most))
            .filter(|&sum| sum <= MOST_BYTES)
            .ok_or(PlanError::TooLarge { count: index + 1, most_bytes: MOST_BYTES })?;
        ids.push(index as u32);
        items.push((lower, upper, size_bytes, align));
    }
    Ok((Problem::new(items.into_iter()), ids))
}

/// What a buffer's offset has to be a multiple of.
fn alignment(index: usize, buffer: &Buffer, granule_bytes: usize) -> Result<usize, PlanError> {
    let align_bytes = buffer.align_bytes;
    lcm(align_bytes, granule_bytes).ok_or(PlanError::Alignment { index, align_bytes, granule_bytes })
}

/// The greatest common divisor.
fn divisor(one: usize, other: usize) -> usize {
    let (mut divisor, mut rest) = (one, other);
    while rest != 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    divisor
}

/// The least common multiple, if there is one.
fn lcm(one: usize, other: usize) -> Option<usize> {
    one.checked_div(divisor(one, other))?.checked_mul(other).filter(|&multiple| multiple > 0)
}

#[cfg(test)]
mod tests;
