//! What is particular to blocks that are never cut: what a freed block serves, and what is given back.

use mempool_arena::{Arena, ArenaError, Request, Reuse, SimulatedUpstream, Whole, WholeOptions};

const PAGE: usize = 1 << 16;

fn arena(options: WholeOptions) -> Arena<SimulatedUpstream, Whole> {
    Arena::new(Whole::new(options).unwrap(), SimulatedUpstream::builder().page_bytes(PAGE).build())
}

fn options(reuse: Reuse) -> WholeOptions {
    WholeOptions {
        granule_bytes: 256,
        shared_limit_bytes: 1 << 15,
        range_bytes: 1 << 20,
        reuse,
        ..WholeOptions::default()
    }
}

fn addr(arena: &mut Arena<SimulatedUpstream, Whole>, bytes: usize) -> usize {
    arena.allocate(Request::new(bytes)).unwrap().addr
}

#[test]
fn without_reuse_memory_goes_back_with_its_block() {
    let mut arena = arena(options(Reuse::Never));
    for _ in 0..3 {
        let block = addr(&mut arena, 5 * PAGE);
        assert_eq!(arena.stats().reserved.current, 5 * PAGE);
        arena.free(block).unwrap();
        assert_eq!(arena.stats().reserved.current, 0);
    }
    assert_eq!((arena.stats().hits, arena.stats().misses), (0, 3));
    // Small blocks share a page, which goes back with the last of them.
    let small = [addr(&mut arena, 1000), addr(&mut arena, 1000)];
    assert_eq!(small[1], small[0] + 1024);
    arena.free(small[0]).unwrap();
    assert_eq!(arena.stats().reserved.current, PAGE);
    assert_eq!(arena.stats().inactive_split.current, PAGE - 1024);
    arena.free(small[1]).unwrap();
    assert_eq!(arena.stats().reserved.current, 0);
    arena.validate().unwrap();
}

#[test]
fn a_block_serves_its_own_size_only() {
    let mut arena = arena(options(Reuse::SameSize));
    let large = addr(&mut arena, 4 * PAGE);
    let small = addr(&mut arena, 5000);
    arena.free(large).unwrap();
    arena.free(small).unwrap();
    assert_ne!(addr(&mut arena, 3 * PAGE), large);
    assert_ne!(addr(&mut arena, 4000), small);
    // Sizes are the same when they are so after rounding.
    assert_eq!(addr(&mut arena, 4 * PAGE - 7), large);
    assert_eq!(addr(&mut arena, 5001), small);
    arena.validate().unwrap();
}

#[test]
fn a_block_that_is_not_split_serves_what_wastes_little_of_it() {
    let reuse = Reuse::Larger { waste_bytes: 2 * PAGE };
    // 8 pages for 4 are half, and for 6 two too many; for 3 they are neither.
    for (pages, serves) in [(8, true), (6, true), (4, true), (3, false), (9, false)] {
        let mut arena = arena(WholeOptions { shared_limit_bytes: 0, ..options(reuse) });
        let block = addr(&mut arena, 8 * PAGE);
        arena.free(block).unwrap();
        let other = addr(&mut arena, pages * PAGE);
        assert_eq!(other == block, serves, "{pages} pages");
        let held = arena.live_block(other).unwrap().allocated_bytes;
        assert_eq!(held, if serves { 8 } else { pages } * PAGE);
        arena.validate().unwrap();
    }
}

#[test]
fn every_block_has_pages_of_its_own_unless_small_ones_share() {
    let mut arena = arena(WholeOptions { shared_limit_bytes: 0, ..options(Reuse::SameSize) });
    let blocks: Vec<usize> = (0..4).map(|_| addr(&mut arena, 100)).collect();
    assert!(blocks.windows(2).all(|pair| pair[0] / PAGE != pair[1] / PAGE), "{blocks:x?}");
    assert_eq!(arena.stats().reserved.current, 4 * PAGE);
    assert_eq!(arena.stats().inactive_split.current, 0);
}

#[test]
fn ranges_that_are_memory_go_back_one_by_one() {
    let mut arena = arena(WholeOptions { whole_ranges: true, ..options(Reuse::SameSize) });
    let blocks: Vec<usize> = (1..=3).map(|pages| addr(&mut arena, pages * PAGE)).collect();
    assert_eq!(arena.stats().segments.current, 3);
    arena.free(blocks[1]).unwrap();
    assert_eq!(arena.trim(usize::MAX), 2 * PAGE);
    assert_eq!(arena.stats().segments.current, 2);
    arena.validate().unwrap();
}

#[test]
fn a_limit_takes_cached_blocks_of_other_sizes() {
    let mut arena = arena(WholeOptions { limit_bytes: Some(8 * PAGE), ..options(Reuse::SameSize) });
    let first = addr(&mut arena, 5 * PAGE);
    arena.free(first).unwrap();
    let second = arena.allocate(Request::new(6 * PAGE)).unwrap();
    assert!(!second.hit);
    assert_eq!(arena.stats().reserved.current, 6 * PAGE);
    let refused = arena.allocate(Request::new(3 * PAGE)).unwrap_err();
    assert!(
        matches!(refused, ArenaError::OutOfMemory { requested_bytes, .. } if requested_bytes == 3 * PAGE)
    );
    arena.validate().unwrap();
}
