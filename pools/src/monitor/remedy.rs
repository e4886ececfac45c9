//! What a monitor does about fragmentation, and when.
//!
//! What may be done at any time is done on the monitor's thread. A program that marks its steps has it done
//! between two of them, on the thread that marks: then nothing of a step waits for it, and buffers may move.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::device::{Call, DeviceId, Stream};
use crate::lock::Lock;
use crate::pool::Place;
use crate::stats::PoolStats;
use mempool_arena::Effort;

/// What may be done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Remedies {
    /// Free memory is given back.
    pub(super) trims: bool,
    /// Buffers are moved together.
    pub(super) compacts: bool,
}

/// A pool, at the place that it has.
pub(super) type PoolKey = (Option<DeviceId>, u64);

pub(super) fn key(place: Place, stats: &PoolStats) -> PoolKey {
    match place {
        Place::Host(_) => (None, stats.id),
        Place::Device(slot) => (Some(slot.device.id), stats.id),
    }
}

/// By what it is told whether anything has changed in a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Picture {
    active: usize,
    reserved: usize,
    split: usize,
    releasable: usize,
}

impl Picture {
    fn of(stats: &PoolStats) -> Self {
        Self {
            active: stats.active.current,
            reserved: stats.reserved.current,
            split: stats.inactive_split.current,
            releasable: stats.releasable_bytes,
        }
    }
}

/// The pools in which nothing was gained, and how they were then.
#[derive(Debug, Default)]
pub(crate) struct Futile {
    pools: Mutex<BTreeMap<PoolKey, Picture>>,
}

impl Futile {
    /// Whether nothing was gained last time, and nothing has changed since.
    pub(super) fn has(&self, place: Place, stats: &PoolStats) -> bool {
        let pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        pools.get(&key(place, stats)) == Some(&Picture::of(stats))
    }

    fn note(&self, place: Place, before: &PoolStats, gained_bytes: usize) {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        if gained_bytes == 0 {
            // As it is now: trying may have changed figures that give nothing back.
            let now = stats_of(place, before.id).unwrap_or_else(|| before.clone());
            pools.insert(key(place, before), Picture::of(&now));
        } else {
            pools.remove(&key(place, before));
        }
    }

    /// Forgets pools that are no more.
    pub(super) fn keep_only(&self, lives: impl Fn(&PoolKey) -> bool) {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner).retain(|key, _| lives(key));
    }
}

/// Something to do at the next step boundary.
pub(crate) struct Job {
    pub(super) place: Place,
    pub(super) stats: PoolStats,
    pub(super) remedies: Remedies,
    pub(super) futile: Arc<Futile>,
}

/// What waits for a step boundary.
static JOBS: Lock<Vec<Job>> = Lock::new(Vec::new());
/// Whether anything does: looked at by each [`mark_step`](crate::mark_step).
static WAITING: AtomicBool = AtomicBool::new(false);
/// Steps that ended, in the process or on one device.
static BOUNDARIES: AtomicU64 = AtomicU64::new(0);

/// The lock of what waits, for the fork handlers.
pub(crate) fn lock_for_fork() -> &'static Lock<Vec<Job>> {
    &JOBS
}

/// In a forked child there is no monitor: what waited is its parent's to do.
pub(crate) fn leave_to_parent() {
    WAITING.store(false, Ordering::Relaxed);
}

/// Steps that ended so far.
pub(super) fn boundaries() -> u64 {
    BOUNDARIES.load(Ordering::Relaxed)
}

/// Has something done at the next step boundary. The caller is inside pool code.
pub(super) fn at_next_boundary(job: Job) {
    let mut jobs = JOBS.lock();
    let wanted = key(job.place, &job.stats);
    jobs.retain(|other| key(other.place, &other.stats) != wanted);
    jobs.push(job);
    WAITING.store(true, Ordering::Release);
}

/// A step ended, of pools of this device or of all: does what waited for it. The caller is inside pool code and
/// holds no lock.
#[inline]
pub(crate) fn step_ends(device: Option<DeviceId>) {
    BOUNDARIES.fetch_add(1, Ordering::Relaxed);
    if WAITING.load(Ordering::Acquire) {
        work_off(device);
    }
}

#[cold]
fn work_off(device: Option<DeviceId>) {
    let is_due = |job: &Job| device.is_none() || key(job.place, &job.stats).0 == device;
    let due: Vec<Job> = {
        let mut jobs = JOBS.lock();
        let (due, later) = std::mem::take(&mut *jobs).into_iter().partition(is_due);
        *jobs = later;
        WAITING.store(!jobs.is_empty(), Ordering::Release);
        due
    };
    due.into_iter().for_each(|job| {
        job.run(true);
    });
}

impl Job {
    /// Does it, and returns the bytes that went back or that moving made usable.
    pub(super) fn run(self, between_steps: bool) -> usize {
        let Self { place, stats, remedies, futile } = self;
        // The pool's place may hold another by now.
        if stats_of(place, stats.id).is_none() {
            return 0;
        }
        let mut gained = 0;
        if remedies.compacts && between_steps {
            gained += compact(place, stats.id);
        }
        if remedies.trims {
            gained += match place {
                Place::Host(slot) => slot.trim(stats.id, usize::MAX),
                Place::Device(slot) => slot.trim(usize::MAX),
            };
        }
        futile.note(place, &stats, gained);
        gained
    }
}

fn stats_of(place: Place, id: u64) -> Option<PoolStats> {
    let stats = match place {
        Place::Host(slot) => slot.stats_if_open(),
        Place::Device(slot) => slot.stats_if_open(),
    };
    stats.filter(|stats| stats.id == id)
}

/// Moves the buffers together that may be without their set being asked. On a device those whose set belongs to
/// this thread's own stream: others' handles are their sets'.
fn compact(place: Place, id: u64) -> usize {
    match place {
        Place::Host(slot) => {
            let compact = |arena: &mut _| crate::host_copy::compact_on_oom(arena, Effort::for_memory());
            slot.with_arena(id, compact).unwrap_or(0)
        }
        Place::Device(slot) => {
            let stream = Stream::PER_THREAD;
            let compact =
                || Call::running(slot.device, stream).map(|call| slot.compact_on_oom(call.owner, stream));
            slot.device.with_context(compact).flatten().unwrap_or(0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slot::Slot;

    #[test]
    fn what_gained_nothing_is_not_tried_again_until_figures_change() {
        let place = Place::Host(Box::leak(Box::new(Slot::new(0))));
        let mut stats = PoolStats { id: 7, ..PoolStats::default() };
        (stats.placement.reserved.current, stats.placement.releasable_bytes) = (100, 30);
        let futile = Futile::default();
        assert!(!futile.has(place, &stats), "it was not tried yet");
        futile.note(place, &stats, 0);
        assert!(futile.has(place, &stats));
        let other = PoolStats { id: 8, ..stats.clone() };
        assert!(!futile.has(place, &other), "another pool");
        let mut changed = stats.clone();
        changed.placement.releasable_bytes = 40;
        assert!(!futile.has(place, &changed));
        futile.note(place, &stats, 10);
        assert!(!futile.has(place, &stats), "there was something to gain");
        futile.note(place, &stats, 0);
        futile.keep_only(|&(_, id)| id != 7);
        assert!(!futile.has(place, &stats), "the pool is no more");
    }
}
