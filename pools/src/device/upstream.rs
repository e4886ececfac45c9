//! Device memory for an arena: physical memory mapped into a range of the region, or segments
//! that the driver places.
//!
//! Memory is had in *handles*, which are mapped and unmapped whole. Work on a device may still use a handle when
//! its last block is freed. So one that a placement unmaps is only *set aside*: it stays mapped until that work is
//! known to be done. Until then it can come back where it lies at no cost. One that moves is mapped at two places
//! until then: work that is queued already uses the old place, later work of the same stream the new one.

mod progress;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use mempool_arena::{AddressRange, Arena, MapError, Upstream, UpstreamError};

use self::progress::Progress;
use crate::device::driver::{DriverError, DriverResult, Physical, Stream};
use crate::device::fault::{Fault, planted};
use crate::device::pool_slot::{GraphToken, PoolSlot};
use crate::device::state::DeviceState;
use crate::history::Observed;

/// An arena of device memory.
pub(crate) type DeviceArena = Arena<Observed<DeviceUpstream>>;

/// Physical memory that is mapped as one.
#[derive(Debug, Clone, Copy)]
struct Handle {
    physical: Physical,
    bytes: usize,
}

/// A place that the placement does not use, while something is mapped there.
#[derive(Debug, Clone, Copy)]
struct Left {
    bytes: usize,
    /// The memory, if it has no other place.
    physical: Option<Physical>,
    /// See [`DeviceState::epoch`].
    mark: u64,
    /// See [`Progress`].
    last_free: u64,
    /// It can be read and written. What a failed call left behind cannot, and never serves.
    accessible: bool,
}

/// How a placement takes memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taking {
    /// In segments that the driver places.
    Segments,
    /// Mapped in ranges, each page by itself.
    Pages,
    /// Mapped in ranges; what is mapped by one call is one handle.
    Handles,
    /// As `Handles`, and free memory moves.
    MovingHandles,
}

