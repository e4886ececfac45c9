//! Walks over tensors number by number, in runs that candle's functions take.
//!
//! A run that lies contiguous is handed over as it lies; any other is gathered into a buffer of fixed size, and so is
//! one that is about to be overwritten by its own result. The functions treat each number for itself, so how numbers
//! are cut into runs does not show in the result.

use candle_core::{Layout, NdIter};
use rayon::prelude::*;

use super::elem::{Elem, Ints};
use super::operands::{Output, Source, Strided};

/// Numbers in a buffer: few enough for the stack, many enough that calls do not count.
const RUN: usize = 256;
/// From this many numbers on contiguous tensors are shared out to threads, as candle does.
const PARALLEL: usize = 64 * 1024;
/// Numbers that a thread takes at once.
const SHARE: usize = 16 * 1024;

/// `f` on each number of a source that may have another format.
pub(super) fn convert<T: Elem, U: Elem>(
    mut out: Output<'_, U>,
    source: &Strided<'_, T>,
    f: &(dyn Fn(&[T], &mut [U]) + Sync),
) {
    if let (Some(ys), Some(xs)) = (out.contiguous(), source.contiguous()) {
        return in_shares(xs, ys, f);
    }
    let (mut xs, mut ys) = ([T::default(); RUN], [U::default(); RUN]);
    for_runs([&out.layout, &source.layout], |[to, from], [to_stride, stride], len| {
        let xs = gather(source.numbers, from, stride, &mut xs[..len]);
        put(out.numbers, to, to_stride, &mut ys[..len], |ys| f(xs, ys));
    });
}

/// `f` on each number.
pub(super) fn unary<T: Elem>(
    mut out: Output<'_, T>,
    source: &Source<'_, T>,
    f: &(dyn Fn(&[T], &mut [T]) + Sync),
) {
    if let Source::Apart(source) = source {
        return convert(out, source, f);
    }
    let in_runs = |ys: &mut [T]| {
        for ys in ys.chunks_mut(RUN) {
            let mut xs = [T::default(); RUN];
            let xs = &mut xs[..ys.len()];
            xs.copy_from_slice(ys);
            f(xs, ys);
        }
    };
    match out.contiguous() {
        Some(ys) if ys.len() >= PARALLEL => ys.par_chunks_mut(SHARE).for_each(in_runs),
        Some(ys) => in_runs(ys),
        None => {
            let (mut xs, mut ys) = ([T::default(); RUN], [T::default(); RUN]);
            for_runs([&out.layout], |[to], [stride], len| {
                copy(out.numbers, to, stride, &mut xs[..len]);
                put(out.numbers, to, stride, &mut ys[..len], |ys| f(&xs[..len], ys));
            });
        }
    }
}

/// `f` on each pair of numbers.
pub(super) fn binary<T: Elem>(
    mut out: Output<'_, T>,
    left: &Source<'_, T>,
    right: &Source<'_, T>,
    f: impl Fn(&[T], &[T], &mut [T]) + Sync,
) {
    let all = match (left, right) {
        (Source::Apart(left), Source::Apart(right)) => left.contiguous().zip(right.contiguous()),
        _ => None,
    };
    if let (Some((a, b)), Some(ys)) = (all, out.contiguous()) {
        if ys.len() < PARALLEL {
            return f(a, b, ys);
        }
        let pairs = a.par_chunks(SHARE).zip(b.par_chunks(SHARE));
        return pairs.zip(ys.par_chunks_mut(SHARE)).for_each(|((a, b), ys)| f(a, b, ys));
    }
    let (mut a, mut b, mut ys) = ([T::default(); RUN], [T::default(); RUN], [T::default(); RUN]);
    let layouts = [&out.layout, left.layout(&out.layout), right.layout(&out.layout)];
    for_runs(layouts, |[to, l, r], [to_stride, l_stride, r_stride], len| {
        let a = left.run(out.numbers, l, l_stride, &mut a[..len]);
        let b = right.run(out.numbers, r, r_stride, &mut b[..len]);
        put(out.numbers, to, to_stride, &mut ys[..len], |ys| f(a, b, ys));
    });
}

