//! Checksums: a few elements of each step's result, folded bit for bit over a run.

use anyhow::{Context, Result, ensure};
use candle_core::{DType, Storage, Tensor};

/// Elements read from one tensor: few enough to cost nothing beside the step, spread over the
/// whole of it so that a block handed out twice would show.
const SAMPLES: usize = 256;

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

/// A running hash of f32 bit patterns (FNV-1a over 32-bit words).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checksum(u64);

impl Default for Checksum {
    fn default() -> Self {
        Self(FNV_OFFSET)
    }
}

impl Checksum {
    /// Folds one word in.
    pub fn fold(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(FNV_PRIME);
    }

    /// The hash so far.
    pub const fn bits(self) -> u64 {
        self.0
    }
}

/// Hashes up to 256 evenly spaced elements of a contiguous f32 tensor on the CPU.
///
/// It reads the storage in place: an op such as `sum_all` would read a 64 MB result once more and
/// allocate, and so blur what is measured. Fails on a value that is not finite, because a run that
/// has gone to NaN would agree with any other.
pub fn of(tensor: &Tensor) -> Result<u64> {
    ensure!(tensor.dtype() == DType::F32, "checksum of a non-f32 tensor");
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cpu(cpu) = &*storage else {
        anyhow::bail!("checksum of a tensor that is not on the CPU");
    };
    let (start, end) = layout.contiguous_offsets().context("checksum of a tensor that is not contiguous")?;
    let values = &cpu.as_slice::<f32>()?[start..end];
    let mut sum = Checksum::default();
    for position in sample_positions(values.len()) {
        let value = values[position];
        ensure!(value.is_finite(), "element {position} is {value}");
        sum.fold(u64::from(value.to_bits()));
    }
    Ok(sum.bits())
}

/// Evenly spaced positions in `0..len`, all of them where there are no more than [`SAMPLES`].
fn sample_positions(len: usize) -> impl Iterator<Item = usize> {
    let count = len.min(SAMPLES);
    (0..count).map(move |sample| sample * len / count)
}

#[cfg(test)]
mod tests {
    use super::{Checksum, SAMPLES, of, sample_positions};
    use candle_core::{Device, Tensor};

    #[test]
    fn folding_depends_on_the_order() {
        let (mut ab, mut ba) = (Checksum::default(), Checksum::default());
        ab.fold(1);
        ab.fold(2);
        ba.fold(2);
        ba.fold(1);
        assert_ne!(ab.bits(), ba.bits());
    }

    #[test]
    fn positions_are_spread_and_in_range() {
        assert_eq!(sample_positions(0).count(), 0);
        assert_eq!(sample_positions(3).collect::<Vec<_>>(), [0, 1, 2]);
        let many: Vec<_> = sample_positions(10_000).collect();
        assert_eq!(many.len(), SAMPLES);
        assert!(many.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(many[SAMPLES - 1] < 10_000);
    }

    #[test]
    fn one_bit_changes_the_checksum() {
        let one = Tensor::new(&[1.0f32, 2.0], &Device::Cpu).unwrap();
        let other = Tensor::new(&[1.0f32, f32::from_bits(2.0f32.to_bits() + 1)], &Device::Cpu);
        assert_ne!(of(&one).unwrap(), of(&other.unwrap()).unwrap());
    }

    #[test]
    fn a_nan_or_a_strided_tensor_is_refused() {
        let nan = Tensor::new(&[f32::NAN], &Device::Cpu).unwrap();
        assert!(of(&nan).is_err());
        let strided = Tensor::zeros((2, 3), candle_core::DType::F32, &Device::Cpu)
            .and_then(|tensor| tensor.t())
            .unwrap();
        assert!(of(&strided).is_err());
    }
}
