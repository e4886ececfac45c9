//! Pages in Chromium: what they show, how they answer to keys, and that they ask for nothing.
//!
//! The pages and pictures of them stay in the folder for the tests' files, to be looked at: `tmp` in cargo's target.

use std::collections::BTreeMap;
use std::path::PathBuf;

use mempool_cli::report::{self, Finding, Severity};
use mempool_pools::snapshot::{BlockState, Snapshot};
use serde_json::{Value, json};

use crate::browser::Browser;
use crate::replayed::{Blocks, blocks_at};
use crate::snapshots::{self, HOSTILE};

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

#[test]
#[ignore = "needs Chromium; .ci/run runs it"]
fn pages_open_in_light_and_dark_and_on_narrow_screens_without_errors_and_requests() {
    let mut browser = Browser::start();
    let findings = [
        Finding {
            severity: Severity::Problem,
            text: "38% of reserved memory is free but split.".to_owned(),
            advice: "Turn on page moving.".to_owned(),
        },
        Finding { severity: Severity::Note, text: "No pool has a limit.".to_owned(), advice: String::new() },
    ];
    let of = [("training", snapshots::training(40)), ("pytorch", snapshots::of_pytorch())];
    for (name, snapshot) in &of {
        open(&mut browser, name, snapshot, &findings);
        assert!(text(&mut browser, "#summary").contains("38% of reserved memory is free but split."));
        let at = browser.evaluate("Math.floor(mempool.view.device.last * 0.7)").as_u64().unwrap();
        browser.evaluate(&format!("mempool.change({{moment: {at}}})"));
        browser.settle();
        let selected = "mempool.view.device.blocks.address.indexOf(mempool.blocks()[3][0])";
        browser.evaluate(&format!("mempool.change({{selected: {selected}}})"));
        let mut papers = Vec::new();
        for (looks, width, height, is_dark) in
            [("light", 1400, 1000, false), ("dark", 1400, 1000, true), ("narrow", 400, 860, false)]
        {
            browser.set_window(width, height, is_dark);
            for tab in TABS {
                show_tab(&mut browser, tab);
                let overflow = browser.evaluate("document.documentElement.scrollWidth - innerWidth");
                assert!(overflow.as_f64().unwrap() <= 0.0, "{name} {tab} {looks} is {overflow} too wide");
                browser.take_picture(&folder().join(format!("{name}-{tab}-{looks}.png")));
            }
            papers.push(browser.evaluate("getComputedStyle(document.body).backgroundColor"));
        }
        assert_eq!(papers[0], papers[2]);
        assert_ne!(papers[0], papers[1], "dark is not light");
        assert_eq!(browser.complaints(), [""; 0]);
    }
}

#[test]
#[ignore = "needs Chromium; .ci/run runs it"]
fn the_theme_is_the_systems_until_it_is_chosen() {
    let mut browser = Browser::start();
    open(&mut browser, "theme", &snapshots::of_pytorch(), &[]);
    let paper = "getComputedStyle(document.body).backgroundColor";
    let light = browser.evaluate(paper);
    browser.evaluate("document.querySelector('#theme').focus()");
    browser.press("Enter");
    let dark = browser.evaluate(paper);
    assert_ne!(light, dark);
    browser.set_window(1400, 1000, true);
    assert_eq!(browser.evaluate(paper), dark);
    browser.press("Enter");
    assert_eq!(browser.evaluate(paper), light);
    assert_eq!(text(&mut browser, "#theme"), "Dark");
}

