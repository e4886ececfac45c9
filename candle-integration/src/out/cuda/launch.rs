//! Launches of candle's kernels, and scratch for them.
#![allow(unsafe_code)] // listed in ARCHITECTURE.md

use candle_core::cuda_backend::cudarc::driver::{CudaSlice, LaunchConfig, PushKernelArg};
use candle_core::cuda_backend::{SlicePtrOrNull, kernels};
use candle_core::scalar::Scalar;
use candle_core::{DType, Layout, WithDType};
use half::{bf16, f16};

use super::Call;
use crate::error::Result;
use crate::out::check::layout_error;

/// An argument of a kernel.
pub(super) enum Arg {
    /// Of a tensor.
    Address(u64),
    /// A `size_t`.
    Count(usize),
    /// An `int`.
    Int(i32),
    /// A `uint32_t`.
    Word(u32),
    /// A `float`.
    Single(f32),
    /// A number in the tensors' format.
    Number(Scalar),
    /// Dimensions and strides, in device memory.
    Params(SlicePtrOrNull<usize>),
}

impl Arg {
    /// `value` in the tensors' format, if out-operations know it.
    pub(super) fn number(dtype: DType, value: f64) -> Option<Self> {
        Some(Self::Number(match dtype {
            DType::U8 => Scalar::U8(u8::from_f64(value)),
            DType::U32 => Scalar::U32(u32::from_f64(value)),
            DType::I64 => Scalar::I64(i64::from_f64(value)),
            DType::BF16 => Scalar::BF16(bf16::from_f64(value)),
            DType::F16 => Scalar::F16(f16::from_f64(value)),
            DType::F32 => Scalar::F32(f32::from_f64(value)),
            DType::F64 => Scalar::F64(value),
            _ => return None,
        }))
    }

    /// What kernels get instead of dimensions and strides when all is contiguous.
    pub(super) fn no_params() -> Self {
        Self::Params(SlicePtrOrNull::Null)
    }
}

/// A thread for each of `len` numbers, which kernels count in 32 bits.
pub(super) fn for_each(call: &Call<'_>, len: usize) -> Result<LaunchConfig> {
    match u32::try_from(len) {
        Ok(len) => Ok(LaunchConfig::for_num_elems(len)),
        Err(_) => {
            let requirement = "of fewer than 2^32 elements";
            Err(layout_error(call.op.name(), "the output".to_owned(), requirement, call.out.layout))
        }
    }
}

impl Call<'_> {
    /// A tensor's dimensions and strides for a kernel, nothing where it is contiguous.
    pub(super) fn params(&self, layout: &Layout) -> Result<Arg> {
        if layout.is_contiguous() {
            Ok(Arg::no_params())
        } else {
            self.params_of(&[layout.dims(), layout.stride()])
        }
    }

    /// Dimensions and strides for a kernel.
    pub(super) fn params_of(&self, params: &[&[usize]]) -> Result<Arg> {
        let made = SlicePtrOrNull::params_from_vec(self.device, params.concat());
        made.map(Arg::Params).map_err(|error| self.failed(&error))
    }

    /// Memory of the current pool, with anything in it.
    pub(super) fn scratch(&self, bytes: usize) -> Result<CudaSlice<u8>> {
        // SAFETY: bytes of any value are bytes, and whoever asked writes before it reads.
        let scratch = unsafe { self.device.alloc::<u8>(bytes) };
        scratch.map_err(|error| self.failed(&error))
    }

    /// As [`launch`](Self::launch).
    pub(super) fn launch_all(
        &self,
        name: &str,
        module: &kernels::Module,
        config: LaunchConfig,
        args: &[Arg],
    ) -> Result<()> {
        self.launch(name, module, config, &args.iter().collect::<Vec<_>>())
    }

    /// Queues a kernel. The arguments have to be those of the kernel: numbers in its format, addresses of tensors that
    /// are at least as large as the counts and strides say.
    pub(super) fn launch(
        &self,
        name: &str,
        module: &kernels::Module,
        config: LaunchConfig,
        args: &[&Arg],
    ) -> Result<()> {
        let function = self.device.get_or_load_func(name, module).map_err(|error| {
            // The module has no kernel for the format.
            let missing = error.to_string().contains("NOT_FOUND");
            if missing { self.unsupported(self.out.dtype) } else { self.failed(&error) }
        })?;
        let mut builder = function.builder();
        for arg in args {
            match arg {
                Arg::Address(address) => builder.arg(address),
                Arg::Count(count) => builder.arg(count),
                Arg::Int(int) => builder.arg(int),
                Arg::Word(word) => builder.arg(word),
                Arg::Single(single) => builder.arg(single),
                Arg::Number(number) => {
                    number.builder_arg(&mut builder);
                    continue;
                }
                Arg::Params(params) => {
                    params.builder_arg(&mut builder);
                    continue;
                }
            };
        }
        // SAFETY: one of candle's kernels, with the arguments that candle launches it with, on tensors whose shapes,
        // formats and layouts were checked, which lie in their storages, and these are locked and ordered in this stream.
        let launched = unsafe { builder.launch(config) };
        launched.map(|_| ()).map_err(|error| self.failed(&error))
    }
}
