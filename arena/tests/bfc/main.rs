//! TensorFlow's rules, one by one, and its algorithm beside ours.

mod model;
mod programs;

use mempool_arena::{
    AddressRange, Arena, ArenaError, Bfc, BfcOptions, Placed, Request, SimulatedUpstream, UpstreamError,
};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

type BfcArena = Arena<SimulatedUpstream, Bfc>;

fn arena(options: BfcOptions) -> BfcArena {
    Arena::new(Bfc::new(options).unwrap(), SimulatedUpstream::builder().handles(true).build())
}

fn placed(arena: &mut BfcArena, bytes: usize) -> Placed {
    let placed = arena.allocate(Request::new(bytes)).unwrap();
    arena.validate().unwrap();
    placed
}

fn addr(arena: &mut BfcArena, bytes: usize) -> usize {
    placed(arena, bytes).addr
}

fn free(arena: &mut BfcArena, addr: usize) {
    arena.free(addr).unwrap();
    arena.validate().unwrap();
}

/// Mebibytes of all regions, in order.
fn regions(arena: &BfcArena) -> Vec<usize> {
    arena.mapped_ranges().iter().map(|range| range.len / MIB).collect()
}

/// An arena of one region with a free block of each of these lengths, each followed by a live one of
/// a granule. Also the free blocks' addresses.
fn with_holes(options: BfcOptions, lens: &[usize]) -> (BfcArena, Vec<usize>) {
    let mut arena = arena(BfcOptions { initial_region_bytes: 1 << 30, ..options });
    let mut holes = Vec::new();
    for &len in lens {
        holes.push(addr(&mut arena, len));
        addr(&mut arena, 1);
    }
    holes.iter().for_each(|&hole| free(&mut arena, hole));
    assert_eq!(arena.stats().segments.current, 1);
    (arena, holes)
}

#[test]
fn sizes_are_multiples_of_256_bytes() {
    let mut arena = arena(BfcOptions::default());
    for (bytes, held) in [(0, 256), (1, 256), (256, 256), (257, 512), (100_000, 100_096)] {
        assert_eq!(placed(&mut arena, bytes).allocated_bytes, held, "{bytes} bytes");
    }
    assert_eq!(arena.stats().requested.current, 1 + 256 + 257 + 100_000);
}

#[test]
fn each_region_is_twice_as_long_as_the_one_before() {
    let mut arena = arena(BfcOptions::default());
    for expected in [&[2][..], &[2, 4], &[2, 4, 8], &[2, 4, 8, 16]] {
        while arena.stats().segments.current < expected.len() {
            addr(&mut arena, 2 * MIB);
        }
        assert_eq!(regions(&arena), expected);
    }
}

#[test]
fn a_region_doubles_until_the_request_fits_and_then_not_once_more() {
    let mut arena = arena(BfcOptions::default());
    addr(&mut arena, 9 * MIB);
    assert_eq!(regions(&arena), [16]);
    // Doubled for the first request already.
    addr(&mut arena, 15 * MIB);
    assert_eq!(regions(&arena), [16, 16]);
    // Now the length had sufficed, so it doubles for the next.
    addr(&mut arena, 17 * MIB);
    assert_eq!(regions(&arena), [16, 16, 32]);
}

#[test]
fn regions_end_at_the_limit() {
    let mut arena = arena(BfcOptions { limit_bytes: Some(11 * MIB), ..BfcOptions::default() });
    let blocks: Vec<usize> = (0..5).map(|_| addr(&mut arena, 2 * MIB)).collect();
    // 2, 4, and what whole pages are left of the limit.
    assert_eq!(regions(&arena), [2, 4, 4]);
    let error = arena.allocate(Request::new(1)).unwrap_err();
    let ArenaError::OutOfMemory { limit_bytes, reserved_bytes, source, .. } = error else {
        panic!("{error}")
    };
    assert_eq!((limit_bytes, reserved_bytes, source), (Some(11 * MIB), 10 * MIB, None));
    blocks.into_iter().for_each(|block| free(&mut arena, block));
}

