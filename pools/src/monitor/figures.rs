//! Figures of all pools without waiting for any.
//!
//! A pool's lock may be held for long: by an allocation that waits for the driver, or one that looks for memory
//! everywhere. Whoever watches wants figures just then. So no pool's lock is waited for here: where it is held,
//! the figures are those that were seen last, brought up to date with what is counted without a lock.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::device::{Busy, DeviceState, Inner as Platform, PoolSlot};
use crate::lock::Lock;
use crate::pool::Place;
use crate::registry;
use crate::slot::Slot;
use crate::stats::PoolStats;

/// A pool as it was seen.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) place: Place,
    pub(super) stats: PoolStats,
    /// How old the figures are, because the pool's lock is held; zero for those of now.
    pub(super) age: Duration,
}

/// A device as it was seen.
#[derive(Debug, Clone, Copy)]
pub(super) struct SeenDevice {
    pub(super) device: &'static DeviceState,
    /// Which of the process's drivers it is of.
    pub(super) platform: usize,
    pub(super) reserved_bytes: usize,
}

/// How often a lock is tried before its pool counts as in use: an ordinary allocation holds it for less than
/// a microsecond.
const TRIES: u32 = 50;

/// Which slot it is, by its address.
type Key = usize;

/// What was seen last of each pool. Behind this lock nothing is waited for.
static LAST: Lock<BTreeMap<Key, (Instant, Place, PoolStats)>> = Lock::new(BTreeMap::new());

/// The lock of what was seen last, for the fork handlers.
pub(crate) fn lock_for_fork() -> &'static Lock<BTreeMap<Key, (Instant, Place, PoolStats)>> {
    &LAST
}

/// All pools of the process, those of the host first. The caller is inside pool code.
pub(super) fn look() -> Vec<Seen> {
    let mut seen = Vec::new();
    for slot in registry::slots() {
        seen.extend(see(Place::Host(slot), || slot.stats_now()));
    }
    for platform in registry::platforms() {
        match platform.devices_now() {
            Some(devices) => {
                for pool in devices.into_iter().flat_map(DeviceState::pools) {
                    seen.extend(see(Place::Device(pool), || pool.stats_now()));
                }
            }
            // A device is just being opened: what it was before is all there is.
            None => seen.extend(last_of(platform)),
        }
    }
    seen
}

/// All devices of the process that have pools. The caller is inside pool code.
pub(super) fn devices() -> Vec<SeenDevice> {
    let of_platform = |(platform, inner): (usize, &'static Platform)| {
        let devices = inner.devices_now().unwrap_or_default();
        devices.into_iter().map(move |device| {
            let reserved_bytes = device.physical.load(Ordering::Relaxed);
            SeenDevice { device, platform, reserved_bytes }
        })
    };
    registry::platforms().enumerate().flat_map(of_platform).collect()
}

fn key(place: Place) -> Key {
    match place {
        Place::Host(slot) => std::ptr::from_ref::<Slot>(slot).addr(),
        Place::Device(slot) => std::ptr::from_ref::<PoolSlot>(slot).addr(),
    }
}

fn see(place: Place, look: impl Fn() -> Result<Option<PoolStats>, Busy>) -> Option<Seen> {
    let key = key(place);
    let mut looked = look();
    for _ in 1..TRIES {
        if looked.is_ok() {
            break;
        }
        std::thread::yield_now();
        looked = look();
    }
    match looked {
        Ok(Some(stats)) => {
            LAST.lock().insert(key, (Instant::now(), place, stats.clone()));
            Some(Seen { place, stats, age: Duration::ZERO })
        }
        Ok(None) => {
            LAST.lock().remove(&key);
            None
        }
        Err(Busy) => {
            let last = LAST.lock().get(&key).cloned();
            let Place::Device(slot) = place else {
                return last.map(|(at, place, stats)| Seen { place, stats, age: at.elapsed() });
            };
            // Another pool may have taken the place since.
            let last = last.filter(|(.., stats)| stats.id == slot.id());
            let (mut stats, age) = match last {
                Some((at, _, stats)) => (stats, at.elapsed()),
                None => (slot.unseen_stats(), Duration::ZERO),
            };
            slot.update_counters(&mut stats);
            Some(Seen { place, stats, age: age.max(Duration::from_nanos(1)) })
        }
    }
}

fn last_of(platform: &'static Platform) -> Vec<Seen> {
    let last = LAST.lock();
    let is_here = |place: &Place| match place {
        Place::Device(slot) => std::ptr::eq(slot.device.platform, platform),
        Place::Host(_) => false,
    };
    let of_platform = last.values().filter(|(_, place, _)| is_here(place)).cloned();
    of_platform.map(|(at, place, stats)| Seen { place, stats, age: at.elapsed() }).collect()
}
