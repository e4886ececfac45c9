//! Device memory for an arena: physical pages mapped into a range of the region, or segments
//! that the driver places.
//!
//! Work on a device may still use a page when its last block is freed. So a page that a
//! placement unmaps is only *set aside*: it stays mapped until the device is known to be idle.
//! Until then it can come back where it lies at no cost.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use mempool_arena::{AddressRange, MapError, Upstream, UpstreamError};

use crate::device::driver::{DriverError, Physical, Stream};
use crate::device::pool_slot::{GraphToken, PoolSlot};
use crate::device::state::DeviceState;

/// A page that its placement does not use.
#[derive(Debug, Clone, Copy)]
struct SetAside {
    physical: Physical,
    /// See [`DeviceState::epoch`].
    mark: u64,
    /// It can be read and written. A page that a failed call left behind cannot, and never serves.
    accessible: bool,
}

/// Device memory on behalf of one arena.
pub(crate) struct DeviceUpstream {
    device: &'static DeviceState,
    pool: &'static PoolSlot,
    arena_index: u32,
    page_bytes: usize,
    /// Memory is taken in segments, and not mapped.
    segments: bool,
    /// Physical memory by the address of its page.
    mapped: BTreeMap<usize, Physical>,
    set_aside: BTreeMap<usize, SetAside>,
    /// The stream in whose order this arena's memory is used, while a call of it is served and
    /// it is not in capture.
    stream: Option<Stream>,
    /// For the memory of a graph: set when the graph is gone. Until then nothing is unmapped.
    graph: Option<GraphToken>,
}

/// The unit of segments where memory is not mapped.
pub(crate) const SEGMENT_UNIT_BYTES: usize = 2 << 20;

impl DeviceUpstream {
    pub(crate) fn new(
        device: &'static DeviceState,
        pool: &'static PoolSlot,
        arena_index: u32,
        segments: bool,
        graph: Option<GraphToken>,
    ) -> Self {
        Self {
            device,
            pool,
            arena_index,
            page_bytes: device.page_bytes.filter(|_| !segments).unwrap_or(SEGMENT_UNIT_BYTES),
            segments: segments || device.page_bytes.is_none(),
            mapped: BTreeMap::new(),
            set_aside: BTreeMap::new(),
            stream: None,
            graph,
        }
    }

    /// Lets calls wait for `stream` when memory is short, or ends that.
    pub(crate) fn serve(&mut self, stream: Option<Stream>) {
        self.stream = stream;
    }

    /// Lets another device read and write what this arena has mapped.
    pub(crate) fn grant(&self, ordinal: u32) {
        let driver = &self.device.platform.driver;
        for &addr in self.mapped.keys().chain(self.set_aside.keys()) {
            // A device that is refused access gets copies through the host, as without pools.
            let _ = driver.set_access(addr, self.page_bytes, &[ordinal]);
        }
    }

    /// Bytes that are set aside.
    pub(crate) fn set_aside_bytes(&self) -> usize {
        self.set_aside.len() * self.page_bytes
    }

    /// Whether a graph may still use this arena's memory.
    pub(crate) fn serves_graph(&self) -> bool {
        self.graph.as_ref().is_some_and(|gone| !gone.load(Ordering::Acquire))
    }

    /// Whether pages are set aside.
    pub(crate) fn has_set_aside(&self) -> bool {
        !self.set_aside.is_empty()
    }

    /// Gives pages back that were set aside and are idle, and returns their bytes.
    pub(crate) fn flush(&mut self) -> usize {
        let idle = |page: &SetAside| self.device.is_idle(page.mark);
        let idle: Vec<usize> =
            self.set_aside.iter().filter(|(_, page)| idle(page)).map(|(&addr, _)| addr).collect();
        idle.into_iter().map(|addr| self.give_back(addr)).sum()
    }

    /// Gives one page back that was set aside.
    fn give_back(&mut self, addr: usize) -> usize {
        let driver = &self.device.platform.driver;
        let Some(page) = self.set_aside.get(&addr).copied() else { return 0 };
        if driver.unmap(addr, self.page_bytes).is_err() {
            return 0;
        }
        self.set_aside.remove(&addr);
        // A handle that is mapped nowhere ends with its last reference; a refusal leaves nothing to do.
        let _ = driver.release(page.physical);
        self.pool.give_up(self.page_bytes);
        self.page_bytes
    }

