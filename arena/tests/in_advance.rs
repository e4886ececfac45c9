//! Memory that is taken before it is asked for, kept, and grown.

use mempool_arena::{Arena, ArenaError, Conf, Placement, Request, Setting, SimulatedUpstream};

const MIB: usize = 1 << 20;

/// The policies that can take memory in advance.
const POLICIES: [&str; 9] = [
    "policy:pages",
    "policy:pages,mode:moving",
    "policy:segments",
    "policy:buckets",
    "policy:buddy",
    "policy:bfc",
    "policy:torch",
    "policy:expandable",
    "policy:torch,max_split_size_mb:40,roundup_power2_divisions:4",
];

fn placement(conf: &str, limit_bytes: Option<usize>) -> Box<dyn Placement> {
    let conf: Conf = conf.parse().unwrap();
    conf.placement(Setting { limit_bytes, ..Setting::default() }).unwrap()
}

fn arena(conf: &str, limit_bytes: Option<usize>) -> Arena<SimulatedUpstream> {
    let handles = !conf.contains("buddy");
    let upstream = SimulatedUpstream::builder().page_bytes(2 * MIB).handles(handles).build();
    Arena::from_boxed(placement(conf, limit_bytes), upstream)
}

fn free(arena: &mut Arena<SimulatedUpstream>, addr: usize) {
    arena.free(addr).expect("it is live");
}

#[test]
fn all_of_a_limit_can_be_taken_and_no_figure_of_requests_tells_of_it() {
    for conf in POLICIES {
        for mib in [2, 8, 20, 100, 126, 700] {
            let mut arena = arena(conf, Some(mib * MIB));
            arena.take_in_advance(mib * MIB).unwrap_or_else(|error| panic!("{conf}, {mib} MiB: {error}"));
            arena.validate().unwrap();
            let stats = arena.stats();
            assert_eq!(stats.reserved.current, mib * MIB, "{conf}");
            assert_eq!(stats.releasable_bytes, mib * MIB, "{conf}: all of it is free");
            assert_eq!((stats.requested.peak, stats.allocated.peak, stats.blocks.peak), (0, 0, 0), "{conf}");
            assert_eq!((stats.hits, stats.misses, stats.failures), (0, 0, 0), "{conf}");
            assert_eq!(stats.inactive_split.current, 0, "{conf}");
        }
    }
}

#[test]
fn what_was_taken_serves_small_and_large_requests_without_mapping() {
    // Powers of two do not fill what is left of others.
    for conf in POLICIES.into_iter().filter(|conf| !conf.contains("buddy")) {
        let mut arena = arena(conf, Some(256 * MIB));
        arena.take_in_advance(256 * MIB).unwrap();
        let calls = arena.upstream().counters().map_calls;
        let mut blocks = Vec::new();
        for bytes in [100, 4096, 300_000, MIB, 30 * MIB, 3 * MIB, 17 * MIB, 20 * MIB, 12 * MIB] {
            let placed = arena.allocate(Request::new(bytes)).unwrap();
            assert!(placed.hit, "{conf}: {bytes} bytes");
            blocks.push(placed.addr);
        }
        blocks.into_iter().for_each(|addr| free(&mut arena, addr));
        assert_eq!(arena.upstream().counters().map_calls, calls, "{conf}");
        assert_eq!(arena.upstream().counters().unmap_calls, 0, "{conf}");
        arena.validate().unwrap();
    }
}

#[test]
fn a_buddy_arena_serves_powers_of_two_without_mapping() {
    let mut arena = arena("policy:buddy", Some(96 * MIB));
    arena.take_in_advance(96 * MIB).unwrap();
    let calls = arena.upstream().counters().map_calls;
    for bytes in [64 * MIB, 16 * MIB, 8 * MIB, 4 * MIB, MIB, 512] {
        assert!(arena.allocate(Request::new(bytes)).unwrap().hit, "{bytes}");
    }
    assert_eq!(arena.upstream().counters().map_calls, calls);
}

#[test]
fn more_than_the_limit_or_upstream_has_is_refused_and_nothing_stays() {
    for conf in POLICIES {
        let mut limited = arena(conf, Some(64 * MIB));
        let error = limited.take_in_advance(66 * MIB).unwrap_err();
        assert!(matches!(error, ArenaError::OutOfMemory { limit_bytes: Some(_), .. }), "{conf}: {error}");
        assert_eq!(limited.stats().reserved.current, 0, "{conf}");
        let mut short = arena(conf, None);
        short.upstream_mut().set_capacity_bytes(64 * MIB);
        assert!(short.take_in_advance(66 * MIB).is_err(), "{conf}");
        assert_eq!(short.stats().reserved.current, 0, "{conf}");
        assert_eq!(short.upstream().mapped_bytes(), 0, "{conf}");
        short.take_in_advance(64 * MIB).unwrap();
        assert_eq!(short.stats().failures, 0, "{conf}: nobody's request has failed");
        assert!(short.take_in_advance(usize::MAX).is_err(), "{conf}");
    }
}

