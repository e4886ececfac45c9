//! Packing a batch of token sequences of different lengths into two rectangles of equal size:
//! token ids, and the mask that tells tokens from padding.

use anyhow::{Result, ensure};

/// Rows and columns of a packed batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) rows: usize,
    /// Tokens in the longest sequence.
    pub(crate) longest: usize,
}

impl Shape {
    /// The shape that `sequences` need.
    pub(crate) fn of(sequences: &[Vec<u32>]) -> Self {
        Self { rows: sequences.len(), longest: sequences.iter().map(Vec::len).max().unwrap_or(0) }
    }

    /// `u32`s that a packed batch takes: ids and mask.
    pub(crate) fn scratch_len(self) -> usize {
        2 * self.rows * self.longest
    }
}

/// A packed batch, in scratch memory that belongs to the step.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Packed<'a> {
    pub(crate) shape: Shape,
    pub(crate) ids: &'a [u32],
    /// 1 for a token, 0 for padding.
    pub(crate) mask: &'a [u32],
}

/// Lays `sequences` out in `scratch`, which holds [`Shape::scratch_len`] zeros. Where the memory
/// comes from is the caller's affair.
pub(crate) fn pack_batch<'a>(
    scratch: &'a mut [u32],
    sequences: &[Vec<u32>],
    pad_id: u32,
) -> Result<Packed<'a>> {
    let shape = Shape::of(sequences);
    ensure!(
        scratch.len() == shape.scratch_len(),
        "scratch holds {} values, {} sequences of up to {} tokens take {}",
        scratch.len(),
        shape.rows,
        shape.longest,
        shape.scratch_len()
    );
    ensure!(shape.longest > 0, "a batch of {} sequences has no tokens", shape.rows);
    let (ids, mask) = scratch.split_at_mut(shape.rows * shape.longest);
    let rows = ids.chunks_exact_mut(shape.longest).zip(mask.chunks_exact_mut(shape.longest));
    for (sequence, (ids, mask)) in sequences.iter().zip(rows) {
        let (tokens, padding) = ids.split_at_mut(sequence.len());
        tokens.copy_from_slice(sequence);
        padding.fill(pad_id);
        mask[..sequence.len()].fill(1);
    }
    Ok(Packed { shape, ids, mask })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pads_to_the_longest() {
        let sequences = [vec![1, 2], vec![3, 4, 5], vec![6]];
        let shape = Shape::of(&sequences);
        assert_eq!(shape, Shape { rows: 3, longest: 3 });
        let mut scratch = vec![0; shape.scratch_len()];
        let packed = pack_batch(&mut scratch, &sequences, 9).unwrap();
        assert_eq!(packed.ids, [1, 2, 9, 3, 4, 5, 6, 9, 9]);
        assert_eq!(packed.mask, [1, 1, 0, 1, 1, 1, 1, 0, 0]);
    }

    #[test]
    fn refuses_scratch_of_the_wrong_size_and_empty_batches() {
        let error = pack_batch(&mut [0; 3], &[vec![1, 2]], 0).unwrap_err();
        assert!(error.to_string().contains("holds 3 values"), "{error}");
        assert!(pack_batch(&mut [], &[], 0).is_err());
        assert!(pack_batch(&mut [], &[vec![]], 0).is_err());
    }
}
