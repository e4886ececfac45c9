//! One step: its plans, and the run in progress.

use std::collections::HashMap;

use rustc_hash::FxBuildHasher;

use super::plan::{Place, Plan, PlanJob, SolvedPlan};
use super::record::{Key, LEAVES, Record};
use super::slab::{PlacedBlock, Slab};
use super::{Own, Served, StepId, StepOptions};
use crate::invariant::Violation;
use crate::request::Request;

/// A request that is not the expected one may be one of so many after it: then those between are left out.
const LOOKED_AHEAD: usize = 8;
/// When blocks ended later than planned in so many runs in sequence, the step is planned anew.
const LATE_RUNS: u32 = 2;
/// So many runs in sequence may end early, on an error perhaps, before that is taken for a habit.
const SHORT_RUNS: u32 = 4;
/// When what outlived its step has ended within it in so many runs in sequence, the step is planned anew.
const EARLY_RUNS: u32 = 3;
/// Blocks of its own that a position has at most: while the last result is still held, another serves.
const OWN_BLOCKS: usize = 2;

/// What the runs of a step came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepPlanStats {
    /// Runs that ended.
    pub runs: u64,
    /// Runs that went as planned from the first request to the last.
    pub planned_runs: u64,
    /// Requests that got their place in the slab.
    pub planned: u64,
    /// Requests that outlive their step and got the block that this position has.
    pub own: u64,
    /// Requests that outlive their step, and that the pool served, since no block of this position was free.
    pub left: u64,
    /// Requests that the pool served while there was no plan.
    pub recorded: u64,
    /// Requests that no plan expected, served by the pool.
    pub unexpected: u64,
    /// Requests whose place was taken by a block that ended later than planned, served by the pool.
    pub late: u64,
    /// Times that a run turned out to be another plan's.
    pub switches: u64,
    /// Plans that were put to use.
    pub installed: u64,
    /// Plans there are.
    pub plans: usize,
    /// Bytes of the slab.
    pub slab_bytes: usize,
    /// The most that one of the plans needs at once: a slab cannot be shorter.
    pub max_live_bytes: usize,
}

impl StepPlanStats {
    /// Adds the figures of the same step in another stream. A run counts once.
    pub fn add(&mut self, other: &Self) {
        self.runs = self.runs.max(other.runs);
        self.planned_runs = self.planned_runs.max(other.planned_runs);
        for (sum, more) in [
            (&mut self.planned, other.planned),
            (&mut self.own, other.own),
            (&mut self.left, other.left),
            (&mut self.recorded, other.recorded),
            (&mut self.unexpected, other.unexpected),
            (&mut self.late, other.late),
            (&mut self.switches, other.switches),
            (&mut self.installed, other.installed),
        ] {
            *sum += more;
        }
        self.plans += other.plans;
        self.slab_bytes += other.slab_bytes;
        self.max_live_bytes += other.max_live_bytes;
    }
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Step {
    options: StepOptions,
    plans: Vec<Plan>,
    next_plan: u32,
    /// The slab of all plans.
    pub(super) slab: Option<u64>,
    /// Its place in the list of slabs, last time.
    slab_at: usize,
    /// Runs that no plan expected, the latest last.
    candidates: Vec<Record>,
    run: Option<Run>,
    /// Runs in sequence that ended before their plan.
    short_runs: u32,
    /// The plan of the run before.
    last_plan: Option<u32>,
    stats: StepPlanStats,
}

/// A run in progress.
#[derive(Debug, Default)]
struct Run {
    /// Its plan, by place in the list.
    plan: Option<usize>,
    /// The position of the next request.
    position: usize,
    /// How many ends have been looked at.
    ends_seen: usize,
    /// What came, from the first difference on.
    record: Option<Record>,
    /// The pool is to say where the last request lies: for the record, and for the position that it is to serve.
    pending: Option<u32>,
    is_pending: bool,
    /// Something ended later than planned.
    was_late: bool,
    /// The plan was given up on the way, or the pool had no memory for a request: nothing follows from such a run.
    was_given_up: bool,
}

impl Step {
    pub(super) fn new(options: StepOptions) -> Self {
        Self {
            options: StepOptions { max_plans: options.max_plans.max(1), ..options },
            plans: Vec::new(),
            next_plan: 0,
            slab: None,
            slab_at: 0,
            candidates: Vec::new(),
            run: None,
            short_runs: 0,
            last_plan: None,
            stats: StepPlanStats::default(),
        }
    }

