//! What both examples share: the pool summary they end with, a digest for bit-exact
//! comparison of two runs, and the median used for timings.

mod digest;
mod median;
mod summary;

pub use digest::BitDigest;
pub use median::median_ms;
pub use summary::{Summary, human_bytes};