    /// Gives pages back that only this arena's own stream may still use, by waiting for it.
    fn reclaim_own(&mut self, wanted_bytes: usize) -> usize {
        let Some(stream) = self.stream.filter(|_| !self.set_aside.is_empty()) else { return 0 };
        let device = self.device;
        let driver = &device.platform.driver;
        let Some(event) = device.record(stream) else { return 0 };
        let waited = driver.wait_for_event(event).is_ok();
        device.recycle(event);
        if !waited {
            return 0;
        }
        let mut returned = 0;
        for addr in self.set_aside.keys().copied().collect::<Vec<_>>() {
            if returned >= wanted_bytes {
                break;
            }
            returned += self.give_back(addr);
        }
        returned
    }

    /// Counts `bytes` as taken if every limit allows them.
    fn admit(&mut self, bytes: usize) -> Result<(), UpstreamError> {
        loop {
            let refused = match self.pool.admit(bytes) {
                Ok(()) => return Ok(()),
                Err(refused) => refused,
            };
            if self.flush() == 0 && self.reclaim_own(bytes) == 0 {
                return Err(refused);
            }
        }
    }

    /// Physical memory for the page at `addr`, mapped.
    fn map_page(&mut self, addr: usize) -> Result<Physical, UpstreamError> {
        let (driver, page) = (&self.device.platform.driver, self.page_bytes);
        let mut created = driver.create(self.device.ordinal, page);
        if created.is_err() && (self.flush() > 0 || self.reclaim_own(page) > 0) {
            // What was given back was counted out; this page is counted in already.
            created = driver.create(self.device.ordinal, page);
        }
        let physical = created.map_err(|error| refused(error, page))?;
        driver.map(addr, page, physical).map(|()| physical).map_err(|error| {
            let _ = driver.release(physical);
            refused(error, page)
        })
    }

    /// Maps `range`, none of which is mapped or set aside, all or nothing.
    fn map_new(&mut self, range: AddressRange) -> Result<(), UpstreamError> {
        self.admit(range.len)?;
        let device = self.device;
        let driver = &device.platform.driver;
        let mut done = Vec::with_capacity(range.len / self.page_bytes);
        let mut failure = None;
        for addr in (range.start..range.end()).step_by(self.page_bytes) {
            match self.map_page(addr) {
                Ok(physical) => done.push((addr, physical)),
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            }
        }
        if failure.is_none()
            && let Err(error) = driver.set_access(range.start, range.len, &device.peers())
        {
            failure = Some(refused(error, range.len));
        }
        let Some(failure) = failure else {
            self.mapped.extend(done);
            return Ok(());
        };
        let mut kept_bytes = 0;
        for (addr, physical) in done {
            // Nobody has used these pages. What the driver does not take back stays mapped and is kept.
            if driver.unmap(addr, self.page_bytes).is_ok() {
                let _ = driver.release(physical);
            } else {
                self.set_aside.insert(addr, SetAside { physical, mark: 0, accessible: false });
                kept_bytes += self.page_bytes;
            }
        }
        self.pool.give_up(range.len - kept_bytes);
        Err(failure)
    }
}

impl Upstream for DeviceUpstream {
    fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    fn capacity_bytes(&self) -> usize {
        self.pool.limit_bytes().min(self.device.allowed_bytes())
    }

    fn reserve(&mut self, len: usize) -> Result<AddressRange, UpstreamError> {
        if !self.segments {
            return self.device.platform.region.take(len, self.arena_index);
        }
        let bytes = len.next_multiple_of(self.page_bytes);
        self.admit(bytes)?;
        match self.device.platform.driver.allocate_segment(bytes) {
            Ok(start) => {
                let range = AddressRange::new(start, bytes);
                self.publish_segment(range);
                Ok(range)
            }
            Err(error) => {
                self.pool.give_up(bytes);
                Err(refused(error, bytes))
            }
        }
    }

