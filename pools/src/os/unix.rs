//! Linux and macOS: `mmap`, `mprotect`, `madvise`, `pthread_atfork`.
#![allow(unsafe_code)] // listed in ARCHITECTURE.md

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
use std::cell::Cell;
use std::ffi::c_void;
use std::fmt::{self, Write as _};
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};

use mempool_arena::{AddressRange, UpstreamError};

use crate::os::Caller;
use crate::snapshot::Frame;

/// Ranges that were decommitted and not committed again, about.
static HOLES: AtomicUsize = AtomicUsize::new(0);
/// A quarter of the mappings that Linux allows a process.
const MAX_HOLES: usize = 16 << 10;

/// No system has smaller pages.
const SMALLEST_PAGE_BYTES: usize = 4096;

/// Reserves `len` bytes of address space that nothing can be read from or written to.
///
/// Not `MAP_NORESERVE`: such a mapping would evade the system's own judgement of how much may be
/// committed. Memory that cannot be accessed is not charged, however much of it there is.
pub(crate) fn reserve(len: usize) -> Result<AddressRange, UpstreamError> {
    // SAFETY: a new anonymous mapping at an address of the system's choice touches no
    // existing memory.
    let start = unsafe {
        libc::mmap(std::ptr::null_mut(), len, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANON, -1, 0)
    };
    if start == libc::MAP_FAILED {
        return Err(last_error("mmap", len));
    }
    Ok(AddressRange::new(start.expose_provenance(), len))
}

/// Makes a reserved range readable and writable. Its bytes read as zero.
pub(crate) fn commit(range: AddressRange, huge_pages: bool) -> Result<(), UpstreamError> {
    // SAFETY: `range` lies in the range this crate reserved, so no foreign mapping changes.
    let result =
        unsafe { libc::mprotect(pointer(range.start), range.len, libc::PROT_READ | libc::PROT_WRITE) };
    if result != 0 {
        return Err(last_error("mprotect", range.len));
    }
    let _ = HOLES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |holes| holes.checked_sub(1));
    if huge_pages {
        advise_huge_pages(range);
    }
    Ok(())
}

/// Has the system find memory for a range that was just committed, where nothing lies yet.
pub(crate) fn populate(range: AddressRange) -> Result<(), UpstreamError> {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: `range` lies in the range this crate reserved and is committed; its contents stay as they
        // are.
        let result = unsafe { libc::madvise(pointer(range.start), range.len, libc::MADV_POPULATE_WRITE) };
        if result == 0 {
            return Ok(());
        }
        let error = last_error("madvise", range.len);
        if matches!(error, UpstreamError::Os { code: libc::ENOMEM, .. }) {
            return Err(error);
        }
        // Before Linux 5.14 there is no such advice.
    }
    for addr in (range.start..range.end()).step_by(SMALLEST_PAGE_BYTES) {
        // SAFETY: `range` is committed memory of this crate's, in which no object lies yet; it reads as zero.
        unsafe { pointer(addr).cast::<u8>().write_volatile(0) };
    }
    Ok(())
}

