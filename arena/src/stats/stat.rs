//! One figure over a run.

use serde::{Deserialize, Serialize};

/// One figure: its value now, the highest it was, and what went in and out over the run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stat {
    /// The value now.
    pub current: usize,
    /// The highest value since the start or the last reset.
    pub peak: usize,
    /// Sum of all increases, since the start or the last reset.
    pub total_allocated: u64,
    /// The value at the last reset of the totals; 0 at the start.
    #[serde(default)]
    pub at_reset: usize,
}

impl Stat {
    /// Adds `amount`.
    #[inline]
    pub fn increase(&mut self, amount: usize) {
        self.current += amount;
        self.peak = self.peak.max(self.current);
        self.total_allocated += amount as u64;
    }

    /// Takes `amount` away.
    #[inline]
    pub fn decrease(&mut self, amount: usize) {
        debug_assert!(amount <= self.current, "{amount} taken from {}", self.current);
        self.current -= amount;
    }

    /// Makes the value `now`.
    pub fn set(&mut self, now: usize) {
        if now > self.current { self.increase(now - self.current) } else { self.decrease(self.current - now) }
    }

    /// Sum of all decreases, since the start or the last reset: what was there or came and is no longer there.
    #[must_use]
    pub fn total_freed(&self) -> u64 {
        (self.at_reset as u64 + self.total_allocated).saturating_sub(self.current as u64)
    }

    /// Forgets the peak: the highest value is the one now.
    pub fn reset_peak(&mut self) {
        self.peak = self.current;
    }

    /// Forgets what came and went: both totals are 0.
    pub fn reset_totals(&mut self) {
        (self.total_allocated, self.at_reset) = (0, self.current);
    }

    /// Adds another figure of the same kind. Peaks are added too: their sum is what the two together
    /// reached at most, and more than they did unless they reached it at the same time.
    pub fn add(&mut self, other: &Self) {
        self.current += other.current;
        self.peak += other.peak;
        self.total_allocated += other.total_allocated;
        self.at_reset += other.at_reset;
    }

    /// Changes the value from `old` to `new` on top of whatever else it counts.
    #[inline]
    pub(crate) fn change(&mut self, (old, new): (usize, usize)) {
        if new > old { self.increase(new - old) } else { self.decrease(old - new) }
    }
}
