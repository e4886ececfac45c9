//! An upstream of addresses only, with a capacity, counters and failures on demand.
//!
//! It checks its callers: mapping a mapped page, unmapping an unmapped one or releasing a
//! range with mapped pages is a [`UpstreamError::Misuse`], so a test that runs on it also
//! tests the discipline of the placement above.

use std::collections::{BTreeMap, VecDeque};

use crate::cost::CostModel;
use crate::error::{MapError, UpstreamError};
use crate::page_map::PageMap;
use crate::range::AddressRange;
use crate::upstream::Upstream;

/// Where simulated addresses begin. High enough that no test confuses one with a small number.
const FIRST_ADDRESS: usize = 1 << (usize::BITS - 24);

/// How often each call was made, and what it moved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SimulatedCounters {
    /// Calls of `reserve`.
    pub reserve_calls: u64,
    /// Calls of `release`.
    pub release_calls: u64,
    /// Calls of `map`.
    pub map_calls: u64,
    /// Calls of `unmap`.
    pub unmap_calls: u64,
    /// Pages mapped over the run.
    pub mapped_pages: u64,
    /// Pages unmapped over the run.
    pub unmapped_pages: u64,
    /// Calls of `relocate`.
    pub relocate_calls: u64,
    /// Pages that went from one place to another.
    pub relocated_pages: u64,
    /// Times that memory was unmapped which work still used: a driver would have waited.
    pub waits: u64,
}

/// Addresses without memory.
#[derive(Debug)]
pub struct SimulatedUpstream {
    page_bytes: usize,
    capacity_bytes: usize,
    address_space_bytes: usize,
    /// Addresses handed out so far, those of the pages between ranges included.
    used_addresses: usize,
    falling: bool,
    mapped_bytes: usize,
    ranges: BTreeMap<usize, PageMap>,
    counters: SimulatedCounters,
    fail_maps: Vec<u64>,
    fail_unmaps: Vec<u64>,
    fail_reserves: Vec<u64>,
    fail_releases: Vec<u64>,
    partial_pages: usize,
    /// The lengths of the handles by where they are mapped, where memory is had in handles.
    handles: Option<BTreeMap<usize, usize>>,
    /// Callers are not checked, nor costs added up.
    trusts: bool,
    costs: CostModel,
    mapping_us: f64,
    lag: u64,
    clock: u64,
    in_flight: VecDeque<(AddressRange, u64)>,
    /// Where memory moved away from that queued work still uses there.
    left_behind: Vec<(AddressRange, u64)>,
}

/// Options of a [`SimulatedUpstream`].
#[derive(Debug, Clone)]
pub struct SimulatedBuilder {
    page_bytes: usize,
    capacity_bytes: usize,
    address_space_bytes: usize,
    handles: bool,
    falling: bool,
    costs: CostModel,
    lag: u64,
}

impl SimulatedBuilder {
    /// Whether each range lies below the one before, as those of CUDA's `cuMemAlloc` do, and not above.
    #[must_use]
    pub fn falling_addresses(mut self, enabled: bool) -> Self {
        self.falling = enabled;
        self
    }

    /// Whether each call of `map` makes a handle, which can only be unmapped whole, as on a CUDA device.
    #[must_use]
    pub fn handles(mut self, enabled: bool) -> Self {
        self.handles = enabled;
        self
    }

    /// What calls take; [`CostModel::default`] unless set.
    #[must_use]
    pub fn costs(mut self, costs: CostModel) -> Self {
        self.costs = costs;
        self
    }

    /// Queued work uses a freed block until this many operations later
    /// ([`advance`](SimulatedUpstream::advance)); 0 unless set.
    #[must_use]
    pub fn lag(mut self, operations: u64) -> Self {
        self.lag = operations;
        self
    }

    /// Bytes of a page, a power of two; 2 MiB unless set.
    #[must_use]
    pub fn page_bytes(mut self, bytes: usize) -> Self {
        assert!(bytes.is_power_of_two(), "page size {bytes} is not a power of two");
        self.page_bytes = bytes;
        self
    }

    /// Bytes that can be mapped at once; without end unless set.
    #[must_use]
    pub fn capacity_bytes(mut self, bytes: usize) -> Self {
        self.capacity_bytes = bytes;
        self
    }

    /// Bytes that can be reserved over the life of the upstream; 64 TiB unless set
    /// (1 GiB on 32-bit systems).
    #[must_use]
    pub fn address_space_bytes(mut self, bytes: usize) -> Self {
        self.address_space_bytes = bytes;
        self
    }

