//! Reading a trace that a recording has written.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;
use mempool_arena::trace::{Event, HEADER};

use crate::error::PoolError;

/// What gzip files begin with.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// The events of a trace, plain or compressed.
///
/// # Errors
/// [`PoolError::ReadTrace`].
pub(crate) fn read_trace(path: &Path) -> Result<Vec<Event>, PoolError> {
    let wrong = |reason: String| PoolError::ReadTrace { path: path.to_owned(), reason };
    let failed = |error: std::io::Error| wrong(error.to_string());
    let mut file = BufReader::new(File::open(path).map_err(failed)?);
    let compressed = file.fill_buf().map_err(failed)?.starts_with(&GZIP_MAGIC);
    let text: Box<dyn Read> = if compressed { Box::new(MultiGzDecoder::new(file)) } else { Box::new(file) };
    let mut events = Vec::new();
    for (line, text) in (1..).zip(BufReader::new(text).lines()) {
        let text = text.map_err(failed)?;
        match line {
            1 if text.trim_end() != HEADER => {
                return Err(wrong(format!("it does not begin with the line {HEADER:?}")));
            }
            1 => {}
            _ => events.push(Event::parse(&text, line).map_err(|error| wrong(error.to_string()))?),
        }
    }
    Ok(events)
}
