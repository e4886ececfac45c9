//! Convolutions, with candle's calls of gemm, whose results go to their places in the output.
//!
//! candle lays out all patches of the input, and all results a second time. Here it is a tile of them for each thread,
//! and the kernel where its order has to change. This scratch does not grow with the output.

use candle_core::{CpuStorage, DType};
use rayon::prelude::*;

use super::elem::FloatElem;
use super::matmul::product;
use super::operands::{Beside, Output, Strided};
use super::primitives::{Matrix, Size, matmul};
use crate::error::{Error, Result};
use crate::out::check::Operand;
use crate::out::op::Conv;

/// Pixels of candle's tile of a convolution in two dimensions.
const TILE: usize = 512;

/// Input of shape `(batch, in, length)`, kernel of `(out, in, size)`.
pub(super) fn conv1d<T: FloatElem>(
    op: &'static str,
    conv: &Conv,
    out: Output<'_, T>,
    beside: &Beside<'_, T>,
    sources: &[Operand<'_, CpuStorage>],
) -> Result<()> {
    let (input, kernel) = (beside.apart(op, &sources[0])?, beside.apart(op, &sources[1])?);
    let shape = Convolution {
        conv,
        input: [input.layout.dims()[1], 1, input.layout.dims()[2]],
        input_strides: [input.layout.stride()[0], input.layout.stride()[1], 0, input.layout.stride()[2]],
        kernel: [kernel.layout.dims()[0], 1, kernel.layout.dims()[2]],
        output: [1, out.layout.dims()[2]],
        flat: true,
    };
    rows_of_patches(&shape, out, &input, &kernel);
    Ok(())
}

/// Input of shape `(batch, in, height, width)`, kernel of `(out, in, height, width)`.
pub(super) fn conv2d<T: FloatElem>(
    op: &'static str,
    conv: &Conv,
    out: Output<'_, T>,
    beside: &Beside<'_, T>,
    sources: &[Operand<'_, CpuStorage>],
) -> Result<()> {
    if T::DTYPE == DType::BF16 {
        return Err(Error::UnsupportedDType { op, dtype: DType::BF16 });
    }
    let (input, kernel) = (beside.apart(op, &sources[0])?, beside.apart(op, &sources[1])?);
    let (dims, kernel_dims) = (input.layout.dims(), kernel.layout.dims());
    let shape = Convolution {
        conv,
        input: [dims[1], dims[2], dims[3]],
        input_strides: std::array::from_fn(|k| input.layout.stride()[k]),
        kernel: [kernel_dims[0], kernel_dims[2], kernel_dims[3]],
        output: [out.layout.dims()[2], out.layout.dims()[3]],
        flat: false,
    };
    match shape.kernel {
        [_, 1, 1] if *conv == (Conv { padding: 0, stride: 1, dilation: 1 }) => {
            pixel_by_pixel(&shape, out, &input, &kernel);
        }
        [_, 1, 1] => rows_of_patches(&shape, out, &input, &kernel),
        _ => tiles(&shape, out, &input, &kernel),
    }
    Ok(())
}

/// Sizes of a convolution in two dimensions, or in one that is the second.
struct Convolution<'a> {
    conv: &'a Conv,
    /// Channels, height, width.
    input: [usize; 3],
    input_strides: [usize; 4],
    /// Output channels, height, width.
    kernel: [usize; 3],
    output: [usize; 2],
    /// Whether the height does not count: it has neither stride nor padding.
    flat: bool,
}

impl Convolution<'_> {
    fn pixels(&self) -> usize {
        self.output[0] * self.output[1]
    }

    /// The numbers in a patch.
    fn patch_len(&self) -> usize {
        self.input[0] * self.kernel[1] * self.kernel[2]
    }

    /// A number of a patch: which channel, and where from the patch's corner.
    fn tap(&self, channel: usize, y: usize, x: usize) -> Tap {
        let Conv { dilation, .. } = *self.conv;
        Tap { channel: channel * self.input_strides[1], row: y * dilation, column: x * dilation }
    }

    /// The corner of an output pixel's patch, in the padded input.
    fn corner(&self, pixel: usize) -> (usize, usize) {
        let Conv { stride, .. } = *self.conv;
        (pixel / self.output[1] * stride, pixel % self.output[1] * stride)
    }

    /// Where in an image a number of a patch is, unless it is padding.
    fn place(&self, (row, column): (usize, usize), tap: &Tap) -> Option<usize> {
        let Conv { padding, .. } = *self.conv;
        let row = if self.flat { 0 } else { (row + tap.row).checked_sub(padding)? };
        let column = (column + tap.column).checked_sub(padding)?;
        let inside = row < self.input[1] && column < self.input[2];
        inside.then_some(tap.channel + row * self.input_strides[2] + column * self.input_strides[3])
    }
}

/// See [`Convolution::tap`].
struct Tap {
    channel: usize,
    row: usize,
    column: usize,
}

