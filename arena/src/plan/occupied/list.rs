//! Places of items in the order of offsets, in pieces.
//!
//! In one piece an insertion would move half of what there is, which for 100,000 items takes longer than the walk.
//! Pieces are passed over whole when nothing of them lives at the time. Lifetimes and places lie apart, so that a walk
//! reads no more than it needs.

use super::{Item, Limit};

/// A piece is cut in two when it has so many items.
const MOST_IN_PIECE: usize = 256;

/// A list of places.
#[derive(Debug, Clone, Default)]
pub(super) struct List {
    pieces: Vec<Piece>,
}

/// Some places that follow each other. Never empty.
#[derive(Debug, Clone)]
struct Piece {
    /// When the first of its items is born and the last one dead.
    first: u32,
    end: u32,
    /// Where the lowest place begins.
    bottom: usize,
    /// The sections each item lives in, `(first, end)`.
    lifetimes: Vec<(u32, u32)>,
    /// Where each begins and ends, ascending.
    places: Vec<(usize, usize)>,
}

impl Piece {
    fn new(lifetimes: Vec<(u32, u32)>, places: Vec<(usize, usize)>) -> Self {
        let first = lifetimes.iter().map(|lifetime| lifetime.0).min().unwrap_or(0);
        let end = lifetimes.iter().map(|lifetime| lifetime.1).max().unwrap_or(0);
        Self { first, end, bottom: places[0].0, lifetimes, places }
    }

    /// The lowest place for an item that is not below `offset`, as far as this piece tells.
    fn lowest(&self, item: &Item, mut offset: usize) -> usize {
        for (&(first, end), &(bottom, top)) in self.lifetimes.iter().zip(&self.places) {
            // All that follow begin no lower, whenever they live.
            if bottom >= offset + item.size {
                break;
            }
            // Without a branch: nobody can tell which ones live at the time.
            let lives = (first < item.end) & (item.first < end);
            let top = if lives { top } else { 0 };
            offset = if item.align == 1 { offset.max(top) } else { offset.max(item.aligned(top)) };
        }
        offset
    }

    fn insert(&mut self, at: usize, lifetime: (u32, u32), place: (usize, usize)) {
        self.first = self.first.min(lifetime.0);
        self.end = self.end.max(lifetime.1);
        self.bottom = self.bottom.min(place.0);
        self.lifetimes.insert(at, lifetime);
        self.places.insert(at, place);
    }

    /// Cuts off the upper half.
    fn cut(&mut self) -> Self {
        let at = self.places.len() / 2;
        let upper = Self::new(self.lifetimes.split_off(at), self.places.split_off(at));
        *self = Self::new(std::mem::take(&mut self.lifetimes), std::mem::take(&mut self.places));
        upper
    }
}

impl List {
    /// Forgets all places.
    pub(super) fn clear(&mut self) {
        self.pieces.clear();
    }

    /// The lowest free place for an item; nothing at the limit.
    pub(super) fn lowest(&self, item: &Item, limit: &mut Limit) -> Option<usize> {
        let mut offset = 0;
        // Each look at a piece counts, too.
        let mut steps = 1;
        for piece in &self.pieces {
            if piece.bottom >= offset + item.size {
                break;
            }
            steps += 1;
            if piece.first < item.end && item.first < piece.end {
                offset = piece.lowest(item, offset);
                steps += piece.places.len() as u64;
            }
        }
        limit.spend(steps).then_some(offset)
    }

    /// Enters an item.
    pub(super) fn insert(&mut self, item: &Item, offset: usize) {
        let (lifetime, place) = ((item.first, item.end), (offset, offset + item.size));
        let which = self.pieces.partition_point(|piece| piece.bottom <= offset).saturating_sub(1);
        let Some(piece) = self.pieces.get_mut(which) else {
            return self.pieces.push(Piece::new(vec![lifetime], vec![place]));
        };
        piece.insert(piece.places.partition_point(|place| place.0 < offset), lifetime, place);
        if piece.places.len() == MOST_IN_PIECE {
            let upper = piece.cut();
            self.pieces.insert(which + 1, upper);
        }
    }
}
