//! Files of buffers, as MiniMalloc and its peers write them: a header, then one buffer a line.
//!
//! | column | also called | what it is |
//! |---|---|---|
//! | `id` | `buffer`, `buffer_id` | any text without a comma, another one for each buffer |
//! | `lower` | `start`, `begin` | when the buffer is born |
//! | `upper` | | when it is dead |
//! | `end` | | the last time it is alive, instead of `upper` |
//! | `size` | | its bytes |
//! | `alignment` | | its offset is a multiple of this; may be missing |
//!
//! They may come in any order, in letters of any case. Other columns (`offset`, `hint`, ...) are passed over. So is `gaps`: a buffer with
//! gaps counts as alive throughout, which is safe but may need more.

use std::collections::HashMap;
use std::io::{self, BufRead, Write};

use mempool_pools::arena::plan::{Buffer, Plan};
use thiserror::Error;

use crate::lines::{BYTE_ORDER_MARK, LineError, Lines, shortened};

/// As many as memory for them is a few GB.
const MOST_BUFFERS: usize = 1 << 24;

/// A file of buffers that cannot be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BuffersError {
    /// The file cannot be read as text.
    #[error(transparent)]
    Text(#[from] LineError),
    /// A line that is no buffer.
    #[error("line {line}: {problem}: {text:?}")]
    Line {
        /// The line's number, counted from 1.
        line: u64,
        /// What is wrong.
        problem: String,
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
    /// Two buffers that are called the same.
    #[error("line {line}: the buffer {id:?} is there already, on line {first}")]
    Twice {
        /// The line of the second one.
        line: u64,
        /// The line of the first one.
        first: u64,
        /// What they are called, at most its first 80 characters.
        id: String,
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

/// The fields of a line.
fn fields(line: &str) -> impl Iterator<Item = &str> {
    line.split(',').map(str::trim)
}

/// Whether a first line is the header of such a file.
#[must_use]
pub fn begins(line: &str) -> bool {
    let is_time = |field: &str| {
        ["lower", "start", "begin", "upper", "end"].iter().any(|name| field.eq_ignore_ascii_case(name))
    };
    fields(line.trim_start_matches(BYTE_ORDER_MARK)).any(is_time)
}

impl Columns {
    fn parse(header: &str) -> Result<Self, BuffersError> {
        let names: Vec<String> = fields(header).map(str::to_ascii_lowercase).collect();
        let mut places = HashMap::new();
        for (at, name) in names.iter().enumerate() {
            // What stands behind a separator at the end is no column.
            if places.insert(name.as_str(), at).is_some() && !name.is_empty() {
                return Err(wrong(1, format!("the column {name:?} is there twice"), header));
            }
        }
        let find = |names: &[&str]| names.iter().find_map(|name| places.get(name).copied());
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
            count: names.len(),
        })
    }

    fn buffer<'a>(&self, text: &'a str, line: u64) -> Result<(&'a str, Buffer), BuffersError> {
        let wrong = |problem: String| wrong(line, problem, text);
        let fields: Vec<&str> = fields(text).collect();
        let (count, expected) = (fields.len(), self.count);
        // Separators at the end are no fields.
        let is_more = count > expected && fields[expected..].iter().any(|field| !field.is_empty());
        if count < expected || is_more {
            return Err(wrong(format!("there are {count} fields, and the header has {expected} columns")));
        }
        let number = |at: usize, what| {
            whole(fields[at]).map_err(|why| wrong(format!("{what} {:?} {why}", fields[at])))
        };
        let bytes = |at: usize, what| {
            let bytes = number(at, what)?;
            usize::try_from(bytes).map_err(|_| wrong(format!("{what} {bytes} is more than {}", usize::MAX)))
        };
        let lower = number(self.lower, "the beginning")?;
        let end = number(self.upper, "the end")?;
        let upper = end
            .checked_add(u64::from(self.upper_is_alive))
            .ok_or_else(|| wrong(format!("nothing lives on after the end {end}")))?;
        if lower >= upper {
            return Err(wrong(format!(
                "the buffer begins at {lower} and ends at {end}, so it is never alive"
            )));
        }
        let size_bytes = bytes(self.size, "the size")?;
        let align_bytes = self.alignment.map_or(Ok(1), |at| bytes(at, "the alignment"))?;
        if align_bytes == 0 {
            return Err(wrong("nothing is aligned to 0 bytes".to_owned()));
        }
        Ok((fields[self.id], Buffer { lower, upper, size_bytes, align_bytes }))
    }
}

/// A whole number, or why it is none.
fn whole(field: &str) -> Result<u64, String> {
    field.parse().map_err(|_| {
        let is_digits = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        if field.is_empty() {
            "is missing".to_owned()
        } else if field.strip_prefix('-').is_some_and(is_digits) {
            "is negative".to_owned()
        } else if is_digits(field) {
            format!("is more than {}", u64::MAX)
        } else {
            "is not a whole number".to_owned()
        }
    })
}

fn wrong(line: u64, problem: String, text: &str) -> BuffersError {
    BuffersError::Line { line, problem, text: shortened(text) }
}

/// Reads a file.
///
/// # Errors
/// [`BuffersError`], with the line.
pub fn parse(source: impl BufRead) -> Result<Buffers, BuffersError> {
    let mut lines = Lines::new(source);
    let header = lines.next()?.map_or("", |(_, text)| text);
    let columns = Columns::parse(header)?;
    let mut found = Buffers::default();
    while let Some((line, text)) = lines.next()? {
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
    found.each_once()?;
    Ok(found)
}

impl Buffers {
    /// Whoever reads offsets finds them by the buffers' names.
    fn each_once(&self) -> Result<(), BuffersError> {
        let mut seen: HashMap<&str, u64> = HashMap::with_capacity(self.ids.len());
        for (id, &line) in self.ids.iter().zip(&self.lines) {
            if let Some(first) = seen.insert(id, line) {
                return Err(BuffersError::Twice { line, first, id: shortened(id) });
            }
        }
        Ok(())
    }
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
