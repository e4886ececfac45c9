//! What is particular to policy `pages`: parking, ranges, moving pages, figures.

use mempool_arena::{
    Arena, ArenaError, BucketStats, Mode, Pages, PagesOptions, Request, SimulatedBuilder, SimulatedUpstream,
    StepArena,
};

const PAGE: usize = 1 << 16;

fn options() -> PagesOptions {
    PagesOptions {
        granule_bytes: 256,
        small_limit_bytes: 1 << 15,
        limit_bytes: None,
        first_range_bytes: 1 << 20,
        ..PagesOptions::default()
    }
}

fn upstream() -> SimulatedBuilder {
    SimulatedUpstream::builder().page_bytes(PAGE)
}

fn arena(options: PagesOptions) -> Arena<SimulatedUpstream, Pages> {
    Arena::new(Pages::new(options).unwrap(), upstream().build())
}

#[test]
fn at_most_eight_blocks_of_a_size_wait() {
    let mut arena = arena(PagesOptions { park_after_frees: 0, ..options() });
    let blocks: Vec<usize> = (0..9).map(|_| arena.allocate(Request::new(4096)).unwrap().addr).collect();
    for &addr in &blocks[..8] {
        arena.free(addr).unwrap();
    }
    assert_eq!(arena.stats().parked_bytes, 8 * 4096);
    arena.free(blocks[8]).unwrap();
    assert_eq!(arena.stats().parked_bytes, 4096);
    arena.settle();
    assert_eq!(arena.stats().parked_bytes, 0);
}

#[test]
fn blocks_wait_once_a_program_repeats_itself() {
    let mut arena = arena(PagesOptions { park_after_frees: 3, ..options() });
    let mut pair = |size| {
        let block = arena.allocate(Request::new(size)).unwrap();
        arena.free(block.addr).unwrap();
        arena.stats().parked_bytes
    };
    assert_eq!([pair(4096), pair(4096), pair(4096), pair(4096)], [0, 0, 0, 4096]);
    assert_eq!(
        [pair(8 * PAGE), pair(4096), pair(4096), pair(4096)],
        [0, 0, 0, 4096],
        "new pages start it anew"
    );
}

#[test]
fn calls_are_counted_as_upstream_counts_them() {
    let mut arena = arena(options());
    let block = arena.allocate(Request::new(8 * PAGE)).unwrap();
    arena.free(block.addr).unwrap();
    arena.trim(usize::MAX);
    let counters = arena.upstream().counters();
    assert_eq!((arena.stats().map_calls, arena.stats().unmap_calls), (1, 1));
    assert_eq!((counters.map_calls, counters.unmap_calls), (1, 1));
}

#[test]
fn scarce_address_space_serves_what_fits() {
    let upstream = upstream().address_space_bytes(4 * PAGE).build();
    let mut arena = Arena::new(Pages::new(options()).unwrap(), upstream);
    assert!(arena.allocate(Request::new(2 * PAGE)).is_ok());
}

#[test]
fn ranges_double_while_they_are_held_and_no_longer() {
    let mut arena = arena(options());
    let blocks: Vec<usize> = (0..31).map(|_| arena.allocate(Request::new(1 << 20)).unwrap().addr).collect();
    // 1 + 2 + 4 + 8 + 16 MiB.
    assert_eq!(arena.upstream().counters().reserve_calls, 5);
    for addr in blocks {
        arena.free(addr).unwrap();
    }
    for _ in 0..200 {
        arena.trim(usize::MAX);
        let block = arena.allocate(Request::new(1 << 20)).unwrap();
        let longest = arena.upstream().reserved_ranges().map(|range| range.len).max();
        assert!(longest <= Some(32 << 20), "{longest:?} bytes are reserved for one block");
        arena.free(block.addr).unwrap();
    }
    arena.trim(usize::MAX);
    arena.allocate(Request::new(1 << 20)).unwrap();
    let ranges: Vec<usize> = arena.upstream().reserved_ranges().map(|range| range.len).collect();
    assert_eq!(ranges, [1 << 20]);
}

