//! Tools for recorded allocation traces, as functions. The program `mempool` is made of them.

mod lines;
pub mod plan;
pub mod replay;
pub mod tables;
pub mod trace;

pub use lines::LineError;
