//! Which corner is filled next, and what may be done there.

use std::ops::Range;

use super::Search;

/// A section at an edge of a valley of the skyline.
#[derive(Debug)]
pub(super) struct Corner {
    /// The corner with the least is taken: choices by weight, what may be wasted, and the height.
    urgency: (f32, u32, u32),
    pub(super) section: u32,
    /// The height of the valley.
    pub(super) height: u32,
    /// Items that can lie there, of equal ones the first.
    pub(super) fitting: Vec<u32>,
    /// Where the next item begins at the earliest if none of them does, if that much may be wasted.
    pub(super) raise: Option<u32>,
}

impl Search {
    /// The corner with the fewest choices for its weight; nothing if one has none.
    pub(super) fn corner(&mut self, begin: usize, span: Range<u32>) -> Option<Corner> {
        let mut best: Option<Corner> = None;
        let mut first = span.start;
        while first < span.end {
            let height = self.skyline[first as usize];
            let level = self.skyline[first as usize..span.end as usize].iter();
            let end = first + level.take_while(|&&other| other == height).count() as u32;
            let is_higher = |section: u32| self.skyline[section as usize] > height;
            if (first == span.start || is_higher(first - 1)) && (end == span.end || is_higher(end)) {
                let corners = if first + 1 == end { &[first][..] } else { &[first, end - 1] };
                for &section in corners {
                    let Some(corner) = self.corner_at(begin, first..end, section) else {
                        self.weights[section as usize] += 1.0;
                        return None;
                    };
                    if best.as_ref().is_none_or(|best| corner.urgency < best.urgency) {
                        best = Some(corner);
                    }
                }
            }
            first = end;
        }
        best
    }

    /// What may be done in a corner of a valley; nothing if nothing can.
    fn corner_at(&self, begin: usize, valley: Range<u32>, section: u32) -> Option<Corner> {
        let height = self.skyline[section as usize];
        let at_edge = if section == valley.start { &self.beginning } else { &self.ending };
        let mut fitting: Vec<u32> = Vec::new();
        for &at in &at_edge[section as usize] {
            let item = &self.items[at as usize];
            let fits = !self.is_placed[at as usize]
                && item.first >= valley.start
                && item.end <= valley.end
                && self.lowest[at as usize] == height;
            // Of items that are equal in all it does not matter which comes first.
            if fits && !fitting.iter().any(|&other| self.items[other as usize] == *item) {
                fitting.push(at);
            }
        }
        let slack = self.units.capacity - height - self.left[section as usize];
        let raise = self.next_begin(begin, section, height).filter(|&raise| raise - height <= slack);
        let weight = self.weights[section as usize];
        let pressure = match fitting.len() + usize::from(raise.is_some()) {
            0 => return None,
            // What has to be costs nothing.
            1 => 0.0,
            choices => choices as f32 / weight,
        };
        Some(Corner { urgency: (pressure, slack, height), section, height, fitting, raise })
    }

    /// Where the next item of a section begins at the earliest, above its skyline.
    ///
    /// That is the lowest place of an item that lies higher, or for one that could lie on the skyline the top of
    /// something that comes below it and does not live in the section.
    fn next_begin(&self, begin: usize, section: u32, height: u32) -> Option<u32> {
        if self.units.capacity - height == self.left[section as usize] {
            return None;
        }
        let mut least: Option<u32> = None;
        let mut consider = |place: u32| least = Some(least.map_or(place, |least| least.min(place)));
        let here =
            self.candidates[begin..].iter().filter(|(_, _, at)| self.items[*at as usize].lives_in(section));
        for &(lowest, _, at) in here {
            if lowest > height {
                // Those that follow lie no lower.
                consider(lowest);
                break;
            }
            let item = &self.items[at as usize];
            for &other in &self.meets[at as usize] {
                let below = &self.items[other as usize];
                if !self.is_placed[other as usize] && !below.lives_in(section) {
                    consider(item.aligned(self.lowest[other as usize] + below.size));
                }
            }
        }
        least
    }
}
