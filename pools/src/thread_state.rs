//! What a thread knows while it allocates: the pool of its innermost scope, and whether it is
//! inside pool code already.
//!
//! The thread-local is initialised by a constant and has no destructor, so it works from the
//! first instruction of a thread to its last, also after other thread-locals are gone.

use std::cell::Cell;

use crate::device::{DeviceId, PoolSlot};
use crate::os;
use crate::slot::Slot;
use crate::step::StepNumber;

/// Where host requests go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostScope {
    /// `None` stands for the default pool.
    pub(crate) slot: Option<&'static Slot>,
    /// The step of that pool which the thread is in.
    pub(crate) step: Option<StepNumber>,
}

impl HostScope {
    pub(crate) const DEFAULT: Self = Self { slot: None, step: None };
}

/// Where the requests of one device go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OneDevice {
    pub(crate) device: DeviceId,
    pub(crate) pool: &'static PoolSlot,
    pub(crate) step: Option<StepNumber>,
}

struct ThreadState {
    host: Cell<HostScope>,
    /// Where the requests of some devices go, the innermost first.
    devices: Cell<[Option<OneDevice>; DEVICE_SCOPES]>,
    /// What holds for a device that is not among them.
    other_devices: Cell<OtherDevices>,
    inside: Cell<bool>,
    /// Allocations may be meant for a buffer.
    steering: Cell<bool>,
}

/// Devices of which a thread can be in scopes at once before looking them up takes a walk.
pub(crate) const DEVICE_SCOPES: usize = 8;

/// Where the requests of a device go that has no place of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OtherDevices {
    /// To its default pool.
    Default,
    /// To the driver, as if there were no pools.
    PassThrough,
    /// The stack of scopes knows.
    Many,
}

/// Where a thread's requests on one device go.
#[derive(Debug, Clone, Copy)]
pub(crate) enum DeviceScope {
    /// To the default pool.
    None,
    /// To the driver, as if there were no pools.
    PassThrough,
    /// To this pool, and to the step of it which the thread is in.
    Pool(&'static PoolSlot, Option<StepNumber>),
}

thread_local! {
    static STATE: ThreadState = const {
        ThreadState {
            host: Cell::new(HostScope::DEFAULT),
            devices: Cell::new([None; DEVICE_SCOPES]),
            other_devices: Cell::new(OtherDevices::Default),
            inside: Cell::new(false),
            steering: Cell::new(false),
        }
    };
}

/// Where the thread's requests on this device go.
#[inline]
pub(crate) fn device_scope(device: DeviceId) -> DeviceScope {
    let (devices, others) = STATE.with(|state| (state.devices.get(), state.other_devices.get()));
    for entry in devices {
        match entry {
            Some(one) if one.device == device => return DeviceScope::Pool(one.pool, one.step),
            Some(_) => {}
            None => break,
        }
    }
    match others {
        OtherDevices::Default => DeviceScope::None,
        OtherDevices::PassThrough => DeviceScope::PassThrough,
        OtherDevices::Many => crate::scope::find_device(device),
    }
}

/// Sets where the thread's requests on devices go.
pub(crate) fn set_devices(devices: [Option<OneDevice>; DEVICE_SCOPES], others: OtherDevices) {
    STATE.with(|state| {
        state.devices.set(devices);
        state.other_devices.set(others);
    });
}

/// The innermost scope of the host on this thread.
#[inline]
pub(crate) fn host() -> HostScope {
    STATE.with(|state| state.host.get())
}

/// The pool of the innermost scope on this thread, unless pool code itself asks.
#[inline]
pub(crate) fn host_of_user_code() -> Option<&'static Slot> {
    STATE.with(|state| if state.inside.get() { None } else { state.host.get().slot })
}

/// Sets where this thread's host requests go, and returns where they went.
pub(crate) fn set_host(scope: HostScope) -> HostScope {
    STATE.with(|state| state.host.replace(scope))
}

/// Whether this allocation of user code may be meant for a buffer.
#[inline]
pub(crate) fn is_steering() -> bool {
    STATE.with(|state| state.steering.get() && !state.inside.get())
}

/// Sets whether allocations may be meant for a buffer, and returns whether they were.
pub(crate) fn set_steering(steering: bool) -> bool {
    STATE.with(|state| state.steering.replace(steering))
}

/// Sends this thread's requests to the inner allocator, or ends that, across a fork. Pool code
/// never forks, so the thread is not inside before.
pub(crate) fn set_inside(inside: bool) {
    STATE.with(|state| state.inside.set(inside));
}

/// While this exists, allocations of the thread go to the inner allocator.
///
/// Pool code must end it with [`leave`](Self::leave). Dropping it means that pool code panicked:
/// its bookkeeping is broken and an allocator must not unwind, so the process ends.
pub(crate) struct Inside {
    was_inside: bool,
}

impl Inside {
    /// Enters, unless the thread is inside already.
    #[inline]
    pub(crate) fn enter() -> Option<Self> {
        let was_inside = STATE.with(|state| state.inside.replace(true));
        (!was_inside).then(|| Self { was_inside: false })
    }

    /// Enters, whether or not the thread is inside already. For code that never allocates from
    /// pools: opening, closing and reading them.
    pub(crate) fn enter_nested() -> Self {
        Self { was_inside: STATE.with(|state| state.inside.replace(true)) }
    }

    /// Ends the stay.
    #[inline]
    pub(crate) fn leave(self) {
        STATE.with(|state| state.inside.set(self.was_inside));
        std::mem::forget(self);
    }
}

impl Drop for Inside {
    #[cold]
    fn drop(&mut self) {
        os::abort_with(format_args!(
            "a bookkeeping invariant is broken (see the panic above); the process ends"
        ));
    }
}

/// Runs `f`, which reads or changes pools, with its own allocations going to the inner allocator.
pub(crate) fn inside<R>(f: impl FnOnce() -> R) -> R {
    let stay = Inside::enter_nested();
    let result = f();
    stay.leave();
    result
}
