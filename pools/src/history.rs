//! What happened to memory lately, and who has it now.
//!
//! A history is told of changes as recordings are: under the lock of the slot or arena that made them, after one relaxed
//! load that says whether anybody listens. It keeps the last entries in a ring, and for each live block who allocated it:
//! under which [label](label), on which thread, in which step. [Snapshots](crate::Snapshot) say so for each block, and
//! carry the entries.

mod label;
mod log;

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

/// What a history keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HistoryOptions {
    /// Entries that are kept of what happened; the oldest go first, and are counted. 0 keeps only who has what. 100,000 by
    /// default, of about 64 bytes each.
    pub max_entries: usize,
}

impl Default for HistoryOptions {
    fn default() -> Self {
        Self { max_entries: 100_000 }
    }
}

static HISTORY: Lock<Option<Log>> = Lock::new(None);
/// There is one. Changed under its lock.
static IS_KEPT: AtomicBool = AtomicBool::new(false);

/// Begins to keep a history of all pools of the process, those of devices and those made later included. One that is kept
/// already ends. Blocks that are live already are known without who allocated them.
///
/// While a history is kept, each allocation and each free takes one lock more. Without one they look at one flag.
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
            *history = Some(Log::new(options.max_entries));
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
