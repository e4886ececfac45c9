//! The command as a process: what it finds in traces and in snapshots of others, and what it says of what it cannot read.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

const MIB: usize = 1 << 20;

fn doctor(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_mempool")).arg("doctor").args(args).current_dir(folder).output().unwrap()
}

/// The findings of each input.
fn findings(folder: &Path, args: &[&str]) -> Vec<Vec<Value>> {
    let output = doctor(folder, &[args, &["--json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).unwrap();
    let report =
        |line: &str| serde_json::from_str::<Value>(line).unwrap()["findings"].as_array().unwrap().clone();
    lines.lines().map(report).collect()
}

/// Steps that free what they allocate, of lengths that are never the same.
fn random_lengths() -> String {
    let mut trace = "op,id,bytes,stream\n".to_owned();
    let mut id = 0;
    for step in 0..12 {
        let first = id;
        for layer in 0..6 {
            id += 1;
            trace += &format!("a,{id},{},0\n", (21 + step * 4 + layer) * MIB);
        }
        (first + 1..=id).for_each(|id| trace += &format!("f,{id},,\n"));
        trace += &format!("s,{step},,\n");
    }
    trace
}

#[test]
fn a_trace_is_looked_at_where_memory_is_fullest() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("run.csv"), random_lengths()).unwrap();
    let found = findings(folder.path(), &["run.csv"]);
    assert_eq!(
        (&found[0][0]["cause"], &found[0][0]["severity"]),
        (&json!("idle_segments"), &json!("problem"))
    );
    let bytes = found[0][0]["bytes"].as_u64().unwrap() as usize;
    // All that the steps before had, whose segments are too short for the last.
    assert!(bytes > 1000 * MIB, "{bytes}");
    // With pages that move nothing is lost, so what is said is that it is none.
    let moving = findings(folder.path(), &["run.csv", "--policy", "pages", "--conf", "mode:moving"]);
    assert!(moving[0].iter().all(|finding| finding["cause"] != "idle_segments"), "{moving:?}");
    // Where a request finds no memory, that is what is looked at.
    let short = findings(
        folder.path(),
        &["run.csv", "--policy", "pages", "--conf", "mode:moving", "--limit", "100MiB"],
    );
    assert_eq!(
        (&short[0][0]["cause"], &short[0][0]["severity"]),
        (&json!("pool_too_small"), &json!("problem"))
    );
    let advice = short[0][0]["advice"].as_str().unwrap();
    assert!(advice.starts_with("give it "), "{advice}");
    // Also where nothing fits at all.
    let none = findings(folder.path(), &["run.csv", "--limit", "1MB"]);
    assert_eq!(none[0][0]["cause"], "pool_too_small");
}

#[test]
fn a_snapshot_of_pytorch_names_the_line_of_a_small_block_in_each_segment() {
    let folder = tempfile::tempdir().unwrap();
    let segment = |number: usize| {
        let at = (1 << 40) + number * 64 * MIB;
        let frames = json!([
            {"name": "step", "filename": "/x/site-packages/torch/optim/adam.py", "line": 4},
            {"name": "train", "filename": "train.py", "line": 88},
        ]);
        json!({"address": at, "total_size": 20 * MIB, "segment_type": "large", "blocks": [
            {"address": at, "size": MIB, "requested_size": MIB, "state": "active_allocated", "frames": frames},
            {"address": at + MIB, "size": 19 * MIB, "state": "inactive"},
        ]})
    };
    let snapshot = json!({"segments": (0..5).map(segment).collect::<Vec<_>>(), "device_traces": [
        [{"action": "oom", "size": 40 * MIB, "device_free": 0, "stream": 0}],
    ]});
    fs::write(folder.path().join("oom.json"), snapshot.to_string()).unwrap();
    let found = findings(folder.path(), &["oom.json"]);
    let first = &found[0][0];
    assert_eq!(
        (&first["cause"], &first["sites"][0]["name"]),
        (&json!("stuck_blocks"), &json!("train.py:88"))
    );
    let text = first["text"].as_str().unwrap();
    assert!(text.contains("95% of reserved memory (95 MiB of 100 MiB)"), "{text}");
    assert!(
        text.contains("the request of 40 MiB that found no memory is less than the 95 MiB that are free"),
        "{text}"
    );
    let told = String::from_utf8(doctor(folder.path(), &["oom.json"]).stdout).unwrap();
    assert!(told.starts_with("oom: 1 problem\n  problem: pool \"default\": 95%"), "{told}");
    assert!(told.contains("\n    at: train.py:88 (5 blocks, 95.0 MiB)\n"), "{told}");
}

#[test]
fn what_cannot_be_read_is_told_and_the_others_are_looked_at() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("run.csv"), random_lengths()).unwrap();
    fs::write(folder.path().join("cut.pickle"), b"\x80\x02}(X\x08\0\0\0seg").unwrap();
    let output = doctor(folder.path(), &["cut.pickle", "run.csv"]);
    assert_eq!(output.status.code(), Some(1));
    let (told, said) = (String::from_utf8(output.stderr).unwrap(), String::from_utf8(output.stdout).unwrap());
    assert!(
        told.contains("reading cut.pickle: the pickle cannot be read: it ends within an instruction"),
        "{told}"
    );
    assert!(said.starts_with("run: "), "{said}");
    fs::write(folder.path().join("empty.csv"), "op,id,bytes,stream\n").unwrap();
    let empty = doctor(folder.path(), &["empty.csv"]);
    assert_eq!(empty.status.code(), Some(1));
    assert!(String::from_utf8(empty.stderr).unwrap().contains("nothing was allocated"));
    let wrong = doctor(folder.path(), &["run.csv", "--policy", "pages", "--conf", "max_split_size_mb:5"]);
    assert_eq!(wrong.status.code(), Some(1), "options of another policy");
}
