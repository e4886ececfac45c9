//! The numbers of an operation's tensors: the output's to write, the sources' to read, also where both lie in one
//! storage.

use std::borrow::Cow;

use candle_core::{CpuStorage, Layout, NdIter};

use super::elem::{Elem, Ints};
use crate::error::{Error, Result};
use crate::out::check::Operand;

/// The output.
pub(super) struct Output<'a, T> {
    /// From its first element to its last.
    pub(super) numbers: &'a mut [T],
    /// Its layout, from the first element on.
    pub(super) layout: Layout,
}

/// What there is beside the output in its storage.
pub(super) struct Beside<'a, T> {
    before: &'a [T],
    after: &'a [T],
    /// Where `after` begins.
    after_start: usize,
}

/// A source.
pub(super) enum Source<'a, T> {
    /// Lies apart from the output.
    Apart(Strided<'a, T>),
    /// Is the output.
    Replaced,
}

/// Numbers that lie apart from the output.
pub(super) struct Strided<'a, T> {
    pub(super) numbers: &'a [T],
    pub(super) layout: Layout,
}

/// The output's part of its storage, which is not empty, and the rest of it.
pub(super) fn split<'a, T>(storage: &'a mut [T], layout: &Layout) -> (Output<'a, T>, Beside<'a, T>) {
    let start = layout.start_offset();
    let len =
        1 + layout.dims().iter().zip(layout.stride()).map(|(dim, stride)| (dim - 1) * stride).sum::<usize>();
    let (before, rest) = storage.split_at_mut(start);
    let (numbers, after) = rest.split_at_mut(len);
    let layout = moved(layout, 0);
    (Output { numbers, layout }, Beside { before, after, after_start: start + len })
}

impl<'a, T: Elem> Beside<'a, T> {
    /// A source of the output's format.
    pub(super) fn source(
        &self,
        op: &'static str,
        operand: &Operand<'a, CpuStorage>,
    ) -> Result<Source<'a, T>> {
        self.typed(op, operand)
    }

    /// A source of the output's format that was checked not to be the output.
    pub(super) fn apart(
        &self,
        op: &'static str,
        operand: &Operand<'a, CpuStorage>,
    ) -> Result<Strided<'a, T>> {
        match self.typed(op, operand)? {
            Source::Apart(strided) => Ok(strided),
            Source::Replaced => unreachable!("was checked not to be the output"),
        }
    }

    fn typed(&self, op: &'static str, operand: &Operand<'a, CpuStorage>) -> Result<Source<'a, T>> {
        match operand.storage {
            Some(storage) => {
                let numbers = T::of(storage).ok_or_else(|| mismatch(op, storage))?;
                Ok(Source::Apart(Strided { numbers, layout: operand.layout.clone() }))
            }
            None => Ok(self.beside(operand.layout)),
        }
    }

    /// A source of indices or truth values.
    pub(super) fn ints(
        &self,
        op: &'static str,
        operand: &Operand<'a, CpuStorage>,
    ) -> Result<(Ints<'a>, Layout)> {
        let (ints, layout, dtype) = match operand.storage {
            Some(storage @ CpuStorage::U8(ids)) => {
                (Some(Ints::U8(ids)), operand.layout.clone(), dtype(storage))
            }
            Some(storage @ CpuStorage::U32(ids)) => {
                (Some(Ints::U32(ids)), operand.layout.clone(), dtype(storage))
            }
            Some(storage @ CpuStorage::I64(ids)) => {
                (Some(Ints::I64(ids)), operand.layout.clone(), dtype(storage))
            }
            Some(storage) => (None, operand.layout.clone(), dtype(storage)),
            None => match self.beside(operand.layout) {
                Source::Apart(Strided { numbers, layout }) => (T::ints(numbers), layout, T::DTYPE),
                Source::Replaced => unreachable!("was checked not to be the output"),
            },
        };
        ints.map(|ints| (ints, layout)).ok_or(Error::UnsupportedDType { op, dtype })
    }

    /// A source in the output's storage: checked to be the output, or to lie before or after it.
    fn beside(&self, layout: &Layout) -> Source<'a, T> {
        let start = layout.start_offset();
        if layout.shape().elem_count() == 0 {
            Source::Apart(Strided { numbers: &[], layout: moved(layout, 0) })
        } else if start < self.before.len() {
            Source::Apart(Strided { numbers: self.before, layout: layout.clone() })
        } else if start >= self.after_start {
            let layout = moved(layout, start - self.after_start);
            Source::Apart(Strided { numbers: self.after, layout })
        } else {
            Source::Replaced
        }
    }
}

impl<'a, T> Strided<'a, T> {
    /// The numbers of a contiguous tensor.
    pub(super) fn contiguous(&self) -> Option<&'a [T]> {
        self.layout.contiguous_offsets().map(|(start, end)| &self.numbers[start..end])
    }
}

impl<'a, T: Elem> Strided<'a, T> {
    /// The numbers in the order of their indices: as they lie, or copied.
    pub(super) fn in_order(&self) -> Cow<'a, [T]> {
        if let Some(numbers) = self.contiguous() {
            return Cow::Borrowed(numbers);
        }
        let blocks = NdIter::new([&self.layout]);
        let (len, [stride]) = (blocks.inner_size, blocks.inner_strides);
        let places = blocks.flat_map(|[from]| (0..len).map(move |k| from + k * stride));
        places.map(|place| self.numbers[place]).collect()
    }
}

impl<T> Output<'_, T> {
    /// The numbers of a contiguous tensor.
    pub(super) fn contiguous(&mut self) -> Option<&mut [T]> {
        self.layout.contiguous_offsets().map(|(start, end)| &mut self.numbers[start..end])
    }
}

/// `layout` with another start.
fn moved(layout: &Layout, start: usize) -> Layout {
    Layout::new(layout.shape().clone(), layout.stride().to_vec(), start)
}

fn dtype(storage: &CpuStorage) -> candle_core::DType {
    use candle_core::backend::BackendStorage;
    storage.dtype()
}

fn mismatch(op: &'static str, storage: &CpuStorage) -> Error {
    Error::UnsupportedDType { op, dtype: dtype(storage) }
}
