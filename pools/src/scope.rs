//! Which pools a thread has entered.
//!
//! Each entry holds a handle of its pool under an id of its own. Dropping a guard removes that
//! entry wherever it stands, so guards may end in any order; forgetting one keeps the entry,
//! and with it the pool, for as long as the thread runs and beyond.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;

use crate::pool::MemPool;
use crate::propagate::Propagation;
use crate::slot::Slot;
use crate::thread_state::{inside, set_host};

/// Where the requests of a scope go.
#[derive(Debug, Clone)]
pub(crate) enum Target {
    Pool(MemPool),
    /// To the inner allocator, as if there were no pools.
    Inner,
}

/// Stands for the inner allocator: a slot that never holds a pool.
static INNER: Slot = Slot::counting();

impl Target {
    fn slot(&self) -> &'static Slot {
        match self {
            Self::Pool(pool) => pool.slot(),
            Self::Inner => &INNER,
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
    let slot = target.slot();
    let id = inside(|| {
        STACK.with(|stack| {
            let mut stack = stack.borrow_mut();
            let id = stack.next_id;
            stack.next_id += 1;
            stack.entries.push(Entry { id, target });
            id
        })
    });
    set_host(Some(slot));
    ScopeGuard { id, not_send: PhantomData }
}

/// The innermost scope on this thread.
pub(crate) fn current() -> Option<Target> {
    STACK.with(|stack| stack.borrow().entries.last().map(|entry| entry.target.clone()))
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
                set_host(stack.entries.last().map(|entry| entry.target.slot()));
                let unused = stack.entries.is_empty().then(|| std::mem::take(&mut stack.entries));
                Some((ended, unused))
            });
            drop(ended);
        });
    }
}
