//! What every policy must do, one behaviour a function.

use mempool_arena::{ArenaError, Request, UpstreamError};

use crate::model::Checked;
use crate::{MakePlacement, PAGE_BYTES, arena};

pub fn a_freed_block_serves_the_next_equal_request(make: MakePlacement) {
    let mut arena = arena(make, None);
    let first = arena.allocate(Request::new(100_000)).unwrap();
    assert!(!first.hit);
    arena.free(first.addr).unwrap();
    let second = arena.allocate(Request::new(100_000)).unwrap();
    assert!(second.hit);
    assert_eq!(first.addr, second.addr);
    assert_eq!((arena.stats().hits, arena.stats().misses), (1, 1));
}

pub fn a_repeated_step_maps_nothing(make: MakePlacement) {
    let mut arena = arena(make, None);
    let sizes = [70_000, 3_000, 1_000_000, 256, 500_000, 70_000];
    let step = |arena: &mut mempool_arena::Arena<_>| {
        let blocks = sizes.map(|size| arena.allocate(Request::new(size)).unwrap().addr);
        for addr in blocks {
            arena.free(addr).unwrap();
        }
    };
    step(&mut arena);
    let maps = arena.upstream().counters().map_calls;
    for _ in 0..100 {
        step(&mut arena);
    }
    assert_eq!(arena.upstream().counters().map_calls, maps);
    assert_eq!(arena.upstream().counters().unmap_calls, 0);
}

pub fn requests_of_zero_bytes_have_addresses_of_their_own(make: MakePlacement) {
    let mut checked = Checked::new(arena(make, None), None);
    let first = checked.allocate(0, 1).unwrap();
    let second = checked.allocate(0, 1).unwrap();
    assert_ne!(first.addr, second.addr);
    checked.check();
    checked.finish();
}

pub fn every_power_of_two_alignment_is_met(make: MakePlacement) {
    let mut checked = Checked::new(arena(make, None), None);
    for shift in 0..24 {
        checked.allocate(1000, 1 << shift).expect("memory is there");
        checked.check();
    }
    checked.finish();
}

pub fn impossible_requests_are_errors_with_their_numbers(make: MakePlacement) {
    let mut arena = arena(make, None);
    for size_bytes in [usize::MAX, usize::MAX - 255, isize::MAX as usize] {
        let error = arena.allocate(Request::new(size_bytes)).unwrap_err();
        assert_eq!(error, ArenaError::SizeOverflow { size_bytes, align_bytes: 1 });
    }
    let huge = arena.allocate(Request::new(1).aligned_to(1 << 63)).unwrap_err();
    assert_eq!(huge, ArenaError::SizeOverflow { size_bytes: 1, align_bytes: 1 << 63 });
    let odd = arena.allocate(Request::new(1).aligned_to(24)).unwrap_err();
    assert_eq!(odd, ArenaError::Alignment { align_bytes: 24 });
    assert!(arena.allocate(Request::new(1 << 60)).is_err());
    arena.validate().unwrap();
}

pub fn an_unknown_address_is_an_error_and_changes_nothing(make: MakePlacement) {
    let mut arena = arena(make, None);
    let block = arena.allocate(Request::new(5000)).unwrap();
    for addr in [0, block.addr + 1, block.addr + 256, usize::MAX] {
        assert_eq!(arena.free(addr).unwrap_err(), ArenaError::UnknownAddress { addr });
        assert!(arena.resize_in_place(addr, 1).is_err());
    }
    assert!(arena.live_block(block.addr).is_some());
    arena.validate().unwrap();
}

pub fn a_full_upstream_is_an_error_that_loses_nothing(make: MakePlacement) {
    let mut arena = arena(make, None);
    arena.upstream_mut().set_capacity_bytes(4 * PAGE_BYTES);
    let kept = arena.allocate(Request::new(2 * PAGE_BYTES)).unwrap();
    let error = arena.allocate(Request::new(4 * PAGE_BYTES)).unwrap_err();
    let ArenaError::OutOfMemory { requested_bytes, reserved_bytes, source, .. } = error else {
        panic!("{error}");
    };
    assert_eq!((requested_bytes, reserved_bytes), (4 * PAGE_BYTES, 2 * PAGE_BYTES));
    assert!(matches!(source, Some(UpstreamError::Exhausted { .. })), "{source:?}");
    assert!(arena.live_block(kept.addr).is_some());
    assert!(arena.allocate(Request::new(2 * PAGE_BYTES)).is_ok(), "a smaller request works");
    assert_eq!(arena.stats().failures, 1);
    arena.validate().unwrap();
}

