//! The result on stdout, as text or JSON. Nothing here depends on the pool or the clock, so the
//! output of two runs can be compared with `diff`.

use std::io::{self, Write};

use mempool_examples::BitDigest;
use serde::Serialize;

use crate::input::Sentence;
use crate::nearest::Pair;

/// How the result is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Format {
    pub(crate) json: bool,
    /// Add the exact bits to the text form; JSON always has them.
    pub(crate) bits: bool,
}

#[derive(Serialize)]
struct JsonReport<'a> {
    sentences: usize,
    width: usize,
    /// Over the bits of every embedding, not only of those in a pair.
    embeddings_digest: String,
    pairs: Vec<JsonPair<'a>>,
}

#[derive(Serialize)]
struct JsonPair<'a> {
    cosine: f32,
    cosine_bits: String,
    first: JsonSentence<'a>,
    second: JsonSentence<'a>,
}

#[derive(Serialize)]
struct JsonSentence<'a> {
    line: usize,
    text: &'a str,
}

/// Writes `pairs` of `sentences`, whose `embeddings` are `width` values each.
pub(crate) fn write(
    out: &mut impl Write,
    format: Format,
    sentences: &[Sentence],
    embeddings: &[f32],
    width: usize,
    pairs: &[Pair],
) -> io::Result<()> {
    let mut digest = BitDigest::new();
    digest.update(embeddings);
    if format.json {
        let sentence =
            |index: usize| JsonSentence { line: sentences[index].line, text: &sentences[index].text };
        let report = JsonReport {
            sentences: sentences.len(),
            width,
            embeddings_digest: digest.to_string(),
            pairs: pairs
                .iter()
                .map(|pair| JsonPair {
                    cosine: pair.cosine,
                    cosine_bits: bits(pair.cosine),
                    first: sentence(pair.first),
                    second: sentence(pair.second),
                })
                .collect(),
        };
        serde_json::to_writer_pretty(&mut *out, &report)?;
        return writeln!(out);
    }
    for (rank, pair) in pairs.iter().enumerate() {
        write!(out, "{:3}. {:.6}", rank + 1, pair.cosine)?;
        if format.bits {
            write!(out, "  {}", bits(pair.cosine))?;
        }
        writeln!(out)?;
        for index in [pair.first, pair.second] {
            let sentence = &sentences[index];
            writeln!(out, "     line {:3}: {}", sentence.line, sentence.text)?;
        }
    }
    if format.bits {
        writeln!(out, "embeddings digest {digest}")?;
    }
    Ok(())
}

fn bits(value: f32) -> String {
    format!("{:08x}", value.to_bits())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(format: Format) -> String {
        let sentences = ["a \"quote\"", "b"].map(|text| Sentence { line: 7, text: text.to_string() });
        let pair = Pair { first: 0, second: 1, cosine: 0.5 };
        let mut out = Vec::new();
        write(&mut out, format, &sentences, &[0.5, 1.0], 1, &[pair]).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn text_shows_bits_on_request() {
        let plain = Format { json: false, bits: false };
        assert_eq!(written(plain), "  1. 0.500000\n     line   7: a \"quote\"\n     line   7: b\n");
        let text = written(Format { bits: true, ..plain });
        assert!(text.starts_with("  1. 0.500000  3f000000\n"), "{text}");
        assert!(text.contains("embeddings digest "), "{text}");
    }

    #[test]
    fn json_is_json_and_has_bits() {
        let text = written(Format { json: true, bits: false });
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["pairs"][0]["cosine_bits"], "3f000000");
        assert_eq!(value["pairs"][0]["first"]["text"], "a \"quote\"");
    }
}
