//! Figures as the table that `torch.cuda.memory_summary` prints, line by line as wide and in its units.

use mempool_arena::Stat;

use super::flat::{ALL, group_named};
use super::{GroupStats, PoolStats};

/// How much of a [summary](PoolStats::memory_summary) is shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SummaryRows {
    /// Each figure for all, and for large and small segments: 47 lines.
    #[default]
    Full,
    /// Each figure for all: 29 lines.
    Abbreviated,
}

#[derive(Debug, Clone, Copy)]
enum Unit {
    Bytes,
    Count,
}

/// The rows, with PyTorch's names of the groups. `{}` stands for where the memory is.
const ROWS: [(&str, &str, Unit); 9] = [
    ("allocated_bytes", "Allocated memory", Unit::Bytes),
    ("active_bytes", "Active memory", Unit::Bytes),
    ("requested_bytes", "Requested memory", Unit::Bytes),
    ("reserved_bytes", "{} reserved memory", Unit::Bytes),
    ("inactive_split_bytes", "Non-releasable memory", Unit::Bytes),
    ("allocation", "Allocations", Unit::Count),
    ("active", "Active allocs", Unit::Count),
    ("segment", "{} reserved segments", Unit::Count),
    ("inactive_split", "Non-releasable allocs", Unit::Count),
];

const PARTS: [&str; 3] = ["", "      from large pool", "      from small pool"];

/// Characters between the bars at both ends of a line.
const WIDTH: usize = 75;

/// Bytes are shown in the next unit from so many of one on.
const BYTES_BEFORE_NEXT_UNIT: u64 = 768 * 1024;
/// Counts are shown in the next unit from so many of one on.
const COUNT_BEFORE_NEXT_UNIT: u64 = 750_000;

/// A cell of ten characters. Its unit is that for `scale`, so that what belongs together has one unit.
fn cell(value: u64, scale: u64, unit: Unit) -> String {
    let (names, step, most): (&[&str], u64, u64) = match unit {
        Unit::Bytes => (&["B  ", "KiB", "MiB", "GiB", "TiB", "PiB"], 1024, BYTES_BEFORE_NEXT_UNIT),
        Unit::Count => (&[" ", "K", "M"], 1000, COUNT_BEFORE_NEXT_UNIT),
    };
    let (mut value, mut scale, mut at) = (value, scale as f64, 0);
    while at + 1 < names.len() && scale >= most as f64 {
        (value, scale, at) = (value / step, scale / step as f64, at + 1);
    }
    match unit {
        Unit::Bytes => format!("{value:6} {}", names[at]),
        Unit::Count => format!("{value:7} {} ", names[at]),
    }
}

fn row(name: &str, stat: &Stat, scale: &Stat, unit: Unit) -> String {
    let columns =
        |stat: &Stat| [stat.current as u64, stat.peak as u64, stat.total_allocated, stat.total_freed()];
    let cells = columns(stat).into_iter().zip(columns(scale));
    let cells: Vec<String> = cells.map(|(value, scale)| cell(value, scale, unit)).collect();
    format!(" {name:<21} | {} ", cells.join(" | "))
}

/// The table; `place` is what follows "device ID".
fn table(stats: &PoolStats, place: &str, rows: SummaryRows) -> String {
    let (kind, library) = if stats.device.is_some() { ("GPU", "CUDA") } else { ("CPU", "host") };
    let (double, single) = ("=".repeat(WIDTH), "-".repeat(WIDTH));
    let mut lines = vec![
        double.clone(),
        // A name that is too long would make the line longer than the others.
        format!(" {:10}candle-mempool {library} memory summary, device ID {place:<17.17} ", ""),
        single.clone(),
        format!(
            "  {:9} {library} OOMs: {:<12} | {:6} cudaMalloc retries: {:<8}  ",
            "", stats.out_of_memory_count, "", stats.retries
        ),
        double.clone(),
        "        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  ".to_owned(),
    ];
    for (group, name, unit) in ROWS {
        lines.push(single.clone());
        let parts = group_named(stats, group);
        let shown = if rows == SummaryRows::Abbreviated { 1 } else { parts.len() };
        for (part, stat) in PARTS.iter().zip(parts).take(shown) {
            let name = if part.is_empty() { name.replace("{}", kind) } else { (*part).to_owned() };
            lines.push(row(&name, stat, parts[ALL], unit));
        }
    }
    for (name, stat) in [
        ("Oversize allocations".to_owned(), &stats.oversize_blocks),
        (format!("Oversize {kind} segments"), &stats.oversize_segments),
    ] {
        lines.push(single.clone());
        lines.push(row(&name, stat, stat, Unit::Count));
    }
    lines.push(double);
    lines.into_iter().map(|line| format!("|{line}|\n")).collect()
}

impl PoolStats {
    /// The figures as a table: lines of 77 characters, units and rows of PyTorch's.
    ///
    /// ```
    /// # use mempool_pools::{MemPool, PoolAllocator, SummaryRows};
    /// # #[global_allocator]
    /// # static ALLOC: PoolAllocator = PoolAllocator::new();
    /// let pool = MemPool::new()?;
    /// let table = pool.stats().memory_summary(SummaryRows::Abbreviated);
    /// assert_eq!(table.lines().count(), 29);
    /// assert!(table.lines().all(|line| line.len() == 77));
    /// # Ok::<(), mempool_pools::PoolError>(())
    /// ```
    #[must_use]
    pub fn memory_summary(&self, rows: SummaryRows) -> String {
        let device = self.device.map_or_else(|| "host".to_owned(), |ordinal| ordinal.to_string());
        table(self, &format!("{device}, pool {}", self.id), rows)
    }
}

impl GroupStats {
    /// The sums as a table: see [`PoolStats::memory_summary`].
    #[must_use]
    pub fn memory_summary(&self, rows: SummaryRows) -> String {
        table(
            &self.total,
            &self.total.device.map_or_else(|| "all".to_owned(), |ordinal| ordinal.to_string()),
            rows,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_raised_from_768_of_it_on_by_what_all_have() {
        assert_eq!(cell(786_431, 786_431, Unit::Bytes), "786431 B  ");
        assert_eq!(cell(786_432, 786_432, Unit::Bytes), "   768 KiB");
        assert_eq!(cell(1023, 768 << 20, Unit::Bytes), "     0 MiB", "as all of which this is a part");
        assert_eq!(cell(3 << 40, 3 << 40, Unit::Bytes), "  3072 GiB");
        assert_eq!(cell(749_999, 749_999, Unit::Count), " 749999   ");
        assert_eq!(cell(750_000, 750_000, Unit::Count), "    750 K ");
        assert_eq!(cell(7, 750_000_000, Unit::Count), "      0 M ");
    }
}
