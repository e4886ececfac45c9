//! Logs of RMM's `logging_resource_adaptor`.

use std::io::BufRead;

use super::addresses::ByAddress;
use super::{ReadError, Trace};
use crate::lines::{Lines, shortened};

/// The columns that are always there, in this order; what follows them is passed over. Nothing is quoted in a log.
const COLUMNS: &str = "Thread,Time,Action,Pointer,Size,Stream";

/// Whether this is the first line of a log.
pub(super) fn begins(line: &str) -> bool {
    line.starts_with(COLUMNS)
}

/// Reads what follows the first line.
pub(super) fn parse(mut lines: Lines<impl BufRead>) -> Result<Trace, ReadError> {
    let mut trace = ByAddress::default();
    while let Some((number, line)) = lines.next()? {
        if !line.is_empty() {
            record(&mut trace, line).map_err(|problem| {
                let text = shortened(line);
                ReadError::Rmm { line: number, problem, text }
            })?;
        }
    }
    Ok(trace.finish())
}

/// Adds what a line tells, or says what is wrong with it.
fn record(trace: &mut ByAddress, line: &str) -> Result<(), String> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let &[_, _, action, pointer, size, stream, ..] = fields.as_slice() else {
        return Err(format!("there are {} fields, and {COLUMNS} are 6", fields.len()));
    };
    match action {
        "allocate" => {
            let size = size.parse().map_err(|_| format!("{size:?} is not a size"))?;
            trace.allocate(address(pointer)?, size, address(stream)?);
        }
        "free" | "deallocate" => trace.free(address(pointer)?),
        "allocate failure" => {}
        other => return Err(format!("the action {:?} is not known", shortened(other))),
    }
    Ok(())
}

fn address(text: &str) -> Result<u64, String> {
    let found = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None if text == "(nil)" => Some(0),
        None => text.parse().ok(),
    };
    found.ok_or_else(|| format!("{text:?} is not an address"))
}

#[cfg(test)]
mod tests {
    use mempool_pools::arena::trace::Event;

    use crate::trace::parse;

    #[test]
    fn a_log_is_read_with_its_streams() {
        let log = "Thread,Time,Action,Pointer,Size,Stream\n\
                   140,12:00:00:000001,allocate,0x7f0000000000,1024,0x0\n\
                   140,12:00:00:000002,allocate failure,0x0,99999999,0x0\n\
                   141,12:00:00:000003,free,0x7f0000000000,1024,0x1\n\
                   141,12:00:00:000004,free,0x7f0000000200,512,0x1\n\
                   141,12:00:00:000005,allocate,0x7f0000000000,10,0x1\n";
        let trace = parse(log.as_bytes()).unwrap();
        assert_eq!(
            trace.events,
            [
                Event::Allocate { id: 1, size_bytes: 1024, stream: 0 },
                Event::Free { id: 1 },
                Event::Allocate { id: 2, size_bytes: 10, stream: 1 },
            ]
        );
        assert_eq!(trace.unknown_frees, 1);
    }

    #[test]
    fn a_damaged_log_is_an_error_that_names_the_line() {
        let header = "Thread,Time,Action,Pointer,Size,Stream\n";
        for record in
            ["1,0,allocate,nowhere,1,0", "1,0,take,0x1,1,0x0", "1,0,allocate,0x1,-5,0x0", "1,0,free"]
        {
            let error = parse(format!("{header}{record}\n").as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with("line 2: "), "{error}");
        }
    }
}
