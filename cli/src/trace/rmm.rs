//! Logs of RMM's `logging_resource_adaptor`.

use std::io::Read;

use serde::Deserialize;

use super::addresses::ByAddress;
use super::{ReadError, Trace};

#[derive(Debug, Deserialize)]
struct Record {
    #[serde(rename = "Action")]
    action: String,
    #[serde(rename = "Pointer")]
    pointer: String,
    #[serde(rename = "Size")]
    size: usize,
    #[serde(rename = "Stream")]
    stream: String,
}

/// Whether this is the first line of a log.
pub(super) fn begins(line: &str) -> bool {
    line.starts_with("Thread,Time,Action,Pointer,Size,Stream")
}

pub(super) fn parse(source: impl Read) -> Result<Trace, ReadError> {
    let mut trace = ByAddress::default();
    let mut records = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(source);
    for (number, record) in (1..).zip(records.deserialize::<Record>()) {
        let wrong = |problem: String| ReadError::Rmm { record: number, problem };
        let record = record.map_err(|error| wrong(error.to_string()))?;
        let address = |text: &str| {
            let found = match text.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16).ok(),
                None if text == "(nil)" => Some(0),
                None => text.parse().ok(),
            };
            found.ok_or_else(|| wrong(format!("{text:?} is not an address")))
        };
        match record.action.as_str() {
            "allocate" => {
                trace.allocate(address(&record.pointer)?, record.size, address(&record.stream)?);
            }
            "free" | "deallocate" => trace.free(address(&record.pointer)?),
            "allocate failure" => {}
            other => return Err(wrong(format!("the action {other:?} is not known"))),
        }
    }
    Ok(trace.finish())
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
    fn a_damaged_log_is_an_error_that_names_the_record() {
        let header = "Thread,Time,Action,Pointer,Size,Stream\n";
        for record in
            ["1,0,allocate,nowhere,1,0", "1,0,take,0x1,1,0x0", "1,0,allocate,0x1,-5,0x0", "1,0,free"]
        {
            let error = parse(format!("{header}{record}\n").as_bytes()).unwrap_err().to_string();
            assert!(error.contains("record 1"), "{error}");
        }
    }
}
