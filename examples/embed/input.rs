//! The sentences to embed: reading them from a file or stdin, and dropping what is empty or
//! said twice.

use std::collections::HashMap;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// A sentence and the line, counted from 1, that it was first read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sentence {
    pub(crate) line: usize,
    pub(crate) text: String,
}

/// What was read.
#[derive(Debug, Default)]
pub(crate) struct Input {
    pub(crate) sentences: Vec<Sentence>,
    /// Lines left out because an earlier one says the same: this line, the earlier one. Kept in,
    /// they would fill the list of nearest pairs with sentences paired with themselves.
    pub(crate) duplicates: Vec<(usize, usize)>,
}

impl Input {
    /// Reads `path`, or stdin when it is `-`.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let (name, bytes) = if path == Path::new("-") {
            let mut bytes = Vec::new();
            std::io::stdin().read_to_end(&mut bytes).context("reading stdin")?;
            ("stdin".to_string(), bytes)
        } else {
            let name = path.display().to_string();
            let bytes = std::fs::read(path).with_context(|| format!("reading {name}"))?;
            (name, bytes)
        };
        Self::parse(&bytes).with_context(|| format!("in {name}"))
    }

    /// Takes one sentence a line; needs two different ones, since the output is pairs.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self> {
        let mut input = Self::default();
        let mut first_seen = HashMap::new();
        for (index, bytes) in bytes.split(|&b| b == b'\n').enumerate() {
            let line = index + 1;
            let text =
                std::str::from_utf8(bytes).with_context(|| format!("line {line} is not UTF-8"))?.trim();
            if text.is_empty() {
                continue;
            }
            if let Some(&earlier) = first_seen.get(text) {
                input.duplicates.push((line, earlier));
                continue;
            }
            first_seen.insert(text, line);
            input.sentences.push(Sentence { line, text: text.to_string() });
        }
        ensure!(
            input.sentences.len() >= 2,
            "a pair needs two different lines of text, found {} ({} repeated)",
            input.sentences.len(),
            input.duplicates.len()
        );
        Ok(input)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skips_empty_lines_and_keeps_line_numbers() {
        let input = Input::parse(b"\n one \r\n\t\ntwo").unwrap();
        let read: Vec<_> = input.sentences.iter().map(|s| (s.line, s.text.as_str())).collect();
        assert_eq!(read, [(2, "one"), (4, "two")]);
    }

    #[test]
    fn a_repeated_line_is_kept_once() {
        let input = Input::parse(b"a\nb\na\n").unwrap();
        assert_eq!(input.sentences.len(), 2);
        assert_eq!(input.duplicates, [(3, 1)]);
    }

    #[test]
    fn refuses_what_cannot_form_a_pair() {
        for text in ["", "\n\n", "one\n", "one\none\n"] {
            let error = Input::parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains("two different lines"), "{error}");
        }
    }

    #[test]
    fn names_the_line_that_is_not_text() {
        let error = Input::parse(b"fine\n\xff\xfe\n").unwrap_err().to_string();
        assert_eq!(error, "line 2 is not UTF-8");
    }
}
