//! Policy `buddy`: blocks of powers of two, split in halves.
//!
//! Fast to join and easy to predict, at the price of internal fragmentation: a request takes
//! the next power of two. Pages are mapped when the first block is placed on them and stay
//! mapped until [`trim`](Placement::trim) or until the limit asks for them.

mod validate;

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::buddy_tree::BuddyTree;
use crate::error::{ArenaError, MapError, UpstreamError};
use crate::in_advance::PartInAdvance;
use crate::invariant::Violation;
use crate::page_map::PageMap;
use crate::placement::{DEFAULT_RANGE_BYTES, LiveBlock, Placed, Placement, check_granule, check_page};
use crate::range::AddressRange;
use crate::request::Request;
use crate::stats::{SizeClass, Stats};
use crate::upstream::Upstream;

/// Options of [`Buddy`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuddyOptions {
    /// The smallest block, a power of two.
    pub granule_bytes: usize,
    /// Mapped bytes are kept at or below this.
    pub limit_bytes: Option<usize>,
    /// Length of a virtual range, rounded up to a power of two. No block is larger than its range.
    pub range_bytes: usize,
}

impl Default for BuddyOptions {
    fn default() -> Self {
        Self { granule_bytes: 512, limit_bytes: None, range_bytes: DEFAULT_RANGE_BYTES }
    }
}

#[derive(Debug, Clone, Copy)]
struct Live {
    order: u32,
    requested: usize,
}

impl Live {
    fn at(self, addr: usize) -> LiveBlock {
        LiveBlock { addr, requested_bytes: self.requested, allocated_bytes: 1 << self.order }
    }
}

/// Mapping of one region, and how many live blocks each of its pages holds.
#[derive(Debug)]
struct Region {
    /// What upstream reserved: the region and the padding that aligns it.
    reserved: AddressRange,
    pages: PageMap,
    users: Vec<u32>,
}

/// The policy; see the module's text.
#[derive(Debug)]
pub struct Buddy {
    options: BuddyOptions,
    page_bytes: usize,
    tree: BuddyTree,
    live: HashMap<usize, Live, FxBuildHasher>,
    /// By the first address of the region.
    regions: std::collections::BTreeMap<usize, Region>,
    /// See [`Placement::keep`].
    kept_bytes: usize,
    stats: Stats,
}

impl Buddy {
    /// An empty placement.
    ///
    /// # Errors
    /// [`ArenaError::Option`] when an option has a value that cannot work.
    pub fn new(options: BuddyOptions) -> Result<Self, ArenaError> {
        check_granule(options.granule_bytes)?;
        if options.range_bytes < options.granule_bytes || options.range_bytes > 1 << (usize::BITS - 2) {
            return Err(ArenaError::Option {
                option: "range_bytes",
                value: options.range_bytes,
                rule: "at least a granule and at most a quarter of all addresses is needed",
            });
        }
        Ok(Self {
            tree: BuddyTree::new(options.granule_bytes.trailing_zeros()),
            page_bytes: options.granule_bytes,
            options,
            live: HashMap::default(),
            regions: std::collections::BTreeMap::new(),
            kept_bytes: 0,
            stats: Stats::default(),
        })
    }

    /// Notes a block that was taken from the tree and whose pages are mapped.
    fn place(&mut self, block: AddressRange, order: u32, request: Request, hit: bool) -> Placed {
        self.count_users(block, true);
        self.live.insert(block.start, Live { order, requested: request.size_bytes });
        self.stats.count_allocation(SizeClass::Large, request.size_bytes, block.len, hit);
        self.count_splits();
        Placed { addr: block.start, allocated_bytes: block.len, hit }
    }

    /// The region of `addr`, with the shape of its page table.
    fn region_mut(&mut self, addr: usize) -> &mut Region {
        self.regions.range_mut(..=addr).next_back().expect("a block lies in a region").1
    }

