//! The global allocator: where every request of the program enters.
//!
//! A request from the threshold upwards goes to the pool of the thread's innermost scope, else
//! to the default pool; a smaller one, or one made by pool code itself, to the inner
//! allocator. Which of the two a pointer belongs to is told by its address.
#![allow(unsafe_code)] // listed in ARCHITECTURE.md

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr;

use mempool_arena::{AddressRange, Request};

use crate::buffer::BufferPlace;
use crate::error::PoolError;
use crate::slot::{Outcome, Slot};
use crate::steering;
use crate::step::{HOST_GRANULE_BYTES, StepNumber};
use crate::thread_state::{HostScope, Inside, host, host_of_user_code, is_steering, set_host, set_steering};
use crate::{history, region, registry};

/// Requests of fewer bytes go to the inner allocator unless another threshold is set. See
/// `benches/README.md` for the measurement behind it.
pub const DEFAULT_THRESHOLD_BYTES: usize = 16 << 10;

/// The allocator to declare in a program that uses host pools.
///
/// ```
/// use mempool_pools::PoolAllocator;
///
/// #[global_allocator]
/// static ALLOC: PoolAllocator = PoolAllocator::new();
/// ```
///
/// Only a program declares it, never a library. Small requests go to `Inner`, by default the
/// system's allocator; [`over`](Self::over) takes another one.
#[derive(Debug)]
pub struct PoolAllocator<Inner = System> {
    inner: Inner,
    threshold_bytes: usize,
}

impl PoolAllocator<System> {
    /// Pools over the system's allocator.
    #[must_use]
    pub const fn new() -> Self {
        Self::over(System)
    }
}

impl Default for PoolAllocator<System> {
    fn default() -> Self {
        Self::new()
    }
}

impl<Inner> PoolAllocator<Inner> {
    /// Pools over `inner`.
    #[must_use]
    pub const fn over(inner: Inner) -> Self {
        Self { inner, threshold_bytes: DEFAULT_THRESHOLD_BYTES }
    }

    /// Requests of at least `bytes` go to pools; 0 sends everything there.
    #[must_use]
    pub const fn threshold_bytes(mut self, bytes: usize) -> Self {
        self.threshold_bytes = bytes;
        self
    }
}

/// Where a request of `size` bytes that reached the threshold is served. The caller is inside.
#[inline]
fn target(size: usize) -> Option<(&'static Slot, Option<StepNumber>)> {
    match host() {
        HostScope { slot: Some(slot), step } if size >= slot.min_bytes() => Some((slot, step)),
        _ => registry::default_slot().map(|slot| (slot, None)),
    }
}

/// Runs `f` with the slot that serves a request of this size, with the request and with the step that it is
/// one of, unless pool code itself makes it.
#[inline]
fn at_target<R>(layout: Layout, f: impl FnOnce(&Slot, Request, Option<StepNumber>) -> R) -> Option<R> {
    let stay = Inside::enter()?;
    let request = Request::new(layout.size()).aligned_to(layout.align());
    let result = history::with_stack(layout.size(), || {
        target(layout.size()).map(|(slot, step)| f(slot, request, step))
    });
    stay.leave();
    result
}

/// Counts what a pool had no memory for, once the inner allocator has served it.
fn overflowed(layout: Layout, block: *mut u8) -> *mut u8 {
    if !block.is_null()
        && let Some(stay) = Inside::enter()
    {
        if let Some((slot, _)) = target(layout.size()) {
            slot.count_overflow(layout.size());
        }
        stay.leave();
    }
    block
}

/// The pool that a pointer belongs to.
#[inline]
fn owner(pointer: *mut u8) -> Option<&'static Slot> {
    registry::slot(region::HOST.owner(pointer.addr())?)
}

/// Runs `f` on a slot, with its own allocations going to the inner allocator.
#[inline]
fn on_slot<R>(slot: &Slot, f: impl FnOnce(&Slot) -> R) -> R {
    // Pool code never frees pool blocks, so the thread is not inside; nested entry is right
    // either way.
    let stay = Inside::enter_nested();
    let result = f(slot);
    stay.leave();
    result
}

#[inline]
fn pointer(addr: usize) -> *mut u8 {
    ptr::with_exposed_provenance_mut(addr)
}

impl<Inner: GlobalAlloc> PoolAllocator<Inner> {
    /// Counts a request that its size keeps out of the pools.
    #[inline]
    fn bypass(&self, layout: Layout) {
        if let Some(slot) = host_of_user_code() {
            slot.count_bypassed(layout.size());
        }
    }

    /// As `alloc`, where the block may be a buffer's.
    ///
    /// # Safety
    /// As `alloc`.
    #[cold]
    unsafe fn alloc_steering(&self, layout: Layout) -> *mut u8 {
        if let Some(addr) = buffer_for(layout) {
            return pointer(addr);
        }
        set_steering(false);
        // SAFETY: the caller's contract, handed on.
        let block = unsafe { self.alloc(layout) };
        set_steering(true);
        steering::note(layout.size(), block.addr());
        block
    }

    /// As `alloc_zeroed`, where the block may be a buffer's.
    ///
    /// # Safety
    /// As `alloc_zeroed`.
    #[cold]
    unsafe fn alloc_zeroed_steering(&self, layout: Layout) -> *mut u8 {
        if let Some(addr) = buffer_for(layout) {
            // SAFETY: the buffer is as long as the layout says, and nobody else's.
            unsafe { pointer(addr).write_bytes(0, layout.size()) };
            return pointer(addr);
        }
        set_steering(false);
        // SAFETY: the caller's contract, handed on.
        let block = unsafe { self.alloc_zeroed(layout) };
        set_steering(true);
        steering::note(layout.size(), block.addr());
        block
    }
}

