//! Which pages of one virtual range are mapped, and which of those still read as zero.
//!
//! A page is *mapped* when memory stands behind it, and *clean* when no block on it has ended
//! since it was mapped, so that all its bytes outside live blocks are zero, and those of a live
//! block were zero when it was placed. Clean implies mapped. Pages that were mapped by one call are a
//! *handle*, where memory is had so, and each of them is one otherwise.

use std::ops::Range;

use crate::range::AddressRange;

const WORD_BITS: usize = u64::BITS as usize;

/// Page states of one range, one bit a page.
#[derive(Debug, Clone)]
pub(crate) struct PageMap {
    range: AddressRange,
    page_shift: u32,
    mapped: Box<[u64]>,
    clean: Box<[u64]>,
    /// The first page of each handle.
    heads: Box<[u64]>,
    /// When blocks ended on each page, if that was ever noted.
    freed: Vec<u32>,
}

impl PageMap {
    /// All pages unmapped. `range` must consist of whole pages.
    pub(crate) fn new(range: AddressRange, page_bytes: usize) -> Self {
        assert!(page_bytes.is_power_of_two());
        assert_eq!(range.outer_pages(page_bytes), range, "not whole pages of {page_bytes} bytes");
        let words = (range.len / page_bytes).div_ceil(WORD_BITS);
        Self {
            range,
            page_shift: page_bytes.trailing_zeros(),
            mapped: vec![0; words].into_boxed_slice(),
            clean: vec![0; words].into_boxed_slice(),
            heads: vec![0; words].into_boxed_slice(),
            freed: Vec::new(),
        }
    }

    pub(crate) fn range(&self) -> AddressRange {
        self.range
    }

    pub(crate) fn page_bytes(&self) -> usize {
        1 << self.page_shift
    }

    /// Number of mapped pages that lie, whole or in part, in `range`.
    #[inline]
    pub(crate) fn mapped_page_count(&self, range: AddressRange) -> usize {
        if range.is_empty() {
            return 0;
        }
        // Most ranges have their pages in one word.
        let (first, last) = (self.page_at(range.start), self.page_at(range.end() - 1));
        if first / WORD_BITS == last / WORD_BITS {
            let pages = self.mapped[first / WORD_BITS] >> (first % WORD_BITS);
            return (pages << (WORD_BITS - 1 - (last - first))).count_ones() as usize;
        }
        self.words(range).map(|(word, mask)| (self.mapped[word] & mask).count_ones() as usize).sum()
    }

    /// Whether every page that `range` touches is mapped.
    #[inline]
    pub(crate) fn is_mapped(&self, range: AddressRange) -> bool {
        self.words(range).all(|(word, mask)| self.mapped[word] & mask == mask)
    }

    /// The first run of unmapped pages among those that `range` touches.
    pub(crate) fn first_unmapped_run(&self, range: AddressRange) -> Option<AddressRange> {
        self.first_run(range, |word| !self.mapped[word])
    }

    /// The first run of mapped pages among those that `range` touches.
    pub(crate) fn first_mapped_run(&self, range: AddressRange) -> Option<AddressRange> {
        self.first_run(range, |word| self.mapped[word])
    }

