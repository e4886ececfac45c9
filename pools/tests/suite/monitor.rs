use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

use mempool_pools::{MemPool, Monitor, PoolError};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::suite::{BIG, big};

/// What monitors logged: level, pool and text.
static LOGGED: Mutex<Vec<(Level, String, String)>> = Mutex::new(Vec::new());

/// Keeps what monitors log, and panics where a pool's name asks for it.
struct Log;

#[derive(Default)]
struct Read {
    pool: String,
    message: String,
}

impl Visit for Read {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "pool" {
            self.pool = value.to_owned();
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.message = format!("{value:?}");
        }
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "mempool_pools::monitor"
    }

    fn event(&self, event: &Event<'_>) {
        let mut read = Read::default();
        event.record(&mut read);
        let entry = (*event.metadata().level(), read.pool, read.message);
        let panics = entry.1.contains("panic in the log");
        LOGGED.lock().unwrap_or_else(PoisonError::into_inner).push(entry);
        assert!(!panics, "as asked for");
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Listens to what monitors log. A monitor watches the pools of all tests, so there is one at a time.
fn listen() -> MutexGuard<'static, ()> {
    static ONCE: Once = Once::new();
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    ONCE.call_once(|| tracing::subscriber::set_global_default(Log).expect("nobody else listens"));
    turn
}

/// What was logged about a pool.
fn logged(pool: &str) -> Vec<(Level, String)> {
    let logged = LOGGED.lock().unwrap_or_else(PoisonError::into_inner);
    logged.iter().filter(|entry| entry.1 == pool).map(|entry| (entry.0, entry.2.clone())).collect()
}

/// Waits until something holds, which has some seconds for it.
fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

const OFTEN: Duration = Duration::from_millis(10);

/// A pool of which more than the usual threshold is free but split, and what keeps it so.
fn split_pool(name: &str) -> (MemPool, Vec<Vec<u8>>) {
    let pool = MemPool::builder().name(name).build().unwrap();
    let mut blocks: Vec<Vec<u8>> = pool.with(|| (0..16).map(|_| vec![1_u8; BIG / 4]).collect());
    // Of each page of 1 MiB one quarter stays.
    let mut at = 0;
    blocks.retain(|_| {
        at += 1;
        at % 4 == 1
    });
    assert!(pool.stats().split_share() > 0.4, "{}", pool.stats().split_share());
    (pool, blocks)
}

#[test]
fn a_monitor_logs_a_line_for_each_pool_and_warns_of_those_cut_up() {
    let _turn = listen();
    let whole = MemPool::builder().name("logged whole").build().unwrap();
    let kept = whole.with(|| vec![1_u8; 2 * BIG]);
    let (split, blocks) = split_pool("logged split");
    let monitor = Monitor::start(OFTEN).unwrap();
    wait_until("both are logged twice", || {
        logged("logged whole").len() >= 2 && logged("logged split").len() >= 4
    });
    drop(monitor);
    let lines = logged("logged whole");
    let expected = "pool logged whole: 2.0 MiB allocated, 2.0 MiB reserved (peak 2.0 MiB), 0.0% free but split, \
                    hit rate 0.0%";
    // Another test may look at all pools just then.
    let is_expected = |line: &(Level, String)| line.0 == Level::INFO && line.1.starts_with(expected);
    assert!(lines.iter().all(is_expected), "{lines:?}");
    let lines = logged("logged split");
    let warnings: Vec<&String> =
        lines.iter().filter(|(level, _)| *level == Level::WARN).map(|(_, text)| text).collect();
    assert!(!warnings.is_empty());
    assert!(warnings.iter().all(|text| text.ends_with("is free but split")), "{warnings:?}");
    drop((kept, blocks, split));
}

#[test]
fn a_threshold_that_is_not_reached_warns_of_nothing() {
    let _turn = listen();
    let (pool, blocks) = split_pool("below the threshold");
    let monitor = Monitor::builder().interval(OFTEN).fragmentation_threshold(1.0).start().unwrap();
    wait_until("it is logged", || logged("below the threshold").len() >= 2);
    drop(monitor);
    assert!(logged("below the threshold").iter().all(|(level, _)| *level == Level::INFO));
    drop((blocks, pool));
}

#[test]
fn a_monitor_stops_at_once() {
    let _turn = listen();
    let monitors: Vec<Monitor> = (0..4).map(|_| Monitor::start(Duration::from_secs(3600)).unwrap()).collect();
    let start = Instant::now();
    drop(monitors);
    assert!(start.elapsed() < Duration::from_secs(10));
    // Also one that has not begun to wait yet.
    drop(Monitor::start(Duration::from_secs(3600)).unwrap());
}

#[test]
fn options_that_cannot_work_are_refused() {
    let refused = Monitor::start(Duration::ZERO).unwrap_err();
    assert!(matches!(refused, PoolError::Option { option: "interval", .. }), "{refused}");
    for share in [-0.1, 1.1, f64::NAN] {
        let refused = Monitor::builder().fragmentation_threshold(share).start().unwrap_err();
        assert!(matches!(refused, PoolError::Share { .. }), "{refused}");
    }
}

