//! How often this process touched a page that had no memory yet.

/// Minor page faults so far; `None` where the system does not tell.
#[cfg(target_os = "linux")]
pub(crate) fn count() -> Option<u64> {
    Some(procfs::process::Process::myself().ok()?.stat().ok()?.minflt)
}

/// Minor page faults so far; `None` where the system does not tell.
#[cfg(not(target_os = "linux"))]
pub(crate) fn count() -> Option<u64> {
    None
}
