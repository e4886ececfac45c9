//! Policy `pages`: best fit in virtual ranges whose pages are mapped where they are needed.
//!
//! A segment is a long virtual range; free blocks join with their neighbours at once, so a
//! segment has one free block between any two live ones. Mapping is independent of blocks:
//! pages are mapped when a block is placed on them and stay mapped when it ends. A free block
//! all of whose pages are mapped is *resident*, else *sparse*; a request takes the best fit
//! among resident blocks first, so new pages are mapped only when no mapped free block is
//! large enough. When the limit or upstream refuses new pages, whole free pages elsewhere in
//! the placement are unmapped to make room: memory moves to where it is needed without
//! copying a byte.
//!
//! Where a program repeats itself, a freed block waits for another request of its size before it
//! joins its neighbours ([`Parked`]).
//!
//! Small and large requests live in segments of their own ([`Zone`]), so that a small
//! survivor does not split a large block; on request so do large ones that are expected to live long
//! ([`Lifetimes`]).

mod cutting;
mod moving;
mod repeats;
mod residency;
mod validate;

use std::ops::ControlFlow;

use self::moving::FreeHandle;
use self::repeats::Repeats;
use crate::block::{Block, BlockId, BlockState, Blocks};
use crate::error::{ArenaError, UpstreamError};
use crate::in_advance::PartInAdvance;
use crate::invariant::Violation;
use crate::lifetimes::{Expected, Lifetimes};
use crate::page_map::PageMap;
use crate::parked::Parked;
use crate::placement::{DEFAULT_RANGE_BYTES, LiveBlock, Placed, Placement, check_granule, check_page};
use crate::range::AddressRange;
use crate::request::Request;
use crate::size_index::{FreeEntry, SizeIndex};
use crate::stats::{SizeClass, Stats};
use crate::upstream::Upstream;

/// Options of [`Pages`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PagesOptions {
    /// Sizes are rounded up to a multiple of this power of two, and blocks are aligned to it.
    pub granule_bytes: usize,
    /// Requests up to this size live apart from larger ones. 1 MiB, PyTorch's boundary.
    pub small_limit_bytes: usize,
    /// Mapped bytes are kept at or below this.
    pub limit_bytes: Option<usize>,
    /// Length of the first virtual range; each further one doubles. Address space is not
    /// memory: a range should be long enough that a pool rarely needs a second one.
    pub first_range_bytes: usize,
    /// When free pages move to where pages are needed.
    pub mode: Mode,
    /// After so many frees since a page was mapped a program is taken to repeat itself, and blocks that end
    /// wait for requests of their size. Before, that would keep others from the best place.
    pub park_after_frees: u32,
    /// Keeps large requests that are expected to live long apart from others.
    pub separate_lifetimes: bool,
    /// Maps each range whole when it is reserved and gives it back whole: for an upstream whose
    /// ranges are memory. A range is then `first_range_bytes` long for large requests and twice
    /// `small_limit_bytes` for small ones, or as long as a request that is more than half of that.
    pub whole_ranges: bool,
}

impl Default for PagesOptions {
    fn default() -> Self {
        Self {
            granule_bytes: 512,
            small_limit_bytes: 1 << 20,
            limit_bytes: None,
            first_range_bytes: DEFAULT_RANGE_BYTES,
            mode: Mode::OnPressure,
            park_after_frees: 8192,
            separate_lifetimes: false,
            whole_ranges: false,
        }
    }
}

/// When free pages move to where pages are needed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mode {
    /// When the limit or upstream would be exceeded.
    #[default]
    OnPressure,
    /// Also when more would be mapped than was ever asked for at once, and a little.
    Moving,
}

/// One virtual range.
#[derive(Debug)]
struct Segment {
    pages: PageMap,
    zone: usize,
    first_block: BlockId,
}

/// The free blocks of one class of sizes.
#[derive(Debug)]
struct Zone {
    resident: SizeIndex,
    sparse: SizeIndex,
    next_range_bytes: usize,
}

