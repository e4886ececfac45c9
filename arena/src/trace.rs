//! Recorded allocations: one event a line, `op,id,bytes,stream`.
//!
//! | op | meaning |
//! |---|---|
//! | `a` | allocation `id` of `bytes` requested bytes on `stream` |
//! | `f` | the owner freed `id`; its memory may be reused on its stream from here on |
//! | `c` | the free completed: its memory may be reused anywhere |
//! | `s` | end of step `id` |

mod preallocation;
pub mod steps;

use std::fmt;

use thiserror::Error;

pub use self::preallocation::preallocated_bytes;

/// The first line of a trace.
pub const HEADER: &str = "op,id,bytes,stream";

/// One line of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// An allocation.
    Allocate {
        /// Names the allocation until it is freed.
        id: u64,
        /// Bytes requested.
        size_bytes: usize,
        /// The stream it is made on.
        stream: u64,
    },
    /// The owner's free.
    Free {
        /// The allocation.
        id: u64,
    },
    /// The end of the last queued work that uses a freed allocation.
    FreeCompleted {
        /// The allocation.
        id: u64,
    },
    /// The end of a step.
    StepEnd {
        /// The step.
        step: u64,
    },
}

/// A line that is not an event.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("line {line}: {problem}: {text:?}")]
pub struct TraceError {
    /// The line's number, counted from 1.
    pub line: u64,
    /// What is wrong.
    pub problem: &'static str,
    /// The line, at most its first 80 characters.
    pub text: String,
}

impl Event {
    /// Reads one line, the header excepted. `line` is its number, for the error.
    ///
    /// # Errors
    /// [`TraceError`] when the line has another form.
    pub fn parse(text: &str, line: u64) -> Result<Self, TraceError> {
        let wrong = |problem| TraceError { line, problem, text: text.chars().take(80).collect() };
        let mut fields = text.trim_end().split(',');
        let op = fields.next().unwrap_or_default();
        let mut number =
            |problem| fields.next().and_then(|field| field.parse::<u64>().ok()).ok_or_else(|| wrong(problem));
        let id = number("the second field is not a number")?;
        Ok(match op {
            "a" => {
                let bytes = number("the third field is not a size")?;
                let stream = number("the fourth field is not a stream")?;
                let size_bytes = usize::try_from(bytes).map_err(|_| wrong("the size is too large"))?;
                Self::Allocate { id, size_bytes, stream }
            }
            "f" => Self::Free { id },
            "c" => Self::FreeCompleted { id },
            "s" => Self::StepEnd { step: id },
            _ => return Err(wrong("the first field is none of a, f, c, s")),
        })
    }
}

impl fmt::Display for Event {
    /// The event's line, as [`parse`](Self::parse) reads it, without its end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allocate { id, size_bytes, stream } => write!(f, "a,{id},{size_bytes},{stream}"),
            Self::Free { id } => write!(f, "f,{id},,"),
            Self::FreeCompleted { id } => write!(f, "c,{id},,"),
            Self::StepEnd { step } => write!(f, "s,{step},,"),
        }
    }
}

#[cfg(test)]
mod tests;
