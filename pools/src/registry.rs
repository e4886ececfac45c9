//! All slots of the process, and which of them are vacant.
//!
//! Lock order: the registry, then a slot, then the region's parts, then the recordings. Nobody takes two slots but
//! the fork handler, which takes all of them in order of their index.
#![allow(unsafe_code)] // listed in ARCHITECTURE.md

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::device::{self, Inner as Platform};
use crate::error::PoolError;
use crate::lock::Lock;
use crate::options::PoolOptions;
use crate::slot::{self, Setup, Slot};
use crate::{environment, history, monitor, os, recording, region, thread_state};

/// The most pools that can exist at once. Each takes at least two parts of the region, so
/// address space would end not far beyond.
pub(crate) const MAX_POOLS: usize = 4096;

static SLOTS: [OnceLock<&'static Slot>; MAX_POOLS] = [const { OnceLock::new() }; MAX_POOLS];

static REGISTRY: Lock<Registry> = Lock::new(Registry {
    state: State::Unopened,
    vacant: Vec::new(),
    used: 0,
    next_id: DEFAULT_ID + 1,
    watches_forks: false,
});

/// Platforms whose devices have pools.
static PLATFORMS: [OnceLock<&'static Platform>; MAX_PLATFORMS] = [const { OnceLock::new() }; MAX_PLATFORMS];
const MAX_PLATFORMS: usize = 16;

/// Index of the default pool's slot plus one; zero while there is none.
static DEFAULT: AtomicU32 = AtomicU32::new(0);

/// Why the default pool does not have the options of the environment.
static DEFAULT_PROBLEM: OnceLock<PoolError> = OnceLock::new();

/// Stands in `DEFAULT` for a process in which pools do not work.
const PASS_THROUGH: u32 = u32::MAX;

/// The id of the default pool. Others count from one.
pub(crate) const DEFAULT_ID: u64 = 0;

enum State {
    Unopened,
    Open,
    /// Pools do not work in this process, and why.
    PassThrough(String),
}

struct Registry {
    state: State,
    vacant: Vec<u32>,
    /// Slots that were ever used.
    used: u32,
    next_id: u64,
    watches_forks: bool,
}

impl Registry {
    /// Registers the fork handlers, and then reads the environment, once. From then on no fork can come
    /// while it is read.
    fn watch_forks(&mut self) {
        if !self.watches_forks {
            self.watches_forks = true;
            os::run_at_fork(before_fork, after_fork, after_fork_in_child);
        }
        // What is malformed is told to whoever makes a pool.
        let _ = environment::read();
    }

    /// Reserves the region and creates the default pool, once.
    fn open(&mut self) -> Result<(), PoolError> {
        if let State::Unopened = self.state {
            self.watch_forks();
            self.state = match region::HOST.open(os::address_space_left(), os::reserve) {
                Ok(()) => State::Open,
                Err(reason) => {
                    os::report(format_args!(
                        "{reason}; every request goes to the inner allocator from here on"
                    ));
                    DEFAULT.store(PASS_THROUGH, Ordering::Release);
                    State::PassThrough(reason)
                }
            };
            if let State::Open = self.state {
                let (setup, problem) = crate::builder::default_setup();
                if let Some(error) = problem {
                    // What is malformed was told when it was read.
                    if !matches!(error, PoolError::Environment { .. }) {
                        os::report(format_args!("the default pool has default options: {error}"));
                    }
                    let _ = DEFAULT_PROBLEM.set(error);
                }
                let slot = self.insert(DEFAULT_ID, |_| setup)?.0;
                DEFAULT.store(slot.index() + 1, Ordering::Release);
            }
        }
        match &self.state {
            State::PassThrough(reason) => Err(PoolError::PassThrough { reason: reason.clone() }),
            State::Unopened | State::Open => Ok(()),
        }
    }

    fn take_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }

    fn insert(
        &mut self,
        id: u64,
        setup: impl FnOnce(u64) -> Setup,
    ) -> Result<(&'static Slot, u64), PoolError> {
        let index = match self.vacant.pop() {
            Some(index) => index,
            None if (self.used as usize) < MAX_POOLS => {
                self.used += 1;
                self.used - 1
            }
            None => return Err(PoolError::TooManyPools { limit: MAX_POOLS }),
        };
        let slot = SLOTS[index as usize].get_or_init(|| Box::leak(Box::new(Slot::new(index))));
        slot.open(id, setup(id));
        Ok((slot, id))
    }
}

/// Creates a pool; `setup` gets its id. The caller is inside pool code.
pub(crate) fn open_pool(setup: impl FnOnce(u64) -> Setup) -> Result<(&'static Slot, u64), PoolError> {
    let mut registry = REGISTRY.lock();
    registry.open()?;
    let id = registry.take_id();
    registry.insert(id, setup)
}

/// Makes a slot available to another pool. The caller is inside pool code and holds no lock.
pub(crate) fn return_slot(index: u32) {
    REGISTRY.lock().vacant.push(index);
}

/// The slot of the default pool; `None` when pools do not work in this process. The caller is
/// inside pool code.
#[inline]
pub(crate) fn default_slot() -> Option<&'static Slot> {
    match DEFAULT.load(Ordering::Acquire) {
        0 => open_default(),
        PASS_THROUGH => None,
        index => slot(index - 1),
    }
}

