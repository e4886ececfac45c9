//! Sums, means and extremes over dimensions, added up and compared in candle's order.

use candle_core::{Layout, NdIter};

use super::elem::Elem;
use super::operands::{Output, Strided};
use super::primitives;

/// The sum over `dims`, and that times `scale` if there is one. The output is contiguous.
pub(super) fn sum<T: Elem>(
    mut out: Output<'_, T>,
    source: &Strided<'_, T>,
    dims: &[usize],
    scale: Option<f64>,
) {
    let out = out.contiguous().expect("was checked to be contiguous");
    let mut dims = dims.to_vec();
    dims.sort_unstable();
    let rank = source.layout.dims().len();
    let reduced: usize = dims.iter().map(|&dim| source.layout.dims()[dim]).product();
    let over_last_dims = dims.iter().rev().enumerate().all(|(k, &dim)| dim + k + 1 == rank);
    match source.contiguous() {
        _ if reduced == 0 => out.fill(T::zero()),
        Some(xs) if over_last_dims => {
            for (xs, y) in xs.chunks_exact(reduced).zip(&mut *out) {
                *y = primitives::sum(xs);
            }
        }
        _ => one_by_one(out, source, &dims),
    }
    if let Some(scale) = scale {
        let (scale, zero) = (T::from_f64(scale), T::from_f64(0.0));
        out.iter_mut().for_each(|y| *y = *y * scale + zero);
    }
}

/// Each number is added to its sum in the order of the source's indices.
fn one_by_one<T: Elem>(out: &mut [T], source: &Strided<'_, T>, dims: &[usize]) {
    out.fill(T::zero());
    let mut kept = source.layout.dims().to_vec();
    dims.iter().for_each(|&dim| kept[dim] = 1);
    let mut strides = Layout::contiguous(kept).stride().to_vec();
    dims.iter().for_each(|&dim| strides[dim] = 0);
    let sums = Layout::new(source.layout.shape().clone(), strides, 0);
    let blocks = NdIter::new([&sums, &source.layout]);
    let (len, [to_stride, stride]) = (blocks.inner_size, blocks.inner_strides);
    for [to, from] in blocks {
        for k in 0..len {
            out[to + k * to_stride] += source.numbers[from + k * stride];
        }
    }
}

/// The greatest or the least along `dim`, which is not empty; of equal ones the first. The output is contiguous.
pub(super) fn extreme<T: Elem>(mut out: Output<'_, T>, source: &Strided<'_, T>, dim: usize, greatest: bool) {
    let out = out.contiguous().expect("was checked to be contiguous");
    let (len, stride) = (source.layout.dims()[dim], source.layout.stride()[dim]);
    let firsts = source.layout.narrow(dim, 0, 1).expect("the dimension is not empty");
    let blocks = NdIter::new([&firsts]);
    let (block_len, [step]) = (blocks.inner_size, blocks.inner_strides);
    let starts = blocks.flat_map(|[from]| (0..block_len).map(move |k| from + k * step));
    for (y, start) in out.iter_mut().zip(starts) {
        *y = source.numbers[start];
        for k in 0..len {
            let x = source.numbers[start + k * stride];
            if if greatest { *y < x } else { *y > x } {
                *y = x;
            }
        }
    }
}