    /// The upstream.
    #[must_use]
    pub fn build(self) -> SimulatedUpstream {
        SimulatedUpstream {
            page_bytes: self.page_bytes,
            capacity_bytes: self.capacity_bytes,
            address_space_bytes: self.address_space_bytes,
            used_addresses: 0,
            falling: self.falling,
            mapped_bytes: 0,
            ranges: BTreeMap::new(),
            counters: SimulatedCounters::default(),
            fail_maps: Vec::new(),
            fail_unmaps: Vec::new(),
            fail_reserves: Vec::new(),
            fail_releases: Vec::new(),
            partial_pages: 0,
            handles: self.handles.then(BTreeMap::new),
            trusts: false,
            costs: self.costs,
            mapping_us: 0.0,
            lag: self.lag,
            clock: 0,
            in_flight: VecDeque::new(),
            left_behind: Vec::new(),
        }
    }
}

impl SimulatedUpstream {
    /// Options, all with defaults.
    #[must_use]
    pub fn builder() -> SimulatedBuilder {
        SimulatedBuilder {
            page_bytes: 2 << 20,
            capacity_bytes: usize::MAX,
            address_space_bytes: 1 << (if usize::BITS == 64 { 46 } else { 30 }),
            handles: false,
            falling: false,
            costs: CostModel::default(),
            lag: 0,
        }
    }

    /// Makes the `number`th `map` call from now (1 is the next) fail.
    pub fn fail_map(&mut self, number: u64) {
        self.fail_maps.push(self.counters.map_calls + number);
    }

    /// Makes the `number`th `unmap` call from now fail.
    pub fn fail_unmap(&mut self, number: u64) {
        self.fail_unmaps.push(self.counters.unmap_calls + number);
    }

    /// Makes the `number`th `reserve` call from now fail.
    pub fn fail_reserve(&mut self, number: u64) {
        self.fail_reserves.push(self.counters.reserve_calls + number);
    }

    /// Makes the `number`th `release` call from now fail.
    pub fn fail_release(&mut self, number: u64) {
        self.fail_releases.push(self.counters.release_calls + number);
    }

    /// How many pages an injected failure completes before it fails (at most all but one).
    pub fn complete_before_failing(&mut self, pages: usize) {
        self.partial_pages = pages;
    }

    /// Drops every failure that was asked for and has not happened.
    pub fn clear_failures(&mut self) {
        self.fail_maps.clear();
        self.fail_unmaps.clear();
        self.fail_reserves.clear();
        self.fail_releases.clear();
    }

    /// Changes the capacity. It may lie below what is mapped: then nothing more can be mapped.
    pub fn set_capacity_bytes(&mut self, bytes: usize) {
        self.capacity_bytes = bytes;
    }

    /// Bytes mapped now.
    #[must_use]
    pub fn mapped_bytes(&self) -> usize {
        self.mapped_bytes
    }

    /// The ranges that are reserved now, by address.
    pub fn reserved_ranges(&self) -> impl Iterator<Item = AddressRange> + '_ {
        self.ranges.values().map(PageMap::range)
    }

    /// What was called so far.
    #[must_use]
    pub fn counters(&self) -> SimulatedCounters {
        self.counters
    }

    /// What all calls would have taken, in microseconds.
    #[must_use]
    pub fn mapping_us(&self) -> f64 {
        self.mapping_us
    }

    /// From now on callers are not checked and calls cost nothing ([`mapping_us`](Self::mapping_us)): for measuring
    /// what a placement takes by itself. Failures are not injected any more. Nothing may be reserved yet.
    ///
    /// # Panics
    /// When a range was reserved.
    pub fn trust_callers(&mut self) {
        assert!(self.ranges.is_empty(), "ranges are reserved already");
        self.trusts = true;
    }

    /// Whether so many more bytes can be mapped.
    fn refuse_beyond_capacity(&self, len: usize) -> Result<(), MapError> {
        if len <= self.capacity_bytes.saturating_sub(self.mapped_bytes) {
            return Ok(());
        }
        let source = UpstreamError::Exhausted {
            requested_bytes: len,
            mapped_bytes: self.mapped_bytes,
            capacity_bytes: self.capacity_bytes,
        };
        Err(MapError { completed_bytes: 0, source })
    }

    /// Notes that an operation was done: work that is queued gets on.
    #[inline]
    pub fn advance(&mut self) {
        self.clock += 1;
        while self.in_flight.front().is_some_and(|&(_, until)| until <= self.clock) {
            self.in_flight.pop_front();
        }
    }

    /// Waits, if work still uses a part of `range`.
    fn wait_for(&mut self, range: AddressRange) {
        if !self.is_idle(range) {
            self.counters.waits += 1;
            self.in_flight.clear();
            self.left_behind.clear();
        }
    }

    /// Whether `range` consists of whole handles; they are forgotten then.
    fn take_handles(&mut self, range: AddressRange) -> Result<(), UpstreamError> {
        let Some(handles) = &mut self.handles else { return Ok(()) };
        let inside: Vec<(usize, usize)> =
            handles.range(range.start..range.end()).map(|(&start, &len)| (start, len)).collect();
        let whole = inside.first().is_some_and(|&(start, _)| start == range.start)
            && inside.last().is_some_and(|&(start, len)| start + len == range.end());
        if !whole {
            return Err(UpstreamError::Misuse { what: "unmap of a part of a handle", range });
        }
        for (start, len) in inside {
            handles.remove(&start);
            self.mapping_us += self.costs.of(len).unmapping_us();
        }
        Ok(())
    }

    fn pages_of(
        ranges: &mut BTreeMap<usize, PageMap>,
        range: AddressRange,
    ) -> Result<&mut PageMap, UpstreamError> {
        ranges
            .range_mut(..=range.start)
            .next_back()
            .map(|(_, pages)| pages)
            .filter(|pages| pages.range().covers(range) && range.outer_pages(pages.page_bytes()) == range)
            .ok_or(UpstreamError::Misuse { what: "not whole pages of one reserved range", range })
    }

    /// Whether this call fails, and after how many bytes.
    fn injected(
        due: &mut Vec<u64>,
        number: u64,
        call: &'static str,
        partial_bytes: usize,
    ) -> Option<MapError> {
        let position = due.iter().position(|&n| n == number)?;
        due.swap_remove(position);
        Some(MapError { completed_bytes: partial_bytes, source: UpstreamError::Injected { call, number } })
    }
}

