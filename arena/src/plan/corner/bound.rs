//! Whether what is left can still end below the capacity.

use super::Search;

impl Search {
    /// Looks at each section by itself; counts those where it cannot.
    ///
    /// What is left in a section are jobs on one machine, with their lowest places as release dates: taking them by
    /// these dates ends first (Lawler, "Optimal sequencing of a single machine subject to precedence constraints",
    /// Management Science 19, 1973). That is never less than MiniMalloc's bound, the lowest place of any and the sum of
    /// all (section 5.2), and with the candidates in order it takes one pass.
    pub(super) fn can_end_in_time(&mut self, begin: usize) -> bool {
        self.ends.fill(0);
        for &(lowest, _, at) in &self.candidates[begin..] {
            let item = &self.items[at as usize];
            // Signed, because SSE2 compares nothing else: four sections at a time.
            let (date, size) = (lowest as i32, item.size as i32);
            for end in &mut self.ends[item.sections()] {
                *end = if date > *end { date } else { *end } + size;
            }
        }
        let capacity = self.units.capacity as i32;
        let mut can = true;
        for (&end, weight) in self.ends.iter().zip(&mut self.weights) {
            if end > capacity {
                can = false;
                *weight += 1.0;
            }
        }
        can
    }
}
