//! Pickles of plain values: what is read of them, and how they are written.

mod reader;
mod writer;

pub(super) use reader::{Tree, Value};
pub(super) use writer::Writer;
