//! Call stacks: taken as addresses before any lock is, kept once each, and turned into names when they are read.
//!
//! Finding the callers of a function may take a lock of the system's loader, under which it allocates itself. So that is
//! done before a pool's lock is taken, and the thread keeps the stack's number until its allocation is noted.

use std::cell::Cell;
use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use rustc_hash::FxBuildHasher;

use crate::lock::Lock;
use crate::os;
use crate::snapshot::Frame;

/// Of which allocations a history keeps the call stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CallStacks {
    /// Of none.
    #[default]
    None,
    /// Of all: some microseconds each.
    All,
    /// Of each so-manieth that a thread makes.
    Sampled(NonZeroU32),
    /// Of those of at least so many bytes.
    AtLeast(usize),
}

/// Functions that are looked at. What calls them is beyond what anyone reads.
const MAX_FRAMES: usize = 64;
/// Different stacks that are kept. Programs have some thousand; recursion may have any number.
const MAX_STACKS: usize = 1 << 18;

const NONE: u8 = 0;
const ALL: u8 = 1;
const SAMPLED: u8 = 2;
const AT_LEAST: u8 = 3;

/// Which of the above. Written before `NUMBER` is of any use to it, and only by whoever has the history's lock; who sees the
/// one and not yet the other takes one stack too many or too few.
static KIND: AtomicU8 = AtomicU8::new(NONE);
static NUMBER: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    // Constants without destructors, as everything that allocations look at.
    static TAKEN: Cell<u32> = const { Cell::new(0) };
    static SINCE_SAMPLE: Cell<usize> = const { Cell::new(0) };
}

/// Stacks that were seen, by number; 0 is none.
#[derive(Default)]
pub(crate) struct Stacks {
    known: HashMap<Arc<[usize]>, u32, FxBuildHasher>,
    all: Vec<Arc<[usize]>>,
}

static STACKS: Lock<Option<Stacks>> = Lock::new(None);
/// What stands at addresses: reading the program's debug information takes its time.
static NAMES: Lock<Option<Names>> = Lock::new(None);
type Names = HashMap<usize, Arc<[Frame]>, FxBuildHasher>;

/// Chooses of what stacks are taken.
pub(super) fn choose(stacks: CallStacks) {
    let (kind, number) = match stacks {
        CallStacks::None => (NONE, 0),
        CallStacks::All => (ALL, 0),
        CallStacks::Sampled(every) => (SAMPLED, every.get() as usize),
        CallStacks::AtLeast(bytes) => (AT_LEAST, bytes),
    };
    NUMBER.store(number, Ordering::Relaxed);
    KIND.store(kind, Ordering::Relaxed);
}

/// Serves an allocation of `bytes`, whose stack is taken before if it is one of those that are kept. The caller is inside pool
/// code and holds no lock.
#[inline]
pub(crate) fn with<R>(bytes: usize, serve: impl FnOnce() -> R) -> R {
    let kind = KIND.load(Ordering::Relaxed);
    if kind == NONE {
        return serve();
    }
    take(kind, bytes);
    let served = serve();
    // Nothing that is noted later is of this allocation, whoever served it.
    TAKEN.set(0);
    served
}

#[cold]
#[inline(never)]
fn take(kind: u8, bytes: usize) {
    let number = NUMBER.load(Ordering::Relaxed);
    let is_kept = match kind {
        SAMPLED => {
            let since = SINCE_SAMPLE.get() + 1;
            SINCE_SAMPLE.set(if since >= number { 0 } else { since });
            since >= number
        }
        AT_LEAST => bytes >= number,
        _ => true,
    };
    TAKEN.set(if is_kept { current() } else { 0 });
}

/// The stack of the allocation in progress on this thread, by number; 0 for none.
pub(super) fn taken() -> u32 {
    TAKEN.get()
}

/// The number of the stack as it is.
fn current() -> u32 {
    let mut buffer = [0; MAX_FRAMES];
    let taken = os::call_stack(&mut buffer);
    let stack = &buffer[..taken];
    let mut stacks = STACKS.lock();
    let stacks = stacks.get_or_insert_default();
    if let Some(&number) = stacks.known.get(stack) {
        return number;
    }
    if stacks.all.len() >= MAX_STACKS {
        return 0;
    }
    let stack: Arc<[usize]> = stack.into();
    stacks.all.push(Arc::clone(&stack));
    let number = stacks.all.len() as u32;
    stacks.known.insert(stack, number);
    number
}

