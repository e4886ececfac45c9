//! The operations, and what each asks of its tensors. The devices' modules carry them out.

/// An operation on checked tensors: shapes, formats and devices fit, and no source is overwritten before it is
/// read. Sources that are broadcast have the strides for it.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Op {
    /// One source.
    Unary(Unary),
    /// Two sources of the output's shape.
    Binary(Binary),
    /// `x - y * factor`: a step down a gradient. On CPU.
    Descend { factor: f64 },
    /// `x * mul + add`.
    Affine { mul: f64, add: f64 },
    /// The lesser of `max` and the greater of `x` and `min`.
    Clamp { min: f64, max: f64 },
    /// `x` to a power.
    Powf(f64),
    /// The source's numbers, in the output's format, for the operation of this name.
    Cast(&'static str),
    /// One number everywhere; no source.
    Fill(f64),
    /// Numbers of the second source where the first is not zero, of the third where it is.
    WhereCond,
    /// `alpha * a b + beta * output`.
    Matmul(Matmul),
    /// Over `dims`; the sum is multiplied with `scale`.
    Sum { dims: Vec<usize>, scale: Option<f64> },
    /// The greatest or least along `dim`.
    Extreme { dim: usize, greatest: bool },
    /// Over the last dimension.
    Softmax,
    /// Sources: the numbers, their weight.
    RmsNorm { eps: f32 },
    /// Sources: the numbers, their weight, their bias.
    LayerNorm { eps: f32 },
    /// Sources: the numbers, cosines, sines.
    Rope,
    /// Sources: the numbers, indices of `dim`.
    IndexSelect { dim: usize },
    /// Sources: the numbers, for each number of the output an index of `dim`.
    Gather { dim: usize },
    /// Sources: the input, the kernel.
    Conv1d(Conv),
    /// Sources: the input, the kernel.
    Conv2d(Conv),
    /// Sources: the gradient. The outputs are the variable and its two moments.
    AdamW(AdamWStep),
}

/// An operation on each number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unary {
    Exp,
    Log,
    Sqrt,
    Sqr,
    Abs,
    Neg,
    Recip,
    Sin,
    Cos,
    Tanh,
    Relu,
    Gelu,
    GeluErf,
    Silu,
    Sigmoid,
}

/// An operation on two numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    Maximum,
    Minimum,
}

/// A batch of matrix products.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Matmul {
    pub(super) alpha: f64,
    pub(super) beta: f64,
    /// Whether a right side that is the same for all matrices makes one product of all rows, as
    /// `Tensor::matmul` does and `broadcast_matmul` does not where it broadcasts both sides.
    pub(super) fold: bool,
}

/// A convolution's parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Conv {
    pub(super) padding: usize,
    pub(super) stride: usize,
    pub(super) dilation: usize,
}

/// The factors of one step of AdamW.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct AdamWStep {
    pub(super) lr: f64,
    pub(super) beta1: f64,
    pub(super) beta2: f64,
    pub(super) eps: f64,
    /// What weight decay leaves of the variable.
    pub(super) kept: f64,
    /// What makes the first moment an unbiased mean.
    pub(super) scale_m: f64,
    /// What makes the second moment an unbiased mean.
    pub(super) scale_v: f64,
}

impl Op {
    /// The name in errors.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Unary(unary) => unary.name(),
            Self::Binary(binary) => binary.name(),
            Self::Descend { .. } => "sgd",
            Self::Affine { .. } => "affine_out",
            Self::Clamp { .. } => "clamp_out",
            Self::Powf(_) => "powf_out",
            Self::Cast(name) => name,
            Self::Fill(_) => "fill_in_place",
            Self::WhereCond => "where_cond_out",
            Self::Matmul(_) => "matmul_out",
            Self::Sum { scale: None, .. } => "sum_out",
            Self::Sum { scale: Some(_), .. } => "mean_out",
            Self::Extreme { greatest: true, .. } => "max_out",
            Self::Extreme { greatest: false, .. } => "min_out",
            Self::Softmax => "softmax_last_dim_out",
            Self::RmsNorm { .. } => "rms_norm_out",
            Self::LayerNorm { .. } => "layer_norm_out",
            Self::Rope => "rope_out",
            Self::IndexSelect { .. } => "index_select_out",
            Self::Gather { .. } => "gather_out",
            Self::Conv1d(_) => "conv1d_out",
            Self::Conv2d(_) => "conv2d_out",
            Self::AdamW(_) => "adamw",
        }
    }

    /// Whether the output may be exactly this source: the operation reads a number of it, or a row, before it
    /// writes that number or row, and not again.
    pub(super) fn may_replace(&self, source: usize) -> bool {
        match self {
            Self::Unary(_)
            | Self::Binary(_)
            | Self::Descend { .. }
            | Self::Affine { .. }
            | Self::Clamp { .. }
            | Self::Powf(_)
            | Self::Cast(_) => true,
            Self::WhereCond => source > 0,
            Self::Softmax | Self::RmsNorm { .. } | Self::LayerNorm { .. } => source == 0,
            _ => false,
        }
    }

    /// Whether each number of the output is computed for itself, so that it may lie anywhere.
    pub(super) fn is_elementwise(&self) -> bool {
        matches!(
            self,
            Self::Unary(_)
                | Self::Binary(_)
                | Self::Descend { .. }
                | Self::Affine { .. }
                | Self::Clamp { .. }
                | Self::Powf(_)
                | Self::Cast(_)
                | Self::Fill(_)
                | Self::WhereCond
        )
    }

    /// Which sources have to be contiguous, as candle needs them.
    pub(super) fn needs_contiguous(&self, source: usize) -> bool {
        match self {
            Self::Softmax
            | Self::RmsNorm { .. }
            | Self::LayerNorm { .. }
            | Self::Rope
            | Self::Gather { .. } => true,
            Self::IndexSelect { .. } => source == 0,
            _ => false,
        }
    }

    /// Whether the output has to be contiguous.
    pub(super) fn needs_contiguous_output(&self) -> bool {
        !self.is_elementwise() && !self.needs_contiguous_images()
    }

    /// Whether only each image of the output has to be contiguous: a convolution of a group writes a part of each.
    pub(super) fn needs_contiguous_images(&self) -> bool {
        matches!(self, Self::Conv1d(_) | Self::Conv2d(_))
    }
}

impl Unary {
    fn name(self) -> &'static str {
        match self {
            Self::Exp => "exp_out",
            Self::Log => "log_out",
            Self::Sqrt => "sqrt_out",
            Self::Sqr => "sqr_out",
            Self::Abs => "abs_out",
            Self::Neg => "neg_out",
            Self::Recip => "recip_out",
            Self::Sin => "sin_out",
            Self::Cos => "cos_out",
            Self::Tanh => "tanh_out",
            Self::Relu => "relu_out",
            Self::Gelu => "gelu_out",
            Self::GeluErf => "gelu_erf_out",
            Self::Silu => "silu_out",
            Self::Sigmoid => "sigmoid_out",
        }
    }
}

impl Binary {
    fn name(self) -> &'static str {
        match self {
            Self::Add => "add_out",
            Self::Sub => "sub_out",
            Self::Mul => "mul_out",
            Self::Div => "div_out",
            Self::Maximum => "maximum_out",
            Self::Minimum => "minimum_out",
        }
    }
}