    /// All runs of mapped pages.
    pub(crate) fn mapped_runs(&self) -> impl Iterator<Item = AddressRange> + '_ {
        let mut rest = self.range;
        std::iter::from_fn(move || {
            let run = self.first_mapped_run(rest)?;
            rest = AddressRange::between(run.end(), rest.end());
            Some(run)
        })
    }

    /// The first run of clean pages among those that `range` touches.
    pub(crate) fn first_clean_run(&self, range: AddressRange) -> Option<AddressRange> {
        self.first_run(range, |word| self.clean[word])
    }

    /// The clean parts of `block`.
    pub(crate) fn clean_ranges(&self, block: AddressRange) -> Vec<AddressRange> {
        let mut rest = block;
        std::iter::from_fn(|| {
            let run = self.first_clean_run(rest)?;
            rest = AddressRange::between(run.end(), block.end());
            Some(AddressRange::between(run.start.max(block.start), run.end().min(block.end())))
        })
        .collect()
    }

    /// Notes that the pages of `range` were mapped, each by itself; they are clean.
    pub(crate) fn set_mapped(&mut self, range: AddressRange) {
        for (word, mask) in Self::word_masks(self.range, self.page_shift, range) {
            self.mapped[word] |= mask;
            self.clean[word] |= mask;
            self.heads[word] |= mask;
        }
    }

    /// Notes that the pages of `range` were mapped as one handle; they are clean.
    pub(crate) fn set_mapped_as_one(&mut self, range: AddressRange) {
        self.set_mapped(range);
        let rest = AddressRange::between(range.start + self.page_bytes(), range.end());
        for (word, mask) in Self::word_masks(self.range, self.page_shift, rest) {
            self.heads[word] &= !mask;
        }
    }

    /// The handles that lie in `range`, as one range that no handle crosses the ends of. What else
    /// it has is not mapped. `range` consists of whole pages.
    #[inline]
    pub(crate) fn whole_handles(&self, range: AddressRange) -> AddressRange {
        let begins = |addr| addr == self.range.end() || self.begins(self.page_at(addr));
        if begins(range.start) && begins(range.end()) { range } else { self.without_cut_handles(range) }
    }

    fn without_cut_handles(&self, range: AddressRange) -> AddressRange {
        let start = self.handle_end(range.start).min(range.end());
        if range.end() == self.range.end() || self.begins(self.page_at(range.end())) {
            return AddressRange::between(start, range.end());
        }
        // The handle that crosses the end begins at the last page before it where one begins.
        let pages = self.page_at(start)..self.page_at(range.end());
        let last = self.last_page(pages, |word| self.heads[word]);
        AddressRange::between(start, last.map_or(start, |page| self.addr_of(page)))
    }

    /// The end of the handle that the page before `end` belongs to.
    pub(crate) fn handle_end(&self, end: usize) -> usize {
        let pages = self.page_at(end)..self.page_at(self.range.end());
        let next = self.first_page(pages, |word| self.heads[word] | !self.mapped[word]);
        next.map_or(self.range.end(), |page| self.addr_of(page))
    }

    /// The handles in `range`, which consists of whole ones, in order of address.
    pub(crate) fn handles(&self, range: AddressRange) -> impl Iterator<Item = AddressRange> + '_ {
        let (first, until) = (self.page_at(range.start), self.page_at(range.end()));
        let mut word = first / WORD_BITS;
        let mut heads = if first < until { self.heads[word] & (u64::MAX << (first % WORD_BITS)) } else { 0 };
        std::iter::from_fn(move || {
            while heads == 0 {
                word += 1;
                if word * WORD_BITS >= until {
                    return None;
                }
                heads = self.heads[word];
            }
            let bit = heads.trailing_zeros() as usize;
            let head = word * WORD_BITS + bit;
            if head >= until {
                return None;
            }
            heads &= heads - 1;
            // It ends where the next one begins, or nothing is mapped.
            let mut at = word;
            let mut ends =
                (self.heads[at] | !self.mapped[at]) & u64::MAX.checked_shl(bit as u32 + 1).unwrap_or(0);
            while ends == 0 && (at + 1) * WORD_BITS < until {
                at += 1;
                ends = self.heads[at] | !self.mapped[at];
            }
            let end = (at * WORD_BITS + ends.trailing_zeros() as usize).min(until);
            Some(AddressRange::between(self.addr_of(head), self.addr_of(end)))
        })
    }

    /// Whether the page is the first of a handle, or not mapped.
    fn begins(&self, page: usize) -> bool {
        (self.heads[page / WORD_BITS] | !self.mapped[page / WORD_BITS]) >> (page % WORD_BITS) & 1 == 1
    }

    fn page_at(&self, addr: usize) -> usize {
        (addr - self.range.start) >> self.page_shift
    }

    fn addr_of(&self, page: usize) -> usize {
        self.range.start + (page << self.page_shift)
    }

    /// The first of `pages` whose bit is set.
    fn first_page(&self, pages: Range<usize>, bits: impl Fn(usize) -> u64) -> Option<usize> {
        let mut mask = u64::MAX << (pages.start % WORD_BITS);
        for word in pages.start / WORD_BITS..pages.end.div_ceil(WORD_BITS) {
            let set = bits(word) & mask;
            if set != 0 {
                let page = word * WORD_BITS + set.trailing_zeros() as usize;
                return Some(page).filter(|&page| page < pages.end);
            }
            mask = u64::MAX;
        }
        None
    }

    /// The last of `pages` whose bit is set.
    fn last_page(&self, pages: Range<usize>, bits: impl Fn(usize) -> u64) -> Option<usize> {
        let mut mask = u64::MAX >> (WORD_BITS - 1 - (pages.end.max(1) - 1) % WORD_BITS);
        for word in (pages.start / WORD_BITS..pages.end.div_ceil(WORD_BITS)).rev() {
            let set = bits(word) & mask;
            if set != 0 {
                let page = word * WORD_BITS + set.ilog2() as usize;
                return Some(page).filter(|&page| page >= pages.start);
            }
            mask = u64::MAX;
        }
        None
    }

    /// Notes when a block ended on the pages that `range` touches.
    pub(crate) fn note_free(&mut self, range: AddressRange, when: u32) {
        let first = (range.start - self.range.start) >> self.page_shift;
        let end = ((range.end() - 1 - self.range.start) >> self.page_shift) + 1;
        if self.freed.len() < end {
            self.freed.resize(end, 0);
        }
        self.freed[first..end].fill(when);
    }

    /// When a block ended on the page at `addr`; 0 if that was never noted.
    pub(crate) fn freed_at(&self, addr: usize) -> u32 {
        self.freed.get((addr - self.range.start) >> self.page_shift).copied().unwrap_or(0)
    }

    /// Notes that the pages of `range` were unmapped.
    pub(crate) fn set_unmapped(&mut self, range: AddressRange) {
        for (word, mask) in Self::word_masks(self.range, self.page_shift, range) {
            self.mapped[word] &= !mask;
            self.clean[word] &= !mask;
            self.heads[word] &= !mask;
        }
    }

    /// Notes that a block on the pages that `range` touches has ended.
    pub(crate) fn set_dirty(&mut self, range: AddressRange) {
        for (word, mask) in Self::word_masks(self.range, self.page_shift, range) {
            self.clean[word] &= !mask;
        }
    }

    fn words(&self, range: AddressRange) -> impl Iterator<Item = (usize, u64)> + use<> {
        Self::word_masks(self.range, self.page_shift, range)
    }

    /// The words that hold the pages `range` touches, each with a mask of those pages.
    fn word_masks(
        whole: AddressRange,
        page_shift: u32,
        range: AddressRange,
    ) -> impl Iterator<Item = (usize, u64)> + use<> {
        let (first, end) = if range.is_empty() {
            (0, 0)
        } else {
            debug_assert!(whole.covers(range));
            ((range.start - whole.start) >> page_shift, ((range.end() - 1 - whole.start) >> page_shift) + 1)
        };
        (first / WORD_BITS..end.div_ceil(WORD_BITS)).map(move |word| {
            let low = first.saturating_sub(word * WORD_BITS);
            let high = (end - word * WORD_BITS).min(WORD_BITS);
            let mask = (u64::MAX << low) & (u64::MAX >> (WORD_BITS - high));
            (word, mask)
        })
    }

    /// The first run of set bits of `bits` among the pages `range` touches, as whole pages.
    fn first_run(&self, range: AddressRange, bits: impl Fn(usize) -> u64) -> Option<AddressRange> {
        let mut run: Option<(usize, usize)> = None;
        for (word, mask) in self.words(range) {
            let mut set = bits(word) & mask;
            while set != 0 {
                let low = set.trailing_zeros() as usize;
                let len = (!(set >> low)).trailing_zeros() as usize;
                let (first, end) = (word * WORD_BITS + low, word * WORD_BITS + low + len);
                match &mut run {
                    None => run = Some((first, end)),
                    Some((_, run_end)) if *run_end == first => *run_end = end,
                    Some(_) => return run.map(|run| self.pages(run)),
                }
                set &= if low + len == WORD_BITS { 0 } else { u64::MAX << (low + len) };
            }
            // A run that does not reach the end of this word ends here.
            if let Some((_, end)) = run
                && end < (word + 1) * WORD_BITS
            {
                break;
            }
        }
        run.map(|run| self.pages(run))
    }

    fn pages(&self, (first, end): (usize, usize)) -> AddressRange {
        AddressRange::between(
            self.range.start + (first << self.page_shift),
            self.range.start + (end << self.page_shift),
        )
    }
}

#[cfg(test)]
mod tests;
