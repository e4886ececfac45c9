//! Tools for recorded allocation traces and memory snapshots, as functions. The program `mempool` is made of them.

mod lines;
pub mod plan;
mod preallocation;
pub mod replay;
pub mod report;
pub mod tables;
mod times;
pub mod trace;

pub use lines::LineError;
