//! Tensors with known numbers in unusual places, and their comparison bit by bit.

use candle_core::{DType, Tensor};
use candle_mempool::Result;
use proptest::prelude::*;

use crate::device;

/// Formats with fractions.
pub const FLOATS: &[DType] = &[DType::F32, DType::F64, DType::F16, DType::BF16];
/// All formats that out-operations know.
pub const ALL: &[DType] =
    &[DType::F32, DType::F64, DType::F16, DType::BF16, DType::U8, DType::U32, DType::I64];

/// Where a tensor's elements lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Alone in its storage.
    Plain,
    /// Contiguous, in the middle of its storage.
    Offset,
    /// With the dimensions' strides in reverse order.
    Transposed,
    /// With other numbers behind each row.
    Rows,
    /// With another number behind each.
    Every2nd,
}

pub const PLACES: &[Place] = &[Place::Plain, Place::Offset, Place::Transposed, Place::Rows, Place::Every2nd];

/// A place for a source.
pub fn place() -> impl Strategy<Value = Place> {
    prop::sample::select(PLACES)
}

/// A place where an elementwise operation can write on this device.
pub fn output_place() -> impl Strategy<Value = Place> {
    prop::sample::select(crate::OUTPUT_PLACES)
}

/// A place that is contiguous.
pub fn contiguous_place() -> impl Strategy<Value = Place> {
    prop::sample::select(&[Place::Plain, Place::Offset])
}

/// A shape of `ranks` dimensions, each of few elements, and at times one of some hundred.
pub fn shape(ranks: std::ops::RangeInclusive<usize>) -> impl Strategy<Value = Vec<usize>> {
    let dims = prop::collection::vec(1_usize..5, ranks);
    (dims, prop::option::weighted(0.2, (any::<prop::sample::Index>(), 257_usize..700))).prop_map(
        |(mut dims, long)| {
            if let (Some((index, len)), false) = (long, dims.is_empty()) {
                let index = index.index(dims.len());
                dims[index] = len;
            }
            dims
        },
    )
}

/// Numbers made of a seed.
#[derive(Debug, Clone, Copy)]
pub struct Numbers {
    seed: u64,
    kind: Kind,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    /// From -4 to 4, with zeros of both signs and infinities where there are fractions; 1 to 8 for integers.
    Wild,
    /// From -1 to 1.
    Small,
    /// Integers from 0 to below.
    Below(u64),
    /// Integers from the first to below the second.
    Between(u64, u64),
}

impl Numbers {
    pub fn wild(seed: u64) -> Self {
        Self { seed, kind: Kind::Wild }
    }

    pub fn small(seed: u64) -> Self {
        Self { seed, kind: Kind::Small }
    }

    pub fn below(seed: u64, end: usize) -> Self {
        Self { seed, kind: Kind::Below(end as u64) }
    }

    pub fn between(seed: u64, start: u64, end: u64) -> Self {
        Self { seed, kind: Kind::Between(start, end) }
    }