const SMALL: usize = 0;
const LARGE: usize = 1;
/// Large requests that are expected to live long.
const LONG: usize = 2;

/// A live block's `extra` has the bytes nobody asked for in its low bits, which are fewer than a granule,
/// so at most 1 MiB, and the number of its kind above them.
const SLACK_BITS: u32 = 20;

/// The zone of a request, and what is expected of it, if that was learned.
#[derive(Debug, Clone, Copy)]
struct Kind {
    zone: usize,
    expected: Option<Expected>,
}

/// The policy; see the module's text.
#[derive(Debug)]
pub struct Pages {
    options: PagesOptions,
    /// Upstream's page size, known from the first segment on.
    page_bytes: usize,
    blocks: Blocks,
    parked: Parked,
    zones: [Zone; 3],
    segments: Vec<Option<Segment>>,
    stats: Stats,
    /// See [`Placement::keep`].
    kept_bytes: usize,
    /// Upstream maps handles.
    handles: bool,
    /// Pages of each free block that lie on whole handles, by the block's number.
    releasable: Vec<u32>,
    /// The blocks in an index that have such pages: a bit for each number.
    have_releasable: Vec<u64>,
    /// Lists that serve again.
    free_handles: Vec<FreeHandle>,
    mapped_runs: Vec<(AddressRange, bool)>,
    lifetimes: Option<Lifetimes>,
    /// Until so many frees, what lives long goes apart: free memory could not go where it was needed.
    apart_until: u32,
    /// Frees so far, to tell which pages were free for long.
    frees: u32,
    /// A handle is no longer than this part of all that was ever asked for at once.
    handles_in_all: usize,
    /// What was asked for at most when it last rose, and the pages that moved since.
    settled_peak: usize,
    moved_pages: usize,
    /// How often more became allowed because memory went to and fro.
    more_slack: usize,
    /// Which moves are not worth it where there are no handles, and the bytes that were mapped more for that.
    repeats: Repeats,
    mapped_instead: usize,
    /// Blocks that waited for others of their size kept a step that repeats itself from coming to rest.
    joins_at_once: bool,
    /// Frees since a page was mapped last.
    quiet_frees: u32,
}

impl Pages {
    /// An empty placement.
    ///
    /// # Errors
    /// [`ArenaError::Option`] when an option has a value that cannot work.
    pub fn new(options: PagesOptions) -> Result<Self, ArenaError> {
        check_granule(options.granule_bytes)?;
        if options.first_range_bytes == 0 {
            return Err(ArenaError::Option {
                option: "first_range_bytes",
                value: 0,
                rule: "a range needs a length",
            });
        }
        let zone = || Zone {
            resident: SizeIndex::new(options.granule_bytes),
            sparse: SizeIndex::new(options.granule_bytes),
            next_range_bytes: options.first_range_bytes,
        };
        Ok(Self {
            zones: [zone(), zone(), zone()],
            lifetimes: options.separate_lifetimes.then(Lifetimes::default),
            kept_bytes: 0,
            handles: false,
            releasable: Vec::new(),
            have_releasable: Vec::new(),
            free_handles: Vec::new(),
            mapped_runs: Vec::new(),
            apart_until: 0,
            frees: 0,
            handles_in_all: moving::HANDLES_IN_ALL,
            settled_peak: 0,
            moved_pages: 0,
            more_slack: 0,
            repeats: Repeats::default(),
            mapped_instead: 0,
            joins_at_once: false,
            quiet_frees: 0,
            page_bytes: options.granule_bytes,
            options,
            blocks: Blocks::default(),
            parked: Parked::default(),
            segments: Vec::new(),
            stats: Stats::default(),
        })
    }

    /// Bitmap words and bins looked at by all searches so far.
    #[must_use]
    pub fn index_probes(&self) -> u64 {
        self.zones.iter().map(|zone| zone.resident.probes() + zone.sparse.probes()).sum()
    }

