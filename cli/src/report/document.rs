//! The page: HTML, style and program from the files beneath `page/`, and the data.
//!
//! The data is compressed and in base64, in an element that the browser does not run, so no text of a snapshot stands in
//! the page as such. What may run is this program and nothing else, by its hash, and what it may load is nothing.

use std::io::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use flate2::{Compression, write::GzEncoder};
use sha2::{Digest as _, Sha256};

const PAGE: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/style.css");

/// The program, a file for each thing it does, in one scope.
const SCRIPTS: &[&str] = &[
    include_str!("page/format.js"),
    include_str!("page/elements.js"),
    include_str!("page/decode.js"),
    include_str!("page/theme.js"),
    include_str!("page/palette.js"),
    include_str!("page/groups.js"),
    include_str!("page/state.js"),
    include_str!("page/view.js"),
    include_str!("page/tabs.js"),
    include_str!("page/moment.js"),
    include_str!("page/summary.js"),
    include_str!("page/legend.js"),
    include_str!("page/axes.js"),
    include_str!("page/chart.js"),
    include_str!("page/timeline.js"),
    include_str!("page/overview.js"),
    include_str!("page/fragmentation.js"),
    include_str!("page/map_layout.js"),
    include_str!("page/map_drawing.js"),
    include_str!("page/map.js"),
    include_str!("page/details.js"),
    include_str!("page/table.js"),
    include_str!("page/blocks.js"),
    include_str!("page/pools.js"),
    include_str!("page/main.js"),
];

/// The page that shows a blob of [`encode`](super::encode).
pub(super) fn page(blob: &[u8]) -> String {
    let script = SCRIPTS.concat();
    let policy = format!(
        "default-src 'none'; script-src '{}'; style-src '{}'; base-uri 'none'; form-action 'none'",
        hash(&script),
        hash(STYLE)
    );
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gzip.write_all(blob).expect("memory takes what is written");
    let data = BASE64.encode(gzip.finish().expect("memory takes what is written"));
    // One pass over the page, so that nothing is looked for in what was put in.
    let mut page = String::with_capacity(PAGE.len() + STYLE.len() + script.len() + data.len() + policy.len());
    let mut rest = PAGE;
    for (mark, part) in
        [("{{policy}}", &*policy), ("{{style}}", STYLE), ("{{data}}", &data), ("{{script}}", &script)]
    {
        let (before, behind) = rest.split_once(mark).expect("page.html has each mark once, in this order");
        page.push_str(before);
        page.push_str(part);
        rest = behind;
    }
    page.push_str(rest);
    page
}

/// What a policy of a page calls a text.
fn hash(text: &str) -> String {
    format!("sha256-{}", BASE64.encode(Sha256::digest(text)))
}

#[cfg(test)]
mod tests;
