//! The free blocks of one size bin, in order of (length, address).
//!
//! Almost every bin holds a handful of blocks: a sorted vector, one or two cache lines long,
//! is the fastest ordered set of that size. A bin that grows large (a hundred thousand equal
//! blocks freed at once) becomes a B-tree, so that no operation ever shifts or scans a long
//! list.

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};

use crate::block::BlockId;

/// A vector longer than this becomes a tree: 64 entries are 1.5 KiB, which `memmove` shifts
/// in about the time of two cache misses.
const TREE_FROM: usize = 64;
/// A tree shorter than this becomes a vector again. Well below `TREE_FROM`, so that a bin
/// does not change its form at each operation.
const VECTOR_FROM: usize = 24;

/// Key and id of a free block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) len: usize,
    pub(crate) start: usize,
    pub(crate) id: BlockId,
}

impl Entry {
    fn key(&self) -> (usize, usize) {
        (self.len, self.start)
    }
}

/// An ordered set of free blocks.
#[derive(Debug)]
pub(crate) enum FreeRun {
    Vector(Vec<Entry>),
    Tree(BTreeMap<(usize, usize), BlockId>),
}

impl Default for FreeRun {
    fn default() -> Self {
        Self::Vector(Vec::new())
    }
}

impl FreeRun {
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::Vector(entries) => entries.is_empty(),
            Self::Tree(tree) => tree.is_empty(),
        }
    }

    /// Adds a block that is not in the run.
    #[inline]
    pub(crate) fn insert(&mut self, entry: Entry) {
        match self {
            Self::Vector(entries) => {
                // Most bins have few blocks: those at the end are not shifted by a call.
                if entries.last().is_none_or(|last| last.key() < entry.key()) {
                    entries.push(entry);
                } else {
                    let at = entries.partition_point(|other| other.key() < entry.key());
                    entries.insert(at, entry);
                }
                if entries.len() > TREE_FROM {
                    *self = Self::Tree(entries.iter().map(|entry| (entry.key(), entry.id)).collect());
                }
            }
            Self::Tree(tree) => {
                let before = tree.insert(entry.key(), entry.id);
                debug_assert!(before.is_none());
            }
        }
    }

    /// Takes the block of this key out; `None` when it is not in the run.
    #[inline]
    pub(crate) fn remove(&mut self, len: usize, start: usize) -> Option<BlockId> {
        match self {
            Self::Vector(entries) => {
                if entries.last().is_some_and(|last| last.key() == (len, start)) {
                    return entries.pop().map(|entry| entry.id);
                }
                let at = entries.partition_point(|other| other.key() < (len, start));
                let found = entries.get(at).is_some_and(|entry| entry.key() == (len, start));
                found.then(|| entries.remove(at).id)
            }
            Self::Tree(tree) => {
                let id = tree.remove(&(len, start));
                if tree.len() < VECTOR_FROM {
                    let entry = |(&(len, start), &id)| Entry { len, start, id };
                    *self = Self::Vector(tree.iter().map(entry).collect());
                }
                id
            }
        }
    }

    /// The smallest block of at least `len` bytes, the lowest address among equals.
    #[inline]
    pub(crate) fn best_fit(&self, len: usize) -> Option<Entry> {
        match self {
            Self::Vector(entries) => entries.get(entries.partition_point(|entry| entry.len < len)).copied(),
            Self::Tree(tree) => tree
                .range((Bound::Included((len, 0)), Bound::Unbounded))
                .next()
                .map(|(&(len, start), &id)| Entry { len, start, id }),
        }
    }

    pub(crate) fn contains(&self, entry: Entry) -> bool {
        match self {
            Self::Vector(entries) => {
                entries.binary_search_by_key(&entry.key(), Entry::key).is_ok_and(|at| entries[at] == entry)
            }
            Self::Tree(tree) => tree.get(&entry.key()) == Some(&entry.id),
        }
    }

    /// The largest block.
    pub(crate) fn largest(&self) -> Option<Entry> {
        match self {
            Self::Vector(entries) => entries.last().copied(),
            Self::Tree(tree) => tree.last_key_value().map(|(&(len, start), &id)| Entry { len, start, id }),
        }
    }

    /// Visits the blocks of at least `len` bytes, in order, until `visit` says that it is enough.
    #[inline]
    pub(crate) fn visit_from(
        &self,
        len: usize,
        visit: &mut impl FnMut(BlockId) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        match self {
            Self::Vector(entries) => {
                entries.iter().filter(|entry| entry.len >= len).try_for_each(|entry| visit(entry.id))
            }
            Self::Tree(tree) => tree.range((len, 0)..).try_for_each(|(_, &id)| visit(id)),
        }
    }

    /// The blocks of at least `len` bytes, in order.
    pub(crate) fn iter_from(&self, len: usize) -> impl Iterator<Item = Entry> + '_ {
        let (vector, tree) = match self {
            Self::Vector(entries) => {
                (Some(&entries[entries.partition_point(|entry| entry.len < len)..]), None)
            }
            Self::Tree(tree) => (None, Some(tree.range((len, 0)..))),
        };
        let in_tree = |(&(len, start), &id): (&(usize, usize), &BlockId)| Entry { len, start, id };
        vector.into_iter().flatten().copied().chain(tree.into_iter().flatten().map(in_tree))
    }
}
