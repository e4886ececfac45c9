//! Convolutions as candle computes them: patches as rows, one product, and its transpose into the output. The patches
//! and the product lie in scratch of the current pool until the queued work has used them.

use candle_core::cuda_backend::cudarc::driver::DevicePtr;
use candle_core::cuda_backend::kernels;
use candle_core::{Layout, Shape};

use super::Call;
use super::blas::{Matrices, Products};
use super::copy::strided;
use super::launch::{Arg, for_each};
use super::memory::View;
use crate::error::Result;
use crate::out::op::Conv;

/// Input of shape `(batch, in, length)`, kernel of `(out, in, size)`.
pub(super) fn conv1d(call: Call<'_>, conv: &Conv) -> Result<()> {
    let (input, kernel) = (call.sources[0].layout, call.sources[1].layout);
    let (length, size) = (call.out.layout.dims()[2], kernel.dims()[2]);
    let threads = input.dims()[0] * length * input.dims()[1];
    run(call, size, length, |patches| {
        let args = [
            Arg::Count(threads),
            Arg::Count(length),
            Arg::Count(size),
            Arg::Count(conv.stride),
            Arg::Count(conv.padding),
            Arg::Count(conv.dilation),
            call.params_of(&[input.dims(), input.stride()])?,
            Arg::Address(call.sources[0].address),
            Arg::Address(patches),
        ];
        call.launch_all(&call.kernel("im2col1d"), &kernels::CONV, for_each(&call, threads)?, &args)
    })
}

/// Input of shape `(batch, in, height, width)`, kernel of `(out, in, height, width)`.
pub(super) fn conv2d(call: Call<'_>, conv: &Conv) -> Result<()> {
    let (input, kernel) = (call.sources[0].layout, call.sources[1].layout);
    let (height, width) = (call.out.layout.dims()[2], call.out.layout.dims()[3]);
    let (rows, columns) = (kernel.dims()[2], kernel.dims()[3]);
    let count = input.dims()[0] * height * width * input.dims()[1] * rows * columns;
    run(call, rows * columns, height * width, |patches| {
        let args = [
            Arg::Count(count),
            Arg::Count(height),
            Arg::Count(width),
            Arg::Count(rows),
            Arg::Count(columns),
            Arg::Count(conv.stride),
            Arg::Count(conv.padding),
            Arg::Count(conv.dilation),
            call.params_of(&[input.dims(), input.stride()])?,
            Arg::Address(call.sources[0].address),
            Arg::Address(patches),
        ];
        call.launch_all(&call.kernel("im2col"), &kernels::CONV, for_each(&call, count)?, &args)
    })
}

/// The product of the patches, which `lay_out` writes, with the kernel. Both have `size` numbers for each channel.
fn run(call: Call<'_>, size: usize, pixels: usize, lay_out: impl FnOnce(u64) -> Result<()>) -> Result<()> {
    let kernel = call.sources[1];
    let (batch, channels) = (call.out.layout.dims()[0], call.out.layout.dims()[1]);
    let patch_len = kernel.layout.dims()[1] * size;
    let rows = batch * pixels;
    let contiguous = kernel.layout.is_contiguous();
    let kernel_len = if contiguous { 0 } else { kernel.len() };
    let element_bytes = call.out.dtype.size_in_bytes();
    let [products_at, kernel_at, end] =
        places([rows * patch_len, rows * channels, kernel_len], element_bytes);
    let scratch = call.scratch(end)?;
    let stream = call.device.cuda_stream();
    let (patches, _used) = scratch.device_ptr(&stream);
    let (products, copy) = (patches + products_at as u64, patches + kernel_at as u64);

    lay_out(patches)?;
    let in_order = Layout::contiguous(kernel.layout.shape().clone());
    if !contiguous {
        strided(&call, kernel, View { address: copy, layout: &in_order, ..kernel })?;
    }
    let kernel = if contiguous { kernel.address } else { copy };
    Products {
        batch: 1,
        m: rows,
        n: channels,
        k: patch_len,
        lhs: Matrices { address: patches, row_stride: patch_len, column_stride: 1, step: rows * patch_len },
        rhs: Matrices {
            address: kernel,
            row_stride: 1,
            column_stride: patch_len,
            step: patch_len * channels,
        },
        out: products,
        alpha: 1.0,
        beta: 0.0,
    }
    .run(&call)?;
    // A group's images do not follow each other.
    let (images, image_count) = if call.out.layout.is_contiguous() { (batch, 1) } else { (1, batch) };
    let shape = Shape::from(vec![images, channels, pixels]);
    let transposed = Layout::new(shape, vec![pixels * channels, 1, channels], 0);
    let all = View { address: products, layout: &transposed, ..call.out };
    for image in 0..image_count {
        let from = View { address: all.address_of(image * pixels * channels), ..all };
        let to = View { address: call.out.address_of(image * call.out.layout.stride()[0]), ..call.out };
        strided(&call, from, to)?;
    }
    Ok(())
}

/// Where each of some arrays ends and the next begins, in bytes. Each begins where an allocation of its own would: cuBLAS
/// chooses by alignment, too.
fn places(lens: [usize; 3], element_bytes: usize) -> [usize; 3] {
    let mut end = 0;
    lens.map(|len| {
        end += (len * element_bytes).next_multiple_of(512);
        end
    })
}