#[test]
fn a_block_grows_into_a_neighbour_that_waits() {
    let mut arena = arena(options());
    let block = arena.allocate(Request::new(PAGE)).unwrap();
    let neighbour = arena.allocate(Request::new(PAGE)).unwrap();
    arena.allocate(Request::new(PAGE)).unwrap();
    arena.free(neighbour.addr).unwrap();
    let grown = arena.resize_in_place(block.addr, 2 * PAGE).unwrap().expect("the neighbour is free");
    assert_eq!(grown.allocated_bytes, 2 * PAGE);
    assert!(arena.resize_in_place(block.addr, 3 * PAGE).unwrap().is_none(), "a live block is behind it");
    arena.validate().unwrap();
}

#[test]
fn a_blocks_own_spare_pages_make_room_under_a_limit() {
    let limit_bytes = Some(5 * PAGE);
    let mut arena = arena(PagesOptions { limit_bytes, ..options() });
    arena.allocate(Request::new(PAGE)).unwrap();
    let spare = arena.allocate(Request::new(3 * PAGE)).unwrap();
    arena.free(spare.addr).unwrap();
    // The only free block; its mapped pages lie before the aligned place.
    assert!(!arena.allocate(Request::new(2 * PAGE).aligned_to(8 * PAGE)).unwrap().hit);
    assert!(arena.stats().reserved.peak <= 5 * PAGE);
    arena.validate().unwrap();
}

#[test]
fn a_request_beyond_upstreams_capacity_leaves_the_cache_alone() {
    let upstream = upstream().capacity_bytes(16 * PAGE).build();
    let mut arena = Arena::new(Pages::new(options()).unwrap(), upstream);
    arena.allocate(Request::new(4 * PAGE)).unwrap();
    let cached = arena.allocate(Request::new(8 * PAGE)).unwrap();
    arena.free(cached.addr).unwrap();
    assert!(arena.allocate(Request::new(32 * PAGE)).is_err());
    assert_eq!(arena.stats().reserved.current, 12 * PAGE);
}

#[test]
fn hits_and_misses_are_counted_in_the_bucket_of_the_size() {
    let mut arena = arena(options());
    let block = arena.allocate(Request::new(5000)).unwrap();
    arena.free(block.addr).unwrap();
    arena.allocate(Request::new(5000)).unwrap();
    assert_eq!(arena.stats().buckets[12], BucketStats { hits: 1, misses: 1 });
}

#[test]
fn figures_are_their_formulas() {
    let mut arena = arena(options());
    let small = arena.allocate(Request::new(300)).unwrap(); // 512 bytes of one page
    assert_eq!(arena.stats().internal_fragmentation(), 1.0 - 300.0 / 512.0);
    assert_eq!(arena.stats().inactive_split.current, PAGE - 512);
    assert_eq!(arena.stats().inactive_split_blocks.current, 1);
    let large = arena.allocate(Request::new(8 * PAGE)).unwrap();
    arena.free(large.addr).unwrap();
    arena.free(small.addr).unwrap();
    arena.trim(usize::MAX);
    let expected = 1.0 - (300 + 8 * PAGE) as f64 / (9 * PAGE) as f64;
    assert_eq!(arena.stats().run_fragmentation(), expected);
    assert_eq!(arena.stats().reserved.total_freed(), 9 * PAGE as u64);
    arena.reset_peaks();
    assert_eq!(arena.stats().reserved.peak, 0);
}

#[test]
fn scattered_free_blocks_are_external_fragmentation() {
    let mut arena = arena(options());
    let blocks: Vec<usize> = (0..16).map(|_| arena.allocate(Request::new(PAGE)).unwrap().addr).collect();
    for addr in blocks.iter().step_by(2) {
        arena.free(*addr).unwrap();
    }
    arena.settle();
    assert_eq!(arena.largest_free_bytes(), PAGE);
    assert_eq!(arena.external_fragmentation(), 1.0 - 1.0 / 8.0);
    for addr in blocks.iter().skip(1).step_by(2) {
        arena.free(*addr).unwrap();
    }
    arena.settle();
    assert_eq!(arena.external_fragmentation(), 0.0);
}