pub fn free_pages_move_to_where_a_limit_forbids_new_ones(make: MakePlacement) {
    let limit = 16 * PAGE_BYTES;
    let mut arena = arena(make, Some(limit));
    // Sixteen blocks of a page, every second one freed: eight free pages, none adjacent.
    let blocks: Vec<usize> =
        (0..16).map(|_| arena.allocate(Request::new(PAGE_BYTES)).unwrap().addr).collect();
    for addr in blocks.iter().step_by(2) {
        arena.free(*addr).unwrap();
    }
    let large = arena.allocate(Request::new(8 * PAGE_BYTES)).unwrap();
    assert!(!large.hit);
    assert!(arena.stats().reserved.peak <= limit);
    arena.validate().unwrap();
    assert!(arena.allocate(Request::new(PAGE_BYTES)).is_err());
}

pub fn a_request_far_beyond_the_limit_leaves_the_cache_alone(make: MakePlacement) {
    let mut arena = arena(make, Some(16 * PAGE_BYTES));
    let kept = arena.allocate(Request::new(4 * PAGE_BYTES)).unwrap();
    let cached = arena.allocate(Request::new(8 * PAGE_BYTES)).unwrap();
    arena.free(cached.addr).unwrap();
    assert!(arena.allocate(Request::new(32 * PAGE_BYTES)).is_err());
    assert_eq!(arena.stats().reserved.current, 12 * PAGE_BYTES);
    assert!(arena.allocate(Request::new(8 * PAGE_BYTES)).unwrap().hit);
    assert!(arena.live_block(kept.addr).is_some());
    arena.validate().unwrap();
}

pub fn a_map_that_fails_half_way_is_rolled_back(make: MakePlacement) {
    let mut arena = arena(make, None);
    arena.upstream_mut().fail_map(1);
    arena.upstream_mut().complete_before_failing(3);
    assert!(arena.allocate(Request::new(8 * PAGE_BYTES)).is_err());
    assert_eq!(arena.stats().reserved.current, 0);
    assert_eq!(arena.upstream().mapped_bytes(), 0);
    arena.validate().unwrap();
    assert!(arena.allocate(Request::new(8 * PAGE_BYTES)).is_ok());
}

pub fn pages_that_upstream_does_not_take_back_stay_counted(make: MakePlacement) {
    let mut arena = arena(make, None);
    let block = arena.allocate(Request::new(8 * PAGE_BYTES)).unwrap();
    arena.free(block.addr).unwrap();
    arena.upstream_mut().fail_unmap(1);
    arena.upstream_mut().complete_before_failing(2);
    // A handle is taken whole or not at all.
    let taken = if crate::has_handles() { 0 } else { 2 * PAGE_BYTES };
    assert_eq!(arena.trim(usize::MAX), taken);
    assert_eq!(arena.stats().reserved.current, 8 * PAGE_BYTES - taken);
    arena.validate().unwrap();
    assert_eq!(arena.trim(usize::MAX), 8 * PAGE_BYTES - taken);
}

pub fn a_range_that_upstream_does_not_take_back_stays_usable(make: MakePlacement) {
    let mut arena = arena(make, None);
    let block = arena.allocate(Request::new(8 * PAGE_BYTES)).unwrap();
    arena.free(block.addr).unwrap();
    arena.upstream_mut().fail_release(1);
    arena.trim(usize::MAX);
    assert_eq!(arena.stats().segments.current, 1);
    arena.validate().unwrap();
    assert_eq!(arena.allocate(Request::new(8 * PAGE_BYTES)).unwrap().addr, block.addr);
    arena.free(block.addr).unwrap();
    arena.release_all().unwrap();
    assert_eq!(arena.stats().segments.current, 0);
}

pub fn trim_stops_at_its_target(make: MakePlacement) {
    let mut arena = arena(make, None);
    let block = arena.allocate(Request::new(8 * PAGE_BYTES)).unwrap();
    arena.free(block.addr).unwrap();
    assert_eq!(arena.trim(3 * PAGE_BYTES - 1), 3 * PAGE_BYTES);
    assert_eq!(arena.stats().reserved.current, 5 * PAGE_BYTES);
}

