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
use crate::os::{self, Caller};
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

/// Places of stacks that are remembered, in all and at one depth: each is looked at when one is looked for there.
const MAX_SEEN: usize = 1 << 16;
const MAX_SEEN_AT_DEPTH: usize = 64;

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
    /// Where stacks stood in memory, by the address of the innermost function's frame.
    seen: HashMap<usize, Vec<Seen>, FxBuildHasher>,
    seen_count: usize,
}

/// A stack with its place in memory.
struct Seen {
    callers: Box<[Caller]>,
    number: u32,
}

static STACKS: Lock<Option<Stacks>> = Lock::new(None);
/// What stands at addresses: reading the program's debug information takes its time.
static NAMES: Lock<Option<Names>> = Lock::new(None);
/// Functions by their addresses.
pub(crate) type Names = HashMap<usize, Arc<[Frame]>, FxBuildHasher>;

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
///
/// Following a stack takes a third of a microsecond for each function, most of it spent reading tables. But a program that
/// repeats itself comes here by the same calls with the same depth of the stack. Then each return address stands where it
/// stood: as long as all do, the stack is one that is known.
#[inline(never)]
fn current() -> u32 {
    let mut buffer = [Caller::default(); MAX_FRAMES];
    let depth = buffer.as_ptr().addr();
    if let Some(number) = STACKS.lock().as_mut().and_then(|stacks| stacks.seen_at(depth)) {
        return number;
    }
    let taken = os::call_stack(&mut buffer);
    // What was called from here ends with the stack's own reading. Where slots are not known all is kept.
    let callers = &buffer[..taken];
    let above = callers.iter().position(|caller| caller.slot > depth).unwrap_or(0);
    let callers = &callers[above..];
    STACKS.lock().get_or_insert_default().number_of(depth, callers)
}

impl Stacks {
    /// The stack that was seen at this depth and still stands there.
    fn seen_at(&mut self, depth: usize) -> Option<u32> {
        let seen = self.seen.get_mut(&depth)?;
        let at = seen.iter().position(|one| os::are_there(&one.callers))?;
        let number = seen[at].number;
        // What comes often comes to the front.
        seen.swap(at, at / 2);
        Some(number)
    }

    fn number_of(&mut self, depth: usize, callers: &[Caller]) -> u32 {
        let stack: Arc<[usize]> = callers.iter().map(|caller| caller.return_address).collect();
        let number = match self.known.get(&stack) {
            Some(&number) => number,
            None if self.all.len() >= MAX_STACKS => return 0,
            None => {
                self.all.push(Arc::clone(&stack));
                let number = self.all.len() as u32;
                self.known.insert(stack, number);
                number
            }
        };
        if self.seen_count < MAX_SEEN && os::are_there(callers) {
            let seen = self.seen.entry(depth).or_default();
            if seen.len() < MAX_SEEN_AT_DEPTH {
                seen.push(Seen { callers: callers.into(), number });
                self.seen_count += 1;
            }
        }
        number
    }
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

/// Functions between a program's allocation and this crate's own, by how their names begin. Where debug information has lines
/// only, functions that the compiler put into others have no more than their last name, and files tell.
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
const ALLOCATORS_FILES: [&str; 4] =
    ["library/alloc/src/alloc.rs", "library/alloc/src/raw_vec", "library/core/src/alloc/", "/backtrace/src/"];

/// Functions that call a program's or a thread's own, by how their names begin, and their files.
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
const STARTERS_FILES: [&str; 6] = [
    "library/std/src/rt.rs",
    "library/std/src/sys/",
    "library/std/src/thread/",
    "library/std/src/panic",
    "library/core/src/ops/function.rs",
    "library/core/src/panic/",
];

/// Names of methods begin with the type: `<alloc::raw_vec::RawVec<T> as ...>`.
fn begins_with_one_of(name: &str, starts: &[&str]) -> bool {
    let bare = name.trim_start_matches(['<', '&', '*']);
    starts.iter().any(|start| bare.starts_with(start))
}

/// Whether a function is the allocator's, or between it and the program.
fn allocates(frame: &Frame) -> bool {
    begins_with_one_of(&frame.name, &ALLOCATORS)
        || ALLOCATORS_FILES.iter().any(|file| frame.filename.contains(file))
        || frame.filename.starts_with(concat!(env!("CARGO_MANIFEST_DIR"), "/src/"))
}

/// Whether a function calls a program's or a thread's own.
fn starts(frame: &Frame) -> bool {
    begins_with_one_of(&frame.name, &STARTERS)
        || STARTERS_FILES.iter().any(|file| frame.filename.contains(file))
        // `main` as C knows it.
        || (frame.name == "main" && frame.filename.is_empty())
}

/// Leaves out what allocates, and what runs before a program's own functions.
fn without_surroundings(mut frames: Vec<Frame>) -> Vec<Frame> {
    let own = frames.iter().take_while(|frame| allocates(frame)).count();
    let around = frames[own..].iter().rev().take_while(|frame| starts(frame)).count();
    frames.truncate(frames.len() - around);
    frames.drain(..own);
    frames
}

/// The lock of stacks, for the fork handlers.
pub(crate) fn lock_for_fork() -> &'static Lock<Option<Stacks>> {
    &STACKS
}