    /// Whether a block that ends now waits for another request of its size.
    #[inline]
    fn parks(&self) -> bool {
        self.quiet_frees >= self.options.park_after_frees && !self.joins_at_once
    }

    /// Whether blocks may wait before as many requests have come as are looked at to know them again.
    #[inline]
    fn soon_parks(&self) -> bool {
        self.quiet_frees >= self.options.park_after_frees / 2
    }

    /// The usual length of a range that is mapped whole.
    fn whole_range_bytes(&self, zone: usize) -> Option<usize> {
        let usual =
            if zone == SMALL { 2 * self.options.small_limit_bytes } else { self.options.first_range_bytes };
        self.options.whole_ranges.then_some(usual)
    }

    #[inline]
    fn kind_of(&self, len: usize) -> Kind {
        if len <= self.options.small_limit_bytes {
            return Kind { zone: SMALL, expected: None };
        }
        let expected = self.lifetimes.as_ref().map(|lifetimes| lifetimes.expect(len));
        let long = self.apart_until > self.frees && expected.is_some_and(|expected| expected.long);
        Kind { zone: if long { LONG } else { LARGE }, expected }
    }

    /// A live block's `extra`.
    #[inline]
    fn live_extra(&mut self, request: Request, len: usize, start: usize, kind: Kind) -> u32 {
        let slack = (len - request.size_bytes) as u32;
        match (kind.expected, &mut self.lifetimes) {
            (Some(expected), Some(lifetimes)) => {
                slack | u32::from(lifetimes.began(expected, len, start)) << SLACK_BITS
            }
            _ => slack,
        }
    }

    #[inline]
    fn segment(&self, block: &Block) -> &Segment {
        self.segments[block.segment as usize].as_ref().expect("a block's segment exists")
    }

    /// The class of the segment that a block lies in.
    #[inline]
    fn class_of(&self, id: BlockId) -> SizeClass {
        class_of(self.segment(self.blocks.get(id)).zone)
    }

    /// Number of whole pages in `range`.
    #[inline]
    fn whole_pages(&self, range: AddressRange) -> usize {
        range.inner_pages(self.page_bytes).len >> self.page_bytes.trailing_zeros()
    }

    #[inline]
    fn range_of(&self, id: BlockId) -> AddressRange {
        self.blocks.get(id).range()
    }

    /// Reserves a range in which `len` bytes aligned to `align` fit, and returns its one free block.
    fn add_segment(
        &mut self,
        zone: usize,
        len: usize,
        align: usize,
        upstream: &mut dyn Upstream,
    ) -> Result<FreeEntry, ArenaError> {
        let page_bytes = upstream.page_bytes();
        check_page(self.options.granule_bytes, page_bytes)?;
        let padding = align.saturating_sub(page_bytes);
        let needed = (len + padding).next_multiple_of(page_bytes);
        let wanted = match self.whole_range_bytes(zone) {
            // A range that this request fills by half serves nobody better for being longer.
            Some(usual) if needed > usual / 2 => needed,
            Some(usual) => usual.next_multiple_of(page_bytes),
            None => {
                let next = self.zones[zone].next_range_bytes.checked_next_multiple_of(page_bytes);
                next.unwrap_or(needed).max(needed)
            }
        };
        // A short range still serves this request when address space is scarce.
        let range = upstream
            .reserve(wanted)
            .or_else(|error| if wanted > needed { upstream.reserve(needed) } else { Err(error) })?;
        if range.len >= wanted && !self.options.whole_ranges {
            self.zones[zone].next_range_bytes = wanted.saturating_mul(2);
        }
        self.page_bytes = page_bytes;
        self.handles = upstream.maps_handles();
        let slot = self.segments.iter().position(Option::is_none).unwrap_or(self.segments.len());
        let Ok(segment) = u16::try_from(slot) else {
            // Ranges double, so their number is a logarithm of the address space; only an
            // upstream with next to none left gets here.
            upstream.release(range)?;
            return Err(UpstreamError::AddressSpace { requested_bytes: needed }.into());
        };
        let id = self.blocks.insert(Block {
            start: range.start,
            len: range.len,
            prev: BlockId::NONE,
            next: BlockId::NONE,
            extra: 0,
            segment,
            state: BlockState::Free,
            dirty: false,
        });
        let segment = Segment { pages: PageMap::new(range, page_bytes), zone, first_block: id };
        if slot == self.segments.len() {
            self.segments.push(Some(segment));
        } else {
            self.segments[slot] = Some(segment);
        }
        self.stats.count_segment(class_of(zone));
        self.insert_free(id);
        Ok(FreeEntry { len: range.len, start: range.start, id })
    }

