//! Blocks that are never cut and never joined: a freed block serves whole, or not at all.
//!
//! This is how memory behaves without an allocator in front of the driver (`none`: nothing
//! serves twice), with a cache of exact sizes (`simple`), and in pools whose blocks must each
//! have memory of their own (`no_split`). Each *chunk*, a run of pages that is mapped and given
//! back as one, holds one block; unless blocks need chunks of their own, small ones share chunks
//! of a page, in which they are placed one behind the other.

mod validate;

use std::collections::BTreeMap;

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::address_space::{AddressSpace, Place};
use crate::error::{ArenaError, MapError, UpstreamError};
use crate::invariant::Violation;
use crate::placement::{DEFAULT_RANGE_BYTES, LiveBlock, Placed, Placement, check_granule, check_page};
use crate::range::AddressRange;
use crate::request::Request;
use crate::stats::{SizeClass, Stats};
use crate::upstream::Upstream;

/// Which requests a freed block serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reuse {
    /// None. Its memory goes back at once.
    Never,
    /// Those of its size.
    SameSize,
    /// Those that leave at most this many bytes of it unused, or half of it.
    Larger {
        /// See above.
        waste_bytes: usize,
    },
}

/// Options of [`Whole`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WholeOptions {
    /// Sizes are rounded up to a multiple of this power of two, and blocks are aligned to it.
    pub granule_bytes: usize,
    /// Blocks up to this size share pages. 0: every block has pages of its own.
    pub shared_limit_bytes: usize,
    /// Mapped bytes are kept at or below this.
    pub limit_bytes: Option<usize>,
    /// Length of a virtual range.
    pub range_bytes: usize,
    /// Reserves a range for each chunk, for an upstream whose ranges are memory.
    pub whole_ranges: bool,
    /// Which requests a freed block serves.
    pub reuse: Reuse,
}

