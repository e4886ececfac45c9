//! Tables of what every policy needs for recorded runs, for the documentation.
//!
//! A column is a trace, a row a policy with its options. The figures are those of [`replay`]; this module says
//! which rows there are and what is made of them, and `markdown` how it reads.

mod claims;
mod markdown;

use mempool_pools::arena::trace::{Event, preallocated_bytes};
use mempool_pools::arena::{Conf, ConfError, ReplayDevice};

use crate::replay::{self, Error, Options, Report};

/// A policy with its options.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// What the table calls it.
    pub label: String,
    /// The policy and its options.
    pub conf: Conf,
}

impl Row {
    /// A row of options as `mempool replay --conf` reads them; without the word `policy:` that is its label.
    ///
    /// # Errors
    /// [`ConfError`], also for options that the policy does not have.
    pub fn parse(text: &str) -> Result<Self, ConfError> {
        let conf: Conf = text.parse()?;
        conf.check_keys()?;
        let options: Vec<&str> =
            text.split(',').map(|pair| pair.trim().trim_start_matches("policy:")).collect();
        Ok(Self { label: options.join(", "), conf })
    }

    /// The rows that are always there.
    #[must_use]
    pub fn usual() -> Vec<Self> {
        let rows = [
            "policy:none",
            SAME_SIZE,
            "policy:buckets",
            "policy:buddy",
            "policy:bfc",
            TORCH,
            "policy:expandable",
            BEST_FIT,
            MOVING,
        ];
        rows.into_iter().map(|text| Self::parse(text).expect("these options are known")).collect()
    }
}

// The rows that other tables look at again.
const SAME_SIZE: &str = "policy:simple";
const TORCH: &str = "policy:torch";
const BEST_FIT: &str = "policy:pages";
const MOVING: &str = "policy:pages,mode:moving";

/// What all policies needed for a trace.
#[derive(Debug, Clone, PartialEq)]
pub struct Column {
    /// The trace's name.
    pub trace: String,
    /// One for each row.
    pub reports: Vec<Report>,
    /// What preallocation alone would take, in bytes: memory of its own for each tensor of a step, in whole pages.
    pub preallocated_bytes: usize,
}

impl Column {
    /// Replays a trace through the policies of all rows. `beginning` is told of each before it begins, and
    /// `advanced` as in [`replay::replay`].
    ///
    /// # Errors
    /// As [`replay::replay`].
    pub fn measure(
        trace: &str,
        events: &[Event],
        rows: &[Row],
        min_capacity: bool,
        mut beginning: impl FnMut(&Row),
        mut advanced: impl FnMut(usize),
    ) -> Result<Self, Error> {
        let mut reports = Vec::with_capacity(rows.len());
        for row in rows {
            beginning(row);
            let options = Options { conf: row.conf.clone(), min_capacity, ..Options::default() };
            reports.push(replay::replay(trace, events, &options, &mut advanced)?);
        }
        let ReplayDevice { granule_bytes, page_bytes, .. } = ReplayDevice::default();
        let rounded = |bytes: usize| bytes.max(1).next_multiple_of(granule_bytes);
        let preallocated_bytes = preallocated_bytes(events, rounded).next_multiple_of(page_bytes);
        Ok(Self { trace: trace.to_owned(), reports, preallocated_bytes })
    }

    /// 1 - peak requested / preallocated.
    fn preallocated_fragmentation(&self) -> f64 {
        let requested = self.reports.first().map_or(0, |report| report.peak_requested_bytes);
        if self.preallocated_bytes == 0 {
            return 0.0;
        }
        1.0 - requested as f64 / self.preallocated_bytes as f64
    }
}

/// All tables.
#[derive(Debug, Clone, PartialEq)]
pub struct Tables {
    rows: Vec<Row>,
    columns: Vec<Column>,
}

impl Tables {
    /// Tables without a trace, with the usual rows and more.
    #[must_use]
    pub fn new(more: Vec<Row>) -> Self {
        let mut rows = Row::usual();
        rows.extend(more);
        Self { rows, columns: Vec::new() }
    }

    /// The rows.
    #[must_use]
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Adds a trace that was measured with [`rows`](Self::rows).
    ///
    /// # Panics
    /// When it was measured with another number of rows.
    pub fn push(&mut self, column: Column) {
        assert_eq!(column.reports.len(), self.rows.len(), "a column has a figure in each row");
        self.columns.push(column);
    }

    /// A trace's report in the row of these options, which is a usual one.
    fn report<'a>(&self, column: &'a Column, row: &str) -> &'a Report {
        let row = Row::parse(row).expect("the options of a usual row are known");
        let at = self.rows.iter().position(|other| other.conf == row.conf).expect("usual rows are there");
        &column.reports[at]
    }

    /// What preallocation, reuse and moving leave unused, one after the other.
    fn build_up(&self, column: &Column) -> [Step; 4] {
        let of = |name, row| {
            let report = self.report(column, row);
            Step { name, reserved_bytes: report.peak_reserved_bytes, fragmentation: report.fragmentation }
        };
        [
            Step {
                name: "preallocation",
                reserved_bytes: column.preallocated_bytes,
                fragmentation: column.preallocated_fragmentation(),
            },
            of("reuse of equal sizes (`simple`)", SAME_SIZE),
            of("reuse of any free part (`pages`)", BEST_FIT),
            of("moving (`pages, mode:moving`)", MOVING),
        ]
    }
}

/// A step of the build-up.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Step {
    name: &'static str,
    reserved_bytes: usize,
    fragmentation: f64,
}

#[cfg(test)]
mod tests;
