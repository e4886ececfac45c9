//! Medians, percentiles, ratios and geometric means.

/// The value at `fraction` (0 to 1) of the sorted values, by nearest rank. NaN when empty.
pub fn percentile(values: &[f64], fraction: f64) -> f64 {
    if values.is_empty() {
        return f64::NAN;
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len() - 1;
    sorted[((last as f64 * fraction).round() as usize).min(last)]
}

/// The median; the mean of the two middle values where their number is even. NaN when empty.
pub fn median(values: &[f64]) -> f64 {
    if values.is_empty() {
        return f64::NAN;
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len().is_multiple_of(2) {
        f64::midpoint(sorted[middle - 1], sorted[middle])
    } else {
        sorted[middle]
    }
}

/// The arithmetic mean. NaN when empty.
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The geometric mean. NaN when empty or when a value is not positive.
pub fn geometric_mean(values: &[f64]) -> f64 {
    if values.is_empty() || values.iter().any(|value| *value <= 0.0) {
        return f64::NAN;
    }
    mean(&values.iter().map(|value| value.ln()).collect::<Vec<_>>()).exp()
}

/// The median of `numerators[i] / denominators[i]`.
///
/// Equal turns run right after one another, so a machine that slows down for a while slows both
/// sides of a pair; pairing first and taking the median after cancels most of that.
pub fn paired_ratio(numerators: &[f64], denominators: &[f64]) -> f64 {
    let ratios: Vec<_> = numerators.iter().zip(denominators).map(|(n, d)| n / d).collect();
    median(&ratios)
}

#[cfg(test)]
mod tests {
    use super::{geometric_mean, mean, median, paired_ratio, percentile};

    #[test]
    fn median_of_odd_even_and_none() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn percentiles_by_nearest_rank() {
        let values: Vec<f64> = (0..=10).rev().map(f64::from).collect();
        assert_eq!(percentile(&values, 0.1), 1.0);
        assert_eq!(percentile(&values, 0.9), 9.0);
        assert_eq!(percentile(&values, 1.0), 10.0);
        assert_eq!(percentile(&[5.0], 0.9), 5.0);
        assert!(percentile(&[], 0.5).is_nan());
    }

    #[test]
    fn means() {
        assert_eq!(mean(&[1.0, 2.0, 6.0]), 3.0);
        assert!((geometric_mean(&[2.0, 8.0]) - 4.0).abs() < 1e-12);
        assert!(geometric_mean(&[]).is_nan());
        assert!(geometric_mean(&[1.0, 0.0]).is_nan());
    }

    #[test]
    fn a_slow_turn_does_not_move_a_paired_ratio() {
        let glibc = [20.0, 200.0, 20.0];
        let pool = [10.0, 100.0, 10.0];
        assert_eq!(paired_ratio(&glibc, &pool), 2.0);
    }
}
