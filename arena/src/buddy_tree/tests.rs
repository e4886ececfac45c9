use proptest::prelude::*;

use super::BuddyTree;
use crate::range::AddressRange;

#[test]
fn a_freed_block_joins_its_buddy_up_to_the_whole_region() {
    let mut tree = BuddyTree::new(6);
    tree.add_region(1 << 20, 20);
    let blocks: Vec<usize> = (0..1 << 10).map(|_| tree.allocate(10).unwrap()).collect();
    assert_eq!(tree.allocate(6), None);
    for &block in blocks.iter().rev() {
        tree.free(block, 10);
    }
    assert_eq!(tree.largest_free_order(), Some(20));
    assert!(tree.remove_region(1 << 20));
    assert_eq!(tree.largest_free_order(), None);
}

#[test]
fn a_region_with_a_live_block_cannot_be_removed() {
    let mut tree = BuddyTree::new(0);
    tree.add_region(0, 12);
    let block = tree.allocate(3).unwrap();
    assert!(!tree.remove_region(0));
    tree.free(block, 3);
    assert!(tree.remove_region(0));
}

#[test]
fn no_order_holds_more_bytes_than_the_address_space() {
    assert_eq!(BuddyTree::new(6).order_for(usize::MAX), None);
    assert_eq!(BuddyTree::new(6).allocate(63), None);
}

proptest! {
    #[test]
    fn blocks_are_aligned_and_never_overlap(
        operations in prop::collection::vec((any::<bool>(), 0..12_u32, any::<prop::sample::Index>()), 1..300),
    ) {
        let mut tree = BuddyTree::new(2);
        tree.add_region(0x10000, 14);
        tree.add_region(0x40000, 12);
        let mut live: Vec<(usize, u32)> = Vec::new();
        for (allocate, order, which) in operations {
            if allocate || live.is_empty() {
                if let Some(start) = tree.allocate(order) {
                    live.push((start, order.max(2)));
                }
            } else {
                let (start, order) = live.swap_remove(which.index(live.len()));
                tree.free(start, order);
            }
            let mut all: Vec<AddressRange> = live
                .iter()
                .map(|&(start, order)| AddressRange::new(start, 1 << order))
                .chain(tree.free_blocks())
                .collect();
            all.sort();
            for block in &all {
                prop_assert_eq!(block.start % block.len, 0);
            }
            for pair in all.windows(2) {
                prop_assert!(pair[0].end() <= pair[1].start);
            }
            prop_assert_eq!(all.iter().map(|block| block.len).sum::<usize>(), (1 << 14) + (1 << 12));
        }
        for (start, order) in live {
            tree.free(start, order);
        }
        prop_assert_eq!(tree.free_blocks().count(), 2);
    }
}
