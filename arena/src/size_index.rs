//! Free blocks by size: the smallest that fits is found without a search.
//!
//! Sizes are counted in granules and sorted into bins: one bin for each of the first 16 sizes,
//! then 16 bins for each power of two, so that the sizes of one bin differ by at most 1/16.
//! Two levels of bitmap tell the next bin that is not empty in two instructions; inside a bin
//! blocks are in order of (length, address). The answer is the exact best fit, and among equal
//! blocks the one at the lowest address, at a cost that does not depend on how many blocks
//! there are (but for the order inside one bin, see [`FreeRun`]).

use std::ops::ControlFlow;

use crate::block::BlockId;
use crate::free_run::{Entry, FreeRun};

const SUB_BITS: u32 = 4;
const SUB_COUNT: usize = 1 << SUB_BITS;
/// Bins for every size a `usize` can count: 16 exact ones and 16 for each of the powers of
/// two from 2^4 to 2^63.
const BIN_COUNT: usize = SUB_COUNT * (usize::BITS - SUB_BITS + 1) as usize;
const WORD_BITS: usize = u64::BITS as usize;
const WORD_COUNT: usize = BIN_COUNT.div_ceil(WORD_BITS);

/// A free block as the index hands it out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FreeEntry {
    /// Length in bytes.
    pub len: usize,
    /// First address.
    pub start: usize,
    pub(crate) id: BlockId,
}

impl From<Entry> for FreeEntry {
    fn from(entry: Entry) -> Self {
        Self { len: entry.len, start: entry.start, id: entry.id }
    }
}

/// An ordered index of free blocks by length and address.
#[derive(Debug)]
pub struct SizeIndex {
    granule_shift: u32,
    /// Bit `w` is set when `words[w]` is not zero.
    summary: u32,
    /// Bit `b` of word `w` is set when bin `64 w + b` is not empty.
    words: [u64; WORD_COUNT],
    bins: Vec<FreeRun>,
    len: usize,
    probes: u64,
}

impl SizeIndex {
    /// An empty index of lengths in whole granules of `granule_bytes`, a power of two.
    #[must_use]
    pub fn new(granule_bytes: usize) -> Self {
        assert!(granule_bytes.is_power_of_two(), "granule {granule_bytes} is not a power of two");
        Self {
            granule_shift: granule_bytes.trailing_zeros(),
            summary: 0,
            words: [0; WORD_COUNT],
            bins: Vec::new(),
            len: 0,
            probes: 0,
        }
    }

    /// Number of blocks in the index.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no block in the index.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bitmap words and bins looked at by all searches so far: what a search costs, apart
    /// from cache misses.
    #[must_use]
    pub fn probes(&self) -> u64 {
        self.probes
    }

    /// The smallest block of at least `len` bytes, the lowest address among equals.
    #[inline]
    pub fn best_fit(&mut self, len: usize) -> Option<FreeEntry> {
        let first = self.bin_of(len);
        self.probes += 1;
        // Only the first bin can hold blocks that are too small; in every later one the
        // first block fits.
        if self.words[first / WORD_BITS] >> (first % WORD_BITS) & 1 == 1
            && let Some(entry) = self.bins[first].best_fit(len)
        {
            return Some(entry.into());
        }
        self.probes += 2;
        let bin = self.next_bin(first + 1)?;
        self.probes += 1;
        self.bins[bin].best_fit(0).map(FreeEntry::from)
    }

    /// The largest block.
    #[must_use]
    pub fn largest(&self) -> Option<FreeEntry> {
        let word = self.summary.checked_ilog2()? as usize;
        let bit = self.words[word].checked_ilog2()? as usize;
        self.bins[word * WORD_BITS + bit].largest().map(FreeEntry::from)
    }

