//! Tools for recorded allocation traces, as functions. The program `mempool` is made of them.

pub mod replay;
mod times;
pub mod trace;
