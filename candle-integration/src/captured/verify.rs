//! Whether a replay computes what the step would.

use candle_core::{DType, Device, Tensor};

use crate::error::{Error, Result};

/// What a step returns: tensors.
pub trait Outputs {
    /// All of them, in order.
    fn tensors(&self) -> Vec<&Tensor>;
}

impl Outputs for Tensor {
    fn tensors(&self) -> Vec<&Tensor> {
        vec![self]
    }
}

impl<T: Outputs> Outputs for Vec<T> {
    fn tensors(&self) -> Vec<&Tensor> {
        self.iter().flat_map(T::tensors).collect()
    }
}

impl<T: Outputs, const N: usize> Outputs for [T; N] {
    fn tensors(&self) -> Vec<&Tensor> {
        self.iter().flat_map(T::tensors).collect()
    }
}

impl<T: Outputs> Outputs for Option<T> {
    fn tensors(&self) -> Vec<&Tensor> {
        self.iter().flat_map(T::tensors).collect()
    }
}

impl<A: Outputs, B: Outputs> Outputs for (A, B) {
    fn tensors(&self) -> Vec<&Tensor> {
        [self.0.tensors(), self.1.tensors()].concat()
    }
}

impl<A: Outputs, B: Outputs, C: Outputs> Outputs for (A, B, C) {
    fn tensors(&self) -> Vec<&Tensor> {
        [self.0.tensors(), self.1.tensors(), self.2.tensors()].concat()
    }
}

/// A replay beside the step run anew.
#[derive(Debug, Clone, PartialEq)]
pub struct Verification {
    /// For each output, in order.
    pub outputs: Vec<OutputCheck>,
}

/// One output of a replay beside that of the step run anew.
#[derive(Debug, Clone, PartialEq)]
pub enum OutputCheck {
    /// Every bit is the same.
    Same,
    /// The step itself does not return the same twice for the same inputs: it draws random numbers, or changes what it
    /// reads. A replay cannot be compared with it, and has frozen what the host decided.
    Unsteady,
    /// The replay returns something else: a number, a position or a shape that the host decides was frozen, or an input
    /// is not the tensor that is written.
    Frozen {
        /// Elements that differ.
        differing: usize,
        /// Elements there are.
        elements: usize,
        /// The largest difference.
        largest_difference: f64,
    },
}

impl Verification {
    /// Whether every bit of every output is the same.
    #[must_use]
    pub fn is_same(&self) -> bool {
        self.outputs.iter().all(|output| *output == OutputCheck::Same)
    }
}

/// The values, in numbers that hold all of them exactly.
fn values(tensor: &Tensor) -> candle_core::Result<Vec<f64>> {
    tensor.to_device(&Device::Cpu)?.flatten_all()?.to_dtype(DType::F64)?.to_vec1()
}

fn same(one: f64, other: f64) -> bool {
    one.to_bits() == other.to_bits() || (one.is_nan() && other.is_nan())
}

/// Compares two runs of a step and a replay.
pub(super) fn compare(first: &[&Tensor], second: &[&Tensor], replayed: &[&Tensor]) -> Result<Verification> {
    let check = |at: usize| -> candle_core::Result<OutputCheck> {
        let (first, second) = (values(first[at])?, values(second[at])?);
        if first.len() != second.len() || !first.iter().zip(&second).all(|(&one, &other)| same(one, other)) {
            return Ok(OutputCheck::Unsteady);
        }
        let replayed = values(replayed[at])?;
        let pairs = second.iter().zip(&replayed).filter(|&(&one, &other)| !same(one, other));
        let differing = pairs.clone().count() + second.len().abs_diff(replayed.len());
        if differing == 0 {
            return Ok(OutputCheck::Same);
        }
        let largest_difference = pairs.map(|(one, other)| (one - other).abs()).fold(0.0, f64::max);
        Ok(OutputCheck::Frozen { differing, elements: second.len(), largest_difference })
    };
    let count = first.len().min(second.len()).min(replayed.len());
    let outputs = (0..count).map(check).collect::<candle_core::Result<_>>().map_err(Error::candle)?;
    Ok(Verification { outputs })
}