#[test]
#[ignore = "needs Chromium; .ci/run runs it"]
fn the_slider_goes_to_any_moment_by_keys_and_the_map_shows_what_a_replay_finds() {
    let mut browser = Browser::start();
    let snapshot = snapshots::training(20);
    let last = snapshot.device_traces[0].len();
    open(&mut browser, "slider", &snapshot, &[]);
    show_tab(&mut browser, "map");
    browser.evaluate("document.querySelector('#slider').focus()");
    assert_eq!(moment(&mut browser), last);
    let mut pictures = BTreeMap::new();
    let mut at = last;
    let keys = [
        "ArrowLeft",
        "PageDown",
        "PageDown",
        "ArrowLeft",
        "ArrowRight",
        "Home",
        "PageUp",
        "ArrowRight",
        "End",
    ];
    for key in keys {
        browser.press(key);
        let now = moment(&mut browser);
        match key {
            "ArrowLeft" => assert_eq!(now, at - 1),
            "ArrowRight" => assert_eq!(now, at + 1),
            "PageDown" => assert!(now < at - 10),
            "PageUp" => assert!(now > at + 10),
            "Home" => assert_eq!(now, 0),
            _ => assert_eq!(now, last),
        }
        at = now;
        assert_eq!(shown_blocks(&mut browser), blocks_at(&snapshot, 0, now), "{key} to moment {now}");
        let picture = browser.evaluate("document.querySelector('#map canvas').toDataURL()").to_string();
        pictures.insert(now, picture);
    }
    let [first, .., end] = &*pictures.values().collect::<Vec<_>>() else { panic!() };
    assert_ne!(first, end, "the map is another one at another moment");
    // All moments, without pictures.
    for now in (0..=last).step_by(97) {
        browser.evaluate(&format!("mempool.change({{moment: {now}}})"));
        assert_eq!(shown_blocks(&mut browser), blocks_at(&snapshot, 0, now), "moment {now}");
        // Two ways to what is free: the page's own, and what the page was given for its charts.
        let (own, given) = (
            browser.evaluate("mempool.figures()"),
            browser.evaluate(
                "(({figures}, moment) => ({free: figures.free[moment], largestFree: figures.largestFree[moment],
                    reserved: figures.reserved[moment]}))(mempool.view.device, mempool.view.moment)",
            ),
        );
        assert_eq!(own, given, "moment {now}");
    }
    let segments = browser.evaluate("mempool.segments()");
    let mut expected: Vec<[usize; 2]> =
        snapshot.segments.iter().map(|segment| [segment.address, segment.total_size]).collect();
    expected.sort_unstable();
    let mut shown: Vec<[usize; 2]> = serde_json::from_value(segments).unwrap();
    shown.sort_unstable();
    assert_eq!(shown, expected);
    assert_eq!(browser.complaints(), [""; 0]);
}

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
fn the_map_selects_blocks_by_keys_and_by_the_mouse_and_tells_who_allocated_them() {
    let mut browser = Browser::start();
    let snapshot = snapshots::training(20);
    open(&mut browser, "map", &snapshot, &[]);
    show_tab(&mut browser, "map");
    let selected = "mempool.view.device.blocks.address[mempool.view.selected]";
    browser.evaluate("document.querySelector('#map').focus()");
    let mut seen = Vec::new();
    for key in ["ArrowRight", "ArrowRight", "ArrowDown", "ArrowDown", "ArrowRight", "ArrowUp"] {
        browser.press(key);
        let address = browser.evaluate(selected).as_f64().unwrap() as usize;
        let blocks = snapshot.segments.iter().flat_map(|segment| &segment.blocks);
        let block = blocks.into_iter().find(|block| block.address == address).unwrap();
        assert_ne!(block.state, BlockState::Inactive);
        let details = text(&mut browser, "#details");
        assert!(details.contains(&format!("{address:#x}")), "{details}");
        if let Some(owner) = block.owner.as_ref().filter(|owner| !owner.is_older) {
            for told in [&owner.label, &owner.thread, &format!("allocation {} of it", owner.position + 1)] {
                assert!(details.contains(told.as_str()), "{told} in {details}");
            }
            seen.push(owner.label.clone());
        }
    }
    seen.dedup();
    assert!(seen.len() > 1, "{seen:?}");
    browser.press("Escape");
    assert_eq!(browser.evaluate("mempool.view.selected"), json!(-1));
    // In the first row of the first pool lies what is older than the history.
    let place = browser.evaluate(
        "(({left, top}) => [left + 20, top + 40])(document.querySelector('#map canvas').getBoundingClientRect())",
    );
    let place = (place[0].as_f64().unwrap(), place[1].as_f64().unwrap());
    browser.drag(place, place);
    assert!(browser.evaluate(selected).is_number());
    browser.press("+");
    browser.press("+");
    assert!(text(&mut browser, "#map-scale").starts_with("A row is"));
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
#[ignore = "needs Chromium; .ci/run runs it"]
fn charts_zoom_by_dragging_and_by_keys() {
    let mut browser = Browser::start();
    open(&mut browser, "zoom", &snapshots::training(20), &[]);
    assert_eq!(browser.evaluate("mempool.view.window"), json!(null));
    let place = browser.evaluate(
        "(({left, top}) => [left, top])(document.querySelector('.chart canvas').getBoundingClientRect())",
    );
    let (left, top) = (place[0].as_f64().unwrap(), place[1].as_f64().unwrap());
    browser.drag((left + 300.0, top + 100.0), (left + 500.0, top + 100.0));
    let window = browser.evaluate("mempool.view.window[1] - mempool.view.window[0]").as_f64().unwrap();
    let whole =
        browser.evaluate("mempool.view.device.times.at(-1) - mempool.view.device.times[0]").as_f64().unwrap();
    assert!(window > 0.1 * whole && window < 0.25 * whole, "{window} of {whole}");
    browser.evaluate("document.querySelector('.chart').focus()");
    browser.press("+");
    let halved = browser.evaluate("mempool.view.window[1] - mempool.view.window[0]").as_f64().unwrap();
    assert!((halved - window / 2.0).abs() < 1e-6 * window);
    browser.press("0");
    assert_eq!(browser.evaluate("mempool.view.window"), json!(null));
    // A press without a drag chooses a moment.
    browser.drag((left + 300.0, top + 100.0), (left + 300.0, top + 100.0));
    let chosen = moment(&mut browser);
    assert!(chosen > 0 && chosen < browser.evaluate("mempool.view.device.last").as_u64().unwrap() as usize);
    browser.evaluate("document.querySelector('.chart').focus()");
    browser.press("ArrowRight");
    assert_eq!(moment(&mut browser), chosen + 1);
}

#[test]
#[ignore = "needs Chromium; .ci/run runs it"]
fn devices_are_chosen_and_pytorchs_call_sites_are_told() {
    let mut browser = Browser::start();
    let snapshot = snapshots::of_pytorch();
    open(&mut browser, "devices", &snapshot, &[]);
    let names =
        browser.evaluate("[...document.querySelector('#device').options].map((one) => one.textContent)");
    assert_eq!(names, json!(["device 1", "device 3"]));
    for (index, device) in [(1, 3), (0, 1)] {
        browser.evaluate(&format!(
            "(() => {{ const device = document.querySelector('#device'); device.value = {index};
                device.dispatchEvent(new Event('change')); }})()"
        ));
        browser.settle();
        let last = snapshot.device_traces[device].len();
        assert_eq!(moment(&mut browser), last);
        assert_eq!(shown_blocks(&mut browser), blocks_at(&snapshot, device, last));
    }
    show_tab(&mut browser, "blocks");
    assert!(column(&mut browser, "Blocks", "Call site").iter().all(|site| site == "model.py:88"));
    assert_eq!(column(&mut browser, "By group", "Group"), [" model.py:88"]);
    show_tab(&mut browser, "pools");
    assert_eq!(column(&mut browser, "By pool and stream, at this moment", "Pool"), ["default"; 3]);
    show_tab(&mut browser, "map");
    browser.evaluate("document.querySelector('#map').focus()");
    browser.press("ArrowRight");
    assert!(text(&mut browser, "#details .stack").contains("<module> train.py:7"));
}

