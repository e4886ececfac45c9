//! Operations that write into a given tensor, beside candle's that allocate: the same bits, typed refusals, no
//! temporaries, no dead ends. The bodies run on the device of the binary they are part of.

#[path = "out/bits.rs"]
mod bits;
#[path = "out/elementwise.rs"]
mod elementwise;
#[path = "out/indexing.rs"]
mod indexing;
#[path = "out/memory.rs"]
mod memory;
#[path = "out/optimizers.rs"]
mod optimizers;
#[path = "out/products.rs"]
mod products;
#[path = "out/refusals.rs"]
mod refusals;
#[path = "out/rows.rs"]
mod rows;
#[path = "out/sharing.rs"]
mod sharing;

#[allow(unused_imports)] // all of them are for CPU
pub use bits::PLACES;
pub use bits::Place;
