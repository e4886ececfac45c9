//! Reductions, and operations on rows.

use candle_core::cuda_backend::cudarc::driver::LaunchConfig;
use candle_core::cuda_backend::kernels;

use super::Call;
use super::launch::{Arg, for_each};
use super::memory::View;
use crate::error::Result;
use crate::out::op::Op;

/// Up to so many summands candle has one thread add them up.
const FEW: usize = 32;

/// The sum over `dims`, and that times `scale` if there is one.
pub(super) fn sum(call: Call<'_>, dims: &[usize], scale: Option<f64>) -> Result<()> {
    let source = call.sources[0];
    if source.len() == 0 {
        let zero = [call.out];
        return Call { op: &Op::Fill(0.0), sources: &zero, ..call }.run();
    }
    let each = source.len() / call.out.len();
    if each <= FEW {
        let blocks = call.out.len().div_ceil(256);
        reduce(&call, "fast_sum_small", dims, call.out.len(), config(&call, blocks, (256, 1))?)?;
    } else {
        let threads = each.min(1024).next_power_of_two();
        reduce(&call, "fast_sum", dims, source.len(), config(&call, call.out.len(), (threads as u32, 1))?)?;
    }
    let Some(scale) = scale else { return Ok(()) };
    let sums = [call.out];
    Call { op: &Op::Affine { mul: scale, add: 0.0 }, sources: &sums, ..call }.run()
}

/// The greatest or least along `dim`.
pub(super) fn extreme(call: Call<'_>, dim: usize, greatest: bool) -> Result<()> {
    let source = call.sources[0];
    let threads = source.layout.dims()[dim].min(1024).next_power_of_two();
    let kernel = if greatest { "fast_max" } else { "fast_min" };
    reduce(&call, kernel, &[dim], source.len(), config(&call, call.out.len(), (threads as u32, 1))?)
}

/// Kernels see the dimensions that stay, then those that go.
fn reduce(call: &Call<'_>, kernel: &str, dims: &[usize], count: usize, config: LaunchConfig) -> Result<()> {
    let source = call.sources[0];
    let order: Vec<usize> =
        (0..source.rank()).filter(|dim| !dims.contains(dim)).chain(dims.iter().copied()).collect();
    let lens: Vec<usize> = order.iter().map(|&dim| source.layout.dims()[dim]).collect();
    let strides: Vec<usize> = order.iter().map(|&dim| source.layout.stride()[dim]).collect();
    let args = [
        Arg::Count(count),
        Arg::Count(source.len() / call.out.len()),
        Arg::Count(source.rank()),
        call.params_of(&[&lens, &strides])?,
        Arg::Address(source.address),
        Arg::Address(call.out.address),
    ];
    call.launch_all(&call.kernel(kernel), &kernels::REDUCE, config, &args)
}

/// A block for each row.
pub(super) fn softmax(call: Call<'_>) -> Result<()> {
    let (rows, columns) = rows(call.out);
    let args = [Arg::Address(call.sources[0].address), Arg::Address(call.out.address), int(&call, columns)?];
    call.launch_all(&call.kernel("softmax"), &kernels::REDUCE, config(&call, rows, (1, 32))?, &args)
}

/// A block for each row, with a weight and perhaps a bias after the tensors.
pub(super) fn norm(call: Call<'_>, kernel: &str, eps: f32) -> Result<()> {
    let (rows, columns) = rows(call.out);
    let threads = if columns < 1024 { 32 } else { 1024 };
    let mut args = vec![Arg::Address(call.sources[0].address), Arg::Address(call.out.address)];
    args.extend(call.sources[1..].iter().map(|vector| Arg::Address(vector.address)));
    args.extend([int(&call, columns)?, Arg::Int(threads), Arg::Single(eps)]);
    let config = config(&call, rows, (threads.cast_unsigned(), 1))?;
    call.launch_all(&call.kernel(kernel), &kernels::REDUCE, config, &args)
}

/// A thread for each pair of numbers that is rotated.
pub(super) fn rope(call: Call<'_>) -> Result<()> {
    let [source, cos, sin] = call.sources else { unreachable!("a rotary embedding has three sources") };
    let dims = source.layout.dims();
    let (heads, steps, size) = (dims[0] * dims[1], dims[2], dims[3]);
    let of_batch = cos.rank() == 3 && sin.rank() == 3;
    let word = |number: usize| u32::try_from(number).map(Arg::Word).map_err(|error| call.failed(&error));
    let args = [
        Arg::Address(source.address),
        Arg::Address(cos.address),
        Arg::Address(sin.address),
        Arg::Address(call.out.address),
        word(heads)?,
        word(steps * size)?,
        word(size)?,
        word(if of_batch { dims[1] * steps * size } else { 0 })?,
    ];
    call.launch_all(&call.kernel("rope"), &kernels::REDUCE, for_each(&call, source.len() / 2)?, &args)
}

/// Rows, and numbers in each.
fn rows(view: View<'_>) -> (usize, usize) {
    let columns = view.layout.dims().last().copied().unwrap_or(1);
    (view.len() / columns, columns)
}

fn int(call: &Call<'_>, number: usize) -> Result<Arg> {
    i32::try_from(number).map(Arg::Int).map_err(|error| call.failed(&error))
}

fn config(call: &Call<'_>, blocks: usize, (x, y): (u32, u32)) -> Result<LaunchConfig> {
    let blocks = u32::try_from(blocks).map_err(|error| call.failed(&error))?;
    Ok(LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (x, y, 1), shared_mem_bytes: 0 })
}