    pub(super) fn is_running(&self) -> bool {
        self.run.is_some()
    }

    pub(super) fn begin(&mut self) {
        // What followed the last plan the last time is most likely to follow it again.
        let at = |id: u32| self.plans.iter().position(|plan| plan.id == id);
        let last = self.last_plan.and_then(at);
        let next = last.and_then(|last| self.plans[last].followed_by).and_then(at);
        let plan = next.or(last).or((!self.plans.is_empty()).then_some(0));
        let record = plan.is_none().then(Record::default);
        self.run = Some(Run { plan, record, ..Run::default() });
    }

    #[inline]
    pub(super) fn allocate(
        &mut self,
        request: Request,
        zeroed: bool,
        slabs: &mut [Slab],
        own: &mut HashMap<usize, Own, FxBuildHasher>,
    ) -> Served {
        let Request { size_bytes, align_bytes } = request;
        let key = Key { size_bytes, align_bytes, zeroed };
        let Some(run) = &mut self.run else { return Served::ByPool };
        run.was_given_up |= std::mem::take(&mut run.is_pending);
        let Some(at) = run.plan else {
            self.stats.recorded += 1;
            return self.by_pool(key, None);
        };
        if self.plans[at].expects(run.position, key) || self.find_again(key, slabs) {
            return self.serve(key, slabs, own);
        }
        self.stats.unexpected += 1;
        self.differ(slabs);
        self.by_pool(key, None)
    }

    /// The pool serves a request, and may say where; then that block serves the position `of` again.
    fn by_pool(&mut self, key: Key, of: Option<u32>) -> Served {
        if let Some(run) = &mut self.run {
            (run.is_pending, run.pending) = (true, of);
            if let Some(record) = &mut run.record {
                record.asked(key, None);
            }
        }
        Served::ByPool
    }

    /// Where the pool placed the last request. Whether the block is to serve its position again.
    pub(super) fn placed(&mut self, addr: usize) -> bool {
        let Some(run) = self.run.as_mut().filter(|run| run.is_pending) else { return false };
        run.is_pending = false;
        if let Some(record) = &mut run.record {
            record.placed(addr);
        }
        match (run.pending, run.plan) {
            (Some(slot), Some(plan)) => {
                self.plans[plan].own.push((slot, addr));
                true
            }
            _ => false,
        }
    }

