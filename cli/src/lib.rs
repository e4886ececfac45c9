//! Tools for recorded allocation traces, as functions. The program `mempool` is made of them.

mod preallocation;
pub mod replay;
pub mod tables;
mod times;
pub mod trace;
