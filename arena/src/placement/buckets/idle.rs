//! Which segments are free, in the order in which they became so.

/// Stands where there is no segment.
const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Links {
    older: u32,
    newer: u32,
    listed: bool,
}

/// A list through the slots of free segments, the one that is free for longest first. Each operation
/// but walking takes the same time however many there are.
#[derive(Debug)]
pub(super) struct IdleOrder {
    links: Vec<Links>,
    oldest: u32,
    newest: u32,
}

impl Default for IdleOrder {
    fn default() -> Self {
        Self { links: Vec::new(), oldest: NONE, newest: NONE }
    }
}

impl IdleOrder {
    /// Adds a segment that just became free.
    #[inline]
    pub(super) fn push_newest(&mut self, slot: u16) {
        self.link(slot, self.newest, NONE);
    }

    /// Adds a segment that shall go first.
    pub(super) fn push_oldest(&mut self, slot: u16) {
        self.link(slot, NONE, self.oldest);
    }

    /// Takes a segment out.
    #[inline]
    pub(super) fn remove(&mut self, slot: u16) {
        let links = &mut self.links[slot as usize];
        debug_assert!(links.listed);
        links.listed = false;
        let Links { older, newer, .. } = *links;
        self.join(older, newer);
    }

    /// The segment that is free for longest.
    pub(super) fn oldest(&self) -> Option<u16> {
        slot_of(self.oldest)
    }

    /// The segment that became free next after this one.
    pub(super) fn newer_than(&self, slot: u16) -> Option<u16> {
        slot_of(self.links[slot as usize].newer)
    }

    /// The segments, the one that is free for longest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        std::iter::successors(self.oldest(), |&slot| self.newer_than(slot))
    }

    #[inline]
    fn link(&mut self, slot: u16, older: u32, newer: u32) {
        let index = slot as usize;
        if index >= self.links.len() {
            self.links.resize(index + 1, Links { older: NONE, newer: NONE, listed: false });
        }
        debug_assert!(!self.links[index].listed);
        self.links[index] = Links { older, newer, listed: true };
        self.join(older, u32::from(slot));
        self.join(u32::from(slot), newer);
    }

    /// Makes two neighbours, each of which may be the end of the list, know each other.
    #[inline]
    fn join(&mut self, older: u32, newer: u32) {
        match older {
            NONE => self.oldest = newer,
            slot => self.links[slot as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            slot => self.links[slot as usize].older = older,
        }
    }
}

fn slot_of(link: u32) -> Option<u16> {
    u16::try_from(link).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_in_the_order_in_which_they_became_free() {
        let mut order = IdleOrder::default();
        assert_eq!(order.oldest(), None);
        for slot in [3, 1, 4] {
            order.push_newest(slot);
        }
        order.push_oldest(5);
        assert_eq!(order.iter().collect::<Vec<_>>(), [5, 3, 1, 4]);
        for (gone, left) in [(1, vec![5, 3, 4]), (5, vec![3, 4]), (4, vec![3]), (3, vec![])] {
            order.remove(gone);
            assert_eq!(order.iter().collect::<Vec<_>>(), left);
        }
        order.push_oldest(0);
        order.push_newest(1);
        assert_eq!(order.iter().collect::<Vec<_>>(), [0, 1]);
    }
}