pub fn release_with_live_blocks_is_refused(make: MakePlacement) {
    let mut arena = arena(make, None);
    let block = arena.allocate(Request::new(100)).unwrap();
    let error = arena.release_all().unwrap_err();
    assert!(matches!(error, ArenaError::StillLive { live_blocks: 1, .. }), "{error}");
    arena.free(block.addr).unwrap();
    arena.release_all().unwrap();
    assert_eq!(arena.upstream().mapped_bytes(), 0);
}

pub fn only_never_used_pages_count_as_clean(make: MakePlacement) {
    let mut arena = arena(make, None);
    let dirty = |arena: &mempool_arena::Arena<_>, addr: usize, len: usize| -> usize {
        let clean = arena.clean_ranges(addr);
        mempool_arena::AddressRange::new(addr, len).without(&clean).map(|range| range.len).sum()
    };
    let first = arena.allocate(Request::new(2 * PAGE_BYTES)).unwrap();
    assert_eq!(dirty(&arena, first.addr, 2 * PAGE_BYTES), 0);
    arena.free(first.addr).unwrap();
    // The same pages again, and two new ones behind them.
    let second = arena.allocate(Request::new(4 * PAGE_BYTES)).unwrap();
    assert_eq!(second.addr, first.addr);
    assert_eq!(dirty(&arena, second.addr, 4 * PAGE_BYTES), 2 * PAGE_BYTES);
    arena.free(second.addr).unwrap();
    let third = arena.allocate(Request::new(4 * PAGE_BYTES)).unwrap();
    assert_eq!(dirty(&arena, third.addr, 4 * PAGE_BYTES), 4 * PAGE_BYTES);
    arena.free(third.addr).unwrap();
    // What was given back reads as zero when it is mapped again.
    arena.trim(usize::MAX);
    let fourth = arena.allocate(Request::new(4 * PAGE_BYTES)).unwrap();
    assert_eq!(dirty(&arena, fourth.addr, 4 * PAGE_BYTES), 0);
}

pub fn the_end_that_a_shrunk_block_gives_up_is_not_clean(make: MakePlacement) {
    let mut arena = arena(make, None);
    let block = arena.allocate(Request::new(4 * PAGE_BYTES)).unwrap();
    arena.resize_in_place(block.addr, PAGE_BYTES).unwrap().expect("shrinking is always possible");
    let next = arena.allocate(Request::new(2 * PAGE_BYTES)).unwrap();
    if next.addr < block.addr + block.allocated_bytes {
        assert_eq!(arena.clean_ranges(next.addr), []);
    }
    arena.validate().unwrap();
}

macro_rules! instantiate {
    // What every policy does.
    ($make:path) => {
        $crate::behaviours::instantiate! { $make =>
            requests_of_zero_bytes_have_addresses_of_their_own
            every_power_of_two_alignment_is_met
            impossible_requests_are_errors_with_their_numbers
            an_unknown_address_is_an_error_and_changes_nothing
            a_full_upstream_is_an_error_that_loses_nothing
            a_map_that_fails_half_way_is_rolled_back
            a_range_that_upstream_does_not_take_back_stays_usable
            release_with_live_blocks_is_refused
            the_end_that_a_shrunk_block_gives_up_is_not_clean
        }
    };
    // What policies do that keep freed memory.
    ($make:path, keeping) => {
        $crate::behaviours::instantiate! { $make =>
            a_freed_block_serves_the_next_equal_request
            a_repeated_step_maps_nothing
            a_request_far_beyond_the_limit_leaves_the_cache_alone
            pages_that_upstream_does_not_take_back_stay_counted
        }
    };
    // What policies do that cut free memory into blocks of any size.
    ($make:path, cutting) => {
        $crate::behaviours::instantiate! { $make =>
            trim_stops_at_its_target
            only_never_used_pages_count_as_clean
        }
    };
    // What policies do whose blocks of a page pin no other free page.
    ($make:path, pinning_little) => {
        $crate::behaviours::instantiate! { $make =>
            free_pages_move_to_where_a_limit_forbids_new_ones
        }
    };
    ($make:path => $($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                $crate::behaviours::$name($make);
            }
        )*
    };
}
pub(crate) use instantiate;
