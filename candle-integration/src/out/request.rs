//! What is asked for: the result's shape and format, and the sources as the operation reads them.

use candle_core::layout::LayoutRelation;
use candle_core::shape::{Dim, Dims};
use candle_core::{DType, Shape, Tensor};

use super::check::{check, expect_dtype, run};
use super::locks;
use super::op::{Binary, Conv, Matmul, Op, Unary};
use crate::error::{Error, Result};

pub(super) fn unary(unary: Unary, x: &Tensor, out: &Tensor) -> Result<()> {
    of_one(&Op::Unary(unary), x, out)
}

/// An operation whose result is as its source.
pub(super) fn of_one(op: &Op, x: &Tensor, out: &Tensor) -> Result<()> {
    run(op, &[x], x.dims(), x.dtype(), out)
}

/// A source in the output's format, whatever its own.
pub(super) fn cast(name: &'static str, x: &Tensor, dtype: DType, out: &Tensor) -> Result<()> {
    run(&Op::Cast(name), &[x], x.dims(), dtype, out)
}

pub(super) fn binary(binary: Binary, left: &Tensor, right: &Tensor, out: &Tensor) -> Result<()> {
    let op = Op::Binary(binary);
    let shape = common_shape(op.name(), &[left.dims(), right.dims()])?;
    expect_dtype(op.name(), 1, right, left.dtype())?;
    let (left, right) = (broadcast(op.name(), left, &shape)?, broadcast(op.name(), right, &shape)?);
    run(&op, &[&left, &right], &shape, left.dtype(), out)
}

pub(super) fn fill(value: f64, out: &Tensor) -> Result<()> {
    run(&Op::Fill(value), &[], out.dims(), out.dtype(), out)
}

pub(super) fn where_cond(choice: &Tensor, yes: &Tensor, no: &Tensor, out: &Tensor) -> Result<()> {
    let op = Op::WhereCond;
    let shape = common_shape(op.name(), &[choice.dims(), yes.dims(), no.dims()])?;
    expect_index(op.name(), choice)?;
    expect_dtype(op.name(), 2, no, yes.dtype())?;
    let broadcast = |tensor| broadcast(op.name(), tensor, &shape);
    let (choice, yes, no) = (broadcast(choice)?, broadcast(yes)?, broadcast(no)?);
    run(&op, &[&choice, &yes, &no], &shape, yes.dtype(), out)
}

pub(super) fn matmul(left: &Tensor, right: &Tensor, alpha: f64, beta: f64, out: &Tensor) -> Result<()> {
    let op = |fold| Op::Matmul(Matmul { alpha, beta, fold });
    let name = op(true).name();
    let refused = |reason| shapes_error(name, &[left, right], reason);
    let (Some((left_batch, [m, k])), Some((right_batch, [inner, n]))) =
        (left.dims().split_last_chunk::<2>(), right.dims().split_last_chunk::<2>())
    else {
        return Err(refused("a matrix has two dimensions"));
    };
    if k != inner {
        return Err(refused("the left rows are not as long as the right columns"));
    }
    expect_dtype(name, 1, right, left.dtype())?;
    let batch = common_shape(name, &[left_batch, right_batch])
        .map_err(|_| refused("the leading dimensions do not broadcast"))?;
    let with = |last: [&usize; 2]| batch.iter().chain(last).copied().collect::<Vec<usize>>();
    let shape = with([m, n]);
    if *k == 0 {
        // There is nothing to add up.
        check(&op(true), &[left, right], &shape, left.dtype(), out)?;
        return if beta == 0.0 {
            fill(0.0, out)
        } else {
            of_one(&Op::Affine { mul: beta, add: 0.0 }, out, out)
        };
    }
    // As `Tensor::matmul`, and as `Tensor::broadcast_matmul` where the leading dimensions differ.
    if left_batch == batch && right_batch.is_empty() && left.is_contiguous() && out.is_contiguous() {
        check(&op(true), &[left, right], &shape, left.dtype(), out)?;
        let rows: usize = batch.iter().product::<usize>() * m;
        let flat = |tensor: &Tensor, len| tensor.reshape((rows, len)).map_err(|error| failed(name, &error));
        let (left, out) = (flat(left, *k)?, flat(out, *n)?);
        return run(&op(true), &[&left, right], &[rows, *n], left.dtype(), &out);
    }
    let fold = left_batch == right_batch;
    let left = broadcast(name, left, &with([m, k]))?;
    let right = broadcast(name, right, &with([k, n]))?;
    run(&op(fold), &[&left, &right], &shape, left.dtype(), out)
}

