//! TensorFlow's allocator once more, as its source has it: chunks by address, and 21 bins that are
//! searched one after the other.

use std::collections::{BTreeMap, BTreeSet};

use mempool_arena::{AddressRange, SimulatedUpstream, Upstream};

const MIN_ALLOCATION_BYTES: usize = 256;
const BIN_COUNT: usize = 21;

struct Chunk {
    len: usize,
    region: usize,
    in_use: bool,
}

/// The algorithm, on an upstream that never refuses.
pub struct Model {
    upstream: SimulatedUpstream,
    chunks: BTreeMap<usize, Chunk>,
    bins: Vec<BTreeSet<(usize, usize)>>,
    region_bytes: usize,
    region_count: usize,
    max_fragmentation_bytes: usize,
}

impl Model {
    pub fn new(upstream: SimulatedUpstream, region_bytes: usize, max_fragmentation_bytes: usize) -> Self {
        Self {
            upstream,
            chunks: BTreeMap::new(),
            bins: vec![BTreeSet::new(); BIN_COUNT],
            region_bytes,
            region_count: 0,
            max_fragmentation_bytes,
        }
    }

    /// Where the block lies, and its length.
    pub fn allocate(&mut self, bytes: usize, align: usize) -> (usize, usize) {
        let rounded = bytes.max(1).next_multiple_of(MIN_ALLOCATION_BYTES);
        if let Some(found) = self.find(rounded, align) {
            return found;
        }
        self.extend(rounded);
        self.find(rounded, align).expect("the new region holds it")
    }

    pub fn free(&mut self, addr: usize) {
        let chunk = self.chunks.get_mut(&addr).expect("a live chunk");
        chunk.in_use = false;
        let (region, end) = (chunk.region, addr + chunk.len);
        let free = |chunk: &Chunk| !chunk.in_use && chunk.region == region;
        if self.chunks.get(&end).is_some_and(free) {
            self.merge(addr, end);
        }
        let before = self.chunks.range(..addr).next_back().filter(|(_, chunk)| free(chunk));
        match before.map(|(&start, _)| start) {
            Some(start) => {
                let len = self.chunks[&start].len;
                self.bins[bin_of(len)].remove(&(len, start));
                let len = self.chunks.remove(&addr).expect("it is there").len;
                self.chunks.get_mut(&start).expect("it is there").len += len;
                self.insert_free(start);
            }
            None => self.insert_free(addr),
        }
    }

    /// Joins a chunk that is in no bin with the free one behind it.
    fn merge(&mut self, start: usize, next: usize) {
        let len = self.chunks.remove(&next).expect("it is there").len;
        self.bins[bin_of(len)].remove(&(len, next));
        self.chunks.get_mut(&start).expect("it is there").len += len;
    }

    fn insert_free(&mut self, start: usize) {
        let len = self.chunks[&start].len;
        self.bins[bin_of(len)].insert((len, start));
    }

    fn find(&mut self, rounded: usize, align: usize) -> Option<(usize, usize)> {
        for bin in bin_of(rounded)..BIN_COUNT {
            let padding = |start: usize| start.next_multiple_of(align) - start;
            let fits = |&&(len, start): &&(usize, usize)| len >= rounded + padding(start);
            let Some(&(len, start)) = self.bins[bin].iter().find(fits) else { continue };
            self.bins[bin].remove(&(len, start));
            let addr = start + padding(start);
            if addr > start {
                self.split(start, addr - start);
                self.insert_free(start);
            }
            let len = self.chunks[&addr].len;
            if len >= rounded * 2 || len - rounded >= self.max_fragmentation_bytes {
                self.split(addr, rounded);
                self.insert_free(addr + rounded);
            }
            let chunk = self.chunks.get_mut(&addr).expect("found above");
            chunk.in_use = true;
            return Some((addr, chunk.len));
        }
        None
    }

    fn split(&mut self, start: usize, head_len: usize) {
        let head = self.chunks.get_mut(&start).expect("a chunk is cut");
        let tail = Chunk { len: head.len - head_len, region: head.region, in_use: false };
        head.len = head_len;
        self.chunks.insert(start + head_len, tail);
    }

    fn extend(&mut self, rounded: usize) {
        let mut increased = false;
        while rounded > self.region_bytes {
            self.region_bytes *= 2;
            increased = true;
        }
        let AddressRange { start, len } =
            self.upstream.reserve(self.region_bytes).expect("addresses are left");
        if !increased {
            self.region_bytes *= 2;
        }
        self.region_count += 1;
        self.chunks.insert(start, Chunk { len, region: self.region_count, in_use: false });
        self.insert_free(start);
    }
}

fn bin_of(len: usize) -> usize {
    ((len / MIN_ALLOCATION_BYTES).ilog2() as usize).min(BIN_COUNT - 1)
}