#[test]
#[ignore = "needs Chromium; .ci/run runs it"]
fn text_of_a_snapshot_stays_text() {
    let mut browser = Browser::start();
    let finding = Finding { severity: Severity::Warning, text: HOSTILE.into(), advice: HOSTILE.into() };
    let path = folder().join("hostile.html");
    std::fs::write(&path, report::page(&snapshots::hostile(), HOSTILE, &[finding])).unwrap();
    browser.set_window(1400, 1000, false);
    browser.open(&path);
    for tab in TABS {
        show_tab(&mut browser, tab);
        for device in ["mempool.change({selected: 0})", "mempool.change({selected: -1})"] {
            browser.evaluate(device);
            browser.settle();
        }
    }
    show_tab(&mut browser, "blocks");
    let labels = column(&mut browser, "Blocks", "Label");
    assert!(
        labels.len() == 5 && labels.iter().all(|label| label.starts_with("</script><img src=x onerror="))
    );
    assert!(text(&mut browser, "#title").starts_with("</script><img"));
    assert!(text(&mut browser, ".finding").contains("</script><img"));
    let title = browser.evaluate("document.title");
    assert!(title.as_str().unwrap().starts_with("</script>"), "{title}");
    assert_eq!(browser.evaluate("document.querySelectorAll('img').length"), json!(0));
    assert_eq!(browser.complaints(), [""; 0]);
    // The policy holds without the program's care, too.
    browser.evaluate(
        "document.body.insertAdjacentHTML('beforeend', '<img src=\"https://example.invalid/x.png\">')",
    );
    browser.evaluate("fetch('https://example.invalid/y').catch(() => 0)");
    browser.evaluate("(() => { const own = document.createElement('script'); own.textContent = 'document.title = 1'; document.body.append(own); })()");
    browser.settle();
    assert_eq!(browser.evaluate("document.title"), title);
    let refused = browser.complaints();
    assert!(refused.iter().any(|one| one.contains("Content Security Policy")), "{refused:?}");
}