    /// Reserves a region of at least `2^order` bytes, aligned to its size so that blocks are
    /// aligned to theirs.
    fn add_region(&mut self, order: u32, upstream: &mut dyn Upstream) -> Result<(), UpstreamError> {
        let page_bytes = upstream.page_bytes();
        let smallest = (1_usize << order).max(page_bytes);
        let wanted = self.options.range_bytes.next_power_of_two().max(smallest);
        let reserve = |upstream: &mut dyn Upstream, len: usize| {
            // Aligning costs up to `len - page` bytes of address space.
            let range = upstream.reserve(len + (len - page_bytes))?;
            Ok::<_, UpstreamError>((range, len))
        };
        let (reserved, len) = reserve(upstream, wanted)
            .or_else(|error| if wanted > smallest { reserve(upstream, smallest) } else { Err(error) })?;
        self.page_bytes = page_bytes;
        let start = (reserved.start + len - 1) & !(len - 1);
        let range = AddressRange::new(start, len);
        let region =
            Region { reserved, pages: PageMap::new(range, page_bytes), users: vec![0; len / page_bytes] };
        self.regions.insert(start, region);
        self.tree.add_region(start, len.trailing_zeros());
        self.stats.count_segment(SizeClass::Large);
        Ok(())
    }

    /// Maps the pages of `block`, or returns how many bytes are missing and why.
    fn map_missing(
        &mut self,
        block: AddressRange,
        upstream: &mut dyn Upstream,
    ) -> Result<(), (usize, Option<UpstreamError>)> {
        let touched = block.outer_pages(self.page_bytes);
        let page_bytes = self.page_bytes;
        let region = self.regions.range_mut(..=block.start).next_back().expect("a block lies in a region").1;
        if region.pages.is_mapped(touched) {
            return Ok(());
        }
        let missing = touched.len - region.pages.mapped_page_count(touched) * page_bytes;
        let over = self
            .options
            .limit_bytes
            .map_or(0, |limit| self.stats.reserved.current.saturating_add(missing).saturating_sub(limit));
        if missing > 0 && over > 0 {
            return Err((over, None));
        }
        let mut mapped: Vec<AddressRange> = Vec::new();
        while let Some(run) = region.pages.first_unmapped_run(touched) {
            self.stats.map_calls += 1;
            let result = upstream.map(run);
            let done = result.as_ref().map_or_else(|error| error.completed_bytes, |()| run.len);
            if done > 0 {
                let done = AddressRange::new(run.start, done);
                region.pages.set_mapped(done);
                self.stats.count_mapped(SizeClass::Large, done.len);
                self.stats.releasable_bytes += done.len;
                mapped.push(done);
            }
            if let Err(error) = result {
                for run in mapped {
                    unmap(&mut self.stats, region, run, upstream);
                }
                return Err((missing, Some(error.source)));
            }
        }
        Ok(())
    }

    /// Unmaps pages that no live block uses and that lie outside `keep`.
    fn unmap_free_pages(
        &mut self,
        upstream: &mut dyn Upstream,
        target_bytes: usize,
        keep: AddressRange,
    ) -> usize {
        let keep = keep.outer_pages(self.page_bytes);
        let mut returned = 0;
        for region in self.regions.values_mut() {
            let (range, page_bytes) = (region.pages.range(), self.page_bytes);
            let mut page = 0;
            while page < region.users.len() && returned < target_bytes {
                let at = |page: usize| AddressRange::new(range.start + page * page_bytes, page_bytes);
                let idle = |region: &Region, page: usize| {
                    page < region.users.len()
                        && region.users[page] == 0
                        && region.pages.is_mapped(at(page))
                        && !keep.covers(at(page))
                };
                let first = page;
                while idle(region, page) && returned + (page - first) * page_bytes < target_bytes {
                    page += 1;
                }
                if page > first {
                    let run = AddressRange::between(at(first).start, at(page - 1).end());
                    returned += unmap(&mut self.stats, region, run, upstream);
                } else {
                    page += 1;
                }
            }
        }
        returned
    }

    /// Bytes on free mapped pages, those under `block` excepted.
    fn releasable_outside(&mut self, block: AddressRange) -> usize {
        let (page_bytes, touched) = (self.page_bytes, block.outer_pages(self.page_bytes));
        let region = self.region_mut(block.start);
        let first = (touched.start - region.pages.range().start) / page_bytes;
        let free_pages = (0..touched.len / page_bytes)
            .filter(|page| region.users[first + page] == 0)
            .filter(|page| {
                region.pages.is_mapped(AddressRange::new(touched.start + page * page_bytes, page_bytes))
            })
            .count();
        self.stats.releasable_bytes - free_pages * page_bytes
    }