/// The product of patches as rows with the kernel, for convolutions that candle computes so. A tile has so many rows
/// that gemm computes each as it would in the whole: it treats products with few rows in ways of their own.
fn rows_of_patches<T: FloatElem>(
    shape: &Convolution<'_>,
    out: Output<'_, T>,
    input: &Strided<'_, T>,
    kernel: &Strided<'_, T>,
) {
    let ([channels, height, width], pixels) = (shape.kernel, shape.pixels());
    let (patch_len, rows) = (shape.patch_len(), out.layout.dims()[0] * pixels);
    let kernel = kernel.in_order();
    let taps: Vec<Tap> =
        (0..patch_len).map(|k| shape.tap(k / (height * width), k / width % height, k % width)).collect();
    let tile_len = rows.min(2 * TILE - 1);
    let mut patches = vec![T::zero(); tile_len * patch_len];
    let mut products = vec![T::zero(); tile_len * channels];
    let image_stride = out.layout.stride()[0];
    let mut start = 0;
    while start < rows {
        let len = if rows - start < 2 * TILE { rows - start } else { TILE };
        patches[..len * patch_len].par_chunks_exact_mut(patch_len).enumerate().for_each(|(row, patch)| {
            let (image, pixel) = ((start + row) / pixels, (start + row) % pixels);
            let image = &input.numbers[input.layout.start_offset() + image * shape.input_strides[0]..];
            let corner = shape.corner(pixel);
            for (number, tap) in patch.iter_mut().zip(&taps) {
                *number = shape.place(corner, tap).map_or(T::zero(), |place| image[place]);
            }
        });
        let lhs = Matrix { numbers: &patches, row_stride: patch_len, column_stride: 1 };
        let rhs = Matrix { numbers: &kernel, row_stride: 1, column_stride: patch_len };
        let size = Size { m: len, n: channels, k: patch_len };
        product(size, &mut products[..len * channels], lhs, rhs, (T::one(), T::zero()));
        for (row, numbers) in (start..start + len).zip(products.chunks_exact(channels)) {
            let first = row / pixels * image_stride + row % pixels;
            for (channel, &number) in numbers.iter().enumerate() {
                out.numbers[first + channel * pixels] = number;
            }
        }
        start += len;
    }
}

/// One product for each image, whose pixels are the patches.
fn pixel_by_pixel<T: FloatElem>(
    shape: &Convolution<'_>,
    out: Output<'_, T>,
    input: &Strided<'_, T>,
    kernel: &Strided<'_, T>,
) {
    let ([channels, ..], [inputs, ..], pixels) = (shape.kernel, shape.input, shape.pixels());
    let kernel = kernel.in_order();
    let size = Size { m: channels, n: pixels, k: inputs };
    for_images(out, |image, out| {
        let layout = input.layout.narrow(0, image, 1).expect("an image");
        let numbers = Strided { numbers: input.numbers, layout }.in_order();
        let lhs = Matrix { numbers: &kernel, row_stride: inputs, column_stride: 1 };
        let rhs = Matrix { numbers: &numbers, row_stride: pixels, column_stride: 1 };
        matmul(size, (out, pixels), lhs, rhs, (T::one(), T::zero()));
    });
}

/// The kernel, channels last, times patches as columns, in candle's tiles.
fn tiles<T: FloatElem>(
    shape: &Convolution<'_>,
    out: Output<'_, T>,
    input: &Strided<'_, T>,
    kernel: &Strided<'_, T>,
) {
    let ([channels, _, width], [inputs, ..]) = (shape.kernel, shape.input);
    let (patch_len, pixels) = (shape.patch_len(), shape.pixels());
    let layout = kernel.layout.permute(&[0, 2, 3, 1]).expect("a kernel has four dimensions");
    let kernel = Strided { numbers: kernel.numbers, layout }.in_order();
    for_images(out, |image, out| {
        let image = &input.numbers[input.layout.start_offset() + image * shape.input_strides[0]..];
        let mut patches = vec![T::zero(); patch_len * pixels.min(TILE)];
        for start in (0..pixels).step_by(TILE) {
            let len = TILE.min(pixels - start);
            let corners: Vec<(usize, usize)> =
                (start..start + len).map(|pixel| shape.corner(pixel)).collect();
            let patches = &mut patches[..patch_len * len];
            patches.par_chunks_exact_mut(len).enumerate().for_each(|(row, numbers)| {
                let tap = shape.tap(row % inputs, row / inputs / width, row / inputs % width);
                for (number, &corner) in numbers.iter_mut().zip(&corners) {
                    *number = shape.place(corner, &tap).map_or(T::zero(), |place| image[place]);
                }
            });
            let size = Size { m: channels, n: len, k: patch_len };
            let lhs = Matrix { numbers: &kernel, row_stride: patch_len, column_stride: 1 };
            let rhs = Matrix { numbers: patches, row_stride: len, column_stride: 1 };
            if len > 1 {
                matmul(size, (&mut out[start..], pixels), lhs, rhs, (T::one(), T::zero()));
                continue;
            }
            // gemm takes another way when the rows of a product of one column follow each other, as candle's do.
            let mut column = vec![T::zero(); channels];
            matmul(size, (&mut column, 1), lhs, rhs, (T::one(), T::zero()));
            for (channel, number) in column.into_iter().enumerate() {
                out[start + channel * pixels] = number;
            }
        }
    });
}

/// `f` on each image of the output, on several threads as in candle.
fn for_images<T: FloatElem>(out: Output<'_, T>, f: impl Fn(usize, &mut [T]) + Send + Sync) {
    let count = out.layout.dims()[0];
    if count == 1 {
        return f(0, out.numbers); // its stride may be anything
    }
    out.numbers.par_chunks_mut(out.layout.stride()[0]).enumerate().for_each(|(image, out)| f(image, out));
}
