//! Handing a thread's scopes over to another thread.

use crate::scope::{self, ScopeGuard, Target};
use crate::thread_state::inside;

/// The scopes of the thread that made it, which other threads can enter.
///
/// A scope reaches the thread that entered it only. Code that runs parts of its work on other
/// threads takes this along:
///
/// ```
/// # fn work(_: usize) {}
/// # fn parts(pool: &mempool_pools::MemPool) {
/// pool.with(|| {
///     let scopes = mempool_pools::propagate();
///     std::thread::scope(|threads| {
///         for part in 0..4 {
///             let scopes = scopes.clone();
///             threads.spawn(move || scopes.with(|| work(part)));
///         }
///     });
/// });
/// # }
/// ```
///
/// A thread pool with work stealing (rayon) may run a foreign job inside a propagated scope
/// while that scope waits for a job of its own; such a job's allocations land in the pool too.
#[derive(Debug, Clone)]
pub struct Propagation {
    scopes: Vec<Target>,
}

impl Propagation {
    /// The scopes of the calling thread.
    #[must_use]
    pub fn current() -> Self {
        inside(|| Self { scopes: scope::current() })
    }

    /// Runs `f` on the calling thread inside these scopes. Where the thread that made this was
    /// in no scope, `f` runs as it would without.
    pub fn with<R>(&self, f: impl FnOnce() -> R) -> R {
        // They end in the order in which they began, the last one first or not: both are right.
        let _scopes: Vec<ScopeGuard> = inside(|| self.scopes.iter().cloned().map(scope::enter).collect());
        f()
    }

    /// The closure `f` inside these scopes, on whichever thread it runs.
    pub fn wrap<R>(self, f: impl FnOnce() -> R) -> impl FnOnce() -> R {
        move || self.with(f)
    }
}

/// The scopes of the calling thread, to hand over to another one. See [`Propagation`].
#[must_use]
pub fn propagate() -> Propagation {
    Propagation::current()
}
