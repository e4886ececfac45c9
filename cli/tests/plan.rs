//! `mempool plan` as a process: what it reads from pipes, and what it says about input that makes no sense.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::thread;

use flate2::{Compression, write::GzEncoder};

const HEADER: &str = "id,lower,upper,size\n";

/// MiniMalloc's example.
const EXAMPLE: &str = "id,lower,upper,size\nb1,0,3,4\nb2,3,9,4\nb3,0,9,4\nb4,9,21,4\nb5,0,21,4\n";

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mempool"));
    command.arg("plan").args(args);
    command
}

/// Runs it with this as standard input.
fn piped(args: &[&str], text: &[u8]) -> Output {
    let mut child =
        command(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    thread::scope(|scope| {
        // What ends early does not read all.
        scope.spawn(move || stdin.write_all(text));
        child.wait_with_output().unwrap()
    })
}

/// A file of its own for each test.
fn file(name: &str, bytes: &[u8]) -> PathBuf {
    let path = std::env::temp_dir().join(format!("mempool-plan-process-{}-{name}", std::process::id()));
    fs::write(&path, bytes).unwrap();
    path
}

/// What it says about a file, with its results.
fn said(args: &[&str], name: &str, bytes: &[u8]) -> (bool, String, String) {
    let path = file(name, bytes);
    let output = command(&[&["--json", path.to_str().unwrap()], args].concat()).output().unwrap();
    let _ = fs::remove_file(path);
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.success(), text(output.stdout), text(output.stderr))
}

fn gzip(text: &str) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gzip.write_all(text.as_bytes()).unwrap();
    gzip.finish().unwrap()
}

/// The results without what differs each time.
fn results(output: &[u8]) -> serde_json::Value {
    let mut results: serde_json::Value = serde_json::from_slice(output).unwrap();
    assert!(results.as_object_mut().unwrap().remove("seconds").is_some());
    results
}

#[test]
fn a_pipe_is_read_like_a_file_compressed_or_not() {
    // Longer than what a pipe holds.
    let lines = (0..20_000).map(|at| format!("b{at},{at},{},{}\n", at + 7, 1 + at % 13));
    let text = format!("{HEADER}{}", lines.collect::<String>());
    let (success, stdout, _) = said(&["--budget", "0"], "large.csv", text.as_bytes());
    assert!(success);
    let expected = results(stdout.as_bytes());
    assert_eq!(expected["buffers"], 20_000);
    for path in ["-", "/dev/stdin"] {
        for bytes in [text.as_bytes(), &gzip(&text)] {
            let output = piped(&["--json", "--budget", "0", path], bytes);
            assert!(output.status.success(), "{path}: {output:?}");
            assert_eq!(results(&output.stdout), expected, "{path}");
        }
    }
    let trace = "op,id,bytes,stream\na,1,100,0\nf,1,,\n";
    let output = piped(&["--json", "-"], trace.as_bytes());
    assert_eq!(results(&output.stdout)["trace"], "stdin");
    let nothing = piped(&["-"], b"");
    assert_eq!(
        String::from_utf8_lossy(&nothing.stderr),
        "mempool: reading standard input: the file is empty\n"
    );
    let twice = piped(&["-", "-"], text.as_bytes());
    assert!(
        !twice.status.success() && String::from_utf8_lossy(&twice.stderr).contains("once, and not 2 times")
    );
}

#[test]
fn what_other_programs_write_is_read() {
    for (name, bytes) in [
        ("marked.csv", format!("\u{feff}{EXAMPLE}").into_bytes()),
        ("returns.csv", EXAMPLE.replace('\n', "\r\n").into_bytes()),
        ("separators.csv", EXAMPLE.replace('\n', ",\n").into_bytes()),
        ("more.csv", EXAMPLE.replace("size\n", "size,note,\n").replace(",4\n", ",4,x,\n").into_bytes()),
        ("order.csv", b"size,upper,id,lower\n4,3,a,0\n4,9,b,3\n4,9,c,0\n4,21,d,9\n4,21,e,0\n".to_vec()),
        ("gzip.csv", gzip(EXAMPLE)),
    ] {
        let (success, stdout, stderr) = said(&["--capacity", "12"], name, &bytes);
        assert!(success, "{name}: {stderr}");
        assert_eq!(results(stdout.as_bytes())["peak_bytes"], 12, "{name}");
    }
}

