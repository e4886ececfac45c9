//! Numbers by index. All indices are looked at before anything is written.

use candle_core::CpuStorage;

use super::elem::{Elem, Ints};
use super::operands::{Beside, Output};
use crate::error::{Error, Result};
use crate::out::check::Operand;

const CONTIGUOUS: &str = "was checked to be contiguous";

/// Slices of the first source along `dim`, one for each index; zeros for the greatest index of its format.
pub(super) fn select<T: Elem>(
    op: &'static str,
    mut out: Output<'_, T>,
    beside: &Beside<'_, T>,
    sources: &[Operand<'_, CpuStorage>],
    dim: usize,
) -> Result<()> {
    let source = beside.apart(op, &sources[0])?;
    let (ids, ids_layout) = beside.ints(op, &sources[1])?;
    let count = ids_layout.dims()[0];
    let place = |k: usize| ids_layout.start_offset() + k * ids_layout.stride()[0];
    let len = source.layout.dims()[dim];
    check(op, ids, (0..count).map(place), len)?;
    let slice_len: usize = source.layout.dims()[dim + 1..].iter().product();
    let source = source.contiguous().expect(CONTIGUOUS);
    let out = out.contiguous().expect(CONTIGUOUS);
    for (block, out) in out.chunks_exact_mut(count * slice_len).enumerate() {
        for (k, out) in out.chunks_exact_mut(slice_len).enumerate() {
            match ids.index(place(k)) {
                Some(index) => out.copy_from_slice(&source[(block * len + index) * slice_len..][..slice_len]),
                None => out.fill(T::zero()),
            }
        }
    }
    Ok(())
}

/// For each number of the output the one of the first source whose place along `dim` the index says; zero for
/// the greatest index of its format.
pub(super) fn gather<T: Elem>(
    op: &'static str,
    mut out: Output<'_, T>,
    beside: &Beside<'_, T>,
    sources: &[Operand<'_, CpuStorage>],
    dim: usize,
) -> Result<()> {
    let source = beside.apart(op, &sources[0])?;
    let (ids, ids_layout) = beside.ints(op, &sources[1])?;
    let (start, end) = ids_layout.contiguous_offsets().expect(CONTIGUOUS);
    let len = source.layout.dims()[dim];
    check(op, ids, start..end, len)?;
    let inner: usize = ids_layout.dims()[dim + 1..].iter().product();
    let source_inner: usize = source.layout.dims()[dim + 1..].iter().product();
    let block_len = ids_layout.dims()[dim] * inner;
    let source = source.contiguous().expect(CONTIGUOUS);
    let out = out.contiguous().expect(CONTIGUOUS);
    for (place, y) in out.iter_mut().enumerate() {
        *y = match ids.index(start + place) {
            Some(index) => source[(place / block_len * len + index) * source_inner + place % inner],
            None => T::zero(),
        };
    }
    Ok(())
}

fn check(op: &'static str, ids: Ints<'_>, mut places: impl Iterator<Item = usize>, len: usize) -> Result<()> {
    match places.find_map(|place| ids.index(place).filter(|&index| index >= len)) {
        Some(index) => Err(Error::Index { op, index, len }),
        None => Ok(()),
    }
}
