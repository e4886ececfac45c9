//! What work is ordered before what: vector clocks over streams.

use std::collections::BTreeMap;

/// For each stream, how much of its work comes before.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Clock(BTreeMap<u64, u64>);

impl Clock {
    /// Orders everything behind `other` too.
    pub(crate) fn join(&mut self, other: &Self) {
        for (&stream, &number) in &other.0 {
            let known = self.0.entry(stream).or_default();
            *known = (*known).max(number);
        }
    }

    /// Counts work `number` of `stream` in.
    pub(crate) fn set(&mut self, stream: u64, number: u64) {
        self.0.insert(stream, number);
    }

    /// How much of the stream's work comes before.
    pub(crate) fn get(&self, stream: u64) -> u64 {
        self.0.get(&stream).copied().unwrap_or(0)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.iter().map(|(&stream, &number)| (stream, number))
    }
}
