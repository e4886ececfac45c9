//! Options of policy `torch`, with PyTorch's names.

use super::GRANULE_BYTES;
use crate::error::ArenaError;
use crate::request::Request;

/// Number of sizes that have rounding divisions: powers of two from 1 MiB.
const DIVISION_SLOTS: usize = 16;

/// Options of [`Torch`](super::Torch).
#[derive(Debug, Clone, PartialEq)]
pub struct TorchOptions {
    /// Mapped bytes are kept at or below this.
    pub limit_bytes: Option<usize>,
    /// Requests up to this size are small.
    pub small_bytes: usize,
    /// Length of the segments that small requests are cut from, of which the length of any segment is
    /// a multiple, and of the pages of an expandable one.
    pub small_segment_bytes: usize,
    /// Length of the segments that large requests are cut from, unless they are half of that or more;
    /// and of the pages of an expandable one.
    pub large_segment_bytes: usize,
    /// Two segments whose pages are mapped as needed, instead of many that are mapped whole.
    pub expandable_segments: bool,
    /// Blocks of this size and larger are not split. At least 20 MiB.
    pub max_split_bytes: Option<usize>,
    /// Sizes are rounded to the next of so many steps between two powers of two, by the power of two
    /// from 1 MiB to 32 GiB; 0 and 1 for no rounding, else powers of two.
    pub roundup_power2_divisions: [u32; DIVISION_SLOTS],
    /// Share of the limit, or of upstream's capacity, above which large segments that were free for
    /// long are given back; between 0 and 1.
    pub garbage_collection_threshold: Option<f64>,
    /// Address space of an expandable segment.
    pub expandable_range_bytes: usize,
}

impl Default for TorchOptions {
    fn default() -> Self {
        Self {
            limit_bytes: None,
            small_bytes: 1 << 20,
            small_segment_bytes: 2 << 20,
            large_segment_bytes: 20 << 20,
            expandable_segments: false,
            max_split_bytes: None,
            roundup_power2_divisions: [0; DIVISION_SLOTS],
            garbage_collection_threshold: None,
            expandable_range_bytes: 1 << (if usize::BITS == 64 { 38 } else { 28 }),
        }
    }
}

impl TorchOptions {
    pub(super) fn check(&self) -> Result<(), ArenaError> {
        let wrong = |option, value, rule| Err(ArenaError::Option { option, value, rule });
        if let Some(value) = self.max_split_bytes.filter(|&bytes| bytes < 20 << 20) {
            return wrong("max_split_bytes", value, "at least 20 MiB are needed");
        }
        let Self { small_bytes, small_segment_bytes, large_segment_bytes, .. } = *self;
        if small_segment_bytes < small_bytes.max(GRANULE_BYTES) {
            return wrong("small_segment_bytes", small_segment_bytes, "a small request has to fit in");
        }
        if large_segment_bytes < small_segment_bytes {
            return wrong(
                "large_segment_bytes",
                large_segment_bytes,
                "at least the length of a small segment",
            );
        }
        let divisions = self.roundup_power2_divisions;
        if let Some(&value) = divisions.iter().find(|&&n| n != 0 && !n.is_power_of_two()) {
            return wrong("roundup_power2_divisions", value as usize, "a power of two is needed");
        }
        if self.garbage_collection_threshold.is_some_and(|share| !(share > 0.0 && share < 1.0)) {
            return wrong("garbage_collection_threshold", 0, "it has to lie between 0 and 1");
        }
        Ok(())
    }

    /// The next block by which memory is taken in advance: a large one, if its segment takes no more than
    /// is missing, else a small one.
    pub(super) fn part_in_advance(&self, missing_bytes: usize) -> usize {
        let Self { small_bytes, small_segment_bytes, large_segment_bytes, .. } = *self;
        // What must not be split serves no smaller requests.
        let most = self.max_split_bytes.map_or(missing_bytes, |least| missing_bytes.min(least - 1));
        // Pages of an expandable segment are as long as segments, others a multiple of small ones.
        let (unit, least) = match self.expandable_segments {
            true => (large_segment_bytes, large_segment_bytes),
            false => (small_segment_bytes, large_segment_bytes / 2),
        };
        let len = most / unit * unit;
        let fits = |len: usize| {
            let rounded = self.rounded(Request::new(len)).is_ok_and(|rounded| rounded <= most);
            rounded && len >= least && len > small_bytes
        };
        // Powers of two are rounded to themselves.
        let power_of_two = 1 << len.max(1).ilog2();
        [len, power_of_two].into_iter().find(|&len| fits(len)).unwrap_or(small_bytes)
    }

    /// Bytes of a block for a request.
    pub(super) fn rounded(&self, request: Request) -> Result<usize, ArenaError> {
        let len = request.rounded_bytes(GRANULE_BYTES)?;
        let size = request.size_bytes;
        let slot = (usize::BITS - 1 - size.max(1).leading_zeros()).saturating_sub(20) as usize;
        let divisions = self.roundup_power2_divisions[slot.min(DIVISION_SLOTS - 1)] as usize;
        if divisions <= 1 || size <= GRANULE_BYTES * divisions || size.is_power_of_two() {
            return Ok(len);
        }
        let step = (size.next_power_of_two() >> 1) / divisions;
        let overflow = ArenaError::SizeOverflow { size_bytes: size, align_bytes: request.align_bytes };
        size.checked_next_multiple_of(step).filter(|&len| isize::try_from(len).is_ok()).ok_or(overflow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_to_steps_between_powers_of_two() {
        let with = |divisions| TorchOptions {
            roundup_power2_divisions: [divisions; DIVISION_SLOTS],
            ..TorchOptions::default()
        };
        let rounded = |divisions, size| with(divisions).rounded(Request::new(size)).unwrap();
        assert_eq!(rounded(0, 1200), 1536);
        assert_eq!(rounded(4, 1200), 1536, "too small for four steps of a granule");
        assert_eq!(rounded(4, 5000), 5120);
        assert_eq!(rounded(4, 5 << 20), 5 << 20);
        assert_eq!(rounded(4, (5 << 20) + 1), 6 << 20);
        assert_eq!(rounded(4, 8 << 20), 8 << 20);
        assert!(with(3).check().is_err());
    }
}