    fn number(self, index: usize, dtype: DType) -> f64 {
        let mut hash = (index as u64 ^ self.seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash ^= hash >> 29;
        hash = hash.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        hash ^= hash >> 32;
        let fraction = (hash % 1_000_003) as f64 / 1_000_003.0;
        match self.kind {
            Kind::Below(end) => (hash % end) as f64,
            Kind::Between(start, end) => (start + hash % (end - start)) as f64,
            Kind::Wild if dtype.is_int() => (1 + hash % 8) as f64,
            Kind::Wild => match hash % 41 {
                0 => 0.0,
                1 => -0.0,
                2 => f64::INFINITY,
                3 => f64::NEG_INFINITY,
                _ => fraction * 8.0 - 4.0,
            },
            Kind::Small => fraction * 2.0 - 1.0,
        }
    }
}

/// A tensor with a place in a storage.
pub struct Placed {
    pub tensor: Tensor,
    /// What lies beside it in the storage.
    beside: Vec<Tensor>,
}

/// A number that no operation here results in.
const BESIDE: f64 = 77.0;

/// A tensor of `shape` with `numbers` at `place`.
pub fn placed(shape: &[usize], dtype: DType, numbers: Numbers, place: Place) -> Placed {
    // By way of candle alone, so that the tensors do not rest on what they test.
    let values: Vec<f64> = (0..shape.iter().product()).map(|k| numbers.number(k, dtype)).collect();
    let values = Tensor::from_vec(values, shape, &candle_core::Device::Cpu).unwrap();
    let values = values.to_dtype(dtype).unwrap().to_device(&device()).unwrap();
    let tensor = match place {
        Place::Plain => values,
        Place::Offset => {
            let around = |len: usize| (Tensor::ones(len, dtype, &device()).unwrap() * BESIDE).unwrap();
            let flat = Tensor::cat(&[around(3), values.flatten_all().unwrap(), around(2)], 0).unwrap();
            flat.narrow(0, 3, values.elem_count()).unwrap().reshape(shape).unwrap()
        }
        Place::Transposed => {
            let reversed: Vec<usize> = (0..shape.len()).rev().collect();
            values.permute(reversed.clone()).unwrap().contiguous().unwrap().permute(reversed).unwrap()
        }
        Place::Rows if !shape.is_empty() => {
            let last = shape.len() - 1;
            let twice = Tensor::cat(&[&values, &values], last).unwrap().contiguous().unwrap();
            twice.narrow(last, 0, shape[last]).unwrap()
        }
        Place::Rows => values,
        Place::Every2nd => {
            let pairs = Tensor::stack(&[&values, &values], shape.len()).unwrap().contiguous().unwrap();
            pairs.narrow(shape.len(), 1, 1).unwrap().squeeze(shape.len()).unwrap()
        }
    };
    Placed { tensor, beside: Vec::new() }
}

/// A tensor to write into, of which and around which all numbers are [`BESIDE`].
pub fn output(shape: &[usize], dtype: DType, place: Place) -> Placed {
    let full = |shape: &[usize]| (Tensor::ones(shape, dtype, &device()).unwrap() * BESIDE).unwrap();
    let count: usize = shape.iter().product();
    let alone = |tensor| Placed { tensor, beside: Vec::new() };
    match place {
        Place::Plain => alone(full(shape)),
        Place::Offset => {
            let flat = full(&[count + 5]);
            let part = |start, len| flat.narrow(0, start, len).unwrap();
            Placed {
                tensor: part(3, count).reshape(shape).unwrap(),
                beside: vec![part(0, 3), part(3 + count, 2)],
            }
        }
        Place::Transposed => {
            let reversed: Vec<usize> = shape.iter().rev().copied().collect();
            let order: Vec<usize> = (0..shape.len()).rev().collect();
            alone(full(&reversed).permute(order).unwrap())
        }
        Place::Rows => match shape.split_last() {
            Some((&last, outer)) => {
                let wide = full(&[outer, &[last * 2]].concat());
                let part = |start| wide.narrow(outer.len(), start, last).unwrap();
                Placed { tensor: part(0), beside: vec![part(last)] }
            }
            None => alone(full(shape)),
        },
        Place::Every2nd => {
            let pairs = full(&[shape, &[2]].concat());
            let part = |start| pairs.narrow(shape.len(), start, 1).unwrap().squeeze(shape.len()).unwrap();
            Placed { tensor: part(1), beside: vec![part(0)] }
        }
    }
}

impl Placed {
    /// Fails if something beside the tensor was written.
    pub fn assert_nothing_beside_changed(&self) {
        for beside in &self.beside {
            let numbers = numbers(beside);
            assert!(numbers.iter().all(|&number| number == BESIDE), "written beside the output: {numbers:?}");
        }
    }
}

/// The numbers, whatever their format.
pub fn numbers(tensor: &Tensor) -> Vec<f64> {
    let tensor = tensor.to_device(&candle_core::Device::Cpu).unwrap().flatten_all().unwrap();
    tensor.to_dtype(DType::F64).unwrap().to_vec1().unwrap()
}

/// The bits of a tensor's numbers. All formats fit into `f64` with nothing lost; all NaNs are one.
pub fn bits(tensor: &Tensor) -> Vec<u64> {
    let canonical = |number: f64| if number.is_nan() { f64::NAN.to_bits() } else { number.to_bits() };
    numbers(tensor).into_iter().map(canonical).collect()
}

/// Runs an out-operation into a tensor like candle's result, at `place`, and compares. Where candle has no such
/// operation there is nothing to compare with.
pub fn assert_same_bits(
    name: &str,
    expected: candle_core::Result<Tensor>,
    place: Place,
    run: impl FnOnce(&Tensor) -> Result<()>,
) {
    let Ok(expected) = expected else { return };
    let out = output(expected.dims(), expected.dtype(), place);
    run(&out.tensor).unwrap_or_else(|error| panic!("{name} {:?}: {error}", expected.dtype()));
    assert_eq!(bits(&out.tensor), bits(&expected), "{name} {:?} {:?}", expected.dtype(), expected.shape());
    out.assert_nothing_beside_changed();
}
