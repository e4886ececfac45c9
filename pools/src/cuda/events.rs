//! Events that serve again: cudarc makes two for each slice and destroys them with it, and in the
//! driver either call takes a lock that all threads share.
//!
//! A destroyed event waits in a list of the thread for the next one that is created. Such an
//! event is not quite a new one: until it is recorded it stands for the work that it was last
//! recorded behind. Waiting for it then waits for work that was queued before, and a query may
//! say "not yet" where a new event says "done". That is why lists are per thread: the work is
//! the thread's own earlier work, mostly in the same stream, which nobody waits for in vain. In a
//! capture it would be an error, so while anything is captured events are made anew.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::cuda::hooks::destroy_event;
use crate::cuda::platform;
use crate::device::PoolDevice;

/// `CU_EVENT_DISABLE_TIMING`: the flags of the events that serve again.
pub(crate) const DISABLE_TIMING: u32 = 2;

/// Events that a thread keeps.
const LIST_LEN: usize = 128;

/// Which events may serve again: their handles, with the device's number in the high bits, each in
/// the place that its handle decides. Where two want one place, one of them is made anew each time.
static KNOWN: [AtomicU64; 1 << 14] = [const { AtomicU64::new(0) }; 1 << 14];

#[inline]
fn place(event: usize) -> &'static AtomicU64 {
    // Handles are addresses of objects of at least 64 bytes.
    let mixed = (event as u64 >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    &KNOWN[(mixed >> 50) as usize]
}

const HANDLE_BITS: u32 = 48;

#[inline]
fn entry(event: usize, device: u16) -> Option<u64> {
    (event as u64 >> HANDLE_BITS == 0).then_some(event as u64 | u64::from(device) << HANDLE_BITS)
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
        while let Some((event, _)) = pop(|_| true) {
            destroy_event(event);
        }
    }
}

/// Takes the last event from the thread's list if `fits` holds for it.
#[inline]
fn pop(fits: impl FnOnce(u16) -> bool) -> Option<(usize, u16)> {
    LIST.with(|list| {
        let at = list.len.get().checked_sub(1)?;
        let entry = list.events[at].get();
        let device = (entry >> HANDLE_BITS) as u16;
        if !fits(device) {
            return None;
        }
        list.len.set(at);
        Some(((entry & ((1 << HANDLE_BITS) - 1)) as usize, device))
    })
}

/// The device whose context is current, by a number of 16 bits.
#[inline]
fn current_device() -> Option<u16> {
    let device: PoolDevice = platform()?.current_device()?;
    u16::try_from(device.state.id.0).ok()
}

/// An event that served before, for a request with these flags.
#[inline]
pub(crate) fn reuse(flags: u32) -> Option<usize> {
    if flags != DISABLE_TIMING || LIST.with(|list| list.len.get()) == 0 || platform()?.is_capturing() {
        return None;
    }
    let device = current_device()?;
    pop(|other| other == device).map(|(event, _)| event)
}

/// Notes an event that the driver made.
pub(crate) fn created(event: usize, flags: u32) {
    let known = (flags == DISABLE_TIMING).then(current_device).flatten();
    let entry = known.and_then(|device| entry(event, device));
    // A handle that is reused for another kind of event must not be taken for one of these.
    place(event).store(entry.unwrap_or(0), Ordering::Relaxed);
}

/// Keeps an event that its owner destroys; `false` when the driver has to destroy it.
#[inline]
pub(crate) fn keep(event: usize) -> bool {
    let entry = place(event).load(Ordering::Relaxed);
    if entry == 0 || (entry & ((1 << HANDLE_BITS) - 1)) as usize != event {
        return false;
    }
    let kept = LIST.with(|list| {
        let len = list.len.get();
        if len == LIST_LEN {
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