#[test]
fn the_smallest_block_serves_the_lowest_among_equals() {
    let lens = [64 * KIB, 48 * KIB, 40 * KIB, 40 * KIB, 56 * KIB];
    let (mut arena, holes) = with_holes(BfcOptions::default(), &lens);
    for (bytes, hole) in [(40, 2), (39, 3), (40, 1), (56, 4), (50, 0)] {
        let block = placed(&mut arena, bytes * KIB);
        assert_eq!((block.addr, block.hit), (holes[hole], true), "{bytes} KiB");
    }
    assert_eq!(arena.stats().misses, 1);
}

#[test]
fn a_block_is_cut_when_the_rest_is_as_large_as_the_request() {
    for (bytes, held) in [(32 * KIB, 32 * KIB), (32 * KIB + 1, 64 * KIB), (31 * KIB, 31 * KIB)] {
        let (mut arena, holes) = with_holes(BfcOptions::default(), &[64 * KIB]);
        let block = placed(&mut arena, bytes);
        assert_eq!((block.addr, block.allocated_bytes), (holes[0], held), "{bytes} bytes");
    }
}

#[test]
fn a_block_is_cut_when_too_much_would_be_wasted() {
    let hole = 328 * MIB;
    for (bytes, held) in [(200 * MIB, 200 * MIB), (200 * MIB + 1, hole), (199 * MIB, 199 * MIB)] {
        let (mut arena, holes) = with_holes(BfcOptions::default(), &[hole]);
        let block = placed(&mut arena, bytes);
        assert_eq!((block.addr, block.allocated_bytes), (holes[0], held), "{bytes} bytes");
    }
}

#[test]
fn a_freed_block_joins_both_neighbours_and_never_another_region() {
    let mut arena = arena(BfcOptions::default());
    let blocks: Vec<usize> = (0..4).map(|_| addr(&mut arena, 512 * KIB)).collect();
    let other = addr(&mut arena, 4 * MIB);
    assert_eq!(regions(&arena), [2, 4]);
    free(&mut arena, blocks[1]);
    free(&mut arena, blocks[3]);
    assert_eq!((arena.largest_free_bytes(), arena.stats().inactive_split_blocks.current), (512 * KIB, 2));
    free(&mut arena, blocks[2]);
    assert_eq!((arena.largest_free_bytes(), arena.stats().inactive_split_blocks.current), (1536 * KIB, 1));
    free(&mut arena, blocks[0]);
    assert_eq!((arena.largest_free_bytes(), arena.stats().releasable_bytes), (2 * MIB, 2 * MIB));
    free(&mut arena, other);
    assert_eq!((arena.largest_free_bytes(), arena.stats().releasable_bytes), (4 * MIB, 6 * MIB));
}

#[test]
fn a_region_that_upstream_refuses_is_asked_for_a_tenth_shorter() {
    let options = BfcOptions { initial_region_bytes: 200 * MIB, ..BfcOptions::default() };
    let mut arena = arena(options);
    arena.upstream_mut().fail_map(1);
    arena.upstream_mut().fail_map(2);
    addr(&mut arena, MIB);
    // 200, 180, 162.
    assert_eq!((regions(&arena), arena.stats().map_calls), (vec![162], 3));
    // What was refused counts for the next length all the same.
    addr(&mut arena, 163 * MIB);
    assert_eq!(regions(&arena), [162, 400]);
}

#[test]
fn a_request_fails_when_no_region_that_holds_it_can_be_had() {
    let options = BfcOptions { initial_region_bytes: 64 * MIB, ..BfcOptions::default() };
    let mut arena = arena(options);
    (1..=9).for_each(|number| arena.upstream_mut().fail_map(number));
    // 64, 56, 50, 44 (down to pages), and the next would be 38.
    let error = arena.allocate(Request::new(40 * MIB)).unwrap_err();
    assert!(
        matches!(error, ArenaError::OutOfMemory { source: Some(UpstreamError::Injected { .. }), .. }),
        "{error}"
    );
    assert_eq!(arena.stats().map_calls, 4);
    assert_eq!(arena.stats().segments.current, 0, "ranges without memory go back");
    arena.validate().unwrap();
    arena.upstream_mut().clear_failures();
    // A refused request leaves no mark on the length of later regions.
    addr(&mut arena, 40 * MIB);
    assert_eq!(regions(&arena), [64]);
}