/// The functions of a stack, the innermost first, without the allocator's and what runs before a program's own. The caller is
/// inside pool code and holds no lock.
pub(crate) fn frames(number: u32) -> Vec<Frame> {
    let stack = {
        let stacks = STACKS.lock();
        let found = stacks.as_ref().and_then(|stacks| stacks.all.get((number as usize).checked_sub(1)?));
        let Some(stack) = found else { return Vec::new() };
        Arc::clone(stack)
    };
    let mut frames: Vec<Frame> = Vec::new();
    let mut names = NAMES.lock();
    let names = names.get_or_insert_default();
    for &addr in &*stack {
        let of = || os::functions_at(addr).into();
        frames.extend(names.entry(addr).or_insert_with(of).iter().cloned());
    }
    without_surroundings(frames)
}

/// Functions between a program's allocation and this crate's own, by how their names begin.
const ALLOCATORS: [&str; 12] = [
    "mempool_pools::",
    "mempool_arena::",
    "backtrace::",
    "alloc::alloc::",
    "alloc::raw_vec::",
    "__rust_alloc",
    "__rust_realloc",
    "__rustc::__rust_alloc",
    "__rustc::__rust_realloc",
    "core::alloc::",
    "cuMem",
    "std::alloc::",
];

/// Functions that call a program's or a thread's own, by how their names begin.
const STARTERS: [&str; 12] = [
    "std::rt::",
    "std::sys::",
    "std::thread::",
    "std::panicking::",
    "std::panic::",
    "core::ops::function::FnOnce::call_once",
    "core::panic::",
    "__libc_start",
    "_start",
    "start_thread",
    "clone",
    "__rust_try",
];

/// Names of methods begin with the type: `<alloc::raw_vec::RawVec<T> as ...>`.
fn begins_with_one_of(name: &str, starts: &[&str]) -> bool {
    let bare = name.trim_start_matches(['<', '&', '*']);
    starts.iter().any(|start| bare.starts_with(start))
}

/// Leaves out what allocates, and what runs before a program's own functions.
fn without_surroundings(mut frames: Vec<Frame>) -> Vec<Frame> {
    let is_ours = |frame: &Frame| begins_with_one_of(&frame.name, &ALLOCATORS);
    let own = frames.iter().take_while(|frame| is_ours(frame)).count();
    let started = |frame: &Frame| {
        // `main` as C knows it.
        begins_with_one_of(&frame.name, &STARTERS) || (frame.name == "main" && frame.filename.is_empty())
    };
    let around = frames[own..].iter().rev().take_while(|frame| started(frame)).count();
    frames.truncate(frames.len() - around);
    frames.drain(..own);
    frames
}

/// The locks, for the fork handlers: they are taken in this order and under any other.
pub(crate) fn lock_for_fork() -> &'static Lock<Option<Stacks>> {
    &STACKS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        let frame = |name: &&str| Frame { name: (*name).to_owned(), filename: String::new(), line: 0 };
        let frames = without_surroundings(names.iter().map(frame).collect());
        frames.into_iter().map(|frame| frame.name).collect()
    }

    #[test]
    fn what_allocates_and_what_starts_programs_is_left_out() {
        let kept = names(&[
            "mempool_pools::history::stacks::current",
            "<mempool_pools::allocator::PoolAllocator as core::alloc::global::GlobalAlloc>::alloc",
            "__rustc::__rust_alloc",
            "alloc::alloc::alloc",
            "<alloc::raw_vec::RawVec<T>>::with_capacity",
            "model::forward",
            // A scope is part of what was called.
            "mempool_pools::pool::MemPool::with",
            "model::main",
            "core::ops::function::FnOnce::call_once",
            "std::rt::lang_start",
            "main",
            "__libc_start_main",
        ]);
        assert_eq!(kept, ["model::forward", "mempool_pools::pool::MemPool::with", "model::main"]);
        assert!(names(&["mempool_pools::a", "std::rt::lang_start"]).is_empty());
    }

    #[test]
    fn each_stack_has_one_number_and_names_of_its_own_functions() {
        fn here() -> u32 {
            current()
        }
        let twice: Vec<u32> = (0..2).map(|_| here()).collect();
        assert_eq!(twice[0], twice[1]);
        assert_ne!(here(), twice[0], "called from elsewhere");
        assert_eq!(frames(0), Vec::new());
        let frames = frames(twice[0]);
        assert!(!frames.is_empty());
        assert!(!begins_with_one_of(&frames[0].name, &ALLOCATORS), "{frames:?}");
        assert!(!begins_with_one_of(&frames[frames.len() - 1].name, &STARTERS), "{frames:?}");
    }
}
