//! What happens when memory is short, and what is told when nothing helped.

use std::cell::RefCell;
use std::fmt;

use mempool_arena::{ArenaError, Request, UpstreamError};

use crate::device::arena_slot::ArenaCore;
use crate::device::entry::Call;
use crate::device::pool_slot::PoolSlot;
use crate::diagnosis::{Finding, Severity};
use crate::history;
use crate::recording::Source;
use crate::snapshot::Collector;

/// A request that could not be served, and how memory stood then. Sizes are bytes.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct OomReport {
    /// Name of the pool that was asked.
    pub pool: String,
    /// Bytes requested.
    pub requested_bytes: usize,
    /// Bytes in the pool's live blocks.
    pub allocated_bytes: usize,
    /// Bytes the pool holds.
    pub reserved_bytes: usize,
    /// The pool's limit.
    pub limit_bytes: Option<usize>,
    /// The largest request that the pool could have served.
    pub largest_free_bytes: usize,
    /// Free bytes of the pool that share a page with a live block.
    pub inactive_split_bytes: usize,
    /// Bytes of freed blocks that queued work still uses.
    pub waiting_bytes: usize,
    /// Bytes the device has free.
    pub device_free_bytes: usize,
    /// Bytes of the device.
    pub device_total_bytes: usize,
    /// Bytes that all pools of the device may hold.
    pub allowed_bytes: usize,
    /// Bytes of the device that pools leave to others.
    pub headroom_bytes: usize,
    /// What other pools of the device hold, the largest first.
    pub other_pools: Vec<(String, usize)>,
    /// What upstream answered last.
    pub cause: String,
    /// What is wrong with the pool's memory: with a [history](crate::record_history) it says where in the program that
    /// comes from.
    pub findings: Vec<Finding>,
}

impl OomReport {
    /// Share of the pool's free bytes that the largest free block is not: 1 - largest / free.
    #[must_use]
    pub fn external_fragmentation(&self) -> f64 {
        let free =
            self.reserved_bytes.saturating_sub(self.allocated_bytes).saturating_sub(self.waiting_bytes);
        if free == 0 { 0.0 } else { 1.0 - self.largest_free_bytes as f64 / free as f64 }
    }

    /// What is worth trying, the most promising first.
    #[must_use]
    pub fn advice(&self) -> Vec<&'static str> {
        let mut advice = Vec::new();
        if self
            .limit_bytes
            .is_some_and(|limit| limit < self.reserved_bytes.saturating_add(self.requested_bytes))
        {
            advice.push("raise the pool's limit");
        }
        if self.allowed_bytes < self.device_total_bytes {
            advice.push("raise the process's memory fraction");
        }
        if self.inactive_split_bytes >= self.requested_bytes {
            advice.push("keep long-lived small tensors out of this pool (min_bytes, or a pool of their own)");
        }
        if self.other_pools.iter().any(|(_, held)| *held >= self.requested_bytes) {
            advice.push("trim another pool, or mark it use_on_oom");
        }
        if self.waiting_bytes > 0 {
            advice.push("synchronise before this step: freed memory waits for queued work");
        }
        if self.headroom_bytes > 0 && self.device_free_bytes >= self.requested_bytes {
            advice.push("lower the headroom");
        }
        advice.push("use smaller batches or shorter sequences");
        advice
    }
}

impl fmt::Display for OomReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "out of memory in pool \"{}\": {} bytes requested; allocated {}, reserved {}, limit {}, largest \
             free block {}, external fragmentation {:.0}%, free but unusable {}, waiting for queued work {}; \
             the device has {} of {} bytes free",
            self.pool,
            self.requested_bytes,
            self.allocated_bytes,
            self.reserved_bytes,
            self.limit_bytes.map_or_else(|| "none".to_owned(), |bytes| bytes.to_string()),
            self.largest_free_bytes,
            100.0 * self.external_fragmentation(),
            self.inactive_split_bytes,
            self.waiting_bytes,
            self.device_free_bytes,
            self.device_total_bytes,
        )?;
        if self.allowed_bytes < self.device_total_bytes {
            write!(f, ", of which pools may hold {}", self.allowed_bytes)?;
        }
        if self.headroom_bytes > 0 {
            write!(f, ", {} are left to others", self.headroom_bytes)?;
        }
        for (name, held) in &self.other_pools {
            write!(f, "; pool \"{name}\" holds {held}")?;
        }
        for finding in self.findings.iter().filter(|finding| finding.severity == Severity::Problem) {
            write!(f, "; {finding}")?;
        }
        write!(f, "; {}; try: {}", self.cause, self.advice().join("; "))
    }
}

/// Makes room for a request that `pool` refused, and serves it: an address, or `None` and a
/// report. The context is current, no lock is held.
pub(crate) fn make_room(
    pool: &'static PoolSlot,
    call: &Call,
    request: Request,
    refused: ArenaError,
) -> Option<usize> {
    let placed = find_room(pool, call, request, refused);
    pool.fill_up(call);
    placed
}

