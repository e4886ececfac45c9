//! Reading recorded allocations: this project's traces, and those of others.
//!
//! | format | what it looks like |
//! |---|---|
//! | this project's | lines `op,id,bytes,stream` ([`mempool_pools::arena::trace`]) |
//! | PyTorch's | a pickle of `torch.cuda.memory._dump_snapshot`; the events of `device_traces` |
//! | RMM's | a log of its `logging_resource_adaptor`: `Thread,Time,Action,Pointer,Size,Stream` |
//! | STAlloc's | lines `1 pointer bytes stream` and `0 pointer bytes stream`, with lines for phases |
//!
//! Each may be compressed with gzip.

mod addresses;
mod pytorch;
mod rmm;
mod stalloc;

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;
use indicatif::ProgressBar;
use mempool_pools::arena::trace::{Event, HEADER, TraceError};
use thiserror::Error;

/// The bytes that a gzip file begins with.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
/// The byte that a pickle of protocol 2 or later begins with.
const PICKLE_MAGIC: u8 = 0x80;

/// A trace that cannot be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// A line that is no event.
    #[error(transparent)]
    Line(#[from] TraceError),
    /// None of the formats.
    #[error(
        "line 1: {found:?} begins no trace: {HEADER:?}, a PyTorch snapshot, RMM's log (Thread,Time,Action,...) or \
         STAlloc's lines (1 pointer bytes stream) are known"
    )]
    UnknownFormat {
        /// The first line, at most its first 80 characters.
        found: String,
    },
    /// A pickle that is no snapshot.
    #[error("the snapshot cannot be read: {problem}")]
    Snapshot {
        /// What is wrong with it.
        problem: String,
    },
    /// A log that is not one of RMM's.
    #[error("record {record}: {problem}")]
    Rmm {
        /// The record's number, counted from 1.
        record: u64,
        /// What is wrong with it.
        problem: String,
    },
}

/// A trace in memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trace {
    /// What happened, in order.
    pub events: Vec<Event>,
    /// Frees of what was allocated before the recording began: they are left out.
    pub unknown_frees: u64,
}

/// Reads a trace of any known format. `progress` follows the bytes read from the file.
///
/// # Errors
/// [`ReadError`].
pub fn read(path: &Path, progress: &ProgressBar) -> Result<Trace, ReadError> {
    parse(progress.wrap_read(File::open(path)?))
}

/// As [`read`], from anywhere.
///
/// # Errors
/// [`ReadError`].
pub fn parse(source: impl Read) -> Result<Trace, ReadError> {
    let mut source = BufReader::new(source);
    if source.fill_buf()?.starts_with(&GZIP_MAGIC) {
        parse_plain(BufReader::new(MultiGzDecoder::new(source)))
    } else {
        parse_plain(source)
    }
}

fn parse_plain(mut source: impl BufRead) -> Result<Trace, ReadError> {
    if source.fill_buf()?.first() == Some(&PICKLE_MAGIC) {
        return pytorch::parse(source);
    }
    let mut first = String::new();
    source.read_line(&mut first)?;
    let line = first.trim_end();
    if line == HEADER {
        return own(source);
    }
    if rmm::begins(line) {
        return rmm::parse(first.as_bytes().chain(source));
    }
    if stalloc::begins(line) {
        return stalloc::parse(&first, source);
    }
    Err(ReadError::UnknownFormat { found: line.chars().take(80).collect() })
}

fn own(mut lines: impl BufRead) -> Result<Trace, ReadError> {
    let mut events = Vec::new();
    let mut line = String::new();
    for number in 2.. {
        line.clear();
        if lines.read_line(&mut line)? == 0 {
            break;
        }
        if !line.trim_end().is_empty() {
            events.push(Event::parse(&line, number)?);
        }
    }
    Ok(Trace { events, unknown_frees: 0 })
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::{Compression, write::GzEncoder};

    use super::parse;

    const TRACE: &str = "op,id,bytes,stream\na,1,100,0\nf,1,0,0\n\ns,0,,\n";

    #[test]
    fn plain_and_gzipped_traces_are_the_same() {
        let plain = parse(TRACE.as_bytes()).unwrap();
        assert_eq!(plain.events.len(), 3);
        let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
        gzip.write_all(TRACE.as_bytes()).unwrap();
        assert_eq!(parse(gzip.finish().unwrap().as_slice()).unwrap(), plain);
    }

    #[test]
    fn damaged_files_are_errors_that_name_the_line() {
        for (bytes, expected) in [
            (&b""[..], "line 1"),
            (b"id,size\n1,2\n", "line 1"),
            (b"op,id,bytes,stream\na,1,100,0\nz,1,0,0\n", "line 3"),
            (b"\x1f\x8bnot gzip after all", ""),
            (b"op,id,bytes,stream\n\xff\xfe\n", ""),
            (b"\x80\x02}", "snapshot"),
            (b"\x80\x02cos\nsystem\nU\x02lsR.", "snapshot"),
            (b"\x80\x02]q\x00.", "snapshot"),
        ] {
            let error = parse(bytes).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
