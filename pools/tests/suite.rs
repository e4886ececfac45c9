//! What pools promise, run over each inner allocator.

mod advice;
mod allocator;
mod buffer_sets;
mod buffers;
mod contents;
mod diagnosis;
mod foreign_snapshots;
mod history;
mod leaks;
mod lifetime;
#[path = "memory_viz.rs"]
mod memory_viz;
mod monitor;
#[path = "recorded.rs"]
mod recorded;
mod recording;
#[path = "recount.rs"]
mod recount;
mod scopes;
mod sizing;
mod snapshots;
mod statistics;
mod steps;
mod threads;

/// Far above every threshold.
pub(crate) const BIG: usize = 1 << 20;

/// A big allocation, written to.
pub(crate) fn big() -> Vec<u8> {
    vec![7; BIG]
}
