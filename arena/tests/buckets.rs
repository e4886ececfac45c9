//! The rules of policy `buckets`, one by one.

use mempool_arena::{Arena, ArenaError, Buckets, BucketsOptions, Request, SimulatedUpstream};

const MIB: usize = 1 << 20;
/// The published limits of medium requests; those of small ones are 1 MiB.
const MEDIUM_LIMITS: [usize; 2] = [100 * MIB, 256 * MIB];

type BucketsArena = Arena<SimulatedUpstream, Buckets>;

fn arena(options: BucketsOptions) -> BucketsArena {
    let upstream = SimulatedUpstream::builder().page_bytes(2 * MIB).handles(true).build();
    Arena::new(Buckets::new(options).unwrap(), upstream)
}

/// Nothing goes back before memory is short.
fn keeping() -> BucketsOptions {
    BucketsOptions { slack_percent: None, ..BucketsOptions::default() }
}

fn addr(arena: &mut BucketsArena, bytes: usize) -> usize {
    arena.allocate(Request::new(bytes)).unwrap().addr
}

/// A free segment that served a block of `bytes`, and the block's address.
fn cached(arena: &mut BucketsArena, bytes: usize) -> usize {
    let addr = addr(arena, bytes);
    arena.free(addr).unwrap();
    addr
}

fn reserved_mib(arena: &BucketsArena) -> usize {
    arena.stats().reserved.current / MIB
}

/// Whether a request of `bytes` is served from what is mapped; it is freed again.
fn hits(arena: &mut BucketsArena, bytes: usize) -> bool {
    let block = arena.allocate(Request::new(bytes)).unwrap();
    arena.free(block.addr).unwrap();
    block.hit
}

#[test]
fn a_request_falls_in_the_class_of_its_rounded_size() {
    for limit in MEDIUM_LIMITS {
        let options = BucketsOptions { medium_limit_bytes: limit, ..keeping() };
        let mut small = arena(options.clone());
        let first = addr(&mut small, 1);
        assert_eq!((addr(&mut small, MIB - 511), reserved_mib(&small)), (first + 512, 2));
        addr(&mut small, MIB + 1);
        assert_eq!(reserved_mib(&small), 2 + 32, "a medium request takes none of a small segment");

        let mut medium = arena(options.clone());
        let whole = cached(&mut medium, limit);
        let part = medium.allocate(Request::new(limit / 2)).unwrap();
        assert_eq!((part.addr, part.allocated_bytes), (whole, limit / 2), "a medium block is cut");

        let mut large = arena(options);
        let whole = cached(&mut large, limit + 1);
        assert_ne!(addr(&mut large, limit), whole, "what is just medium is not served from a large one");
        let again = large.allocate(Request::new(limit + 1)).unwrap();
        assert_eq!((again.addr, again.allocated_bytes), (whole, limit + 2 * MIB));
        for arena in [small, medium, large] {
            arena.validate().unwrap();
        }
    }
}

#[test]
fn a_small_request_never_lands_in_a_large_block_but_its_memory_serves_as_a_whole() {
    for limit in MEDIUM_LIMITS {
        let large_bytes = limit + 8 * MIB;
        let options = BucketsOptions {
            medium_limit_bytes: limit,
            limit_bytes: Some(large_bytes + 2 * MIB),
            ..keeping()
        };
        let mut arena = arena(options);
        let large = addr(&mut arena, large_bytes);
        let small = [addr(&mut arena, MIB), addr(&mut arena, MIB)];
        let refused = arena.allocate(Request::new(100)).unwrap_err();
        assert!(matches!(refused, ArenaError::OutOfMemory { requested_bytes: 100, .. }), "{refused}");
        // Free but mapped, it serves its own class only.
        arena.free(large).unwrap();
        assert!(small.iter().all(|addr| !(large..large + large_bytes).contains(addr)));
        assert!(arena.allocate_mapped(Request::new(100)).is_none());
        assert!(hits(&mut arena, large_bytes));
        // Memory is short: the block goes, all of it, and small segments come.
        addr(&mut arena, 100);
        assert_eq!(reserved_mib(&arena), 4);
        for _ in 0..limit / MIB {
            addr(&mut arena, MIB);
        }
        assert!(arena.allocate(Request::new(large_bytes)).is_err());
        arena.validate().unwrap();
    }
}