#[test]
fn policies_whose_memory_serves_only_its_own_sizes_take_none_in_advance() {
    for conf in ["policy:none", "policy:simple"] {
        let error = arena(conf, None).take_in_advance(8 * MIB).unwrap_err();
        assert!(matches!(error, ArenaError::Option { option: "memory in advance", .. }), "{error}");
    }
}

#[test]
fn trimming_keeps_what_is_to_be_kept_and_ending_the_arena_keeps_nothing() {
    for conf in POLICIES {
        for kept in [64 * MIB, 61 * MIB, 2 * MIB, 1] {
            let mut arena = arena(conf, None);
            arena.take_in_advance(64 * MIB).unwrap();
            arena.keep(kept);
            let more = arena.allocate(Request::new(100 * MIB)).unwrap();
            arena.free(more.addr).unwrap();
            let before = arena.stats().reserved.current;
            assert!(arena.spare_bytes() <= before - kept);
            let returned = arena.trim(usize::MAX);
            assert_eq!(arena.stats().reserved.current, before - returned);
            assert!(before - returned >= kept, "{conf}: {} of {kept} stay", before - returned);
            // Segments go back whole, so up to the longest may stay beyond.
            assert!(before - returned <= kept + 128 * MIB, "{conf}: {} stay", before - returned);
            arena.validate().unwrap();
            arena.release_all().unwrap();
            assert_eq!(arena.upstream().mapped_bytes(), 0, "{conf}");
        }
    }
}

#[test]
fn trimming_gives_back_what_is_beyond_to_a_page_where_pages_can_be_given_back() {
    for conf in ["policy:pages", "policy:buddy", "policy:expandable"] {
        let upstream = SimulatedUpstream::builder().page_bytes(2 * MIB).build();
        let mut arena = Arena::from_boxed(placement(conf, None), upstream);
        arena.take_in_advance(300 * MIB).unwrap();
        arena.keep(100 * MIB);
        arena.trim(usize::MAX);
        let longest_page = if conf.contains("expandable") { 20 * MIB } else { 2 * MIB };
        let kept = arena.stats().reserved.current;
        assert!((100 * MIB..100 * MIB + longest_page).contains(&kept), "{conf}: {kept}");
        assert_eq!(arena.trim(usize::MAX), 0);
    }
}

#[test]
fn what_is_kept_goes_where_a_request_needs_it() {
    for conf in POLICIES {
        let mut arena = arena(conf, Some(128 * MIB));
        arena.take_in_advance(128 * MIB).unwrap();
        arena.keep(128 * MIB);
        // Far more small ones than were expected.
        let blocks: Vec<usize> = (0..40)
            .map(|_| arena.allocate(Request::new(MIB)).map(|placed| placed.addr))
            .map_while(Result::ok)
            .collect();
        assert_eq!(blocks.len(), 40, "{conf}");
        arena.validate().unwrap();
        blocks.into_iter().for_each(|addr| free(&mut arena, addr));
        // And one that takes nearly everything, which the small ones' memory has to serve too.
        arena.allocate(Request::new(100 * MIB)).unwrap_or_else(|error| panic!("{conf}: {error}"));
        assert!(arena.stats().reserved.current <= 128 * MIB, "{conf}");
        arena.validate().unwrap();
    }
}

#[test]
fn small_requests_beyond_what_was_expected_find_room_beside_large_ones() {
    // Classes of buckets do not mix.
    for conf in POLICIES.into_iter().filter(|conf| !conf.contains("buckets")) {
        let mut arena = arena(conf, Some(128 * MIB));
        arena.keep(128 * MIB);
        arena.take_in_advance(128 * MIB).unwrap();
        let large = arena.allocate(Request::new(30 * MIB)).unwrap().addr;
        let blocks: Vec<usize> = (0..50)
            .map(|_| arena.allocate(Request::new(MIB)).unwrap_or_else(|error| panic!("{conf}: {error}")).addr)
            .collect();
        arena.validate().unwrap();
        assert_eq!(arena.stats().failures, 0, "{conf}");
        blocks.into_iter().for_each(|addr| free(&mut arena, addr));
        free(&mut arena, large);
        arena.validate().unwrap();
        assert_eq!(arena.stats().inactive_split.current, 0, "{conf}");
        arena.release_all().unwrap();
    }
}

