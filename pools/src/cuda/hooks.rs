//! The driver's functions as this program defines them.
//!
//! Nothing here unwinds: a panic inside pool code ends the process, and an `extern "C"` function
//! that a panic would leave ends it too. Nothing recurses: pools call the driver's own functions.
#![allow(unsafe_code)] // listed in ARCHITECTURE.md

use std::cell::Cell;
use std::ffi::{c_int, c_uint};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::cuda::api::{Code, Originals};
use crate::cuda::{events, platform};
use crate::device::{Allocation, Free, Stream};
use crate::error::PoolError;

/// `CUDA_ERROR_INVALID_VALUE`.
const INVALID_VALUE: Code = 1;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: Code = 2;
/// `CUDA_ERROR_NOT_INITIALIZED`.
const NOT_INITIALIZED: Code = 3;
/// `CUDA_ERROR_NOT_PERMITTED`: what the probe gets.
const PROBED: Code = 800;

/// What arrived at the hooks since the program began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HookCounts {
    /// Allocations that the driver served.
    pub passed_allocations: u64,
    /// Frees that the driver served.
    pub passed_frees: u64,
}

static PASSED_ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static PASSED_FREES: AtomicU64 = AtomicU64::new(0);

/// Calls that the hooks handed to the driver.
#[must_use]
pub fn hook_counts() -> HookCounts {
    HookCounts {
        passed_allocations: PASSED_ALLOCATIONS.load(Ordering::Relaxed),
        passed_frees: PASSED_FREES.load(Ordering::Relaxed),
    }
}

thread_local! {
    /// The thread looks whether the hooks are linked.
    static PROBING: Cell<bool> = const { Cell::new(false) };
}

/// The driver's own functions.
#[inline]
pub(crate) fn originals() -> Option<&'static Originals> {
    static ORIGINALS: OnceLock<Option<Originals>> = OnceLock::new();
    ORIGINALS.get_or_init(Originals::load).as_ref()
}

/// An error that says what to do unless cudarc's allocations arrive here. The probe goes through
/// cudarc, and what it returns decides, so no optimiser can take it or the hook out.
pub(crate) fn require_linked() -> Result<(), PoolError> {
    static LINKED: OnceLock<bool> = OnceLock::new();
    let linked = *LINKED.get_or_init(|| {
        PROBING.with(|probing| probing.set(true));
        // SAFETY: a hook answers without allocating; without one, the driver allocates a byte in the
        // legacy stream of the current context, or refuses.
        let probe = unsafe { cudarc::driver::result::malloc_async(std::ptr::null_mut(), 1) };
        PROBING.with(|probing| probing.set(false));
        match probe {
            Err(error) => error.0 as Code == PROBED,
            Ok(pointer) => {
                // SAFETY: the driver just allocated it, and nobody else knows it.
                let _ = unsafe { cudarc::driver::result::free_async(pointer, std::ptr::null_mut()) };
                false
            }
        }
    });
    if linked { Ok(()) } else { Err(PoolError::HooksNotLinked) }
}

/// Writes the address of a block to the caller's place, or says why there is none.
///
/// # Safety
/// `pointer` is null or valid for a write.
#[inline]
unsafe fn answer(allocation: Allocation, pointer: *mut u64, pass: impl FnOnce(&Originals) -> Code) -> Code {
    match allocation {
        Allocation::Block(addr) => {
            // SAFETY: the caller's contract; null was passed through before.
            unsafe { pointer.write(addr as u64) };
            0
        }
        Allocation::OutOfMemory => OUT_OF_MEMORY,
        Allocation::PassThrough => {
            PASSED_ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
            originals().map_or(NOT_INITIALIZED, pass)
        }
    }
}

#[inline]
fn answer_free(freed: Free, pass: impl FnOnce(&Originals) -> Code) -> Code {
    match freed {
        Free::Done => 0,
        Free::Unknown => INVALID_VALUE,
        Free::PassThrough => {
            PASSED_FREES.fetch_add(1, Ordering::Relaxed);
            originals().map_or(NOT_INITIALIZED, pass)
        }
    }
}

/// `CUresult cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)`.
///
/// # Safety
/// As the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocAsync(pointer: *mut u64, bytes: usize, stream: usize) -> Code {
    if PROBING.with(Cell::get) {
        return PROBED;
    }
    let allocation = match platform() {
        Some(platform) if !pointer.is_null() => platform.allocate(bytes, Stream(stream)),
        _ => Allocation::PassThrough,
    };
    // SAFETY: the caller's contract, handed on.
    let pass = |driver: &Originals| unsafe { (driver.mem_alloc_async)(pointer, bytes, stream) };
    // SAFETY: the caller's contract.
    unsafe { answer(allocation, pointer, pass) }
}

/// `CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream)`.
///
/// # Safety
/// As the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFreeAsync(pointer: u64, stream: usize) -> Code {
    let freed =
        platform().map_or(Free::PassThrough, |platform| platform.free(pointer as usize, Stream(stream)));
    // SAFETY: the caller's contract, handed on: no pool owns the pointer.
    answer_free(freed, |driver| unsafe { (driver.mem_free_async)(pointer, stream) })
}

