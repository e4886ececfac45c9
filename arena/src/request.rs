//! What a caller asks for, and how its size is rounded.

use crate::error::ArenaError;

/// Sizes beyond this cannot be allocated: the limit Rust sets for any object
/// (`isize::MAX`), which leaves room for rounding without overflow.
const MAX_SIZE_BYTES: usize = isize::MAX as usize;

/// A request for memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Bytes. Zero is served with a block of the smallest size, so that its address is unique.
    pub size_bytes: usize,
    /// Alignment in bytes, a power of two.
    pub align_bytes: usize,
}

impl Request {
    /// A request without an alignment of its own: the policy's granule decides.
    #[must_use]
    pub const fn new(size_bytes: usize) -> Self {
        Self { size_bytes, align_bytes: 1 }
    }

    /// The same request aligned to `align_bytes`, a power of two.
    #[must_use]
    pub const fn aligned_to(self, align_bytes: usize) -> Self {
        Self { align_bytes, ..self }
    }

    /// The size rounded up to whole granules, at least one.
    ///
    /// # Errors
    /// [`ArenaError::Alignment`] when the alignment is not a power of two,
    /// [`ArenaError::SizeOverflow`] when size and alignment together exceed `isize::MAX`.
    #[inline]
    pub(crate) fn rounded_bytes(self, granule_bytes: usize) -> Result<usize, ArenaError> {
        if !self.align_bytes.is_power_of_two() {
            return Err(ArenaError::Alignment { align_bytes: self.align_bytes });
        }
        // `MAX_SIZE_BYTES` plus a power of two of at most 2^63 does not wrap.
        if self.size_bytes > MAX_SIZE_BYTES
            || self.size_bytes.max(1) + self.align_bytes.max(granule_bytes) > MAX_SIZE_BYTES
        {
            return Err(ArenaError::SizeOverflow {
                size_bytes: self.size_bytes,
                align_bytes: self.align_bytes,
            });
        }
        Ok((self.size_bytes.max(1) + granule_bytes - 1) & !(granule_bytes - 1))
    }
}
