//! Looking for a placement below a capacity, corner by corner.
//!
//! The placed items make a skyline over the sections. A *valley* of it is a run of sections at one height between
//! higher ones; a *corner* is the first or the last section of a valley. Every placement can be pushed down until
//! each item lies at 0 or on another, so what comes next in a corner is one of two things:
//!
//! * an item that begins (or ends) with the corner's section and fits into the valley: the few of them are tried;
//! * nothing at this height. Then the skyline of that one section is raised to where the next item could begin at the
//!   earliest, and what is between is wasted. Where little may be wasted, that is seldom possible.
//!
//! So each placement is reached on one path only, whichever corner is taken first, and the one with the fewest
//! choices is: a corner without any ends the branch, one with a single choice costs nothing. MiniMalloc (Moffitt,
//! ASPLOS 2023) places by rising offsets instead, with a choice among all items, and finds out late when a part far
//! away cannot be completed. From it are the sections, the search of each group of items by itself once they no longer
//! hang together in time (section 5.4), and the preorders.
//!
//! A branch also ends where what is left in a section cannot end below the capacity ([`bound`]). Sections where
//! branches end are taken first from then on, also after a restart (Boussemart, Hemery, Lecoutre and Sais, "Boosting
//! systematic search by weighting constraints", ECAI 2004): MiniMalloc's instance I took a tenth of the time.

mod bound;
mod choice;

use std::ops::Range;

use super::clock::Deadline;
use super::preorder::Preorder;
use super::problem::Problem;
use super::units::{InUnits, Units};
use choice::Corner;

/// Items looked at between two looks at the clock: a step looks at all that are left.
const ITEMS_A_LOOK: u64 = 1 << 14;
/// How deep a search goes, in steps that are not taken back; its stack is made for that ([`super::search`]).
pub(super) const MOST_DEPTH: usize = 10_000;

/// How a search ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// A placement was found.
    Found,
    /// There is none.
    Infeasible,
    /// Steps or time are used up.
    Stopped,
}

/// An item that is not placed: its lowest place, its rank in the preorder, and which it is.
type Candidate = (u32, u32, u32);

/// A search for one capacity. Places are counted in units.
#[derive(Debug)]
pub(super) struct Search {
    units: Units,
    items: Vec<InUnits>,
    /// By item: which others share a section with it.
    meets: Vec<Vec<u32>>,
    /// By section: the items that begin with it, and those that end with it.
    beginning: Vec<Vec<u32>>,
    ending: Vec<Vec<u32>>,
    deadline: Deadline,
    steps_left: u64,
    /// Steps between two looks at the clock.
    steps_a_look: u64,
    depth: usize,
    /// By item: its place, once it has one.
    offsets: Vec<u32>,
    is_placed: Vec<bool>,
    /// By item: the lowest place on the skyline.
    lowest: Vec<u32>,
    /// Lowest places before they were raised, to undo.
    raised: Vec<(u32, u32)>,
    /// By item: its place in the preorder of its group.
    rank: Vec<u32>,
    /// By section: the skyline.
    skyline: Vec<u32>,
    /// By section: how many items that are not placed live there and in the next one.
    links: Vec<u32>,
    /// By section: the sum of what is not placed.
    left: Vec<u32>,
    /// By section: one more than how many branches ended there.
    weights: Vec<f32>,
    /// The candidates of all steps that go on, each step's by rising lowest place.
    candidates: Vec<Candidate>,
    /// Candidates out of order. Scratch.
    changed: Vec<Candidate>,
    /// By section: where what is left ends at the earliest. Scratch.
    ends: Vec<i32>,
}

impl Search {
    /// For placements that end at `capacity` bytes or below.
    pub(super) fn new(problem: &Problem, capacity: usize) -> Self {
        let count = problem.items.len();
        let sections = problem.sections as usize;
        let units = Units::of(problem, capacity);
        let items: Vec<InUnits> = problem.items.iter().map(|item| units.item(item)).collect();
        let mut search = Self {
            units,
            items: Vec::new(),
            meets: problem.meetings(),
            beginning: vec![Vec::new(); sections],
            ending: vec![Vec::new(); sections],
            deadline: Deadline::never(),
            steps_left: 0,
            steps_a_look: ITEMS_A_LOOK / count.clamp(1, ITEMS_A_LOOK as usize) as u64,
            depth: 0,
            offsets: vec![0; count],
            is_placed: vec![true; count],
            lowest: vec![0; count],
            raised: Vec::new(),
            rank: vec![0; count],
            skyline: vec![0; sections],
            links: vec![0; sections],
            left: vec![0; sections],
            weights: vec![1.0; sections],
            candidates: Vec::new(),
            changed: Vec::new(),
            ends: vec![0; sections],
        };
        for (at, item) in (0..).zip(&items) {
            search.beginning[item.first as usize].push(at);
            search.ending[item.end as usize - 1].push(at);
        }
        search.items = items;
        search.lift(&(0..count as u32).collect::<Vec<_>>());
        search
    }

