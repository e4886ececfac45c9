//! Tools for recorded allocation traces, as functions. The program `mempool` is made of them.

pub mod plan;
mod preallocation;
pub mod replay;
pub mod tables;
mod times;
pub mod trace;
