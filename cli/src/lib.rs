//! Tools for recorded allocation traces, as functions. The program `mempool` is made of them.

pub mod advise;
mod lines;
pub mod plan;
pub mod replay;
pub mod tables;
pub mod trace;

pub use lines::LineError;