    /// Searches for so many steps, from the start; what was learned about sections is kept.
    pub(super) fn run(&mut self, preorder: &Preorder, steps: u64, deadline: Deadline) -> Outcome {
        (self.steps_left, self.deadline) = (steps, deadline);
        let all: Vec<u32> = (0..self.items.len() as u32).collect();
        let outcome = if self.left.iter().any(|&left| left > self.units.capacity) {
            Outcome::Infeasible
        } else {
            self.group(&all, preorder)
        };
        match outcome {
            Outcome::Found => {
                // The next run begins from nothing.
                self.lift(&all);
                self.raised.clear();
                self.lowest.fill(0);
                self.skyline.fill(0);
            }
            // With rounded sizes nothing is proven.
            Outcome::Infeasible if !self.units.is_exact => return Outcome::Stopped,
            Outcome::Infeasible | Outcome::Stopped => {}
        }
        outcome
    }

    /// Where the items lie in bytes, after a placement was found.
    pub(super) fn offsets(&self) -> Vec<usize> {
        self.offsets.iter().map(|&offset| self.units.bytes(offset)).collect()
    }

    /// Places items that hang together and share no section with others that are left.
    fn group(&mut self, items: &[u32], preorder: &Preorder) -> Outcome {
        let begin = self.candidates.len();
        for (rank, at) in (0..).zip(preorder.ranked(&self.items, items, &self.left)) {
            self.rank[at as usize] = rank;
            self.candidates.push((self.lowest[at as usize], rank, at));
        }
        self.candidates[begin..].sort_unstable();
        let first = items.iter().map(|&at| self.items[at as usize].first).min().unwrap_or(0);
        let end = items.iter().map(|&at| self.items[at as usize].end).max().unwrap_or(0);
        let outcome = self.next(begin, first..end, preorder);
        self.candidates.truncate(begin);
        outcome
    }

    /// Fills a corner, and then the others. The group's candidates begin at `begin`, it lives in `span`.
    fn next(&mut self, begin: usize, span: Range<u32>, preorder: &Preorder) -> Outcome {
        if begin == self.candidates.len() {
            return Outcome::Found;
        }
        if self.is_over() || self.depth == MOST_DEPTH {
            return Outcome::Stopped;
        }
        if !self.can_end_in_time(begin) {
            return Outcome::Infeasible;
        }
        let Some(corner) = self.corner(begin, span.clone()) else {
            return Outcome::Infeasible;
        };
        self.depth += 1;
        let outcome = self.choices(begin, span, corner, preorder);
        self.depth -= 1;
        outcome
    }

    fn choices(&mut self, begin: usize, span: Range<u32>, corner: Corner, preorder: &Preorder) -> Outcome {
        let parent = begin..self.candidates.len();
        let Corner { section, height, mut fitting, raise, .. } = corner;
        fitting.sort_unstable_by_key(|&at| self.rank[at as usize]);
        for at in fitting {
            let noted = self.raised.len();
            self.place(at, height);
            let outcome = self.rest(parent.clone(), Some(at), span.clone(), preorder);
            if outcome == Outcome::Found {
                return outcome;
            }
            let sections = self.items[at as usize].sections();
            self.skyline[sections].fill(height);
            self.lower(noted);
            self.lift(&[at]);
            if outcome == Outcome::Stopped {
                return outcome;
            }
        }
        let Some(raise) = raise else { return Outcome::Infeasible };
        let noted = self.raised.len();
        self.waste(parent.clone(), section, raise);
        let outcome = self.rest(parent, None, span, preorder);
        if outcome != Outcome::Found {
            self.skyline[section as usize] = height;
            self.lower(noted);
        }
        outcome
    }

    /// Places what is left after one candidate was placed, or none: by groups, if they no longer hang together.
    fn rest(
        &mut self,
        parent: Range<usize>,
        placed: Option<u32>,
        span: Range<u32>,
        preorder: &Preorder,
    ) -> Outcome {
        if placed.is_some_and(|at| self.is_cut_by(at)) {
            return self.groups(parent, span, preorder);
        }
        // Most lowest places stay, so most candidates are in order already.
        let begin = parent.end;
        self.changed.clear();
        for at in parent {
            let (lowest, rank, item) = self.candidates[at];
            if self.is_placed[item as usize] {
                continue;
            }
            let raised = self.lowest[item as usize];
            if raised == lowest {
                self.candidates.push((lowest, rank, item));
            } else {
                self.changed.push((raised, rank, item));
            }
        }
        self.changed.sort_unstable();
        merge(&mut self.candidates, begin, &self.changed);
        let outcome = self.next(begin, span, preorder);
        self.candidates.truncate(begin);
        outcome
    }

