//! The system calls that host pools stand on: one file for each kind of system.
//!
//! All functions work on addresses. The range they are called for is one this crate reserved,
//! and no live object lies in what is committed or decommitted; the callers in
//! [`region`](crate::region) and [`host_upstream`](crate::host_upstream) keep that.

#[cfg(all(unix, not(mempool_pass_through)))]
mod unix;
#[cfg(all(unix, not(mempool_pass_through)))]
pub(crate) use unix::{abort_with, address_space_left, commit, decommit, report, reserve, run_at_fork};

#[cfg(any(not(unix), mempool_pass_through))]
mod other;
#[cfg(any(not(unix), mempool_pass_through))]
pub(crate) use other::{abort_with, address_space_left, commit, decommit, report, reserve, run_at_fork};
