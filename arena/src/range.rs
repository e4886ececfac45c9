//! A half-open range of addresses.

use std::fmt;

/// `[start, start + len)`, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AddressRange {
    /// First address.
    pub start: usize,
    /// Length in bytes.
    pub len: usize,
}

impl AddressRange {
    /// The range of `len` bytes from `start`.
    #[must_use]
    pub const fn new(start: usize, len: usize) -> Self {
        Self { start, len }
    }

    /// The range from `start` up to, not including, `end`; empty when `end <= start`.
    #[must_use]
    pub const fn between(start: usize, end: usize) -> Self {
        Self { start, len: end.saturating_sub(start) }
    }

    /// The first address behind the range.
    #[must_use]
    pub const fn end(self) -> usize {
        self.start + self.len
    }

    /// Whether no address lies in the range.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Whether `addr` lies in the range.
    #[must_use]
    pub const fn contains(self, addr: usize) -> bool {
        addr >= self.start && addr - self.start < self.len
    }

    /// Whether all of `other` lies in the range.
    #[must_use]
    pub const fn covers(self, other: Self) -> bool {
        other.start >= self.start && other.end() <= self.end()
    }

    /// What is left of the range without `holes`, which lie in it in order of address.
    pub fn without(self, holes: &[Self]) -> impl Iterator<Item = Self> + '_ {
        let starts = std::iter::once(self.start).chain(holes.iter().map(|hole| hole.end()));
        let ends =
            holes.iter().map(move |hole| hole.start.min(self.end())).chain(std::iter::once(self.end()));
        starts.zip(ends).map(|(start, end)| Self::between(start, end)).filter(|part| !part.is_empty())
    }

    /// The largest part that consists of whole pages of `page_bytes` (a power of two).
    #[must_use]
    pub const fn inner_pages(self, page_bytes: usize) -> Self {
        // Rounding `start` up cannot overflow for ranges of a real address space, whose last
        // page is never handed out.
        let start = (self.start + page_bytes - 1) & !(page_bytes - 1);
        Self::between(start, self.end() & !(page_bytes - 1))
    }

    /// The smallest range of whole pages of `page_bytes` (a power of two) that covers this one.
    #[must_use]
    pub const fn outer_pages(self, page_bytes: usize) -> Self {
        let end = (self.end() + page_bytes - 1) & !(page_bytes - 1);
        Self::between(self.start & !(page_bytes - 1), end)
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{:#x}, {:#x})", self.start, self.end())
    }
}

impl fmt::Debug for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