impl Default for WholeOptions {
    fn default() -> Self {
        Self {
            granule_bytes: 512,
            shared_limit_bytes: 1 << 20,
            limit_bytes: None,
            range_bytes: DEFAULT_RANGE_BYTES,
            whole_ranges: false,
            reuse: Reuse::SameSize,
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Block {
    chunk: u32,
    len: usize,
    /// Bytes asked for; `None` for a free block.
    requested: Option<usize>,
    /// A block has ended here since its memory was mapped.
    dirty: bool,
}

/// Pages that are mapped and given back as one.
#[derive(Debug)]
struct Chunk {
    place: Place,
    /// All of `place`, unless upstream took back or gave only a part.
    mapped: AddressRange,
    /// Where the next block that shares the chunk begins.
    next: usize,
    live: usize,
    live_bytes: usize,
    /// That of the request it was mapped for.
    class: SizeClass,
    blocks: Vec<usize>,
    /// Free blocks and bytes, as counted, while others are live.
    split_blocks: usize,
    split_bytes: usize,
}

impl Chunk {
    fn is_whole(&self) -> bool {
        self.mapped == self.place.range
    }
}

/// The policy; see the module's text.
#[derive(Debug)]
pub struct Whole {
    options: WholeOptions,
    page_bytes: usize,
    blocks: HashMap<usize, Block, FxBuildHasher>,
    /// Addresses of free blocks by their length; what was freed last serves first.
    free: BTreeMap<usize, Vec<usize>>,
    chunks: Vec<Option<Chunk>>,
    unused_chunks: Vec<u32>,
    /// The chunk that the next small block shares.
    shared: Option<u32>,
    addresses: AddressSpace,
    stats: Stats,
}

impl Whole {
    /// An empty placement.
    ///
    /// # Errors
    /// [`ArenaError::Option`] when an option has a value that cannot work.
    pub fn new(options: WholeOptions) -> Result<Self, ArenaError> {
        check_granule(options.granule_bytes)?;
        if options.range_bytes == 0 {
            return Err(ArenaError::Option {
                option: "range_bytes",
                value: 0,
                rule: "a range needs a length",
            });
        }
        Ok(Self {
            page_bytes: options.granule_bytes,
            addresses: AddressSpace::new(options.range_bytes, options.whole_ranges),
            options,
            blocks: HashMap::default(),
            free: BTreeMap::new(),
            chunks: Vec::new(),
            unused_chunks: Vec::new(),
            shared: None,
            stats: Stats::default(),
        })
    }

    fn chunk(&self, index: u32) -> &Chunk {
        self.chunks[index as usize].as_ref().expect("a block's chunk exists")
    }

    fn chunk_mut(&mut self, index: u32) -> &mut Chunk {
        self.chunks[index as usize].as_mut().expect("a block's chunk exists")
    }

    fn is_shared(&self, len: usize, align: usize) -> bool {
        len <= self.options.shared_limit_bytes && align <= self.page_bytes
    }

    /// The free block that serves a request, out of the index.
    fn take_free(&mut self, len: usize, align: usize) -> Option<usize> {
        let most = match self.options.reuse {
            Reuse::Never => return None,
            Reuse::SameSize => len,
            Reuse::Larger { waste_bytes } => len.saturating_add(waste_bytes.max(len)),
        };
        let aligned = |addr: &usize| addr.is_multiple_of(align);
        let found = self
            .free
            .range(len..=most)
            .find_map(|(&size, addrs)| addrs.iter().rposition(aligned).map(|at| (size, at)));
        let (size, at) = found?;
        let addrs = self.free.get_mut(&size).expect("found above");
        let addr = addrs.remove(at);
        if addrs.is_empty() {
            self.free.remove(&size);
        }
        Some(addr)
    }

    /// Where the next block of the shared chunk would begin, if it fits.
    fn next_shared(&self, len: usize, align: usize) -> Option<(u32, usize)> {
        let index = self.shared?;
        let chunk = self.chunk(index);
        let addr = chunk.next.checked_next_multiple_of(align.max(self.options.granule_bytes))?;
        (addr.checked_add(len)? <= chunk.place.range.end()).then_some((index, addr))
    }

    fn place_mapped(&mut self, request: Request, len: usize) -> Option<Placed> {
        let len = self.block_bytes(len, request.align_bytes)?;
        let align = request.align_bytes;
        if let Some(addr) = self.take_free(len, align) {
            return Some(self.make_live(addr, request.size_bytes, true));
        }
        if !self.is_shared(len, align) {
            return None;
        }
        let (index, addr) = self.next_shared(len, align)?;
        Some(self.place_at(index, addr, len, request.size_bytes, true))
    }

    /// Bytes that a block for this request takes.
    fn block_bytes(&self, len: usize, align: usize) -> Option<usize> {
        if self.is_shared(len, align) { Some(len) } else { len.checked_next_multiple_of(self.page_bytes) }
    }

    /// Adds a block at the end of the used part of a chunk.
    fn place_at(&mut self, index: u32, addr: usize, len: usize, requested: usize, hit: bool) -> Placed {
        self.blocks.insert(addr, Block { chunk: index, len, requested: None, dirty: false });
        let chunk = self.chunk_mut(index);
        chunk.next = addr + len;
        chunk.blocks.push(addr);
        self.make_live(addr, requested, hit)
    }

    fn make_live(&mut self, addr: usize, requested: usize, hit: bool) -> Placed {
        let block = self.blocks.get_mut(&addr).expect("it was free");
        block.requested = Some(requested);
        let (index, len) = (block.chunk, block.len);
        let chunk = self.chunk_mut(index);
        chunk.live += 1;
        chunk.live_bytes += len;
        let class = chunk.class;
        if chunk.live == 1 {
            let bytes = chunk.place.range.len;
            self.stats.releasable_bytes -= bytes;
        }
        self.stats.count_allocation(class, requested, len, hit);
        self.count_splits(index);
        Placed { addr, allocated_bytes: len, hit }
    }

    /// Brings the figures about free parts of used chunks up to date, after a block of the chunk
    /// became live, or free.
    fn count_splits(&mut self, index: u32) {
        let chunk = self.chunk_mut(index);
        let (mut blocks, mut bytes) = (0, 0);
        if chunk.live > 0 {
            blocks = chunk.blocks.len() - chunk.live;
            bytes = chunk.mapped.len - chunk.live_bytes;
        }
        let blocks = (std::mem::replace(&mut chunk.split_blocks, blocks), blocks);
        let bytes = (std::mem::replace(&mut chunk.split_bytes, bytes), bytes);
        let class = chunk.class;
        self.stats.change_split(class, blocks, bytes);
    }

    fn insert_chunk(&mut self, chunk: Chunk) -> u32 {
        match self.unused_chunks.pop() {
            Some(index) => {
                self.chunks[index as usize] = Some(chunk);
                index
            }
            None => {
                self.chunks.push(Some(chunk));
                u32::try_from(self.chunks.len() - 1).expect("fewer than 2^32 chunks are mapped")
            }
        }
    }

    /// Maps a new chunk, or says how many bytes are missing and why.
    fn map_chunk(
        &mut self,
        class: SizeClass,
        len: usize,
        align: usize,
        upstream: &mut dyn Upstream,
    ) -> Result<u32, (usize, Option<UpstreamError>)> {
        let over = self
            .options
            .limit_bytes
            .map_or(0, |limit| self.stats.reserved.current.saturating_add(len).saturating_sub(limit));
        if over > 0 {
            return Err((over, None));
        }
        let taken = self.addresses.take(len, align, class, upstream, &mut self.stats);
        let place = taken.map_err(|error| (len, Some(error)))?;
        let range = place.range;
        self.stats.map_calls += 1;
        let result = upstream.map(range);
        let mapped_bytes = result.as_ref().map_or_else(|error| error.completed_bytes, |()| len);
        self.stats.count_mapped(class, mapped_bytes);
        self.stats.releasable_bytes += mapped_bytes;
        let mapped = AddressRange::new(range.start, mapped_bytes);
        let chunk = Chunk {
            place,
            mapped,
            next: range.start,
            live: 0,
            live_bytes: 0,
            class,
            blocks: Vec::new(),
            split_blocks: 0,
            split_bytes: 0,
        };
        let index = self.insert_chunk(chunk);
        match result {
            Ok(()) => Ok(index),
            Err(MapError { source, .. }) => {
                self.unmap_chunk(index, upstream);
                Err((len, Some(source)))
            }
        }
    }

    /// Unmaps a chunk without live blocks, and returns how many bytes upstream took. What it did
    /// not take stays mapped; if it took a part, the rest serves nobody until the next try. The list of
    /// free blocks is the caller's.
    fn unmap_chunk(&mut self, index: u32, upstream: &mut dyn Upstream) -> usize {
        let Chunk { mapped, class, .. } = *self.chunk(index);
        let done = if mapped.is_empty() {
            0
        } else {
            self.stats.unmap_calls += 1;
            match upstream.unmap(mapped) {
                Ok(()) => mapped.len,
                Err(MapError { completed_bytes, .. }) => completed_bytes,
            }
        };
        if done == 0 && !mapped.is_empty() {
            return 0;
        }
        if self.shared == Some(index) {
            self.shared = None;
        }
        self.stats.count_unmapped(class, done);
        self.stats.releasable_bytes -= done;
        let chunk = self.chunk_mut(index);
        chunk.mapped = AddressRange::between(mapped.start + done, mapped.end());
        chunk.next = chunk.place.range.end();
        let (gone, blocks) = (chunk.mapped.is_empty(), std::mem::take(&mut chunk.blocks));
        for addr in blocks {
            self.blocks.remove(&addr);
        }
        if gone {
            let chunk = self.chunks[index as usize].take().expect("it was there");
            self.unused_chunks.push(index);
            self.addresses.give(chunk.place, upstream, &mut self.stats);
        }
        done
    }

    fn unmap_free_chunks(&mut self, upstream: &mut dyn Upstream, target_bytes: usize) -> usize {
        let mut returned = 0;
        for index in 0..self.chunks.len() as u32 {
            if returned >= target_bytes {
                break;
            }
            if self.chunks[index as usize].as_ref().is_some_and(|chunk| chunk.live == 0) {
                returned += self.unmap_chunk(index, upstream);
            }
        }
        // The free blocks of those chunks are no more.
        let blocks = &self.blocks;
        self.free.retain(|_, addrs| {
            addrs.retain(|addr| blocks.contains_key(addr));
            !addrs.is_empty()
        });
        returned
    }

    fn out_of_memory(&mut self, requested_bytes: usize, source: Option<UpstreamError>) -> ArenaError {
        self.stats.failures += 1;
        ArenaError::OutOfMemory {
            requested_bytes,
            allocated_bytes: self.stats.allocated.current,
            reserved_bytes: self.stats.reserved.current,
            limit_bytes: self.options.limit_bytes,
            largest_free_bytes: self.largest_free_bytes(),
            inactive_split_bytes: self.stats.inactive_split.current,
            source,
        }
    }
}

impl Placement for Whole {
    fn name(&self) -> &'static str {
        match self.options.reuse {
            Reuse::Never => "none",
            Reuse::SameSize => "simple",
            Reuse::Larger { .. } => "no_split",
        }
    }

    fn allocate(&mut self, request: Request, upstream: &mut dyn Upstream) -> Result<Placed, ArenaError> {
        let len = request.rounded_bytes(self.options.granule_bytes)?;
        if let Some(placed) = self.place_mapped(request, len) {
            return Ok(placed);
        }
        check_page(self.options.granule_bytes, upstream.page_bytes())?;
        self.page_bytes = upstream.page_bytes();
        let (size_bytes, align) = (request.size_bytes, request.align_bytes);
        let overflow = ArenaError::SizeOverflow { size_bytes, align_bytes: align };
        let class = SizeClass::of(len);
        let len = self.block_bytes(len, align).ok_or(overflow.clone())?;
        let chunk_bytes = len.checked_next_multiple_of(self.page_bytes).ok_or(overflow)?;
        let index = loop {
            let (missing, source) = match self.map_chunk(class, chunk_bytes, align, upstream) {
                Ok(index) => break index,
                Err(refused) => refused,
            };
            // When giving up everything would not be enough, nothing is given up.
            let spare_bytes = self.stats.releasable_bytes;
            let hopeless = if source.is_none() {
                spare_bytes < missing
            } else {
                self.stats.reserved.current - spare_bytes + missing > upstream.capacity_bytes()
            };
            if hopeless || self.unmap_free_chunks(upstream, missing) == 0 {
                return Err(self.out_of_memory(size_bytes, source));
            }
        };
        let start = self.chunk(index).place.range.start;
        if self.is_shared(len, align) {
            self.shared = Some(index);
        }
        Ok(self.place_at(index, start, len, size_bytes, false))
    }

    fn allocate_mapped(&mut self, request: Request) -> Option<Placed> {
        let len = request.rounded_bytes(self.options.granule_bytes).ok()?;
        self.place_mapped(request, len)
    }

    fn free(&mut self, addr: usize, upstream: &mut dyn Upstream) -> Result<LiveBlock, ArenaError> {
        let ended = self.live_block(addr).ok_or(ArenaError::UnknownAddress { addr })?;
        let block = self.blocks.get_mut(&addr).expect("found above");
        (block.requested, block.dirty) = (None, true);
        let (index, len) = (block.chunk, block.len);
        let class = self.chunk(index).class;
        self.stats.count_free(class, ended.requested_bytes, len);
        if self.options.reuse != Reuse::Never {
            self.free.entry(len).or_default().push(addr);
        }
        let chunk = self.chunk_mut(index);
        chunk.live -= 1;
        chunk.live_bytes -= len;
        let (live, bytes) = (chunk.live, chunk.place.range.len);
        if live == 0 {
            self.stats.releasable_bytes += bytes;
        }
        self.count_splits(index);
        if live == 0 && self.options.reuse == Reuse::Never {
            self.unmap_chunk(index, upstream);
        }
        Ok(ended)
    }

    fn resize_in_place(
        &mut self,
        addr: usize,
        size_bytes: usize,
        _: &mut dyn Upstream,
    ) -> Result<Option<LiveBlock>, ArenaError> {
        let len = Request::new(size_bytes).rounded_bytes(self.options.granule_bytes)?;
        let old = self.live_block(addr).ok_or(ArenaError::UnknownAddress { addr })?;
        if len > old.allocated_bytes {
            return Ok(None);
        }
        let block = self.blocks.get_mut(&addr).expect("found above");
        block.requested = Some(size_bytes);
        let index = block.chunk;
        let class = self.chunk(index).class;
        let allocated = (old.allocated_bytes, old.allocated_bytes);
        self.stats.count_resize(class, (old.requested_bytes, size_bytes), allocated);
        Ok(self.live_block(addr))
    }

    fn trim(&mut self, upstream: &mut dyn Upstream, target_bytes: usize) -> usize {
        let returned = self.unmap_free_chunks(upstream, target_bytes);
        self.addresses.release_unused(upstream, &mut self.stats);
        returned
    }

    fn live_block(&self, addr: usize) -> Option<LiveBlock> {
        let block = self.blocks.get(&addr)?;
        Some(LiveBlock { addr, requested_bytes: block.requested?, allocated_bytes: block.len })
    }

    fn live_blocks(&self) -> Vec<LiveBlock> {
        self.blocks.keys().filter_map(|&addr| self.live_block(addr)).collect()
    }

    fn clean_ranges(&self, addr: usize) -> Vec<AddressRange> {
        match self.blocks.get(&addr) {
            Some(block) if block.requested.is_some() && !block.dirty => {
                vec![AddressRange::new(addr, block.len)]
            }
            _ => Vec::new(),
        }
    }

    fn settle(&mut self) {}

    fn largest_free_bytes(&self) -> usize {
        let cached = self.free.last_key_value().map_or(0, |(&len, _)| len);
        let next = self.shared.map_or(0, |index| {
            let chunk = self.chunk(index);
            (chunk.place.range.end() - chunk.next).min(self.options.shared_limit_bytes)
        });
        cached.max(next)
    }

    fn mapped_ranges(&self) -> Vec<AddressRange> {
        self.chunks.iter().flatten().map(|chunk| chunk.mapped).filter(|range| !range.is_empty()).collect()
    }

    fn mapped_by_class(&self) -> Vec<(AddressRange, SizeClass)> {
        let mapped = self.chunks.iter().flatten().filter(|chunk| !chunk.mapped.is_empty());
        mapped.map(|chunk| (chunk.mapped, chunk.class)).collect()
    }

    fn class_of_block(&self, addr: usize) -> SizeClass {
        self.blocks.get(&addr).map_or(SizeClass::Large, |block| self.chunk(block.chunk).class)
    }

    fn stats(&self) -> &Stats {
        &self.stats
    }

    fn stats_mut(&mut self) -> &mut Stats {
        &mut self.stats
    }

    fn validate(&self) -> Result<(), Violation> {
        self.check_all()
    }
}
