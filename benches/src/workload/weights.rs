//! Model weights that are the same in every process: a `VarBuilder` backend seeded by name.

use super::seeded;
use candle_core::{DType, Device, Result, Shape, Tensor, Var};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use std::sync::{Arc, Mutex, PoisonError};

/// Weights for a forward pass.
pub(super) fn frozen() -> VarBuilder<'static> {
    builder(None)
}

/// Weights to train, and the variables behind them.
pub(super) fn trainable() -> (VarBuilder<'static>, Trainable) {
    let trainable = Trainable::default();
    (builder(Some(trainable.clone())), trainable)
}

/// The variables that a builder has handed out.
///
/// candle's `VarMap` lists its variables in the order of a hash map, which differs from process to
/// process, and with it the order in which the optimizer allocates; this keeps the model's order.
#[derive(Clone, Default)]
pub(super) struct Trainable(Arc<Mutex<Vec<Var>>>);

impl Trainable {
    /// The variables, in the order in which the model asked for them.
    pub(super) fn vars(&self) -> Vec<Var> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn add(&self, var: Var) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(var);
    }
}

fn builder(trainable: Option<Trainable>) -> VarBuilder<'static> {
    VarBuilder::from_backend(Box::new(Seeded { trainable }), DType::F32, Device::Cpu)
}

struct Seeded {
    trainable: Option<Trainable>,
}

impl SimpleBackend for Seeded {
    fn get(&self, shape: Shape, name: &str, init: Init, _: DType, _: &Device) -> Result<Tensor> {
        let tensor = match bounds(init, &shape) {
            (low, high) if low < high => seeded::uniform(seed_of(name), shape, low, high)?,
            (value, _) => Tensor::full(value, shape, &Device::Cpu)?,
        };
        let Some(trainable) = &self.trainable else {
            return Ok(tensor);
        };
        let var = Var::from_tensor(&tensor)?;
        let tensor = var.as_tensor().clone();
        trainable.add(var);
        Ok(tensor)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        candle_core::bail!("the shape of {name} is needed to make it up")
    }

    /// Models ask this to detect a checkpoint's naming; there is no checkpoint.
    fn contains_tensor(&self, _: &str) -> bool {
        false
    }
}

/// The range to draw from: the initialisation's own, or the uniform one of the same deviation for
/// the normal ones. Equal bounds mean a constant.
fn bounds(init: Init, shape: &Shape) -> (f32, f32) {
    let around = |mean: f64, deviation: f64| {
        let half = deviation * 3f64.sqrt();
        ((mean - half) as f32, (mean + half) as f32)
    };
    match init {
        Init::Const(value) => (value as f32, value as f32),
        Init::Uniform { lo, up } => (lo as f32, up as f32),
        Init::Randn { mean, stdev } => around(mean, stdev),
        Init::Kaiming { fan, non_linearity, .. } => {
            around(0.0, non_linearity.gain() / (fan.for_shape(shape) as f64).sqrt())
        }
    }
}

/// FNV-1a of the name, so that each weight differs and none depends on the order of loading.
fn seed_of(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::{bounds, frozen, seed_of, trainable};
    use candle_core::Shape;
    use candle_nn::Init;

    #[test]
    fn weights_depend_on_their_name_alone() {
        let get = |name: &str| {
            let tensor = frozen().get_with_hints(64, name, candle_nn::init::DEFAULT_KAIMING_NORMAL);
            tensor.unwrap().to_vec1::<f32>().unwrap()
        };
        assert_eq!(get("a"), get("a"));
        assert_ne!(get("a"), get("b"));
        assert_ne!(seed_of("layer.0"), seed_of("layer.1"));
    }

    #[test]
    fn a_constant_has_equal_bounds() {
        let shape = Shape::from(4);
        assert_eq!(bounds(Init::Const(1.0), &shape), (1.0, 1.0));
        let (low, high) = bounds(Init::Randn { mean: 0.0, stdev: 1.0 }, &shape);
        assert!(low < -1.7 && high > 1.7);
    }

    #[test]
    fn variables_keep_the_order_of_loading() {
        let (builder, trainable) = trainable();
        for size in 1..4 {
            builder.get(size, &format!("w{size}")).unwrap();
        }
        let sizes: Vec<_> = trainable.vars().iter().map(|var| var.elem_count()).collect();
        assert_eq!(sizes, [1, 2, 3]);
    }
}