#[test]
fn a_panic_in_the_programs_log_does_not_end_the_monitor() {
    let _turn = listen();
    let pool = MemPool::builder().name("panic in the log").build().unwrap();
    let monitor = Monitor::start(OFTEN).unwrap();
    wait_until("it goes on", || logged("panic in the log").len() >= 3);
    drop(monitor);
    drop(pool);
}

#[test]
fn a_monitor_and_its_log_allocate_from_no_pool() {
    let _turn = listen();
    let pool = MemPool::builder().name("watched from inside").build().unwrap();
    let before = pool.stats();
    // Its making, too, is the monitor's.
    let monitor = pool.with(|| Monitor::start(OFTEN).unwrap());
    wait_until("it is logged", || logged("watched from inside").len() >= 3);
    drop(monitor);
    let after = pool.stats();
    assert_eq!(after.requested, before.requested);
    assert_eq!(after.bypassed_count, before.bypassed_count);
}

#[test]
fn metrics_keep_the_rules_of_their_format() {
    let name = "a \"quoted\"\nname\\";
    let pool = MemPool::builder().name(name).build().unwrap();
    let kept = pool.with(|| (big(), vec![1_u8; 3 * BIG]));
    let mut samples = Samples::new();
    let labels = |class: Option<&str>| {
        let mut labels = BTreeMap::from([
            ("device".to_owned(), "host".to_owned()),
            ("pool".to_owned(), name.to_owned()),
            ("pool_id".to_owned(), pool.id().to_string()),
        ]);
        labels.extend(class.map(|class| ("class".to_owned(), class.to_owned())));
        labels
    };
    // Another test may look at all pools just then.
    let age = ("mempool_pool_figures_age_seconds".to_owned(), labels(None));
    while samples.get(&age) != Some(&0.0) {
        samples = parse(&mempool_pools::metrics());
    }
    let value = |name: &str, class: Option<&str>| samples[&(name.to_owned(), labels(class))];
    assert_eq!(value("mempool_pool_requested_bytes", Some("small")), BIG as f64);
    assert_eq!(value("mempool_pool_requested_bytes", Some("large")), 3.0 * BIG as f64);
    assert_eq!(value("mempool_pool_blocks", Some("small")), 1.0);
    assert_eq!(value("mempool_pool_misses_total", None), 2.0);
    assert_eq!(value("mempool_pool_requested_bytes_total", None), 4.0 * BIG as f64);
    let mut written = Vec::new();
    mempool_pools::write_prometheus(&mut written).unwrap();
    parse(std::str::from_utf8(&written).unwrap());
    drop(kept);
}

type Samples = BTreeMap<(String, BTreeMap<String, String>), f64>;

/// Reads the text format, version 0.0.4, by its rules.
fn parse(text: &str) -> Samples {
    assert!(text.ends_with('\n'), "the last line ends too");
    let (mut samples, mut families) = (Samples::new(), BTreeSet::new());
    let mut family: Option<(String, Option<String>)> = None;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("a name and a text");
            assert!(families.insert(name.to_owned()), "{name} has one group of lines");
            assert!(is_name(name, true) && !help.is_empty());
            assert!(!help.replace("\\\\", "").replace("\\n", "").contains('\\'), "{help}");
            family = Some((name.to_owned(), None));
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a name and a type");
            let (of, before) = family.as_mut().expect("HELP comes first here");
            assert_eq!((name, &None), (of.as_str(), &*before), "one type, before the samples");
            assert!(["gauge", "counter"].contains(&kind));
            assert_eq!(kind == "counter", name.ends_with("_total"), "{name}");
            *before = Some(kind.to_owned());
        } else {
            let (name, labels, value) = parse_sample(line);
            let (of, kind) = family.as_ref().expect("a sample has a type");
            assert_eq!((&name, kind.is_some()), (of, true), "all of a family stand together");
            assert!(value.is_finite() && value >= 0.0, "{line}");
            assert!(samples.insert((name, labels), value).is_none(), "{line} is there twice");
        }
    }
    samples
}

fn parse_sample(line: &str) -> (String, BTreeMap<String, String>, f64) {
    let (name, rest) = line.split_once('{').expect("labels");
    assert!(is_name(name, true), "{name}");
    let mut labels = BTreeMap::new();
    let mut rest = rest;
    loop {
        let (label, after) = rest.split_once("=\"").expect("a label and its value");
        assert!(is_name(label, false), "{label}");
        let (value, after) = parse_value(after);
        assert!(labels.insert(label.to_owned(), value).is_none(), "{label} is there twice");
        if let Some(number) = after.strip_prefix("} ") {
            return (name.to_owned(), labels, number.parse().expect("a number"));
        }
        rest = after.strip_prefix(',').expect("another label");
    }
}

fn parse_value(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return (value, &text[at + 1..]),
            '\\' => value.push(match chars.next().expect("what is escaped").1 {
                '\\' => '\\',
                '"' => '"',
                'n' => '\n',
                other => panic!("\\{other} stands for nothing"),
            }),
            other => value.push(other),
        }
    }
    panic!("{text} does not end");
}

fn is_name(name: &str, may_have_colons: bool) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_' || (may_have_colons && c == ':');
    !name.is_empty() && name.chars().all(allowed) && !name.starts_with(|c: char| c.is_ascii_digit())
}