    fn release(&mut self, range: AddressRange) -> Result<(), UpstreamError> {
        if !self.segments {
            if self.set_aside.range(range.start..range.end()).next().is_some() {
                return Err(UpstreamError::Misuse { what: "work may still use pages of the range", range });
            }
            self.device.platform.region.give_back(range);
            return Ok(());
        }
        if self.serves_graph() {
            let what = "a graph uses the segment for as long as it lives";
            return Err(UpstreamError::Misuse { what, range });
        }
        // Withdrawn first: once it is free, the driver may give the same addresses to another arena.
        self.withdraw_segment(range);
        // The driver waits for the work that uses a segment before it ends it.
        let freed = self.device.with_context(|| self.device.platform.driver.free_segment(range.start));
        let no_context = DriverError { call: "cuMemFree", code: DriverError::INVALID_CONTEXT };
        if let Err(error) = freed.unwrap_or(Err(no_context)) {
            self.publish_segment(range);
            return Err(refused(error, range.len));
        }
        self.pool.give_up(range.len);
        Ok(())
    }

    fn map(&mut self, range: AddressRange) -> Result<(), MapError> {
        if self.segments {
            return Ok(());
        }
        let left_behind: Vec<usize> = self
            .set_aside
            .range(range.start..range.end())
            .filter(|(_, page)| !page.accessible)
            .map(|(&addr, _)| addr)
            .collect();
        for addr in left_behind {
            if self.give_back(addr) == 0 {
                let what = "a page that a failed call left behind is still in the way";
                return Err(MapError { completed_bytes: 0, source: UpstreamError::Misuse { what, range } });
            }
        }
        let revived: Vec<(usize, SetAside)> =
            self.set_aside.range(range.start..range.end()).map(|(&addr, &page)| (addr, page)).collect();
        for (addr, page) in &revived {
            self.set_aside.remove(addr);
            self.mapped.insert(*addr, page.physical);
        }
        let mut mapped: Vec<AddressRange> = Vec::new();
        let mut from = range.start;
        let bounds = revived.iter().map(|(addr, _)| *addr).chain([range.end()]);
        for bound in bounds {
            let run = AddressRange::between(from, bound);
            from = bound + self.page_bytes;
            if run.len == 0 {
                continue;
            }
            if let Err(source) = self.map_new(run) {
                // All or nothing: what was new is set aside and given back, what was set aside before
                // is so again.
                for run in mapped {
                    self.set_aside_range(run, 0);
                }
                for (addr, page) in revived {
                    self.mapped.remove(&addr);
                    self.set_aside.insert(addr, page);
                }
                self.flush();
                return Err(MapError { completed_bytes: 0, source });
            }
            mapped.push(run);
        }
        Ok(())
    }

    fn unmap(&mut self, range: AddressRange) -> Result<(), MapError> {
        if self.serves_graph() {
            let what = "a graph uses the pages for as long as it lives";
            return Err(MapError { completed_bytes: 0, source: UpstreamError::Misuse { what, range } });
        }
        if !self.segments {
            self.set_aside_range(range, self.device.epoch());
        }
        Ok(())
    }
}

impl DeviceUpstream {
    fn set_aside_range(&mut self, range: AddressRange, mark: u64) {
        for addr in (range.start..range.end()).step_by(self.page_bytes) {
            if let Some(physical) = self.mapped.remove(&addr) {
                self.set_aside.insert(addr, SetAside { physical, mark, accessible: true });
            }
        }
    }

    fn publish_segment(&self, range: AddressRange) {
        let index = self.arena_index;
        self.device.platform.segments.rcu(|segments| {
            let mut segments = Vec::clone(segments);
            let at = segments.partition_point(|(other, _)| other.start < range.start);
            segments.insert(at, (range, index));
            Arc::new(segments)
        });
    }

    fn withdraw_segment(&self, range: AddressRange) {
        self.device.platform.segments.rcu(|segments| {
            let mut segments = Vec::clone(segments);
            segments.retain(|(other, _)| *other != range);
            Arc::new(segments)
        });
    }
}

impl fmt::Debug for DeviceUpstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceUpstream")
            .field("mapped", &self.mapped.len())
            .field("set_aside", &self.set_aside.len())
            .finish_non_exhaustive()
    }
}

/// A driver's refusal as an upstream's.
pub(crate) fn refused(error: DriverError, bytes: usize) -> UpstreamError {
    UpstreamError::Os { call: error.call, bytes, code: error.code as i32 }
}
