//! The slider, the charts, the map and the choice of devices.

use std::collections::BTreeMap;

use mempool_pools::snapshot::{Block, BlockState, Segment};
use serde_json::json;

use super::{column, moment, open, show_tab, shown_blocks, text};
use crate::browser::Browser;
use crate::replayed::blocks_at;
use crate::snapshots;

/// Bytes that the page has as free in gaps without a whole page.
fn small_gaps(browser: &mut Browser) -> usize {
    browser.evaluate("mempool.figures().small").as_f64().unwrap() as usize
}

fn expected_small_gaps(segment: &Segment) -> usize {
    const PAGE: usize = 2 << 20;
    let is_small = |block: &&Block| {
        let (start, end) = (block.address, block.address + block.size);
        let has_page = start.next_multiple_of(PAGE) + PAGE <= end;
        block.state == BlockState::Inactive && !has_page && block.size < segment.total_size
    };
    segment.blocks.iter().filter(is_small).map(|block| block.size).sum()
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
            browser.evaluate("(({small, ...figures}) => figures)(mempool.figures())"),
            browser.evaluate(
                "(({figures}, moment) => ({free: figures.free[moment], largestFree: figures.largestFree[moment],
                    reserved: figures.reserved[moment]}))(mempool.view.device, mempool.view.moment)",
            ),
        );
        assert_eq!(own, given, "moment {now}");
    }
    browser.evaluate(&format!("mempool.change({{moment: {last}}})"));
    assert_eq!(small_gaps(&mut browser), snapshot.segments.iter().map(expected_small_gaps).sum::<usize>());
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
    let scale = text(&mut browser, "#map-scale");
    browser.evaluate("document.querySelector('#map').focus()");
    browser.press("+");
    let larger = text(&mut browser, "#map-scale");
    assert!(larger.starts_with("A row is") && larger != scale, "{larger}");
    // Groups that do not stand out are paler.
    let picture = "document.querySelector('#map canvas').toDataURL()";
    let plain = browser.evaluate(picture);
    browser.evaluate("document.querySelector('#panel-map .legend button').click()");
    browser.settle();
    assert_ne!(browser.evaluate(picture), plain);
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
        let of_device = snapshot.segments.iter().filter(|segment| segment.device == device);
        assert_eq!(small_gaps(&mut browser), of_device.map(expected_small_gaps).sum::<usize>());
        // Before anything was allocated segments are free as wholes.
        browser.evaluate("mempool.change({moment: 0})");
        assert_eq!(small_gaps(&mut browser), 0);
    }
    browser.evaluate("mempool.change({moment: mempool.view.device.last})");
    show_tab(&mut browser, "blocks");
    assert!(column(&mut browser, "Blocks", "Call site").iter().all(|site| site == "model.py:88"));
    assert_eq!(column(&mut browser, "By group", "Group"), [" model.py:88"]);
    show_tab(&mut browser, "pools");
    assert_eq!(column(&mut browser, "By pool and stream, at this moment", "Pool"), ["default"; 3]);
    assert_eq!(column(&mut browser, "Devices, when the snapshot was taken", "Device").len(), 2);
    browser.evaluate(
        "[...document.querySelectorAll('.link')].find((one) => one.textContent === 'device 3').click()",
    );
    browser.settle();
    assert_eq!(browser.evaluate("document.querySelector('#device').value"), json!("1"));
    show_tab(&mut browser, "map");
    browser.evaluate("document.querySelector('#map').focus()");
    browser.press("ArrowRight");
    assert!(text(&mut browser, "#details .stack").contains("<module> train.py:7"));
}

#[test]
#[ignore = "needs Chromium; .ci/run runs it"]
fn buttons_go_from_step_to_step_and_to_the_peak() {
    let mut browser = Browser::start();
    let snapshot = snapshots::training(6);
    open(&mut browser, "steps", &snapshot, &[]);
    let trace = &snapshot.device_traces[0];
    let ends = |at: usize| at == 0 || at == trace.len() || trace[at].step != trace[at - 1].step;
    let press = |browser: &mut Browser, name: &str| {
        browser.evaluate(&format!(
            "[...document.querySelectorAll('#moment button')].find((one) => one.textContent === {}).click()",
            json!(name)
        ));
        moment(browser)
    };
    let mut at = trace.len();
    for expected in (0..6).rev() {
        let before = press(&mut browser, "◀ Step");
        assert!(before < at && ends(before), "{before}");
        assert_eq!(trace[before - 1].step, expected);
        at = before;
    }
    assert_eq!(press(&mut browser, "◀ Step"), 0);
    let first = press(&mut browser, "Step ▶");
    assert!(ends(first) && first == at);
    assert!(ends(press(&mut browser, "Step ▶")) && moment(&mut browser) > first);
    let peak = press(&mut browser, "Peak");
    let occupied =
        "Math.max(...mempool.view.device.occupied) - mempool.view.device.occupied[mempool.view.moment]";
    assert!(peak > 0 && browser.evaluate(occupied) == json!(0));
}