/// Gives the memory of a committed range back, and keeps its addresses reserved.
///
/// A new mapping takes the place of the old one: unlike `madvise`, this guarantees on every
/// system that the bytes read as zero when they are committed again, and under strict
/// overcommit it also returns the charge. But each hole splits a mapping, and Linux allows a
/// process 65,530 of them, for its threads' stacks too. So when there are many holes already,
/// `MADV_DONTNEED` is used, which on Linux does guarantee zeros and splits nothing.
pub(crate) fn decommit(range: AddressRange) -> Result<(), UpstreamError> {
    #[cfg(target_os = "linux")]
    if HOLES.load(Ordering::Relaxed) >= MAX_HOLES {
        // SAFETY: `range` lies in the range this crate reserved and holds no live block, so
        // dropping its contents takes nothing from anyone.
        let result = unsafe { libc::madvise(pointer(range.start), range.len, libc::MADV_DONTNEED) };
        return if result == 0 { Ok(()) } else { Err(last_error("madvise", range.len)) };
    }
    // SAFETY: `range` lies in the range this crate reserved and holds no live block, so
    // replacing its pages takes nothing from anyone.
    let start = unsafe {
        libc::mmap(
            pointer(range.start),
            range.len,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANON | libc::MAP_FIXED,
            -1,
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return Err(last_error("mmap", range.len));
    }
    HOLES.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// Moves the memory of a committed range, with what is in it, to a reserved one of the same length, and keeps the
/// addresses of the first reserved. Where the system cannot, nothing has changed and the answer is `false`.
pub(crate) fn relocate(from: AddressRange, to: AddressRange) -> bool {
    debug_assert_eq!(from.len, to.len);
    #[cfg(target_os = "linux")]
    {
        // The old addresses stay mapped, so that no other thread's mapping can come to lie there meanwhile.
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
        // SAFETY: both ranges lie in the range this crate reserved. No live block lies in the first, and nothing in
        // the second, whose mapping is replaced.
        let moved =
            unsafe { libc::mremap(pointer(from.start), from.len, from.len, flags, pointer(to.start)) };
        if moved == libc::MAP_FAILED {
            return false;
        }
        let _ = HOLES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |holes| holes.checked_sub(1));
        // If this fails, what it leaves is readable memory that nobody uses and that has no pages.
        let _ = decommit(from);
        true
    }
    #[cfg(not(target_os = "linux"))]
    false
}

/// Bytes of address space that the process may still take, when a limit is set.
pub(crate) fn address_space_left() -> Option<usize> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid place for the result.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) };
    if result != 0 || limit.rlim_cur == libc::RLIM_INFINITY {
        return None;
    }
    Some(usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX).saturating_sub(address_space_used()))
}

/// Bytes of address space in use, 0 where the system does not tell.
fn address_space_used() -> usize {
    // The first number of statm is the size in pages.
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split_whitespace().next().and_then(|pages| pages.parse::<usize>().ok());
    // SAFETY: sysconf only reads its argument.
    let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    pages.unwrap_or(0).saturating_mul(usize::try_from(page_bytes).unwrap_or(4096))
}

/// Calls `prepare` before each fork of this process, and after it `parent` or `child`.
pub(crate) fn run_at_fork(prepare: extern "C" fn(), parent: extern "C" fn(), child: extern "C" fn()) {
    // SAFETY: all are `extern "C"` functions that live as long as the process. Failure means
    // there was no memory for the entry; then a fork is only safe while no other thread
    // allocates, as with any allocator without handlers.
    unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
}

/// Writes a message to standard error without allocating.
pub(crate) fn report(message: fmt::Arguments<'_>) {
    // A failed write leaves nobody to tell.
    let _ = writeln!(StandardError, "candle-mempool: {message}");
}

/// Writes a message and ends the process.
pub(crate) fn abort_with(message: fmt::Arguments<'_>) -> ! {
    report(message);
    std::process::abort()
}

/// Huge pages make the first touch of a page 500 times rarer. Advice only: without support
/// for it everything works with small pages.
fn advise_huge_pages(range: AddressRange) {
    #[cfg(target_os = "linux")]
    // SAFETY: `range` lies in the range this crate reserved; advice changes no content.
    unsafe {
        libc::madvise(pointer(range.start), range.len, libc::MADV_HUGEPAGE);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = range;
}

fn pointer(addr: usize) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(addr)
}

fn last_error(call: &'static str, bytes: usize) -> UpstreamError {
    let code = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
    UpstreamError::Os { call, bytes, code }
}

/// Standard error as a bare file descriptor: usable inside the allocator.
struct StandardError;

impl fmt::Write for StandardError {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            // SAFETY: `rest` is valid for reads of its length.
            let written = unsafe { libc::write(2, rest.as_ptr().cast(), rest.len()) };
            match usize::try_from(written) {
                Ok(count) if count > 0 => rest = &rest[count..],
                _ => return Err(fmt::Error),
            }
        }
        Ok(())
    }
}

