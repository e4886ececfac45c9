//! Pages in Chromium: what they show, how they answer to keys, and that they ask for nothing.
//!
//! The pages and pictures of them stay in the folder for the tests' files, to be looked at: `tmp` in cargo's target.

mod lists;
mod looks;
mod speed;
mod views;

use std::path::PathBuf;

use mempool_cli::report::{self, Finding};
use mempool_pools::snapshot::Snapshot;
use serde_json::{Value, json};

use crate::browser::Browser;
use crate::replayed::Blocks;

const TABS: [&str; 4] = ["time", "map", "blocks", "pools"];

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
}

/// Opens the page of a snapshot.
fn open(browser: &mut Browser, name: &str, snapshot: &Snapshot, findings: &[Finding]) {
    let path = folder().join(format!("{name}.html"));
    std::fs::write(&path, report::page(snapshot, name, findings)).unwrap();
    browser.set_window(1400, 1000, false);
    browser.open(&path);
}

/// The blocks of the moment that the page is at, by address whether queued work alone uses them.
fn shown_blocks(browser: &mut Browser) -> Blocks {
    let blocks = browser.evaluate("mempool.blocks()");
    let block = |block: &Value| (block[0].as_f64().unwrap() as usize, block[2].as_bool().unwrap());
    blocks.as_array().unwrap().iter().map(block).collect()
}

fn moment(browser: &mut Browser) -> usize {
    browser.evaluate("mempool.view.moment").as_u64().unwrap() as usize
}

fn text(browser: &mut Browser, selector: &str) -> String {
    let text = browser.evaluate(&format!("document.querySelector({}).textContent", json!(selector)));
    text.as_str().unwrap().to_owned()
}

fn show_tab(browser: &mut Browser, tab: &str) {
    browser.evaluate(&format!("mempool.change({{tab: '{tab}'}})"));
    browser.settle();
}

/// The texts of a column of the table with this caption.
fn column(browser: &mut Browser, caption: &str, name: &str) -> Vec<String> {
    let script = format!(
        "(() => {{
            const table = [...document.querySelectorAll('table')].find((one) => one.caption.textContent === {});
            const heads = [...table.tHead.rows[0].cells].map((cell) => cell.textContent.replace(/ [▲▼]/, ''));
            return [...table.tBodies[0].rows].map((row) => row.cells[heads.indexOf({})].textContent);
        }})()",
        json!(caption),
        json!(name)
    );
    browser
        .evaluate(&script)
        .as_array()
        .unwrap()
        .iter()
        .map(|cell| cell.as_str().unwrap().to_owned())
        .collect()
}
