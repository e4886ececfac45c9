//! Where an arena's memory comes from.

pub(crate) mod simulated;

use crate::error::{MapError, UpstreamError};
use crate::range::AddressRange;

/// A source of virtual ranges whose pages can be given memory and deprived of it.
///
/// Ranges and pages are aligned to [`page_bytes`](Self::page_bytes). A page is either mapped
/// or not; memory of a freshly mapped page reads as zero, also when it was mapped before.
pub trait Upstream: Send {
    /// Bytes of a page, the unit of mapping; a power of two.
    fn page_bytes(&self) -> usize;

    /// Bytes that can be mapped at once, `usize::MAX` where nothing is known.
    fn capacity_bytes(&self) -> usize;

    /// Reserves at least `len` bytes of address space, aligned to a page, without memory behind it.
    ///
    /// # Errors
    /// [`UpstreamError::AddressSpace`] when no such range is left.
    fn reserve(&mut self, len: usize) -> Result<AddressRange, UpstreamError>;

    /// Gives a reserved range back, whole. No page of it may be mapped.
    ///
    /// # Errors
    /// [`UpstreamError::Misuse`] when the range was not reserved or has mapped pages.
    fn release(&mut self, range: AddressRange) -> Result<(), UpstreamError>;

    /// Maps every page of `range`, none of which may be mapped already.
    ///
    /// # Errors
    /// [`MapError`] with the bytes that were mapped all the same, from the start of the range;
    /// the caller owns them and has to unmap them or count them.
    fn map(&mut self, range: AddressRange) -> Result<(), MapError>;

    /// Unmaps every page of `range`, all of which must be mapped.
    ///
    /// # Errors
    /// [`MapError`] with the bytes that were unmapped, from the start of the range; the rest
    /// is still mapped.
    fn unmap(&mut self, range: AddressRange) -> Result<(), MapError>;
}
