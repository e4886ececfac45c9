//! `mempool tables`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, ensure};
use mempool_cli::tables::{Column, Row, Tables};

use crate::console::Console;
use crate::input;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The traces, one column each; `-` is standard input.
    #[arg(required = true)]
    traces: Vec<PathBuf>,
    /// A further row: a policy with options, as `policy:buckets,slack_percent:off`. May be given more than once.
    #[arg(long, value_name = "OPTIONS", value_parser = Row::parse)]
    row: Vec<Row>,
    /// Find the smallest device on which each run completes, too.
    #[arg(long)]
    min_capacity: bool,
    /// Write to this file instead of standard output.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replace what stands between `<!-- mempool tables -->` and `<!-- end of mempool tables -->` in this file.
    #[arg(long, value_name = "FILE", conflicts_with = "output")]
    into: Option<PathBuf>,
}

/// The lines that tables stand between in a document.
const MARKERS: [&str; 2] = ["<!-- mempool tables -->\n", "<!-- end of mempool tables -->\n"];

pub(crate) fn run(args: &Args) -> Result<()> {
    // What cannot be written into is found before minutes are spent.
    let around = args.into.as_deref().map(Around::read).transpose()?;
    let mut tables = Tables::new(args.row.clone());
    input::check(&args.traces)?;
    let console = Console::new()?;
    for path in &args.traces {
        let (name, trace) = input::trace(path, &console)?;
        let beginning = |row: &Row| {
            let message = format!("replaying {} with {}", input::described(path), row.label);
            console.begin(message, trace.events.len() as u64);
        };
        let advanced = |events| console.advance(events as u64);
        let column =
            Column::measure(&name, &trace.events, tables.rows(), args.min_capacity, beginning, advanced)
                .map_err(|error| anyhow!(error))
                .with_context(|| format!("replaying {}", input::described(path)))?;
        tables.push(column);
    }
    console.finish();
    match (&args.output, &args.into, around) {
        (Some(path), ..) => write(path, &tables.to_string()),
        (None, Some(path), Some(around)) => write(path, &around.with(&tables.to_string())),
        _ => console.print(|out| write!(out, "{tables}")),
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

/// A document without its tables.
#[derive(Debug, PartialEq, Eq)]
struct Around {
    before: String,
    after: String,
}

impl Around {
    fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("{} has no place for tables", path.display()))
    }

    fn parse(text: &str) -> Result<Self> {
        let [begin, end] = MARKERS;
        for marker in MARKERS {
            let count = text.matches(marker).count();
            ensure!(count == 1, "the line {:?} is there {count} times instead of once", marker.trim_end());
        }
        let (before, rest) = text.split_once(begin).unwrap_or_default();
        let (_, after) = rest.split_once(end).with_context(|| format!("{:?} comes first", end.trim_end()))?;
        Ok(Self { before: before.to_owned(), after: after.to_owned() })
    }

    fn with(&self, tables: &str) -> String {
        let [begin, end] = MARKERS;
        format!("{}{begin}\n{tables}{end}{}", self.before, self.after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_replaced_where_they_stand() {
        let [begin, end] = MARKERS;
        let text = format!("one\n{begin}old\n{end}two\n");
        let written = Around::parse(&text).unwrap().with("new\n\n");
        assert_eq!(written, format!("one\n{begin}\nnew\n\n{end}two\n"));
        assert_eq!(Around::parse(&written).unwrap().with("new\n\n"), written);
    }

    #[test]
    fn a_document_without_its_two_lines_is_refused() {
        let [begin, end] = MARKERS;
        for wrong in
            [String::new(), begin.into(), end.into(), format!("{end}{begin}"), format!("{begin}{begin}{end}")]
        {
            assert!(Around::parse(&wrong).is_err(), "{wrong:?}");
        }
    }
}
