//! Systems without an implementation: nothing can be reserved, so every request passes
//! through to the inner allocator.

use std::fmt;

use mempool_arena::{AddressRange, UpstreamError};

pub(crate) fn reserve(len: usize) -> Result<AddressRange, UpstreamError> {
    Err(UpstreamError::AddressSpace { requested_bytes: len })
}

pub(crate) fn commit(range: AddressRange, _: bool) -> Result<(), UpstreamError> {
    Err(UpstreamError::AddressSpace { requested_bytes: range.len })
}

pub(crate) fn populate(range: AddressRange) -> Result<(), UpstreamError> {
    Err(UpstreamError::AddressSpace { requested_bytes: range.len })
}

pub(crate) fn decommit(range: AddressRange) -> Result<(), UpstreamError> {
    Err(UpstreamError::AddressSpace { requested_bytes: range.len })
}

pub(crate) fn relocate(_from: AddressRange, _to: AddressRange) -> bool {
    false
}

pub(crate) fn address_space_left() -> Option<usize> {
    None
}

pub(crate) fn run_at_fork(_: extern "C" fn(), _: extern "C" fn(), _: extern "C" fn()) {}

pub(crate) fn report(message: fmt::Arguments<'_>) {
    eprintln!("candle-mempool: {message}");
}

pub(crate) fn abort_with(message: fmt::Arguments<'_>) -> ! {
    report(message);
    std::process::abort()
}

/// The name of this thread.
pub(crate) fn thread_name() -> String {
    std::thread::current().name().unwrap_or_default().to_owned()
}

pub(crate) fn call_stack(_into: &mut [crate::os::Caller]) -> usize {
    0
}

pub(crate) fn are_there(_callers: &[crate::os::Caller]) -> bool {
    false
}

pub(crate) fn functions_at(_addr: usize) -> Vec<crate::snapshot::Frame> {
    Vec::new()
}
