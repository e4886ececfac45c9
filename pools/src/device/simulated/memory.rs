//! Simulated memory: what is mapped where, and which work uses which byte.

use std::collections::BTreeMap;

use crate::device::driver::Physical;

/// Work that uses bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) stream: u64,
    pub(crate) number: u64,
    pub(crate) allocation: u64,
    pub(crate) writes: bool,
    /// The mapping that it uses the memory by: its first address.
    pub(crate) mapping: usize,
}

/// The users of a piece of memory by its first byte. A byte that no entry covers has none.
#[derive(Debug, Default)]
pub(crate) struct Shadow {
    pieces: BTreeMap<usize, (usize, Vec<User>)>,
}

impl Shadow {
    /// Cuts pieces so that one starts at `at` or none covers it.
    fn cut(&mut self, at: usize) {
        let Some((&start, (end, _))) = self.pieces.range(..at).next_back() else { return };
        let end = *end;
        if end <= at {
            return;
        }
        let users = self.pieces[&start].1.clone();
        self.pieces.insert(at, (end, users));
        self.pieces.get_mut(&start).expect("it was there").0 = at;
    }

    /// Runs `check` on each piece of `[start, end)` with its users, and adds `user` there. Users
    /// for which `is_done` holds are forgotten; a write forgets all before it that use the same mapping.
    pub(crate) fn touch(
        &mut self,
        start: usize,
        end: usize,
        user: &User,
        is_done: impl Fn(&User) -> bool,
        mut check: impl FnMut(usize, &User),
    ) {
        self.cut(start);
        self.cut(end);
        let mut at = start;
        let mut missing = Vec::new();
        for (&piece, (piece_end, users)) in self.pieces.range_mut(start..end) {
            if piece > at {
                missing.push((at, piece));
            }
            at = *piece_end;
            users.retain(|other| !is_done(other));
            users.iter().filter(|other| other.writes || user.writes).for_each(|other| check(piece, other));
            if user.writes {
                users.retain(|other| other.mapping != user.mapping);
            }
            users.push(user.clone());
        }
        if at < end {
            missing.push((at, end));
        }
        for (from, to) in missing {
            self.pieces.insert(from, (to, vec![user.clone()]));
        }
    }

    /// A user that is not done, if any.
    pub(crate) fn first_user(&self, is_done: impl Fn(&User) -> bool) -> Option<(usize, User)> {
        self.pieces
            .iter()
            .flat_map(|(&start, (_, users))| users.iter().map(move |user| (start, user)))
            .find(|(_, user)| !is_done(user))
            .map(|(start, user)| (start, user.clone()))
    }
}

/// Physical memory.
#[derive(Debug)]
pub(crate) struct PhysicalMemory {
    pub(crate) ordinal: u32,
    pub(crate) bytes: usize,
    pub(crate) shadow: Shadow,
    pub(crate) mappings: usize,
    pub(crate) released: bool,
}

/// A mapping.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mapping {
    pub(crate) bytes: usize,
    pub(crate) physical: Physical,
    pub(crate) accessible: bool,
}