#[test]
fn trim_takes_the_longest_free_run_first() {
    let mut arena = arena(options());
    let short = arena.allocate(Request::new(PAGE)).unwrap();
    arena.allocate(Request::new(PAGE)).unwrap();
    let long = arena.allocate(Request::new(4 * PAGE)).unwrap();
    arena.allocate(Request::new(PAGE)).unwrap();
    arena.free(short.addr).unwrap();
    arena.free(long.addr).unwrap();
    assert_eq!(arena.trim(4 * PAGE), 4 * PAGE);
    assert_eq!(arena.stats().unmap_calls, 1);
    assert!(arena.allocate(Request::new(PAGE)).unwrap().hit);
}

#[test]
fn a_granule_larger_than_a_page_is_refused() {
    let mut arena = arena(PagesOptions { granule_bytes: 2 * PAGE, ..options() });
    let error = arena.allocate(Request::new(1)).unwrap_err();
    assert!(matches!(error, ArenaError::Option { option: "granule_bytes", value: 131_072, .. }), "{error}");
    for granule_bytes in [0, 3, 1 << 21] {
        assert!(Pages::new(PagesOptions { granule_bytes, ..options() }).is_err());
    }
    assert!(Pages::new(PagesOptions { first_range_bytes: 0, ..options() }).is_err());
}

#[test]
fn the_limit_of_scratch_holds_after_a_reset_too() {
    let mut scratch = StepArena::new().limit_bytes(1 << 16);
    for _ in 0..10 {
        scratch.alloc_slice_fill_copy(2_000, 0_u8).unwrap();
    }
    scratch.reset();
    assert!(scratch.alloc_slice_fill_copy(1 << 20, 0_u8).is_err());
}

fn moving() -> Arena<SimulatedUpstream, Pages> {
    let options = PagesOptions { mode: Mode::Moving, separate_lifetimes: true, ..options() };
    Arena::new(Pages::new(options).unwrap(), upstream().handles(true).build())
}

#[test]
fn free_memory_moves_before_more_is_mapped_than_was_ever_asked_for() {
    let mut arena = moving();
    let blocks: Vec<usize> = (0..8).map(|_| arena.allocate(Request::new(4 * PAGE)).unwrap().addr).collect();
    // Every other block ends: half is free, in pieces that are too short.
    blocks.iter().step_by(2).for_each(|&addr| {
        arena.free(addr).unwrap();
    });
    let large = arena.allocate(Request::new(16 * PAGE)).unwrap();
    assert_eq!(arena.stats().reserved.peak, 32 * PAGE, "what was free made room");
    assert_eq!(arena.stats().reserved.current, 32 * PAGE);
    arena.validate().unwrap();
    arena.free(large.addr).unwrap();
    arena.validate().unwrap();
}

#[test]
fn what_work_still_uses_moves_and_its_old_place_stays_empty_until_that_work_is_done() {
    let options = PagesOptions { mode: Mode::Moving, ..options() };
    let upstream = upstream().handles(true).lag(100).build();
    let mut arena = Arena::new(Pages::new(options).unwrap(), upstream);
    let blocks: Vec<usize> = (0..8).map(|_| arena.allocate(Request::new(4 * PAGE)).unwrap().addr).collect();
    blocks.iter().step_by(2).for_each(|&addr| {
        arena.free(addr).unwrap();
    });
    let large = arena.allocate(Request::new(16 * PAGE)).unwrap();
    assert_eq!(arena.stats().reserved.peak, 32 * PAGE);
    // Places that the memory left cannot be mapped yet, so other addresses serve.
    let next = arena.allocate(Request::new(4 * PAGE)).unwrap();
    assert!(blocks.iter().step_by(2).all(|&addr| addr != next.addr), "{blocks:x?} {:x}", next.addr);
    assert_eq!(arena.upstream().counters().waits, 0, "nobody waited");
    (0..100).for_each(|_| arena.upstream_mut().advance());
    arena.free(large.addr).unwrap();
    arena.validate().unwrap();
}