#[test]
fn memory_that_moves_stays_as_far_as_it_is_kept() {
    for kept in [0, 256 * MIB] {
        let mut arena = arena("policy:pages,mode:moving", None);
        arena.take_in_advance(256 * MIB).unwrap();
        arena.keep(kept);
        let mut blocks: Vec<usize> =
            (0..9).map(|_| arena.allocate(Request::new(24 * MIB)).unwrap().addr).collect();
        for at in [8, 6, 5, 3, 2, 0] {
            free(&mut arena, blocks.swap_remove(at));
        }
        // No place is free that is so long, though more than that is.
        arena.allocate(Request::new(110 * MIB)).unwrap();
        let reserved = arena.stats().reserved.current;
        assert_eq!(reserved >= 256 * MIB, kept > 0, "{kept} kept: {reserved}");
        arena.validate().unwrap();
    }
}

#[test]
fn unused_segments_of_buckets_go_for_others_only_as_far_as_they_are_not_kept() {
    let mut arena = arena("policy:buckets", None);
    arena.take_in_advance(256 * MIB).unwrap();
    arena.keep(256 * MIB);
    // Large, so none of what was taken serves; two of its segments are more than is replaced.
    arena.allocate(Request::new(110 * MIB)).unwrap();
    let reserved = arena.stats().reserved.current;
    assert!((256 * MIB..366 * MIB).contains(&reserved), "{reserved}");
    arena.validate().unwrap();
}

#[test]
fn unused_segments_stay_though_fewer_are_to_be_cached() {
    let conf: Conf = "policy:buckets,max_cached_mb:8".parse().unwrap();
    let upstream = SimulatedUpstream::builder().page_bytes(2 * MIB).build();
    let mut arena = Arena::from_boxed(conf.placement(Setting::default()).unwrap(), upstream);
    arena.keep(128 * MIB);
    let blocks: Vec<usize> = (0..3).map(|_| arena.allocate(Request::new(64 * MIB)).unwrap().addr).collect();
    blocks.into_iter().for_each(|addr| free(&mut arena, addr));
    assert_eq!(arena.stats().reserved.current, 128 * MIB);
}

#[test]
fn old_segments_stay_above_the_threshold_of_torch() {
    for (kept, left) in [(0, false), (256 * MIB, true)] {
        let mut arena = arena("policy:torch,garbage_collection_threshold:0.25", Some(512 * MIB));
        arena.take_in_advance(256 * MIB).unwrap();
        arena.keep(kept);
        let served = arena.allocate(Request::new(250 * MIB)).unwrap().addr;
        free(&mut arena, served);
        arena.allocate(Request::new(254 * MIB)).unwrap();
        assert_eq!(arena.stats().reserved.current >= 256 * MIB + 254 * MIB, left);
    }
}

#[test]
fn an_arena_grows_by_what_it_is_told_and_the_rest_serves_later_requests() {
    for conf in POLICIES {
        let mut arena = arena(conf, None);
        let first = arena.allocate_growing(Request::new(16 * MIB), 64 * MIB).unwrap();
        assert!(!first.hit, "{conf}: pages were mapped for it");
        let stats = arena.stats();
        assert_eq!((stats.growths, stats.hits, stats.misses), (1, 0, 1), "{conf}");
        assert!(stats.reserved.current >= 64 * MIB, "{conf}");
        assert_eq!(stats.requested.peak, 16 * MIB, "{conf}");
        for _ in 0..2 {
            assert!(arena.allocate_growing(Request::new(16 * MIB), 64 * MIB).unwrap().hit, "{conf}");
        }
        assert_eq!(arena.stats().growths, 1, "{conf}");
        assert_eq!(
            arena.live_block(first.addr).unwrap().requested_bytes,
            16 * MIB,
            "{conf}: it lies where it lay"
        );
        arena.validate().unwrap();
    }
}

#[test]
fn a_growth_that_is_refused_leaves_the_need_alone() {
    for conf in POLICIES {
        let mut arena = arena(conf, Some(64 * MIB));
        let placed = arena.allocate_growing(Request::new(16 * MIB), 66 * MIB).unwrap();
        assert!(!placed.hit);
        let stats = arena.stats();
        assert_eq!((stats.growths, stats.misses, stats.failures), (0, 1, 0), "{conf}");
        assert!(
            stats.reserved.current <= 20 * MIB || conf.contains("bfc"),
            "{conf}: {}",
            stats.reserved.current
        );
        arena.validate().unwrap();
    }
}

#[test]
fn small_requests_and_those_larger_than_a_growth_take_what_they_need() {
    for conf in ["policy:pages", "policy:buckets", "policy:torch", "policy:expandable"] {
        let mut arena = arena(conf, None);
        arena.allocate_growing(Request::new(4096), 64 * MIB).unwrap();
        assert_eq!(arena.stats().reserved.current, 2 * MIB, "{conf}");
        arena.allocate_growing(Request::new(120 * MIB), 64 * MIB).unwrap();
        assert!(arena.stats().reserved.current <= 2 * MIB + 120 * MIB, "{conf}");
        assert_eq!(arena.stats().growths, 0, "{conf}");
    }
}
