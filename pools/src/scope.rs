//! Which pools a thread has entered.
//!
//! Each entry holds a handle of its pool under an id of its own. Dropping a guard removes that
//! entry wherever it stands, so guards may end in any order; forgetting one keeps the entry,
//! and with it the pool, for as long as the thread runs and beyond.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;

use crate::device::DeviceId;
use crate::pool::{MemPool, Place};
use crate::propagate::Propagation;
use crate::slot::Slot;
use crate::step::StepNumber;
use crate::thread_state::{
    DEVICE_SCOPES, DeviceScope, HostScope, OneDevice, OtherDevices, inside, set_devices, set_host,
};

/// Where the requests of a scope go.
#[derive(Debug, Clone)]
pub(crate) enum Target {
    Pool(MemPool),
    /// To a pool, as the requests of a step of it.
    Step(MemPool, StepNumber),
    /// To the inner allocator, as if there were no pools.
    Inner,
}

/// Stands for the inner allocator: a slot that never holds a pool.
static INNER: Slot = Slot::counting();

impl Target {
    /// The pool and the step, unless requests go to none.
    fn pool(&self) -> Option<(&MemPool, Option<StepNumber>)> {
        match self {
            Self::Pool(pool) => Some((pool, None)),
            Self::Step(pool, step) => Some((pool, Some(*step))),
            Self::Inner => None,
        }
    }

    /// What other threads can enter: a step is its own thread's.
    fn to_hand_over(&self) -> Self {
        self.pool().map_or(Self::Inner, |(pool, _)| Self::Pool(pool.clone()))
    }

    /// Where host requests go, if the scope says so.
    fn host(&self) -> Option<HostScope> {
        let Some((pool, step)) = self.pool() else {
            return Some(HostScope { slot: Some(&INNER), step: None });
        };
        match pool.place() {
            Place::Host(slot) => Some(HostScope { slot: Some(slot), step }),
            Place::Device(_) => None,
        }
    }

    /// Where requests on `device` go, if the scope says so.
    fn on_device(&self, device: DeviceId) -> Option<DeviceScope> {
        let Some((pool, step)) = self.pool() else { return Some(DeviceScope::PassThrough) };
        match pool.place() {
            Place::Device(slot) if slot.device.id == device => Some(DeviceScope::Pool(slot, step)),
            Place::Device(_) | Place::Host(_) => None,
        }
    }
}

struct Entry {
    id: u64,
    target: Target,
}

struct Stack {
    entries: Vec<Entry>,
    next_id: u64,
}

impl Stack {
    /// Tells the thread's state where requests go now.
    fn publish(&self) {
        let innermost = || self.entries.iter().rev().map(|entry| &entry.target);
        set_host(innermost().find_map(Target::host).unwrap_or(HostScope::DEFAULT));
        let mut devices = [None; DEVICE_SCOPES];
        let mut count = 0;
        let mut others = OtherDevices::Default;
        for target in innermost() {
            let Some((pool, step)) = target.pool() else {
                others = OtherDevices::PassThrough;
                break;
            };
            let Place::Device(slot) = pool.place() else { continue };
            let device = slot.device.id;
            if devices.iter().flatten().any(|one: &OneDevice| one.device == device) {
                continue;
            }
            if count == DEVICE_SCOPES {
                others = OtherDevices::Many;
                break;
            }
            devices[count] = Some(OneDevice { device, pool: slot, step });
            count += 1;
        }
        set_devices(devices, others);
    }
}

/// Where requests on `device` go, by a walk over the thread's scopes.
pub(crate) fn find_device(device: DeviceId) -> DeviceScope {
    STACK
        .with(|stack| {
            let stack = stack.borrow();
            let innermost = stack.entries.iter().rev();
            innermost.map(|entry| &entry.target).find_map(|target| target.on_device(device))
        })
        .unwrap_or(DeviceScope::None)
}

thread_local! {
    // Without a destructor: scopes work in destructors of other thread-locals too. The vector
    // is freed when the last scope ends.
    static STACK: ManuallyDrop<RefCell<Stack>> =
        const { ManuallyDrop::new(RefCell::new(Stack { entries: Vec::new(), next_id: 0 })) };
}

/// While this lives, the thread's allocations go to the pool it was made by. It ends on the
/// thread it began on: it is not `Send`.
///
/// ```compile_fail
/// fn moves_to_another_thread<T: Send>() {}
/// moves_to_another_thread::<mempool_pools::ScopeGuard>();
/// ```
#[derive(Debug)]
#[must_use = "the scope ends when the guard is dropped"]
pub struct ScopeGuard {
    id: u64,
    not_send: PhantomData<*const ()>,
}

impl ScopeGuard {
    /// The scopes of this thread, to hand over to another one.
    #[must_use]
    pub fn propagate(&self) -> Propagation {
        Propagation::current()
    }
}

/// Sends this thread's requests to `target`.
pub(crate) fn enter(target: Target) -> ScopeGuard {
    let id = inside(|| {
        STACK.with(|stack| {
            let mut stack = stack.borrow_mut();
            let id = stack.next_id;
            stack.next_id += 1;
            stack.entries.push(Entry { id, target });
            stack.publish();
            id
        })
    });
    ScopeGuard { id, not_send: PhantomData }
}

/// The scopes on this thread that say where anything goes, the outermost first: the innermost
/// one of the host and of each device.
pub(crate) fn current() -> Vec<Target> {
    STACK.with(|stack| {
        let stack = stack.borrow();
        let mut current: Vec<Target> = Vec::new();
        let covers = |seen: &[Target], target: &Target| {
            let Some((pool, _)) = target.pool() else { return false };
            seen.iter().any(|other| {
                other.pool().is_none_or(|(other, _)| other.place().shares_requests_with(pool.place()))
            })
        };
        for entry in stack.entries.iter().rev() {
            if !covers(&current, &entry.target) {
                current.push(entry.target.to_hand_over());
            }
            if matches!(entry.target, Target::Inner) {
                break;
            }
        }
        current.reverse();
        current
    })
}

/// Runs `f` with this thread's allocations going to the inner allocator, as in a program without
/// pools: for comparing the two, and for code that allocates much once and frees it at once.
/// What pools allocated before is freed to them all the same.
pub fn without_pools<R>(f: impl FnOnce() -> R) -> R {
    let _scope = enter(Target::Inner);
    f()
}

impl Drop for ScopeGuard {
    fn drop(&mut self) {
        inside(|| {
            // The handle is dropped after the borrow has ended: it may be the pool's last.
            let ended = STACK.with(|stack| {
                let mut stack = stack.borrow_mut();
                // Guards mostly end in reverse order, so the search begins at the end.
                let at = stack.entries.iter().rposition(|entry| entry.id == self.id)?;
                let ended = stack.entries.remove(at);
                stack.publish();
                let unused = stack.entries.is_empty().then(|| std::mem::take(&mut stack.entries));
                Some((ended, unused))
            });
            drop(ended);
        });
    }
}
