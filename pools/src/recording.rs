//! Traces of a running program: which recordings go on, and what they are told.
//!
//! A change to a block is told under the lock of the slot or arena that made it, so the rows of one
//! address stand in the order in which things happened. The recordings' own lock is the last that
//! anyone takes. Under it a full buffer is written to its file: that is a system call, but of a thread
//! inside pool code, whose own allocations go to the inner allocator, and which calls no driver.
//!
//! A forked child has the parent's recordings and its open files. It must not write to them: what the
//! parent has buffered would stand there twice. So in the child they count as over.

mod input;
mod output;
mod recorder;

use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use mempool_arena::LiveBlock;

use crate::device::{DeviceId, Owner};
use crate::error::PoolError;
use crate::history;
use crate::lock::Lock;
use crate::thread_state::inside;
pub(crate) use input::read_trace;
use output::Output;
use recorder::Recorder;

/// How many recordings go on, the history counted as one. Changed under the lock of `RECORDERS`.
static RUNNING: AtomicUsize = AtomicUsize::new(0);
static RECORDERS: Lock<Vec<Recorder>> = Lock::new(Vec::new());
static NEXT_ID: AtomicU64 = AtomicU64::new(0);

/// Tells recordings apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecordingId(u64);

/// What a recording covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Scope {
    /// `None` for the host.
    pub(crate) device: Option<DeviceId>,
    /// `None` for all pools there.
    pub(crate) pool_id: Option<u64>,
}

impl Scope {
    fn covers(self, source: Source) -> bool {
        self.device == source.device && self.pool_id.is_none_or(|id| id == source.pool_id)
    }
}

/// Where something happened.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source {
    /// `None` for the host.
    pub(crate) device: Option<DeviceId>,
    pub(crate) pool_id: u64,
    /// In whose order memory is used; `None` on the host.
    pub(crate) order: Option<Owner>,
}

/// What became of a block.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Change {
    /// It was handed out.
    Allocated { addr: usize, size_bytes: usize },
    /// Its owner freed it, and queued work still uses it.
    Freed { addr: usize },
    /// Nothing uses it any more, after [`Freed`](Self::Freed).
    Completed { addr: usize },
    /// Its owner freed it, and nothing uses it.
    Ended { addr: usize },
    /// It has another size where it lies.
    Resized { addr: usize, size_bytes: usize },
}

/// Whether anything is recorded. Whoever holds the lock of a slot or arena that a recording has
/// [listed](list) sees that recording here.
#[inline]
pub(crate) fn is_on() -> bool {
    RUNNING.load(Ordering::Relaxed) > 0
}

/// Who is to be told of blocks that are live already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Listener {
    /// A recording.
    Recording(RecordingId),
    /// The history.
    History,
}

impl Change {
    /// The block's address.
    pub(crate) fn addr(self) -> usize {
        match self {
            Self::Allocated { addr, .. }
            | Self::Freed { addr }
            | Self::Completed { addr }
            | Self::Ended { addr }
            | Self::Resized { addr, .. } => addr,
        }
    }
}

/// Tells the history, and the recordings that cover it, of a change. The caller is inside pool code and holds the lock
/// of the block's slot or arena.
#[cold]
pub(crate) fn note(source: Source, change: Change) {
    history::note(source, change);
    note_kept(source, change);
}

/// Tells recordings alone. A buffer is alive to them from its making to its end, whoever has it: that is the memory that a run
/// needs. The history is told of who has it.
pub(crate) fn note_kept(source: Source, change: Change) {
    let mut recorders = RECORDERS.lock();
    for recorder in recorders.iter_mut().filter(|recorder| recorder.scope().covers(source)) {
        recorder.note(source.order, change);
    }
}

