//! The command as a process: where it reads, where it writes, and what it says about what is no snapshot.

use std::fs;
use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

use crate::snapshots;

/// Runs it in a folder of its own, with this as standard input.
fn run(folder: &TempDir, args: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_mempool"))
        .arg("report")
        .args(args)
        .current_dir(folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        // What ends early does not read all.
        scope.spawn(move || drop(stdin.write_all(input)));
        child.wait_with_output().unwrap()
    })
}

fn json() -> Vec<u8> {
    serde_json::to_vec(&snapshots::of_pytorch()).unwrap()
}

#[test]
fn the_page_lies_where_the_command_runs_and_is_called_as_the_snapshot_is() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("made")).unwrap();
    fs::write(folder.path().join("made/now.json"), json()).unwrap();
    let output = run(&folder, &["made/now.json"], b"");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stdout.is_empty());
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "mempool: now.html is written\n");
    let page = fs::read_to_string(folder.path().join("now.html")).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"));
}

#[test]
fn pipes_are_read_and_written_and_an_output_can_be_named() {
    let folder = tempfile::tempdir().unwrap();
    let printed = run(&folder, &["-", "-o", "-"], &json());
    assert!(printed.status.success());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    let written = run(&folder, &["-", "--output", "a page.html"], &json());
    assert!(written.status.success());
    assert_eq!(fs::read(folder.path().join("a page.html")).unwrap(), printed.stdout);
}

#[test]
fn what_is_no_snapshot_is_an_error_with_the_files_name() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("other.json"), "{\"segments\": 5}").unwrap();
    for (file, expected) in [
        ("other.json", "other.json: it is no memory snapshot: the snapshot: field segments is not a list"),
        ("gone.json", "gone.json"),
    ] {
        let output = run(&folder, &[file], b"");
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(expected), "{said}");
    }
    let output = run(&folder, &["-"], b"[1, 2");
    assert!(String::from_utf8(output.stderr).unwrap().contains("reading standard input"));
    let folders = run(&folder, &["-", "-o", "no/such/folder.html"], &json());
    assert!(String::from_utf8(folders.stderr).unwrap().contains("writing no/such/folder.html"));
}
