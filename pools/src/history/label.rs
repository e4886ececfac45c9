//! Labels: what a thread is doing, in words.

use std::cell::Cell;
use std::collections::HashMap;
use std::marker::PhantomData;

use crate::lock::Lock;
use crate::os;
use crate::thread_state::inside;

thread_local! {
    // Constants without destructors, as everything that allocations look at.
    static LABEL: Cell<u32> = const { Cell::new(0) };
    static THREAD: Cell<u32> = const { Cell::new(0) };
}

/// Labels and threads that were seen, by number; 0 is none.
pub(crate) struct Labels {
    /// Labels by what they are within.
    known: HashMap<(u32, String), u32>,
    /// Whole names, as `encoder/layer 3`.
    names: Vec<String>,
    threads: Vec<String>,
}

static LABELS: Lock<Option<Labels>> = Lock::new(None);

fn with_labels<R>(f: impl FnOnce(&mut Labels) -> R) -> R {
    let none = || vec![String::new()];
    f(LABELS.lock().get_or_insert_with(|| Labels { known: HashMap::new(), names: none(), threads: none() }))
}

impl Labels {
    fn number_of(&mut self, outer: u32, name: &str) -> u32 {
        let key = (outer, name.to_owned());
        if let Some(&id) = self.known.get(&key) {
            return id;
        }
        let before = &self.names[outer as usize];
        let whole = if before.is_empty() { name.to_owned() } else { format!("{before}/{name}") };
        let id = self.names.len() as u32;
        self.names.push(whole);
        self.known.insert(key, id);
        id
    }
}

/// Ends a [label](label()) when it is dropped.
#[derive(Debug)]
#[must_use = "the label ends when this is dropped"]
pub struct LabelGuard {
    before: u32,
    /// A label is its thread's.
    _thread: PhantomData<*const ()>,
}

/// Names what this thread does until the guard is dropped: blocks that it allocates have this label in histories and
/// snapshots. Labels nest: `encoder/layer 3`. They can be set whether or not a [history](crate::record_history) is kept.
///
/// Guards are to be dropped in reverse order, as locals are. Each name is kept for as long as the process lives, so there should
/// be some hundreds of them: steps are numbered without being named.
pub fn label(name: &str) -> LabelGuard {
    let before = LABEL.get();
    let id = inside(|| with_labels(|labels| labels.number_of(before, name)));
    LABEL.set(id);
    LabelGuard { before, _thread: PhantomData }
}

impl Drop for LabelGuard {
    fn drop(&mut self) {
        LABEL.set(self.before);
    }
}

/// The label of this thread, by its number; 0 for none.
pub(super) fn current() -> u32 {
    LABEL.get()
}

/// The whole name of a label. The caller is inside pool code.
pub(crate) fn name_of(id: u32) -> String {
    if id == 0 { String::new() } else { with_labels(|labels| labels.names[id as usize].clone()) }
}

/// This thread by a number that no other thread gets. The caller is inside pool code.
pub(super) fn thread() -> u32 {
    if THREAD.get() == 0 {
        with_labels(|labels| {
            THREAD.set(labels.threads.len() as u32);
            labels.threads.push(os::thread_name());
        });
    }
    THREAD.get()
}

/// The name that a thread had when it was first seen; empty for one without. The caller is inside pool code.
pub(crate) fn thread_name(number: u32) -> String {
    with_labels(|labels| labels.threads[number as usize].clone())
}

/// The labels' lock, for the fork handlers.
pub(crate) fn lock_for_fork() -> &'static Lock<Option<Labels>> {
    &LABELS
}
