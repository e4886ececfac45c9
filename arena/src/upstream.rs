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

    /// As [`unmap`](Self::unmap), of what was mapped new since and nobody has used.
    ///
    /// # Errors
    /// As [`unmap`](Self::unmap).
    fn unmap_unused(&mut self, range: AddressRange) -> Result<(), MapError> {
        self.unmap(range)
    }

    /// Whether memory is had in *handles*: each successful [`map`](Self::map) makes one, which can only
    /// be unmapped whole. Otherwise any page can be unmapped by itself.
    fn maps_handles(&self) -> bool {
        false
    }

    /// The first part of `run`, none of which is mapped, that was unmapped while queued work might still use it
    /// and is kept for that. Mapping exactly this part brings it back at no cost; mapping over a part of it
    /// takes waiting for the work. Only where memory is had in handles.
    fn waiting_in(&self, run: AddressRange) -> Option<AddressRange> {
        let _ = run;
        None
    }

    /// Moves the memory behind `from`, all of which is mapped, to `to`, none of which is: where memory
    /// is had in handles, a handle. What `to` reads as then is not said.
    ///
    /// Work that is queued may still use `from`: whoever uses `to` is queued behind it. Nothing can be
    /// mapped at `from` before that work is done, see [`blocked_until`](Self::blocked_until).
    ///
    /// # Errors
    /// [`MapError`]; then `from` is unmapped, unless `completed_bytes` says how much of it still is
    /// mapped, from its end, and `to` is not mapped.
    fn relocate(&mut self, from: AddressRange, to: AddressRange) -> Result<(), MapError> {
        self.unmap(from)
            .map_err(|error| MapError { completed_bytes: from.len - error.completed_bytes, ..error })?;
        self.map(to).map_err(|error| MapError { completed_bytes: 0, ..error })
    }

    /// Notes that a block ended that work may still use which is queued already. Its memory serves
    /// work that is queued later at once; it cannot be unmapped before that work is done.
    fn note_freed(&mut self, range: AddressRange) {
        let _ = range;
    }

    /// The end of the last part of `range` from which memory moved away that queued work still uses
    /// there; `None` when all of `range` can be mapped without waiting. Asks, and never waits.
    fn blocked_until(&mut self, range: AddressRange) -> Option<usize> {
        let _ = range;
        None
    }

    /// Whether no work that is queued still uses a part of `range` where blocks have ended. Asks,
    /// and never waits.
    fn is_idle(&mut self, range: AddressRange) -> bool {
        let _ = range;
        true
    }
}
