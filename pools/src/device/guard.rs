//! Margins around blocks that show who wrote outside: sanitizers see one large mapping and no
//! blocks in it.
//!
//! In a pool with guards each block lies between two margins of a known pattern, written in the
//! order of the block's stream. At the free they are read back, which waits for that stream: this is
//! for debugging. Freed memory is filled with another pattern, so that who reads it notices.

use std::fmt;

use crate::device::DeviceState;
use crate::device::driver::Stream;
use crate::os;

/// Bytes of each margin. Blocks stay aligned to it.
pub(crate) const MARGIN_BYTES: usize = 512;
/// What margins hold.
const MARGIN: u8 = 0xfd;
/// What freed memory holds.
const FREED: u8 = 0xdd;
/// Reports that are kept.
const MAX_REPORTS: usize = 100;

/// A block between margins.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Guarded {
    pub(crate) bytes: usize,
    /// The margins were filled.
    pub(crate) armed: bool,
}

/// A write outside a block, found when the block was freed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct GuardReport {
    /// Name of the pool.
    pub pool: String,
    /// The block's first byte, as its owner knows it.
    pub addr: usize,
    /// Bytes its owner asked for.
    pub bytes: usize,
    /// The first byte written outside, counted from the block's first byte.
    pub offset: isize,
    /// Number of bytes in the margins that were changed.
    pub changed_bytes: usize,
}

impl fmt::Display for GuardReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pool, addr, bytes, offset, changed_bytes } = self;
        write!(f, "pool \"{pool}\": the block of {bytes} bytes at {addr:#x} was written outside: ")?;
        write!(f, "{changed_bytes} bytes of its margins changed, the first at offset {offset}")
    }
}

/// Fills the margins of a block of `bytes` at `addr`, on `stream`. The context is current.
pub(crate) fn arm(device: &DeviceState, addr: usize, bytes: usize, stream: Stream) {
    let driver = &device.platform.driver;
    for margin in [addr - MARGIN_BYTES, addr + bytes] {
        if let Err(error) = driver.fill(margin, MARGIN_BYTES, MARGIN, stream) {
            os::report(format_args!("the margins of a block cannot be filled: {error}"));
        }
    }
}

/// Looks at the margins of a block that ends, on `stream`. The context is current, and the stream is
/// not in capture.
pub(crate) fn inspect(
    device: &DeviceState,
    pool: &str,
    addr: usize,
    bytes: usize,
    stream: Stream,
) -> Option<GuardReport> {
    let driver = &device.platform.driver;
    let mut margins = [0; 2 * MARGIN_BYTES];
    let (before, behind) = margins.split_at_mut(MARGIN_BYTES);
    if driver.read(addr - MARGIN_BYTES, before, stream).is_err()
        || driver.read(addr + bytes, behind, stream).is_err()
    {
        // A device that has failed tells nothing about blocks.
        return None;
    }
    let changed = || margins.iter().enumerate().filter(|(_, byte)| **byte != MARGIN).map(|(at, _)| at);
    let first = changed().next()?;
    let offset = if first < MARGIN_BYTES {
        first as isize - MARGIN_BYTES as isize
    } else {
        (bytes + first - MARGIN_BYTES) as isize
    };
    let report = GuardReport { pool: pool.to_owned(), addr, bytes, offset, changed_bytes: changed().count() };
    os::report(format_args!("{report}"));
    Some(report)
}

/// Makes the contents of a block that ends worthless. The context is current, and `stream` is the one
/// that the block's memory is used in the order of.
pub(crate) fn poison(device: &DeviceState, addr: usize, bytes: usize, stream: Stream) {
    let _ = device.platform.driver.fill(addr, bytes, FREED, stream);
}

/// Keeps a report, as long as there are not too many.
pub(crate) fn keep(reports: &mut Vec<GuardReport>, report: GuardReport) {
    if reports.len() < MAX_REPORTS {
        reports.push(report);
    }
}
