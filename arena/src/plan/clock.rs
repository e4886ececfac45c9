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

/// Steps between two looks at the clock: some microseconds.
const STEPS_A_LOOK: u64 = 1 << 13;

/// How much may be done: until a time, or a number of steps. A step is about a nanosecond. What steps end is the
/// same on each machine.
#[derive(Debug, Clone)]
pub(super) struct Limit {
    deadline: Deadline,
    steps_left: u64,
    until_look: u64,
}

impl Limit {
    /// Until a time.
    pub(super) const fn time(deadline: Deadline) -> Self {
        Self { deadline, steps_left: u64::MAX, until_look: 0 }
    }

    /// So many steps.
    pub(super) const fn steps(steps: u64) -> Self {
        Self { deadline: Deadline::never(), steps_left: steps, until_look: 0 }
    }

    /// No limit.
    pub(super) const fn none() -> Self {
        Self::time(Deadline::never())
    }

    /// Counts steps; whether there may be more.
    pub(super) fn spend(&mut self, steps: u64) -> bool {
        self.steps_left = self.steps_left.saturating_sub(steps);
        match self.until_look.checked_sub(steps) {
            Some(left) => self.until_look = left,
            None => {
                self.until_look = STEPS_A_LOOK;
                if self.deadline.is_over() {
                    self.steps_left = 0;
                }
            }
        }
        self.steps_left > 0
    }

    /// Whether nothing more may be done.
    pub(super) fn is_over(&self) -> bool {
        self.steps_left == 0 || self.deadline.is_over()
    }
}