    /// Whether nothing that is left lives on somewhere within the sections of an item that was just placed.
    fn is_cut_by(&self, at: u32) -> bool {
        let item = &self.items[at as usize];
        self.links[item.links()].contains(&0) || self.left[item.sections()].contains(&0)
    }

    /// Places the candidates that are left in groups that share no section.
    fn groups(&mut self, parent: Range<usize>, span: Range<u32>, preorder: &Preorder) -> Outcome {
        let left = parent.map(|at| self.candidates[at].2).filter(|&at| !self.is_placed[at as usize]);
        let mut by_start: Vec<u32> = left.collect();
        by_start.sort_unstable_by_key(|&at| self.items[at as usize].first);
        let mut groups: Vec<Vec<u32>> = Vec::new();
        let mut reach = 0;
        for at in by_start {
            let item = &self.items[at as usize];
            match groups.last_mut() {
                Some(group) if item.first < reach => group.push(at),
                _ => groups.push(vec![at]),
            }
            reach = reach.max(item.end);
        }
        // What is small is soon found impossible.
        groups.sort_by_key(Vec::len);
        let span = span.start as usize..span.end as usize;
        let skyline = self.skyline[span.clone()].to_vec();
        for (done, group) in groups.iter().enumerate() {
            let outcome = self.group(group, preorder);
            if outcome != Outcome::Found {
                // What the found groups raised is lowered by who placed before them.
                groups[..done].iter().for_each(|group| self.lift(group));
                self.skyline[span].copy_from_slice(&skyline);
                return outcome;
            }
        }
        Outcome::Found
    }

    /// Puts an item on the skyline and notes which lowest places that raises.
    fn place(&mut self, at: u32, offset: u32) {
        let item = &self.items[at as usize];
        let top = offset + item.size;
        self.offsets[at as usize] = offset;
        self.is_placed[at as usize] = true;
        self.skyline[item.sections()].fill(top);
        self.left[item.sections()].iter_mut().for_each(|left| *left -= item.size);
        self.links[item.links()].iter_mut().for_each(|links| *links -= 1);
        for &other in &self.meets[at as usize] {
            let lowest = &mut self.lowest[other as usize];
            if *lowest < top && !self.is_placed[other as usize] {
                self.raised.push((other, *lowest));
                *lowest = self.items[other as usize].aligned(top);
            }
        }
    }

    /// Raises the skyline of a section with nothing below.
    fn waste(&mut self, candidates: Range<usize>, section: u32, raise: u32) {
        self.skyline[section as usize] = raise;
        for &(_, _, at) in &self.candidates[candidates] {
            let item = &self.items[at as usize];
            let lowest = &mut self.lowest[at as usize];
            if item.lives_in(section) && *lowest < raise {
                self.raised.push((at, *lowest));
                *lowest = item.aligned(raise);
            }
        }
    }

    /// Undoes what was raised since so many were noted.
    fn lower(&mut self, noted: usize) {
        for (at, lowest) in self.raised.drain(noted..).rev() {
            self.lowest[at as usize] = lowest;
        }
    }

    /// Takes items away, but for what they raised.
    fn lift(&mut self, items: &[u32]) {
        for &at in items {
            let item = &self.items[at as usize];
            self.is_placed[at as usize] = false;
            self.left[item.sections()].iter_mut().for_each(|left| *left += item.size);
            self.links[item.links()].iter_mut().for_each(|links| *links += 1);
        }
    }

    fn is_over(&mut self) -> bool {
        if self.steps_left > 0 {
            self.steps_left -= 1;
            if self.steps_left.is_multiple_of(self.steps_a_look) && self.deadline.is_over() {
                self.steps_left = 0;
            }
        }
        self.steps_left == 0
    }
}

/// Merges a sorted list into the sorted end of another that begins at `begin`.
fn merge(into: &mut Vec<Candidate>, begin: usize, other: &[Candidate]) {
    let mut old = into.len();
    into.resize(old + other.len(), (0, 0, 0));
    let mut new = other.len();
    for to in (begin..into.len()).rev() {
        if new == 0 {
            break;
        }
        if old > begin && into[old - 1] > other[new - 1] {
            old -= 1;
            into[to] = into[old];
        } else {
            new -= 1;
            into[to] = other[new];
        }
    }
}