#[test]
fn what_is_left_of_a_full_device_is_taken_without_asking_for_more() {
    let mut arena = arena(BfcOptions::default());
    arena.upstream_mut().set_capacity_bytes(50 * MIB);
    addr(&mut arena, 30 * MIB);
    addr(&mut arena, 10 * MIB);
    assert_eq!((regions(&arena), arena.stats().map_calls), (vec![32, 18], 2));
}

#[test]
fn without_growth_the_first_request_takes_all() {
    let fixed = BfcOptions { allow_growth: false, ..BfcOptions::default() };
    let mut limited = arena(BfcOptions { limit_bytes: Some(101 * MIB), ..fixed.clone() });
    addr(&mut limited, 1);
    addr(&mut limited, 60 * MIB);
    assert_eq!(regions(&limited), [100]);
    assert!(limited.allocate(Request::new(60 * MIB)).is_err());
    // Without a limit upstream's capacity is one.
    let mut capable = arena(fixed.clone());
    capable.upstream_mut().set_capacity_bytes(64 * MIB);
    addr(&mut capable, 1);
    assert_eq!(regions(&capable), [64]);
    let error = arena(fixed).allocate(Request::new(1)).unwrap_err();
    assert!(matches!(error, ArenaError::Option { option: "allow_growth", .. }), "{error}");
}

#[test]
fn unused_regions_are_given_up_when_that_makes_room() {
    let mut arena = arena(BfcOptions { limit_bytes: Some(20 * MIB), ..BfcOptions::default() });
    let blocks = [2, 4, 8].map(|mib| addr(&mut arena, mib * MIB));
    assert_eq!(regions(&arena), [2, 4, 8]);
    free(&mut arena, blocks[0]);
    free(&mut arena, blocks[2]);
    // 6 of the limit are left, and 10 unused: 17 cannot be had, so nothing goes.
    assert!(arena.allocate(Request::new(17 * MIB)).is_err());
    assert_eq!(regions(&arena), [2, 4, 8]);
    let block = placed(&mut arena, 14 * MIB);
    assert!(!block.hit);
    let mut now = regions(&arena);
    now.sort_unstable();
    assert_eq!(now, [4, 16]);
}

#[test]
fn without_garbage_collection_unused_regions_stay() {
    let options =
        BfcOptions { limit_bytes: Some(20 * MIB), garbage_collection: false, ..BfcOptions::default() };
    let mut arena = arena(options);
    let block = addr(&mut arena, 12 * MIB);
    free(&mut arena, block);
    assert_eq!(regions(&arena), [16]);
    assert!(arena.allocate(Request::new(18 * MIB)).is_err());
    assert_eq!(regions(&arena), [16]);
}

#[test]
fn trim_gives_back_whole_regions_until_its_target_is_met() {
    let mut arena = arena(BfcOptions::default());
    let blocks = [2, 4, 8].map(|mib| addr(&mut arena, mib * MIB));
    let used = addr(&mut arena, 1);
    blocks.into_iter().for_each(|block| free(&mut arena, block));
    assert_eq!(regions(&arena), [2, 4, 8, 16]);
    assert_eq!(arena.trim(3 * MIB), 6 * MIB);
    assert_eq!(arena.trim(usize::MAX), 8 * MIB);
    assert_eq!((regions(&arena), arena.trim(usize::MAX)), (vec![16], 0));
    free(&mut arena, used);
    arena.release_all().unwrap();
    assert_eq!(arena.stats().segments.current, 0);
}

