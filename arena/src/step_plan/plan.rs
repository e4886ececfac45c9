//! A plan: for each request of a step, by position, what is expected and where it goes.

use std::hash::{BuildHasher, Hasher};
use std::time::Duration;

use rustc_hash::FxBuildHasher;

use super::StepId;
use super::record::{Key, LEAVES, Record};
use super::slab::Slab;
use crate::plan::{Buffer, Planner};

/// A plan that leaves no more than this share of its slab unused is good enough,
const UNUSED_SHARE: f64 = 0.005;
/// and a better one is not looked for any longer than this.
const SEARCHED_FOR: Duration = Duration::from_millis(100);

/// What two runs agreed on, to be planned. Needs no lock.
#[derive(Debug)]
pub struct PlanJob {
    pub(super) step: StepId,
    pub(super) record: Record,
    pub(super) granule_bytes: usize,
}

/// A plan that is ready for use.
#[derive(Debug)]
pub struct SolvedPlan {
    pub(super) step: StepId,
    pub(super) slots: Vec<Slot>,
    pub(super) slab_bytes: usize,
    pub(super) max_live_bytes: usize,
    pub(super) align_bytes: usize,
}

/// One request of a plan.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slot {
    pub(super) key: Key,
    pub(super) place: Place,
    /// Bytes in the slab.
    pub(super) len: usize,
    /// How many requests have come when it ends.
    pub(super) end: u32,
}

/// Where a request goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// In the slab.
    InSlab {
        /// Bytes behind the beginning.
        offset: usize,
        /// The number that the slab has for this place.
        spot: u32,
    },
    /// To a block of its own, since it outlives its step.
    Own,
}

impl PlanJob {
    /// Requests that are planned.
    #[must_use]
    pub fn request_count(&self) -> usize {
        self.record.keys.len()
    }

    /// Finds the places: some milliseconds for a few thousand requests, and a little longer where the quick way
    /// leaves much unused. `None` if no places can be had for such sizes.
    #[must_use]
    pub fn solve(self) -> Option<SolvedPlan> {
        let Self { step, record, granule_bytes } = self;
        let align_bytes = record.keys.iter().map(|key| key.align_bytes).fold(granule_bytes, usize::max);
        let slot = |(key, &end): (&Key, &u32)| {
            let len = key.size_bytes.max(1).checked_next_multiple_of(granule_bytes)?;
            Some(Slot { key: *key, place: Place::Own, len, end })
        };
        let slots: Option<Vec<Slot>> = record.keys.iter().zip(&record.ends).map(slot).collect();
        let mut slots = slots?;
        let in_step = slots.iter().zip(0_u64..).filter(|(slot, _)| slot.end != LEAVES);
        let buffer = |(slot, at): (&Slot, u64)| Buffer {
            align_bytes: slot.key.align_bytes.max(1),
            ..Buffer::new(at, u64::from(slot.end).max(at + 1), slot.len)
        };
        let buffers: Vec<Buffer> = in_step.map(buffer).collect();
        let planner =
            Planner { granule_bytes, budget: SEARCHED_FOR, tolerance: UNUSED_SHARE, ..Planner::default() };
        let plan = planner.plan(&buffers).ok()?;
        let in_step = slots.iter_mut().filter(|slot| slot.end != LEAVES);
        for (slot, &offset) in in_step.zip(&plan.offsets) {
            slot.place = Place::InSlab { offset, spot: u32::MAX };
        }
        Some(SolvedPlan {
            step,
            slots,
            slab_bytes: plan.peak_bytes,
            max_live_bytes: plan.max_live_bytes,
            align_bytes,
        })
    }
}

impl SolvedPlan {
    /// Bytes of its slab.
    #[must_use]
    pub fn slab_bytes(&self) -> usize {
        self.slab_bytes
    }

    /// The most bytes that are alive at once of what lies in the slab: no plan needs less.
    #[must_use]
    pub fn max_live_bytes(&self) -> usize {
        self.max_live_bytes
    }
}

/// A plan in use.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) id: u32,
    pub(super) slots: Vec<Slot>,
    /// The slots in the slab, by when they end.
    pub(super) due: Vec<u32>,
    /// For each position a hash of the requests before it.
    prefixes: Vec<u64>,
    pub(super) slab_bytes: usize,
    pub(super) max_live_bytes: usize,
    pub(super) align_bytes: usize,
    /// When it was used last, counted in runs.
    pub(super) last_used: u64,
    /// The plan of the run that followed the last one.
    pub(super) followed_by: Option<u32>,
    /// Runs in sequence in which something was late.
    pub(super) late_runs: u32,
    /// Later ends than planned, by slot, of these runs.
    pub(super) late_ends: Vec<(u32, u32)>,
    /// Blocks that serve one position, by position.
    pub(super) own: Vec<(u32, usize)>,
    /// What ended within its step although it outlives it by the plan.
    early: Vec<EarlyEnd>,
}

