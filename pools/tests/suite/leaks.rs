//! What is live when a pool closes, and who is told.

use std::sync::{Arc, Mutex};

use mempool_pools::{CallStacks, HistoryOptions, MemPool, label, mark_step, record_history, stop_history};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::suite::BIG;
use crate::suite::history::alone;

/// Keeps what is warned of.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "mempool_pools::leaks" && *metadata.level() == Level::WARN
    }

    fn event(&self, event: &Event<'_>) {
        let mut message = Message(String::new());
        event.record(&mut message);
        self.0.lock().unwrap().push(message.0);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// What `f` makes pools warn of on this thread.
fn warned(f: impl FnOnce()) -> Vec<String> {
    let warnings = Warnings::default();
    tracing::subscriber::with_default(warnings.clone(), f);
    warnings.0.lock().unwrap().clone()
}

#[test]
fn leaks_are_told_by_place_and_label_with_their_age() {
    let _alone = alone();
    let pool = MemPool::builder().name("leaky").build().unwrap();
    let older = pool.with(|| vec![1_u8; 3 * BIG]);
    record_history(HistoryOptions::new().call_stacks(CallStacks::All)).unwrap();
    // Of one place, before and after the history began.
    assert!(!pool.leaks().leaks[0].site.contains("leaks.rs"));
    let mut kept = Vec::new();
    for _ in 0..3 {
        let _label = label("cache");
        kept.push(pool.with(|| Vec::<u8>::with_capacity(BIG)));
        mark_step();
    }
    let report = pool.leaks();
    assert_eq!((report.blocks(), report.bytes(), report.leaks.len()), (4, 6 * BIG, 2));
    let cache = report.leaks.iter().find(|leak| leak.label == "cache").unwrap();
    assert_eq!((cache.blocks, cache.bytes, cache.library), (3, 3 * BIG, None));
    assert!(cache.site.starts_with("leaks.rs:") && cache.age.is_some(), "{cache:?}");
    let before = report.leaks.iter().find(|leak| leak.label.is_empty()).unwrap();
    assert_eq!((before.blocks, before.age), (1, None));
    let text = report.to_string();
    assert!(text.starts_with("pool \"leaky\" has 4 live blocks of 6291456 bytes in all; "), "{text}");
    assert!(
        text.contains("3 of 3145728 bytes from leaks.rs:") && text.contains(" under cache, thread \""),
        "{text}"
    );
    assert!(text.contains("of before the history"), "{text}");
    drop((older, kept));
    assert!(pool.leaks().is_empty());
    stop_history();
}

#[test]
fn a_pool_that_closes_with_live_blocks_is_warned_of_while_a_history_is_kept() {
    let _alone = alone();
    stop_history();
    let close = |name: &str, other_handle: bool, live: bool| {
        let pool = MemPool::builder().name(name).build().unwrap();
        let block = pool.with(|| vec![5_u8; BIG]);
        let other = other_handle.then(|| pool.clone());
        let block = live.then_some(block);
        let warned = warned(|| drop(pool));
        // What lives on is valid, and whoever frees it last is no leak.
        assert!(block.iter().flatten().all(|&byte| byte == 5));
        drop((block, other));
        warned
    };
    assert_eq!(close("without history", false, true), [""; 0]);
    record_history(HistoryOptions::new()).unwrap();
    assert_eq!(close("still open", true, true), [""; 0]);
    assert_eq!(close("nothing live", false, false), [""; 0]);
    let told = close("leaves one", false, true);
    assert_eq!(told.len(), 1);
    assert!(told[0].contains("pool \"leaves one\" has 1 live block of 1048576 bytes"), "{told:?}");
    stop_history();
}
