//! Options of policy `bfc`, with TensorFlow's names where it has them.

use crate::error::ArenaError;
use crate::placement::check_granule;

/// A block's unused end is noted in 32 bits.
const MOST_FRAGMENTATION_BYTES: usize = 1 << 31;

/// Options of [`Bfc`](super::Bfc).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BfcOptions {
    /// Sizes are rounded up to a multiple of this power of two, and blocks are aligned to it
    /// (TensorFlow's `kMinAllocationSize`).
    pub granule_bytes: usize,
    /// Mapped bytes are kept at or below this. TensorFlow always has a limit, a share of the device.
    pub limit_bytes: Option<usize>,
    /// Regions are taken as they are needed. Otherwise the first one is as long as the limit, or as
    /// upstream's capacity if there is no limit.
    pub allow_growth: bool,
    /// Length of the first region, with growth: 1 MiB in earlier versions of TensorFlow.
    pub initial_region_bytes: usize,
    /// A block that would leave so many bytes unused is cut, however large the request. At most 2 GiB.
    pub max_internal_fragmentation_bytes: usize,
    /// Regions of which nothing is used go back before a request fails, if that can help.
    pub garbage_collection: bool,
}

impl Default for BfcOptions {
    /// What TensorFlow does on a GPU with `allow_growth`.
    fn default() -> Self {
        Self {
            granule_bytes: 256,
            limit_bytes: None,
            allow_growth: true,
            initial_region_bytes: 2 << 20,
            max_internal_fragmentation_bytes: 128 << 20,
            garbage_collection: true,
        }
    }
}

impl BfcOptions {
    pub(super) fn check(&self) -> Result<(), ArenaError> {
        check_granule(self.granule_bytes)?;
        let wrong = |option, value, rule| Err(ArenaError::Option { option, value, rule });
        if self.initial_region_bytes == 0 {
            return wrong("initial_region_bytes", 0, "a region needs a length");
        }
        let most = self.max_internal_fragmentation_bytes;
        if !(1..=MOST_FRAGMENTATION_BYTES).contains(&most) {
            return wrong("max_internal_fragmentation_bytes", most, "it has to lie between 1 and 2 GiB");
        }
        Ok(())
    }
}
