//! A rule of the bookkeeping that does not hold.

use thiserror::Error;

/// What [`validate`](crate::Placement::validate) found broken.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("broken invariant: {rule}")]
pub struct Violation {
    /// The rule, with the addresses and numbers that contradict it.
    pub rule: String,
}

impl Violation {
    pub(crate) fn new(rule: impl Into<String>) -> Self {
        Self { rule: rule.into() }
    }

    /// `Ok` when `holds`, else the rule.
    pub(crate) fn unless(holds: bool, rule: impl FnOnce() -> String) -> Result<(), Self> {
        if holds { Ok(()) } else { Err(Self::new(rule())) }
    }
}