/// Tells a listener of the blocks that were live when it began, if it covers them. The caller is
/// inside pool code and holds the lock of their slot or arena.
pub(crate) fn list(listener: Listener, source: Source, live: impl FnOnce() -> Vec<LiveBlock>) {
    let Listener::Recording(recording) = listener else {
        return history::list(source, live());
    };
    let mut recorders = RECORDERS.lock();
    let found = recorders.iter_mut().find(|recorder| recorder.id() == recording);
    if let Some(recorder) = found.filter(|recorder| recorder.scope().covers(source)) {
        let mut blocks = live();
        blocks.sort_unstable_by_key(|block| block.addr);
        blocks.into_iter().for_each(|block| recorder.list(source.order, block));
    }
}

/// Tells all recordings, or those of one device, that a step ends. The caller is inside pool code.
pub(crate) fn mark_step(device: Option<DeviceId>) {
    if is_on() {
        history::mark_step();
        let mut recorders = RECORDERS.lock();
        let concerned = |recorder: &&mut Recorder| device.is_none() || recorder.scope().device == device;
        recorders.iter_mut().filter(concerned).for_each(Recorder::end_step);
    }
}

/// Begins a recording into `path`. `list_live` has to [`list`] what is live there: by then everything
/// that happens is told of already. The caller is inside pool code and holds no lock.
pub(crate) fn start(
    scope: Scope,
    path: &Path,
    list_live: impl FnOnce(Listener),
) -> Result<TraceRecording, PoolError> {
    let output = Output::create(path)?;
    let id = RecordingId(NEXT_ID.fetch_add(1, Ordering::Relaxed));
    {
        let mut recorders = RECORDERS.lock();
        recorders.push(Recorder::new(id, scope, output));
        count_running(&recorders);
    }
    // Made first: a panic below ends the process anyway, but no path leaves the recording behind.
    let recording = TraceRecording { id };
    list_live(Listener::Recording(id));
    Ok(recording)
}

/// Ends a recording. The caller is inside pool code and holds no lock.
fn end(id: RecordingId) -> Option<Recorder> {
    let mut recorders = RECORDERS.lock();
    let at = recorders.iter().position(|recorder| recorder.id() == id)?;
    let recorder = recorders.swap_remove(at);
    count_running(&recorders);
    Some(recorder)
}

fn count_running(recorders: &[Recorder]) {
    let running = recorders.iter().filter(|recorder| !recorder.is_parents()).count();
    RUNNING.store(running + usize::from(history::is_kept()), Ordering::Relaxed);
}

/// Notes that the history begins or ends. The caller is inside pool code and holds no lock.
pub(crate) fn count_listeners() {
    count_running(&RECORDERS.lock());
}

/// The lock of all recordings, for the fork handlers.
pub(crate) fn lock_for_fork() -> &'static Lock<Vec<Recorder>> {
    &RECORDERS
}

/// In a forked child: ends what the parent records. Frees nothing, since the inner allocator may not
/// be ready for it yet.
pub(crate) fn leave_to_parent() {
    let mut recorders = RECORDERS.lock();
    recorders.iter_mut().for_each(Recorder::leave_to_parent);
    count_running(&recorders);
}

/// A recording that goes on until this is [finished](Self::finish) or dropped.
#[derive(Debug)]
#[must_use = "the recording ends when this is dropped"]
pub struct TraceRecording {
    id: RecordingId,
}

/// What a recording has written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct TraceSummary {
    /// Rows of the trace.
    pub events: u64,
    /// Those that are allocations, of the blocks included that were live when the recording began.
    pub allocations: u64,
    /// Steps that ended.
    pub steps: u64,
    /// Bytes of the file.
    pub bytes_written: u64,
}

impl TraceRecording {
    /// Ends the recording and writes what is left of the trace.
    ///
    /// # Errors
    /// [`PoolError::Trace`] when the trace, or a part of it before, could not be written;
    /// [`PoolError::RecordedByParent`] in a forked child.
    pub fn finish(self) -> Result<TraceSummary, PoolError> {
        let id = self.id;
        std::mem::forget(self);
        inside(|| end(id).ok_or(PoolError::RecordedByParent)?.finish())
    }
}

impl Drop for TraceRecording {
    fn drop(&mut self) {
        // Who wants to know of errors calls `finish`.
        inside(|| drop(end(self.id).map(Recorder::finish)));
    }
}
