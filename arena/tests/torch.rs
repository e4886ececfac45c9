//! PyTorch's rules, one by one.

use mempool_arena::{Arena, Request, SimulatedUpstream, Torch, TorchOptions};

const MIB: usize = 1 << 20;

fn arena(options: TorchOptions) -> Arena<SimulatedUpstream, Torch> {
    Arena::new(Torch::new(options).unwrap(), SimulatedUpstream::builder().handles(true).build())
}

fn addr(arena: &mut Arena<SimulatedUpstream, Torch>, bytes: usize) -> usize {
    arena.allocate(Request::new(bytes)).unwrap().addr
}

#[test]
fn segments_have_the_lengths_of_pytorchs() {
    for (bytes, reserved) in
        [(1, 2), (MIB, 2), (MIB + 1, 20), (10 * MIB - 512, 20), (10 * MIB, 10), (11 * MIB + 1, 12)]
    {
        let mut arena = arena(TorchOptions::default());
        addr(&mut arena, bytes);
        assert_eq!(arena.stats().reserved.current, reserved * MIB, "{bytes} bytes");
    }
}

#[test]
fn a_large_block_is_split_when_more_than_a_mebibyte_is_left() {
    let mut arena = arena(TorchOptions::default());
    for (bytes, held) in [(19 * MIB, 20 * MIB), (19 * MIB - 512, 19 * MIB - 512)] {
        let whole = addr(&mut arena, 20 * MIB);
        arena.free(whole).unwrap();
        let block = arena.allocate(Request::new(bytes)).unwrap();
        assert_eq!((block.addr, block.allocated_bytes), (whole, held));
        arena.free(whole).unwrap();
    }
    arena.validate().unwrap();
}

#[test]
fn blocks_beyond_the_largest_split_are_for_requests_as_large() {
    let mut arena = arena(TorchOptions { max_split_bytes: Some(64 * MIB), ..TorchOptions::default() });
    let large = addr(&mut arena, 100 * MIB);
    arena.free(large).unwrap();
    // Not for one that would split it, nor for one that would leave 20 MiB of it unused.
    assert_ne!(addr(&mut arena, 30 * MIB), large);
    assert_ne!(addr(&mut arena, 80 * MIB), large);
    let block = arena.allocate(Request::new(81 * MIB)).unwrap();
    assert_eq!((block.addr, block.allocated_bytes), (large, 100 * MIB));
    arena.validate().unwrap();
}

#[test]
fn an_expandable_segment_grows_by_pages_where_it_ends_and_gives_back_whole_ones() {
    let mut arena = arena(TorchOptions { expandable_segments: true, ..TorchOptions::default() });
    let first = addr(&mut arena, 30 * MIB);
    assert_eq!(arena.stats().reserved.current, 40 * MIB);
    // What is free before the end serves together with new pages.
    assert_eq!(addr(&mut arena, 30 * MIB), first + 30 * MIB);
    assert_eq!((arena.stats().reserved.current, arena.stats().map_calls), (60 * MIB, 3));
    arena.free(first).unwrap();
    assert_eq!(arena.trim(usize::MAX), 20 * MIB, "the second page has a live block");
    arena.validate().unwrap();
    // The hole is the lowest place, and what is free behind it is used.
    assert_eq!(addr(&mut arena, 25 * MIB), first);
    assert_eq!(arena.stats().reserved.current, 60 * MIB);
}

#[test]
fn segments_that_were_free_for_long_go_above_the_threshold() {
    let mut arena = arena(TorchOptions {
        limit_bytes: Some(200 * MIB),
        garbage_collection_threshold: Some(0.25),
        ..TorchOptions::default()
    });
    let old = addr(&mut arena, 40 * MIB);
    arena.free(old).unwrap();
    for _ in 0..10 {
        let other = addr(&mut arena, 100);
        arena.free(other).unwrap();
    }
    // Below the threshold nothing goes; above it the old segment does.
    let kept = addr(&mut arena, 42 * MIB);
    assert_eq!(arena.stats().reserved.current, (40 + 2 + 42) * MIB);
    addr(&mut arena, 44 * MIB);
    assert_eq!(arena.stats().reserved.current, (2 + 42 + 44) * MIB);
    arena.free(kept).unwrap();
    arena.validate().unwrap();
}

#[test]
fn what_lies_in_expandable_segments_is_not_collected() {
    let mut arena = arena(TorchOptions {
        limit_bytes: Some(200 * MIB),
        garbage_collection_threshold: Some(0.25),
        expandable_segments: true,
        ..TorchOptions::default()
    });
    let first = addr(&mut arena, 60 * MIB);
    arena.free(first).unwrap();
    addr(&mut arena, 80 * MIB);
    assert_eq!(arena.stats().reserved.current, 80 * MIB, "the free block has grown");
    addr(&mut arena, 100);
    arena.validate().unwrap();
}