impl Upstream for SimulatedUpstream {
    fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    fn capacity_bytes(&self) -> usize {
        self.capacity_bytes
    }

    fn reserve(&mut self, len: usize) -> Result<AddressRange, UpstreamError> {
        self.counters.reserve_calls += 1;
        let number = self.counters.reserve_calls;
        if let Some(error) = Self::injected(&mut self.fail_reserves, number, "reserve", 0) {
            return Err(error.source);
        }
        let refused = UpstreamError::AddressSpace { requested_bytes: len };
        let len = len.checked_next_multiple_of(self.page_bytes).ok_or(refused.clone())?;
        // A page lies between two ranges, so that blocks of two ranges never touch.
        let used = self.used_addresses;
        if len == 0 || used.checked_add(len).is_none_or(|end| end > self.address_space_bytes) {
            return Err(refused);
        }
        let start = if self.falling {
            FIRST_ADDRESS + (self.address_space_bytes - used - len) / self.page_bytes * self.page_bytes
        } else {
            FIRST_ADDRESS + used
        };
        let range = AddressRange::new(start, len);
        self.used_addresses = used.saturating_add(len).saturating_add(self.page_bytes);
        if !self.trusts {
            self.ranges.insert(range.start, PageMap::new(range, self.page_bytes));
        }
        Ok(range)
    }

    fn release(&mut self, range: AddressRange) -> Result<(), UpstreamError> {
        self.counters.release_calls += 1;
        let number = self.counters.release_calls;
        if let Some(error) = Self::injected(&mut self.fail_releases, number, "release", 0) {
            return Err(error.source);
        }
        if self.trusts {
            return Ok(());
        }
        let pages = Self::pages_of(&mut self.ranges, range)?;
        if pages.range() != range {
            return Err(UpstreamError::Misuse { what: "release of a part of a range", range });
        }
        if pages.mapped_page_count(range) > 0 {
            return Err(UpstreamError::Misuse { what: "release of a range with mapped pages", range });
        }
        self.ranges.remove(&range.start);
        Ok(())
    }

    fn map(&mut self, range: AddressRange) -> Result<(), MapError> {
        self.counters.map_calls += 1;
        if self.blocked_until(range).is_some() {
            self.counters.waits += 1;
            self.in_flight.clear();
            self.left_behind.clear();
        }
        if self.trusts {
            self.refuse_beyond_capacity(range.len)?;
            self.mapped_bytes += range.len;
            self.counters.mapped_pages += (range.len / self.page_bytes) as u64;
            return Ok(());
        }
        let exhausted = self.refuse_beyond_capacity(range.len);
        let whole = |source| MapError { completed_bytes: 0, source };
        let pages = Self::pages_of(&mut self.ranges, range).map_err(whole)?;
        if pages.mapped_page_count(range) > 0 {
            return Err(whole(UpstreamError::Misuse { what: "map of a mapped page", range }));
        }
        let room = self.capacity_bytes.saturating_sub(self.mapped_bytes);
        // A handle is made whole or not at all.
        let partial_pages = if self.handles.is_some() { 0 } else { self.partial_pages };
        let partial = (partial_pages * self.page_bytes).min(range.len - self.page_bytes);
        let number = self.counters.map_calls;
        let failure =
            Self::injected(&mut self.fail_maps, number, "map", partial.min(room)).or_else(|| exhausted.err());
        let done = failure.as_ref().map_or(range.len, |failure| failure.completed_bytes);
        let done = done & !(self.page_bytes - 1);
        pages.set_mapped(AddressRange::new(range.start, done));
        self.mapped_bytes += done;
        self.counters.mapped_pages += (done / self.page_bytes) as u64;
        if done > 0 {
            self.mapping_us += self.costs.of(done).mapping_us();
            if let Some(handles) = &mut self.handles {
                handles.insert(range.start, done);
            }
        }
        failure.map_or(Ok(()), |failure| Err(MapError { completed_bytes: done, ..failure }))
    }

