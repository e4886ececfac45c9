//! Histories as long as they become.

use super::{TABS, folder, open, show_tab, shown_blocks};
use crate::browser::Browser;
use crate::replayed::blocks_at;
use crate::snapshots;

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
            // What follows when the slider rests.
            browser.evaluate("new Promise((done) => setTimeout(done, 200))");
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
