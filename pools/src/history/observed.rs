//! What an arena maps and unmaps, told to the history.

use std::ops::{Deref, DerefMut};

use mempool_arena::{AddressRange, MapError, Upstream, UpstreamError};

use super::note_mapping;
use crate::recording::Source;

/// What happened to a range of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mapping {
    /// It has memory now.
    Mapped(AddressRange),
    /// It has none any more.
    Unmapped(AddressRange),
}

/// An upstream whose calls that map and unmap are told to the history, if one is kept.
#[derive(Debug)]
pub(crate) struct Observed<U> {
    upstream: U,
    /// Whose memory it is.
    source: Source,
}

impl<U> Observed<U> {
    pub(crate) fn new(upstream: U, source: Source) -> Self {
        Self { upstream, source }
    }

    /// Makes the memory another owner's.
    pub(crate) fn hand_to(&mut self, source: Source) {
        self.source = source;
    }

    fn note_mapped(&self, range: AddressRange, mapped: &Result<(), MapError>) {
        let bytes = mapped.as_ref().map_or_else(|error| error.completed_bytes, |()| range.len);
        note_mapping(self.source, Mapping::Mapped(AddressRange::new(range.start, bytes)));
    }

    fn note_unmapped(&self, range: AddressRange, unmapped: &Result<(), MapError>) {
        let bytes = unmapped.as_ref().map_or_else(|error| error.completed_bytes, |()| range.len);
        note_mapping(self.source, Mapping::Unmapped(AddressRange::new(range.start, bytes)));
    }
}

impl<U> Deref for Observed<U> {
    type Target = U;

    fn deref(&self) -> &U {
        &self.upstream
    }
}

impl<U> DerefMut for Observed<U> {
    fn deref_mut(&mut self) -> &mut U {
        &mut self.upstream
    }
}

impl<U: Upstream> Upstream for Observed<U> {
    fn page_bytes(&self) -> usize {
        self.upstream.page_bytes()
    }

    fn capacity_bytes(&self) -> usize {
        self.upstream.capacity_bytes()
    }

    fn reserve(&mut self, len: usize) -> Result<AddressRange, UpstreamError> {
        self.upstream.reserve(len)
    }

    fn release(&mut self, range: AddressRange) -> Result<(), UpstreamError> {
        self.upstream.release(range)
    }

    fn map(&mut self, range: AddressRange) -> Result<(), MapError> {
        let mapped = self.upstream.map(range);
        self.note_mapped(range, &mapped);
        mapped
    }

    fn unmap(&mut self, range: AddressRange) -> Result<(), MapError> {
        let unmapped = self.upstream.unmap(range);
        self.note_unmapped(range, &unmapped);
        unmapped
    }

    fn unmap_unused(&mut self, range: AddressRange) -> Result<(), MapError> {
        let unmapped = self.upstream.unmap_unused(range);
        self.note_unmapped(range, &unmapped);
        unmapped
    }

    fn maps_handles(&self) -> bool {
        self.upstream.maps_handles()
    }

    fn waiting_in(&self, run: AddressRange) -> Option<AddressRange> {
        self.upstream.waiting_in(run)
    }

    fn relocate(&mut self, from: AddressRange, to: AddressRange) -> Result<(), MapError> {
        let moved = self.upstream.relocate(from, to);
        // What is left of `from` after a failure is its end.
        let left = moved.as_ref().map_or_else(|error| error.completed_bytes, |()| 0);
        let gone = AddressRange::new(from.start, from.len - left.min(from.len));
        note_mapping(self.source, Mapping::Unmapped(gone));
        if moved.is_ok() {
            note_mapping(self.source, Mapping::Mapped(to));
        }
        moved
    }

    fn note_freed(&mut self, range: AddressRange) {
        self.upstream.note_freed(range);
    }

    fn blocked_until(&mut self, range: AddressRange) -> Option<usize> {
        self.upstream.blocked_until(range)
    }

    fn is_idle(&mut self, range: AddressRange) -> bool {
        self.upstream.is_idle(range)
    }
}
