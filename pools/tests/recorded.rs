//! Recordings, read back.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use mempool_pools::arena::trace::{Event, HEADER};
use mempool_pools::arena::{Pages, PagesOptions, Replay, SimulatedUpstream};

/// A file for a trace, gone with this.
pub struct Trace {
    path: PathBuf,
}

impl Trace {
    pub fn plain() -> Self {
        Self::named("csv")
    }

    pub fn gzipped() -> Self {
        Self::named("csv.gz")
    }

    fn named(extension: &str) -> Self {
        use std::sync::atomic::{AtomicU64, Ordering};
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("mempool-recording-{}-{number}.{extension}", std::process::id());
        Self { path: std::env::temp_dir().join(name) }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The events; the file has nothing else.
    pub fn events(&self) -> Vec<Event> {
        let mut text = String::new();
        let mut file = File::open(&self.path).expect("the trace is there");
        if self.path.extension().is_some_and(|extension| extension == "gz") {
            flate2::read::GzDecoder::new(file).read_to_string(&mut text).expect("whole and compressed");
        } else {
            file.read_to_string(&mut text).expect("text");
        }
        assert!(text.ends_with('\n'), "the last row is whole");
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some(HEADER));
        lines.zip(2..).map(|(line, number)| Event::parse(line, number).expect("an event")).collect()
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Replays a recording, and returns the most that was asked for at once.
pub fn replayed_peak(events: &[Event]) -> usize {
    check_completions(events);
    let make = || Ok(Box::new(Pages::new(PagesOptions::default())?) as Box<_>);
    let mut replay = Replay::new(SimulatedUpstream::builder().page_bytes(2 << 20).build(), make);
    for &event in events {
        replay.apply(event).expect("a recording can be replayed");
    }
    replay.totals().requested.peak
}

/// Each completion belongs to a free before it, and there is one at most.
fn check_completions(events: &[Event]) {
    let mut freed = HashMap::new();
    for event in events {
        match event {
            Event::Free { id } => assert_eq!(freed.insert(*id, false), None, "{id} is freed once"),
            Event::FreeCompleted { id } => {
                assert_eq!(freed.insert(*id, true), Some(false), "{id} is freed and completes once");
            }
            Event::Allocate { id, .. } => assert!(!freed.contains_key(id), "{id} names one block"),
            Event::StepEnd { .. } => {}
        }
    }
}