    /// Lengthens a live block by the first `needed` bytes of the free block behind it, if there
    /// are as many and their pages can be mapped.
    fn take_from_next(&mut self, id: BlockId, needed: usize, upstream: &mut dyn Upstream) -> bool {
        let next = self.blocks.get(id).next;
        if !next.is_none() && self.blocks.get(next).state == BlockState::Parked {
            self.settle();
        }
        let next = self.blocks.get(id).next;
        if next.is_none()
            || self.blocks.get(next).state != BlockState::Free
            || self.blocks.get(next).len < needed
        {
            return false;
        }
        self.remove_free(next);
        let part = AddressRange::new(self.blocks.get(id).end(), needed);
        if self.map_missing(next, part, upstream).is_err() {
            self.insert_free(next);
            return false;
        }
        // The new part is a live block for a moment, and joins the one before it.
        let taken = self.carve(next, part.start, needed, 0);
        self.blocks.withdraw(taken);
        self.blocks.absorb_next(id);
        self.blocks.get_mut(id).dirty = false;
        true
    }

    /// Places a block of `len` bytes on memory that is mapped already.
    #[inline]
    fn place_mapped(&mut self, request: Request, len: usize, kind: Kind) -> Option<Placed> {
        let (align, granule) = (request.align_bytes, self.options.granule_bytes);
        if let Some(id) = self.parked.take(len, align, &self.blocks) {
            if kind.zone != LONG || self.segment(self.blocks.get(id)).zone == LONG {
                let addr = self.blocks.get(id).start;
                let extra = self.live_extra(request, len, addr, kind);
                let block = self.blocks.get_mut(id);
                (block.state, block.extra) = (BlockState::Live, extra);
                self.stats.parked_bytes -= len;
                let class = self.class_of(id);
                self.stats.count_allocation(class, request.size_bytes, len, true);
                return Some(Placed { addr, allocated_bytes: len, hit: true });
            }
            let parked = self.parked.push(id, &mut self.blocks);
            debug_assert!(parked, "it came from there");
        }
        if let Some(entry) = Self::find(&mut self.zones[kind.zone].resident, len, align, granule) {
            return Some(self.place_resident(entry, request, len, kind));
        }
        if !self.parked.is_empty() {
            self.settle();
            if let Some(entry) = Self::find(&mut self.zones[kind.zone].resident, len, align, granule) {
                return Some(self.place_resident(entry, request, len, kind));
            }
        }
        // What is there for those that live long does no harm to those that do not.
        if kind.zone == LARGE
            && self.lifetimes.is_some()
            && let Some(entry) = Self::find(&mut self.zones[LONG].resident, len, align, granule)
        {
            return Some(self.place_resident(entry, request, len, kind));
        }
        let entry = self.find_mapped_front(kind.zone, len, align)?;
        Some(self.place_resident(entry, request, len, kind))
    }

