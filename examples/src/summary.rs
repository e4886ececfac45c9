//! The aligned table of pool statistics and timings that each example ends with.

use std::fmt;

use candle_mempool::PoolStats;

/// A titled list of labelled values, printed with the labels padded to one width.
#[derive(Clone, Debug)]
pub struct Summary {
    title: String,
    rows: Vec<(String, String)>,
}

impl Summary {
    /// An empty table.
    pub fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), rows: Vec::new() }
    }

    /// Adds one row.
    pub fn row(&mut self, label: impl Into<String>, value: impl Into<String>) -> &mut Self {
        self.rows.push((label.into(), value.into()));
        self
    }

    /// Adds what a pool measured.
    pub fn pool(&mut self, stats: &PoolStats) -> &mut Self {
        for (label, stat) in
            [("requested", &stats.requested), ("allocated", &stats.allocated), ("reserved", &stats.reserved)]
        {
            let current = human_bytes(stat.current);
            let peak = human_bytes(stat.peak);
            self.row(format!("pool {label}"), format!("{current} now, {peak} peak"));
        }
        self.row(
            "pool hits",
            format!(
                "{} of {} requests ({:.2} %)",
                stats.hits,
                stats.hits + stats.misses,
                100.0 * stats.hit_rate()
            ),
        );
        let bypassed = stats.bypassed_bytes as f64;
        let all = bypassed + stats.requested.total_allocated as f64;
        let share = if all > 0.0 { 100.0 * bypassed / all } else { 0.0 };
        self.row("pool bypassed", format!("{share:.3} % of the bytes, {} requests", stats.bypassed_count));
        self.row("pool fragmentation", format!("{:.2} % of the run", 100.0 * stats.run_fragmentation()))
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.title)?;
        let width = self.rows.iter().map(|(label, _)| label.len()).max();
        let width = width.unwrap_or(0);
        for (label, value) in &self.rows {
            writeln!(f, "  {label:width$}  {value}")?;
        }
        Ok(())
    }
}

/// A byte count with a binary unit: `512 B`, `1.5 KiB`, `3.0 MiB`.
pub fn human_bytes(bytes: usize) -> String {
    let mut scaled = bytes as f64;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if scaled < 1024.0 {
            let digits = usize::from(unit != "B");
            return format!("{scaled:.digits$} {unit}");
        }
        scaled /= 1024.0;
    }
    format!("{scaled:.1} TiB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_change_unit_at_powers_of_1024() {
        assert_eq!(human_bytes(0), "0 B");
        assert_eq!(human_bytes(1023), "1023 B");
        assert_eq!(human_bytes(1536), "1.5 KiB");
        assert_eq!(human_bytes(3 << 20), "3.0 MiB");
        assert_eq!(human_bytes(2 << 40), "2.0 TiB");
    }

    #[test]
    fn labels_are_padded_to_the_widest() {
        let mut table = Summary::new("t");
        table.row("a", "1").row("long", "2");
        assert_eq!(table.to_string(), "t\n  a     1\n  long  2\n");
    }
}
