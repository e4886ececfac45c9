//! Scratch for one step: bump allocation of typed slices, all freed together.
//!
//! A [`StepArena`] holds plain data that a step needs and nobody keeps: token ids and masks of
//! a batch, index lists, a packed row. Taking a slice moves a pointer; [`reset`](StepArena::reset)
//! ends them all and keeps the memory, so that a step that needs no more than an earlier one
//! allocates nothing. It stands on `bumpalo` and, unlike a [`Placement`](crate::Placement),
//! owns real memory: it has no upstream and frees nothing one by one.

use bumpalo::Bump;
use thiserror::Error;

/// Failure of a [`StepArena`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StepArenaError {
    /// The slice does not fit into memory or under the arena's limit.
    #[error(
        "a slice of {len} elements of {element_bytes} bytes does not fit: {used_bytes} bytes are used, limit {}",
        limit_bytes.map_or_else(|| "none".to_owned(), |bytes| bytes.to_string())
    )]
    OutOfMemory {
        /// Elements of the refused slice.
        len: usize,
        /// Bytes of one element.
        element_bytes: usize,
        /// Bytes handed out since the last reset.
        used_bytes: usize,
        /// The arena's limit.
        limit_bytes: Option<usize>,
    },
}

/// Bump-allocated scratch that is reset at the end of a step. One thread at a time (`!Sync`).
///
/// ```
/// let mut scratch = mempool_arena::StepArena::new();
/// for batch in [[3_usize, 5], [4, 1]] {
///     let longest = batch.into_iter().max().unwrap_or(0);
///     let mask = scratch.alloc_slice_fill_copy(batch.len() * longest, 0_u32)?;
///     for (row, len) in mask.chunks_mut(longest).zip(batch) {
///         row[..len].fill(1);
///     }
///     scratch.reset(); // `mask` cannot be used any more: the borrow checker sees to it
/// }
/// # Ok::<(), mempool_arena::StepArenaError>(())
/// ```
#[derive(Debug)]
pub struct StepArena {
    bump: Bump,
    limit_bytes: Option<usize>,
    peak_bytes: usize,
}

impl Default for StepArena {
    fn default() -> Self {
        Self::new()
    }
}

impl StepArena {
    /// An arena without memory, which grows as it is used.
    #[must_use]
    pub fn new() -> Self {
        Self { bump: Bump::new(), limit_bytes: None, peak_bytes: 0 }
    }

    /// The arena with a limit on the bytes it takes.
    #[must_use]
    pub fn limit_bytes(mut self, bytes: usize) -> Self {
        self.limit_bytes = Some(bytes);
        self.bump.set_allocation_limit(Some(bytes));
        self
    }

    /// A slice of `len` copies of `value`, valid until the next [`reset`](Self::reset).
    ///
    /// # Errors
    /// [`StepArenaError::OutOfMemory`].
    #[allow(clippy::mut_from_ref)] // each call hands out memory of its own
    pub fn alloc_slice_fill_copy<T: Copy>(&self, len: usize, value: T) -> Result<&mut [T], StepArenaError> {
        self.bump.try_alloc_slice_fill_copy(len, value).map_err(|_| self.refused::<T>(len))
    }

    /// A copy of `source`, valid until the next [`reset`](Self::reset).
    ///
    /// # Errors
    /// [`StepArenaError::OutOfMemory`].
    #[allow(clippy::mut_from_ref)] // each call hands out memory of its own
    pub fn alloc_slice_copy<T: Copy>(&self, source: &[T]) -> Result<&mut [T], StepArenaError> {
        self.bump.try_alloc_slice_copy(source).map_err(|_| self.refused::<T>(source.len()))
    }

    /// A slice of `len` elements, the `k`th of which is `f(k)`.
    ///
    /// # Errors
    /// [`StepArenaError::OutOfMemory`].
    #[allow(clippy::mut_from_ref)] // each call hands out memory of its own
    pub fn alloc_slice_fill_with<T: Copy>(
        &self,
        len: usize,
        f: impl FnMut(usize) -> T,
    ) -> Result<&mut [T], StepArenaError> {
        self.bump.try_alloc_slice_fill_with(len, f).map_err(|_| self.refused::<T>(len))
    }

    /// Ends all slices and keeps the memory, in one piece that a step of the same size fits
    /// into.
    pub fn reset(&mut self) {
        let held = self.bump.allocated_bytes();
        self.peak_bytes = self.peak_bytes.max(held);
        self.bump.reset();
        // bumpalo keeps its last chunk only. After a step that needed several, one chunk of
        // the whole takes their place, so that the next such step needs no new one.
        if self.bump.allocated_bytes() < held {
            let fits = self.limit_bytes.is_none_or(|limit| held <= limit);
            if fits && let Ok(whole) = Bump::try_with_capacity(held) {
                whole.set_allocation_limit(self.limit_bytes);
                self.bump = whole;
            }
        }
    }

    /// Bytes taken from the system, handed out or not.
    #[must_use]
    pub fn reserved_bytes(&self) -> usize {
        self.bump.allocated_bytes()
    }

    /// The most bytes that were taken from the system at the end of a step.
    #[must_use]
    pub fn peak_bytes(&self) -> usize {
        self.peak_bytes.max(self.bump.allocated_bytes())
    }

    fn refused<T>(&self, len: usize) -> StepArenaError {
        StepArenaError::OutOfMemory {
            len,
            element_bytes: size_of::<T>(),
            used_bytes: self.bump.allocated_bytes(),
            limit_bytes: self.limit_bytes,
        }
    }
}

#[cfg(test)]
mod tests;