/// Numbers of `yes` where `choice` is not zero, of `no` where it is.
pub(super) fn choose<T: Elem>(
    out: Output<'_, T>,
    (choice, choice_layout): (Ints<'_>, &Layout),
    yes: &Source<'_, T>,
    no: &Source<'_, T>,
) {
    let (mut a, mut b, mut ys) = ([T::default(); RUN], [T::default(); RUN], [T::default(); RUN]);
    let layouts = [&out.layout, choice_layout, yes.layout(&out.layout), no.layout(&out.layout)];
    for_runs(layouts, |[to, c, l, r], [to_stride, c_stride, l_stride, r_stride], len| {
        let a = yes.run(out.numbers, l, l_stride, &mut a[..len]);
        let b = no.run(out.numbers, r, r_stride, &mut b[..len]);
        put(out.numbers, to, to_stride, &mut ys[..len], |ys| {
            for (k, y) in ys.iter_mut().enumerate() {
                *y = if choice.is_true(c + k * c_stride) { a[k] } else { b[k] };
            }
        });
    });
}

/// One number everywhere.
pub(super) fn fill<T: Elem>(mut out: Output<'_, T>, value: T) {
    if let Some(ys) = out.contiguous() {
        return ys.fill(value);
    }
    for_runs([&out.layout], |[to], [stride], len| {
        (0..len).for_each(|k| out.numbers[to + k * stride] = value);
    });
}

impl<T: Elem> Source<'_, T> {
    /// Where its numbers lie; in `out` where it is the output.
    fn layout<'l>(&'l self, out: &'l Layout) -> &'l Layout {
        match self {
            Self::Apart(source) => &source.layout,
            Self::Replaced => out,
        }
    }

    /// A run of its numbers that stays when the output is written.
    fn run<'b>(&'b self, out: &[T], from: usize, stride: usize, buffer: &'b mut [T]) -> &'b [T] {
        match self {
            Self::Apart(source) => gather(source.numbers, from, stride, buffer),
            Self::Replaced => {
                copy(out, from, stride, buffer);
                buffer
            }
        }
    }
}

fn in_shares<T: Elem, U: Elem>(xs: &[T], ys: &mut [U], f: &(dyn Fn(&[T], &mut [U]) + Sync)) {
    if ys.len() < PARALLEL {
        return f(xs, ys);
    }
    xs.par_chunks(SHARE).zip(ys.par_chunks_mut(SHARE)).for_each(|(xs, ys)| f(xs, ys));
}

/// Calls `f` with the places, the strides and the length of each run of at most [`RUN`] numbers.
fn for_runs<const N: usize>(layouts: [&Layout; N], mut f: impl FnMut([usize; N], [usize; N], usize)) {
    let blocks = NdIter::new(layouts);
    let (block_len, strides) = (blocks.inner_size, blocks.inner_strides);
    for offsets in blocks {
        for start in (0..block_len).step_by(RUN) {
            let places = std::array::from_fn(|n| offsets[n] + start * strides[n]);
            f(places, strides, RUN.min(block_len - start));
        }
    }
}

/// The run where it lies if it is contiguous, else a copy in `buffer`.
fn gather<'b, T: Copy>(numbers: &'b [T], from: usize, stride: usize, buffer: &'b mut [T]) -> &'b [T] {
    if stride == 1 {
        return &numbers[from..from + buffer.len()];
    }
    copy(numbers, from, stride, buffer);
    buffer
}

fn copy<T: Copy>(numbers: &[T], from: usize, stride: usize, buffer: &mut [T]) {
    match stride {
        0 => buffer.fill(numbers[from]),
        1 => buffer.copy_from_slice(&numbers[from..from + buffer.len()]),
        _ => buffer.iter_mut().enumerate().for_each(|(k, number)| *number = numbers[from + k * stride]),
    }
}

/// Has `f` write a run where it belongs, by way of `buffer` if that is not contiguous.
fn put<T: Copy>(numbers: &mut [T], to: usize, stride: usize, buffer: &mut [T], f: impl FnOnce(&mut [T])) {
    if stride == 1 {
        return f(&mut numbers[to..to + buffer.len()]);
    }
    f(buffer);
    buffer.iter().enumerate().for_each(|(k, &number)| numbers[to + k * stride] = number);
}
