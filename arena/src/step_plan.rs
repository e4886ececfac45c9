//! Steps that repeat themselves, served by position.
//!
//! A step is a stretch of a program that runs again and again: a forward pass, a training step. Its requests
//! are recorded as they come. When two runs agree (sizes, alignments, zeroed or not, in the same order), each
//! request that ends within the step gets a place in one block, the *slab*, by an offline plan; later runs find
//! their place by position, without a search. Lifetimes are counted in requests of the step, not in frees:
//! candle's gradient store frees in another order each time.
//!
//! Whatever differs from the plan is served by the pool and counted: another size, another order, a run that
//! ends early. When it differs in the same way twice, that becomes a plan of its own; a few plans are kept, so
//! that a step may alternate between some shapes.
//!
//! **Memory is never handed out twice.** The plan promises that what overlaps in place does not overlap in
//! time, *if* every block ends when it did. So each planned end is looked at once, when its time has come: a
//! block that is still alive then is *late*, and until it ends nothing is placed over it. A block that outlives
//! its run is late for every later one. Requests that outlived their step when it was recorded have no place in
//! the slab: each has a block of its own, which serves the same position again once it is free.
//!
//! Nothing here allocates from a pool or is synchronised: the pool's lock is the caller's, and planning
//! ([`PlanJob::solve`]) needs no lock at all.

mod plan;
mod record;
mod slab;
mod step;

use std::collections::HashMap;

use rustc_hash::FxBuildHasher;

use self::slab::Slab;
use self::step::Step;
use crate::invariant::Violation;
use crate::placement::LiveBlock;
use crate::range::AddressRange;
use crate::request::Request;

pub use self::plan::{PlanJob, SolvedPlan};
pub use self::step::StepPlanStats;

/// The name of a step in its pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StepId(pub u64);

/// How steps are planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepOptions {
    /// Places in a slab are multiples of this power of two, in bytes.
    pub granule_bytes: usize,
    /// Plans that are kept for steps that alternate; the one that was not used for longest goes first. At least 1.
    pub max_plans: usize,
}

/// What becomes of a request of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Served {
    /// It lies at this address, which the plan had for it.
    At(usize),
    /// The pool serves it; then [`StepPlans::placed`] is to be told where.
    ByPool,
}

/// Whose an address is that is freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freed {
    /// The pool's.
    ByPool,
    /// A step's, which keeps the place of so many bytes.
    Kept {
        /// Bytes of the place.
        bytes: usize,
    },
    /// A step's that is no more, and its last there: the slab is the pool's to free.
    Last {
        /// Bytes of the place.
        bytes: usize,
        /// The address of the pool's block.
        slab: usize,
    },
    /// Nobody's: it lies in a slab, or is kept for a step, and is not alive.
    Unknown,
}

/// The steps of one pool and stream.
#[derive(Debug, Default)]
pub struct StepPlans {
    /// Few: they are looked through faster than anything is looked up.
    steps: Vec<(StepId, Step)>,
    /// Those of steps and those that only wait for their last blocks. Few.
    slabs: Vec<Slab>,
    /// Blocks that serve one position each, by address.
    own: HashMap<usize, Own, FxBuildHasher>,
    next_slab: u64,
}

/// A block of the pool that serves the same use again and again: requests of one position of a plan, which
/// outlive their step, or a buffer.
#[derive(Debug, Clone, Copy)]
struct Own {
    /// `None` for a buffer.
    step: Option<StepId>,
    /// The run that it was handed out in last.
    run: u64,
    len: usize,
    live: bool,
}