/// The lock of what stands at addresses, for the fork handlers. A fork waits while functions are being named.
pub(crate) fn lock_names_for_fork() -> &'static Lock<Option<Names>> {
    &NAMES
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
    fn files_tell_where_names_are_short() {
        let frame = |name: &str, filename: &str| Frame {
            name: name.to_owned(),
            filename: filename.to_owned(),
            line: 9,
        };
        let own = concat!(env!("CARGO_MANIFEST_DIR"), "/src/allocator.rs");
        let kept = without_surroundings(vec![
            frame("take", concat!(env!("CARGO_MANIFEST_DIR"), "/src/history/stacks.rs")),
            frame("alloc", own),
            frame("alloc", "/rustc/1/library/alloc/src/alloc.rs"),
            frame("with_capacity_in<u8>", "/rustc/1/library/alloc/src/raw_vec/mod.rs"),
            frame("forward", "/a/model/src/lib.rs"),
            frame("with<f>", concat!(env!("CARGO_MANIFEST_DIR"), "/src/pool.rs")),
            frame("main", "/a/model/src/main.rs"),
            frame("call_once<fn()>", "/rustc/1/library/core/src/ops/function.rs"),
            frame("lang_start", "/rustc/1/library/std/src/rt.rs"),
        ]);
        let kept: Vec<&str> = kept.iter().map(|frame| &*frame.name).collect();
        assert_eq!(kept, ["forward", "with<f>", "main"]);
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

    /// Calls `f` from one of two places, some calls deeper.
    #[inline(never)]
    fn from(second: bool, deeper: u32, f: fn() -> u32) -> u32 {
        let number = match (second, deeper) {
            (false, 0) => f(),
            (true, 0) => std::hint::black_box(f()),
            _ => from(second, deeper - 1, f),
        };
        std::hint::black_box(number)
    }

    #[test]
    fn stacks_at_one_depth_are_told_apart_and_known_again() {
        let numbers = |deeper: u32| -> Vec<u32> {
            [false, true, false, true].map(|second| from(second, deeper, current)).to_vec()
        };
        for deeper in [0, 1, 5, 70] {
            let found = numbers(deeper);
            assert_eq!(found[..2], found[2..], "{deeper} calls deeper");
            assert_ne!(found[0], found[1], "{deeper} calls deeper");
        }
        let (own, others) = (numbers(3), std::thread::spawn(move || numbers(3)).join().unwrap());
        assert!(others.iter().all(|number| !own.contains(number)), "a thread has a start of its own");
        if cfg!(all(target_os = "linux", target_arch = "x86_64")) {
            assert!(STACKS.lock().as_ref().unwrap().seen_count > 8, "places are remembered");
        }
    }
}
