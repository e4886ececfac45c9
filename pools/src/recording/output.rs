//! The file of a recording, plain or compressed.
//!
//! The file is written to here and nowhere else: dropping an output writes nothing, so one that is only
//! the copy in a forked child can be dropped.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use mempool_arena::trace::{Event, HEADER};

use crate::error::PoolError;

/// Text is written to the file when there is so much of it: some thousand rows. More would make the
/// thread that happens to compress it wait longer.
const BUFFER_BYTES: usize = 64 << 10;
/// No row is longer.
const ROW_BYTES: usize = 80;

/// See the module's text.
#[derive(Debug)]
pub(super) struct Output {
    path: PathBuf,
    file: File,
    /// Whole rows that are not written yet.
    text: Vec<u8>,
    /// Compresses into memory.
    gzip: Option<GzEncoder<Vec<u8>>>,
    buffered_events: u64,
    written_events: u64,
    written_bytes: u64,
}

impl Output {
    /// Makes the file, or empties it. One that is being recorded into is left alone.
    pub(super) fn create(path: &Path) -> Result<Self, PoolError> {
        let file = open(path).map_err(|error| trace_error(path, &error, 0))?;
        let compressed = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gz"));
        let mut text = Vec::with_capacity(BUFFER_BYTES);
        text.extend_from_slice(HEADER.as_bytes());
        text.push(b'\n');
        Ok(Self {
            path: path.to_owned(),
            file,
            text,
            // The fastest level: threads that allocate wait for it.
            gzip: compressed.then(|| GzEncoder::new(Vec::new(), Compression::fast())),
            buffered_events: 0,
            written_events: 0,
            written_bytes: 0,
        })
    }

    pub(super) fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    /// Events that the file has; when it is compressed, those that it has or that wait in the compressor.
    pub(super) fn written_events(&self) -> u64 {
        self.written_events
    }

    /// Adds a row.
    pub(super) fn write(&mut self, event: Event) -> io::Result<()> {
        writeln!(self.text, "{event}")?;
        self.buffered_events += 1;
        if self.text.len() > BUFFER_BYTES - ROW_BYTES { self.flush() } else { Ok(()) }
    }

    /// Writes what is left of the trace.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        self.flush()?;
        match self.gzip.take() {
            Some(gzip) => self.append(&gzip.finish()?),
            None => Ok(()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut text = std::mem::take(&mut self.text);
        match &mut self.gzip {
            Some(gzip) => {
                gzip.write_all(&text)?;
                let compressed = std::mem::take(gzip.get_mut());
                self.append(&compressed)?;
            }
            None => self.append(&text)?,
        }
        text.clear();
        self.text = text;
        self.written_events += std::mem::take(&mut self.buffered_events);
        Ok(())
    }

    /// Appends to the file, or leaves it as it was, so that a plain trace ends with a whole row.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let written = self.file.write_all(bytes);
        match written {
            Ok(()) => self.written_bytes += bytes.len() as u64,
            // What is no file on a disk cannot be shortened, and need not be.
            Err(_) => drop(self.file.set_len(self.written_bytes)),
        }
        written
    }

    pub(super) fn error(&self, error: &io::Error, lost_events: u64) -> PoolError {
        trace_error(&self.path, error, lost_events)
    }
}

/// Opens the file, empty, for no other recording beside.
fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
    match file.try_lock() {
        // What cannot be locked, such as a pipe, cannot be told apart.
        Ok(()) | Err(TryLockError::Error(_)) => {}
        Err(TryLockError::WouldBlock) => {
            let reason = "another recording writes to this file";
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, reason));
        }
    }
    if file.metadata()?.is_file() {
        file.set_len(0)?;
    }
    Ok(file)
}

fn trace_error(path: &Path, error: &io::Error, lost_events: u64) -> PoolError {
    PoolError::Trace { path: path.to_owned(), kind: error.kind(), reason: error.to_string(), lost_events }
}
