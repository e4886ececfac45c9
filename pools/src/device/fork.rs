//! The locks of a platform across a fork.
#![allow(unsafe_code)] // listed in ARCHITECTURE.md

use crate::device::platform::Inner;

/// Takes every lock, in the order in which anyone takes several.
pub(crate) fn hold_for_fork(platform: &'static Inner) {
    let devices = platform.devices();
    for device in &devices {
        device.pools().into_iter().for_each(|pool| pool.lock_for_fork().hold_for_fork());
    }
    platform.arenas().for_each(|arena| arena.lock_for_fork().hold_for_fork());
    for device in devices {
        device.pools.hold_for_fork();
        device.captures.hold_for_fork();
        device.graphs.hold_for_fork();
        device.events.hold_for_fork();
        device.last_oom.hold_for_fork();
        device.guard_reports.hold_for_fork();
        device.ended_uses.hold_for_fork();
        device.past.hold_for_fork();
    }
    platform.registry.hold_for_fork();
    platform.region.lock_for_fork().hold_for_fork();
}

/// Lets go of what [`hold_for_fork`] took.
///
/// # Safety
/// Only the thread that forked, or its copy in the child, may call this.
pub(crate) unsafe fn release_after_fork(platform: &'static Inner) {
    // SAFETY: the caller is the thread that took the locks, or its copy.
    unsafe { platform.region.lock_for_fork().release_after_fork() };
    // SAFETY: as above.
    unsafe { platform.registry.release_after_fork() };
    let devices = platform.devices();
    for device in &devices {
        // SAFETY: as above.
        unsafe { device.past.release_after_fork() };
        // SAFETY: as above.
        unsafe { device.ended_uses.release_after_fork() };
        // SAFETY: as above.
        unsafe { device.guard_reports.release_after_fork() };
        // SAFETY: as above.
        unsafe { device.last_oom.release_after_fork() };
        // SAFETY: as above.
        unsafe { device.events.release_after_fork() };
        // SAFETY: as above.
        unsafe { device.graphs.release_after_fork() };
        // SAFETY: as above.
        unsafe { device.captures.release_after_fork() };
        // SAFETY: as above.
        unsafe { device.pools.release_after_fork() };
    }
    for arena in platform.arenas() {
        // SAFETY: as above.
        unsafe { arena.lock_for_fork().release_after_fork() };
    }
    for device in devices {
        for pool in device.pools() {
            // SAFETY: as above.
            unsafe { pool.lock_for_fork().release_after_fork() };
        }
    }
}