/// The name of this thread; empty if it has none.
pub(crate) fn thread_name() -> String {
    // No system has longer names.
    let mut name = [0_u8; 64];
    // SAFETY: it only says which thread this is.
    let thread = unsafe { libc::pthread_self() };
    // SAFETY: the thread is the calling one, and the name is written into as many bytes as are there.
    let named = unsafe { libc::pthread_getname_np(thread, name.as_mut_ptr().cast(), name.len()) };
    let end = name.iter().position(|&byte| byte == 0).unwrap_or(0);
    if named == 0 { String::from_utf8_lossy(&name[..end]).into_owned() } else { String::new() }
}

/// Finds the functions that called each other, the innermost first, and says how many were found. Takes no lock but perhaps the
/// loader's, and allocates nothing.
pub(crate) fn call_stack(into: &mut [Caller]) -> usize {
    let mut count = 0;
    // SAFETY: on Unix the unwinder works on the calling thread's stack alone; what must be kept apart there is needed on
    // Windows only, for its library of debug information.
    unsafe {
        backtrace::trace_unsynchronized(|frame| {
            // A null address is what called nothing.
            if count < into.len() && !frame.ip().is_null() {
                // On x86-64 a call leaves its return address where the caller's stack ended.
                let slot = frame.sp().addr().saturating_sub(size_of::<usize>());
                into[count] = Caller { return_address: frame.ip().addr(), slot };
                count += 1;
            }
            count < into.len()
        });
    }
    count
}

/// Whether all callers' return addresses still stand where they stood. `false` where that cannot be looked at.
pub(crate) fn are_there(callers: &[Caller]) -> bool {
    let here = std::ptr::from_ref(&callers).addr();
    let Some(top) = stack_top().filter(|&top| here < top) else { return false };
    callers.iter().all(|caller| {
        let is_on_stack = caller.slot > here && caller.slot <= top - size_of::<usize>();
        is_on_stack && caller.slot.is_multiple_of(align_of::<usize>()) && {
            let slot = std::ptr::with_exposed_provenance::<usize>(caller.slot);
            // SAFETY: the address is aligned and lies between this function's frame and the top of the stack that the thread
            // runs on, which is mapped for as long as the thread lives; any bits are a number.
            unsafe { slot.read_volatile() == caller.return_address }
        }
    })
}

/// Where the calling thread's stack ends, if it runs on the one that the system gave it and return addresses lie where
/// [`call_stack`] says.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn stack_top() -> Option<usize> {
    thread_local! {
        // Lowest address and end; the end is 1 where they are not known. A constant without destructor.
        static BOUNDS: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
    }
    if BOUNDS.get().1 == 0 {
        BOUNDS.set(stack_bounds().unwrap_or((0, 1)));
    }
    let (lowest, end) = BOUNDS.get();
    let here = std::ptr::from_ref(&lowest).addr();
    (lowest <= here && here < end).then_some(end)
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn stack_top() -> Option<usize> {
    None
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn stack_bounds() -> Option<(usize, usize)> {
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    // SAFETY: it only says which thread this is.
    let thread = unsafe { libc::pthread_self() };
    // SAFETY: the thread is the calling one, and there is room for its attributes.
    if unsafe { libc::pthread_getattr_np(thread, attributes.as_mut_ptr()) } != 0 {
        return None;
    }
    let (mut lowest, mut bytes) = (std::ptr::null_mut(), 0);
    // SAFETY: the attributes were written above.
    let known = unsafe { libc::pthread_attr_getstack(attributes.as_ptr(), &raw mut lowest, &raw mut bytes) };
    // SAFETY: as above, and nobody uses them afterwards.
    unsafe { libc::pthread_attr_destroy(attributes.as_mut_ptr()) };
    (known == 0).then(|| (lowest.addr(), lowest.addr() + bytes))
}

/// The functions that stand at a return address, those that the compiler put into others first.
pub(crate) fn functions_at(addr: usize) -> Vec<Frame> {
    let mut functions = Vec::new();
    // The address is that of what comes after the call.
    let call = std::ptr::without_provenance_mut(addr.saturating_sub(1));
    backtrace::resolve(call, |symbol| {
        let name = symbol.name().map_or_else(|| "??".to_owned(), |name| format!("{name:#}"));
        let filename = symbol.filename().map_or_else(String::new, |file| file.display().to_string());
        functions.push(Frame { name, filename, line: symbol.lineno().unwrap_or(0) });
    });
    functions
}
