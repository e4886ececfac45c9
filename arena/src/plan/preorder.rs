//! Orders in which a branch-and-bound search tries items of equal lowest places.

use std::cmp::Reverse;

use super::random::Random;
use super::units::InUnits;

/// What is looked at first, second and third: large values come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    /// Bytes times sections.
    Area,
    /// Sections.
    Length,
    /// Bytes.
    Size,
    /// The most that is left in one of its sections.
    Total,
}

/// An order.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Preorder {
    by: [By; 3],
    /// By item: what its size and length count with.
    weights: Option<Vec<f64>>,
}

/// The published three (google/minimalloc, `solver.h`: `WAT`, `TAW`, `TWA`), and others that find what they do not.
pub(super) const PREORDERS: [[By; 3]; 6] = [
    [By::Length, By::Area, By::Total],
    [By::Total, By::Area, By::Length],
    [By::Total, By::Length, By::Area],
    [By::Area, By::Length, By::Total],
    [By::Total, By::Size, By::Length],
    [By::Size, By::Length, By::Total],
];

impl Preorder {
    pub(super) fn new(by: [By; 3]) -> Self {
        Self { by, weights: None }
    }

    /// The same with values that are off by up to `spread`, a share.
    pub(super) fn shaken(by: [By; 3], count: usize, spread: f64, random: &mut Random) -> Self {
        Self { by, weights: Some((0..count).map(|_| 1.0 + spread * random.unit()).collect()) }
    }

    /// The items in this order. `left` is what is left in each section.
    pub(super) fn ranked(&self, all: &[InUnits], items: &[u32], left: &[u32]) -> Vec<u32> {
        let value = |by: By, at: u32| {
            let item = &all[at as usize];
            let exact = match by {
                By::Area => u64::from(item.size) * u64::from(item.length()),
                By::Length => u64::from(item.length()),
                By::Size => u64::from(item.size),
                By::Total => u64::from(left[item.sections()].iter().copied().max().unwrap_or(0)),
            };
            match &self.weights {
                Some(weights) => (exact as f64 * weights[at as usize]) as u64,
                None => exact,
            }
        };
        let mut keyed: Vec<_> =
            items.iter().map(|&at| (Reverse(self.by.map(|by| value(by, at))), at)).collect();
        keyed.sort_unstable();
        keyed.into_iter().map(|(_, at)| at).collect()
    }
}
