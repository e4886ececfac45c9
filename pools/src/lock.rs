//! A mutex that can be held across a fork.
//!
//! `std`'s mutex is used because on Linux it neither allocates nor has thread-locals with
//! destructors: it works inside an allocator, during thread start and exit, and in a forked
//! child. Poisoning is ignored: a panic while a lock is held ends the process (see
//! [`Inside`](crate::thread_state::Inside)), so nobody ever sees a poisoned one.
#![allow(unsafe_code)] // listed in ARCHITECTURE.md

use std::cell::UnsafeCell;
use std::panic::RefUnwindSafe;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// A mutex with a place to keep its guard while the process forks.
pub(crate) struct Lock<T: 'static> {
    mutex: Mutex<T>,
    /// Written and read only by the thread that holds `mutex`.
    held: UnsafeCell<Option<MutexGuard<'static, T>>>,
}

// SAFETY: `held` is only touched by the thread that holds `mutex` (see the methods), so access
// to it is ordered by that mutex; the guard in it never leaves the thread that took it, but for
// the copy of that thread in a forked child.
unsafe impl<T: Send + 'static> Sync for Lock<T> {}

// A panic while the lock is held ends the process, so nobody ever sees what it left behind.
impl<T: 'static> RefUnwindSafe for Lock<T> {}

impl<T: 'static> Lock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self { mutex: Mutex::new(value), held: UnsafeCell::new(None) }
    }

    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the lock, unless somebody holds it.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.mutex.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Takes the lock and keeps it until [`release_after_fork`](Self::release_after_fork).
    pub(crate) fn hold_for_fork(&'static self) {
        let guard = self.lock();
        // SAFETY: this thread holds the mutex, so no other thread touches `held`.
        unsafe { *self.held.get() = Some(guard) };
    }

    /// Ends [`hold_for_fork`](Self::hold_for_fork), in the parent or in the child.
    ///
    /// # Safety
    /// Only the thread that called `hold_for_fork`, or its copy in the child, may call this.
    pub(crate) unsafe fn release_after_fork(&'static self) {
        // SAFETY: the calling thread, or the one it is a copy of, took the mutex and holds it.
        let guard = unsafe { &mut *self.held.get() }.take();
        drop(guard);
    }
}
