//! Columns of numbers, one behind the other, as the page's typed arrays read them.

use serde::Serialize;

/// What columns begin at multiples of: no typed array needs more.
const ALIGNMENT: usize = 8;

/// Columns in one run of bytes, little endian as are the machines that browsers run on.
#[derive(Debug, Default)]
pub(super) struct Columns {
    bytes: Vec<u8>,
}

/// Where a column lies and what it has.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Column {
    pub kind: Kind,
    pub offset: usize,
    pub len: usize,
}

/// What a column's numbers are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    U8,
    U32,
    /// Numbers of 64 bits, as far as a double has them exactly: up to 2^53.
    F64,
    /// As before, each as what it is more than the one before, which packs better for times and addresses.
    Steps,
}

impl Columns {
    pub(super) fn u8(&mut self, values: impl IntoIterator<Item = u8>) -> Column {
        self.push(Kind::U8, values.into_iter().map(|value| [value]))
    }

    pub(super) fn u32(&mut self, values: impl IntoIterator<Item = u32>) -> Column {
        self.push(Kind::U32, values.into_iter().map(u32::to_le_bytes))
    }

    pub(super) fn f64(&mut self, values: impl IntoIterator<Item = u64>) -> Column {
        self.push(Kind::F64, values.into_iter().map(|value| (value as f64).to_le_bytes()))
    }

    pub(super) fn steps(&mut self, values: impl IntoIterator<Item = u64>) -> Column {
        let mut last = 0.0;
        let steps = values.into_iter().map(|value| {
            let value = value as f64;
            (value - std::mem::replace(&mut last, value)).to_le_bytes()
        });
        self.push(Kind::Steps, steps)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn push<const N: usize>(&mut self, kind: Kind, values: impl Iterator<Item = [u8; N]>) -> Column {
        self.bytes.resize(self.bytes.len().next_multiple_of(ALIGNMENT), 0);
        let offset = self.bytes.len();
        let mut len = 0;
        for value in values {
            self.bytes.extend(value);
            len += 1;
        }
        Column { kind, offset, len }
    }
}
