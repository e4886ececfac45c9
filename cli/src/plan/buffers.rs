//! Files of buffers, as MiniMalloc and its peers write them: a header, then one buffer a line.
//!
//! | column | also called | what it is |
//! |---|---|---|
//! | `id` | `buffer`, `buffer_id` | any text without a comma |
//! | `lower` | `start`, `begin` | when the buffer is born |
//! | `upper` | | when it is dead |
//! | `end` | | the last time it is alive, instead of `upper` |
//! | `size` | | its bytes |
//! | `alignment` | | its offset is a multiple of this; may be missing |
//!
//! They may come in any order. Other columns (`offset`, `hint`, ...) are passed over. So is `gaps`: a buffer with
//! gaps counts as alive throughout, which is safe but may need more.

use std::collections::HashSet;
use std::io::{self, BufRead, Read as _, Write};

use mempool_pools::arena::plan::{Buffer, Plan};
use thiserror::Error;

/// Longer lines are in no file of buffers; without an end to them a file of one line would be read into memory.
const LONGEST_LINE: u64 = 4096;
/// As many as memory for them is a few GB.
const MOST_BUFFERS: usize = 1 << 24;

/// A file of buffers that cannot be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BuffersError {
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A line that is no buffer.
    #[error("line {line}: {problem}: {text:?}")]
    Line {
        /// The line's number, counted from 1.
        line: u64,
        /// What is wrong.
        problem: &'static str,
        /// The line, at most its first 80 characters.
        text: String,
    },
    /// A column that has to be there.
    #[error("line 1: there is no column {column}: {text:?}")]
    Column {
        /// The column.
        column: &'static str,
        /// The header, at most its first 80 characters.
        text: String,
    },
    /// More buffers than are read.
    #[error("line {line}: more than {MOST_BUFFERS} buffers are not read")]
    TooMany {
        /// The first line that is too much.
        line: u64,
    },
}

/// What a file tells.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Buffers {
    /// The buffers.
    pub buffers: Vec<Buffer>,
    /// What each is called.
    pub ids: Vec<String>,
    /// Which line each is on.
    pub lines: Vec<u64>,
}

/// Which field is what.
#[derive(Debug, Clone, Copy)]
struct Columns {
    id: usize,
    lower: usize,
    upper: usize,
    /// Whether `upper` is the last time instead of the one after it.
    upper_is_alive: bool,
    size: usize,
    alignment: Option<usize>,
    count: usize,
}

/// Whether a first line is the header of such a file.
#[must_use]
pub fn begins(line: &str) -> bool {
    let has = |names: &[&str]| line.split(',').any(|field| names.contains(&field.trim()));
    has(&["lower", "start", "begin"]) || has(&["upper", "end"])
}

impl Columns {
    fn parse(header: &str) -> Result<Self, BuffersError> {
        let fields: Vec<&str> = header.split(',').map(str::trim).collect();
        let distinct: HashSet<&str> = fields.iter().copied().collect();
        if distinct.len() != fields.len() {
            return Err(wrong(1, "a column is there twice", header));
        }
        let find = |names: &[&str]| fields.iter().position(|field| names.contains(field));
        let need = |names: &[&'static str]| {
            find(names).ok_or_else(|| BuffersError::Column { column: names[0], text: shortened(header) })
        };
        Ok(Self {
            id: need(&["id", "buffer", "buffer_id"])?,
            lower: need(&["lower", "start", "begin"])?,
            upper: need(&["upper", "end"])?,
            upper_is_alive: find(&["upper"]).is_none(),
            size: need(&["size"])?,
            alignment: find(&["alignment"]),
            count: fields.len(),
        })
    }

    fn buffer<'a>(&self, text: &'a str, line: u64) -> Result<(&'a str, Buffer), BuffersError> {
        let fields: Vec<&str> = text.split(',').map(str::trim).collect();
        if fields.len() != self.count {
            return Err(wrong(line, "there are more or fewer fields than columns", text));
        }
        let number = |at: usize, problem| fields[at].parse::<u64>().map_err(|_| wrong(line, problem, text));
        let lower = number(self.lower, "the beginning is not a time")?;
        let upper = number(self.upper, "the end is not a time")?;
        let upper = upper.checked_add(u64::from(self.upper_is_alive));
        let upper = upper.ok_or_else(|| wrong(line, "the end is not a time", text))?;
        if lower >= upper {
            return Err(wrong(line, "the buffer ends before it begins, or is never alive", text));
        }
        let bytes = |at, problem| {
            usize::try_from(number(at, problem)?).map_err(|_| wrong(line, "the size is too large", text))
        };
        let size_bytes = bytes(self.size, "the size is not a number of bytes")?;
        let align_bytes = match self.alignment {
            Some(at) => bytes(at, "the alignment is not a number of bytes")?,
            None => 1,
        };
        if align_bytes == 0 {
            return Err(wrong(line, "nothing is aligned to 0 bytes", text));
        }
        Ok((fields[self.id], Buffer { lower, upper, size_bytes, align_bytes }))
    }
}

fn shortened(text: &str) -> String {
    text.chars().take(80).collect()
}

fn wrong(line: u64, problem: &'static str, text: &str) -> BuffersError {
    BuffersError::Line { line, problem, text: shortened(text) }
}

/// Reads a file.
///
/// # Errors
/// [`BuffersError`], with the line.
pub fn parse(mut source: impl BufRead) -> Result<Buffers, BuffersError> {
    let mut found = Buffers::default();
    let mut columns = None;
    let mut bytes = Vec::new();
    for line in 1.. {
        bytes.clear();
        if source.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut bytes)? == 0 {
            break;
        }
        let text = String::from_utf8_lossy(&bytes);
        let text = text.trim_end();
        if bytes.len() as u64 == LONGEST_LINE && !bytes.ends_with(b"\n") {
            return Err(wrong(line, "the line is too long", text));
        }
        let Some(columns) = &columns else {
            columns = Some(Columns::parse(text)?);
            continue;
        };
        if text.is_empty() {
            continue;
        }
        if found.buffers.len() == MOST_BUFFERS {
            return Err(BuffersError::TooMany { line });
        }
        let (id, buffer) = columns.buffer(text, line)?;
        found.ids.push(id.to_owned());
        found.buffers.push(buffer);
        found.lines.push(line);
    }
    if columns.is_none() {
        return Err(BuffersError::Column { column: "id", text: String::new() });
    }
    Ok(found)
}

/// Writes a line `id,lower,upper,size,offset` for each buffer, without [`HEADER`].
///
/// # Errors
/// What writing has.
pub fn write<I: std::fmt::Display>(
    mut out: impl Write,
    ids: impl IntoIterator<Item = I>,
    buffers: &[Buffer],
    plan: &Plan,
) -> io::Result<()> {
    for ((id, buffer), offset) in ids.into_iter().zip(buffers).zip(&plan.offsets) {
        let Buffer { lower, upper, size_bytes, .. } = buffer;
        writeln!(out, "{id},{lower},{upper},{size_bytes},{offset}")?;
    }
    Ok(())
}

/// The first line of what is written.
pub const HEADER: &str = "id,lower,upper,size,offset";

#[cfg(test)]
mod tests;
