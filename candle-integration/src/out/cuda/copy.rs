//! Copies between tensors of one format.

use candle_core::cuda_backend::kernels;

use super::Call;
use super::launch::{Arg, for_each};
use super::memory::View;
use crate::error::Result;

/// From any strides to any: in one launch into a contiguous output, else in one for each two dimensions.
pub(super) fn run(call: Call<'_>) -> Result<()> {
    if call.out.address == call.sources[0].address
        && call.out.layout.stride() == call.sources[0].layout.stride()
    {
        return Ok(()); // it is the output
    }
    if call.out.layout.is_contiguous() && !call.sources[0].layout.is_contiguous() {
        return strided(&call, call.sources[0], call.out);
    }
    let dims = merged(call.out, call.sources[0]);
    // The kernel copies rows of numbers that follow each other, the rows at any distance.
    let (dims, columns) = match dims.as_slice() {
        [dims @ .., columns @ Dim { to: 1, from: 1, .. }] => (dims, *columns),
        dims => (dims, Dim::ONE),
    };
    let (rows, outer) = dims.split_last().map_or((Dim::ONE, dims), |(rows, outer)| (*rows, outer));
    for block in 0..outer.iter().map(|dim| dim.len).product() {
        let (mut to, mut from, mut rest) = (0, 0, block);
        for dim in outer.iter().rev() {
            to += rest % dim.len * dim.to;
            from += rest % dim.len * dim.from;
            rest /= dim.len;
        }
        let word = |number: usize| u32::try_from(number).map(Arg::Word).map_err(|error| call.failed(&error));
        let args = [
            Arg::Address(call.sources[0].address_of(from)),
            Arg::Address(call.out.address_of(to)),
            word(rows.len)?,
            word(columns.len)?,
            word(rows.from)?,
            word(rows.to)?,
        ];
        let config = for_each(&call, rows.len * columns.len)?;
        call.launch_all(&call.kernel("copy2d"), &kernels::FILL, config, &args)?;
    }
    Ok(())
}

/// A source that is not contiguous, one number after the other.
pub(super) fn strided(call: &Call<'_>, from: View<'_>, to: View<'_>) -> Result<()> {
    let args = [
        Arg::Count(from.len()),
        Arg::Count(from.rank()),
        call.params(from.layout)?,
        Arg::Address(from.address),
        Arg::Address(to.address),
    ];
    call.launch_all(&call.kernel("ucopy"), &kernels::UNARY, for_each(call, from.len())?, &args)
}

/// A dimension with the strides in both tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Dim {
    len: usize,
    to: usize,
    from: usize,
}

impl Dim {
    const ONE: Self = Self { len: 1, to: 0, from: 0 };
}

/// The dimensions of more than one element, those that follow each other in both tensors as one.
fn merged(to: View<'_>, from: View<'_>) -> Vec<Dim> {
    let strides = to.layout.stride().iter().zip(from.layout.stride());
    let mut dims: Vec<Dim> = Vec::with_capacity(to.rank());
    for (&len, (&to, &from)) in to.layout.dims().iter().zip(strides).filter(|(len, _)| **len != 1) {
        match dims.last_mut() {
            Some(outer) if outer.to == len * to && outer.from == len * from => {
                *outer = Dim { len: outer.len * len, to, from };
            }
            _ => dims.push(Dim { len, to, from }),
        }
    }
    dims
}