/// A sum, or a mean.
pub(super) fn sum<D: Dims>(x: &Tensor, dims: D, mean: bool, out: &Tensor) -> Result<()> {
    let name = Op::Sum { dims: Vec::new(), scale: mean.then_some(1.0) }.name();
    let dims = dims.to_indexes(x.shape(), name).map_err(|error| dimension_error(name, x, &error))?;
    let count: usize = dims.iter().map(|&dim| x.dims()[dim]).product();
    let shape = reduced(x, &dims, out);
    let op = Op::Sum { dims, scale: mean.then(|| 1.0 / count as f64) };
    run(&op, &[x], &shape, x.dtype(), out)
}

pub(super) fn extreme<D: Dim>(x: &Tensor, dim: D, greatest: bool, out: &Tensor) -> Result<()> {
    let name = Op::Extreme { dim: 0, greatest }.name();
    let dim = dimension(name, x, dim)?;
    if x.dims()[dim] == 0 {
        return Err(shapes_error(name, &[x], "there is no extreme of nothing"));
    }
    let shape = reduced(x, &[dim], out);
    run(&Op::Extreme { dim, greatest }, &[x], &shape, x.dtype(), out)
}

pub(super) fn softmax(x: &Tensor, out: &Tensor) -> Result<()> {
    if x.rank() == 0 {
        return Err(shapes_error(Op::Softmax.name(), &[x], "there is no last dimension"));
    }
    of_one(&Op::Softmax, x, out)
}

/// A norm of rows, with weight and perhaps bias.
pub(super) fn norm(op: &Op, x: &Tensor, vectors: &[&Tensor], out: &Tensor) -> Result<()> {
    let sources: Vec<&Tensor> = std::iter::once(x).chain(vectors.iter().copied()).collect();
    for (index, vector) in vectors.iter().enumerate() {
        if x.rank() == 0 || vector.dims() != &x.dims()[x.rank() - 1..] {
            return Err(shapes_error(
                op.name(),
                &sources,
                "weight and bias are not as long as the last dimension",
            ));
        }
        expect_dtype(op.name(), index + 1, vector, x.dtype())?;
    }
    run(op, &sources, x.dims(), x.dtype(), out)
}

pub(super) fn rope(x: &Tensor, cos: &Tensor, sin: &Tensor, out: &Tensor) -> Result<()> {
    let name = Op::Rope.name();
    let refused = |reason| shapes_error(name, &[x, cos, sin], reason);
    let &[batch, _, steps, dim] = x.dims() else {
        return Err(refused("the first source has the dimensions batch, heads, steps and head size"));
    };
    for (index, table) in [cos, sin].into_iter().enumerate() {
        let (table_steps, half) = match *table.dims() {
            [steps, half] => (steps, half),
            [tables, steps, half] if tables == batch => (steps, half),
            _ => return Err(refused("cosines and sines are of (steps, half) or (batch, steps, half)")),
        };
        if half * 2 != dim || table_steps < steps {
            return Err(refused(
                "there are not as many cosines and sines as steps and halves of the head size",
            ));
        }
        expect_dtype(name, index + 1, table, x.dtype())?;
    }
    run(&Op::Rope, &[x, cos, sin], x.dims(), x.dtype(), out)
}

