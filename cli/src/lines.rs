//! Lines of text files: numbered, of bounded length, in UTF-8.
//!
//! A byte order mark before the first line is passed over, and so is white space at the end of each, carriage returns
//! included.

use std::io::{self, BufRead, Read as _};

use thiserror::Error;

/// Longer lines are in no file that is read here; without an end to them a file of one line would be read into
/// memory.
const LONGEST_BYTES: u64 = 4096;
/// What editors on some systems put in front of UTF-8.
pub(crate) const BYTE_ORDER_MARK: char = '\u{feff}';

/// A line that cannot be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LineError {
    /// The file cannot be read on.
    #[error("line {line}: {source}")]
    Io {
        /// The line's number, counted from 1.
        line: u64,
        /// What reading says.
        source: io::Error,
    },
    /// A line without end, or nearly.
    #[error("line {line}: the line is longer than {LONGEST_BYTES} bytes: {text:?}...")]
    TooLong {
        /// The line's number.
        line: u64,
        /// Its first 80 characters.
        text: String,
    },
    /// Another encoding, or a damaged file.
    #[error("line {line}: the line is not UTF-8 from its byte {byte} on: {text:?}")]
    NotUtf8 {
        /// The line's number.
        line: u64,
        /// The byte that is wrong, counted from 1.
        byte: usize,
        /// The line with marks for what is wrong, at most its first 80 characters.
        text: String,
    },
}

/// At most the first 80 characters.
pub(crate) fn shortened(text: &str) -> String {
    text.chars().take(80).collect()
}

/// Lines that are read one after the other.
#[derive(Debug)]
pub(crate) struct Lines<R> {
    source: R,
    bytes: Vec<u8>,
    read: u64,
}

impl<R: BufRead> Lines<R> {
    /// From the first one on.
    pub(crate) fn new(source: R) -> Self {
        Self { source, bytes: Vec::new(), read: 0 }
    }

    /// The next line and its number, counted from 1; nothing at the end.
    pub(crate) fn next(&mut self) -> Result<Option<(u64, &str)>, LineError> {
        let line = self.read + 1;
        self.bytes.clear();
        let taken = self.source.by_ref().take(LONGEST_BYTES + 1).read_until(b'\n', &mut self.bytes);
        if taken.map_err(|source| LineError::Io { line, source })? == 0 {
            return Ok(None);
        }
        self.read = line;
        if self.bytes.len() as u64 > LONGEST_BYTES {
            return Err(LineError::TooLong { line, text: shortened(&String::from_utf8_lossy(&self.bytes)) });
        }
        let text = std::str::from_utf8(&self.bytes).map_err(|error| LineError::NotUtf8 {
            line,
            byte: error.valid_up_to() + 1,
            text: shortened(String::from_utf8_lossy(&self.bytes).trim_end()),
        })?;
        let text = if line == 1 { text.trim_start_matches(BYTE_ORDER_MARK) } else { text };
        Ok(Some((line, text.trim_end())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<Vec<(u64, String)>, LineError> {
        let mut lines = Lines::new(bytes);
        let mut found = Vec::new();
        while let Some((line, text)) = lines.next()? {
            found.push((line, text.to_owned()));
        }
        Ok(found)
    }

    #[test]
    fn marks_and_ends_of_other_systems_are_passed_over() {
        let expected = [(1, "a,b".to_owned()), (2, String::new()), (3, " c".to_owned())];
        assert_eq!(read("\u{feff}a,b\r\n\r\n c\r\n".as_bytes()).unwrap(), expected);
        assert_eq!(read(b"a,b\n\n c").unwrap(), expected, "the last line needs no end");
        assert_eq!(read(b"").unwrap(), []);
    }

    #[test]
    fn what_is_no_line_of_text_is_an_error_that_names_it() {
        let long = [&b"a\n"[..], &vec![b'1'; LONGEST_BYTES as usize + 1]].concat();
        for (bytes, expected) in [
            (&b"a\nb\xff,\n"[..], "line 2: the line is not UTF-8 from its byte 2 on: \"b\u{fffd},\""),
            (b"\xff\xfei\0d\0\n", "line 1: the line is not UTF-8 from its byte 1 on"),
            (&long, "line 2: the line is longer than 4096 bytes: \"111"),
        ] {
            let error = read(bytes).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
            assert!(error.len() < 200, "{error}");
        }
        let mut longest = vec![b'1'; LONGEST_BYTES as usize - 1];
        longest.push(b'\n');
        assert_eq!(read(&longest).unwrap().len(), 1);
    }
}
