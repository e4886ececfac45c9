//! A placement together with the upstream it draws from, and the steps that are served from it.

mod heaps;
mod stepping;

use crate::buffer_heap::BufferHeaps;
use crate::error::ArenaError;
use crate::in_advance::{allocate_growing, take_for_a_start};
use crate::invariant::Violation;
use crate::layout::{LaidOut, MappedSegment, Usage, lay_out};
use crate::placement::{LiveBlock, Placed, Placement};
use crate::range::AddressRange;
use crate::request::Request;
use crate::stats::{SizeClass, Stats};
use crate::step_plan::StepPlans;
use crate::upstream::Upstream;

/// A policy and its memory, as one owner holds them. The methods are those of [`Placement`], and see
/// [`StepPlans`] for steps and [`BufferHeaps`] for buffers that move.
#[derive(Debug)]
pub struct Arena<U: Upstream, P: Placement + ?Sized = dyn Placement> {
    upstream: U,
    kept_bytes: usize,
    steps: StepPlans,
    heaps: BufferHeaps,
    placement: Box<P>,
}

impl<U: Upstream, P: Placement> Arena<U, P> {
    /// An arena without memory; ranges are reserved and mapped as they are needed.
    pub fn new(placement: P, upstream: U) -> Self {
        let (steps, heaps) = (StepPlans::default(), BufferHeaps::default());
        Self { upstream, kept_bytes: 0, steps, heaps, placement: Box::new(placement) }
    }
}

impl<U: Upstream> Arena<U> {
    /// An arena whose policy is chosen at run time.
    pub fn from_boxed(placement: Box<dyn Placement>, upstream: U) -> Self {
        let (steps, heaps) = (StepPlans::default(), BufferHeaps::default());
        Self { upstream, kept_bytes: 0, steps, heaps, placement }
    }

    /// Maps `bytes`, rounded up to pages, for requests to come: most for large ones, and a part for small ones
    /// where the policy keeps them apart. A policy may round up by more: buckets and bfc take segments. The
    /// figures of requests do not change.
    ///
    /// # Errors
    /// [`ArenaError::OutOfMemory`] when the limit or upstream refuses; then nothing is taken.
    /// [`ArenaError::Option`] for a policy whose memory serves only the sizes that it was taken for.
    pub fn take_in_advance(&mut self, bytes: usize) -> Result<(), ArenaError> {
        take_for_a_start(&mut *self.placement, &mut self.upstream, bytes, self.kept_bytes)
    }

    /// As [`allocate`](Self::allocate); but where pages have to be mapped for the request, `growth_bytes` are,
    /// if it is less and upstream and the limit allow them. Requests of sizes that memory taken in advance
    /// does not serve, small ones among them, take what they need.
    ///
    /// # Errors
    /// As [`Placement::allocate`].
    pub fn allocate_growing(&mut self, request: Request, growth_bytes: usize) -> Result<Placed, ArenaError> {
        let Self { placement, upstream, kept_bytes, .. } = self;
        let placed = allocate_growing(&mut **placement, upstream, request, growth_bytes, *kept_bytes);
        match placed {
            Err(ArenaError::OutOfMemory { .. }) if self.give_up_for_others() => {
                self.placement.stats_mut().failures -= 1;
                self.placement.allocate(request, &mut self.upstream)
            }
            placed => placed,
        }
    }

    /// See [`Placement::keep`].
    pub fn keep(&mut self, bytes: usize) {
        self.kept_bytes = bytes;
        self.placement.keep(bytes);
    }

    /// Bytes on free pages that [`trim`](Self::trim) would give back.
    #[must_use]
    pub fn spare_bytes(&self) -> usize {
        let stats = self.placement.stats();
        stats.releasable_bytes.min(stats.reserved.current.saturating_sub(self.kept_bytes))
    }
}