#[test]
fn small_segments_serve_large_requests_when_memory_is_short() {
    let mut arena = arena(BucketsOptions { limit_bytes: Some(120 * MIB), ..keeping() });
    let small: Vec<usize> = (0..120).map(|_| addr(&mut arena, MIB)).collect();
    assert!(arena.allocate(Request::new(110 * MIB)).is_err());
    for addr in small {
        arena.free(addr).unwrap();
    }
    assert!(!arena.allocate(Request::new(110 * MIB)).unwrap().hit);
    assert_eq!(reserved_mib(&arena), 120, "no more goes than is needed");
    arena.validate().unwrap();
}

#[test]
fn the_segment_that_is_free_for_longest_goes_first_of_whatever_class() {
    let mut arena = arena(BucketsOptions { limit_bytes: Some(400 * MIB), ..keeping() });
    let blocks = [130 * MIB, 60 * MIB, 110 * MIB].map(|bytes| (bytes, addr(&mut arena, bytes)));
    let small = addr(&mut arena, 100);
    // Not in the order of address, size or class.
    for at in [1, 0, 2] {
        arena.free(blocks[at].1).unwrap();
    }
    arena.free(small).unwrap();
    assert_eq!(reserved_mib(&arena), 302);
    // What serves again counts as used anew: the one of 60 MiB is now the last to go.
    assert!(hits(&mut arena, 60 * MIB));
    let mut pressure = Vec::new();
    for (mib, reserved) in [(170, 302 - 130 + 170), (90, 302 - 130 - 110 + 170 + 90)] {
        pressure.push(addr(&mut arena, mib * MIB));
        assert_eq!(reserved_mib(&arena), reserved, "after {mib} MiB");
    }
    assert!(hits(&mut arena, 100) && hits(&mut arena, 60 * MIB));
    for addr in pressure {
        arena.free(addr).unwrap();
    }
    // Trimming keeps the order: the small one, then that of 60 MiB.
    assert_eq!(arena.trim(1), 2 * MIB);
    assert_eq!(arena.trim(1), 60 * MIB);
    assert_eq!(arena.trim(1), 170 * MIB);
    arena.validate().unwrap();
}

#[test]
fn when_all_that_is_unused_would_not_be_enough_nothing_goes() {
    let mut arena = arena(BucketsOptions { limit_bytes: Some(400 * MIB), ..BucketsOptions::default() });
    addr(&mut arena, 150 * MIB);
    cached(&mut arena, 120 * MIB);
    cached(&mut arena, 130 * MIB);
    let before = reserved_mib(&arena);
    assert!(arena.allocate(Request::new(260 * MIB)).is_err());
    assert_eq!(reserved_mib(&arena), before);
    arena.upstream_mut().set_capacity_bytes(300 * MIB);
    assert!(arena.allocate(Request::new(160 * MIB)).is_err());
    assert_eq!(reserved_mib(&arena), before);
    arena.validate().unwrap();
}

#[test]
fn beyond_the_cap_the_oldest_go_and_what_is_too_long_goes_alone() {
    let mut arena = arena(BucketsOptions { max_cached_bytes: Some(300 * MIB), ..keeping() });
    let blocks = [110 * MIB, 120 * MIB, 130 * MIB].map(|bytes| addr(&mut arena, bytes));
    arena.free(blocks[2]).unwrap();
    arena.free(blocks[0]).unwrap();
    assert_eq!(reserved_mib(&arena), 360);
    arena.free(blocks[1]).unwrap();
    assert_eq!(reserved_mib(&arena), 230, "the first that was freed went");
    cached(&mut arena, 302 * MIB);
    assert_eq!(reserved_mib(&arena), 230);
    assert!(hits(&mut arena, 110 * MIB) && hits(&mut arena, 120 * MIB));
    // A segment in use does not count, however much of it is free.
    let part = addr(&mut arena, 100 * MIB);
    arena.resize_in_place(part, MIB).unwrap().unwrap();
    assert_eq!(reserved_mib(&arena), 330);
    arena.validate().unwrap();
    // With nothing kept each segment goes with its last block.
    let mut arena = self::arena(BucketsOptions { max_cached_bytes: Some(0), ..keeping() });
    let small = [addr(&mut arena, 100), addr(&mut arena, 100)];
    arena.free(small[0]).unwrap();
    assert_eq!(reserved_mib(&arena), 2);
    arena.free(small[1]).unwrap();
    assert_eq!(reserved_mib(&arena), 0);
}

