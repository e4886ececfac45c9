//! Tools for recorded allocation traces and memory snapshots, as functions. The program `mempool` is made of them.

pub mod advise;
mod lines;
pub mod plan;
pub mod replay;
pub mod report;
pub mod tables;
pub mod trace;

pub use lines::LineError;