    fn unmap(&mut self, range: AddressRange) -> Result<(), MapError> {
        self.counters.unmap_calls += 1;
        if self.trusts {
            self.wait_for(range);
            self.mapped_bytes -= range.len;
            self.counters.unmapped_pages += (range.len / self.page_bytes) as u64;
            return Ok(());
        }
        let whole = |source| MapError { completed_bytes: 0, source };
        let pages = Self::pages_of(&mut self.ranges, range).map_err(whole)?;
        if pages.mapped_page_count(range) * self.page_bytes != range.len {
            return Err(whole(UpstreamError::Misuse { what: "unmap of an unmapped page", range }));
        }
        let partial_pages = if self.handles.is_some() { 0 } else { self.partial_pages };
        let partial = (partial_pages * self.page_bytes).min(range.len - self.page_bytes);
        let number = self.counters.unmap_calls;
        let failure = Self::injected(&mut self.fail_unmaps, number, "unmap", partial);
        let done = failure.as_ref().map_or(range.len, |failure| failure.completed_bytes);
        if done > 0 {
            self.wait_for(range);
            self.take_handles(range).map_err(whole)?;
            if self.handles.is_none() {
                self.mapping_us += self.costs.of(done).unmapping_us();
            }
        }
        let pages = Self::pages_of(&mut self.ranges, range).map_err(whole)?;
        pages.set_unmapped(AddressRange::new(range.start, done));
        self.mapped_bytes -= done;
        self.counters.unmapped_pages += (done / self.page_bytes) as u64;
        failure.map_or(Ok(()), Err)
    }

    fn maps_handles(&self) -> bool {
        self.handles.is_some()
    }

    fn relocate(&mut self, from: AddressRange, to: AddressRange) -> Result<(), MapError> {
        let calls = self.counters;
        let before = self.mapping_us;
        if from.len != to.len {
            let source = UpstreamError::Misuse { what: "a move to a place of another length", range: to };
            return Err(MapError { completed_bytes: from.len, source });
        }
        // The work that is queued uses the old place on.
        let touches = |other: &AddressRange| other.start < from.end() && from.start < other.end();
        let in_use = self.in_flight.iter().filter(|(range, _)| touches(range)).map(|&(_, until)| until).max();
        let in_flight = std::mem::take(&mut self.in_flight);
        let unmapped = self.unmap(from);
        self.in_flight = in_flight;
        unmapped.map_err(|error| MapError { completed_bytes: from.len - error.completed_bytes, ..error })?;
        if let Some(until) = in_use {
            self.left_behind.push((from, until));
        }
        self.map(to).map_err(|error| MapError { completed_bytes: 0, ..error })?;
        // Two calls for a handle that is made once and lives on.
        if !self.trusts {
            self.mapping_us = before + self.costs.of(from.len).moving_us();
        }
        let pages = (from.len / self.page_bytes) as u64;
        let (mapped_pages, unmapped_pages) = (calls.mapped_pages, calls.unmapped_pages);
        self.counters = SimulatedCounters {
            mapped_pages,
            unmapped_pages,
            relocate_calls: calls.relocate_calls + 1,
            relocated_pages: calls.relocated_pages + pages,
            ..self.counters
        };
        Ok(())
    }

    fn note_freed(&mut self, range: AddressRange) {
        if self.lag > 0 {
            self.in_flight.push_back((range, self.clock + self.lag));
        }
    }

    fn blocked_until(&mut self, range: AddressRange) -> Option<usize> {
        let clock = self.clock;
        self.left_behind.retain(|&(_, until)| until > clock);
        let touches = |other: &AddressRange| other.start < range.end() && range.start < other.end();
        self.left_behind.iter().filter(|(other, _)| touches(other)).map(|(other, _)| other.end()).max()
    }

    fn is_idle(&mut self, range: AddressRange) -> bool {
        let touches = |other: &AddressRange| other.start < range.end() && range.start < other.end();
        !self.in_flight.iter().any(|(other, _)| touches(other))
    }
}
