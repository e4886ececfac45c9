//! A digest over the exact bits of `f32` values: two runs agree to the last bit when it agrees.

use std::fmt;

/// FNV-1a, 64 bits. Chosen over a hasher from `std` because those do not promise the same value
/// from one release to the next, and these digests are meant to be compared across builds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BitDigest(u64);

impl BitDigest {
    /// The digest of no values at all.
    pub const fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    /// Adds `values` in order.
    pub fn update(&mut self, values: &[f32]) {
        for byte in values.iter().flat_map(|v| v.to_bits().to_le_bytes()) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

impl Default for BitDigest {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Display for BitDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[f32]) -> BitDigest {
        let mut digest = BitDigest::new();
        digest.update(values);
        digest
    }

    #[test]
    fn tells_apart_values_that_compare_equal() {
        assert_ne!(of(&[0.0]), of(&[-0.0]));
    }

    #[test]
    fn sees_one_unit_in_the_last_place_and_order() {
        assert_ne!(of(&[1.0]), of(&[f32::from_bits(1.0f32.to_bits() + 1)]));
        assert_ne!(of(&[1.0, 2.0]), of(&[2.0, 1.0]));
    }

    #[test]
    fn does_not_depend_on_how_updates_are_cut() {
        let mut cut = of(&[1.0]);
        cut.update(&[2.0, 3.0]);
        assert_eq!(cut, of(&[1.0, 2.0, 3.0]));
    }
}
