//! Events that serve again: cudarc makes two for each slice and destroys them with it, and in the
//! driver either call takes a lock that all threads share.
//!
//! A destroyed event waits in a list of the thread for the next one that is created. Such an
//! event is not quite a new one: until it is recorded it stands for the work that it was last
//! recorded behind. Waiting for it then waits for work that was queued before, and a query may
//! say "not yet" where a new event says "done". That is why lists are per thread: the work is
//! mostly the thread's own earlier work, in the same stream, which nobody waits for in vain. In a
//! capture it would be an error, so while anything is captured events are made anew, and those that
//! lived through a capture do not serve again.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::cuda::hooks::destroy_event;
use crate::cuda::platform;

/// `CU_EVENT_DISABLE_TIMING`: the flags of the events that serve again.
pub(crate) const DISABLE_TIMING: u32 = 2;

static ENABLED: AtomicBool = AtomicBool::new(true);

/// Whether cudarc's events serve again instead of being made and destroyed for each slice. They do
/// unless this says otherwise. Those that wait to serve stay until their threads end.
pub fn set_event_reuse(enabled: bool) {
    ENABLED.store(enabled, Ordering::Relaxed);
}

/// Events that a thread keeps.
const LIST_LEN: usize = 128;

/// Which events may serve again: their handles, with the device's number and the number of captures
/// that had begun in the high bits, each in the place that its handle decides. Where two want one
/// place, one of them is made anew each time.
static KNOWN: [AtomicU64; 1 << 14] = [const { AtomicU64::new(0) }; 1 << 14];

#[inline]
fn place(event: usize) -> &'static AtomicU64 {
    // Handles are addresses of objects of at least 64 bytes.
    let mixed = (event as u64 >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    &KNOWN[(mixed >> 50) as usize]
}

const HANDLE_BITS: u32 = 48;
const HANDLE_MASK: u64 = (1 << HANDLE_BITS) - 1;

/// A device's number and, modulo 256, the captures that had begun: an event that lived through a
/// capture may have been recorded in it, and does not serve again.
#[inline]
fn tag() -> Option<u64> {
    let platform = platform()?;
    let device = u8::try_from(platform.current_device()?.state.id.0).ok()?;
    Some(u64::from(device) << 8 | (platform.capture_generation() & 0xff))
}

struct List {
    events: [Cell<u64>; LIST_LEN],
    len: Cell<usize>,
}

thread_local! {
    // Without a destructor: it works until the thread's last instruction.
    static LIST: List = const { List { events: [const { Cell::new(0) }; LIST_LEN], len: Cell::new(0) } };
    // Only to destroy what is left when the thread ends.
    static END: End = const { End { needed: Cell::new(false) } };
}

struct End {
    needed: Cell<bool>,
}

impl Drop for End {
    fn drop(&mut self) {
        while let Some(event) = pop(|_| true) {
            destroy_event(event);
        }
    }
}

/// Takes the last event from the thread's list if `fits` holds for its tag.
#[inline]
fn pop(fits: impl FnOnce(u64) -> bool) -> Option<usize> {
    LIST.with(|list| {
        let at = list.len.get().checked_sub(1)?;
        let entry = list.events[at].get();
        if !fits(entry >> HANDLE_BITS) {
            return None;
        }
        list.len.set(at);
        Some((entry & HANDLE_MASK) as usize)
    })
}

/// An event that served before, for a request with these flags.
#[inline]
pub(crate) fn reuse(flags: u32) -> Option<usize> {
    if flags != DISABLE_TIMING
        || !ENABLED.load(Ordering::Relaxed)
        || LIST.with(|list| list.len.get()) == 0
        || platform()?.is_capturing()
    {
        return None;
    }
    let tag = tag()?;
    // Those of another device, or from before a capture, stay until the thread ends or makes room.
    pop(|other| other == tag)
}

/// Notes an event that the driver made.
pub(crate) fn created(event: usize, flags: u32) {
    let tag = if flags == DISABLE_TIMING && event as u64 >> HANDLE_BITS == 0 { tag() } else { None };
    // A handle that is reused for another kind of event must not be taken for one of these.
    place(event).store(tag.map_or(0, |tag| event as u64 | tag << HANDLE_BITS), Ordering::Relaxed);
}

/// Keeps an event that its owner destroys; `false` when the driver has to destroy it.
#[inline]
pub(crate) fn keep(event: usize) -> bool {
    let entry = place(event).load(Ordering::Relaxed);
    if entry == 0 || (entry & HANDLE_MASK) as usize != event || tag() != Some(entry >> HANDLE_BITS) {
        return false;
    }
    let kept = LIST.with(|list| {
        let len = list.len.get();
        if len == LIST_LEN || !ENABLED.load(Ordering::Relaxed) {
            return false;
        }
        list.events[len].set(entry);
        list.len.set(len + 1);
        true
    });
    if kept {
        // A thread that is ending already leaves a few events behind.
        let _ = END.try_with(|end| end.needed.set(true));
    } else {
        place(event).store(0, Ordering::Relaxed);
    }
    kept
}