/// The sources one after the other along `dim`. Each is written under a lock of its own; what can be refused is
/// refused before the first is.
pub(super) fn cat<D: Dim>(sources: &[&Tensor], dim: D, out: &Tensor) -> Result<()> {
    let op = Op::Cast("cat_out");
    let name = op.name();
    let Some((first, rest)) = sources.split_first() else {
        return Err(shapes_error(name, &[], "there is nothing to put together"));
    };
    let dim = dimension(name, first, dim)?;
    let mut shape = first.dims().to_vec();
    for (index, source) in rest.iter().enumerate() {
        let others =
            |dims: &[usize]| dims.iter().enumerate().filter(|&(k, _)| k != dim).map(|(_, d)| *d).collect();
        let (these, those): (Vec<usize>, Vec<usize>) = (others(source.dims()), others(first.dims()));
        if these != those || source.rank() != first.rank() {
            return Err(shapes_error(name, sources, "only one dimension may differ"));
        }
        expect_dtype(name, index + 1, source, first.dtype())?;
        let Some(sum) = shape[dim].checked_add(source.dims()[dim]) else {
            return Err(shapes_error(name, sources, "the sum of lengths cannot be counted"));
        };
        shape[dim] = sum;
    }
    check(&op, &[], &shape, first.dtype(), out)?;
    let mut parts = Vec::with_capacity(sources.len());
    let mut start = 0;
    for (source_index, source) in sources.iter().enumerate() {
        let part = out.narrow(dim, start, source.dims()[dim]).map_err(|error| failed(name, &error))?;
        start += source.dims()[dim];
        check(&op, &[source], source.dims(), first.dtype(), &part)
            .map_err(|error| at(error, source_index))?;
        // A source may be its own part of the output, and must not lie in another's.
        let shares = locks::key(source) == locks::key(out);
        let apart = out.layout().relation(source.layout()) == LayoutRelation::Disjoint;
        if shares && !apart && part.layout() != source.layout() {
            return Err(Error::Aliased { op: name, source_index });
        }
        parts.push(part);
    }
    for (source, part) in sources.iter().zip(&parts) {
        run(&op, &[source], source.dims(), first.dtype(), part)?;
    }
    Ok(())
}

pub(super) fn index_select<D: Dim>(x: &Tensor, ids: &Tensor, dim: D, out: &Tensor) -> Result<()> {
    let name = Op::IndexSelect { dim: 0 }.name();
    let dim = dimension(name, x, dim)?;
    let &[count] = ids.dims() else {
        return Err(shapes_error(name, &[x, ids], "indices have one dimension"));
    };
    expect_index(name, ids)?;
    let mut shape = x.dims().to_vec();
    shape[dim] = count;
    run(&Op::IndexSelect { dim }, &[x, ids], &shape, x.dtype(), out)
}

pub(super) fn gather<D: Dim>(x: &Tensor, ids: &Tensor, dim: D, out: &Tensor) -> Result<()> {
    let name = Op::Gather { dim: 0 }.name();
    let dim = dimension(name, x, dim)?;
    let fits = x.rank() == ids.rank();
    let fits =
        fits && x.dims().iter().zip(ids.dims()).enumerate().all(|(k, (have, ask))| k == dim || have >= ask);
    if !fits {
        return Err(shapes_error(
            name,
            &[x, ids],
            "the indices' other dimensions are not within the source's",
        ));
    }
    expect_index(name, ids)?;
    run(&Op::Gather { dim }, &[x, ids], ids.dims(), x.dtype(), out)
}

