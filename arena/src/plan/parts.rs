//! Cutting a problem into parts that do not concern each other.
//!
//! Two steps are repeated. Where no item lives on from one section to the next, what comes before and what comes
//! after are problems of their own. And an item that lives as long as all of its part lies at the bottom of it at no
//! loss: every other one is wholly above or below it, so the two sides can be exchanged. Without these items more
//! sections come apart.

use super::clock::Limit;
use super::lcm;
use super::problem::Problem;

/// Rounds of taking the longest-lived items out: lifetimes nested in each other would take as many as there are
/// items, and each looks at all that is left.
const ROUNDS: u32 = 64;
/// Steps that an item takes in a round.
const STEPS_AN_ITEM: u64 = 200;

/// A part of a problem.
#[derive(Debug)]
pub(super) struct Part {
    /// The part alone, with sections of its own.
    pub(super) problem: Problem,
    /// Which items of the whole they are.
    pub(super) ids: Vec<u32>,
    /// Where it begins.
    pub(super) base: usize,
}

/// The parts, and the items whose offsets are known already.
#[derive(Debug, Default)]
pub(super) struct Parts {
    /// What is to be placed.
    pub(super) parts: Vec<Part>,
    /// `(item, offset)`.
    pub(super) placed: Vec<(u32, usize)>,
}

impl Parts {
    /// Cuts a problem; at the limit no further.
    pub(super) fn of(problem: Problem, limit: &mut Limit) -> Self {
        let ids = (0..problem.items.len() as u32).collect();
        let mut found = Self::default();
        let mut waiting = vec![(Part { problem, ids, base: 0 }, 0)];
        while let Some((part, round)) = waiting.pop() {
            for part in apart(part) {
                match found.without_longest(part, round, limit) {
                    Ok(rest) => waiting.push((rest, round + 1)),
                    Err(whole) => found.parts.push(whole),
                }
            }
        }
        found
    }

    /// Places the items that live as long as the part, and returns what is left; the part as it was if there are
    /// none.
    fn without_longest(&mut self, part: Part, round: u32, limit: &mut Limit) -> Result<Part, Part> {
        let Part { problem, ids, mut base } = part;
        let longest = |at: usize| problem.items[at].length() == problem.sections;
        let align = problem.items.iter().try_fold(1, |all, item| lcm(all, item.align));
        // Above an item of another size the alignment of the others would cost something.
        let fits = |at: usize| align.is_some_and(|align| problem.items[at].size % align == 0);
        let is_over = round == ROUNDS || !limit.spend(STEPS_AN_ITEM * ids.len() as u64);
        if is_over || !(0..ids.len()).any(|at| longest(at) && fits(at)) {
            return Err(Part { problem, ids, base });
        }
        // Where all is aligned anyway the base is.
        if base % align.unwrap_or(1) != 0 {
            return Err(Part { problem, ids, base });
        }
        let mut rest = Vec::new();
        for (at, &id) in ids.iter().enumerate() {
            if longest(at) && fits(at) {
                self.placed.push((id, base));
                base += problem.items[at].size;
            } else {
                rest.push(at);
            }
        }
        Ok(chosen(&problem, &ids, &rest, base))
    }
}

/// The items at `chosen` of a part, with sections of their own.
fn chosen(problem: &Problem, ids: &[u32], chosen: &[usize], base: usize) -> Part {
    let items = chosen.iter().map(|&at| {
        let item = problem.items[at];
        (u64::from(item.first), u64::from(item.end), item.size, item.align)
    });
    Part { problem: Problem::new(items), ids: chosen.iter().map(|&at| ids[at]).collect(), base }
}

/// Splits a part where nothing lives on.
fn apart(part: Part) -> Vec<Part> {
    let Part { problem, ids, base } = part;
    // How far those reach that began so far.
    let mut order: Vec<usize> = (0..ids.len()).collect();
    order.sort_unstable_by_key(|&at| problem.items[at].first);
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut reach = 0;
    for at in order {
        let item = &problem.items[at];
        match groups.last_mut() {
            Some(group) if item.first < reach => group.push(at),
            _ => groups.push(vec![at]),
        }
        reach = reach.max(item.end);
    }
    if groups.len() == 1 {
        return vec![Part { problem, ids, base }];
    }
    groups.iter().map(|group| chosen(&problem, &ids, group, base)).collect()
}
