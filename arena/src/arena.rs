//! A placement together with the upstream it draws from.

use crate::error::ArenaError;
use crate::invariant::Violation;
use crate::placement::{LiveBlock, Placed, Placement};
use crate::range::AddressRange;
use crate::request::Request;
use crate::stats::Stats;
use crate::upstream::Upstream;

/// A policy and its memory, as one owner holds them. The methods are those of [`Placement`].
#[derive(Debug)]
pub struct Arena<U: Upstream, P: Placement + ?Sized = dyn Placement> {
    upstream: U,
    placement: Box<P>,
}

impl<U: Upstream, P: Placement> Arena<U, P> {
    /// An arena without memory; ranges are reserved and mapped as they are needed.
    pub fn new(placement: P, upstream: U) -> Self {
        Self { upstream, placement: Box::new(placement) }
    }
}

impl<U: Upstream> Arena<U> {
    /// An arena whose policy is chosen at run time.
    pub fn from_boxed(placement: Box<dyn Placement>, upstream: U) -> Self {
        Self { upstream, placement }
    }
}

impl<U: Upstream, P: Placement + ?Sized> Arena<U, P> {
    /// See [`Placement::allocate`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn allocate(&mut self, request: Request) -> Result<Placed, ArenaError> {
        self.placement.allocate(request, &mut self.upstream)
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
        self.placement.resize_in_place(addr, size_bytes, &mut self.upstream)
    }

    /// See [`Placement::trim`].
    pub fn trim(&mut self, target_bytes: usize) -> usize {
        self.placement.trim(&mut self.upstream, target_bytes)
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
        self.placement.live_block(addr)
    }

    /// See [`Placement::live_blocks`].
    #[must_use]
    pub fn live_blocks(&self) -> Vec<LiveBlock> {
        self.placement.live_blocks()
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

    /// Forgets all peaks.
    pub fn reset_peaks(&mut self) {
        self.placement.stats_mut().reset_peaks();
    }

    /// See [`Placement::validate`].
    ///
    /// # Errors
    /// As there.
    pub fn validate(&self) -> Result<(), Violation> {
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