#[test]
fn before_more_is_mapped_than_blocks_ever_took_unused_segments_go() {
    let mut arena = arena(BucketsOptions { slack_percent: Some(10), ..BucketsOptions::default() });
    let blocks = [200 * MIB, 120 * MIB, 180 * MIB].map(|bytes| addr(&mut arena, bytes));
    arena.free(blocks[1]).unwrap();
    arena.free(blocks[0]).unwrap();
    // 500 MiB were in use, so 550 may be mapped.
    let within = addr(&mut arena, 50 * MIB);
    assert_eq!(reserved_mib(&arena), 550);
    // A peak that is reset is no reason to give more up.
    arena.reset_peaks();
    let beyond = addr(&mut arena, 60 * MIB);
    assert_eq!(reserved_mib(&arena), 550 - 120 + 60);
    assert!(hits(&mut arena, 200 * MIB), "the younger one stays");
    for addr in [blocks[2], within, beyond] {
        arena.free(addr).unwrap();
    }
    arena.validate().unwrap();
    let mut without = self::arena(keeping());
    cached(&mut without, 200 * MIB);
    cached(&mut without, 120 * MIB);
    assert_eq!(reserved_mib(&without), 320);
}

#[test]
fn a_large_block_is_never_cut_and_serves_what_leaves_an_eighth_of_its_size_unused() {
    for (mib, serves) in [(288, true), (256, true), (254, false), (290, false)] {
        let mut arena = arena(keeping());
        let whole = cached(&mut arena, 288 * MIB);
        let block = arena.allocate(Request::new(mib * MIB)).unwrap();
        assert_eq!(block.addr == whole, serves, "{mib} MiB");
        assert_eq!(block.allocated_bytes / MIB, if serves { 288 } else { mib });
        arena.validate().unwrap();
    }
    // The best fit, not the first.
    let mut arena = arena(keeping());
    let blocks = [288, 272, 280].map(|mib| addr(&mut arena, mib * MIB));
    for addr in blocks {
        arena.free(addr).unwrap();
    }
    assert_eq!(addr(&mut arena, 270 * MIB), blocks[1]);
}

#[test]
fn a_segment_is_only_as_long_as_the_request_when_there_is_no_memory_for_more() {
    let mut arena = arena(BucketsOptions { limit_bytes: Some(10 * MIB), ..keeping() });
    let first = addr(&mut arena, 5 * MIB / 2);
    assert_eq!(reserved_mib(&arena), 4);
    addr(&mut arena, 5 * MIB);
    assert_eq!(reserved_mib(&arena), 10);
    assert_eq!(addr(&mut arena, MIB + 1), first + 5 * MIB / 2, "what is left of it serves, too");
    arena.validate().unwrap();
}

#[test]
fn a_block_is_resized_in_its_segment_as_long_as_it_stays_in_its_class() {
    let mut arena = arena(keeping());
    let small = addr(&mut arena, 1000);
    let grown = arena.resize_in_place(small, MIB).unwrap().unwrap();
    assert_eq!(grown.allocated_bytes, MIB);
    assert!(arena.resize_in_place(small, MIB + 1).unwrap().is_none(), "that is medium");
    let behind = addr(&mut arena, 1000);
    assert!(arena.resize_in_place(small, 1000).unwrap().is_some());
    assert!(arena.resize_in_place(small, MIB).unwrap().is_some(), "its end was free again");
    arena.resize_in_place(behind, 2000).unwrap().unwrap();
    assert_eq!(addr(&mut arena, 512), behind + 2048);
    // A large block keeps what it has.
    let large = addr(&mut arena, 200 * MIB);
    let shrunk = arena.resize_in_place(large, 100).unwrap().unwrap();
    assert_eq!((shrunk.requested_bytes, shrunk.allocated_bytes), (100, 200 * MIB));
    assert!(arena.resize_in_place(large, 200 * MIB + 1).unwrap().is_none());
    arena.validate().unwrap();
}

#[test]
fn blocks_aligned_beyond_a_page_serve_again() {
    let mut arena = arena(keeping());
    for bytes in [1000, 3 * MIB, 130 * MIB] {
        addr(&mut arena, bytes);
        let aligned = Request::new(bytes).aligned_to(64 * MIB);
        let first = arena.allocate(aligned).unwrap();
        assert!(first.addr.is_multiple_of(64 * MIB));
        arena.free(first.addr).unwrap();
        let second = arena.allocate(aligned).unwrap();
        assert!(second.hit && second.addr.is_multiple_of(64 * MIB), "{bytes} bytes");
    }
    arena.validate().unwrap();
}

