//! The library works inside Python, which knows nothing of its allocator or its hooks.

use std::path::PathBuf;
use std::process::Command;

#[test]
fn pools_serve_a_library_that_python_loads() {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let tests = std::env::current_exe().expect("a path");
    // Next to this test: cargo builds a package's library before its tests.
    let library = tests.with_file_name(format!(
        "{}mempool_extension{}",
        std::env::consts::DLL_PREFIX,
        std::env::consts::DLL_SUFFIX
    ));
    assert!(library.exists(), "{} is built with the tests", library.display());
    let device = if cfg!(feature = "cuda") { "0" } else { "-1" };
    let output = Command::new("python3")
        .arg(here.join("check.py"))
        .arg(&library)
        .arg(device)
        .output()
        .expect("this test needs python3");
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{stdout}\n{stderr}", output.status);
    assert_eq!(stdout.trim(), "ok", "{stderr}");
}