/// A convolution in one or two dimensions, in groups of channels. Each group is written under a lock of its own; what
/// can be refused is refused before the first is.
pub(super) fn conv(
    op: &Op,
    conv: &Conv,
    groups: usize,
    x: &Tensor,
    kernel: &Tensor,
    out: &Tensor,
) -> Result<()> {
    let name = op.name();
    let refused = |reason| shapes_error(name, &[x, kernel], reason);
    let rank = if matches!(op, Op::Conv1d(_)) { 3 } else { 4 };
    if x.rank() != rank || kernel.rank() != rank {
        return Err(refused(
            "input and kernel have a dimension for batch or channels, one for channels, and those of space",
        ));
    }
    if groups == 0
        || x.dims()[1] == 0
        || kernel.dims()[1].checked_mul(groups) != Some(x.dims()[1])
        || !kernel.dims()[0].is_multiple_of(groups)
    {
        return Err(refused("the channels do not fit the kernel and the groups"));
    }
    expect_dtype(name, 1, kernel, x.dtype())?;
    let mut shape = vec![x.dims()[0], kernel.dims()[0]];
    for (&len, &size) in x.dims()[2..].iter().zip(&kernel.dims()[2..]) {
        let covered = size.checked_sub(1).and_then(|last| last.checked_mul(conv.dilation)?.checked_add(1));
        let padded = conv.padding.checked_mul(2).and_then(|padding| padding.checked_add(len));
        let steps = padded.zip(covered).and_then(|(padded, covered)| padded.checked_sub(covered));
        match steps.and_then(|steps| steps.checked_div(conv.stride)) {
            Some(steps) => shape.push(steps + 1),
            None if conv.stride == 0 => return Err(refused("the stride is zero")),
            None => return Err(refused("the kernel does not fit into the padded input")),
        }
    }
    check(op, &[x, kernel], &shape, x.dtype(), out)?;
    let (inputs, outputs) = (x.dims()[1] / groups, kernel.dims()[0] / groups);
    for group in 0..groups {
        let part = |tensor: &Tensor, dim, len: usize| {
            tensor.narrow(dim, group * len, len).map_err(|error| failed(name, &error))
        };
        let (x, kernel, out) = (part(x, 1, inputs)?, part(kernel, 0, outputs)?, part(out, 1, outputs)?);
        run(op, &[&x, &kernel], out.dims(), x.dtype(), &out)?;
    }
    Ok(())
}

/// The shape that all `shapes` broadcast to.
fn common_shape(op: &'static str, shapes: &[&[usize]]) -> Result<Vec<usize>> {
    let rank = shapes.iter().map(|shape| shape.len()).max().unwrap_or(0);
    let mut common = vec![1; rank];
    for shape in shapes {
        for (to, &dim) in common[rank - shape.len()..].iter_mut().zip(*shape) {
            match *to {
                1 => *to = dim,
                to if to == dim || dim == 1 => {}
                _ => {
                    let shapes = shapes.iter().map(|shape| shape.to_vec()).collect();
                    return Err(Error::Shapes { op, shapes, reason: "they do not broadcast" });
                }
            }
        }
    }
    Ok(common)
}

fn broadcast(op: &'static str, tensor: &Tensor, shape: &[usize]) -> Result<Tensor> {
    tensor.broadcast_as(Shape::from(shape)).map_err(|error| failed(op, &error))
}

/// The shape of a reduction over `dims`, with ones where `out` has them.
fn reduced(x: &Tensor, dims: &[usize], out: &Tensor) -> Vec<usize> {
    let numbered = || x.dims().iter().copied().enumerate();
    let kept: Vec<usize> = numbered().map(|(k, dim)| if dims.contains(&k) { 1 } else { dim }).collect();
    if out.dims() == kept {
        return kept;
    }
    numbered().filter(|(k, _)| !dims.contains(k)).map(|(_, dim)| dim).collect()
}

fn dimension<D: Dim>(op: &'static str, x: &Tensor, dim: D) -> Result<usize> {
    dim.to_index(x.shape(), op).map_err(|error| dimension_error(op, x, &error))
}

fn dimension_error(op: &'static str, x: &Tensor, error: &candle_core::Error) -> Error {
    Error::Dimension { op, shape: x.dims().to_vec(), message: error.to_string() }
}

fn expect_index(op: &'static str, ids: &Tensor) -> Result<()> {
    match ids.dtype() {
        DType::U8 | DType::U32 | DType::I64 => Ok(()),
        dtype => Err(Error::UnsupportedDType { op, dtype }),
    }
}

fn shapes_error(op: &'static str, sources: &[&Tensor], reason: &'static str) -> Error {
    Error::Shapes { op, shapes: sources.iter().map(|source| source.dims().to_vec()).collect(), reason }
}

fn failed(op: &'static str, error: &candle_core::Error) -> Error {
    Error::Failed { op, message: error.to_string() }
}

/// The error with the number of the source among all.
fn at(error: Error, index: usize) -> Error {
    match error {
        Error::Aliased { op, .. } => Error::Aliased { op, source_index: index },
        Error::Tracked { op, .. } => Error::Tracked { op, operand: format!("source {index}") },
        error => error,
    }
}
