//! How pages look, and what they do not let in.

use mempool_cli::report::{self, Finding, Severity};
use serde_json::json;

use super::{TABS, column, folder, open, show_tab, text};
use crate::browser::Browser;
use crate::snapshots::{self, HOSTILE};

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
fn snapshots_without_a_history_or_without_memory_say_so() {
    let mut browser = Browser::start();
    let mut snapshot = snapshots::of_pytorch();
    snapshot.device_traces.clear();
    snapshot
        .segments
        .iter_mut()
        .flat_map(|segment| &mut segment.blocks)
        .for_each(|block| (block.stack, block.owner) = (None, None));
    open(&mut browser, "bare", &snapshot, &[]);
    assert_eq!(browser.evaluate("mempool.view.tab"), json!("map"), "there is nothing over time");
    for tab in TABS {
        show_tab(&mut browser, tab);
        browser.take_picture(&folder().join(format!("bare-{tab}.png")));
    }
    assert!(text(&mut browser, "#summary").contains("The snapshot has no history."));
    assert_eq!(browser.evaluate("document.querySelector('#slider').disabled"), json!(true));
    show_tab(&mut browser, "blocks");
    assert_eq!(column(&mut browser, "Blocks", "Age"), vec!["older"; 30]);
    snapshot.segments.clear();
    open(&mut browser, "nothing", &snapshot, &[]);
    assert_eq!(text(&mut browser, "#loading"), "The snapshot has no pool and no memory.");
    assert_eq!(browser.evaluate("document.querySelector('#content').hidden"), json!(true));
    assert_eq!(browser.complaints(), [""; 0]);
}
