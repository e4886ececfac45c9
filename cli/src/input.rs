//! What commands read: files and standard input, each once and from its start, since it may be a pipe.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use bytesize::ByteSize;
use mempool_cli::trace::{self, Trace};
use mempool_pools::arena::CostModel;

use crate::console::Console;

/// What stands for standard input.
const STANDARD_INPUT: &str = "-";

/// Checks that standard input is read once at most.
pub(crate) fn check(paths: &[PathBuf]) -> Result<()> {
    let count = paths.iter().filter(|path| path.as_os_str() == STANDARD_INPUT).count();
    ensure!(count <= 1, "standard input ({STANDARD_INPUT}) can be read once, and not {count} times");
    Ok(())
}

/// What a file is called in results: its name without what tells the format.
pub(crate) fn name(path: &Path) -> String {
    if path.as_os_str() == STANDARD_INPUT {
        return "stdin".to_owned();
    }
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    name.trim_end_matches(".gz")
        .trim_end_matches(".csv")
        .trim_end_matches(".pickle")
        .trim_end_matches(".json")
        .to_owned()
}

/// What a file is called in messages.
pub(crate) fn described(path: &Path) -> String {
    if path.as_os_str() == STANDARD_INPUT { "standard input".to_owned() } else { path.display().to_string() }
}

/// Opens a file. The bar follows what is read.
pub(crate) fn open<'a>(path: &Path, console: &'a Console) -> Result<Box<dyn Read + 'a>> {
    let message = format!("reading {}", described(path));
    if path.as_os_str() == STANDARD_INPUT {
        console.begin(message, 0);
        return Ok(Box::new(console.follow(io::stdin().lock())));
    }
    let about = fs::metadata(path)?;
    if about.is_dir() {
        bail!("it is a directory");
    }
    console.begin(message, about.len());
    Ok(Box::new(console.follow(File::open(path)?)))
}

/// Reads a trace, and says what was left out of it.
pub(crate) fn trace(path: &Path, console: &Console) -> Result<(String, Trace)> {
    let context = || format!("reading {}", described(path));
    let trace = trace::parse(open(path, console).with_context(context)?).with_context(context)?;
    tell_left_out(path, &trace, console);
    Ok((name(path), trace))
}

/// Says what was left out of a trace.
pub(crate) fn tell_left_out(path: &Path, trace: &Trace, console: &Console) {
    if trace.unknown_frees > 0 {
        let count = trace.unknown_frees;
        console.tell(format_args!("{}: {count} frees of earlier allocations left out", described(path)));
    }
}

/// What calls take, from a JSON file.
pub(crate) fn costs(path: &Path) -> Result<CostModel> {
    let read = || {
        let costs: CostModel = serde_json::from_reader(File::open(path)?)?;
        costs.checked().map_err(|problem| anyhow!(problem))
    };
    read().with_context(|| format!("reading {}", path.display()))
}

/// A number of bytes that was given, with or without a unit.
///
/// # Errors
/// What is no size, and what is more than can be addressed: [`ByteSize`] would make the largest number of it.
pub(crate) fn bytes(text: &str) -> Result<usize, String> {
    let bytes = text.parse::<ByteSize>()?.as_u64();
    // The largest number itself can be given as such.
    if bytes == u64::MAX && text.parse() != Ok(u64::MAX) {
        return Err(format!("that is more than {} bytes", u64::MAX));
    }
    usize::try_from(bytes).map_err(|_| format!("that is more than {} bytes", usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_the_numbers_that_were_given_or_none() {
        assert_eq!(bytes("1048576"), Ok(1 << 20));
        assert_eq!(bytes("1.5 MiB"), Ok(3 << 19));
        assert_eq!(bytes(&u64::MAX.to_string()), Ok(usize::MAX));
        for text in ["100000EiB", "16 EiB", "1e30", "99999999999999999999", "-1", "", "many", "1 bit"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn names_are_those_of_the_files_without_their_formats() {
        for (path, expected) in [
            ("-", "stdin"),
            ("a/run.csv.gz", "run"),
            ("b.pickle", "b"),
            ("b.json.gz", "b"),
            ("/dev/stdin", "stdin"),
            ("c", "c"),
        ] {
            assert_eq!(name(Path::new(path)), expected);
        }
    }
}
