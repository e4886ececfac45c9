//! The naive model: a list of live blocks, and what must be true of them after each step.

use mempool_arena::{
    Arena, LiveBlock, Placed, Request, SimulatedUpstream, SizeClass, Stats, Upstream, Usage,
};

use crate::PAGE_BYTES;

/// A block the model believes live.
#[derive(Debug, Clone, Copy)]
pub struct Live {
    pub addr: usize,
    pub requested: usize,
    pub align: usize,
}

/// An arena beside the list of blocks it should hold.
pub struct Checked {
    pub arena: Arena<SimulatedUpstream>,
    pub live: Vec<Live>,
    limit_bytes: Option<usize>,
    /// What the arena was told to keep, if its policy does.
    pub kept_bytes: usize,
}

fn addr_and_end(block: &LiveBlock) -> (usize, usize) {
    (block.addr, block.addr + block.allocated_bytes)
}

impl Checked {
    pub fn new(arena: Arena<SimulatedUpstream>, limit_bytes: Option<usize>) -> Self {
        Self { arena, live: Vec::new(), limit_bytes, kept_bytes: 0 }
    }

    pub fn allocate(&mut self, requested: usize, align: usize) -> Option<Placed> {
        let result = self.arena.allocate(Request::new(requested).aligned_to(align));
        let placed = result.ok()?;
        assert!(placed.addr.is_multiple_of(align), "{:#x} is not aligned to {align}", placed.addr);
        assert!(placed.allocated_bytes >= requested.max(1));
        for clean in self.arena.clean_ranges(placed.addr) {
            assert!(clean.start >= placed.addr && clean.end() <= placed.addr + placed.allocated_bytes);
        }
        self.live.push(Live { addr: placed.addr, requested, align });
        Some(placed)
    }

    pub fn allocate_growing(&mut self, requested: usize, growth_bytes: usize) {
        let before = self.arena.stats().clone();
        let Ok(placed) = self.arena.allocate_growing(Request::new(requested), growth_bytes) else { return };
        let now = self.arena.stats();
        assert_eq!(now.hits + now.misses, before.hits + before.misses + 1, "one request is counted");
        if now.growths > before.growths {
            assert!(!placed.hit, "what memory was mapped for is no hit");
        }
        self.live.push(Live { addr: placed.addr, requested, align: 1 });
    }

    /// Takes memory in advance: no figure of requests tells of it.
    pub fn take_in_advance(&mut self, bytes: usize) {
        let before = self.arena.stats().clone();
        let taken = self.arena.take_in_advance(bytes);
        let now = self.arena.stats();
        if taken.is_ok() {
            assert!(now.reserved.current >= before.reserved.current + bytes);
        }
        assert_eq!(now.requested, before.requested);
        assert_eq!((now.allocated, now.blocks), (before.allocated, before.blocks));
        for (now, before) in [(now.small, before.small), (now.large, before.large)] {
            assert_eq!((now.requested, now.allocated), (before.requested, before.allocated));
            assert_eq!(now.blocks, before.blocks);
        }
        assert_eq!((now.hits, now.misses, now.failures), (before.hits, before.misses, before.failures));
        assert_eq!(now.buckets, before.buckets);
    }

    pub fn keep(&mut self, bytes: usize) {
        self.arena.keep(bytes);
        if self.arena.placement().part_in_advance(PAGE_BYTES).is_some() {
            self.kept_bytes = bytes;
        }
    }

    pub fn free(&mut self, at: usize) {
        let block = self.live.swap_remove(at);
        let ended = self.arena.free(block.addr).expect("a live block can be freed");
        assert_eq!(ended.requested_bytes, block.requested);
        assert!(self.arena.free(block.addr).is_err(), "a block can be freed twice");
    }

    pub fn resize(&mut self, at: usize, size: usize) {
        let block = &mut self.live[at];
        if let Some(resized) = self.arena.resize_in_place(block.addr, size).expect("a live block") {
            assert_eq!((resized.addr, resized.requested_bytes), (block.addr, size));
            assert!(resized.allocated_bytes >= size);
            block.requested = size;
        }
    }

