//! Pickles of protocol 2, with what PyTorch's page reads: numbers of at most eight bytes, lists in parts, what is
//! repeated once.

use std::collections::HashMap;
use std::io::{self, Write};

/// Elements that are put into a list at once: the page hands them to a function as its arguments.
const BATCH: usize = 1000;
/// Strings that are remembered to be written once. Labels and names are few; what would exceed this is written again.
const MAX_STRINGS: usize = 1 << 16;

/// Writes values one after the other. Whoever writes a list or a dictionary says when it begins and ends.
pub(in crate::snapshot) struct Writer<W> {
    out: W,
    strings: HashMap<String, u32>,
    /// What can be referred to so far.
    remembered: u32,
}

impl<W: Write> Writer<W> {
    /// Begins a pickle.
    pub(in crate::snapshot) fn new(mut out: W) -> io::Result<Self> {
        out.write_all(&[0x80, 2])?;
        Ok(Self { out, strings: HashMap::new(), remembered: 0 })
    }

    /// Ends it.
    pub(in crate::snapshot) fn finish(mut self) -> io::Result<()> {
        self.out.write_all(b".")
    }

    pub(in crate::snapshot) fn none(&mut self) -> io::Result<()> {
        self.out.write_all(b"N")
    }

    pub(in crate::snapshot) fn flag(&mut self, flag: bool) -> io::Result<()> {
        self.out.write_all(&[if flag { 0x88 } else { 0x89 }])
    }

    pub(in crate::snapshot) fn int(&mut self, number: i64) -> io::Result<()> {
        if let Ok(byte) = u8::try_from(number) {
            self.out.write_all(&[b'K', byte])
        } else if let Ok(short) = u16::try_from(number) {
            self.out.write_all(b"M")?;
            self.out.write_all(&short.to_le_bytes())
        } else if let Ok(int) = i32::try_from(number) {
            self.out.write_all(b"J")?;
            self.out.write_all(&int.to_le_bytes())
        } else {
            self.out.write_all(&[0x8a, 8])?;
            self.out.write_all(&number.to_le_bytes())
        }
    }

    pub(in crate::snapshot) fn float(&mut self, number: f64) -> io::Result<()> {
        self.out.write_all(b"G")?;
        self.out.write_all(&number.to_be_bytes())
    }

    pub(in crate::snapshot) fn text(&mut self, text: &str) -> io::Result<()> {
        if let Some(&at) = self.strings.get(text) {
            return self.repeat(at);
        }
        let len = u32::try_from(text.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        self.out.write_all(b"X")?;
        self.out.write_all(&len.to_le_bytes())?;
        self.out.write_all(text.as_bytes())?;
        if self.strings.len() < MAX_STRINGS {
            let at = self.remember()?;
            self.strings.insert(text.to_owned(), at);
        }
        Ok(())
    }

    /// Remembers the value that was written last, and says how to [`repeat`](Self::repeat) it.
    pub(in crate::snapshot) fn remember(&mut self) -> io::Result<u32> {
        let at = self.remembered;
        self.remembered += 1;
        self.refer([b'q', b'r'], at)?;
        Ok(at)
    }

    /// A value that was written before.
    pub(in crate::snapshot) fn repeat(&mut self, at: u32) -> io::Result<()> {
        self.refer([b'h', b'j'], at)
    }

    fn refer(&mut self, [short, long]: [u8; 2], at: u32) -> io::Result<()> {
        if let Ok(byte) = u8::try_from(at) {
            return self.out.write_all(&[short, byte]);
        }
        self.out.write_all(&[long])?;
        self.out.write_all(&at.to_le_bytes())
    }

    /// Begins a list that has no elements yet.
    pub(in crate::snapshot) fn begin_list(&mut self) -> io::Result<()> {
        self.out.write_all(b"]")
    }

    /// Elements as they are put into a list, a batch at a time.
    pub(in crate::snapshot) fn batches<T>(items: &[T]) -> impl Iterator<Item = &[T]> {
        items.chunks(BATCH)
    }

    /// Begins elements of the list that was begun last.
    pub(in crate::snapshot) fn begin_batch(&mut self) -> io::Result<()> {
        self.out.write_all(b"(")
    }

    /// Puts them into it.
    pub(in crate::snapshot) fn end_batch(&mut self) -> io::Result<()> {
        self.out.write_all(b"e")
    }

    /// Begins a dictionary: a text, a value, and so on until it ends.
    pub(in crate::snapshot) fn begin_dict(&mut self) -> io::Result<()> {
        self.out.write_all(b"}(")
    }

    /// Ends it.
    pub(in crate::snapshot) fn end_dict(&mut self) -> io::Result<()> {
        self.out.write_all(b"u")
    }

    /// A list of `items`, each written by `item`.
    pub(in crate::snapshot) fn list<T>(
        &mut self,
        items: &[T],
        mut item: impl FnMut(&mut Self, &T) -> io::Result<()>,
    ) -> io::Result<()> {
        self.begin_list()?;
        for batch in Self::batches(items) {
            self.begin_batch()?;
            batch.iter().try_for_each(|one| item(self, one))?;
            self.end_batch()?;
        }
        Ok(())
    }

    /// A pair of numbers.
    pub(in crate::snapshot) fn pair(&mut self, (first, second): (i64, i64)) -> io::Result<()> {
        self.int(first)?;
        self.int(second)?;
        self.out.write_all(&[0x86])
    }

    /// A dictionary of what `fields` writes: a text, then a value, and so on.
    pub(in crate::snapshot) fn dict(
        &mut self,
        fields: impl FnOnce(&mut Self) -> io::Result<()>,
    ) -> io::Result<()> {
        self.begin_dict()?;
        fields(self)?;
        self.end_dict()
    }

    /// What JSON can have.
    pub(in crate::snapshot) fn json(&mut self, value: &serde_json::Value) -> io::Result<()> {
        match value {
            serde_json::Value::Null => self.none(),
            serde_json::Value::Bool(flag) => self.flag(*flag),
            serde_json::Value::String(text) => self.text(text),
            serde_json::Value::Array(values) => self.list(values, |to, value| to.json(value)),
            serde_json::Value::Number(number) => match number.as_i64() {
                Some(int) => self.int(int),
                None => self.float(number.as_f64().unwrap_or(f64::NAN)),
            },
            serde_json::Value::Object(fields) => self.dict(|to| {
                fields.iter().try_for_each(|(name, value)| {
                    to.text(name)?;
                    to.json(value)
                })
            }),
        }
    }
}
