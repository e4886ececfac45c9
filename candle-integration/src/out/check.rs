//! The way from tensors to a device's code: everything is checked before anything is written.
//!
//! What two tensors share is compared by the addresses of their storages, each looked up under a short lock of its
//! own. A tensor's layout and its storage's address never change, so what was found holds under the locks that
//! [`locks`] takes afterwards.

use candle_core::layout::LayoutRelation;
use candle_core::nditer::MAX_DIMS;
use candle_core::{DType, DeviceLocation, Layout, Shape, Tensor};

use super::locks::{self, Held, StorageMut, StorageRef};
use super::op::Op;
use super::{cpu, cuda};
use crate::error::{Error, Result};

/// A source as a device's code gets it.
#[derive(Debug)]
pub(super) struct Operand<'a, S> {
    /// Nothing for a source that lies in the output's storage.
    pub(super) storage: Option<&'a S>,
    pub(super) layout: &'a Layout,
}

/// Checks and runs `op`, whose result has `shape` and `dtype`.
pub(super) fn run(op: &Op, sources: &[&Tensor], shape: &[usize], dtype: DType, out: &Tensor) -> Result<()> {
    let keys = check(op, sources, shape, dtype, out)?;
    if out.elem_count() == 0 {
        return Ok(());
    }
    locks::with_storages(op.name(), &[out], sources, |mut held| {
        let Some((_, written)) = held.written.pop() else { unreachable!("the output was locked") };
        match written {
            StorageMut::Cpu(storage) => {
                cpu::run(op, storage, out.layout(), &operands(sources, &keys, &held, StorageRef::cpu))
            }
            StorageMut::Cuda(storage) => {
                cuda::run(op, storage, out.layout(), &operands(sources, &keys, &held, StorageRef::cuda))
            }
        }
    })
}

/// The keys of the sources' storages; fails if `op` cannot be run on these tensors.
pub(super) fn check(
    op: &Op,
    sources: &[&Tensor],
    shape: &[usize],
    dtype: DType,
    out: &Tensor,
) -> Result<Vec<usize>> {
    check_output(op, shape, dtype, out)?;
    check_sources(op, sources, out)?;
    let (out_key, keys) = (locks::key(out), sources.iter().map(|source| locks::key(source)));
    let keys: Vec<usize> = keys.collect();
    for (index, source) in sources.iter().enumerate() {
        if keys[index] == out_key {
            check_alias(op, index, source.layout(), out.layout())?;
        }
    }
    Ok(keys)
}

/// The sources with their storages; one that is not held was the output's.
fn operands<'a, S>(
    sources: &[&'a Tensor],
    keys: &[usize],
    held: &Held<'a>,
    of_device: fn(StorageRef<'a>) -> Option<&'a S>,
) -> Vec<Operand<'a, S>> {
    let storage =
        |key: &usize| held.read.iter().find(|(held, _)| held == key).and_then(|(_, s)| of_device(*s));
    let with_key = sources.iter().zip(keys);
    with_key.map(|(source, key)| Operand { storage: storage(key), layout: source.layout() }).collect()
}

impl<'a> StorageRef<'a> {
    fn cpu(self) -> Option<&'a candle_core::CpuStorage> {
        if let Self::Cpu(storage) = self { Some(storage) } else { None }
    }

    fn cuda(self) -> Option<&'a candle_core::CudaStorage> {
        if let Self::Cuda(storage) = self { Some(storage) } else { None }
    }
}

fn check_output(op: &Op, shape: &[usize], dtype: DType, out: &Tensor) -> Result<()> {
    let name = op.name();
    let operand = || "the output".to_owned();
    if out.track_op() {
        return Err(Error::Tracked { op: name, operand: operand() });
    }
    if out.dims() != shape {
        return Err(Error::OutputShape { op: name, expected: shape.to_vec(), got: out.dims().to_vec() });
    }
    if out.dtype() != dtype {
        return Err(Error::OperandDType { op: name, operand: operand(), expected: dtype, got: out.dtype() });
    }
    if matches!(out.device().location(), DeviceLocation::Metal { .. }) {
        return Err(Error::UnsupportedOp { op: name, device: out.device().location() });
    }
    if out.layout().has_internal_overlap() && out.elem_count() > 0 {
        return Err(layout_error(name, operand(), "with a place for each element", out.layout()));
    }
    if op.needs_contiguous_images() && !has_contiguous_images(out.layout()) {
        return Err(layout_error(name, operand(), "contiguous but for the first dimension", out.layout()));
    }
    if op.needs_contiguous_output() && !out.is_contiguous() {
        return Err(layout_error(name, operand(), "contiguous", out.layout()));
    }
    if out.rank() > MAX_DIMS {
        return Err(layout_error(name, operand(), "of at most 8 dimensions", out.layout()));
    }
    Ok(())
}

fn check_sources(op: &Op, sources: &[&Tensor], out: &Tensor) -> Result<()> {
    let name = op.name();
    let location = out.device().location();
    for (index, source) in sources.iter().enumerate() {
        let operand = || format!("source {index}");
        if source.track_op() {
            return Err(Error::Tracked { op: name, operand: operand() });
        }
        let got = source.device().location();
        if got != location {
            return Err(Error::OperandDevice { op: name, operand: operand(), expected: location, got });
        }
        if op.needs_contiguous(index) && !source.is_contiguous() {
            return Err(layout_error(name, operand(), "contiguous", source.layout()));
        }
        if source.rank() > MAX_DIMS {
            return Err(layout_error(name, operand(), "of at most 8 dimensions", source.layout()));
        }
    }
    Ok(())
}

/// Whether a source in the output's storage may be where it is.
pub(super) fn check_alias(op: &Op, source_index: usize, source: &Layout, out: &Layout) -> Result<()> {
    match out.relation(source) {
        LayoutRelation::Disjoint => Ok(()),
        LayoutRelation::Identical if op.may_replace(source_index) => Ok(()),
        _ => Err(Error::Aliased { op: op.name(), source_index }),
    }
}

/// Whether all but the first dimension is contiguous.
fn has_contiguous_images(layout: &Layout) -> bool {
    let inner = Shape::from(&layout.dims()[1..]);
    inner.is_contiguous(&layout.stride()[1..])
}

/// An error for a tensor that does not lie as it should.
pub(super) fn layout_error(
    op: &'static str,
    operand: String,
    requirement: &'static str,
    layout: &Layout,
) -> Error {
    let (shape, strides) = (layout.dims().to_vec(), layout.stride().to_vec());
    Error::OperandLayout { op, operand, requirement, shape, strides }
}

/// Fails unless source `index` has `dtype`.
pub(super) fn expect_dtype(op: &'static str, index: usize, source: &Tensor, expected: DType) -> Result<()> {
    let got = source.dtype();
    if got == expected {
        return Ok(());
    }
    Err(Error::OperandDType { op, operand: format!("source {index}"), expected, got })
}
