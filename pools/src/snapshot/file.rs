//! Snapshots in files.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::read::MultiGzDecoder;

use super::pickle::Tree;
use super::{Snapshot, writing};
use crate::error::PoolError;

/// What is read of a compressed file at most: a short one can stand for any size.
const MAX_UNPACKED_BYTES: u64 = 4 << 30;

/// Why something cannot be read as a snapshot.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// It could not be read at all.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// It begins like neither format.
    #[error("it is neither a pickle (of protocol 2 or later) nor JSON")]
    Format,
    /// It is damaged, or no pickle of plain values.
    #[error("the pickle cannot be read: {0}")]
    Pickle(String),
    /// It is no JSON.
    #[error("the JSON cannot be read: {0}")]
    Json(#[from] serde_json::Error),
    /// It is something else than a snapshot.
    #[error("it is no memory snapshot: {0}")]
    Layout(String),
    /// A compressed file holds more than is read.
    #[error("it holds more than {limit_bytes} bytes when it is unpacked")]
    Size {
        /// What is read at most.
        limit_bytes: u64,
    },
}

impl Snapshot {
    /// Reads a snapshot: a pickle or JSON, ours or PyTorch's, compressed with gzip or not.
    ///
    /// Of PyTorch's what it does not have is made of what it has: devices and pools of those that segments name, who has a block
    /// of the trace. Frames of segments and external annotations are left out.
    ///
    /// Files of others are safe to read: nothing is built from classes that a pickle names, and what is made of a file is
    /// bounded by some hundred times its size (unpacked), or is an error.
    ///
    /// # Errors
    /// [`SnapshotError`].
    pub fn read(mut source: impl Read) -> Result<Self, SnapshotError> {
        let mut bytes = Vec::new();
        source.read_to_end(&mut bytes)?;
        if bytes.starts_with(&[0x1f, 0x8b]) {
            let mut unpacked = Vec::new();
            MultiGzDecoder::new(&bytes[..]).take(MAX_UNPACKED_BYTES + 1).read_to_end(&mut unpacked)?;
            if unpacked.len() as u64 > MAX_UNPACKED_BYTES {
                return Err(SnapshotError::Size { limit_bytes: MAX_UNPACKED_BYTES });
            }
            bytes = unpacked;
        }
        let tree = match bytes.trim_ascii_start().first() {
            Some(0x80) => Tree::read(&bytes).map_err(|problem| SnapshotError::Pickle(problem.to_string()))?,
            Some(b'{') => {
                let value = serde_json::from_slice(&bytes)?;
                let tree = Tree::of_json(value, bytes.len());
                tree.map_err(|problem| SnapshotError::Layout(problem.to_string()))?
            }
            _ => return Err(SnapshotError::Format),
        };
        drop(bytes);
        Self::from_tree(&tree).map_err(|wrong| SnapshotError::Layout(wrong.to_string()))
    }

    /// Reads the snapshot in a file, as [`read`](Self::read) does.
    ///
    /// # Errors
    /// [`PoolError::ReadSnapshot`].
    pub fn load(path: impl AsRef<Path>) -> Result<Self, PoolError> {
        let path = path.as_ref();
        let read = File::open(path).map_err(SnapshotError::from).and_then(Self::read);
        read.map_err(|error| PoolError::ReadSnapshot { path: path.to_owned(), reason: error.to_string() })
    }

    /// Writes the snapshot into a file: JSON if its name ends in `.json`, and a pickle otherwise. Both have the same keys but
    /// for call stacks, which a pickle has in each block and entry as `frames` too, for PyTorch's viewers. PyTorch's page opens
    /// either; `_memory_viz.py` wants a pickle.
    ///
    /// # Errors
    /// [`PoolError::Snapshot`] when the file cannot be written. A file that was there before is then as it was: the new one takes
    /// its place when it is whole. What is no file, as a pipe, is written to as it is.
    pub fn dump(&self, path: impl AsRef<Path>) -> Result<(), PoolError> {
        let path = path.as_ref();
        let as_json = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"));
        let write = |file: File| {
            let mut file = BufWriter::new(file);
            let written = if as_json { self.write_json(&mut file) } else { self.write_pickle(&mut file) };
            written.and_then(|()| file.flush())
        };
        write_file(path, write).map_err(|error| refused(path, &error))
    }

    /// Writes the snapshot as a pickle: protocol 2, without objects, as PyTorch's page reads it. It is written in small pieces.
    ///
    /// # Errors
    /// Those of `writer`.
    pub fn write_pickle(&self, writer: impl Write) -> std::io::Result<()> {
        writing::write(self, writer)
    }

    /// Writes the snapshot as JSON.
    ///
    /// # Errors
    /// Those of `writer`.
    pub fn write_json(&self, writer: impl Write) -> std::io::Result<()> {
        serde_json::to_writer(writer, self).map_err(std::io::Error::from)
    }
}

/// Writes a file beside the one that it then replaces.
fn write_file(path: &Path, write: impl Fn(File) -> io::Result<()>) -> io::Result<()> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    if std::fs::metadata(path).is_ok_and(|about| !about.is_file()) {
        return write(OpenOptions::new().write(true).open(path)?);
    }
    // A link stays one: what it leads to is replaced.
    let target = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let name = target.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy().into_owned();
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let beside = target.with_file_name(format!(".{name}.{}-{number}", std::process::id()));
    let file = OpenOptions::new().write(true).create_new(true).open(&beside)?;
    let written = write(file).and_then(|()| std::fs::rename(&beside, &target));
    written.inspect_err(|_| {
        let _ = std::fs::remove_file(&beside);
    })
}

fn refused(path: &Path, error: &std::io::Error) -> PoolError {
    PoolError::Snapshot { path: path.to_owned(), kind: error.kind(), reason: error.to_string() }
}
