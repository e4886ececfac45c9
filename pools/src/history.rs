//! What happened to memory lately, and who has it now.
//!
//! A history is told of changes as recordings are: under the lock of the slot or arena that made them, after one relaxed
//! load that says whether anybody listens. It keeps the last entries in a ring, and for each live block who allocated it:
//! under which [label](label), on which thread, in which step. [Snapshots](crate::Snapshot) say so for each block, and
//! carry the entries.

mod label;
mod log;
mod observed;
mod stacks;

use std::sync::atomic::{AtomicBool, Ordering};

use mempool_arena::LiveBlock;

use crate::device::{DeviceState, Inner as Platform};
use crate::error::PoolError;
use crate::lock::Lock;
use crate::recording::{self, Change, Listener, Source};
use crate::registry;
use crate::slot::Slot;
use crate::thread_state::inside;

pub use self::label::{LabelGuard, label};
pub(crate) use self::label::{lock_for_fork as lock_labels_for_fork, name_of as label_name, thread_name};
pub(crate) use self::log::{Entry, Kind, Log, Owned};
pub(crate) use self::observed::{Mapping, Observed};
pub use self::stacks::CallStacks;
pub(crate) use self::stacks::{
    frames as stack_frames, lock_for_fork as lock_stacks_for_fork, lock_names_for_fork, with as with_stack,
};

/// How much a history keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HistoryMode {
    /// Who has what: for each live block where, when and by whom it was allocated.
    State,
    /// That, and what happened lately.
    #[default]
    All,
}

/// What a history keeps: by default the last 100,000 things that happened, without call stacks.
///
/// ```
/// use mempool_pools::{CallStacks, HistoryOptions};
///
/// let options = HistoryOptions::new().max_entries(10_000).call_stacks(CallStacks::AtLeast(1 << 20));
/// # drop(options);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HistoryOptions {
    mode: HistoryMode,
    max_entries: usize,
    call_stacks: CallStacks,
}

/// An entry takes less than 100 bytes.
const DEFAULT_MAX_ENTRIES: usize = 100_000;

impl Default for HistoryOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl HistoryOptions {
    /// The default ones.
    #[must_use]
    pub const fn new() -> Self {
        Self { mode: HistoryMode::All, max_entries: DEFAULT_MAX_ENTRIES, call_stacks: CallStacks::None }
    }

    /// Chooses how much is kept.
    #[must_use]
    pub const fn mode(mut self, mode: HistoryMode) -> Self {
        self.mode = mode;
        self
    }

    /// Chooses how many entries are kept of what happened; the oldest go first, and are counted. 100,000 unless this says
    /// otherwise, of less than 100 bytes each. With [`HistoryMode::State`] there are none.
    #[must_use]
    pub const fn max_entries(mut self, max_entries: usize) -> Self {
        self.max_entries = max_entries;
        self
    }

    /// Chooses of which allocations the call stack is kept; of none unless this says so. Functions are named when a snapshot is
    /// taken, by the debug information that the program has: with Cargo's release profile `debug = "line-tables-only"`
    /// gives files and lines.
    #[must_use]
    pub const fn call_stacks(mut self, call_stacks: CallStacks) -> Self {
        self.call_stacks = call_stacks;
        self
    }
}

static HISTORY: Lock<Option<Log>> = Lock::new(None);
/// There is one. Changed under its lock.
static IS_KEPT: AtomicBool = AtomicBool::new(false);

/// Begins to keep a history of all pools of the process, those of devices and those made later included. One that is kept
/// already ends. Blocks that are live already are known without who allocated them.
///
/// While a history is kept, each allocation and each free takes one lock more. Without one each looks at a flag or two.
///
/// ```
/// use mempool_pools::{HistoryOptions, MemPool, PoolAllocator, label, record_history, stop_history};
///
/// #[global_allocator]
/// static ALLOC: PoolAllocator = PoolAllocator::new();
///
/// # fn main() -> Result<(), mempool_pools::PoolError> {
/// record_history(HistoryOptions::default())?;
/// let pool = MemPool::new()?;
/// let kept = pool.with(|| {
///     let _label = label("encoder");
///     let _label = label("layer 3");
///     vec![1_u8; 1 << 20]
/// });
/// let snapshot = pool.snapshot();
/// let owner = snapshot.live_blocks()[0].owner.as_ref().unwrap();
/// assert_eq!(owner.label, "encoder/layer 3");
/// stop_history();
/// # drop(kept);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`PoolError::Option`] for more entries than can be counted in 32 bits.
pub fn record_history(options: HistoryOptions) -> Result<(), PoolError> {
    if u32::try_from(options.max_entries).is_err() {
        let rule = "at most 4294967295 can be kept";
        return Err(PoolError::Option { option: "max_entries", value: options.max_entries, rule });
    }
    inside(|| {
        {
            let mut history = HISTORY.lock();
            let max_entries = if options.mode == HistoryMode::All { options.max_entries } else { 0 };
            *history = Some(Log::new(max_entries));
            stacks::choose(options.call_stacks);
            IS_KEPT.store(true, Ordering::Relaxed);
        }
        recording::count_listeners();
        registry::for_each_slot(|slot: &'static Slot| slot.list_live(Listener::History));
        registry::platforms()
            .flat_map(Platform::devices)
            .for_each(|device: &'static DeviceState| device.list_live(Listener::History));
    });
    Ok(())
}

/// Ends the history, if one is kept, and forgets it.
pub fn stop_history() {
    inside(|| {
        let ended = {
            let mut history = HISTORY.lock();
            IS_KEPT.store(false, Ordering::Relaxed);
            stacks::choose(CallStacks::None);
            history.take()
        };
        recording::count_listeners();
        drop(ended);
    });
}

/// Whether a history is kept.
pub(crate) fn is_kept() -> bool {
    IS_KEPT.load(Ordering::Relaxed)
}

/// Notes what became of a block. The caller is inside pool code and holds the lock of the block's slot or arena.
pub(crate) fn note(source: Source, change: Change) {
    if is_kept()
        && let Some(log) = HISTORY.lock().as_mut()
    {
        log.note(source, change);
    }
}

/// Notes that memory was mapped or unmapped. The caller is inside pool code and holds the lock of its slot or arena.
fn note_mapping(source: Source, mapping: Mapping) {
    if is_kept()
        && let Some(log) = HISTORY.lock().as_mut()
    {
        log.note_mapping(source, mapping);
    }
}

/// Notes blocks that were live before. As [`note`].
pub(crate) fn list(source: Source, live: Vec<LiveBlock>) {
    if let Some(log) = HISTORY.lock().as_mut() {
        live.into_iter().for_each(|block| log.list(source, block));
    }
}

/// Notes that a request found no memory. The caller is inside pool code.
pub(crate) fn note_oom(source: Source, size_bytes: usize, free_bytes: usize) {
    if is_kept()
        && let Some(log) = HISTORY.lock().as_mut()
    {
        log.note_oom(source, size_bytes, free_bytes);
    }
}

/// Notes that a step ends. The caller is inside pool code.
pub(crate) fn mark_step() {
    if let Some(log) = HISTORY.lock().as_mut() {
        log.end_step();
    }
}

/// The history as it is, if one is kept. The caller is inside pool code.
pub(crate) fn view() -> Option<Log> {
    HISTORY.lock().clone()
}

/// The history's lock, for the fork handlers.
pub(crate) fn lock_for_fork() -> &'static Lock<Option<Log>> {
    &HISTORY
}
