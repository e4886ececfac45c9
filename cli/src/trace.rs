//! Reading recorded allocations: this project's traces, and those of others.
//!
//! | format | what it looks like |
//! |---|---|
//! | this project's | lines `op,id,bytes,stream` ([`mempool_pools::arena::trace`]) |
//! | snapshots | PyTorch's (`torch.cuda.memory._dump_snapshot`) and ours, pickles or JSON; the events of `device_traces` |
//! | RMM's | a log of its `logging_resource_adaptor`: `Thread,Time,Action,Pointer,Size,Stream` |
//! | STAlloc's | lines `1 pointer bytes stream` and `0 pointer bytes stream`, with lines for phases |
//!
//! Each may be compressed with gzip.

mod addresses;
mod pytorch;
mod rmm;
mod stalloc;

use std::io::{self, BufRead, BufReader, Read};

use flate2::read::MultiGzDecoder;
use mempool_pools::arena::trace::{Event, HEADER, TraceError};
use thiserror::Error;

use crate::lines::{LineError, Lines, shortened};

/// The bytes that a gzip file begins with.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
/// The byte that a pickle of protocol 2 or later begins with.
pub const PICKLE_MAGIC: u8 = 0x80;

/// A trace that cannot be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// A line that cannot be read as text.
    #[error(transparent)]
    Text(#[from] LineError),
    /// A line that is no event.
    #[error(transparent)]
    Line(#[from] TraceError),
    /// Nothing to read.
    #[error("the file is empty")]
    Empty,
    /// None of the formats.
    #[error(
        "line 1: {found:?} begins no trace: {HEADER:?}, a PyTorch snapshot, RMM's log (Thread,Time,Action,...) or \
         STAlloc's lines (1 pointer bytes stream) are known"
    )]
    UnknownFormat {
        /// The first line, at most its first 80 characters.
        found: String,
    },
    /// A pickle or JSON that is no snapshot.
    #[error("the snapshot cannot be read: {problem}")]
    Snapshot {
        /// What is wrong with it.
        problem: String,
    },
    /// A line of a log that is not one of RMM's.
    #[error("line {line}: {problem}: {text:?}")]
    Rmm {
        /// The line's number, counted from 1.
        line: u64,
        /// What is wrong with it.
        problem: String,
        /// The line, at most its first 80 characters.
        text: String,
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

/// Reads a trace of any known format.
///
/// # Errors
/// [`ReadError`].
pub fn parse(source: impl Read) -> Result<Trace, ReadError> {
    let mut source = decompressed(source)?;
    match source.fill_buf()?.first() {
        None => return Err(ReadError::Empty),
        Some(&(PICKLE_MAGIC | b'{')) => return pytorch::parse(source),
        Some(_) => {}
    }
    let mut lines = Lines::new(source);
    let first = lines.next()?.map_or("", |(_, text)| text).to_owned();
    if first == HEADER {
        return own(lines);
    }
    if rmm::begins(&first) {
        return rmm::parse(lines);
    }
    if stalloc::begins(&first) {
        return stalloc::parse(&first, lines);
    }
    Err(ReadError::UnknownFormat { found: shortened(&first) })
}

/// What is in a file, whether it was compressed with gzip or not.
///
/// # Errors
/// What reading the first bytes has.
pub fn decompressed<'a>(source: impl Read + 'a) -> io::Result<BufReader<Box<dyn Read + 'a>>> {
    let mut plain = BufReader::new(source);
    let is_gzip = plain.fill_buf()?.starts_with(&GZIP_MAGIC);
    let source: Box<dyn Read + 'a> =
        if is_gzip { Box::new(MultiGzDecoder::new(plain)) } else { Box::new(plain) };
    Ok(BufReader::new(source))
}

fn own(mut lines: Lines<impl BufRead>) -> Result<Trace, ReadError> {
    let mut events = Vec::new();
    while let Some((number, line)) = lines.next()? {
        if !line.is_empty() {
            events.push(Event::parse(line, number)?);
        }
    }
    Ok(Trace { events, unknown_frees: 0 })
}

#[cfg(test)]
mod tests {
    use std::io::{self, Read as _, Write as _};

    use flate2::{Compression, write::GzEncoder};
    use proptest::prelude::*;

    use super::parse;

    const RMM: &str = "Thread,Time,Action,Pointer,Size,Stream\n1,0,allocate,0x10,1,0x0\n";

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
    fn marks_and_ends_of_other_systems_change_nothing() {
        let expected = parse(TRACE.as_bytes()).unwrap();
        let marked = format!("\u{feff}{TRACE}");
        assert_eq!(parse(marked.as_bytes()).unwrap(), expected);
        assert_eq!(parse(TRACE.replace('\n', "\r\n").as_bytes()).unwrap(), expected);
        let recording = "1 139 2048 0\r\n0 139 2048 0\r\n";
        assert_eq!(parse(recording.as_bytes()).unwrap().events.len(), 2);
    }

    #[test]
    fn a_line_without_end_is_not_read_into_memory() {
        for begin in ["", "op,id,bytes,stream\n", "1 139 2048 0\n", RMM] {
            let error = parse(begin.as_bytes().chain(io::repeat(b'1'))).unwrap_err().to_string();
            assert!(error.contains("the line is longer than"), "{error}");
        }
    }

    #[test]
    fn what_is_cut_off_from_a_compressed_file_is_missed() {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
        gzip.write_all(TRACE.repeat(3).as_bytes()).unwrap();
        let gzip = gzip.finish().unwrap();
        let error = parse(&gzip[..gzip.len() - 9]).unwrap_err().to_string();
        assert!(error.starts_with("line "), "{error}");
    }

    #[test]
    fn damaged_files_are_errors_that_name_the_line() {
        for (bytes, expected) in [
            (&b""[..], "empty"),
            (b"\n", "line 1"),
            (b"id,size\n1,2\n", "line 1"),
            (b"op,id,bytes,stream\na,1,100,0\nz,1,0,0\n", "line 3"),
            (b"\x1f\x8bnot gzip after all", ""),
            (b"op,id,bytes,stream\n\xff\xfe\n", "line 2: the line is not UTF-8"),
            (b"op,id,bytes,stream\na,1,18446744073709551616,0\n", "line 2"),
            (b"op,id,bytes,stream\na,1,-1,0\n", "line 2"),
            (b"\x80\x02}", "snapshot"),
            (b"\x80\x02cos\nsystem\nU\x02lsR.", "snapshot"),
            (b"\x80\x02]q\x00.", "snapshot"),
        ] {
            let error = parse(bytes).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    proptest! {
        #[test]
        fn whatever_the_bytes_are_they_are_a_trace_or_an_error(
            begin in prop_oneof![Just(""), Just(TRACE), Just("1 139 2048 0\n"), Just(RMM), Just("\u{1f}\u{8b}")],
            fields in prop::collection::vec("[afcs01x,.\\-\n\r \u{feff}]|18446744073709551615", 0..60),
            damage in prop::option::of((any::<prop::sample::Index>(), any::<u8>())),
        ) {
            let mut bytes = format!("{begin}{}", fields.concat()).into_bytes();
            if let Some((at, byte)) = damage && !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            // What is read can be sorted by steps, or tells why not.
            if let Ok(trace) = parse(bytes.as_slice()) {
                let _ = crate::plan::steps::steps(&trace.events);
            }
        }
    }
}