    /// Changes the number of live blocks on the pages of `block` by one.
    fn count_users(&mut self, block: AddressRange, added: bool) {
        let page_bytes = self.page_bytes;
        let region = self.region_mut(block.start);
        let first = (block.start - region.pages.range().start) / page_bytes;
        let end = (block.end() - region.pages.range().start).div_ceil(page_bytes);
        let users = &mut region.users[first..end];
        let turned = if block.len >= page_bytes {
            // Being aligned to its size it has its pages to itself.
            users.fill(u32::from(added));
            users.len()
        } else if added {
            users[0] += 1;
            usize::from(users[0] == 1)
        } else {
            users[0] -= 1;
            usize::from(users[0] == 0)
        };
        if added {
            self.stats.releasable_bytes -= turned * page_bytes;
        } else {
            self.stats.releasable_bytes += turned * page_bytes;
        }
    }

    /// Brings the figures about free parts of used pages up to date.
    fn count_splits(&mut self) {
        let stats = &mut self.stats;
        let bytes = stats.reserved.current - stats.allocated.current - stats.releasable_bytes;
        let blocks = self.tree.free_blocks_below(self.page_bytes.trailing_zeros());
        let (bytes_before, blocks_before) =
            (stats.inactive_split.current, stats.inactive_split_blocks.current);
        stats.change_split(SizeClass::Large, (blocks_before, blocks), (bytes_before, bytes));
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

/// Unmaps a run of idle pages and returns how many bytes upstream took.
fn unmap(stats: &mut Stats, region: &mut Region, run: AddressRange, upstream: &mut dyn Upstream) -> usize {
    stats.unmap_calls += 1;
    let done = match upstream.unmap(run) {
        Ok(()) => run.len,
        Err(MapError { completed_bytes, .. }) => completed_bytes,
    };
    region.pages.set_unmapped(AddressRange::new(run.start, done));
    stats.count_unmapped(SizeClass::Large, done);
    stats.releasable_bytes -= done;
    done
}

impl Placement for Buddy {
    fn name(&self) -> &'static str {
        "buddy"
    }

    fn allocate(&mut self, request: Request, upstream: &mut dyn Upstream) -> Result<Placed, ArenaError> {
        let len = request.rounded_bytes(self.options.granule_bytes)?;
        let overflow =
            ArenaError::SizeOverflow { size_bytes: request.size_bytes, align_bytes: request.align_bytes };
        // A block is aligned to its size, so a larger alignment asks for a larger block.
        let order =
            self.tree.order_for(len.max(request.align_bytes)).filter(|&order| order < usize::BITS - 1);
        let order = order.ok_or(overflow)?;
        let start = match self.tree.allocate(order) {
            Some(start) => start,
            None => {
                check_page(self.options.granule_bytes, upstream.page_bytes())?;
                if let Err(source) = self.add_region(order, upstream) {
                    return Err(self.out_of_memory(request.size_bytes, Some(source)));
                }
                self.tree.allocate(order).expect("the new region holds the block")
            }
        };
        let block = AddressRange::new(start, 1 << order);
        let calls_before = self.stats.map_calls;
        while let Err((missing, source)) = self.map_missing(block, upstream) {
            // When giving up everything would not be enough, nothing is given up.
            let spare_bytes = self.releasable_outside(block);
            let hopeless = if source.is_none() {
                spare_bytes < missing
            } else {
                self.stats.reserved.current - spare_bytes + missing > upstream.capacity_bytes()
            };
            if hopeless || self.unmap_free_pages(upstream, missing, block) == 0 {
                self.tree.free(start, order);
                self.count_splits();
                return Err(self.out_of_memory(request.size_bytes, source));
            }
        }
        let hit = self.stats.map_calls == calls_before;
        Ok(self.place(block, order, request, hit))
    }

    fn allocate_mapped(&mut self, request: Request) -> Option<Placed> {
        let len = request.rounded_bytes(self.options.granule_bytes).ok()?;
        let order =
            self.tree.order_for(len.max(request.align_bytes)).filter(|&order| order < usize::BITS - 1)?;
        let block = AddressRange::new(self.tree.first_free(order)?, 1 << order);
        let touched = block.outer_pages(self.page_bytes);
        if self.region_mut(block.start).pages.mapped_page_count(touched) * self.page_bytes != touched.len {
            return None;
        }
        let start = self.tree.allocate(order).expect("a block was free");
        debug_assert_eq!(start, block.start, "the tree gives the block it shows");
        Some(self.place(block, order, request, true))
    }

    fn free(&mut self, addr: usize, _: &mut dyn Upstream) -> Result<LiveBlock, ArenaError> {
        let ended = self.live.remove(&addr).ok_or(ArenaError::UnknownAddress { addr })?.at(addr);
        let block = AddressRange::new(addr, ended.allocated_bytes);
        self.stats.count_free(SizeClass::Large, ended.requested_bytes, block.len);
        self.count_users(block, false);
        self.region_mut(addr).pages.set_dirty(block);
        self.tree.free(addr, block.len.trailing_zeros());
        self.count_splits();
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
        // A block keeps its order: its size is fixed by where it lies.
        if len > old.allocated_bytes {
            return Ok(None);
        }
        if let Some(live) = self.live.get_mut(&addr) {
            live.requested = size_bytes;
        }
        let allocated = (old.allocated_bytes, old.allocated_bytes);
        self.stats.count_resize(SizeClass::Large, (old.requested_bytes, size_bytes), allocated);
        Ok(self.live_block(addr))
    }

    fn trim(&mut self, upstream: &mut dyn Upstream, target_bytes: usize) -> usize {
        let spare = self.stats.reserved.current.saturating_sub(self.kept_bytes);
        let target_bytes = target_bytes.min(spare & !(self.page_bytes - 1));
        let returned = self.unmap_free_pages(upstream, target_bytes, AddressRange::new(0, 0));
        let starts: Vec<usize> = self.regions.keys().copied().collect();
        for start in starts {
            let region = &self.regions[&start];
            let empty = region.pages.mapped_page_count(region.pages.range()) == 0;
            if !empty || !self.tree.remove_region(start) {
                continue;
            }
            if upstream.release(region.reserved).is_err() {
                // The range stays reserved and usable.
                self.tree.add_region(start, region.pages.range().len.trailing_zeros());
                continue;
            }
            self.regions.remove(&start);
            self.stats.count_segment_end(SizeClass::Large);
        }
        self.count_splits();
        returned
    }

    fn keep(&mut self, bytes: usize) {
        self.kept_bytes = bytes;
    }

    fn part_in_advance(&self, missing_bytes: usize) -> Option<PartInAdvance> {
        let part_bytes = 1 << missing_bytes.max(1).ilog2();
        Some(PartInAdvance { part_bytes, small_bytes: 0, most_bytes: usize::MAX, moves: false })
    }

    fn live_block(&self, addr: usize) -> Option<LiveBlock> {
        self.live.get(&addr).map(|live| live.at(addr))
    }

    fn live_blocks(&self) -> Vec<LiveBlock> {
        self.live.iter().map(|(&addr, live)| live.at(addr)).collect()
    }

    fn clean_ranges(&self, addr: usize) -> Vec<AddressRange> {
        let (Some(block), Some((_, region))) =
            (self.live_block(addr), self.regions.range(..=addr).next_back())
        else {
            return Vec::new();
        };
        region.pages.clean_ranges(AddressRange::new(addr, block.allocated_bytes))
    }

    fn settle(&mut self) {}

    fn largest_free_bytes(&self) -> usize {
        // The lowest block of each order: the one that would be handed out next.
        let mapped = |block: AddressRange| {
            let Some((_, region)) = self.regions.range(..=block.start).next_back() else { return 0 };
            let inner = block.inner_pages(self.page_bytes);
            if inner.is_empty() {
                return if region.pages.is_mapped(block) { block.len } else { 0 };
            }
            region.pages.mapped_page_count(inner) * self.page_bytes
        };
        self.tree.lowest_free_blocks().map(mapped).max().unwrap_or(0)
    }

    fn maps_pages(&self) -> bool {
        true
    }

    fn mapped_ranges(&self) -> Vec<AddressRange> {
        self.regions.values().flat_map(|region| region.pages.mapped_runs()).collect()
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
