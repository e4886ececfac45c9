use std::fs;

use clap::Parser;

use super::*;
use crate::console::explain;

#[derive(Debug, Parser)]
struct Command {
    #[command(flatten)]
    args: Args,
}

/// A file of its own for each test.
fn file(name: &str, text: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("mempool-plan-{}-{name}", std::process::id()));
    fs::write(&path, text).unwrap();
    path
}

fn run_with(path: &Path, args: &[&str]) -> Result<()> {
    let command = ["plan", path.to_str().unwrap()].into_iter().chain(args.iter().copied());
    run(&Command::try_parse_from(command)?.args)
}

/// MiniMalloc's example.
const EXAMPLE: &str = "id,lower,upper,size\nb1,0,3,4\nb2,3,9,4\nb3,0,9,4\nb4,9,21,4\nb5,0,21,4\n";

#[test]
fn what_is_written_can_be_read_and_is_a_plan() {
    let path = file("example.csv", EXAMPLE);
    let output = file("placed.csv", "");
    run_with(&path, &["--capacity", "12", "--json", "--output", output.to_str().unwrap()]).unwrap();
    let written = fs::read_to_string(&output).unwrap();
    let read = buffers::parse(written.as_bytes()).unwrap();
    assert_eq!(read.buffers, buffers::parse(EXAMPLE.as_bytes()).unwrap().buffers);
    assert_eq!(read.ids, ["b1", "b2", "b3", "b4", "b5"]);
    let offsets = written.lines().skip(1).map(|line| line.rsplit(',').next().unwrap().parse().unwrap());
    let plan = Plan { offsets: offsets.collect(), peak_bytes: 12, max_live_bytes: 12, ..Plan::default() };
    assert_eq!(mempool_pools::arena::plan::verify(&read.buffers, 1, &plan), Ok(()));
}

#[test]
fn a_plan_that_does_not_fit_fails() {
    let path = file("unfit.csv", EXAMPLE);
    let error = run_with(&path, &["--capacity", "11"]).unwrap_err().to_string();
    assert_eq!(error, "1 of 1 plans do not fit 11 bytes");
}

#[test]
fn each_step_of_a_trace_is_planned() {
    let trace = "op,id,bytes,stream\na,1,100,0\nf,1,,\ns,0,,\na,2,10,0\na,3,20,0\nf,3,,\nf,2,,\ns,1,,\n";
    let path = file("trace.csv", trace);
    let output = file("steps.csv", "");
    run_with(&path, &["--output", output.to_str().unwrap()]).unwrap();
    assert_eq!(fs::read_to_string(&output).unwrap().lines().count(), 1 + 3);
    let error = run_with(&path, &["--capacity", "29"]).unwrap_err().to_string();
    assert_eq!(error, "2 of 2 plans do not fit 29 bytes");
}

#[test]
fn errors_name_the_file_and_the_line() {
    let large = format!("id,lower,upper,size\n\n0,0,1,1\n1,0,1,{}\n", u64::MAX);
    for (name, text, expected) in [
        ("large.csv", large.as_str(), "line 4"),
        ("damaged.csv", "id,lower,upper,size\n0,1,0,3\n", "line 2"),
        ("twice.csv", "id,lower,upper,size\na,0,1,3\na,1,2,3\n", "line 3"),
        ("neither.csv", "a,b\n", "line 1"),
        ("unnamed.csv", "b1,0,3,4\nb2,3,9,4\n", "line 1: \"b1,0,3,4\" is neither"),
        ("empty.csv", "", "empty"),
        ("again.csv", "op,id,bytes,stream\na,7,1,0\na,7,2,0\n", "event 2 allocates 7 again"),
    ] {
        let path = file(name, text);
        let error = explain(&run_with(&path, &[]).unwrap_err());
        assert!(error.contains(name) && error.contains(expected), "{error}");
    }
}

#[test]
fn numbers_that_make_no_sense_are_refused() {
    let path = file("numbers.csv", EXAMPLE);
    for args in [["--budget", "-1"], ["--budget", "NaN"], ["--tolerance", "inf"], ["--granule", "0"]] {
        let [option, value] = args;
        assert!(run_with(&path, &[&format!("{option}={value}")]).is_err(), "{args:?}");
    }
}

#[test]
fn one_json_object_has_the_keys_that_are_promised() {
    let (_, report) = plan(&[Buffer::new(0, 1, 8)], &Planner::default()).unwrap();
    let json = serde_json::to_value(report).unwrap();
    let keys: Vec<&String> = json.as_object().unwrap().keys().collect();
    let mut expected = ["buffers", "max_live_bytes", "peak_bytes", "ratio", "seconds", "feasible"];
    expected.sort_unstable();
    assert_eq!(keys, expected);
}
