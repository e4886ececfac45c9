//! A trace from the last entries of a history, where blocks are known by address.

use std::time::Duration;

use mempool_arena::trace::Event;
use rustc_hash::FxHashMap;

/// An entry of a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Happening {
    /// Whether a block was handed out; else nothing uses it any more.
    pub is_allocation: bool,
    /// Where the block lies.
    pub addr: u64,
    /// Bytes requested; 0 where they are not known.
    pub size_bytes: usize,
    /// The stream it is for.
    pub stream: u64,
    /// Steps that had ended.
    pub step: u32,
    /// When, in microseconds; 0 where that is not known.
    pub time_us: u64,
}

/// What the last entries of a history tell, with what was live before them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Window {
    /// What happened. First come allocations of what was live before; the entries follow.
    pub events: Vec<Event>,
    /// Allocations among the entries.
    pub allocations: u64,
    /// Blocks that were live before.
    pub older_blocks: u64,
    /// From the first entry to the last, if their times are known.
    pub duration: Option<Duration>,
}

impl Window {
    /// Puts a trace together. `live` are the blocks that are live at its end: address, bytes requested and stream.
    #[must_use]
    pub fn new(
        entries: impl IntoIterator<Item = Happening>,
        live: impl IntoIterator<Item = (u64, usize, u64)>,
    ) -> Self {
        let mut found = Self::default();
        let mut before: Vec<Event> = Vec::new();
        let mut ids: FxHashMap<u64, u64> = FxHashMap::default();
        let mut next = 0_u64;
        let mut new_id = || {
            next += 1;
            next
        };
        let mut times: Option<(u64, u64)> = None;
        let mut step = None;
        for Happening { is_allocation, addr, size_bytes, stream, step: of, time_us } in entries {
            if time_us > 0 {
                let (first, last) = times.unwrap_or((time_us, time_us));
                times = Some((first.min(time_us), last.max(time_us)));
            }
            if let Some(last) = step.replace(of).filter(|&last| last != of) {
                found.events.push(Event::StepEnd { step: u64::from(last) });
            }
            let known = ids.remove(&addr);
            let event = match (is_allocation, known) {
                (true, known) => {
                    // What lay there ended unseen.
                    found.events.extend(known.map(|id| Event::Free { id }));
                    let id = new_id();
                    ids.insert(addr, id);
                    found.allocations += 1;
                    Event::Allocate { id, size_bytes, stream }
                }
                (false, Some(id)) => Event::Free { id },
                // Of unknown size it is as if it had never been.
                (false, None) if size_bytes == 0 => continue,
                (false, None) => {
                    let id = new_id();
                    before.push(Event::Allocate { id, size_bytes, stream });
                    Event::Free { id }
                }
            };
            found.events.push(event);
        }
        for (addr, size_bytes, stream) in live {
            if !ids.contains_key(&addr) {
                before.push(Event::Allocate { id: new_id(), size_bytes, stream });
            }
        }
        found.older_blocks = before.len() as u64;
        found.events.splice(0..0, before);
        found.duration =
            times.map(|(first, last)| Duration::from_micros(last - first)).filter(|time| !time.is_zero());
        found
    }
}