#[test]
fn what_no_block_ended_on_is_clean() {
    let mut arena = arena(keeping());
    let blocks = [1000, 2000, 130 * MIB].map(|bytes| addr(&mut arena, bytes));
    for addr in blocks {
        let clean = arena.clean_ranges(addr);
        assert_eq!(clean[0].len, arena.live_block(addr).unwrap().allocated_bytes);
        arena.free(addr).unwrap();
    }
    for bytes in [1000, 2000, 130 * MIB] {
        let again = addr(&mut arena, bytes);
        assert_eq!(arena.clean_ranges(again), []);
        arena.free(again).unwrap();
    }
    arena.trim(usize::MAX);
    let block = addr(&mut arena, 130 * MIB);
    assert_eq!(arena.clean_ranges(block).len(), 1);
    // What grows over the place of a block that ended is not, and neither is what was once cut off.
    let [first, second] = [(); 2].map(|()| addr(&mut arena, 1024));
    arena.free(second).unwrap();
    arena.resize_in_place(first, 2048).unwrap().unwrap();
    assert_eq!(arena.clean_ranges(first), []);
    let fresh = addr(&mut arena, 3 * MIB);
    arena.resize_in_place(fresh, 2 * MIB).unwrap().unwrap();
    assert_eq!(arena.clean_ranges(fresh).len(), 1);
    let end = addr(&mut arena, 2 * MIB);
    assert_eq!((end, arena.clean_ranges(end)), (fresh + 2 * MIB, vec![]));
}

#[test]
fn ranges_that_are_memory_go_back_one_by_one() {
    let mut arena = arena(BucketsOptions { whole_ranges: true, ..keeping() });
    let blocks = [100, 3 * MIB, 130 * MIB].map(|bytes| addr(&mut arena, bytes));
    assert_eq!(arena.stats().segments.current, 3);
    arena.free(blocks[1]).unwrap();
    assert_eq!((arena.trim(usize::MAX), arena.stats().segments.current), (32 * MIB, 2));
    arena.validate().unwrap();
    for addr in [blocks[0], blocks[2]] {
        arena.free(addr).unwrap();
    }
    arena.release_all().unwrap();
    assert_eq!(arena.upstream().reserved_ranges().count(), 0);
}

#[test]
fn what_upstream_did_not_take_back_goes_before_all_else() {
    let upstream = SimulatedUpstream::builder().page_bytes(2 * MIB).build();
    let mut arena = Arena::new(Buckets::new(keeping()).unwrap(), upstream);
    let kept = arena.allocate(Request::new(100)).unwrap().addr;
    arena.free(kept).unwrap();
    // Two maps fail half-way, that of a usual segment and that of one for the request alone; and what they
    // did is not all undone: of five pages all but the last, of one page nothing.
    (1..=2).for_each(|number| arena.upstream_mut().fail_map(number));
    (1..=7).for_each(|number| arena.upstream_mut().fail_unmap(number));
    arena.upstream_mut().complete_before_failing(5);
    assert!(arena.allocate(Request::new(3 * MIB)).is_err());
    assert_eq!((reserved_mib(&arena), arena.stats().releasable_bytes), (2 + 2 + 2, 6 * MIB));
    arena.validate().unwrap();
    arena.upstream_mut().clear_failures();
    // The segment that can serve is free for longer than they are left over.
    assert_eq!(arena.trim(1), 2 * MIB);
    assert_eq!(arena.trim(1), 2 * MIB);
    assert!(hits(&mut arena, 100));
    arena.validate().unwrap();
}

#[test]
fn options_that_contradict_each_other_are_refused() {
    let usual = BucketsOptions::default();
    for (options, name) in [
        (BucketsOptions { medium_limit_bytes: MIB - 1, ..usual.clone() }, "medium_limit_bytes"),
        (BucketsOptions { small_segment_bytes: MIB - 1, ..usual.clone() }, "small_segment_bytes"),
        (BucketsOptions { medium_segment_bytes: MIB, ..usual.clone() }, "medium_segment_bytes"),
        (BucketsOptions { medium_segment_bytes: usize::MAX, ..usual.clone() }, "medium_segment_bytes"),
        (BucketsOptions { range_bytes: 0, ..usual.clone() }, "range_bytes"),
        (BucketsOptions { granule_bytes: 3, ..usual.clone() }, "granule_bytes"),
    ] {
        let error = Buckets::new(options).unwrap_err();
        assert!(matches!(error, ArenaError::Option { option, .. } if option == name), "{error}");
    }
    assert!(Buckets::new(BucketsOptions { medium_limit_bytes: MIB, ..usual }).is_ok());
}
