//! The tables as Markdown.

use std::fmt;

use super::claims::{BUILD_UP, BUILD_UP_TRACE, CLAIMS};
use super::{BEST_FIT, Column, MOVING, TORCH, Tables};
use crate::replay::Report;

/// A figure of a report, as its table shows it.
struct Figure {
    title: &'static str,
    cell: fn(&Report) -> String,
}

const FIGURES: [Figure; 4] = [
    Figure {
        title: "Fragmentation, 1 - peak requested / peak reserved",
        cell: |report| percent(report.fragmentation),
    },
    Figure {
        title: "Hit rate, the share of allocations served from memory that was mapped already",
        cell: |report| percent(report.hit_rate),
    },
    Figure {
        title: "Bookkeeping for an allocation or a free, in ns",
        cell: |report| format!("{:.0}", report.ns_per_op),
    },
    Figure {
        title: "Map calls, and what mapping would have taken on an H200",
        cell: |report| format!("{} ({:.0} ms)", report.map_calls, report.mapping_us / 1e3),
    },
];

impl fmt::Display for Tables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Figure { title, cell } in FIGURES {
            self.figure(f, title, cell)?;
        }
        if self
            .columns
            .iter()
            .flat_map(|column| &column.reports)
            .any(|report| report.min_capacity_bytes.is_some())
        {
            self.figure(f, "Smallest device on which the run completes, times what was live", capacity)?;
        }
        self.write_build_up(f)?;
        self.write_claims(f)
    }
}

impl Tables {
    fn figure(&self, f: &mut fmt::Formatter<'_>, title: &str, cell: fn(&Report) -> String) -> fmt::Result {
        writeln!(f, "{title}:\n")?;
        self.head(f, "policy")?;
        for (at, row) in self.rows.iter().enumerate() {
            line(f, &row.label, self.columns.iter().map(|column| cell(&column.reports[at])))?;
        }
        writeln!(f)
    }

    fn head(&self, f: &mut fmt::Formatter<'_>, first: &str) -> fmt::Result {
        line(f, first, self.columns.iter().map(|column| column.trace.clone()))?;
        writeln!(f, "| --- |{}", " ---: |".repeat(self.columns.len()))
    }

    /// What is reserved as preallocation, reuse and moving come one after the other.
    fn write_build_up(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "Step by step: peak reserved in MiB, and fragmentation. Preallocation alone is memory of its own for each \
             tensor of a step, taken once; what a step freed serves when it has ended:\n",
        )?;
        self.head(f, "step")?;
        let live = |column: &Column| column.reports.first().map_or(0, |report| report.peak_requested_bytes);
        line(f, "live at most", self.columns.iter().map(|column| mib(live(column))))?;
        let steps: Vec<_> = self.columns.iter().map(|column| self.build_up(column)).collect();
        let names = steps.first().map(|steps| steps.map(|step| step.name)).into_iter().flatten();
        for (at, name) in names.enumerate() {
            let cells = steps.iter().map(|steps| {
                format!("{} ({})", mib(steps[at].reserved_bytes), percent(steps[at].fragmentation))
            });
            line(f, name, cells)?;
        }
        writeln!(f)
    }

    /// The usual advice beside what was measured, for the traces that it speaks of.
    fn write_claims(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let column = |name: &str| self.columns.iter().find(|column| column.trace == name);
        let known = CLAIMS.iter().filter_map(|claim| Some((claim, column(claim.trace)?)));
        let mut known = known.peekable();
        if known.peek().is_none() {
            return Ok(());
        }
        writeln!(f, "What the usual advice claims, and what was measured:\n")?;
        writeln!(f, "| load | claimed | run | `torch` | `pages` | `pages, mode:moving` | the claim |")?;
        writeln!(f, "| --- | ---: | --- | ---: | ---: | ---: | --- |")?;
        for (claim, column) in known {
            let share = |row| self.report(column, row).fragmentation;
            let measured = [TORCH, BEST_FIT, MOVING].map(share);
            let [torch, best_fit, moving] = measured.map(|share| 100.0 * share);
            let cells = measured.map(percent).join(" | ");
            let verdict = claim.verdict(torch, best_fit, moving);
            writeln!(
                f,
                "| {} | {}% -> {}% | {} | {cells} | {verdict} |",
                claim.load, claim.before, claim.after, claim.trace,
            )?;
        }
        if let Some(column) = column(BUILD_UP_TRACE) {
            let [preallocated, same_size, best_fit, moving] =
                self.build_up(column).map(|step| percent(step.fragmentation));
            let [first, second, third] = BUILD_UP;
            writeln!(f, "\n| ResNet-50, step by step | claimed | measured |\n| --- | ---: | ---: |")?;
            writeln!(f, "| preallocation | {first}% | {preallocated} |")?;
            writeln!(f, "| reuse | {second}% | {same_size} of equal sizes, {best_fit} of any free part |")?;
            writeln!(f, "| moving | {third}% | {moving} |")?;
        }
        writeln!(f)
    }
}

fn line(f: &mut fmt::Formatter<'_>, first: &str, cells: impl Iterator<Item = String>) -> fmt::Result {
    write!(f, "| {first} |")?;
    for cell in cells {
        write!(f, " {cell} |")?;
    }
    writeln!(f)
}

/// A share with as many digits as tell policies apart: near 0 and near 1 those are two.
fn percent(share: f64) -> String {
    let value = 100.0 * share;
    let digits = if (1.95..98.0).contains(&value) { 1 } else { 2 };
    format!("{value:.digits$}%")
}

fn mib(bytes: usize) -> String {
    format!("{:.0}", bytes as f64 / f64::from(1 << 20))
}

fn capacity(report: &Report) -> String {
    let Some(bytes) = report.min_capacity_bytes else { return "-".to_owned() };
    format!("{:.3}", bytes as f64 / report.peak_requested_bytes.max(1) as f64)
}