#[test]
fn an_alignment_skips_what_the_block_at_hand_needs() {
    let (mut arena, holes) = with_holes(BfcOptions::default(), &[MIB, MIB + 256, 40 * KIB]);
    let aligned = |arena: &mut BfcArena, bytes| arena.allocate(Request::new(bytes).aligned_to(MIB)).unwrap();
    // The first block begins at the region's start, so it serves whole; the second has no such place.
    assert_eq!(aligned(&mut arena, MIB).addr, holes[0]);
    let next = aligned(&mut arena, MIB);
    assert!(next.hit && next.addr.is_multiple_of(MIB) && next.addr > holes[2]);
    arena.validate().unwrap();
    // What was skipped is free.
    let skipped = AddressRange::between(holes[2] + 40 * KIB + 256, next.addr);
    assert_eq!(addr(&mut arena, skipped.len), skipped.start);
}

#[test]
fn a_block_grows_into_the_free_one_behind_it_and_gives_up_its_end() {
    let (mut arena, holes) = with_holes(BfcOptions::default(), &[256 * KIB]);
    let block = addr(&mut arena, 64 * KIB);
    assert_eq!(block, holes[0]);
    let resize = |arena: &mut BfcArena, bytes| {
        let held = arena.resize_in_place(block, bytes).unwrap().map(|live| live.allocated_bytes);
        arena.validate().unwrap();
        held
    };
    assert_eq!(resize(&mut arena, 100 * KIB), Some(100 * KIB));
    assert_eq!(resize(&mut arena, 256 * KIB + 1), None, "a block is live behind it");
    // Less than half would be left.
    assert_eq!(resize(&mut arena, 150 * KIB), Some(256 * KIB));
    assert_eq!(resize(&mut arena, 129 * KIB), Some(256 * KIB));
    assert_eq!(resize(&mut arena, 128 * KIB), Some(128 * KIB));
    assert_eq!(arena.stats().requested.current, 128 * KIB + 1);
    assert_eq!(addr(&mut arena, 128 * KIB), block + 128 * KIB);
}

#[test]
fn only_memory_behind_all_that_was_freed_is_clean() {
    let mut arena = arena(BfcOptions::default());
    let first = addr(&mut arena, 64 * KIB);
    let second = addr(&mut arena, 64 * KIB);
    assert_eq!(arena.clean_ranges(second), [AddressRange::new(second, 64 * KIB)]);
    free(&mut arena, first);
    free(&mut arena, second);
    let block = addr(&mut arena, 192 * KIB);
    assert_eq!(block, first);
    assert_eq!(arena.clean_ranges(block), [AddressRange::new(block + 128 * KIB, 64 * KIB)]);
    // The end that it gives up may have been written to.
    arena.resize_in_place(block, 64 * KIB).unwrap().unwrap();
    let next = addr(&mut arena, 256 * KIB);
    assert_eq!(next, block + 64 * KIB);
    assert_eq!(arena.clean_ranges(next), [AddressRange::new(block + 192 * KIB, 128 * KIB)]);
    free(&mut arena, block);
    free(&mut arena, next);
    // Memory that went back reads as zero when it is mapped again.
    arena.trim(usize::MAX);
    let again = addr(&mut arena, 64 * KIB);
    assert_eq!(arena.clean_ranges(again), [AddressRange::new(again, 64 * KIB)]);
}

#[test]
fn options_that_cannot_work_are_refused() {
    let usual = BfcOptions::default();
    for (options, name) in [
        (BfcOptions { granule_bytes: 300, ..usual.clone() }, "granule_bytes"),
        (BfcOptions { initial_region_bytes: 0, ..usual.clone() }, "initial_region_bytes"),
        (
            BfcOptions { max_internal_fragmentation_bytes: 0, ..usual.clone() },
            "max_internal_fragmentation_bytes",
        ),
        (
            BfcOptions { max_internal_fragmentation_bytes: 3 << 30, ..usual },
            "max_internal_fragmentation_bytes",
        ),
    ] {
        let error = Bfc::new(options).unwrap_err();
        assert!(matches!(error, ArenaError::Option { option, .. } if option == name), "{error}");
    }
}