    /// All blocks, in order of length and address.
    pub fn iter(&self) -> impl Iterator<Item = FreeEntry> + '_ {
        self.iter_from(0)
    }

    /// The blocks of at least `len` bytes, in order of length and address.
    pub fn iter_from(&self, len: usize) -> impl Iterator<Item = FreeEntry> + '_ {
        let first = self.bin_of(len);
        let mut next = Some(first).filter(|&bin| bin < BIN_COUNT);
        let bins = std::iter::from_fn(move || {
            let bin = self.next_bin(next?);
            next = bin.map(|bin| bin + 1).filter(|&bin| bin < BIN_COUNT);
            bin
        });
        bins.flat_map(move |bin| self.bins[bin].iter_from(len)).map(FreeEntry::from)
    }

    /// Visits blocks as [`iter_from`](Self::iter_from) does, until `visit` says that it is enough, and faster.
    #[inline]
    pub(crate) fn visit_from(&self, len: usize, mut visit: impl FnMut(BlockId) -> ControlFlow<()>) {
        let mut next = self.bin_of(len);
        while next < BIN_COUNT
            && let Some(bin) = self.next_bin(next)
        {
            if self.bins[bin].visit_from(len, &mut visit).is_break() {
                return;
            }
            next = bin + 1;
        }
    }

    #[inline]
    pub(crate) fn insert(&mut self, len: usize, start: usize, id: BlockId) {
        let bin = self.bin_of(len);
        if bin >= self.bins.len() {
            // Bins come into being with the largest size seen, so that a small pool has a
            // small index.
            self.bins.resize_with(bin + 1, FreeRun::default);
        }
        self.bins[bin].insert(Entry { len, start, id });
        self.words[bin / WORD_BITS] |= 1 << (bin % WORD_BITS);
        self.summary |= 1 << (bin / WORD_BITS);
        self.len += 1;
    }

    /// Takes a block out.
    ///
    /// # Panics
    /// When the block is not in the index: the bookkeeping is broken.
    #[inline]
    pub(crate) fn remove(&mut self, len: usize, start: usize) -> BlockId {
        let bin = self.bin_of(len);
        let run = &mut self.bins[bin];
        let id = run.remove(len, start).expect("a free block is in the index");
        if run.is_empty() {
            let word = &mut self.words[bin / WORD_BITS];
            *word &= !(1 << (bin % WORD_BITS));
            if *word == 0 {
                self.summary &= !(1 << (bin / WORD_BITS));
            }
        }
        self.len -= 1;
        id
    }

    /// The first bin from `from` that is not empty.
    #[inline]
    fn next_bin(&self, from: usize) -> Option<usize> {
        if from >= BIN_COUNT {
            return None;
        }
        let word = from / WORD_BITS;
        let rest = self.words[word] & (u64::MAX << (from % WORD_BITS));
        if rest != 0 {
            return Some(word * WORD_BITS + rest.trailing_zeros() as usize);
        }
        let later = self.summary & (u32::MAX << (word + 1));
        if later == 0 {
            return None;
        }
        let word = later.trailing_zeros() as usize;
        Some(word * WORD_BITS + self.words[word].trailing_zeros() as usize)
    }

    /// The bin of blocks of `len` bytes.
    #[inline]
    fn bin_of(&self, len: usize) -> usize {
        let granules = len >> self.granule_shift;
        if granules < SUB_COUNT {
            return granules;
        }
        let exponent = granules.ilog2();
        let sub = (granules >> (exponent - SUB_BITS)) & (SUB_COUNT - 1);
        ((exponent - SUB_BITS + 1) as usize) * SUB_COUNT + sub
    }

    /// Whether exactly this block is in the index.
    pub(crate) fn contains(&self, len: usize, start: usize, id: BlockId) -> bool {
        self.bins.get(self.bin_of(len)).is_some_and(|run| run.contains(Entry { len, start, id }))
    }

    /// Walks the index and names the first rule that does not hold.
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut seen = 0;
        for (bin, run) in self.bins.iter().enumerate() {
            let mut before = None;
            for entry in run.iter_from(0) {
                if self.bin_of(entry.len) != bin {
                    return Err(format!("a block of {} bytes is in bin {bin}", entry.len));
                }
                if before.is_some_and(|before| before >= (entry.len, entry.start)) {
                    return Err(format!("bin {bin} is out of order at {:#x}", entry.start));
                }
                before = Some((entry.len, entry.start));
                seen += 1;
            }
            let bit = self.words[bin / WORD_BITS] >> (bin % WORD_BITS) & 1 == 1;
            if bit == run.is_empty() {
                return Err(format!("the bit of bin {bin} is {bit}, its blocks say otherwise"));
            }
        }
        for (word, bits) in self.words.iter().enumerate() {
            if (self.summary >> word & 1 == 1) != (*bits != 0) {
                return Err(format!("the summary bit of word {word} is wrong"));
            }
        }
        if seen != self.len {
            return Err(format!("{seen} blocks are in the bins, {} were counted", self.len));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
