//! Optimizers that update variables and what they keep of them in place.
//!
//! A variable's numbers change under everybody who holds it, as with candle's own optimizers. Each update has the bits of
//! `candle_nn`'s. On CPU a step is one pass; elsewhere, and for AdamW on tensors that do not lie contiguous, it is the same
//! chain of operations as in `candle_nn`, between two tensors that are allocated once.

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor, Var};

use super::cpu;
use super::locks::{self, StorageMut, StorageRef};
use super::op::{AdamWStep, Op};
use super::{TensorOut, check};
use crate::error::{Error, Result};

/// Stochastic gradient descent without momentum: `x -= lr * gradient`.
#[derive(Debug)]
pub struct Sgd {
    vars: Vec<Var>,
    learning_rate: f64,
    scratch: Scratch,
}

impl Sgd {
    /// For those of `vars` that have fractions.
    #[must_use]
    pub fn new(vars: Vec<Var>, learning_rate: f64) -> Self {
        let vars = vars.into_iter().filter(|var| var.dtype().is_float()).collect();
        Self { vars, learning_rate, scratch: Scratch::default() }
    }

    /// The factor of the gradient.
    #[must_use]
    pub fn learning_rate(&self) -> f64 {
        self.learning_rate
    }

    /// Changes the factor of the gradient.
    pub fn set_learning_rate(&mut self, learning_rate: f64) {
        self.learning_rate = learning_rate;
    }

    /// Updates each variable that has a gradient.
    ///
    /// # Errors
    /// See [`TensorOut`]; [`Error::Failed`] when there is no memory for the scratch of the first steps.
    pub fn step(&mut self, gradients: &GradStore) -> Result<()> {
        for var in &self.vars {
            let Some(gradient) = gradients.get(var) else { continue };
            let (var, gradient) = (var.as_detached_tensor(), gradient.detach());
            if matches!(var.device(), Device::Cpu) {
                let op = Op::Descend { factor: self.learning_rate };
                check::run(&op, &[&var, &gradient], gradient.dims(), gradient.dtype(), &var)?;
                continue;
            }
            let [scaled, _] = self.scratch.like(&var)?;
            gradient.affine_out(self.learning_rate, 0.0, &scaled)?;
            var.sub_out(&scaled, &var)?;
        }
        Ok(())
    }
}

/// Parameters of AdamW, with the defaults of `candle_nn::ParamsAdamW`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamWParams {
    /// Learning rate; 0.001.
    pub lr: f64,
    /// What is kept of the mean of gradients; 0.9.
    pub beta1: f64,
    /// What is kept of the mean of squared gradients; 0.999.
    pub beta2: f64,
    /// Added to the root of the latter; 1e-8.
    pub eps: f64,
    /// Share of the variable that is taken off, times `lr`; 0.01.
    pub weight_decay: f64,
}

impl Default for AdamWParams {
    fn default() -> Self {
        Self { lr: 0.001, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 }
    }
}

/// AdamW, with the formula of `candle_nn::AdamW` ([Loshchilov and Hutter](https://arxiv.org/abs/1711.05101)).
///
/// ```
/// use candle_core::{DType, Device, Var};
/// use candle_mempool::{AdamW, AdamWParams};
///
/// # fn main() -> candle_core::Result<()> {
/// let x = Var::new(&[3_f32, -2.], &Device::Cpu)?;
/// let mut optimizer = AdamW::new(vec![x.clone()], AdamWParams { lr: 0.1, ..AdamWParams::default() })?;
/// for _ in 0..100 {
///     optimizer.step(&x.sqr()?.sum_all()?.backward()?)?;
/// }
/// assert!(x.abs()?.max(0)?.to_scalar::<f32>()? < 0.5);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct AdamW {
    vars: Vec<Moments>,
    step: i32,
    params: AdamWParams,
    scratch: Scratch,
}

/// A variable and the means over its gradients and their squares.
#[derive(Debug)]
struct Moments {
    var: Var,
    first: Tensor,
    second: Tensor,
}

impl AdamW {
    /// For those of `vars` that have fractions, with moments of zero.
    ///
    /// # Errors
    /// [`Error::Failed`] when there is no memory for the moments.
    pub fn new(vars: Vec<Var>, params: AdamWParams) -> Result<Self> {
        let moments = |var: Var| {
            let zeros =
                || Tensor::zeros(var.shape(), var.dtype(), var.device()).map_err(|error| no_memory(&error));
            Ok(Moments { first: zeros()?, second: zeros()?, var })
        };
        let vars =
            vars.into_iter().filter(|var| var.dtype().is_float()).map(moments).collect::<Result<_>>()?;
        Ok(Self { vars, step: 0, params, scratch: Scratch::default() })
    }

    /// The parameters.
    #[must_use]
    pub fn params(&self) -> &AdamWParams {
        &self.params
    }

    /// Changes the parameters for the steps to come.
    pub fn set_params(&mut self, params: AdamWParams) {
        self.params = params;
    }