impl<U: Upstream, P: Placement + ?Sized> Arena<U, P> {
    /// See [`Placement::allocate`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn allocate(&mut self, request: Request) -> Result<Placed, ArenaError> {
        let placed = self.placement.allocate(request, &mut self.upstream);
        if matches!(placed, Err(ArenaError::OutOfMemory { .. })) && self.give_up_for_others() {
            self.placement.stats_mut().failures -= 1;
            return self.placement.allocate(request, &mut self.upstream);
        }
        placed
    }

    /// See [`Placement::allocate_mapped`].
    #[inline]
    pub fn allocate_mapped(&mut self, request: Request) -> Option<Placed> {
        self.placement.allocate_mapped(request)
    }

    /// See [`Placement::free`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn free(&mut self, addr: usize) -> Result<LiveBlock, ArenaError> {
        if !self.steps.is_empty()
            && let Some(freed) = self.free_in_step(addr)
        {
            return freed;
        }
        if !self.heaps.is_empty()
            && let Some(freed) = self.free_in_heap(addr)
        {
            return freed;
        }
        self.placement.free(addr, &mut self.upstream)
    }

    /// See [`Placement::resize_in_place`].
    ///
    /// # Errors
    /// As there.
    pub fn resize_in_place(
        &mut self,
        addr: usize,
        size_bytes: usize,
    ) -> Result<Option<LiveBlock>, ArenaError> {
        if let Some(bytes) = self.live_bytes(addr) {
            // Places of steps and of buffers are as long as they are.
            let block = LiveBlock { addr, requested_bytes: size_bytes, allocated_bytes: bytes };
            return Ok((size_bytes <= bytes).then_some(block));
        }
        self.placement.resize_in_place(addr, size_bytes, &mut self.upstream)
    }

    /// See [`Placement::trim`]. What steps and heaps keep and do not use goes when that was not enough.
    pub fn trim(&mut self, target_bytes: usize) -> usize {
        let returned = self.placement.trim(&mut self.upstream, target_bytes);
        if returned >= target_bytes || (self.steps.is_empty() && self.heaps.is_empty()) {
            return returned;
        }
        self.trim_steps();
        self.give_back_of_heaps();
        returned + self.placement.trim(&mut self.upstream, target_bytes - returned)
    }

    /// See [`Placement::release_all`].
    ///
    /// # Errors
    /// As there.
    pub fn release_all(&mut self) -> Result<(), ArenaError> {
        self.placement.release_all(&mut self.upstream)
    }

    /// See [`Placement::live_block`].
    #[must_use]
    pub fn live_block(&self, addr: usize) -> Option<LiveBlock> {
        if let Some(bytes) = self.live_bytes(addr) {
            return Some(LiveBlock { addr, requested_bytes: bytes, allocated_bytes: bytes });
        }
        self.placement.live_block(addr).filter(|_| !self.keeps(addr))
    }

    fn live_bytes(&self, addr: usize) -> Option<usize> {
        self.steps.live_bytes(addr).or_else(|| self.heaps.live_bytes(addr))
    }

    /// Whether what steps or heaps hand out lies in the placement's block.
    fn keeps(&self, addr: usize) -> bool {
        self.steps.keeps(addr) || self.heaps.keeps(addr)
    }

    /// See [`Placement::live_blocks`]; of the blocks that steps and heaps hand out instead of those that they lie in.
    #[must_use]
    pub fn live_blocks(&self) -> Vec<LiveBlock> {
        let mut blocks = self.placement.live_blocks();
        if !self.steps.is_empty() || !self.heaps.is_empty() {
            blocks.retain(|block| !self.keeps(block.addr));
            blocks.extend(self.steps.live_blocks());
            blocks.extend(self.heaps.live_blocks());
        }
        blocks
    }

    /// See [`Placement::clean_ranges`].
    #[must_use]
    pub fn clean_ranges(&self, addr: usize) -> Vec<AddressRange> {
        self.placement.clean_ranges(addr)
    }

    /// See [`Placement::settle`].
    pub fn settle(&mut self) {
        self.placement.settle();
    }

    /// See [`Placement::largest_free_bytes`].
    #[must_use]
    pub fn largest_free_bytes(&self) -> usize {
        self.placement.largest_free_bytes()
    }

    /// See [`Placement::mapped_ranges`].
    #[must_use]
    pub fn mapped_ranges(&self) -> Vec<AddressRange> {
        self.placement.mapped_ranges()
    }

    /// What lies where: mapped memory, cut by its blocks. Walks all of them.
    #[must_use]
    pub fn layout(&self) -> Vec<MappedSegment> {
        let owned = self.placement.live_blocks().into_iter().map(|block| (block, self.keeps(block.addr)));
        let inner = self.steps.live_blocks().map(LaidOut::from);
        let buffers = self.steps.free_buffers().chain(self.heaps.free_buffers());
        let buffers = buffers.map(|range| LaidOut { range, usage: Usage::Kept { buffer_bytes: range.len } });
        let inner = inner.chain(self.heaps.live_blocks().map(LaidOut::from)).chain(buffers);
        lay_out(self.placement.mapped_by_class(), self.maps_pages(), owned.collect(), inner.collect())
    }

    /// See [`Placement::maps_pages`].
    #[must_use]
    pub fn maps_pages(&self) -> bool {
        self.placement.maps_pages()
    }

    /// See [`Placement::stats`].
    #[must_use]
    pub fn stats(&self) -> &Stats {
        self.placement.stats()
    }

    /// See [`Stats::external_fragmentation`].
    #[must_use]
    pub fn external_fragmentation(&self) -> f64 {
        self.stats().external_fragmentation(self.largest_free_bytes())
    }

    /// The class of the segment that the block at `addr` lies in, which is the placement's own.
    #[must_use]
    pub fn class_of_block(&self, addr: usize) -> SizeClass {
        self.placement.class_of_block(addr)
    }

    /// Forgets all peaks.
    pub fn reset_peaks(&mut self) {
        self.placement.stats_mut().reset_peaks();
    }

    /// See [`Stats::reset_accumulated`].
    pub fn reset_accumulated(&mut self) {
        self.placement.stats_mut().reset_accumulated();
    }

    /// See [`Placement::validate`].
    ///
    /// # Errors
    /// As there.
    pub fn validate(&self) -> Result<(), Violation> {
        self.steps.validate()?;
        self.heaps.validate()?;
        self.placement.validate()
    }

    /// The policy.
    #[must_use]
    pub fn placement(&self) -> &P {
        &self.placement
    }

    /// The upstream.
    #[must_use]
    pub fn upstream(&self) -> &U {
        &self.upstream
    }

    /// The upstream, to change its capacity or to plan failures.
    pub fn upstream_mut(&mut self) -> &mut U {
        &mut self.upstream
    }
}