impl StepPlans {
    /// Whether there is nothing to ask for.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty() && self.slabs.is_empty() && self.own.is_empty()
    }

    /// A new step begins to exist.
    pub fn add(&mut self, id: StepId, options: StepOptions) {
        if !self.has(id) {
            self.steps.push((id, Step::new(options)));
        }
    }

    /// Whether the step exists.
    #[must_use]
    pub fn has(&self, id: StepId) -> bool {
        self.steps.iter().any(|(other, _)| *other == id)
    }

    /// A run of the step begins.
    pub fn begin(&mut self, id: StepId) {
        if let Some(step) = find_mut(&mut self.steps, id) {
            step.begin();
        }
    }

    /// Serves a request of a running step, by its plan if it is the one that was expected.
    #[inline]
    pub fn allocate(&mut self, id: StepId, request: Request, zeroed: bool) -> Served {
        let Some(step) = find_mut(&mut self.steps, id) else { return Served::ByPool };
        step.allocate(request, zeroed, &mut self.slabs, &mut self.own)
    }

    /// The pool placed the request of a step at `addr`, in a block of `len` bytes.
    pub fn placed(&mut self, id: StepId, addr: usize, len: usize) {
        if let Some(step) = find_mut(&mut self.steps, id)
            && step.placed(addr)
        {
            let run = step.run_number();
            self.own.insert(addr, Own { step: Some(id), run, len, live: true });
        }
    }

    /// A block ended. When it was a step's, the pool must not free it.
    #[inline]
    pub fn free(&mut self, addr: usize) -> Freed {
        if let Some(at) = self.slabs.iter().position(|slab| slab.range().contains(addr)) {
            return self.free_in_slab(at, addr);
        }
        for (_, step) in &mut self.steps {
            step.freed(addr);
        }
        if self.own.is_empty() {
            return Freed::ByPool;
        }
        match self.own.get_mut(&addr) {
            Some(own) if own.live => {
                own.live = false;
                let (bytes, step, run) = (own.len, own.step, own.run);
                if let Some(step) = step.and_then(|id| find_mut(&mut self.steps, id)) {
                    step.freed_own(addr, run);
                }
                Freed::Kept { bytes }
            }
            Some(_) => Freed::Unknown,
            None => Freed::ByPool,
        }
    }

    #[inline]
    fn free_in_slab(&mut self, at: usize, addr: usize) -> Freed {
        let slab = &mut self.slabs[at];
        let Some(block) = slab.free(addr) else { return Freed::Unknown };
        let bytes = block.len;
        match find_mut(&mut self.steps, slab.step).filter(|_| !slab.retired) {
            Some(step) => step.freed_in_slab(block, addr),
            None if slab.is_unused() => {
                let start = slab.range().start;
                self.slabs.swap_remove(at);
                return Freed::Last { bytes, slab: start };
            }
            None => {}
        }
        Freed::Kept { bytes }
    }

    /// The live block of a step that starts at `addr`: its length in bytes.
    #[must_use]
    pub fn live_bytes(&self, addr: usize) -> Option<usize> {
        let slab = self.slabs.iter().find(|slab| slab.range().contains(addr));
        match slab {
            Some(slab) => slab.live_bytes(addr),
            None if self.own.is_empty() => None,
            None => self.own.get(&addr).filter(|own| own.live).map(|own| own.len),
        }
    }

    /// Whether the pool's block at `addr` holds what steps hand out, or is kept for them: it is not somebody's.
    #[must_use]
    pub fn keeps(&self, addr: usize) -> bool {
        self.slabs.iter().any(|slab| slab.range().start == addr)
            || self.own.get(&addr).is_some_and(|own| !own.live)
    }

    /// All live blocks in slabs.
    pub fn live_blocks(&self) -> impl Iterator<Item = LiveBlock> + '_ {
        self.slabs.iter().flat_map(Slab::live_blocks)
    }

    /// Whether a buffer lies at the address.
    #[must_use]
    pub fn is_buffer(&self, addr: usize) -> bool {
        !self.own.is_empty() && self.own.get(&addr).is_some_and(|own| own.step.is_none())
    }

    /// All buffers.
    pub fn buffers(&self) -> impl Iterator<Item = AddressRange> + '_ {
        let buffers = self.own.iter().filter(|(_, own)| own.step.is_none());
        buffers.map(|(&addr, own)| AddressRange::new(addr, own.len))
    }

    /// All buffers that are nobody's.
    pub fn free_buffers(&self) -> impl Iterator<Item = AddressRange> + '_ {
        let free = self.own.iter().filter(|(_, own)| own.step.is_none() && !own.live);
        free.map(|(&addr, own)| AddressRange::new(addr, own.len))
    }

    /// How many blocks in slabs are alive.
    #[must_use]
    pub fn live_count(&self) -> usize {
        self.slabs.iter().map(Slab::live_count).sum()
    }

    /// How many of the pool's blocks [`keeps`](Self::keeps) is true for.
    #[must_use]
    pub fn kept_count(&self) -> usize {
        self.slabs.len() + self.own.values().filter(|own| !own.live).count()
    }

    /// Whether the address lies in a slab.
    #[must_use]
    pub fn is_in_slab(&self, addr: usize) -> bool {
        self.slabs.iter().any(|slab| slab.range().contains(addr))
    }

    /// The run ends. A plan is to be made when it went as another one before, and not as any plan.
    pub fn end(&mut self, id: StepId) -> Option<PlanJob> {
        let step = find_mut(&mut self.steps, id)?;
        step.end(id, &mut self.slabs)
    }

    /// How long the block has to be that [`install`](Self::install) wants, and how it has to be aligned; `None`
    /// if the slab that is there suffices.
    #[must_use]
    pub fn wanted_slab(&self, solved: &SolvedPlan) -> Option<Request> {
        let step = find(&self.steps, solved.step)?;
        let (len, align) = step.slab_of_plans();
        let (len, align) = (len.max(solved.slab_bytes), align.max(solved.align_bytes));
        let there = self.slabs.iter().find(|slab| step.slab == Some(slab.id));
        let serves =
            there.is_some_and(|slab| slab.range().len >= len && slab.range().start.is_multiple_of(align));
        (len > 0 && !serves).then(|| Request::new(len).aligned_to(align))
    }

    /// Puts a plan to use, with a block for its slab if [`wanted_slab`](Self::wanted_slab) asked for one.
    /// Returns blocks that are the pool's to free.
    pub fn install(&mut self, solved: SolvedPlan, block: Option<AddressRange>) -> Vec<usize> {
        let id = solved.step;
        let Some(step) = find_mut(&mut self.steps, id) else {
            return block.map(|block| block.start).into_iter().collect();
        };
        let mut released = Vec::new();
        if let Some(range) = block {
            let old = step.slab.replace(self.next_slab);
            self.slabs.push(Slab::new(self.next_slab, id, range));
            self.next_slab += 1;
            released.extend(old.and_then(|old| self.retire_slab(old)));
        }
        let step = find_mut(&mut self.steps, id).expect("it was there");
        let unused = step.install(solved, &mut self.slabs);
        released.extend(self.give_up_own(unused));
        released
    }

    /// The step ends to exist. Returns blocks that are the pool's to free; what is alive stays valid.
    pub fn remove(&mut self, id: StepId) -> Vec<usize> {
        let Some(at) = self.steps.iter().position(|(other, _)| *other == id) else { return Vec::new() };
        let (_, step) = self.steps.swap_remove(at);
        let own = self.own.iter().filter(|(_, own)| own.step == Some(id)).map(|(&addr, _)| addr).collect();
        let mut released = self.give_up_own(own);
        released.extend(step.slab.and_then(|slab| self.retire_slab(slab)));
        released
    }

    /// Gives up what steps keep without using it: slabs and blocks of which nothing is alive. Their plans end. A run in
    /// progress goes on without one if `running` ones are meant, too.
    /// Returns blocks that are the pool's to free.
    pub fn trim(&mut self, running: bool) -> Vec<usize> {
        let (mut released, mut given_up) = (Vec::new(), Vec::new());
        for (_, step) in self.steps.iter_mut().filter(|(_, step)| running || !step.is_running()) {
            let slab = step.slab.and_then(|id| self.slabs.iter().position(|slab| slab.id == id));
            if slab.is_some_and(|at| !self.slabs[at].is_unused()) {
                continue;
            }
            released.extend(slab.map(|at| self.slabs.swap_remove(at).range().start));
            step.slab = None;
            given_up.extend(step.forget_plans());
        }
        released.extend(self.give_up_own(given_up));
        released
    }

    /// What the runs of a step came to.
    #[must_use]
    pub fn stats(&self, id: StepId) -> Option<StepPlanStats> {
        let step = find(&self.steps, id)?;
        let slab = self.slabs.iter().find(|slab| step.slab == Some(slab.id));
        Some(step.stats(slab.map_or(0, |slab| slab.range().len)))
    }

    /// A slab that serves no plan any more; the address of its block when nothing is alive in it.
    fn retire_slab(&mut self, id: u64) -> Option<usize> {
        let at = self.slabs.iter().position(|slab| slab.id == id)?;
        if self.slabs[at].is_unused() {
            return Some(self.slabs.swap_remove(at).range().start);
        }
        self.slabs[at].retired = true;
        None
    }

    /// Blocks that served one position and do so no more: those that are alive become the pool's own.
    fn give_up_own(&mut self, addrs: Vec<usize>) -> Vec<usize> {
        let ended = addrs.into_iter().filter_map(|addr| self.own.remove(&addr).map(|own| (addr, own)));
        ended.filter(|(_, own)| !own.live).map(|(addr, _)| addr).collect()
    }

    /// Keeps a block of the pool as a buffer: nobody's, until it is [taken](Self::take_buffer).
    pub fn add_buffer(&mut self, addr: usize, len: usize) {
        self.own.insert(addr, Own { step: None, run: 0, len, live: false });
    }

    /// Makes a buffer somebody's, until it is freed. `false` if it is somebody's already, or shorter than
    /// `size_bytes`, or no buffer.
    #[inline]
    pub fn take_buffer(&mut self, addr: usize, size_bytes: usize) -> bool {
        let usable = |own: &&mut Own| own.step.is_none() && !own.live && size_bytes <= own.len;
        let free = self.own.get_mut(&addr).filter(usable);
        free.map(|own| own.live = true).is_some()
    }

    /// Whether a buffer is nobody's.
    #[must_use]
    pub fn is_free_buffer(&self, addr: usize) -> bool {
        self.own.get(&addr).is_some_and(|own| own.step.is_none() && !own.live)
    }

    /// Keeps a block no longer. Whether it is the pool's to free: what is somebody's becomes an ordinary block.
    pub fn remove_buffer(&mut self, addr: usize) -> bool {
        self.own.remove(&addr).is_some_and(|own| !own.live)
    }

    /// Looks at everything; for tests.
    ///
    /// # Errors
    /// The first rule that does not hold.
    pub fn validate(&self) -> Result<(), Violation> {
        self.slabs.iter().try_for_each(Slab::check)?;
        for (id, step) in &self.steps {
            step.check(*id, &self.slabs)?;
        }
        Ok(())
    }
}

fn find(steps: &[(StepId, Step)], id: StepId) -> Option<&Step> {
    steps.iter().find(|(other, _)| *other == id).map(|(_, step)| step)
}

#[inline]
fn find_mut(steps: &mut [(StepId, Step)], id: StepId) -> Option<&mut Step> {
    steps.iter_mut().find(|(other, _)| *other == id).map(|(_, step)| step)
}

#[cfg(test)]
mod tests;