    /// Everything that must hold between two operations.
    pub fn check(&self) {
        self.arena.validate().unwrap();
        let mut extents: Vec<(usize, usize)> = Vec::new();
        for block in &self.live {
            let found = self.arena.live_block(block.addr).expect("the block is live");
            assert_eq!(found.requested_bytes, block.requested);
            assert!(block.addr.is_multiple_of(block.align));
            extents.push((block.addr, block.addr + found.allocated_bytes));
        }
        let mut listed: Vec<(usize, usize)> = self.arena.live_blocks().iter().map(addr_and_end).collect();
        extents.sort_unstable();
        listed.sort_unstable();
        assert_eq!(listed, extents, "all live blocks are listed, and no other");
        for pair in extents.windows(2) {
            assert!(pair[0].1 <= pair[1].0, "blocks {pair:x?} overlap");
        }
        let mapped = self.arena.mapped_ranges();
        let mapped_bytes: usize = mapped.iter().map(|range| range.len).sum();
        let stats = self.arena.stats();
        assert_eq!(mapped_bytes, self.arena.upstream().mapped_bytes());
        assert_eq!(stats.reserved.current, mapped_bytes);
        assert_eq!(stats.blocks.current, self.live.len());
        assert_eq!(stats.requested.current, self.live.iter().map(|block| block.requested).sum::<usize>());
        assert!(stats.requested.current <= stats.allocated.current);
        assert!(stats.allocated.current <= stats.reserved.current);
        assert!(self.arena.largest_free_bytes() <= stats.free_bytes());
        if let Some(limit) = self.limit_bytes {
            assert!(stats.reserved.current <= limit, "{} reserved", stats.reserved.current);
        }
        for stat in [stats.requested, stats.allocated, stats.reserved, stats.blocks, stats.segments] {
            assert_eq!(stat.total_allocated - stat.total_freed(), stat.current as u64);
            assert!(stat.peak >= stat.current);
        }
        self.check_classes(stats);
        let by_bucket = stats.buckets.iter().fold((0, 0), |sum, b| (sum.0 + b.hits, sum.1 + b.misses));
        assert_eq!(by_bucket, (stats.hits, stats.misses));
    }

    /// Figures of a class are what lies in its segments, however they were counted.
    fn check_classes(&self, stats: &Stats) {
        for class in [SizeClass::Small, SizeClass::Large] {
            let said = stats.of_class(class);
            let of_class = |block: &&Live| self.arena.class_of_block(block.addr) == class;
            let live: Vec<&Live> = self.live.iter().filter(of_class).collect();
            assert_eq!(said.blocks.current, live.len(), "{class:?} blocks");
            assert_eq!(said.requested.current, live.iter().map(|block| block.requested).sum::<usize>());
            let segments = self.arena.layout().into_iter().filter(|segment| segment.class == class);
            let (mut mapped, mut allocated) = (0, 0);
            for segment in segments {
                mapped += segment.range.len;
                let used = segment.parts.iter().filter(|part| part.usage != Usage::Free);
                allocated += used.map(|part| part.range.len).sum::<usize>();
            }
            assert_eq!((said.reserved.current, said.allocated.current), (mapped, allocated), "{class:?}");
        }
    }

    /// Frees everything; then all memory must go back.
    pub fn finish(mut self) {
        self.arena.upstream_mut().clear_failures();
        while !self.live.is_empty() {
            self.free(self.live.len() - 1);
        }
        self.check();
        self.keep(0);
        let reserved = self.arena.stats().reserved.current;
        assert_eq!(self.arena.trim(usize::MAX), reserved);
        self.arena.release_all().unwrap();
        assert_eq!(self.arena.upstream().mapped_bytes(), 0);
        assert_eq!(self.arena.upstream().page_bytes(), PAGE_BYTES);
        assert_eq!(self.arena.upstream().reserved_ranges().count(), 0);
        self.check();
    }
}
