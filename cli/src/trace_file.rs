//! Reading a trace from a file, plain or gzipped.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use flate2::read::MultiGzDecoder;
use indicatif::ProgressBar;
use mempool_pools::arena::trace::{Event, HEADER};

/// The bytes that a gzip file begins with.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// All events of a trace. `progress` follows the bytes read from the file.
pub(crate) fn read(path: &Path, progress: &ProgressBar) -> Result<Vec<Event>> {
    let file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
    let file = progress.wrap_read(file);
    events(file).with_context(|| format!("reading {}", path.display()))
}

fn events(source: impl Read) -> Result<Vec<Event>> {
    let mut source = BufReader::new(source);
    let gzipped = source.fill_buf()?.starts_with(&GZIP_MAGIC);
    let mut lines: Box<dyn BufRead> =
        if gzipped { Box::new(BufReader::new(MultiGzDecoder::new(source))) } else { Box::new(source) };
    let mut line = String::new();
    lines.read_line(&mut line)?;
    if line.trim_end() != HEADER {
        let found: String = line.chars().take(80).collect();
        bail!("line 1: a trace begins with {HEADER:?}, found {found:?}");
    }
    let mut events = Vec::new();
    for number in 2.. {
        line.clear();
        if lines.read_line(&mut line)? == 0 {
            break;
        }
        if !line.trim_end().is_empty() {
            events.push(Event::parse(&line, number)?);
        }
    }
    Ok(events)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::{Compression, write::GzEncoder};

    use super::events;

    const TRACE: &str = "op,id,bytes,stream\na,1,100,0\nf,1,0,0\n\ns,0,,\n";

    #[test]
    fn plain_and_gzipped_traces_are_the_same() {
        let plain = events(TRACE.as_bytes()).unwrap();
        assert_eq!(plain.len(), 3);
        let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
        gzip.write_all(TRACE.as_bytes()).unwrap();
        assert_eq!(events(gzip.finish().unwrap().as_slice()).unwrap(), plain);
    }

    #[test]
    fn damaged_files_are_errors_that_name_the_line() {
        for (bytes, expected) in [
            (&b""[..], "line 1"),
            (b"id,size\n1,2\n", "line 1"),
            (b"op,id,bytes,stream\na,1,100,0\nz,1,0,0\n", "line 3"),
            (b"\x1f\x8bnot gzip after all", ""),
            (b"op,id,bytes,stream\n\xff\xfe\n", ""),
        ] {
            let error = format!("{:#}", events(bytes).unwrap_err());
            assert!(error.contains(expected), "{error}");
        }
    }
}