#[test]
fn input_that_makes_no_sense_is_an_error_with_file_line_and_numbers() {
    let most = u64::MAX;
    let large = u64::MAX / 4;
    let huge = "1".repeat(1 << 20);
    let utf16: Vec<u8> = format!("\u{feff}{EXAMPLE}").encode_utf16().flat_map(u16::to_le_bytes).collect();
    let compressed = gzip(&EXAMPLE.repeat(50));
    let cases: &[(&str, Vec<u8>, &str)] = &[
        ("empty.csv", Vec::new(), "the file is empty"),
        ("compressed-empty.csv", gzip(""), "the file is empty"),
        ("headless.csv", b"b1,0,3,4\nb2,3,9,4\n".to_vec(), "line 1: \"b1,0,3,4\" is neither a header"),
        ("column.csv", b"id,lower,upper\n1,2,3\n".to_vec(), "line 1: there is no column size"),
        ("never.csv", format!("{HEADER}a,5,5,1\n").into(), "line 2: the buffer begins at 5 and ends at 5"),
        (
            "before.csv",
            format!("{HEADER}a,0,1,1\nb,5,2,1\n").into(),
            "line 3: the buffer begins at 5 and ends at 2",
        ),
        (
            "twice.csv",
            format!("{HEADER}a,0,1,1\n\na,5,6,1\n").into(),
            "line 4: the buffer \"a\" is there already, on line 2",
        ),
        (
            "sum.csv",
            format!("{HEADER}a,0,1,{large}\nb,0,1,1\nc,2,3,{large}\n").into(),
            "line 3: the sizes of the first 2",
        ),
        ("size.csv", format!("{HEADER}a,0,1,{most}\n").into(), "line 2: the sizes of the first 1"),
        (
            "larger.csv",
            format!("{HEADER}a,0,1,{most}0\n").into(),
            "line 2: the size \"184467440737095516150\" is more than 18446744073709551615",
        ),
        ("negative.csv", format!("{HEADER}a,-3,1,1\n").into(), "line 2: the beginning \"-3\" is negative"),
        (
            "float.csv",
            format!("{HEADER}a,0,1,2.5\n").into(),
            "line 2: the size \"2.5\" is not a whole number",
        ),
        (
            "fields.csv",
            format!("{HEADER}a,0,1,2,3\n").into(),
            "line 2: there are 5 fields, and the header has 4",
        ),
        ("few.csv", format!("{HEADER}a,0,1\n").into(), "line 2: there are 3 fields, and the header has 4"),
        ("huge.csv", huge.clone().into(), "line 1: the line is longer than 4096 bytes"),
        ("later.csv", format!("{HEADER}{huge}\n").into(), "line 2: the line is longer than 4096 bytes"),
        (
            "bytes.csv",
            [HEADER.as_bytes(), b"\xc3\x28,0,1,1\n"].concat(),
            "line 2: the line is not UTF-8 from its byte 1 on",
        ),
        ("utf16.csv", utf16, "line 1: the line is not UTF-8 from its byte 1 on"),
        ("cut.csv.gz", compressed[..compressed.len() - 12].to_vec(), "reading"),
        ("event.csv", b"op,id,bytes,stream\na,1,-1,0\n".to_vec(), "line 2: the third field is not a size"),
        ("ids.csv", b"op,id,bytes,stream\na,1,1,0\na,1,1,0\n".to_vec(), "event 2 allocates 1 again"),
        (
            "step.csv",
            format!("op,id,bytes,stream\na,1,{large},0\na,2,{large},0\nf,1,,\nf,2,,\n").into(),
            "step 0: allocation 2",
        ),
    ];
    for (name, bytes, expected) in cases {
        let (success, stdout, stderr) = said(&[], name, bytes);
        assert!(!success && stdout.is_empty(), "{name}: {stdout}");
        assert!(stderr.starts_with("mempool: ") && stderr.lines().count() == 1, "{name}: {stderr}");
        assert!(stderr.contains(name) && stderr.contains(expected), "{name}: {stderr}");
        assert!(stderr.len() < 600, "{name}: {stderr}");
    }
}