fn find_room(pool: &'static PoolSlot, call: &Call, request: Request, refused: ArenaError) -> Option<usize> {
    let device = pool.device;
    let default = device.default_pool();
    let refused = RefCell::new(refused);
    let again = |wait: bool| -> Option<usize> {
        let placed = pool.with_arena(call, |core| {
            match call.waitable() {
                Some(stream) if wait => core.drain_behind(stream),
                _ => core.drain(),
            }
            core.allocate(request, call.waitable())
        });
        match placed.ok()? {
            Ok(placed) => Some(placed.addr),
            Err(error) => {
                refused.replace(error);
                None
            }
        }
    };
    // Freed blocks whose work is not done: the stream waits for it. The placement joins and moves
    // its free pages itself.
    if let Some(addr) = again(true) {
        return Some(addr);
    }
    pool.count_retry();
    // The pool's own other memory, then the default pool's and that of pools that are no more.
    for target_bytes in pool.own_targets(request) {
        if pool.trim_for_own(call, target_bytes) > 0
            && let Some(addr) = again(true)
        {
            return Some(addr);
        }
    }
    // A pool at its own limit gains nothing by what others give up.
    let at_limit = || is_at_limit(pool, &refused.borrow());
    if !at_limit() {
        device.sweep();
        for other in device.pools() {
            // What a pool still keeps whose last handle is gone is nobody's to keep.
            if !std::ptr::eq(other, pool) && (std::ptr::eq(other, default) || other.is_retired()) {
                other.trim(usize::MAX);
            }
        }
        if let Some(addr) = again(true) {
            return Some(addr);
        }
    }
    // Pools that lend. A pool whose blocks have pages of their own takes none that share theirs.
    for lender in device.pools() {
        if !std::ptr::eq(lender, pool)
            && !at_limit()
            && (!pool.has_own_pages() || lender.has_own_pages())
            && lender.is_used_on_oom()
            && let Some(addr) = borrow(lender, call, request)
        {
            return Some(addr);
        }
    }
    // Everything that was queued is waited for, and the search begins again.
    if pool.synchronize() {
        for pool in device.pools() {
            pool.flush();
        }
        pool.trim_for_own(call, usize::MAX);
        if let Some(addr) = again(true) {
            return Some(addr);
        }
    }
    // What may move, where that is wanted.
    if let Some(stream) = call.waitable() {
        let mut freed = 0;
        for other in device.pools() {
            let of_pool = other.compact_on_oom(call.owner, stream);
            if of_pool > 0 && !std::ptr::eq(other, pool) {
                other.trim(usize::MAX);
            }
            freed += of_pool;
        }
        if freed > 0
            && let Some(addr) = again(true)
        {
            return Some(addr);
        }
    }
    if is_refused_by_limit(device.total_bytes, &refused.borrow()) {
        pool.count_limit_refusal();
    }
    device.note_oom(report(pool, call, request, &refused.borrow()));
    None
}

/// Whether a limit refused that is less than the device has.
fn is_refused_by_limit(total_bytes: usize, refused: &ArenaError) -> bool {
    match refused {
        ArenaError::OutOfMemory { source: Some(UpstreamError::Exhausted { capacity_bytes, .. }), .. } => {
            *capacity_bytes < total_bytes
        }
        ArenaError::OutOfMemory { source, .. } => source.is_none(),
        _ => false,
    }
}

/// Whether it is the pool's own limit that refused.
fn is_at_limit(pool: &PoolSlot, refused: &ArenaError) -> bool {
    let limit = pool.limit_bytes();
    let ArenaError::OutOfMemory { source: Some(UpstreamError::Exhausted { capacity_bytes, .. }), .. } =
        refused
    else {
        return false;
    };
    limit < pool.device.allowed_bytes() && *capacity_bytes == limit
}

/// A block on memory that a pool marked `use_on_oom` has free in the caller's order.
fn borrow(lender: &'static PoolSlot, call: &Call, request: Request) -> Option<usize> {
    let placed = lender.with_arena(call, |core| {
        if let Some(stream) = call.waitable() {
            core.drain_behind(stream);
        }
        core.place_mapped(request)
    });
    placed.ok().flatten().map(|placed| placed.addr)
}

fn report(pool: &'static PoolSlot, call: &Call, request: Request, refused: &ArenaError) -> OomReport {
    let device = pool.device;
    let stats = pool.stats();
    let mut waiting_bytes = 0;
    pool.for_each_arena(|core: &mut ArenaCore| waiting_bytes += core.pending_bytes());
    let (device_free_bytes, _) = device.memory_info().unwrap_or((0, device.total_bytes));
    let source = Source { device: Some(device.id), pool_id: pool.id(), order: Some(call.owner) };
    history::note_oom(source, request.size_bytes, device_free_bytes);
    let mut collector = Collector::new();
    collector.add_device_pool(pool);
    collector.add_refused(source, request.size_bytes, device_free_bytes);
    let findings = collector.finish().diagnose().findings;
    let mut other_pools: Vec<(String, usize)> = device
        .pools()
        .into_iter()
        .filter(|other| !std::ptr::eq(*other, pool) && other.held_bytes() > 0)
        .map(|other| (other.name(), other.held_bytes()))
        .collect();
    other_pools.sort_by_key(|(_, held)| std::cmp::Reverse(*held));
    OomReport {
        pool: stats.name.clone(),
        requested_bytes: request.size_bytes,
        allocated_bytes: stats.allocated.current,
        reserved_bytes: stats.reserved.current,
        limit_bytes: Some(pool.limit_bytes()).filter(|&bytes| bytes != usize::MAX),
        largest_free_bytes: stats.largest_free_bytes,
        inactive_split_bytes: stats.inactive_split.current,
        waiting_bytes,
        device_free_bytes,
        device_total_bytes: device.total_bytes,
        allowed_bytes: device.allowed_bytes(),
        headroom_bytes: device.headroom_bytes(),
        other_pools,
        cause: refused.to_string(),
        findings,
    }
}
