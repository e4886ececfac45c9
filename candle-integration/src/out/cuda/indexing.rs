//! Numbers by index. An index beyond the end stops candle's kernels, and with them the use of the device.

use candle_core::cuda_backend::kernels;

use super::Call;
use super::launch::{Arg, for_each};
use crate::error::Result;
use crate::out::check::layout_error;

/// Slices of the first source along `dim`, one for each index.
pub(super) fn select(call: Call<'_>, dim: usize) -> Result<()> {
    let (source, ids) = (call.sources[0], call.sources[1]);
    let dims = source.layout.dims();
    if !ids.layout.is_contiguous() {
        // The kernel does not look at their strides.
        return Err(layout_error(call.op.name(), "source 1".to_owned(), "contiguous on CUDA", ids.layout));
    }
    let args = [
        Arg::Count(call.out.len()),
        Arg::Count(ids.rank()),
        call.params_of(&[ids.layout.dims(), ids.layout.stride()])?,
        Arg::Address(ids.address),
        Arg::Address(source.address),
        Arg::Address(call.out.address),
        Arg::Count(dims[..dim].iter().product()),
        Arg::Count(dims[dim]),
        Arg::Count(ids.len()),
        Arg::Count(dims[dim + 1..].iter().product()),
    ];
    let kernel = call.kernel(&format!("is_{}", ids.dtype.as_str()));
    call.launch_all(&kernel, &kernels::INDEXING, for_each(&call, call.out.len())?, &args)
}

/// For each number of the output the one whose place along `dim` the index says.
pub(super) fn gather(call: Call<'_>, dim: usize) -> Result<()> {
    let (source, ids) = (call.sources[0], call.sources[1]);
    let dims = source.layout.dims();
    let args = [
        Arg::Count(ids.len()),
        Arg::Address(ids.address),
        Arg::Address(source.address),
        Arg::Address(call.out.address),
        Arg::Count(dims[..dim].iter().product()),
        Arg::Count(dims[dim]),
        Arg::Count(ids.layout.dims()[dim]),
        Arg::Count(dims[dim + 1..].iter().product()),
    ];
    let kernel = call.kernel(&format!("gather_{}", ids.dtype.as_str()));
    call.launch_all(&kernel, &kernels::INDEXING, for_each(&call, ids.len())?, &args)
}
