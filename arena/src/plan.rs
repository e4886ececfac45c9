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
//! on recorded steps placing by falling area or size ends within half a percent of what lives. So [`Planner::plan`]
//! places in a few orders, which takes milliseconds for some thousand buffers and has the same result each time, and
//! searches only for as long as it is told to and only where that is not good enough.

mod clock;
mod corner;
mod error;
mod first_fit;
mod occupied;
mod parts;
mod preorder;
mod problem;
mod random;
mod reorder;
mod search;
mod units;
mod verify;

use std::time::Duration;

use clock::Deadline;
pub use error::PlanError;
use first_fit::Placement;
use occupied::Occupied;
use parts::{Part, Parts};
use problem::Problem;
pub use verify::verify;

/// Sizes and what alignments may cost add up to no more than this, so that no sum of places overflows.
const MOST_BYTES: usize = usize::MAX / 4;

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
    /// How long it may take to search for a better plan than the quick ones. What is found depends on how fast the
    /// machine is, then.
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
    /// A plan is returned also where none fits the capacity; its peak tells.
    ///
    /// # Errors
    /// [`PlanError`] for buffers that never live, alignments that cannot be, and sizes beyond all memory.
    pub fn plan(&self, buffers: &[Buffer]) -> Result<Plan, PlanError> {
        let (problem, ids) = checked(buffers, self.granule_bytes)?;
        let max_live = problem.max_live();
        let goal = self
            .capacity_bytes
            .unwrap_or_else(|| max_live.saturating_add((max_live as f64 * self.tolerance.max(0.0)) as usize));
        let mut offsets = vec![0; buffers.len()];
        let Parts { parts, placed } = Parts::of(problem);
        for (id, offset) in placed {
            offsets[ids[id as usize] as usize] = offset;
        }
        let goal_of = |part: &Part| goal.saturating_sub(part.base);
        let mut found: Vec<_> = parts.iter().map(|part| quick(&part.problem, goal_of(part))).collect();
        // Below what lives nothing can be found.
        if goal >= max_live {
            self.improve(&parts, &mut found, goal);
        }
        for (part, (_, placement)) in parts.iter().zip(&found) {
            for (&id, offset) in part.ids.iter().zip(&placement.offsets) {
                offsets[ids[id as usize] as usize] = part.base + offset;
            }
        }
        let ends = buffers.iter().zip(&offsets).map(|(buffer, offset)| offset + buffer.size_bytes);
        let peak_bytes = ends.max().unwrap_or(0);
        let plan = Plan { offsets, peak_bytes, max_live_bytes: max_live };
        debug_assert_eq!(verify(buffers, self.granule_bytes, &plan), Ok(()));
        Ok(plan)
    }

    /// Searches for better placements of the parts that end above the goal, the highest first: what ends lower than
    /// the highest part can end is good enough.
    fn improve(&self, parts: &[Part], found: &mut [(Vec<u32>, Placement)], goal: usize) {
        if self.budget.is_zero() {
            return;
        }
        let deadline = Deadline::after(self.budget);
        let end = |at: usize, found: &[(Vec<u32>, Placement)]| parts[at].base + found[at].1.peak;
        let mut by_end: Vec<usize> = (0..parts.len()).collect();
        by_end.sort_by_key(|&at| std::cmp::Reverse(end(at, found)));
        let mut reached = goal;
        for (done, &at) in by_end.iter().enumerate() {
            if end(at, found) <= reached || deadline.is_over() {
                break;
            }
            let waiting = by_end[done..].iter().filter(|&&at| end(at, found) > reached).count();
            let (order, placement) = &mut found[at];
            let part = &parts[at];
            let goal = reached.saturating_sub(part.base);
            search::search(&part.problem, std::mem::take(order), placement, goal, deadline.share(waiting));
            reached = reached.max(part.base + placement.peak);
            // Where one part does not fit, the others need not.
            if self.capacity_bytes.is_some_and(|capacity| reached > capacity) {
                break;
            }
        }
    }
}

/// Beyond so many items a further order takes a second, and is tried only
const MANY_ITEMS: usize = 40_000;
/// where the peak is above what lives by more than one in so many.
const GOOD_ENOUGH_FOR_MANY: usize = 100;

/// The best of the quick placements, and the order that led to it.
fn quick(problem: &Problem, goal: usize) -> (Vec<u32>, Placement) {
    let max_live = problem.max_live();
    let enough =
        if problem.items.len() > MANY_ITEMS { max_live + max_live / GOOD_ENOUGH_FOR_MANY } else { 0 };
    let enough = enough.max(goal);
    let mut occupied = Occupied::default();
    let mut best: Option<(Vec<u32>, Placement)> = None;
    for order in first_fit::orders(problem) {
        let most = best.as_ref().map_or(usize::MAX, |(_, best)| best.peak - 1);
        if let Some(found) = first_fit::place(problem, &order, &mut occupied, most) {
            best = Some((order, found));
        }
        if best.as_ref().is_some_and(|(_, best)| best.peak <= enough) {
            break;
        }
    }
    best.unwrap_or_default()
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