#[test]
fn a_handle_is_given_back_whole_or_not_at_all() {
    let mut arena = Arena::new(Pages::new(options()).unwrap(), upstream().handles(true).build());
    // One handle for six pages, and blocks on both sides of its middle.
    let whole = arena.allocate(Request::new(6 * PAGE)).unwrap();
    arena.free(whole.addr).unwrap();
    let first = arena.allocate(Request::new(PAGE)).unwrap();
    arena.settle();
    let released = arena.trim(usize::MAX);
    assert_eq!(released + arena.stats().reserved.current, 6 * PAGE);
    arena.validate().unwrap();
    arena.free(first.addr).unwrap();
    assert_eq!(arena.trim(usize::MAX), 6 * PAGE - released);
}

/// A step that makes blocks of many sizes and ends them in another order.
fn uneven_step(arena: &mut Arena<SimulatedUpstream, Pages>) {
    let mut live = Vec::new();
    for at in 0..120_usize {
        let pages = at * 7919 % 37 + 1;
        live.push(arena.allocate(Request::new(pages * PAGE - at * 997 % PAGE)).unwrap().addr);
        if live.len() > 20 {
            arena.free(live.swap_remove(at * 104_729 % live.len())).unwrap();
        }
    }
    for addr in live {
        arena.free(addr).unwrap();
    }
}

#[test]
fn a_step_that_repeats_itself_moves_nothing_in_the_end() {
    let options = PagesOptions { mode: Mode::Moving, first_range_bytes: 1 << 30, ..options() };
    let mut arena = Arena::new(Pages::new(options).unwrap(), upstream().handles(true).build());
    let mut calls = Vec::new();
    for _ in 0..6000 {
        let before = arena.stats().map_calls + arena.stats().unmap_calls;
        uneven_step(&mut arena);
        calls.push(arena.stats().map_calls + arena.stats().unmap_calls - before);
    }
    assert!(calls[1..10].iter().all(|&calls| calls > 0), "{:?}", &calls[..10]);
    let last = calls.iter().rposition(|&calls| calls > 0);
    assert!(last < Some(5000), "calls in step {last:?}");
    let stats = arena.stats();
    let more = stats.reserved.peak as f64 / stats.requested.peak as f64;
    assert!(more < 1.15, "{more} times what was live is reserved");
}

#[test]
fn short_requests_at_the_end_of_a_range_map_two_pages_more_where_many_are_mapped() {
    let reserved_after = |limit_bytes: Option<usize>, long_pages: usize| {
        let mut arena = arena(PagesOptions { first_range_bytes: 1 << 26, limit_bytes, ..options() });
        arena.allocate(Request::new(long_pages * PAGE)).unwrap();
        arena.allocate(Request::new(PAGE + 1)).unwrap();
        let calls = arena.stats().map_calls;
        arena.allocate(Request::new(PAGE)).unwrap();
        arena.validate().unwrap();
        (arena.stats().reserved.current / PAGE - long_pages, arena.stats().map_calls - calls)
    };
    assert_eq!(reserved_after(None, 32), (4, 0));
    // One part in 16 of little is less than a page.
    assert_eq!(reserved_after(None, 15), (3, 1));
    // Under a limit that leaves no room for them, the request is served without.
    assert_eq!(reserved_after(Some(35 * PAGE), 32), (3, 1));
}

/// Bytes of a decoder's weights: a vocabulary of 32,000, hidden size 1024, 8 layers.
fn decoder_weights() -> Vec<usize> {
    const HIDDEN: usize = 1024;
    let layer = [HIDDEN * HIDDEN; 4].into_iter().chain([4 * HIDDEN * HIDDEN; 2]);
    let layers = (0..8).flat_map(|_| layer.clone());
    layers.chain([32_000 * HIDDEN; 2]).map(|numbers| 4 * numbers).collect()
}

