//! The formats of numbers that out-operations know on CPU, with candle's own functions for each.

use candle_core::op::{self, BinaryOpT, UnaryOpT};
use candle_core::{CpuStorage, WithDType};
use half::{bf16, f16};
use num_traits::AsPrimitive;

use crate::out::op::{Binary, Unary};

/// What is done to a run of numbers.
pub(super) type UnaryFn<T> = fn(&[T], &mut [T]);
/// What is done to two runs of numbers.
pub(super) type BinaryFn<T> = fn(&[T], &[T], &mut [T]);

/// A format of numbers. Conversions are those of `num_traits`, which are candle's: half precision goes by way
/// of `f32`, or of `f64` from and to that.
pub(super) trait Elem:
    WithDType
    + Default
    + AsPrimitive<u8>
    + AsPrimitive<u32>
    + AsPrimitive<i64>
    + AsPrimitive<bf16>
    + AsPrimitive<f16>
    + AsPrimitive<f32>
    + AsPrimitive<f64>
{
    /// The numbers of a storage of this format.
    fn of(storage: &CpuStorage) -> Option<&[Self]>;
    /// A number of another format in this one.
    fn convert<S: Elem>(number: S) -> Self;
    /// The numbers as indices or truth values.
    fn ints(numbers: &[Self]) -> Option<Ints<'_>>;
    /// candle's function for `unary`, where numbers of this format have one.
    fn unary(unary: Unary) -> Option<UnaryFn<Self>>;
    /// candle's function for `binary`.
    fn binary(binary: Binary) -> BinaryFn<Self>;
}

/// A format with fractions.
pub(super) trait FloatElem: Elem + num_traits::Float + num_traits::FromPrimitive {}

impl FloatElem for f32 {}
impl FloatElem for f64 {}
impl FloatElem for f16 {}
impl FloatElem for bf16 {}

/// Numbers that index or choose.
#[derive(Debug, Clone, Copy)]
pub(super) enum Ints<'a> {
    U8(&'a [u8]),
    U32(&'a [u32]),
    I64(&'a [i64]),
}

impl Ints<'_> {
    /// The index at `place`; nothing for the greatest number of the format, which in candle means "none".
    pub(super) fn index(self, place: usize) -> Option<usize> {
        match self {
            Self::U8(ids) => (ids[place] != u8::MAX).then_some(ids[place] as usize),
            Self::U32(ids) => (ids[place] != u32::MAX).then_some(ids[place] as usize),
            Self::I64(ids) => (ids[place] != i64::MAX).then_some(ids[place] as usize),
        }
    }

    /// Whether the number at `place` is not zero.
    pub(super) fn is_true(self, place: usize) -> bool {
        match self {
            Self::U8(flags) => flags[place] != 0,
            Self::U32(flags) => flags[place] != 0,
            Self::I64(flags) => flags[place] != 0,
        }
    }
}

/// The row of each float format in the table of functions: they differ in the names of candle's functions only.
macro_rules! float_elem {
    ($type:ty, $variant:ident, $unary:ident, $binary:ident) => {
        impl Elem for $type {
            fn of(storage: &CpuStorage) -> Option<&[Self]> {
                if let CpuStorage::$variant(numbers) = storage { Some(numbers) } else { None }
            }

            fn convert<S: Elem>(number: S) -> Self {
                AsPrimitive::<$type>::as_(number)
            }

            fn ints(_: &[Self]) -> Option<Ints<'_>> {
                None
            }

            fn unary(unary: Unary) -> Option<UnaryFn<Self>> {
                Some(match unary {
                    Unary::Exp => op::Exp::$unary,
                    Unary::Log => op::Log::$unary,
                    Unary::Sqrt => op::Sqrt::$unary,
                    Unary::Sqr => op::Sqr::$unary,
                    Unary::Abs => op::Abs::$unary,
                    Unary::Neg => op::Neg::$unary,
                    Unary::Recip => op::Recip::$unary,
                    Unary::Sin => op::Sin::$unary,
                    Unary::Cos => op::Cos::$unary,
                    Unary::Tanh => op::Tanh::$unary,
                    Unary::Relu => op::Relu::$unary,
                    Unary::Gelu => op::Gelu::$unary,
                    Unary::GeluErf => op::GeluErf::$unary,
                    Unary::Silu => op::Silu::$unary,
                    Unary::Sigmoid => sigmoid::<Self>,
                })
            }

            fn binary(binary: Binary) -> BinaryFn<Self> {
                match binary {
                    Binary::Add => op::Add::$binary,
                    Binary::Sub => op::Sub::$binary,
                    Binary::Mul => op::Mul::$binary,
                    Binary::Div => op::Div::$binary,
                    Binary::Maximum => op::Maximum::$binary,
                    Binary::Minimum => op::Minimum::$binary,
                }
            }
        }
    };
}

/// As [`float_elem`], for integers, of which candle has only functions of one number.
macro_rules! int_elem {
    ($type:ty, $variant:ident, $function:ident, $binary:ident) => {
        impl Elem for $type {
            fn of(storage: &CpuStorage) -> Option<&[Self]> {
                if let CpuStorage::$variant(numbers) = storage { Some(numbers) } else { None }
            }

            fn convert<S: Elem>(number: S) -> Self {
                AsPrimitive::<$type>::as_(number)
            }

            fn ints(numbers: &[Self]) -> Option<Ints<'_>> {
                Some(Ints::$variant(numbers))
            }

            fn unary(unary: Unary) -> Option<UnaryFn<Self>> {
                match unary {
                    Unary::Abs => Some(|xs, ys| each(xs, ys, op::Abs::$function)),
                    Unary::Relu => Some(|xs, ys| each(xs, ys, op::Relu::$function)),
                    _ => None,
                }
            }

            fn binary(binary: Binary) -> BinaryFn<Self> {
                match binary {
                    Binary::Add => op::Add::$binary,
                    Binary::Sub => op::Sub::$binary,
                    Binary::Mul => op::Mul::$binary,
                    Binary::Div => op::Div::$binary,
                    Binary::Maximum => op::Maximum::$binary,
                    Binary::Minimum => op::Minimum::$binary,
                }
            }
        }
    };
}

float_elem!(f32, F32, f32_vec, f32_vec);
float_elem!(f64, F64, f64_vec, f64_vec);
float_elem!(f16, F16, f16_vec, f16_vec);
float_elem!(bf16, BF16, bf16_vec, bf16_vec);
int_elem!(u8, U8, u8, u8_vec);
int_elem!(u32, U32, u32, u32_vec);
int_elem!(i64, I64, i64, i64_vec);

/// `f` on each number.
pub(super) fn each<T: Copy, U>(xs: &[T], ys: &mut [U], f: impl Fn(T) -> U) {
    for (&x, y) in xs.iter().zip(ys) {
        *y = f(x);
    }
}

/// As `candle_nn::ops::sigmoid` computes it.
fn sigmoid<T: num_traits::Float>(xs: &[T], ys: &mut [T]) {
    each(xs, ys, |x| (x.neg().exp() + T::one()).recip());
}
