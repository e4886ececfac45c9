//! Call stacks, and which line of them is the user's.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{BlockOwner, Snapshot};

/// Where in a program something was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Frame {
    /// The function.
    pub name: String,
    /// The file; empty where the program has no such information.
    pub filename: String,
    /// The line, from 1; 0 where the program has no such information.
    pub line: u32,
}

/// Functions that called each other.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Stack {
    /// The innermost first.
    pub frames: Vec<Frame>,
}

/// What the files of libraries have in their names: of Rust's standard library, of crates that others wrote, and of Python's.
const LIBRARIES: [&str; 7] = [
    "/rustc/",
    "/rustlib/",
    "/.cargo/registry/",
    "/.cargo/git/",
    "/cargo/registry/",
    "site-packages/",
    "dist-packages/",
];

/// What the files of PyTorch and Python's standard library have in their names where they were cut.
const LIBRARY_STARTS: [&str; 4] = ["torch/", "<frozen", "library/std/", "library/core/"];

impl Frame {
    /// Whether the function stands in a library, by the name of its file, or by its own where there is none. This project's
    /// own crates are libraries.
    #[must_use]
    pub fn is_library(&self) -> bool {
        let name = self.name.trim_start_matches(['<', '&']);
        let begins = |starts: &[&str]| starts.iter().any(|start| name.starts_with(start));
        if begins(&["mempool_pools::", "mempool_arena::", "candle_mempool::"]) || self.is_this_projects() {
            return true;
        }
        if self.filename.is_empty() {
            return begins(&["std::", "core::", "alloc::", "??", "__libc", "_start"]);
        }
        LIBRARIES.iter().any(|part| self.filename.contains(part))
            || LIBRARY_STARTS.iter().any(|start| self.filename.starts_with(start))
    }

    /// Whether the file is one of this project's crates, where they lie beside each other: names may be too short to tell.
    fn is_this_projects(&self) -> bool {
        let pools = Path::new(env!("CARGO_MANIFEST_DIR"));
        let beside = |name: &str| pools.parent().is_some_and(|all| self.lies_in(&all.join(name)));
        self.lies_in(pools) || beside("arena") || beside("candle-integration")
    }

    fn lies_in(&self, package: &Path) -> bool {
        Path::new(&self.filename).starts_with(package.join("src"))
    }

    /// The last part of the file's name and the line, as `optimizer.rs:88`; the function where there is no file.
    #[must_use]
    pub fn place(&self) -> String {
        let file = self.filename.rsplit(['/', '\\']).next().unwrap_or_default();
        match (file, self.line) {
            ("", _) => self.name.clone(),
            (file, 0) => file.to_owned(),
            (file, line) => format!("{file}:{line}"),
        }
    }
}

impl Snapshot {
    /// The line of a call stack that is the user's: the innermost one that stands in no library, or the innermost of all.
    #[must_use]
    pub fn call_site(&self, stack: Option<u32>) -> Option<&Frame> {
        let frames = &self.mempool.stacks.get(stack? as usize)?.frames;
        frames.iter().find(|frame| !frame.is_library()).or_else(|| frames.first())
    }

    /// What a pickle has as frames: the call stack, then the parts of the label, innermost first, with the thread as file.
    pub(super) fn frames_of(&self, stack: Option<u32>, label: &str, thread: &str) -> Vec<Frame> {
        let stack = stack.and_then(|at| self.mempool.stacks.get(at as usize));
        let parts = label.rsplit('/').filter(|part| !part.is_empty());
        let parts = parts.map(|part| Frame { name: part.to_owned(), filename: thread.to_owned(), line: 0 });
        stack.into_iter().flat_map(|stack| stack.frames.iter().cloned()).chain(parts).collect()
    }
}

impl BlockOwner {
    /// Somebody of whom nothing is known.
    pub(super) fn unknown() -> Self {
        Self { label: String::new(), thread: String::new(), step: 0, position: 0, time_us: 0, is_older: true }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(name: &str, filename: &str, line: u32) -> Frame {
        Frame { name: name.to_owned(), filename: filename.to_owned(), line }
    }

    #[test]
    fn lines_of_libraries_are_told_from_those_of_users() {
        let all = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let beside = |file: &str| all.join(file).display().to_string();
        for library in [
            frame("alloc::raw_vec::RawVec<T>::grow", "/rustc/abc/library/alloc/src/raw_vec.rs", 1),
            frame("candle_core::ops", "/builds/a/.cargo/registry/src/x/candle-core-0.11.1/src/op.rs", 7),
            frame("forward", "/usr/lib/python3/site-packages/torch/nn/modules/linear.py", 3),
            frame("backward", "torch/_tensor.py", 3),
            frame("std::rt::lang_start", "", 0),
            frame("with<f>", concat!(env!("CARGO_MANIFEST_DIR"), "/src/pool.rs"), 5),
            frame("write", &beside("candle-integration/src/out.rs"), 5),
            frame("<candle_mempool::pool::Pool>::with", "/builds/a/candle-integration/src/pool.rs", 5),
        ] {
            assert!(library.is_library(), "{library:?}");
        }
        for users in [
            frame("main", "src/main.rs", 3),
            frame("train::step", "", 0),
            frame("f", "/a/torch_like/b.py", 1),
        ] {
            assert!(!users.is_library(), "{users:?}");
        }
        assert_eq!(frame("f", "/a/b/optimizer.rs", 88).place(), "optimizer.rs:88");
        assert_eq!(frame("f", "C:\\b\\c.rs", 0).place(), "c.rs");
        assert_eq!(frame("f", "", 0).place(), "f");
    }
}