/// A training step of that decoder: what it keeps for its way back, what it needs for a moment, and gradients of
/// weights for the optimizer, which keeps two of its own for each from the first step on.
fn decoder_step(arena: &mut Arena<SimulatedUpstream, Pages>, batch: usize, length: usize, first: bool) {
    const HIDDEN: usize = 1024;
    const HEADS: usize = 16;
    let tokens = 4 * batch * length;
    let (state, wide) = (tokens * HIDDEN, 4 * tokens * HIDDEN);
    let (scores, logits) = (4 * batch * HEADS * length * length, tokens * 32_000);
    let place = |arena: &mut Arena<_, Pages>, size| arena.allocate(Request::new(size)).unwrap().addr;
    let end = |arena: &mut Arena<_, Pages>, addr| {
        arena.free(addr).unwrap();
    };
    let mut kept = Vec::new();
    for _ in 0..8 {
        let mut over = Vec::new();
        for (size, stays) in [
            (state, true),
            (state, true),
            (state, true),
            (state, true),
            (scores, false),
            (scores, true),
            (scores, true),
            (state, false),
            (state, true),
            (wide, true),
            (wide, true),
            (wide, true),
            (state, true),
        ] {
            let addr = place(arena, size);
            if stays { kept.push((addr, size)) } else { over.push(addr) }
        }
        over.into_iter().for_each(|addr| end(arena, addr));
    }
    kept.extend([logits, logits].map(|size| (place(arena, size), size)));
    let weights = decoder_weights();
    let mut gradients = vec![place(arena, weights[weights.len() - 1])];
    let mut unmade = weights[..weights.len() - 1].iter().rev();
    let mut before = None;
    for (at, (addr, size)) in kept.into_iter().rev().enumerate() {
        let next = place(arena, size);
        end(arena, addr);
        if let Some(before) = before.replace(next) {
            end(arena, before);
        }
        if at % 2 == 1 {
            gradients.extend(unmade.next().map(|&size| place(arena, size)));
        }
    }
    gradients.extend(unmade.map(|&size| place(arena, size)));
    before.into_iter().for_each(|addr| end(arena, addr));
    for (gradient, &size) in gradients.into_iter().zip(weights.iter().rev()) {
        if first {
            place(arena, size);
            place(arena, size);
        }
        let scratch = [size; 3].map(|size| place(arena, size));
        scratch.into_iter().chain([gradient]).for_each(|addr| end(arena, addr));
    }
}

#[test]
fn where_lengths_are_random_moving_leaves_little_unused() {
    const SEEDS: u32 = 8;
    let mut sum = 0.0;
    for seed in 1..=SEEDS {
        let options = PagesOptions {
            granule_bytes: 512,
            small_limit_bytes: 1 << 20,
            first_range_bytes: 1 << 32,
            mode: Mode::Moving,
            separate_lifetimes: true,
            ..PagesOptions::default()
        };
        let upstream = SimulatedUpstream::builder().page_bytes(2 << 20).handles(true).build();
        let mut arena = Arena::new(Pages::new(options).unwrap(), upstream);
        for size in decoder_weights() {
            arena.allocate(Request::new(size)).unwrap();
        }
        // The generator of "Numerical Recipes": the same steps everywhere.
        let mut random: u32 = seed;
        let mut below = |end: u32| {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            ((u64::from(random) * u64::from(end)) >> 32) as usize
        };
        for step in 0..200 {
            let (batch, length) = (1 + below(8), 64 + below(449));
            decoder_step(&mut arena, batch, length, step == 0);
        }
        arena.validate().unwrap();
        let unused = arena.stats().run_fragmentation();
        sum += unused;
        assert!(unused < 0.018, "seed {seed}: {:.2}% was never needed", 100.0 * unused);
    }
    // Where handles that blocks pin do not become shorter it is 1.37%, and 1.94% with one of the seeds.
    let mean = sum / f64::from(SEEDS);
    assert!(mean < 0.013, "{:.2}% was never needed in the mean", 100.0 * mean);
}