/// `CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)`.
///
/// # Safety
/// As the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(pointer: *mut u64, bytes: usize) -> Code {
    let allocation = match platform() {
        Some(platform) if !pointer.is_null() => platform.allocate_synchronous(bytes),
        _ => Allocation::PassThrough,
    };
    // SAFETY: the caller's contract, handed on.
    let pass = |driver: &Originals| unsafe { (driver.mem_alloc)(pointer, bytes) };
    // SAFETY: the caller's contract.
    unsafe { answer(allocation, pointer, pass) }
}

/// `CUresult cuMemFree_v2(CUdeviceptr dptr)`.
///
/// # Safety
/// As the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFree_v2(pointer: u64) -> Code {
    let freed = platform().map_or(Free::PassThrough, |platform| platform.free_synchronous(pointer as usize));
    // SAFETY: the caller's contract, handed on: no pool owns the pointer.
    answer_free(freed, |driver| unsafe { (driver.mem_free)(pointer) })
}

/// `CUresult cuEventCreate(CUevent *phEvent, unsigned int Flags)`.
///
/// # Safety
/// As the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(event: *mut usize, flags: c_uint) -> Code {
    if !event.is_null()
        && let Some(again) = events::reuse(flags)
    {
        // SAFETY: the caller's contract.
        unsafe { event.write(again) };
        return 0;
    }
    let Some(driver) = originals() else { return NOT_INITIALIZED };
    // SAFETY: the caller's contract, handed on.
    let code = unsafe { (driver.event_create)(event, flags) };
    if code == 0 {
        // SAFETY: the driver wrote it.
        events::created(unsafe { event.read() }, flags);
    }
    code
}

/// `CUresult cuEventDestroy_v2(CUevent hEvent)`.
///
/// # Safety
/// As the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventDestroy_v2(event: usize) -> Code {
    if events::keep(event) {
        return 0;
    }
    // SAFETY: the caller's contract, handed on.
    originals().map_or(NOT_INITIALIZED, |driver| unsafe { (driver.event_destroy)(event) })
}

/// Destroys an event that nobody has any more.
pub(crate) fn destroy_event(event: usize) {
    if let Some(driver) = originals() {
        // SAFETY: the event was handed to `cuEventDestroy_v2` and is in no list any more. A refusal
        // leaves nothing to do.
        let _ = unsafe { (driver.event_destroy)(event) };
    }
}

/// Tells pools of a stream that was created.
///
/// # Safety
/// `code` is the result of a call that wrote a stream to `stream` if it succeeded.
unsafe fn note_created(code: Code, stream: *mut usize) -> Code {
    if code == 0
        && let Some(platform) = platform()
    {
        // SAFETY: the driver wrote it.
        platform.stream_begins(Stream(unsafe { stream.read() }));
    }
    code
}

/// `CUresult cuStreamCreate(CUstream *phStream, unsigned int Flags)`.
///
/// # Safety
/// As the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(stream: *mut usize, flags: c_uint) -> Code {
    let Some(driver) = originals() else { return NOT_INITIALIZED };
    // SAFETY: the caller's contract, handed on.
    let code = unsafe { (driver.stream_create)(stream, flags) };
    // SAFETY: that call's result.
    unsafe { note_created(code, stream) }
}

/// `CUresult cuStreamCreateWithPriority(CUstream *phStream, unsigned int flags, int priority)`.
///
/// # Safety
/// As the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreateWithPriority(
    stream: *mut usize,
    flags: c_uint,
    priority: c_int,
) -> Code {
    let Some(driver) = originals() else { return NOT_INITIALIZED };
    // SAFETY: the caller's contract, handed on.
    let code = unsafe { (driver.stream_create_with_priority)(stream, flags, priority) };
    // SAFETY: that call's result.
    unsafe { note_created(code, stream) }
}

/// `CUresult cuStreamDestroy_v2(CUstream hStream)`.
///
/// # Safety
/// As the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamDestroy_v2(stream: usize) -> Code {
    if let Some(platform) = platform() {
        platform.stream_ends(Stream(stream));
    }
    // SAFETY: the caller's contract, handed on.
    originals().map_or(NOT_INITIALIZED, |driver| unsafe { (driver.stream_destroy)(stream) })
}

/// `CUresult cuStreamBeginCapture_v2(CUstream hStream, CUstreamCaptureMode mode)`.
///
/// # Safety
/// As the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamBeginCapture_v2(stream: usize, mode: c_uint) -> Code {
    let begins = platform().is_some_and(|platform| platform.capture_begins(Stream(stream)));
    // SAFETY: the caller's contract, handed on.
    let code =
        originals().map_or(NOT_INITIALIZED, |driver| unsafe { (driver.stream_begin_capture)(stream, mode) });
    if code != 0
        && begins
        && let Some(platform) = platform()
    {
        platform.capture_ends(Stream(stream));
    }
    code
}

/// `CUresult cuStreamEndCapture(CUstream hStream, CUgraph *phGraph)`.
///
/// # Safety
/// As the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamEndCapture(stream: usize, graph: *mut usize) -> Code {
    if let Some(platform) = platform() {
        platform.capture_is_ending(Stream(stream));
    }
    // SAFETY: the caller's contract, handed on.
    let code =
        originals().map_or(NOT_INITIALIZED, |driver| unsafe { (driver.stream_end_capture)(stream, graph) });
    if let Some(platform) = platform() {
        platform.capture_ends(Stream(stream));
    }
    code
}
