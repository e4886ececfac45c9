//! How far a stream is with the work that used freed memory.
//!
//! Frees are counted. Each page knows the number of the last free on it, and events in the stream say up to which
//! number the work that was queued before is done.

use std::collections::VecDeque;

use mempool_arena::AddressRange;

use crate::device::driver::{Event, Stream};
use crate::device::state::DeviceState;

/// Events that are kept: so many answers are enough when the host runs far ahead.
const EVENTS: usize = 32;

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Progress {
    frees: u64,
    /// The work before this free is done.
    done: u64,
    events: VecDeque<(u64, Event)>,
    /// The number of the last free on each page, by range. Pages at the end that were never used are left out.
    ranges: Vec<(AddressRange, Vec<u64>)>,
}

impl Progress {
    pub(super) fn add_range(&mut self, range: AddressRange) {
        self.ranges.push((range, Vec::new()));
    }

    pub(super) fn remove_range(&mut self, range: AddressRange) {
        self.ranges.retain(|(other, _)| *other != range);
    }

    /// Notes that a block ended, which queued work may still use.
    #[inline]
    pub(super) fn note_freed(&mut self, range: AddressRange, page_bytes: usize) {
        self.frees += 1;
        self.note(range, page_bytes, self.frees);
    }

    /// Notes that work that was queued before free `number` uses what is at `range` now.
    pub(super) fn note(&mut self, range: AddressRange, page_bytes: usize, number: u64) {
        let Some((whole, pages)) = self.ranges.iter_mut().find(|(whole, _)| whole.covers(range)) else {
            return;
        };
        let first = (range.start - whole.start) / page_bytes;
        let end = (range.end() - whole.start).div_ceil(page_bytes);
        if pages.len() < end {
            pages.resize(end, 0);
        }
        pages[first..end].iter_mut().for_each(|last| *last = number.max(*last));
    }

    /// The number of the last free in `range`.
    pub(super) fn last_free(&self, range: AddressRange, page_bytes: usize) -> u64 {
        let Some((whole, pages)) = self.ranges.iter().find(|(whole, _)| whole.covers(range)) else {
            return 0;
        };
        let first = (range.start - whole.start) / page_bytes;
        let end = (range.end() - whole.start).div_ceil(page_bytes).min(pages.len());
        pages.get(first..end).and_then(|pages| pages.iter().copied().max()).unwrap_or(0)
    }

    /// Whether the work before free `number` is known to be done.
    pub(super) fn is_done(&self, number: u64) -> bool {
        number <= self.done
    }

    /// Asks how far the stream is with what is queued by now. The context is current; `stream` is not in
    /// capture.
    pub(super) fn follow(&mut self, device: &DeviceState, stream: Stream) {
        let last = self.events.back().map_or(self.done, |&(number, _)| number);
        // Recorded before the others are asked: where the stream has nothing to do, this one is done at once.
        if last < self.frees
            && let Some(event) = device.record(stream)
        {
            if self.events.len() == EVENTS
                && let Some((_, older)) = self.events.pop_back()
            {
                device.recycle(older);
            }
            self.events.push_back((self.frees, event));
        }
        while let Some(&(number, event)) = self.events.front() {
            match device.platform.driver.event_done(event) {
                Ok(true) => self.done = number,
                // What cannot be asked says nothing; later events will.
                Err(_) => {}
                Ok(false) => break,
            }
            device.recycle(event);
            self.events.pop_front();
        }
    }

    /// Notes that the stream was waited for.
    pub(super) fn caught_up(&mut self) {
        self.done = self.frees;
    }

    /// Gives the events back.
    pub(super) fn end(&mut self, device: &DeviceState) {
        self.events.drain(..).for_each(|(_, event)| device.recycle(event));
    }
}
