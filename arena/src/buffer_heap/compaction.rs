//! Sliding buffers together.
//!
//! Buffers are looked at in order of address, from the largest block to the smallest. One that may move goes to the
//! first hole in front of it that has room, or slides down within the hole right before it. So the order
//! is kept where it can be, free memory gathers at the end of each block, and the smallest blocks get empty.
//!
//! A slide by less than a 64th of the buffer is not worth its copy. So at most a 64th stays in such holes, and a slide over
//! itself, which is copied in pieces as long as the slide, takes 64 copies at most.

use super::heap::{Heap, Place};
use crate::range::AddressRange;

/// A buffer slides by at least this part of its length.
const LEAST_SLIDE: usize = 64;

/// How much is to be moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effort {
    /// Bytes that may be copied.
    pub budget_bytes: usize,
    /// Buffers of both generations move, and those that are not due.
    pub all: bool,
    /// It counts as one of the compactions by which generations go.
    pub counts: bool,
    /// Something that was recorded while buffers were taken, see [`Moment`](super::Moment), still knows their
    /// addresses: they stay.
    pub recordings: bool,
    /// Buffers that are somebody's move, too: for tests that have to notice it.
    #[doc(hidden)]
    pub held_too: bool,
}

impl Effort {
    /// Everything, because memory is short: it is nobody's turn, and does not count as one.
    #[must_use]
    pub const fn for_memory() -> Self {
        Self { budget_bytes: usize::MAX, all: true, counts: false, recordings: true, held_too: false }
    }
}

/// What a compaction did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Compaction {
    /// Buffers that were moved.
    pub moved: usize,
    /// Bytes that were copied for it.
    pub moved_bytes: usize,
    /// Buffers that could have moved and are somebody's.
    pub held: usize,
    /// Buffers that could have moved and that a recording, a graph of a capture, may know.
    pub recorded: usize,
    /// Buffers that could have moved when it is their generation's turn.
    pub not_due: usize,
    /// Buffers that could have moved with a larger budget.
    pub over_budget: usize,
    /// Bytes of the smallest of those.
    pub smallest_over_budget: Option<usize>,
    /// Buffers that lost what they held, because a copy failed in the middle.
    pub lost: usize,
    /// Bytes of blocks that went back to the pool.
    pub released_bytes: usize,
}

/// Holes in front of the buffer that is looked at, in order.
struct Holes {
    closed: Vec<AddressRange>,
    /// What lies right before the buffer.
    open: AddressRange,
}

impl Holes {
    /// Where a buffer can go, of `len` bytes behind the open hole: the start of a hole.
    fn find(&self, len: usize) -> Option<Target> {
        let closed = self.closed.iter().position(|hole| hole.len >= len);
        let slide = self.open.len > 0 && (self.open.len >= len || self.open.len >= len / LEAST_SLIDE);
        closed.map(Target::Closed).or_else(|| slide.then_some(Target::Open))
    }

    fn close(&mut self) {
        let open = std::mem::replace(&mut self.open, AddressRange::new(0, 0));
        if !open.is_empty() {
            self.closed.push(open);
        }
    }
}

#[derive(Clone, Copy)]
enum Target {
    Closed(usize),
    Open,
}

/// Whose turn it is.
struct Turn {
    young: bool,
    old: bool,
    old_after: u32,
}

impl Turn {
    fn of(heap: &Heap, all: bool) -> Self {
        let options = heap.options();
        let due = |every: u32| all || heap.compactions.is_multiple_of(every.max(1));
        Self { young: due(options.every), old: due(options.old_every), old_after: options.old_after }
    }

    fn includes(&self, place: &Place) -> bool {
        if place.survived >= self.old_after { self.old } else { self.young }
    }
}

pub(super) fn compact(
    heap: &mut Heap,
    effort: Effort,
    copy: &mut dyn FnMut(usize, usize, usize) -> bool,
) -> Compaction {
    heap.compactions = heap.compactions.wrapping_add(u32::from(effort.counts));
    let turn = Turn::of(heap, effort.all);
    let mut done = Compaction::default();
    let mut holes = Holes { closed: Vec::new(), open: AddressRange::new(0, 0) };
    for block in heap.blocks().to_vec() {
        holes.open = AddressRange::new(block.start, 0);
        let places: Vec<(usize, Place)> =
            heap.places.range(block.start..block.end()).map(|(&addr, &place)| (addr, place)).collect();
        for (addr, place) in places {
            holes.open = AddressRange::between(holes.open.start, addr);
            let target = holes.find(place.len);
            let moves = target.is_some() && may_move(&place, &turn, effort, &mut done);
            match target.filter(|_| moves) {
                None => {
                    holes.close();
                    holes.open = AddressRange::new(addr + place.len, 0);
                }
                Some(target) => {
                    let to = match target {
                        Target::Closed(at) => holes.closed[at].start,
                        Target::Open => holes.open.start,
                    };
                    // What was never anybody's holds nothing.
                    let copied =
                        if place.written { copy_down(addr, to, place.len, copy) } else { Copied::All };
                    if copied != Copied::All {
                        if copied == Copied::Part && heap.lose_contents(addr) {
                            done.lost += 1;
                        }
                        return done;
                    }
                    heap.moved(addr, to);
                    done.moved += 1;
                    done.moved_bytes += if place.written { place.len } else { 0 };
                    match target {
                        Target::Closed(at) => {
                            let hole = &mut holes.closed[at];
                            *hole = AddressRange::between(hole.start + place.len, hole.end());
                        }
                        Target::Open => holes.open.start += place.len,
                    }
                }
            }
        }
        holes.open = AddressRange::between(holes.open.start, block.end());
        holes.close();
    }
    for place in heap.places.values_mut() {
        place.survived = place.survived.saturating_add(u32::from(effort.counts));
        place.recorded &= effort.recordings || place.live;
    }
    done
}

/// Whether a buffer may move that has somewhere to go; counts why not.
fn may_move(place: &Place, turn: &Turn, effort: Effort, done: &mut Compaction) -> bool {
    let held = (place.live || place.removed) && !effort.held_too;
    let recorded = place.recorded && effort.recordings;
    let reason = if held {
        &mut done.held
    } else if recorded {
        &mut done.recorded
    } else if !turn.includes(place) {
        &mut done.not_due
    } else if place.written && place.len > effort.budget_bytes - done.moved_bytes {
        let smallest = done.smallest_over_budget.unwrap_or(usize::MAX).min(place.len);
        done.smallest_over_budget = Some(smallest);
        &mut done.over_budget
    } else {
        return true;
    };
    *reason += 1;
    false
}

/// How far a copy came.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Copied {
    All,
    /// The source is as it was.
    Nothing,
    /// A part of the source was overwritten, and the rest was not copied.
    Part,
}

/// Copies `len` bytes down, where the ranges overlap in pieces that do not.
fn copy_down(
    from: usize,
    to: usize,
    len: usize,
    copy: &mut dyn FnMut(usize, usize, usize) -> bool,
) -> Copied {
    let apart = if to < from { from - to } else { len };
    let mut done = 0;
    while done < len {
        let piece = apart.min(len - done);
        if !copy(from + done, to + done, piece) {
            return if done == 0 { Copied::Nothing } else { Copied::Part };
        }
        done += piece;
    }
    Copied::All
}
