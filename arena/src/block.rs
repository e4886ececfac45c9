//! The blocks of all segments of one placement, linked to their neighbours by address, and
//! the live ones found by their address.

use std::hash::BuildHasher;

use hashbrown::HashTable;
use rustc_hash::FxBuildHasher;

use crate::range::AddressRange;

/// A block's place in its [`Blocks`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct BlockId(u32);

impl BlockId {
    /// Stands where there is no block: at the ends of a segment.
    pub(crate) const NONE: Self = Self(u32::MAX);

    #[inline]
    pub(crate) fn is_none(self) -> bool {
        self == Self::NONE
    }

    /// The id as a number, for a block's [`extra`](Block::extra).
    #[inline]
    pub(crate) fn number(self) -> u32 {
        self.0
    }

    #[inline]
    pub(crate) fn from_number(number: u32) -> Self {
        Self(number)
    }
}

/// What a block is at present.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlockState {
    /// Handed out.
    Live,
    /// Free, and in the size index. A block being cut or joined is free and in no index for
    /// as long as the operation runs.
    Free,
    /// Free, but set aside whole for the next request of its size: neither joined with its
    /// neighbours nor in the size index.
    Parked,
    /// Address space without memory, in a policy that keeps such parts apart.
    Unmapped,
    /// Not a block: the slot waits to be used again.
    Vacant,
}

/// A part of a segment. The blocks of a segment cover it without gap or overlap.
///
/// 32 bytes: two share a cache line, which is what most of an operation's time goes to when a
/// hundred thousand blocks are live.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Block {
    pub(crate) start: usize,
    pub(crate) len: usize,
    /// The block before in the same segment.
    pub(crate) prev: BlockId,
    /// The block behind in the same segment.
    pub(crate) next: BlockId,
    /// Live: bytes beyond those the caller asked for. Free: how many of the whole pages in the
    /// block are mapped; when it equals their number, the entire block is mapped, because the
    /// pages at its ends are shared with its neighbours. Parked: the next parked block of the
    /// same size.
    pub(crate) extra: u32,
    pub(crate) segment: u16,
    pub(crate) state: BlockState,
    /// No page under the block counts as clean. `false` when that is not known.
    pub(crate) dirty: bool,
}

impl Block {
    #[inline]
    pub(crate) fn end(&self) -> usize {
        self.start + self.len
    }

    #[inline]
    pub(crate) fn range(&self) -> AddressRange {
        AddressRange::new(self.start, self.len)
    }
}

/// Storage of blocks with stable ids; slots are used again.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    slots: Vec<Block>,
    vacant: Vec<BlockId>,
    /// Live and parked blocks by address. Ids only: the addresses are in the blocks, which the
    /// caller looks at anyway, and a table of four bytes an entry stays in the cache.
    by_address: HashTable<BlockId>,
}

impl Blocks {
    #[inline]
    pub(crate) fn get(&self, id: BlockId) -> &Block {
        &self.slots[id.0 as usize]
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: BlockId) -> &mut Block {
        &mut self.slots[id.0 as usize]
    }

    #[inline]
    pub(crate) fn insert(&mut self, block: Block) -> BlockId {
        if let Some(id) = self.vacant.pop() {
            self.slots[id.0 as usize] = block;
            return id;
        }
        // 2^32 blocks would need 128 GiB of bookkeeping before this fails.
        let id = u32::try_from(self.slots.len()).ok().filter(|&id| id != u32::MAX);
        self.slots.push(block);
        BlockId(id.expect("fewer than 2^32 blocks"))
    }

    #[inline]
    pub(crate) fn remove(&mut self, id: BlockId) {
        self.get_mut(id).state = BlockState::Vacant;
        self.vacant.push(id);
    }

    /// The live or parked block that starts at `addr`.
    #[inline]
    pub(crate) fn find(&self, addr: usize) -> Option<BlockId> {
        let slots = &self.slots;
        self.by_address.find(hash(addr), |id| slots[id.0 as usize].start == addr).copied()
    }

    /// All live blocks, in no order.
    pub(crate) fn live(&self) -> impl Iterator<Item = BlockId> {
        self.by_address.iter().copied().filter(|&id| self.get(id).state == BlockState::Live)
    }

    /// Makes a block found by its address.
    #[inline]
    pub(crate) fn publish(&mut self, id: BlockId) {
        let slots = &self.slots;
        let start = slots[id.0 as usize].start;
        self.by_address.insert_unique(hash(start), id, |id| hash(slots[id.0 as usize].start));
    }

    /// Undoes [`publish`](Self::publish).
    #[inline]
    pub(crate) fn withdraw(&mut self, id: BlockId) {
        let start = self.get(id).start;
        let entry = self.by_address.find_entry(hash(start), |&other| other == id);
        entry.expect("a published block is found by its address").remove();
    }

    /// As [`withdraw`](Self::withdraw), of the block that starts at `addr`, if `wanted` says so of it.
    #[inline]
    pub(crate) fn withdraw_at(
        &mut self,
        addr: usize,
        wanted: impl FnOnce(&Block) -> bool,
    ) -> Option<BlockId> {
        let slots = &self.slots;
        let entry = self.by_address.find_entry(hash(addr), |id| slots[id.0 as usize].start == addr).ok()?;
        if !wanted(&slots[entry.get().0 as usize]) {
            return None;
        }
        Some(entry.remove().0)
    }

    /// Number of blocks that are found by their address.
    pub(crate) fn published_count(&self) -> usize {
        self.by_address.len()
    }

    /// Cuts the first `head_len` bytes off `id`, which keeps them; the rest becomes a free
    /// block of its own behind it, whose id is returned. Page counts are the caller's.
    #[inline]
    pub(crate) fn split(&mut self, id: BlockId, head_len: usize) -> BlockId {
        let whole = *self.get(id);
        debug_assert!(head_len > 0 && head_len < whole.len);
        let tail = self.insert(Block {
            start: whole.start + head_len,
            len: whole.len - head_len,
            prev: id,
            next: whole.next,
            extra: 0,
            segment: whole.segment,
            state: BlockState::Free,
            dirty: false,
        });
        if !whole.next.is_none() {
            self.get_mut(whole.next).prev = tail;
        }
        let head = self.get_mut(id);
        head.len = head_len;
        head.next = tail;
        tail
    }

    /// Joins `id` with the block behind it, which ends to exist. Page counts are the caller's.
    #[inline]
    pub(crate) fn absorb_next(&mut self, id: BlockId) {
        let next_id = self.get(id).next;
        let next = *self.get(next_id);
        let block = self.get_mut(id);
        block.len += next.len;
        block.next = next.next;
        if !next.next.is_none() {
            self.get_mut(next.next).prev = id;
        }
        self.remove(next_id);
    }
}

#[inline]
fn hash(addr: usize) -> u64 {
    FxBuildHasher.hash_one(addr)
}