#[test]
fn what_is_no_file_of_text_is_an_error() {
    let directory = std::env::temp_dir();
    for (path, expected) in
        [(directory.to_str().unwrap(), "it is a directory"), ("/nowhere/at/all.csv", "No such file")]
    {
        let output = command(&[path, "--json"]).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && output.stdout.is_empty());
        assert!(stderr.contains(path) && stderr.contains(expected), "{stderr}");
    }
}

#[test]
fn a_capacity_that_no_plan_fits_is_told_with_what_is_too_large_for_it() {
    let text = format!("{HEADER}a,0,2,4\nb,1,3,9\nc,5,6,1\n");
    for (capacity, expected) in [
        ("8", "line 3: 9 bytes are more than --capacity 8: no plan fits"),
        ("12", "13 bytes live at one time, more than --capacity 12: no plan fits"),
    ] {
        let (success, stdout, stderr) = said(&["--capacity", capacity], "capacity.csv", text.as_bytes());
        assert!(!success);
        assert!(stderr.contains("capacity.csv") && stderr.contains(expected), "{stderr}");
        assert!(stderr.contains(&format!("1 of 1 plans do not fit {capacity} bytes")), "{stderr}");
        let results = results(stdout.as_bytes());
        assert_eq!((&results["feasible"], &results["peak_bytes"]), (&false.into(), &13.into()));
    }
    let (success, stdout, _) = said(&["--capacity", "13"], "capacity.csv", text.as_bytes());
    assert!(success && results(stdout.as_bytes())["feasible"] == true);
}

#[test]
fn options_that_are_no_numbers_are_refused_and_none_is_made_of_them() {
    for (option, value) in
        [("--capacity", "100000EiB"), ("--capacity", "-1"), ("--granule", "18446744073709551616")]
    {
        let (success, stdout, stderr) =
            said(&[&format!("{option}={value}")], "options.csv", EXAMPLE.as_bytes());
        assert!(!success && stdout.is_empty(), "{option} {value}: {stdout}");
        assert!(stderr.contains(value) && !stderr.contains("panicked"), "{stderr}");
    }
}

#[test]
fn a_budget_that_ends_before_the_quick_plans_is_told() {
    let lines = (0..3_000_u64)
        .map(|at| format!("{at},{},{},{}\n", at % 97, at % 97 + 1 + at % 89, 1 + at * at % 1013));
    let text = format!("{HEADER}{}", lines.collect::<String>());
    let (success, stdout, stderr) =
        said(&["--budget", "1e-9", "--tolerance", "0"], "budget.csv", text.as_bytes());
    assert!(success, "{stderr}");
    assert!(
        stderr.contains("budget.csv: --budget 0.000000001 ended before all quick plans were made"),
        "{stderr}"
    );
    assert!(results(stdout.as_bytes())["ratio"].as_f64().unwrap() >= 1.0);
}

#[test]
fn output_that_nobody_reads_is_no_failure() {
    let path = file("closed.csv", EXAMPLE.as_bytes());
    let path = path.to_str().unwrap();
    for args in [&[path][..], &[path, "--json"]] {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let output = command(args).stdout(writer).stderr(Stdio::piped()).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    }
    // Messages neither: the status tells.
    let (reader, writer) = io::pipe().unwrap();
    drop(reader);
    let output = command(&[path, "--json", "--capacity", "11"])
        .stdout(Stdio::piped())
        .stderr(writer)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(results(&output.stdout)["feasible"], false);
}

#[test]
#[cfg(target_os = "linux")]
fn output_that_cannot_be_written_is_an_error() {
    let path = file("full.csv", EXAMPLE.as_bytes());
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = command(&[path.to_str().unwrap(), "--json"]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("No space left"), "{output:?}");
    let output = command(&[path.to_str().unwrap(), "--output", "/nowhere/at/all.csv"]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("writing /nowhere/at/all.csv"), "{output:?}");
}
