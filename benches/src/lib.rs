//! Allocator comparison on candle workloads: the library behind the five binaries.
//!
//! A process has one global allocator, so each allocator gets a worker binary of its own
//! (`worker-*`) that runs one workload and prints one JSON line; `compare` starts the workers in
//! turn and puts the lines side by side. This crate owns what they share.

pub mod allocator;
pub mod checksum;
pub mod compare;
pub mod process;
pub mod report;
pub mod statistics;
pub mod worker;
pub mod workload;