    fn slab<'a>(slab: Option<u64>, slab_at: &mut usize, slabs: &'a mut [Slab]) -> Option<&'a mut Slab> {
        let id = slab?;
        if slabs.get(*slab_at).is_none_or(|slab| slab.id != id) {
            *slab_at = slabs.iter().position(|slab| slab.id == id)?;
        }
        slabs.get_mut(*slab_at)
    }

    /// Serves the request at the run's position, which is the expected one.
    #[inline]
    fn serve(
        &mut self,
        key: Key,
        slabs: &mut [Slab],
        own: &mut HashMap<usize, Own, FxBuildHasher>,
    ) -> Served {
        let run = self.run.as_mut().expect("a run is in progress");
        let plan = &mut self.plans[run.plan.expect("it has a plan")];
        let position = run.position;
        run.position += 1;
        let slot = plan.slots[position];
        let Some(slab) = Self::slab(self.slab, &mut self.slab_at, slabs) else {
            return self.serve_own(key, position, own);
        };
        run.was_late |= Self::look_at_ends(plan, &mut run.ends_seen, position, slab);
        let Place::InSlab { spot, .. } = slot.place else { return self.serve_own(key, position, own) };
        let block =
            PlacedBlock { plan: plan.id, slot: position as u32, len: slot.len, size_bytes: key.size_bytes };
        let Some(addr) = slab.place(spot, block) else { return self.serve_beside(key, position, slabs) };
        self.stats.planned += 1;
        if let Some(record) = &mut run.record {
            record.asked(key, Some(addr));
        }
        Served::At(addr)
    }

    /// Serves a request whose place is taken by something late.
    #[cold]
    fn serve_beside(&mut self, key: Key, position: usize, slabs: &mut [Slab]) -> Served {
        self.stats.late += 1;
        if let Some(run) = &mut self.run {
            run.position = position;
        }
        self.differ(slabs);
        if let Some(run) = &mut self.run {
            run.position = position + 1;
        }
        self.by_pool(key, None)
    }

    /// Looks at the ends that were planned up to `position`. Whether some block lives on.
    #[inline]
    fn look_at_ends(plan: &mut Plan, ends_seen: &mut usize, position: usize, slab: &mut Slab) -> bool {
        let mut late = false;
        while let Some(&due) = plan.due.get(*ends_seen) {
            let slot = plan.slots[due as usize];
            if slot.end as usize > position {
                break;
            }
            *ends_seen += 1;
            if let Place::InSlab { spot, .. } = slot.place
                && slab.note_end(spot, plan.id, due)
            {
                plan.note_late_end(due, LEAVES);
                late = true;
            }
        }
        late
    }

    /// Serves a request that outlives its step.
    fn serve_own(
        &mut self,
        key: Key,
        position: usize,
        own: &mut HashMap<usize, Own, FxBuildHasher>,
    ) -> Served {
        let run = self.run.as_mut().expect("a run is in progress");
        let plan = &mut self.plans[run.plan.expect("it has a plan")];
        let mut blocks = plan.own.iter().filter(|&&(slot, _)| slot as usize == position);
        let mut count = 0;
        let unused = blocks.find(|&&(_, addr)| {
            count += 1;
            own.get(&addr).is_some_and(|own| !own.live)
        });
        if let Some(&(_, addr)) = unused {
            let own = own.get_mut(&addr).expect("it was found");
            (own.live, own.run) = (true, self.stats.runs);
            self.stats.own += 1;
            if let Some(record) = &mut run.record {
                record.asked(key, Some(addr));
            }
            return Served::At(addr);
        }
        let leaves = plan.slots[position].place == Place::Own;
        self.stats.left += 1;
        self.by_pool(key, Some(position as u32).filter(|_| leaves && count < OWN_BLOCKS))
    }

    /// Looks for a request that is not the expected one: in another plan that began as this run, or a little
    /// later in this one. Whether the run goes on there.
    #[cold]
    fn find_again(&mut self, key: Key, slabs: &mut [Slab]) -> bool {
        let Some(run) = &mut self.run else { return false };
        let Some(at) = run.plan else { return false };
        let position = run.position;
        if run.record.is_none() {
            let begins_as =
                |other: &Plan| other.expects(position, key) && other.begins_as(&self.plans[at], position);
            if let Some(other) = self.plans.iter().position(begins_as) {
                (run.plan, run.ends_seen) = (Some(other), 0);
                // What this run has placed so far was not planned beside what comes.
                if let Some(slab) = Self::slab(self.slab, &mut self.slab_at, slabs) {
                    slab.note_all_late();
                }
                self.stats.switches += 1;
                return true;
            }
        }
        let ahead =
            (position + 1..=position + LOOKED_AHEAD).find(|&later| self.plans[at].expects(later, key));
        let Some(later) = ahead else { return false };
        self.differ(slabs);
        if let Some(run) = &mut self.run {
            run.position = later;
        }
        true
    }

    /// From here on the run differs from its plan, and is recorded.
    #[cold]
    fn differ(&mut self, slabs: &mut [Slab]) {
        let Some(run) = &mut self.run else { return };
        let Some(plan) = run.plan.map(|at| &self.plans[at]) else { return };
        if run.record.is_some() {
            return;
        }
        let slab = Self::slab(self.slab, &mut self.slab_at, slabs);
        let mut record = Record::default();
        for (at, slot) in plan.slots[..run.position].iter().enumerate() {
            let addr = match (slot.place, &slab) {
                (Place::InSlab { spot, .. }, Some(slab)) => slab.holds(spot, plan.id, at as u32),
                _ => None,
            };
            record.asked(slot.key, addr);
            if addr.is_none() {
                // It has ended, at the latest now; what leaves a step has left it.
                let end = if slot.place == Place::Own { LEAVES } else { slot.end.min(run.position as u32) };
                record.ends[at] = end;
            }
        }
        run.record = Some(record);
    }

    /// A block of the pool ended.
    #[inline]
    pub(super) fn freed(&mut self, addr: usize) {
        if let Some(Run { record: Some(record), .. }) = &mut self.run {
            record.freed(addr);
        }
    }

    /// The number of the run in progress, or of the next.
    pub(super) fn run_number(&self) -> u64 {
        self.stats.runs
    }

    /// A block of a position ended that outlives its step by the plan, and was handed out in this run.
    pub(super) fn freed_own(&mut self, addr: usize, handed_out_in: u64) {
        let Some(Run { plan: Some(at), position, record: None, .. }) = &self.run else { return };
        let plan = &mut self.plans[*at];
        if handed_out_in == self.stats.runs
            && let Some(&(slot, _)) = plan.own.iter().find(|&&(_, own)| own == addr)
        {
            plan.note_early_end(slot, *position as u32, self.stats.runs);
        }
    }

    /// A block in the slab ended.
    #[inline]
    pub(super) fn freed_in_slab(&mut self, block: PlacedBlock, addr: usize) {
        let Some(run) = &mut self.run else { return };
        if let Some(record) = &mut run.record {
            record.freed(addr);
        } else if run.was_late
            && let Some(plan) = run.plan.map(|at| &mut self.plans[at])
            && plan.id == block.plan
            && plan.late_ends.iter().any(|&(slot, _)| slot == block.slot)
        {
            plan.note_late_end(block.slot, run.position as u32);
        }
    }

    /// The run ends. See [`StepPlans::end`](super::StepPlans::end).
    pub(super) fn end(&mut self, id: StepId, slabs: &mut [Slab]) -> Option<PlanJob> {
        let (plan, position) = self.run.as_ref().map(|run| (run.plan, run.position))?;
        let is_short = plan.is_some_and(|at| position < self.plans[at].slots.len());
        self.short_runs = if is_short { self.short_runs + 1 } else { 0 };
        if self.short_runs > SHORT_RUNS {
            self.differ(slabs);
        }
        let mut run = self.run.take()?;
        self.stats.runs += 1;
        if let Some(slab) = Self::slab(self.slab, &mut self.slab_at, slabs) {
            if let Some(at) = plan {
                run.was_late |= Self::look_at_ends(&mut self.plans[at], &mut run.ends_seen, position, slab);
            }
            slab.note_all_late();
        }
        if let Some(at) = plan.filter(|&at| position == self.plans[at].slots.len()) {
            self.note_order(at);
        }
        if run.was_given_up || run.is_pending {
            return None;
        }
        let granule_bytes = self.options.granule_bytes;
        if let Some(mut record) = run.record {
            record.close();
            return self.compare(record).map(|record| PlanJob { step: id, record, granule_bytes });
        }
        if is_short {
            return None;
        }
        let plan = &mut self.plans[plan?];
        self.stats.planned_runs += 1;
        if run.was_late {
            plan.late_runs += 1;
        } else {
            plan.late_runs = 0;
            plan.late_ends.clear();
        }
        let late = (plan.late_runs >= LATE_RUNS).then(|| {
            plan.late_runs = 0;
            plan.record_with_late_ends()
        });
        let late = late.or_else(|| plan.record_with_early_ends(EARLY_RUNS));
        late.map(|record| PlanJob { step: id, record, granule_bytes })
    }

    /// Notes that a run went by this plan, to its end, and which one the run before went by.
    fn note_order(&mut self, at: usize) {
        let plan = &mut self.plans[at];
        plan.last_used = self.stats.runs;
        let this = plan.id;
        let last = self.last_plan.replace(this);
        if let Some(last) = self.plans.iter_mut().find(|plan| Some(plan.id) == last) {
            last.followed_by = Some(this);
        }
    }

    /// Compares a run that no plan expected with earlier ones; when one went the same way, what both say.
    fn compare(&mut self, record: Record) -> Option<Record> {
        if record.keys.is_empty() {
            return None;
        }
        if let Some(at) = self.candidates.iter().position(|other| other.agrees(&record)) {
            let mut both = self.candidates.remove(at);
            both.merge(&record);
            return Some(both);
        }
        // As many different ones in turn as there may be plans, and one that never comes again.
        if self.candidates.len() > self.options.max_plans {
            self.candidates.remove(0);
        }
        self.candidates.push(record);
        None
    }

    /// The length and the alignment of the slab that all plans can use.
    pub(super) fn slab_of_plans(&self) -> (usize, usize) {
        let needs = self.plans.iter().map(|plan| (plan.slab_bytes, plan.align_bytes));
        needs.fold((0, 1), |(len, align), (other, other_align)| (len.max(other), align.max(other_align)))
    }

    /// Adds a plan, and returns the blocks of positions that are no more.
    pub(super) fn install(&mut self, solved: SolvedPlan, slabs: &mut [Slab]) -> Vec<usize> {
        let mut given_up = Vec::new();
        if let Some(at) = self.plans.iter().position(|plan| plan.asks_for_the_same(&solved.slots)) {
            given_up.push(self.plans.swap_remove(at));
        }
        if self.plans.len() >= self.options.max_plans {
            let oldest = (0..self.plans.len()).min_by_key(|&at| self.plans[at].last_used);
            given_up.extend(oldest.map(|at| self.plans.swap_remove(at)));
        }
        let mut plan = Plan::new(self.next_plan, solved);
        plan.last_used = self.stats.runs;
        self.next_plan = self.next_plan.wrapping_add(1);
        self.last_plan = Some(plan.id);
        self.plans.push(plan);
        if let Some(slab) = Self::slab(self.slab, &mut self.slab_at, slabs) {
            // Whatever is alive was placed by another plan, or before.
            slab.note_all_late();
            slab.forget_spots();
            self.plans.iter_mut().for_each(|plan| plan.settle_in(slab));
        }
        self.stats.installed += 1;
        given_up.into_iter().flat_map(|plan| plan.own).map(|(_, addr)| addr).collect()
    }

    /// The plans end: their slab was given up. Returns the blocks of their positions.
    pub(super) fn forget_plans(&mut self) -> Vec<usize> {
        self.last_plan = None;
        if let Some(run) = &mut self.run {
            // What came before is not known any more, so it is no candidate either.
            *run = Run { was_given_up: true, ..Run::default() };
        }
        self.plans.drain(..).flat_map(|plan| plan.own).map(|(_, addr)| addr).collect()
    }

    pub(super) fn stats(&self, slab_bytes: usize) -> StepPlanStats {
        let max_live_bytes = self.plans.iter().map(|plan| plan.max_live_bytes).max().unwrap_or(0);
        StepPlanStats { plans: self.plans.len(), slab_bytes, max_live_bytes, ..self.stats }
    }

    pub(super) fn check(&self, id: StepId, slabs: &[Slab]) -> Result<(), Violation> {
        let slab = slabs.iter().find(|slab| Some(slab.id) == self.slab);
        let len = slab.map_or(0, |slab| slab.range().len);
        for plan in &self.plans {
            Violation::unless(plan.slab_bytes <= len, || {
                format!("a plan of step {id:?} needs {} bytes of a slab of {len}", plan.slab_bytes)
            })?;
        }
        Violation::unless(slab.is_none_or(|slab| slab.step == id && !slab.retired), || {
            format!("the slab of step {id:?} is another's")
        })
    }
}
