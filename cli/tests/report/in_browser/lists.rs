//! Tabs, tables and search.

use serde_json::json;

use super::{column, open, show_tab, text};
use crate::browser::Browser;
use crate::snapshots;

#[test]
#[ignore = "needs Chromium; .ci/run runs it"]
fn arrows_go_from_tab_to_tab_and_tables_sort_by_keys() {
    let mut browser = Browser::start();
    open(&mut browser, "tabs", &snapshots::training(20), &[]);
    browser.evaluate("document.querySelector('#tab-time').focus()");
    for (key, expected) in [
        ("ArrowRight", "map"),
        ("ArrowRight", "blocks"),
        ("End", "pools"),
        ("ArrowRight", "time"),
        ("Home", "time"),
    ] {
        browser.press(key);
        assert_eq!(browser.evaluate("mempool.view.tab"), json!(expected), "{key}");
        let panels = browser.evaluate(
            "[...document.querySelectorAll('[role=tabpanel]')].filter((panel) => !panel.hidden).map((panel) => panel.id)",
        );
        assert_eq!(panels, json!([format!("panel-{expected}")]));
        assert_eq!(browser.evaluate("document.activeElement.id"), json!(format!("tab-{expected}")));
        assert_eq!(browser.evaluate("document.activeElement.ariaSelected"), json!("true"));
        let outline = browser.evaluate("getComputedStyle(document.activeElement).outlineStyle");
        assert_eq!(outline, json!("solid"), "what has the focus is seen");
    }
    show_tab(&mut browser, "blocks");
    let sort = |browser: &mut Browser, name: &str| {
        browser.evaluate(&format!(
            "[...document.querySelectorAll('table')].at(1).querySelectorAll('.sort').forEach((one) => {{
                if (one.textContent.startsWith({})) one.focus();
            }})",
            json!(name)
        ));
        browser.press("Enter");
        browser.evaluate("document.activeElement.closest('th').ariaSort")
    };
    assert_eq!(sort(&mut browser, "Label"), json!("ascending"));
    let labels = column(&mut browser, "Blocks", "Label");
    assert!(labels.is_sorted() && labels.first() != labels.last(), "{labels:?}");
    assert_eq!(sort(&mut browser, "Label"), json!("descending"));
    assert!(column(&mut browser, "Blocks", "Label").iter().rev().is_sorted());
}

#[test]
#[ignore = "needs Chromium; .ci/run runs it"]
fn search_leaves_the_blocks_that_have_each_word_and_oldest_first_begins_with_what_is_older() {
    let mut browser = Browser::start();
    let snapshot = snapshots::training(30);
    open(&mut browser, "search", &snapshot, &[]);
    show_tab(&mut browser, "blocks");
    let live = snapshot.live_blocks();
    assert_eq!(column(&mut browser, "Blocks", "Label").len(), live.len());
    browser.evaluate("document.querySelector('#search').focus()");
    browser.type_text("PARAM layer");
    let found = column(&mut browser, "Blocks", "Label");
    let has = |label: &str| label.to_lowercase().contains("param") && label.to_lowercase().contains("layer");
    let expected =
        live.iter().filter(|block| block.owner.as_ref().is_some_and(|owner| has(&owner.label))).count();
    assert!(found.len() == expected && expected == 12, "{found:?}");
    assert!(found.iter().all(|label| has(label)));
    assert_eq!(column(&mut browser, "By group", "Group"), [" parameters"]);
    browser.evaluate("document.querySelector('#search').select()");
    browser.type_text(" ");
    // A group that is pressed is listed alone, until it is pressed again.
    let press = "[...document.querySelectorAll('.link')].find((one) => one.textContent === ' session caches').click()";
    for is_alone in [true, false] {
        browser.evaluate(press);
        browser.settle();
        let listed = column(&mut browser, "Blocks", "Label");
        assert_eq!(listed.iter().all(|label| label == "session caches"), is_alone);
        assert!(column(&mut browser, "By group", "Group").len() > 3, "the other groups stay in sight");
    }
    browser.evaluate("document.querySelector('#search').select()");
    browser.type_text("nothing has this");
    assert_eq!(column(&mut browser, "Blocks", "Label"), [""; 0]);
    assert!(text(&mut browser, "#found").starts_with("0 blocks"));
    browser.evaluate("document.querySelector('#search').select()");
    browser.type_text("batches");
    assert_eq!(column(&mut browser, "Blocks", "Thread"), ["loader"]);
    browser.evaluate("document.querySelector('#search').select()");
    browser.type_text(" ");
    browser.evaluate(
        "[...document.querySelectorAll('button')].find((one) => one.textContent === 'Oldest first').click()",
    );
    let oldest = &snapshot.oldest_blocks()[0];
    assert!(oldest.owner.as_ref().unwrap().is_older);
    let addresses = column(&mut browser, "Blocks", "Address");
    assert_eq!(addresses[0].trim(), format!("{:#x}", oldest.address));
    assert_eq!(column(&mut browser, "Blocks", "Age")[0], "older");
}

#[test]
#[ignore = "needs Chromium; .ci/run runs it"]
fn whoever_selects_a_block_in_a_list_or_goes_to_its_allocation_keeps_the_focus() {
    let mut browser = Browser::start();
    open(&mut browser, "focus", &snapshots::training(10), &[]);
    show_tab(&mut browser, "blocks");
    let focused = "document.activeElement.textContent.trim()";
    browser.evaluate("[...document.querySelectorAll('tbody')].at(1).rows[1].querySelector('button').focus()");
    let address = browser.evaluate(focused);
    browser.press("Enter");
    assert_eq!(browser.evaluate(focused), address);
    let row =
        "[...document.querySelectorAll('tbody')].at(1).querySelector('[aria-current]').textContent.trim()";
    let address = address.as_str().unwrap();
    assert!(browser.evaluate(row).as_str().unwrap().starts_with(address));
    assert!(text(&mut browser, "#announced").ends_with(address));
    let to = "[...document.querySelectorAll('#details button')].find((one) => one.textContent === 'To its allocation')";
    browser.evaluate(&format!("{to}.focus()"));
    browser.press("Enter");
    assert_eq!(browser.evaluate(focused), json!("To its allocation"));
    let begin = "mempool.view.device.blocks.begin[mempool.view.selected] - mempool.view.moment";
    assert_eq!(browser.evaluate(begin), json!(0));
    assert_eq!(browser.complaints(), [""; 0]);
}