    /// A sparse block whose front is mapped far enough.
    fn find_mapped_front(&self, zone: usize, len: usize, align: usize) -> Option<FreeEntry> {
        /// Sparse blocks that are looked at: there are few, unless memory was short.
        const LOOKED_AT: usize = 32;
        let pages = len / self.page_bytes;
        let (mut found, mut looked_at) = (None, 0);
        self.zones[zone].sparse.visit_from(len, |id| {
            let block = self.blocks.get(id);
            let start = cutting::aligned_start(block.start, align);
            let part = AddressRange::new(start, len);
            if block.extra as usize >= pages
                && part.end() <= block.end()
                && self.segment(block).pages.is_mapped(part)
            {
                found = Some(FreeEntry { len: block.len, start: block.start, id });
            }
            looked_at += 1;
            if found.is_some() || looked_at == LOOKED_AT {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        found
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

    /// The live block that starts at `addr`.
    #[inline]
    fn live_id(&self, addr: usize) -> Result<BlockId, ArenaError> {
        let id = self.blocks.find(addr).filter(|&id| self.blocks.get(id).state == BlockState::Live);
        id.ok_or(ArenaError::UnknownAddress { addr })
    }

    #[inline]
    fn describe(&self, id: BlockId) -> LiveBlock {
        let block = self.blocks.get(id);
        LiveBlock {
            addr: block.start,
            requested_bytes: block.len - (block.extra & ((1 << SLACK_BITS) - 1)) as usize,
            allocated_bytes: block.len,
        }
    }
}

/// The class of the segments of a zone.
#[inline]
fn class_of(zone: usize) -> SizeClass {
    if zone == SMALL { SizeClass::Small } else { SizeClass::Large }
}

impl Placement for Pages {
    fn name(&self) -> &'static str {
        "pages"
    }

    #[inline]
    fn allocate(&mut self, request: Request, upstream: &mut dyn Upstream) -> Result<Placed, ArenaError> {
        let len = request.rounded_bytes(self.options.granule_bytes)?;
        let kind = self.kind_of(len);
        if self.options.mode == Mode::Moving && (!self.handles || self.soon_parks()) {
            self.repeats.note_request(len);
        }
        match self.place_mapped(request, len, kind) {
            Some(placed) => Ok(placed),
            None => self.allocate_sparse(request, len, kind, upstream),
        }
    }

    #[inline]
    fn allocate_mapped(&mut self, request: Request) -> Option<Placed> {
        let len = request.rounded_bytes(self.options.granule_bytes).ok()?;
        self.place_mapped(request, len, self.kind_of(len))
    }

    #[inline]
    fn free(&mut self, addr: usize, upstream: &mut dyn Upstream) -> Result<LiveBlock, ArenaError> {
        let parks = self.parks();
        let id = if parks {
            self.live_id(addr)?
        } else {
            let id = self.blocks.withdraw_at(addr, |block| block.state == BlockState::Live);
            id.ok_or(ArenaError::UnknownAddress { addr })?
        };
        self.quiet_frees = self.quiet_frees.saturating_add(1);
        let ended = self.describe(id);
        let block = *self.blocks.get(id);
        let class = class_of(self.segment(&block).zone);
        self.stats.count_free(class, ended.requested_bytes, ended.allocated_bytes);
        if let Some(lifetimes) = &mut self.lifetimes {
            lifetimes.ended((block.extra >> SLACK_BITS) as u16, addr);
        }
        upstream.note_freed(block.range());
        if !block.dirty {
            self.pages_mut(block.segment as usize).set_dirty(block.range());
            self.blocks.get_mut(id).dirty = true;
        }
        if !parks {
            self.settle_block(id);
            return Ok(ended);
        }
        if !self.parked.push(id, &mut self.blocks) {
            // Another size, or enough of this one: the place is made free for what is freed now,
            // since that is what the next requests are most likely to be like.
            while let Some(other) = self.parked.evict(block.len, &self.blocks) {
                self.unpark(other);
            }
            let parked = self.parked.push(id, &mut self.blocks);
            debug_assert!(parked);
        }
        self.blocks.get_mut(id).state = BlockState::Parked;
        self.stats.parked_bytes += block.len;
        Ok(ended)
    }

    fn resize_in_place(
        &mut self,
        addr: usize,
        size_bytes: usize,
        upstream: &mut dyn Upstream,
    ) -> Result<Option<LiveBlock>, ArenaError> {
        let len = Request::new(size_bytes).rounded_bytes(self.options.granule_bytes)?;
        let id = self.live_id(addr)?;
        let old = self.describe(id);
        if len > old.allocated_bytes {
            if !self.take_from_next(id, len - old.allocated_bytes, upstream) {
                return Ok(None);
            }
        } else if len < old.allocated_bytes {
            let tail = self.blocks.split(id, len);
            let part = self.range_of(tail);
            let slot = self.blocks.get(tail).segment as usize;
            self.pages_mut(slot).set_dirty(part);
            self.settle_block(tail);
        }
        let block = self.blocks.get_mut(id);
        block.extra = (block.extra >> SLACK_BITS << SLACK_BITS) | (len - size_bytes) as u32;
        let (new, class) = (self.describe(id), self.class_of(id));
        self.stats.count_resize(
            class,
            (old.requested_bytes, new.requested_bytes),
            (old.allocated_bytes, new.allocated_bytes),
        );
        Ok(Some(new))
    }

    fn trim(&mut self, upstream: &mut dyn Upstream, target_bytes: usize) -> usize {
        self.settle();
        let most_bytes = self.stats.reserved.current.saturating_sub(self.kept_bytes) & !(self.page_bytes - 1);
        let returned = self.unmap_free_pages(upstream, target_bytes.min(most_bytes), most_bytes);
        self.release_empty_segments(upstream);
        returned
    }

    fn keep(&mut self, bytes: usize) {
        self.kept_bytes = bytes;
    }

    fn part_in_advance(&self, missing_bytes: usize) -> Option<PartInAdvance> {
        let small_bytes = self.options.small_limit_bytes;
        // A shorter range would be one of the usual length, which is more than is missing.
        let fits = self.whole_range_bytes(LARGE).is_none_or(|usual| missing_bytes > usual / 2);
        let part_bytes = if fits { missing_bytes } else { small_bytes };
        let moves = self.options.mode == Mode::Moving;
        Some(PartInAdvance { part_bytes, small_bytes, most_bytes: usize::MAX, moves })
    }

    fn live_block(&self, addr: usize) -> Option<LiveBlock> {
        self.live_id(addr).ok().map(|id| self.describe(id))
    }

    fn class_of_block(&self, addr: usize) -> SizeClass {
        self.live_id(addr).map_or(SizeClass::Large, |id| self.class_of(id))
    }

    fn live_blocks(&self) -> Vec<LiveBlock> {
        self.blocks.live().map(|id| self.describe(id)).collect()
    }

    fn clean_ranges(&self, addr: usize) -> Vec<AddressRange> {
        let Ok(id) = self.live_id(addr) else { return Vec::new() };
        let block = self.blocks.get(id);
        // Known to be dirty, or seen to be: a list of nothing allocates nothing.
        if block.dirty { Vec::new() } else { self.segment(block).pages.clean_ranges(block.range()) }
    }

    fn settle(&mut self) {
        while let Some(id) = self.parked.pop_any(&self.blocks) {
            self.unpark(id);
        }
    }

    fn largest_free_bytes(&self) -> usize {
        let resident = self.zones.iter().filter_map(|zone| zone.resident.largest()).map(|entry| entry.len);
        // Mostly the end of a segment, whose mapped pages are those of blocks that were there.
        let sparse = self.zones.iter().filter_map(|zone| zone.sparse.largest());
        let mapped = |entry: FreeEntry| self.blocks.get(entry.id).extra as usize * self.page_bytes;
        resident.chain(sparse.map(mapped)).max().unwrap_or(0)
    }

    fn maps_pages(&self) -> bool {
        true
    }

    fn mapped_ranges(&self) -> Vec<AddressRange> {
        self.segments.iter().flatten().flat_map(|segment| segment.pages.mapped_runs()).collect()
    }

    fn mapped_by_class(&self) -> Vec<(AddressRange, SizeClass)> {
        let mut mapped = Vec::new();
        for segment in self.segments.iter().flatten() {
            let class = class_of(segment.zone);
            mapped.extend(segment.pages.mapped_runs().map(|run| (run, class)));
        }
        mapped
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
