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

/// What a tensor holds: for each element its bits, and its value as nearly as an `f64` has it.
fn elements(tensor: &Tensor) -> candle_core::Result<Vec<(u64, f64)>> {
    let flat = tensor.to_device(&Device::Cpu)?.flatten_all()?;
    Ok(match tensor.dtype() {
        DType::U8 | DType::U32 | DType::I64 => {
            let values = flat.to_dtype(DType::I64)?.to_vec1::<i64>()?;
            values.into_iter().map(|value| (value.cast_unsigned(), value as f64)).collect()
        }
        // Shorter formats are a part of this one.
        DType::F32 | DType::F16 | DType::BF16 => {
            let values = flat.to_dtype(DType::F32)?.to_vec1::<f32>()?;
            values.into_iter().map(|value| (u64::from(value.to_bits()), f64::from(value))).collect()
        }
        _ => {
            let values = flat.to_dtype(DType::F64)?.to_vec1::<f64>()?;
            values.into_iter().map(|value| (value.to_bits(), value)).collect()
        }
    })
}

fn same(one: &Tensor, other: &Tensor) -> candle_core::Result<bool> {
    let alike = one.shape() == other.shape() && one.dtype() == other.dtype();
    Ok(alike && elements(one)?.iter().zip(&elements(other)?).all(|(one, other)| one.0 == other.0))
}

/// Compares two runs of a step and a replay.
pub(super) fn compare(first: &[&Tensor], second: &[&Tensor], replayed: &[&Tensor]) -> Result<Verification> {
    let check = |at: usize| -> candle_core::Result<OutputCheck> {
        // An output that only one run has is no steady one.
        let (Some(first), Some(second)) = (first.get(at), second.get(at)) else {
            return Ok(OutputCheck::Unsteady);
        };
        if !same(first, second)? {
            return Ok(OutputCheck::Unsteady);
        }
        let expected = elements(second)?;
        let Some(replayed) = replayed.get(at).filter(|replayed| replayed.shape() == second.shape()) else {
            let all = expected.len();
            return Ok(OutputCheck::Frozen { differing: all, elements: all, largest_difference: f64::NAN });
        };
        let replayed = elements(replayed)?;
        let differing = expected.iter().zip(&replayed).filter(|(one, other)| one.0 != other.0);
        let differences: Vec<f64> = differing.map(|(one, other)| (one.1 - other.1).abs()).collect();
        if differences.is_empty() {
            return Ok(OutputCheck::Same);
        }
        let largest_difference = differences.iter().copied().fold(0.0, f64::max);
        Ok(OutputCheck::Frozen { differing: differences.len(), elements: expected.len(), largest_difference })
    };
    let count = first.len().max(second.len()).max(replayed.len());
    let outputs = (0..count).map(check).collect::<candle_core::Result<_>>().map_err(Error::candle)?;
    Ok(Verification { outputs })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(first: &[&Tensor], second: &[&Tensor], replayed: &[&Tensor]) -> Vec<OutputCheck> {
        compare(first, second, replayed).unwrap().outputs
    }

    fn tensor<T: candle_core::WithDType>(values: &[T]) -> Tensor {
        Tensor::new(values, &Device::Cpu).unwrap()
    }

    #[test]
    fn what_differs_is_counted_with_its_largest_difference() {
        let (expected, other) = (tensor(&[1.0_f32, 2.0, 3.0]), tensor(&[1.0_f32, 2.5, 1.0]));
        let frozen = OutputCheck::Frozen { differing: 2, elements: 3, largest_difference: 2.0 };
        assert_eq!(check(&[&expected], &[&expected], &[&other]), [frozen]);
        assert_eq!(check(&[&expected], &[&other], &[&other]), [OutputCheck::Unsteady]);
        assert_eq!(
            check(&[&expected, &other], &[&expected, &other], &[&expected, &other]),
            [OutputCheck::Same, OutputCheck::Same]
        );
    }

    #[test]
    fn integers_are_compared_where_floats_cannot_tell_them_apart() {
        let (one, other) = (tensor(&[1_i64 << 60]), tensor(&[(1_i64 << 60) + 1]));
        let frozen = check(&[&one], &[&one], &[&other]);
        assert!(matches!(frozen[..], [OutputCheck::Frozen { differing: 1, elements: 1, .. }]), "{frozen:?}");
    }

    #[test]
    fn numbers_are_compared_by_their_bits() {
        let (nan, zero, minus) = (tensor(&[f32::NAN]), tensor(&[0.0_f32]), tensor(&[-0.0_f32]));
        assert_eq!(check(&[&nan], &[&nan], &[&nan]), [OutputCheck::Same]);
        assert!(matches!(
            check(&[&zero], &[&zero], &[&minus])[..],
            [OutputCheck::Frozen { differing: 1, .. }]
        ));
        let half = tensor(&[1.5_f32]).to_dtype(DType::F16).unwrap();
        assert_eq!(check(&[&half], &[&tensor(&[1.5_f32])], &[&half]), [OutputCheck::Unsteady]);
    }

    #[test]
    fn an_output_that_a_run_lacks_is_told() {
        let (one, pair) = (tensor(&[1.0_f32]), tensor(&[1.0_f32, 2.0]));
        assert_eq!(check(&[&one], &[], &[&one]), [OutputCheck::Unsteady]);
        assert_eq!(check(&[], &[], &[&one]), [OutputCheck::Unsteady]);
        for replayed in [&[][..], &[&one][..]] {
            let frozen = check(&[&pair], &[&pair], replayed);
            assert!(
                matches!(frozen[..], [OutputCheck::Frozen { differing: 2, elements: 2, .. }]),
                "{frozen:?}"
            );
        }
    }
}