#[test]
#[ignore = "needs Chromium; .ci/run runs it"]
fn a_hundred_thousand_events_are_opened_and_gone_through() {
    let mut browser = Browser::start();
    for (name, snapshot) in [("many", snapshots::training(600)), ("scattered", snapshots::scattered())] {
        let events = snapshot.device_traces[0].len();
        assert!(events >= 99_000, "{events}");
        open(&mut browser, name, &snapshot, &[]);
        let page = std::fs::metadata(folder().join(format!("{name}.html"))).unwrap().len();
        assert!(page < 5_000_000, "{page}");
        let ready = browser.evaluate("document.body.dataset.ready");
        let ready = ready.as_str().unwrap();
        println!("{name}: {events} events, a page of {page} bytes, ready {ready} ms after it was asked for");
        for tab in TABS {
            show_tab(&mut browser, tab);
            let times = browser.evaluate(STEPS);
            let [median, most] = [&times[0], &times[1]].map(|time| time.as_f64().unwrap());
            println!(
                "{name}: a step of the slider with tab {tab} takes {median:.1} ms, {most:.1} ms at most"
            );
            browser.take_picture(&folder().join(format!("{name}-{tab}.png")));
        }
        for now in [0, events / 3, events / 2, events] {
            browser.evaluate(&format!("mempool.change({{moment: {now}}})"));
            assert_eq!(shown_blocks(&mut browser), blocks_at(&snapshot, 0, now), "{name} at {now}");
        }
        assert_eq!(browser.complaints(), [""; 0]);
    }
}

/// Goes to 60 moments here and there; the time that this and what it draws take: the median, and the longest.
const STEPS: &str = "(() => {
    const times = [];
    for (let step = 0; step < 60; step += 1) {
        const begun = performance.now();
        mempool.change({moment: Math.floor(mempool.view.device.last * ((step * 37) % 60) / 60)});
        mempool.draw();
        document.body.offsetHeight;
        times.push(performance.now() - begun);
    }
    times.sort((one, other) => one - other);
    return [times[30], times[59]];
})()";