/// Device memory on behalf of one arena.
pub(crate) struct DeviceUpstream {
    device: &'static DeviceState,
    pool: &'static PoolSlot,
    arena_index: u32,
    page_bytes: usize,
    taking: Taking,
    /// Handles by their first address.
    mapped: BTreeMap<usize, Handle>,
    /// By first address.
    left: BTreeMap<usize, Left>,
    /// Where memory moves.
    progress: Option<Progress>,
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
        taking: Taking,
        graph: Option<GraphToken>,
    ) -> Self {
        let taking = if device.page_bytes.is_some() { taking } else { Taking::Segments };
        Self {
            device,
            pool,
            arena_index,
            page_bytes: device
                .page_bytes
                .filter(|_| taking != Taking::Segments)
                .unwrap_or(SEGMENT_UNIT_BYTES),
            taking,
            mapped: BTreeMap::new(),
            left: BTreeMap::new(),
            progress: (taking == Taking::MovingHandles).then(Progress::default),
            stream: None,
            graph,
        }
    }

    /// Lets calls wait for `stream` when memory is short, or ends that. The context is current.
    pub(crate) fn serve(&mut self, stream: Option<Stream>) {
        self.stream = stream;
        if let (Some(stream), Some(progress)) = (stream, &mut self.progress) {
            progress.follow(self.device, stream);
        }
    }

    /// Lets another device read and write what this arena has mapped.
    pub(crate) fn grant(&self, ordinal: u32) {
        let driver = &self.device.platform.driver;
        let mapped = self.mapped.iter().map(|(&addr, handle)| (addr, handle.bytes));
        let left =
            self.left.iter().filter(|(_, left)| left.accessible).map(|(&addr, left)| (addr, left.bytes));
        for (addr, bytes) in mapped.chain(left) {
            // A device that is refused access gets copies through the host, as without pools.
            let _ = driver.set_access(addr, bytes, &[ordinal]);
        }
    }

    /// Bytes that are set aside.
    pub(crate) fn set_aside_bytes(&self) -> usize {
        self.left.values().filter(|left| left.physical.is_some()).map(|left| left.bytes).sum()
    }

    /// Whether a graph may still use this arena's memory.
    pub(crate) fn serves_graph(&self) -> bool {
        self.graph.as_ref().is_some_and(|gone| !gone.load(Ordering::Acquire))
    }

    /// Whether anything is mapped that the placement does not use.
    pub(crate) fn has_set_aside(&self) -> bool {
        !self.left.is_empty()
    }

    /// Gives memory back that was set aside and is idle, and returns its bytes. The context is current.
    pub(crate) fn flush(&mut self) -> usize {
        let over: Vec<usize> =
            self.left.iter().filter(|(_, left)| self.is_over(left)).map(|(&addr, _)| addr).collect();
        over.into_iter().map(|addr| self.give_back(addr)).sum()
    }

    /// Whether no work uses the place any more.
    fn is_over(&self, left: &Left) -> bool {
        self.device.is_idle(left.mark)
            || self.progress.as_ref().is_some_and(|progress| progress.is_done(left.last_free))
    }

    /// Ends what is mapped at a place that is over, and returns the bytes that went back.
    fn give_back(&mut self, addr: usize) -> usize {
        let driver = &self.device.platform.driver;
        let Some(left) = self.left.get(&addr).copied() else { return 0 };
        let unmapped = self.pool.timed(|| {
            driver.unmap(addr, left.bytes)?;
            // A handle that is mapped nowhere ends with its last reference; a refusal leaves nothing to do.
            let _ = left.physical.map(|physical| driver.release(physical));
            Ok::<(), DriverError>(())
        });
        if unmapped.is_err() {
            return 0;
        }
        self.left.remove(&addr);
        if left.physical.is_none() {
            return 0;
        }
        self.pool.give_up(left.bytes);
        left.bytes
    }

    /// Waits for the arena's own stream, if there is one to wait for.
    fn wait_for_own(&mut self) -> bool {
        let Some(stream) = self.stream.filter(|_| !self.left.is_empty()) else { return false };
        let device = self.device;
        let Some(event) = device.record(stream) else { return false };
        let waited = device.platform.driver.wait_for_event(event).is_ok();
        device.recycle(event);
        if waited && let Some(progress) = &mut self.progress {
            progress.caught_up();
        }
        waited
    }

    /// Gives memory back that only this arena's own stream may still use, by waiting for it.
    fn reclaim_own(&mut self, wanted_bytes: usize) -> usize {
        if !self.wait_for_own() {
            return 0;
        }
        let mut returned = 0;
        for addr in self.left.keys().copied().collect::<Vec<_>>() {
            if returned >= wanted_bytes {
                break;
            }
            returned += self.give_back(addr);
        }
        returned
    }

    /// Where something is left in `range`, by first address.
    fn left_in(&self, range: AddressRange) -> Vec<usize> {
        let before = self.left.range(..range.start).next_back();
        let before = before.filter(|(addr, left)| *addr + left.bytes > range.start);
        before.into_iter().chain(self.left.range(range.start..range.end())).map(|(&addr, _)| addr).collect()
    }

    /// Makes room for a mapping at `range`: ends what is left there and is over, or, if it may wait, what is
    /// left there at all.
    fn clear(&mut self, range: AddressRange, may_wait: bool) -> Result<(), UpstreamError> {
        for addr in self.left_in(range) {
            if self.left.get(&addr).is_some_and(|left| self.is_over(left) || !left.accessible) {
                self.give_back(addr);
            }
        }
        if self.left_in(range).is_empty() {
            return Ok(());
        }
        if may_wait && self.wait_for_own() {
            self.left_in(range).into_iter().for_each(|addr| {
                self.give_back(addr);
            });
        }
        if self.left_in(range).is_empty() {
            return Ok(());
        }
        Err(UpstreamError::Misuse { what: "work may still use what is in the way", range })
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

    /// Physical memory, mapped at `addr`.
    fn map_handle(&mut self, addr: usize, bytes: usize) -> Result<Physical, UpstreamError> {
        let driver = &self.device.platform.driver;
        let mut created = self.pool.timed(|| driver.create(self.device.ordinal, bytes));
        while created.is_err() && (self.flush() > 0 || self.reclaim_own(bytes) > 0) {
            // What was given back was counted out; this memory is counted in already.
            created = self.pool.timed(|| driver.create(self.device.ordinal, bytes));
        }
        let physical = created.map_err(|error| refused(error, bytes))?;
        let mapped = self.pool.timed(|| driver.map(addr, bytes, physical));
        mapped.map(|()| physical).map_err(|error| {
            let _ = driver.release(physical);
            refused(error, bytes)
        })
    }

    /// Maps `range`, where nothing is mapped, all or nothing.
    fn map_new(&mut self, range: AddressRange) -> Result<(), UpstreamError> {
        self.admit(range.len)?;
        let device = self.device;
        let driver = &device.platform.driver;
        let bytes = if self.taking == Taking::Pages { self.page_bytes } else { range.len };
        let mut done = Vec::with_capacity(range.len / bytes);
        let mut failure = None;
        for addr in (range.start..range.end()).step_by(bytes) {
            match self.map_handle(addr, bytes) {
                Ok(physical) => done.push((addr, Handle { physical, bytes })),
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            }
        }
        if failure.is_none()
            && let Err(error) = self.pool.timed(|| driver.set_access(range.start, range.len, &device.peers()))
        {
            failure = Some(refused(error, range.len));
        }
        let Some(failure) = failure else {
            self.mapped.extend(done);
            return Ok(());
        };
        let mut kept_bytes = 0;
        for (addr, Handle { physical, bytes }) in done {
            // Nobody has used this memory. What the driver does not take back stays mapped and is kept.
            if driver.unmap(addr, bytes).is_ok() {
                let _ = driver.release(physical);
            } else {
                self.leave_behind(addr, bytes, Some(physical));
                kept_bytes += bytes;
            }
        }
        self.pool.give_up(range.len - kept_bytes);
        Err(failure)
    }

    /// Notes a mapping that nobody used and that the driver did not take back.
    fn leave_behind(&mut self, addr: usize, bytes: usize, physical: Option<Physical>) {
        self.left.insert(addr, Left { bytes, physical, mark: 0, last_free: 0, accessible: false });
    }

    /// Notes that the placement uses a place no more, and what is to be known of that.
    fn leave(&mut self, addr: usize, bytes: usize, physical: Option<Physical>) {
        let range = AddressRange::new(addr, bytes);
        // Without a count of frees nothing is known before the device was idle.
        let last_free = self.last_free(range);
        let left = Left { bytes, physical, mark: self.device.epoch(), last_free, accessible: true };
        self.left.insert(addr, left);
        // Only a call that is served has a context.
        if self.stream.is_some() && self.is_over(&left) {
            self.give_back(addr);
        }
    }

    fn last_free(&self, range: AddressRange) -> u64 {
        self.progress.as_ref().map_or(u64::MAX, |progress| progress.last_free(range, self.page_bytes))
    }

    /// Maps a handle at a second place.
    fn map_again(&mut self, handle: Handle, to: usize) -> DriverResult<()> {
        let driver = &self.device.platform.driver;
        self.pool.timed(|| driver.map(to, handle.bytes, handle.physical))?;
        let accessed = self.pool.timed(|| driver.set_access(to, handle.bytes, &self.device.peers()));
        if accessed.is_err() && driver.unmap(to, handle.bytes).is_err() {
            self.leave_behind(to, handle.bytes, None);
        }
        accessed
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
        if self.taking != Taking::Segments {
            let range = self.device.platform.region.take(len, self.arena_index)?;
            if let Some(progress) = &mut self.progress {
                progress.add_range(range);
            }
            return Ok(range);
        }
        let bytes = len.next_multiple_of(self.page_bytes);
        self.admit(bytes)?;
        match self.pool.timed(|| self.device.platform.driver.allocate_segment(bytes)) {
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
        if self.taking != Taking::Segments {
            if !self.left_in(range).is_empty() {
                return Err(UpstreamError::Misuse { what: "work may still use pages of the range", range });
            }
            if let Some(progress) = &mut self.progress {
                progress.remove_range(range);
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
        let free = || self.pool.timed(|| self.device.platform.driver.free_segment(range.start));
        let freed = self.device.with_context(free);
        let no_context = DriverError { call: "cuMemFree", code: DriverError::INVALID_CONTEXT };
        if let Err(error) = freed.unwrap_or(Err(no_context)) {
            self.publish_segment(range);
            return Err(refused(error, range.len));
        }
        self.pool.give_up(range.len);
        Ok(())
    }

    fn map(&mut self, range: AddressRange) -> Result<(), MapError> {
        let failed = |source| MapError { completed_bytes: 0, source };
        match self.taking {
            Taking::Segments => Ok(()),
            Taking::Pages => self.map_pages(range).map_err(failed),
            Taking::Handles | Taking::MovingHandles => {
                if self.waiting_in(range) == Some(range)
                    && let Some(left) = self.left.remove(&range.start)
                    && let Some(physical) = left.physical
                {
                    self.mapped.insert(range.start, Handle { physical, bytes: range.len });
                    return Ok(());
                }
                self.clear(range, true).and_then(|()| self.map_new(range)).map_err(failed)
            }
        }
    }

    fn unmap(&mut self, range: AddressRange) -> Result<(), MapError> {
        if self.serves_graph() {
            let what = "a graph uses the pages for as long as it lives";
            return Err(MapError { completed_bytes: 0, source: UpstreamError::Misuse { what, range } });
        }
        if self.taking != Taking::Segments {
            self.set_aside(range);
        }
        Ok(())
    }

    fn unmap_unused(&mut self, range: AddressRange) -> Result<(), MapError> {
        match self.taking {
            Taking::Segments => {}
            Taking::Pages | Taking::Handles | Taking::MovingHandles => {
                self.set_aside_unused(range);
                self.flush();
            }
        }
        Ok(())
    }

    fn maps_handles(&self) -> bool {
        matches!(self.taking, Taking::Handles | Taking::MovingHandles)
    }

    fn waiting_in(&self, run: AddressRange) -> Option<AddressRange> {
        let mut left = self.left.range(run.start..run.end());
        let (&addr, left) = left.find(|(_, left)| left.physical.is_some() && left.accessible)?;
        (addr + left.bytes <= run.end()).then(|| AddressRange::new(addr, left.bytes))
    }

    fn relocate(&mut self, from: AddressRange, to: AddressRange) -> Result<(), MapError> {
        let kept = |source| MapError { completed_bytes: from.len, source };
        let misuse = |what| kept(UpstreamError::Misuse { what, range: from });
        if self.serves_graph() {
            return Err(misuse("a graph uses the pages for as long as it lives"));
        }
        let handle = self.mapped.get(&from.start).copied().filter(|handle| handle.bytes == from.len);
        let Some(handle) = handle.filter(|_| to.len == from.len) else {
            return Err(misuse("a move of what is not a handle"));
        };
        self.clear(to, false).map_err(kept)?;
        self.map_again(handle, to.start).map_err(|error| kept(refused(error, to.len)))?;
        let last_free = self.last_free(from);
        if let Some(progress) = &mut self.progress {
            progress.note(to, self.page_bytes, last_free);
        }
        self.mapped.remove(&from.start);
        self.mapped.insert(to.start, handle);
        self.leave(from.start, from.len, None);
        Ok(())
    }

    #[inline]
    fn note_freed(&mut self, range: AddressRange) {
        if let Some(progress) = &mut self.progress {
            progress.note_freed(range, self.page_bytes);
        }
    }

    fn blocked_until(&mut self, range: AddressRange) -> Option<usize> {
        let in_the_way = |addr: &usize| {
            let left = &self.left[addr];
            let revives = left.physical.is_some()
                && left.accessible
                && range.covers(AddressRange::new(*addr, left.bytes));
            !revives && !self.is_over(left)
        };
        let last = self.left_in(range).into_iter().rfind(in_the_way)?;
        Some(last + self.left[&last].bytes)
    }

    fn is_idle(&mut self, range: AddressRange) -> bool {
        let Some(progress) = &self.progress else { return true };
        let done = progress.is_done(progress.last_free(range, self.page_bytes));
        !self.serves_graph() && (done || planted(Fault::UnmapInUse))
    }
}

impl DeviceUpstream {
    /// Sets the handles in `range` aside.
    fn set_aside(&mut self, range: AddressRange) {
        let inside: Vec<usize> = self.mapped.range(range.start..range.end()).map(|(&addr, _)| addr).collect();
        for addr in inside {
            if let Some(handle) = self.mapped.remove(&addr) {
                self.leave(addr, handle.bytes, Some(handle.physical));
            }
        }
    }

    /// Maps `range`, each page by itself, all or nothing. Pages that are set aside there come back.
    fn map_pages(&mut self, range: AddressRange) -> Result<(), UpstreamError> {
        for addr in self.left_in(range) {
            if !self.left[&addr].accessible && self.give_back(addr) == 0 {
                let what = "a page that a failed call left behind is still in the way";
                return Err(UpstreamError::Misuse { what, range });
            }
        }
        let revived: Vec<(usize, Left)> =
            self.left.range(range.start..range.end()).map(|(&addr, &left)| (addr, left)).collect();
        for (addr, left) in &revived {
            self.left.remove(addr);
            let physical = left.physical.expect("pages do not move");
            self.mapped.insert(*addr, Handle { physical, bytes: left.bytes });
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
                    self.set_aside_unused(run);
                }
                for (addr, left) in revived {
                    self.mapped.remove(&addr);
                    self.left.insert(addr, left);
                }
                self.flush();
                return Err(source);
            }
            mapped.push(run);
        }
        Ok(())
    }

    /// Sets the handles in `range` aside, which nobody has used.
    fn set_aside_unused(&mut self, range: AddressRange) {
        let inside: Vec<usize> = self.mapped.range(range.start..range.end()).map(|(&addr, _)| addr).collect();
        for addr in inside {
            if let Some(Handle { physical, bytes }) = self.mapped.remove(&addr) {
                let physical = Some(physical);
                self.left.insert(addr, Left { bytes, physical, mark: 0, last_free: 0, accessible: true });
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

impl Drop for DeviceUpstream {
    fn drop(&mut self) {
        if let Some(progress) = &mut self.progress {
            progress.end(self.device);
        }
    }
}

impl fmt::Debug for DeviceUpstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceUpstream")
            .field("mapped", &self.mapped.len())
            .field("left", &self.left.len())
            .finish_non_exhaustive()
    }
}

/// A driver's refusal as an upstream's.
pub(crate) fn refused(error: DriverError, bytes: usize) -> UpstreamError {
    UpstreamError::Os { call: error.call, bytes, code: error.code as i32 }
}