#[cold]
fn open_default() -> Option<&'static Slot> {
    REGISTRY.lock().open().ok()?;
    slot(DEFAULT.load(Ordering::Acquire) - 1)
}

/// Why there is no default pool.
pub(crate) fn require_open() -> Result<&'static Slot, PoolError> {
    REGISTRY.lock().open()?;
    Ok(slot(DEFAULT.load(Ordering::Acquire) - 1).expect("an open registry has a default pool"))
}

/// The slot of the default pool, for those who ask for it by name.
pub(crate) fn named_default() -> Result<&'static Slot, PoolError> {
    let slot = require_open()?;
    match DEFAULT_PROBLEM.get() {
        Some(error) => Err(error.clone()),
        None => Ok(slot),
    }
}

/// The options of the environment. The caller is inside pool code.
pub(crate) fn environment() -> Result<&'static PoolOptions, PoolError> {
    let mut registry = REGISTRY.lock();
    registry.watch_forks();
    environment::read()
}

/// The slot of this index.
#[inline]
pub(crate) fn slot(index: u32) -> Option<&'static Slot> {
    SLOTS.get(index as usize)?.get().copied()
}

/// Notes a platform, for [`mark_step`](crate::mark_step) and for forks.
pub(crate) fn add_platform(platform: &'static Platform) {
    let mut registry = REGISTRY.lock();
    registry.watch_forks();
    if let Some(place) = PLATFORMS.iter().find(|place| place.get().is_none()) {
        let _ = place.set(platform);
    }
}

/// Every platform that was noted: all of a program's drivers, and simulated ones up to a number
/// that only tests reach.
pub(crate) fn platforms() -> impl Iterator<Item = &'static Platform> {
    PLATFORMS.iter().map_while(|place| place.get().copied())
}

/// An id for a pool that has no slot here.
pub(crate) fn take_pool_id() -> u64 {
    REGISTRY.lock().take_id()
}

/// Every slot that was ever used.
pub(crate) fn slots() -> impl Iterator<Item = &'static Slot> {
    SLOTS.iter().map_while(|slot| slot.get().copied())
}

/// Runs `f` on every slot that was ever used, while no pool is made.
pub(crate) fn for_each_slot(f: impl FnMut(&'static Slot)) {
    let _registry = REGISTRY.lock();
    slots().for_each(f);
}

/// Takes every lock, so that the child gets the bookkeeping in one piece. Until they are let go
/// of, the thread's own requests (of other fork handlers) go to the inner allocator; such a handler
/// must not free what lies in a pool.
extern "C" fn before_fork() {
    thread_state::set_inside(true);
    REGISTRY.hold_for_fork();
    platforms().for_each(device::hold_for_fork);
    slots().for_each(|slot| slot.lock_for_fork().hold_for_fork());
    slot::lock_past_for_fork().hold_for_fork();
    region::HOST.lock_for_fork().hold_for_fork();
    monitor::lock_figures_for_fork().hold_for_fork();
    monitor::lock_jobs_for_fork().hold_for_fork();
    recording::lock_for_fork().hold_for_fork();
    history::lock_for_fork().hold_for_fork();
    history::lock_labels_for_fork().hold_for_fork();
    history::lock_stacks_for_fork().hold_for_fork();
    history::lock_names_for_fork().hold_for_fork();
}

/// Lets go of every lock, in the parent and in the child.
extern "C" fn after_fork() {
    // SAFETY: the system calls this on the thread that forked, or its copy, after `before_fork`.
    unsafe { history::lock_names_for_fork().release_after_fork() };
    // SAFETY: as above.
    unsafe { history::lock_stacks_for_fork().release_after_fork() };
    // SAFETY: as above.
    unsafe { history::lock_labels_for_fork().release_after_fork() };
    // SAFETY: as above.
    unsafe { history::lock_for_fork().release_after_fork() };
    // SAFETY: as above.
    unsafe { recording::lock_for_fork().release_after_fork() };
    // SAFETY: as above.
    unsafe { monitor::lock_jobs_for_fork().release_after_fork() };
    // SAFETY: as above.
    unsafe { monitor::lock_figures_for_fork().release_after_fork() };
    // SAFETY: as above.
    unsafe { region::HOST.lock_for_fork().release_after_fork() };
    // SAFETY: as above.
    unsafe { slot::lock_past_for_fork().release_after_fork() };
    for slot in slots() {
        // SAFETY: as above.
        unsafe { slot.lock_for_fork().release_after_fork() };
    }
    for platform in platforms() {
        // SAFETY: as above.
        unsafe { device::release_after_fork(platform) };
    }
    // SAFETY: as above.
    unsafe { REGISTRY.release_after_fork() };
    thread_state::set_inside(false);
}

/// The child's recordings go on in the parent alone.
extern "C" fn after_fork_in_child() {
    after_fork();
    recording::leave_to_parent();
    monitor::leave_to_parent();
}
