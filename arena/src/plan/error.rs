//! What cannot be planned.

use thiserror::Error;

/// Buffers that no plan can be made for, or a plan that is none.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A buffer that is never alive.
    #[error("buffer {index} is alive from {lower} until before {upper}, which is never")]
    Lifetime {
        /// The buffer's place among those given, counted from 0.
        index: usize,
        /// When it is born.
        lower: u64,
        /// When it is dead.
        upper: u64,
    },
    /// An alignment of zero, or one that has no common multiple with the granule.
    #[error(
        "buffer {index} cannot be aligned to {align_bytes} bytes with a granule of {granule_bytes} bytes"
    )]
    Alignment {
        /// The buffer's place among those given.
        index: usize,
        /// The alignment asked for.
        align_bytes: usize,
        /// The granule.
        granule_bytes: usize,
    },
    /// All buffers together, each with what its alignment may cost, end beyond what an address can tell.
    #[error("the sizes of the first {count} buffers add up to more than {most_bytes} bytes")]
    TooLarge {
        /// How many buffers are too much.
        count: usize,
        /// The most that can be planned.
        most_bytes: usize,
    },
    /// More buffers than can be numbered.
    #[error("{count} buffers are more than can be planned")]
    TooMany {
        /// How many there are.
        count: usize,
    },
    /// A plan for another number of buffers.
    #[error("the plan has {offset_count} offsets for {buffer_count} buffers")]
    Count {
        /// Offsets of the plan.
        offset_count: usize,
        /// Buffers given.
        buffer_count: usize,
    },
    /// An offset that is not a multiple of what it has to be.
    #[error("buffer {index} at {offset_bytes} is not aligned to {align_bytes} bytes")]
    Misaligned {
        /// The buffer's place among those given.
        index: usize,
        /// Its offset.
        offset_bytes: usize,
        /// What the offset has to be a multiple of.
        align_bytes: usize,
    },
    /// Two buffers that live at one time share bytes.
    #[error("buffers {first} and {second} live at one time and share bytes")]
    Overlap {
        /// A buffer's place among those given.
        first: usize,
        /// Another's.
        second: usize,
    },
    /// A plan whose peak is not the highest end of its buffers.
    #[error("the highest end is {end_bytes}, and the plan tells {peak_bytes}")]
    Peak {
        /// The highest end.
        end_bytes: usize,
        /// What the plan tells.
        peak_bytes: usize,
    },
}
