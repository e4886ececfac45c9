//! A pool in one line, for logs.

use std::fmt;

use super::PoolStats;

/// One line about a pool: `pool activations: 1.2 GiB allocated, 1.5 GiB reserved (peak 1.6 GiB), 3.1% free but
/// split, hit rate 99.8%`. Made by [`PoolStats::line`].
#[derive(Debug, Clone, Copy)]
pub struct PoolLine<'a> {
    stats: &'a PoolStats,
}

impl PoolStats {
    /// The pool in one line, for logs.
    #[must_use]
    pub fn line(&self) -> PoolLine<'_> {
        PoolLine { stats: self }
    }
}

impl fmt::Display for PoolLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stats = self.stats;
        let name = stats.name.strip_prefix("pool ").unwrap_or(&stats.name);
        write!(f, "pool {name}")?;
        if let Some(ordinal) = stats.device {
            write!(f, " on device {ordinal}")?;
        }
        write!(
            f,
            ": {} allocated, {} reserved (peak {}), {:.1}% free but split, hit rate {:.1}%",
            Bytes(stats.allocated.current),
            Bytes(stats.reserved.current),
            Bytes(stats.reserved.peak),
            100.0 * stats.split_share(),
            100.0 * stats.hit_rate(),
        )?;
        if stats.out_of_memory_count > 0 {
            write!(f, ", {} out of memory", stats.out_of_memory_count)?;
        }
        Ok(())
    }
}

/// Bytes as people read them.
struct Bytes(usize);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut value, mut at) = (self.0 as f64, 0);
        let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
        // Rounded to one digit it would be 1024.0 of the smaller unit.
        while value >= 1023.95 && at + 1 < units.len() {
            (value, at) = (value / 1024.0, at + 1);
        }
        if at == 0 { write!(f, "{} B", self.0) } else { write!(f, "{value:.1} {}", units[at]) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_what_a_log_needs() {
        let mut stats = PoolStats { name: "activations".to_owned(), ..PoolStats::default() };
        stats.placement.allocated.current = 1_288_490_189;
        stats.placement.reserved.current = 1_610_612_736;
        stats.placement.reserved.peak = 1_717_986_918;
        stats.placement.inactive_split.current = 49_928_995;
        (stats.placement.hits, stats.placement.misses) = (998, 2);
        let line = stats.line().to_string();
        let expected = "pool activations: 1.2 GiB allocated, 1.5 GiB reserved (peak 1.6 GiB), 3.1% free but split, \
                        hit rate 99.8%";
        assert_eq!(line, expected);
        (stats.device, stats.name, stats.out_of_memory_count) = (Some(1), "pool 7".to_owned(), 3);
        let line = stats.line().to_string();
        assert!(line.starts_with("pool 7 on device 1: ") && line.ends_with(", 3 out of memory"), "{line}");
    }

    #[test]
    fn bytes_are_read_in_the_largest_unit_that_has_one() {
        for (bytes, text) in [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), ((1 << 20) - 1, "1.0 MiB")] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }
}
