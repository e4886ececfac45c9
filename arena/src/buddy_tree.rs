//! A buddy allocator on addresses: blocks of 2^order bytes, split in halves and joined again.
//!
//! A block and its buddy differ in one address bit, counted from the start of their region,
//! so joining needs no neighbour links. Free blocks of one order are kept by address, and the
//! lowest one is taken.

use std::collections::{BTreeMap, BTreeSet};

use crate::range::AddressRange;

const ORDER_COUNT: usize = usize::BITS as usize;

/// Free blocks of one or more regions.
#[derive(Debug, Clone)]
pub struct BuddyTree {
    min_order: u32,
    /// Order of each region, by its first address.
    regions: BTreeMap<usize, u32>,
    free: [BTreeSet<usize>; ORDER_COUNT],
    /// Bit `k` is set when there is a free block of order `k`.
    orders: u64,
}

impl BuddyTree {
    /// A tree without regions whose smallest block has `2^min_order` bytes.
    #[must_use]
    pub fn new(min_order: u32) -> Self {
        assert!(min_order < usize::BITS, "no block has 2^{min_order} bytes");
        Self {
            min_order,
            regions: BTreeMap::new(),
            free: std::array::from_fn(|_| BTreeSet::new()),
            orders: 0,
        }
    }

    /// The order of the smallest block that holds `len` bytes.
    #[must_use]
    pub fn order_for(&self, len: usize) -> Option<u32> {
        Some(len.checked_next_power_of_two()?.trailing_zeros().max(self.min_order))
    }

    /// Adds a free region of `2^order` bytes. Its blocks are aligned to their size counted
    /// from `start`; they are so in memory too when `start` is aligned to the region's size.
    pub fn add_region(&mut self, start: usize, order: u32) {
        assert!(order >= self.min_order, "a region of 2^{order} bytes is smaller than a block");
        self.regions.insert(start, order);
        self.insert(start, order);
    }

    /// Takes a region out; `false`, and nothing is changed, unless all of it is free.
    pub fn remove_region(&mut self, start: usize) -> bool {
        let Some(&order) = self.regions.get(&start) else { return false };
        let whole_is_free = self.free[order as usize].contains(&start);
        if whole_is_free {
            self.remove(start, order);
            self.regions.remove(&start);
        }
        whole_is_free
    }

    /// The regions, by address.
    pub fn regions(&self) -> impl Iterator<Item = AddressRange> + '_ {
        self.regions.iter().map(|(&start, &order)| AddressRange::new(start, 1 << order))
    }

    /// The region that `addr` lies in.
    #[must_use]
    pub fn region_of(&self, addr: usize) -> Option<AddressRange> {
        let (&start, &order) = self.regions.range(..=addr).next_back()?;
        Some(AddressRange::new(start, 1 << order)).filter(|region| region.contains(addr))
    }

    /// The block that [`allocate`](Self::allocate) would take for this order, or cut.
    #[must_use]
    pub fn first_free(&self, order: u32) -> Option<usize> {
        let available = self.orders & u64::MAX.checked_shl(order.max(self.min_order))?;
        if available == 0 {
            return None;
        }
        self.free[available.trailing_zeros() as usize].first().copied()
    }

    /// Takes a block of `2^order` bytes: the lowest one of the smallest order that has any.
    pub fn allocate(&mut self, order: u32) -> Option<usize> {
        let order = order.max(self.min_order);
        let available = self.orders & u64::MAX.checked_shl(order)?;
        if available == 0 {
            return None;
        }
        let mut found = available.trailing_zeros();
        let start = *self.free[found as usize].first()?;
        self.remove(start, found);
        while found > order {
            found -= 1;
            self.insert(start + (1 << found), found);
        }
        Some(start)
    }

    /// Gives a block back and joins it with its buddy for as long as that is free too.
    ///
    /// # Panics
    /// When `start` lies in no region, or the block is free already: the caller's bookkeeping
    /// is broken.
    pub fn free(&mut self, start: usize, order: u32) {
        let region = self.region_of(start).expect("a freed block lies in a region");
        let (mut offset, mut order) = (start - region.start, order.max(self.min_order));
        while 1 << order < region.len {
            let buddy = region.start + (offset ^ (1 << order));
            if !self.free[order as usize].contains(&buddy) {
                break;
            }
            self.remove(buddy, order);
            offset &= !(1 << order);
            order += 1;
        }
        self.insert(region.start + offset, order);
    }

    /// The order of the largest free block.
    #[must_use]
    pub fn largest_free_order(&self) -> Option<u32> {
        self.orders.checked_ilog2()
    }

    /// Number of free blocks of fewer than `2^order` bytes.
    #[must_use]
    pub fn free_blocks_below(&self, order: u32) -> usize {
        let mut orders = self.orders & !u64::MAX.checked_shl(order).unwrap_or(0);
        let mut blocks = 0;
        while orders != 0 {
            blocks += self.free[orders.trailing_zeros() as usize].len();
            orders &= orders - 1;
        }
        blocks
    }

    /// The free block at the lowest address of each order that has any.
    pub fn lowest_free_blocks(&self) -> impl Iterator<Item = AddressRange> + '_ {
        let lowest = |(order, starts): (usize, &BTreeSet<usize>)| {
            starts.first().map(|&start| AddressRange::new(start, 1 << order))
        };
        self.free.iter().enumerate().filter_map(lowest)
    }

    /// The free blocks, smallest first.
    pub fn free_blocks(&self) -> impl Iterator<Item = AddressRange> + '_ {
        self.free
            .iter()
            .enumerate()
            .flat_map(|(order, starts)| starts.iter().map(move |&start| AddressRange::new(start, 1 << order)))
    }

    fn insert(&mut self, start: usize, order: u32) {
        let fresh = self.free[order as usize].insert(start);
        assert!(fresh, "block {start:#x} of order {order} is free already");
        self.orders |= 1 << order;
    }

    fn remove(&mut self, start: usize, order: u32) {
        let set = &mut self.free[order as usize];
        set.remove(&start);
        if set.is_empty() {
            self.orders &= !(1 << order);
        }
    }
}

#[cfg(test)]
mod tests;
