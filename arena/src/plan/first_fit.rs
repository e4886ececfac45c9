//! Placing items one after the other, each at the lowest free place.
//!
//! What comes out depends on the order alone. That of falling sizes is the one frameworks use (Pisarchyk and Lee,
//! "Efficient Memory Management for Deep Neural Net Inference", 2020, section 5.2, greedy by size); no order is best
//! for every net, so a few are tried.

use std::cmp::Reverse;

use super::clock::Limit;
use super::most::Most;
use super::occupied::Occupied;
use super::problem::{Item, Problem};

/// A placement of a problem.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Placement {
    /// Of each item.
    pub(super) offsets: Vec<usize>,
    /// The highest end.
    pub(super) peak: usize,
}

impl Placement {
    /// The placement of these offsets.
    pub(super) fn new(problem: &Problem, offsets: Vec<usize>) -> Self {
        let ends = problem.items.iter().zip(&offsets).map(|(item, offset)| offset + item.size);
        Self { peak: ends.max().unwrap_or(0), offsets }
    }
}

/// What falls in an order, most important first; what is equal stays as it was given.
type Key = fn(&Item, &Most) -> (u128, u128);

/// The orders that are tried, the ones that do best on recorded steps and on compilers' nets first.
const ORDERS: [Key; ORDER_COUNT] = [
    // By area: long and large ones leave the holes that small ones fill.
    |item, _| (item.area(), item.size as u128),
    // By size.
    |item, _| (item.size as u128, u128::from(item.length())),
    // By lifetime: those that live longest lie at the bottom, as if they were allocated first.
    |item, _| (u128::from(item.length()), item.size as u128),
    // By how much lives at the worst time beside it, then by size: what leaves no choice first.
    |item, live| (live.within(item.sections()) as u128, item.size as u128),
    // That, then by area.
    |item, live| (live.within(item.sections()) as u128, item.area()),
];

/// How many orders there are.
pub(super) const ORDER_COUNT: usize = 5;

/// The items in one of the orders.
pub(super) fn order(problem: &Problem, which: usize) -> Vec<u32> {
    let live = Most::new(&problem.live());
    let keys: Vec<_> = problem.items.iter().map(|item| ORDERS[which](item, &live)).collect();
    let mut order: Vec<u32> = (0..problem.items.len() as u32).collect();
    order.sort_by_key(|&at| Reverse(keys[at as usize]));
    order
}

/// Places all in an order, or gives up when one ends above `most`, or at the limit.
pub(super) fn place(
    problem: &Problem,
    order: &[u32],
    occupied: &mut Occupied,
    most: usize,
    limit: &mut Limit,
) -> Option<Placement> {
    occupied.clear();
    let mut placement = Placement { offsets: vec![0; problem.items.len()], peak: 0 };
    for &at in order {
        let item = &problem.items[at as usize];
        let offset = occupied.lowest(item, limit)?;
        if offset + item.size > most {
            return None;
        }
        occupied.place(item, offset);
        placement.offsets[at as usize] = offset;
        placement.peak = placement.peak.max(offset + item.size);
    }
    Some(placement)
}
