//! The steps of an arena's owner: see [`step_plan`](crate::step_plan).

use super::Arena;
use crate::error::ArenaError;
use crate::placement::{LiveBlock, Placed, Placement};
use crate::range::AddressRange;
use crate::request::Request;
use crate::step_plan::{Freed, PlanJob, Served, SolvedPlan, StepId, StepOptions, StepPlanStats};
use crate::upstream::Upstream;

impl<U: Upstream, P: Placement + ?Sized> Arena<U, P> {
    /// A new step, unless it exists.
    pub fn add_step(&mut self, id: StepId, options: StepOptions) {
        self.steps.add(id, options);
    }

    /// Whether the step exists.
    #[must_use]
    pub fn has_step(&self, id: StepId) -> bool {
        self.steps.has(id)
    }

    /// A run of the step begins.
    pub fn begin_step(&mut self, id: StepId) {
        self.steps.begin(id);
    }

    /// Serves a request of a running step where its plan has a place for it; else
    /// [`allocate`](Self::allocate) is to serve it, and [`placed_in_step`](Self::placed_in_step) to be told.
    #[inline]
    pub fn allocate_in_step(&mut self, id: StepId, request: Request, zeroed: bool) -> Option<Placed> {
        let Served::At(addr) = self.steps.allocate(id, request, zeroed) else { return None };
        self.placement.stats_mut().count_planned(request.size_bytes);
        Some(Placed { addr, allocated_bytes: request.size_bytes, hit: true })
    }

    /// Tells the step where its last request was placed.
    pub fn placed_in_step(&mut self, id: StepId, placed: Placed) {
        self.steps.placed(id, placed.addr, placed.allocated_bytes);
    }

    /// A run of the step ends. A plan that is to be made needs no lock for it.
    pub fn end_step(&mut self, id: StepId) -> Option<PlanJob> {
        self.steps.end(id)
    }

    /// The block that a plan needs to be put to use, if it needs a new one.
    #[must_use]
    pub fn wanted_slab(&self, solved: &SolvedPlan) -> Option<Request> {
        self.steps.wanted_slab(solved)
    }

    /// Puts a plan to use, with the block that [`wanted_slab`](Self::wanted_slab) asked for. Free memory goes back
    /// that served the step until now.
    pub fn install_plan(&mut self, solved: SolvedPlan, block: Option<AddressRange>) {
        let served_bytes = block.map_or(0, |block| block.len);
        let released = self.steps.install(solved, block);
        self.free_released(released);
        self.placement.trim(&mut self.upstream, served_bytes);
    }

    /// The step ends to exist. What is alive stays valid.
    pub fn remove_step(&mut self, id: StepId) {
        let released = self.steps.remove(id);
        self.free_released(released);
    }

    /// What the runs of a step came to.
    #[must_use]
    pub fn step_stats(&self, id: StepId) -> Option<StepPlanStats> {
        self.steps.stats(id)
    }

    /// Keeps a live block of `len` bytes as a buffer: from now on it is nobody's until it is
    /// [taken](Self::take_buffer), and freeing it makes it nobody's again. It is gone with
    /// [`remove_buffer`](Self::remove_buffer) only.
    pub fn add_buffer(&mut self, addr: usize, len: usize) {
        self.steps.add_buffer(addr, len);
    }

    /// Makes a buffer that holds `size_bytes` somebody's, until it is freed. `false` if it is somebody's already,
    /// or shorter.
    #[inline]
    pub fn take_buffer(&mut self, addr: usize, size_bytes: usize) -> bool {
        self.steps.take_buffer(addr, size_bytes)
    }

    /// Whether a buffer is nobody's.
    #[must_use]
    pub fn is_free_buffer(&self, addr: usize) -> bool {
        self.steps.is_free_buffer(addr)
    }

    /// Gives a buffer up. Its memory is free once it is nobody's.
    pub fn remove_buffer(&mut self, addr: usize) {
        if self.steps.remove_buffer(addr) {
            self.free_released(vec![addr]);
        }
    }

    /// Blocks that are alive for their owners: what steps and heaps keep is not, and what lies in it is.
    #[must_use]
    pub fn live_count(&self) -> usize {
        let blocks = self.placement.stats().blocks.current;
        if self.steps.is_empty() && self.heaps.is_empty() {
            return blocks;
        }
        let kept = self.steps.kept_count() + self.heaps.kept_count();
        blocks - kept + self.steps.live_count() + self.heaps.live_count()
    }

    /// Whether the block lies in a block of the placement that is a step's or a heap's.
    #[must_use]
    pub fn is_in_slab(&self, addr: usize) -> bool {
        self.steps.is_in_slab(addr) || self.heaps.contains(addr)
    }

    /// Ends a block unless it is the placement's own to end; `None` then, and an error for nobody's.
    #[inline]
    pub(super) fn free_in_step(&mut self, addr: usize) -> Option<Result<LiveBlock, ArenaError>> {
        let (bytes, slab) = match self.steps.free(addr) {
            Freed::ByPool => return None,
            Freed::Unknown => return Some(Err(ArenaError::UnknownAddress { addr })),
            Freed::Kept { bytes } => (bytes, None),
            Freed::Last { bytes, slab } => (bytes, Some(slab)),
        };
        self.free_released(slab.into_iter().collect());
        Some(Ok(LiveBlock { addr, requested_bytes: bytes, allocated_bytes: bytes }))
    }

    /// Gives up what steps keep and do not use.
    pub(super) fn trim_steps(&mut self) {
        let released = self.steps.trim(false);
        self.free_released(released);
    }

    /// Gives up what steps keep and do not use, running ones too: memory is short. Whether that was anything.
    #[cold]
    pub(super) fn give_up_for_others(&mut self) -> bool {
        let released = self.steps.trim(true);
        let any = !released.is_empty();
        self.free_released(released);
        self.give_back_of_heaps() || any
    }

    pub(super) fn free_released(&mut self, blocks: Vec<usize>) {
        for addr in blocks {
            let freed = self.placement.free(addr, &mut self.upstream);
            debug_assert!(freed.is_ok(), "a step's block is the placement's");
        }
    }
}
