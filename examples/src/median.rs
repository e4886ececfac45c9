//! The median of step times. A mean would be pulled up by the first steps, which fault in memory.

use std::time::Duration;

/// The median of `times` in milliseconds, `0.0` when there are none.
pub fn median_ms(times: &[Duration]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let upper = sorted.len() / 2;
    let middle = match sorted.len() {
        0 => return 0.0,
        n if n % 2 == 1 => sorted[upper],
        _ => (sorted[upper - 1] + sorted[upper]) / 2,
    };
    middle.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_even_and_empty() {
        let ms =
            |values: &[u64]| -> Vec<Duration> { values.iter().copied().map(Duration::from_millis).collect() };
        assert_eq!(median_ms(&[]), 0.0);
        assert_eq!(median_ms(&ms(&[9, 1, 5])), 5.0);
        assert_eq!(median_ms(&ms(&[9, 1, 5, 3])), 4.0);
    }
}