/// The buffer that this allocation is meant for.
fn buffer_for(layout: Layout) -> Option<usize> {
    let here = |place: &BufferPlace| {
        matches!(place, BufferPlace::Host { .. }) && layout.align() <= HOST_GRANULE_BYTES
    };
    steering::buffer_for(layout.size(), here, |place| {
        let BufferPlace::Host { slot, pool_id, spot } = *place else { return None };
        history::with_stack(layout.size(), || slot.take_buffer(pool_id, spot, layout.size()))
    })
}

// SAFETY: blocks are disjoint, at least as large and as aligned as asked for, and valid until
// they are freed (the placement's invariants, tested by property); whether a pointer is ours is
// decided by an address range that nobody else allocates from; no method unwinds, because a
// panic inside pool code ends the process.
unsafe impl<Inner: GlobalAlloc> GlobalAlloc for PoolAllocator<Inner> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_steering() {
            // SAFETY: the caller's contract, handed on.
            return unsafe { self.alloc_steering(layout) };
        }
        if layout.size() < self.threshold_bytes {
            self.bypass(layout);
            // SAFETY: the caller's contract, handed on.
            return unsafe { self.inner.alloc(layout) };
        }
        match at_target(layout, Slot::allocate) {
            Some(Outcome::Placed(addr)) => pointer(addr),
            Some(Outcome::Refused) => ptr::null_mut(),
            // SAFETY: the caller's contract, handed on.
            Some(Outcome::Overflow) | None => overflowed(layout, unsafe { self.inner.alloc(layout) }),
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_steering() {
            // SAFETY: the caller's contract, handed on.
            return unsafe { self.alloc_zeroed_steering(layout) };
        }
        if layout.size() < self.threshold_bytes {
            self.bypass(layout);
            // SAFETY: the caller's contract, handed on.
            return unsafe { self.inner.alloc_zeroed(layout) };
        }
        let (addr, clean) = match at_target(layout, Slot::allocate_zeroed) {
            Some((Outcome::Placed(addr), clean)) => (addr, clean),
            Some((Outcome::Refused, _)) => return ptr::null_mut(),
            Some((Outcome::Overflow, _)) | None => {
                // SAFETY: the caller's contract, handed on.
                return overflowed(layout, unsafe { self.inner.alloc_zeroed(layout) });
            }
        };
        // Pages nobody has used yet are zero; touching them would cost a page fault each.
        for dirty in AddressRange::new(addr, layout.size()).without(&clean) {
            // SAFETY: `dirty` lies in the block that was just placed and that nobody else knows.
            unsafe { pointer(dirty.start).write_bytes(0, dirty.len) };
        }
        pointer(addr)
    }

    #[inline]
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        match owner(pointer) {
            Some(slot) => on_slot(slot, |slot| slot.free(pointer.addr())),
            // SAFETY: the caller's contract, handed on: what no pool owns came from `inner`.
            None => unsafe { self.inner.dealloc(pointer, layout) },
        }
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller guarantees that `new_size`, rounded up to the alignment, does not
        // overflow `isize`.
        let new_layout = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        let new = match owner(old) {
            None if new_size < self.threshold_bytes || layout.size() >= self.threshold_bytes => {
                // Small, or a large block that overflowed before: it stays with `inner`.
                if new_size > layout.size() {
                    self.bypass(new_layout);
                }
                // SAFETY: the caller's contract, handed on: `old` came from `inner`.
                return unsafe { self.inner.realloc(old, layout, new_size) };
            }
            // SAFETY: `new_layout` has a size that is not zero, as the caller guarantees.
            None => unsafe { self.alloc(new_layout) },
            Some(slot) => {
                if on_slot(slot, |slot| history::with_stack(new_size, || slot.resize(old.addr(), new_size))) {
                    return old;
                }
                let request = Request::new(new_size).aligned_to(layout.align());
                let allocate = |slot: &Slot| history::with_stack(new_size, || slot.allocate(request, None));
                match on_slot(slot, allocate) {
                    Outcome::Placed(addr) => pointer(addr),
                    Outcome::Refused => ptr::null_mut(),
                    Outcome::Overflow => {
                        // SAFETY: `new_layout` has a size that is not zero, as the caller guarantees.
                        let block = unsafe { self.inner.alloc(new_layout) };
                        if !block.is_null() {
                            slot.count_overflow(new_size);
                        }
                        block
                    }
                }
            }
        };
        if !new.is_null() {
            // SAFETY: both blocks hold at least the smaller of the two sizes and are disjoint,
            // since both are live.
            unsafe { ptr::copy_nonoverlapping(old, new, layout.size().min(new_size)) };
            // SAFETY: `old` is live with `layout`, as the caller guarantees.
            unsafe { self.dealloc(old, layout) };
        }
        new
    }
}

/// A slot without a pool, which only counts.
static PROBE: Slot = Slot::counting();

/// Whether the program's global allocator is a [`PoolAllocator`]: an allocation is made while
/// the scope is the probe, and the allocator counts it there.
fn is_linked() -> bool {
    let before = PROBE.bypassed().0;
    let outer = set_host(HostScope { slot: Some(&PROBE), step: None });
    // The optimiser may remove an allocation whose address nobody sees.
    drop(std::hint::black_box(Box::new([0_u8; 64])));
    set_host(outer);
    PROBE.bypassed().0 != before
}

/// An error that says what to do unless the program's allocator is the pools' one.
pub(crate) fn require_linked(crate_path: &'static str) -> Result<(), PoolError> {
    if is_linked() { Ok(()) } else { Err(PoolError::AllocatorNotLinked { path: crate_path }) }
}