/// A position whose block ended within the step, in so many runs in sequence.
#[derive(Debug)]
struct EarlyEnd {
    slot: u32,
    end: u32,
    last_run: u64,
    runs: u32,
}

impl Plan {
    pub(super) fn new(id: u32, solved: SolvedPlan) -> Self {
        let slots = solved.slots;
        let in_slab = |slot: &Slot| matches!(slot.place, Place::InSlab { .. });
        let mut due: Vec<u32> = (0..slots.len() as u32).filter(|&at| in_slab(&slots[at as usize])).collect();
        due.sort_by_key(|&at| slots[at as usize].end);
        let mut hasher = FxBuildHasher.build_hasher();
        let mut prefixes = vec![hasher.finish()];
        for slot in &slots {
            hasher.write_usize(slot.key.size_bytes);
            hasher.write_usize(slot.key.align_bytes << 1 | usize::from(slot.key.zeroed));
            prefixes.push(hasher.finish());
        }
        Self {
            id,
            slots,
            due,
            prefixes,
            slab_bytes: solved.slab_bytes,
            max_live_bytes: solved.max_live_bytes,
            align_bytes: solved.align_bytes,
            last_used: 0,
            followed_by: None,
            late_runs: 0,
            late_ends: Vec::new(),
            own: Vec::new(),
            early: Vec::new(),
        }
    }

    /// Gets the numbers that the slab has for its places.
    pub(super) fn settle_in(&mut self, slab: &mut Slab) {
        for slot in &mut self.slots {
            if let Place::InSlab { offset, spot } = &mut slot.place {
                *spot = slab.spot(*offset);
            }
        }
    }

    /// Whether the request at `position` is this one.
    #[inline]
    pub(super) fn expects(&self, position: usize, key: Key) -> bool {
        self.slots.get(position).is_some_and(|slot| slot.key == key)
    }

    /// Whether both plans began with the same requests, up to `position`.
    pub(super) fn begins_as(&self, other: &Self, position: usize) -> bool {
        let prefix = self.prefixes.get(position);
        prefix.is_some() && prefix == other.prefixes.get(position)
    }

    pub(super) fn asks_for_the_same(&self, slots: &[Slot]) -> bool {
        self.slots.iter().map(|slot| slot.key).eq(slots.iter().map(|slot| slot.key))
    }

    /// Notes that a slot ended later than planned.
    pub(super) fn note_late_end(&mut self, slot: u32, end: u32) {
        match self.late_ends.iter_mut().find(|(at, _)| *at == slot) {
            // The last run counts: it may have ended within this one.
            Some((_, known)) => *known = end,
            None => self.late_ends.push((slot, end)),
        }
    }

    /// Notes that what outlives its step by the plan ended within it, in this run.
    pub(super) fn note_early_end(&mut self, slot: u32, end: u32, run: u64) {
        match self.early.iter_mut().find(|early| early.slot == slot) {
            Some(early) => {
                early.runs = if early.last_run + 1 == run { early.runs + 1 } else { 1 };
                (early.end, early.last_run) = (early.end.max(end), run);
            }
            None => self.early.push(EarlyEnd { slot, end, last_run: run, runs: 1 }),
        }
    }

    /// The same requests, if some that outlived their step ended within it in so many runs.
    pub(super) fn record_with_early_ends(&mut self, runs: u32) -> Option<Record> {
        if self.early.iter().all(|early| early.runs < runs) {
            return None;
        }
        let mut record = self.record_with_late_ends();
        for early in self.early.drain(..).filter(|early| early.runs >= runs) {
            record.ends[early.slot as usize] = early.end;
        }
        Some(record)
    }

    /// The same requests with the ends that came later than planned.
    pub(super) fn record_with_late_ends(&self) -> Record {
        let mut record = Record::default();
        record.keys = self.slots.iter().map(|slot| slot.key).collect();
        record.ends = self.slots.iter().map(|slot| slot.end).collect();
        for &(slot, end) in &self.late_ends {
            let known = &mut record.ends[slot as usize];
            *known = (*known).max(end);
        }
        record
    }
}
