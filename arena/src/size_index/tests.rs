use std::collections::BTreeSet;

use proptest::prelude::*;

use super::{BIN_COUNT, SizeIndex};
use crate::block::{Block, BlockId, BlockState, Blocks};

fn id() -> BlockId {
    Blocks::default().insert(Block {
        start: 0,
        len: 1,
        prev: BlockId::NONE,
        next: BlockId::NONE,
        extra: 0,
        segment: 0,
        state: BlockState::Free,
        dirty: false,
    })
}

#[test]
fn every_length_has_a_bin_and_bins_grow_with_length() {
    let index = SizeIndex::new(1);
    let mut before = 0;
    for shift in 0..usize::BITS {
        for len in [(1_usize << shift) - 1, 1 << shift, (1 << shift) | (1 << shift >> 1)] {
            let bin = index.bin_of(len);
            assert!(bin < BIN_COUNT && bin >= before, "length {len} is in bin {bin} after {before}");
            before = bin;
        }
    }
}

#[test]
fn among_equal_blocks_the_lowest_address_wins() {
    let mut index = SizeIndex::new(64);
    for start in [9 << 20, 3 << 20, 7 << 20] {
        index.insert(4096, start, id());
    }
    assert_eq!(index.best_fit(4000).map(|entry| entry.start), Some(3 << 20));
}

#[test]
fn a_search_looks_at_no_more_bins_when_there_are_more_blocks() {
    let probes_a_search = |blocks: usize| {
        let mut index = SizeIndex::new(64);
        for k in 0..blocks {
            index.insert(64 * (1 + k * 7919 % 16384), k << 21, id());
        }
        let before = index.probes();
        for k in 0..1000 {
            index.best_fit(64 * (1 + k * 16));
        }
        (index.probes() - before) as f64 / 1000.0
    };
    assert!(probes_a_search(100_000) <= probes_a_search(1_000));
    assert!(probes_a_search(1_000) <= 4.0);
}

proptest! {
    #[test]
    fn answers_are_those_of_an_ordered_set(
        operations in prop::collection::vec((0..4u8, 1..2000_usize, 0..50_usize), 1..400),
    ) {
        const GRANULE: usize = 64;
        let mut index = SizeIndex::new(GRANULE);
        let mut model = BTreeSet::new();
        for (operation, granules, at) in operations {
            // Few distinct lengths, so that some bins grow into trees.
            let len = GRANULE * if at % 3 == 0 { granules } else { 7 };
            let start = (granules * 50 + at) << 12;
            match operation {
                0..=1 => {
                    if model.insert((len, start)) {
                        index.insert(len, start, id());
                    }
                }
                2 => {
                    let found = index.best_fit(len).map(|entry| (entry.len, entry.start));
                    prop_assert_eq!(found, model.range((len, 0)..).next().copied());
                }
                _ => {
                    let victim = model.range((len, 0)..).next().copied();
                    if let Some((len, start)) = victim {
                        index.remove(len, start);
                        model.remove(&(len, start));
                    }
                }
            }
            prop_assert_eq!(index.check(), Ok(()));
            prop_assert_eq!(index.largest().map(|entry| (entry.len, entry.start)), model.last().copied());
        }
        prop_assert!(index.iter().map(|entry| (entry.len, entry.start)).eq(model.iter().copied()));
    }
}