    /// Updates each variable that has a gradient, and its moments.
    ///
    /// # Errors
    /// See [`TensorOut`]; [`Error::Failed`] when there is no memory for the scratch of the first steps.
    pub fn step(&mut self, gradients: &GradStore) -> Result<()> {
        self.step += 1;
        let AdamWParams { lr, beta1, beta2, eps, weight_decay } = self.params;
        let step = AdamWStep {
            lr,
            beta1,
            beta2,
            eps,
            kept: 1.0 - lr * weight_decay,
            scale_m: 1.0 / (1.0 - beta1.powi(self.step)),
            scale_v: 1.0 / (1.0 - beta2.powi(self.step)),
        };
        for moments in &self.vars {
            let Some(gradient) = gradients.get(&moments.var) else { continue };
            let (var, gradient) = (moments.var.as_detached_tensor(), gradient.detach());
            let contiguous = var.is_contiguous() && gradient.is_contiguous();
            if contiguous && matches!(var.device(), Device::Cpu) {
                one_pass(&step, &var, moments, &gradient)?;
            } else {
                chain(&step, &var, moments, &gradient, &self.scratch.like(&var)?)?;
            }
        }
        Ok(())
    }
}

/// The update in one pass over host memory.
fn one_pass(
    step: &AdamWStep,
    var: &Tensor,
    Moments { first, second, .. }: &Moments,
    gradient: &Tensor,
) -> Result<()> {
    let op = Op::AdamW(step.clone());
    check::check(&op, &[gradient], gradient.dims(), gradient.dtype(), var)?;
    let written = [var, first, second];
    let keys = written.map(locks::key);
    let layouts = written.map(Tensor::layout);
    locks::with_storages(op.name(), &written, &[gradient], |held| {
        let mut storages = held.written;
        storages.sort_by_key(|(key, _)| keys.iter().position(|wanted| wanted == key));
        let mut storages = storages.into_iter().map(|(_, storage)| storage);
        match ([storages.next(), storages.next(), storages.next()], held.read.first()) {
            (
                [Some(StorageMut::Cpu(var)), Some(StorageMut::Cpu(first)), Some(StorageMut::Cpu(second))],
                Some((_, StorageRef::Cpu(read))),
            ) => {
                let [var_layout, first_layout, second_layout] = layouts;
                let written = [(var, var_layout), (first, first_layout), (second, second_layout)];
                cpu::adamw(&op, step, written, (read, gradient.layout()))
            }
            _ => unreachable!("the tensors lie in host memory, each in a storage of its own"),
        }
    })
}

/// The update as `candle_nn` has it, operation by operation.
fn chain(
    step: &AdamWStep,
    var: &Tensor,
    Moments { first, second, .. }: &Moments,
    gradient: &Tensor,
    [a, b]: &[Tensor; 2],
) -> Result<()> {
    first.affine_out(step.beta1, 0.0, first)?;
    gradient.affine_out(1.0 - step.beta1, 0.0, a)?;
    first.add_out(a, first)?;

    second.affine_out(step.beta2, 0.0, second)?;
    gradient.sqr_out(a)?;
    a.affine_out(1.0 - step.beta2, 0.0, a)?;
    second.add_out(a, second)?;

    first.affine_out(step.scale_m, 0.0, a)?;
    second.affine_out(step.scale_v, 0.0, b)?;
    b.sqrt_out(b)?;
    b.affine_out(1.0, step.eps, b)?;
    a.div_out(b, a)?;
    a.affine_out(step.lr, 0.0, a)?;
    var.affine_out(step.kept, 0.0, var)?;
    var.sub_out(a, var)
}

/// Two tensors for intermediate results, for each format and device as large as the largest variable.
#[derive(Debug, Default)]
struct Scratch {
    tensors: Vec<[Tensor; 2]>,
}

impl Scratch {
    /// Two tensors of the shape, format and device of `var`, which hold until the next call.
    fn like(&mut self, var: &Tensor) -> Result<[Tensor; 2]> {
        let (len, dtype, device) = (var.elem_count(), var.dtype(), var.device());
        let found =
            self.tensors.iter().position(|[a, _]| a.dtype() == dtype && a.device().same_device(device));
        if let Some(index) = found
            && self.tensors[index][0].elem_count() < len
        {
            self.tensors.swap_remove(index);
        }
        let fits = |[a, _]: &&[Tensor; 2]| a.dtype() == dtype && a.device().same_device(device);
        if self.tensors.iter().find(fits).is_none() {
            let made = [zeros(len, dtype, device)?, zeros(len, dtype, device)?];
            self.tensors.push(made);
        }
        let [a, b] = self.tensors.iter().find(fits).expect("was made where it was missing");
        Ok([part(a, var)?, part(b, var)?])
    }
}

fn zeros(len: usize, dtype: DType, device: &Device) -> Result<Tensor> {
    Tensor::zeros(len, dtype, device).map_err(|error| no_memory(&error))
}

/// The first numbers of `scratch` in the shape of `var`.
fn part(scratch: &Tensor, var: &Tensor) -> Result<Tensor> {
    let part = scratch.narrow(0, 0, var.elem_count()).and_then(|part| part.reshape(var.shape()));
    part.map_err(|error| no_memory(&error))
}

fn no_memory(error: &candle_core::Error) -> Error {
    Error::Failed { op: "optimizer", message: error.to_string() }
}
