//! A snapshot of memory as one page for people: HTML that needs nothing else, neither a server nor a network.
//!
//! `data.rs` says what a snapshot holds in terms of the page, and is the only part that knows the snapshot's model.
//! `lifetimes.rs` follows the history backwards from the snapshot's blocks and finds from when to when each block was
//! there, with `mapped.rs` for the memory they lie in; `figures.rs` follows it forwards and adds up what was free at each
//! moment. `columns.rs` and `encode.rs` put all of it into one compact blob, and `document.rs` puts that and the parts
//! beneath `report/page/` into the page.
//!
//! The page replays nothing: what lies where at a moment is each block that was there by then and not yet gone, so any
//! moment costs one pass over two columns, and they are as quick to reach at the end as at the beginning.

mod columns;
mod data;
mod document;
mod encode;
mod figures;
mod lifetimes;
mod mapped;

use mempool_pools::diagnosis;
use mempool_pools::snapshot::Snapshot;
use serde::Serialize;

use data::Data;
pub use data::readable;

/// Something that the page's reader should know about the snapshot, and what can be done about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How much it matters.
    pub severity: Severity,
    /// What is so, with its figures: plain text, one or two sentences.
    pub text: String,
    /// What to do; empty where there is nothing.
    pub advice: String,
}

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Good to know.
    Note,
    /// It costs memory or time.
    Warning,
    /// It makes allocations fail.
    Problem,
}

impl From<&diagnosis::Finding> for Finding {
    fn from(found: &diagnosis::Finding) -> Self {
        let severity = match found.severity {
            diagnosis::Severity::Problem => Severity::Problem,
            diagnosis::Severity::Notice => Severity::Warning,
            diagnosis::Severity::Fine => Severity::Note,
        };
        Self {
            severity,
            text: format!("Pool \"{}\": {}", found.pool, found.text),
            advice: found.advice.clone(),
        }
    }
}

/// The page for a snapshot. `title` names it, as its file does; `findings` stand at the top in the order given.
///
/// All text of the snapshot is in a part of the page that is neither HTML nor a program, so none of it can become one.
#[must_use]
pub fn page(snapshot: &Snapshot, title: &str, findings: &[Finding]) -> String {
    let data = Data::of(snapshot);
    document::page(&encode::encode(&data, title, findings))
}
