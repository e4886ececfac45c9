//! When to stop searching.

use std::time::{Duration, Instant};

/// A time at which a search ends.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline(Option<Instant>);

impl Deadline {
    /// So long from now; never, if that is beyond all clocks.
    pub(super) fn after(budget: Duration) -> Self {
        Self(Instant::now().checked_add(budget))
    }

    /// No end.
    pub(super) const fn never() -> Self {
        Self(None)
    }

    /// The earlier of this and so long from now.
    pub(super) fn within(self, turn: Duration) -> Self {
        let turn = Self::after(turn);
        match (self.0, turn.0) {
            (Some(end), Some(other)) => Self(Some(end.min(other))),
            (end, other) => Self(end.or(other)),
        }
    }

    /// The time at which one of so many parts of what is left is over.
    pub(super) fn share(self, parts: usize) -> Self {
        let now = Instant::now();
        let parts = u32::try_from(parts.max(1)).unwrap_or(u32::MAX);
        Self(self.0.map(|end| now + end.saturating_duration_since(now) / parts))
    }

    /// Whether it is over.
    pub(super) fn is_over(self) -> bool {
        self.0.is_some_and(|end| Instant::now() >= end)
    }
}
