//! STAlloc's recordings: `1 pointer bytes stream` allocates, `0 pointer bytes stream` frees, and
//! other lines name phases.

use std::io::BufRead;

use mempool_pools::arena::trace::TraceError;

use super::addresses::ByAddress;
use super::{ReadError, Trace};
use crate::lines::{Lines, shortened};

/// Whether this is the first line of a recording.
pub(super) fn begins(line: &str) -> bool {
    let fields: Vec<&str> = line.split_whitespace().collect();
    matches!(fields[..], ["0" | "1", pointer, size, stream] if [pointer, size, stream].iter().all(|field| number(field).is_some()))
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

pub(super) fn parse(first: &str, mut lines: Lines<impl BufRead>) -> Result<Trace, ReadError> {
    let mut trace = ByAddress::default();
    event(&mut trace, first, 1)?;
    while let Some((number, line)) = lines.next()? {
        event(&mut trace, line, number)?;
    }
    Ok(trace.finish())
}

/// Adds what a line tells, if it is not a phase's.
fn event(trace: &mut ByAddress, line: &str, number: u64) -> Result<(), TraceError> {
    let wrong = |problem| TraceError { line: number, problem, text: shortened(line) };
    let mut fields = line.split_whitespace();
    let Some(op @ ("0" | "1")) = fields.next() else { return Ok(()) };
    let mut field = |problem| fields.next().and_then(self::number).ok_or_else(|| wrong(problem));
    let pointer = field("the second field is not a pointer")?;
    let bytes = field("the third field is not a size")?;
    let stream = field("the fourth field is not a stream")?;
    if op == "1" {
        let bytes = usize::try_from(bytes).map_err(|_| wrong("the size is too large"))?;
        trace.allocate(pointer, bytes, stream);
    } else {
        trace.free(pointer);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use mempool_pools::arena::trace::Event;

    use crate::trace::parse;

    #[test]
    fn lines_of_phases_are_passed_over() {
        let text = "1 139 2048 0\nforward 0\n1 500 100 0\n0 139 2048 0\nbackward 0\n0 500 100 0\n";
        let trace = parse(text.as_bytes()).unwrap();
        assert_eq!(trace.events.len(), 4);
        assert_eq!(trace.events[2], Event::Free { id: 1 });
        let error = parse(&b"1 139 2048 0\n1 139 many 0\n"[..]).unwrap_err().to_string();
        assert!(error.contains("line 2"), "{error}");
    }
}
