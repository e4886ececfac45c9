//! The system calls that host pools stand on: one file for each kind of system.
//!
//! All functions work on addresses. The range they are called for is one this crate reserved,
//! and no live object lies in what is committed or decommitted; the callers in
//! [`region`](crate::region) and [`host_upstream`](crate::host_upstream) keep that.

#[cfg(all(
    any(target_os = "linux", target_os = "macos"),
    target_pointer_width = "64",
    not(mempool_pass_through)
))]
mod unix;
#[cfg(all(
    any(target_os = "linux", target_os = "macos"),
    target_pointer_width = "64",
    not(mempool_pass_through)
))]
pub(crate) use unix::{
    abort_with, address_space_left, are_there, call_stack, commit, decommit, functions_at, populate,
    relocate, report, reserve, run_at_fork, thread_name,
};

#[cfg(not(all(
    any(target_os = "linux", target_os = "macos"),
    target_pointer_width = "64",
    not(mempool_pass_through)
)))]
mod other;
#[cfg(not(all(
    any(target_os = "linux", target_os = "macos"),
    target_pointer_width = "64",
    not(mempool_pass_through)
)))]
pub(crate) use other::{
    abort_with, address_space_left, are_there, call_stack, commit, decommit, functions_at, populate,
    relocate, report, reserve, run_at_fork, thread_name,
};

/// A function that called another one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Caller {
    /// Where it goes on when the other one returns.
    pub(crate) return_address: usize,
    /// Where that stands on the stack, on processors whose calls put it there.
    pub(crate) slot: usize,
}
