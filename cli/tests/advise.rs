//! `mempool advise`, as a program.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn advise(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_mempool")).arg("advise").args(arguments).output().unwrap()
}

/// A file that is gone when the test ends.
struct File(PathBuf);

impl File {
    fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("mempool-advise-{}-{name}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Twenty steps of the same ten tensors.
fn trace() -> String {
    let mut text = "op,id,bytes,stream\n".to_owned();
    for step in 0..20 {
        (0..10).for_each(|id| text += &format!("a,{id},{},0\n", (id + 1) * 3_000_000));
        (0..10).for_each(|id| text += &format!("f,{id},,\n"));
        text += &format!("s,{step},,\n");
    }
    text
}

#[test]
fn a_trace_gets_advice_for_people_and_for_machines() {
    let file = File::new("trace.csv", &trace());
    let output = advise(&[file.path(), "--device-memory", "400MB"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.contains("Advice: a pool with a planned step"), "{text}");
    assert!(text.contains("MEMPOOL_CONF=policy:") && text.contains("Why:"), "{text}");
    let output = advise(&[file.path(), "--json", "--device-memory", "80GB", "--duration", "600"]);
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["recommendation"]["strategy"], "no_pool");
    assert_eq!(
        (&found["sizes"]["requests"], &found["repeats"]["steps"]["exact"]),
        (&200.into(), &1.0.into())
    );
    assert!(found["file"].as_str().unwrap().ends_with("trace"), "{found}");
    assert_eq!(found.get("device"), None);
}

#[test]
fn a_snapshot_with_few_events_gets_advice_from_what_lies_where() {
    let blocks = r#"[{"size": 2097152, "requested_size": 2000000, "state": "active_allocated"},
                     {"size": 207618048, "requested_size": 0, "state": "inactive"}]"#;
    let segment = format!(r#"{{"device": 0, "address": 4096, "total_size": 209715200, "blocks": {blocks}}}"#);
    let file = File::new("snapshot.json", &format!(r#"{{"segments": [{segment}], "device_traces": [[]]}}"#));
    let output = advise(&[file.path(), "--json"]);
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&found["device"], &found["evidence"]["kind"]), (&0.into(), &"layout".into()));
    assert_eq!(found["recommendation"]["conf"], "policy:pages,mode:moving");
    assert_eq!(found["stuck"]["free_bytes"], 207_618_048);
    assert!(found["unknown"].to_string().contains("lifetimes"), "{found}");
    assert_eq!(found["predictions"], Value::Array(Vec::new()));
}

#[test]
fn a_file_that_tells_nothing_keeps_nobody_from_the_others() {
    let (good, bad) = (File::new("good.csv", &trace()), File::new("bad.csv", "op,id,bytes,stream\nf,1,,\n"));
    let output = advise(&[bad.path(), good.path(), "--json"]);
    assert!(!output.status.success());
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("event 1: allocation 1 is freed, but not live"), "{text}");
    assert!(text.contains("no advice on 1 of 2 files"), "{text}");
    assert!(serde_json::from_slice::<Value>(&output.stdout).is_ok());
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_is_read() {
    for (arguments, expected) in [
        (&["none.csv", "--duration=-1"][..], "--duration -1 is not a number of seconds"),
        (&["none.csv", "--duration", "0"], "--duration 0 is not"),
        (&["none.csv", "--device-memory", "0"], "--device-memory 0"),
        (&["none.csv", "--device-memory", "much"], "--device-memory"),
        (&["-", "-"], "standard input"),
    ] {
        let output = advise(arguments);
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && text.contains(expected), "{arguments:?}: {text}");
    }
}

#[test]
fn standard_input_is_read() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_mempool"))
        .args(["advise", "-", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(trace().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&found["file"], output.status.success()), (&"stdin".into(), true));
}
