//! The blocks of all segments of one placement, linked to their neighbours by address.

/// A block's place in its [`Blocks`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct BlockId(u32);

impl BlockId {
    /// Stands where there is no block: at the ends of a segment.
    pub(crate) const NONE: Self = Self(u32::MAX);

    pub(crate) fn is_none(self) -> bool {
        self == Self::NONE
    }
}

/// Whether a block is handed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlockState {
    /// Handed out.
    Live,
    /// Free, and in the size index. A block being cut or joined is free and in no index for
    /// as long as the operation runs.
    Free,
    /// Not a block: the slot waits to be used again.
    Vacant,
}

/// A part of a segment. The blocks of a segment cover it without gap or overlap.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Block {
    pub(crate) start: usize,
    pub(crate) len: usize,
    /// Bytes the caller asked for; 0 while free.
    pub(crate) requested: usize,
    /// While free: how many of the whole pages in the block are mapped. When it equals the
    /// number of whole pages, the entire block is mapped, because the pages at its ends are
    /// shared with live neighbours.
    pub(crate) mapped_pages: u32,
    pub(crate) segment: u32,
    /// The block before in the same segment.
    pub(crate) prev: BlockId,
    /// The block behind in the same segment.
    pub(crate) next: BlockId,
    pub(crate) state: BlockState,
}

impl Block {
    pub(crate) fn end(&self) -> usize {
        self.start + self.len
    }
}

/// Storage of blocks with stable ids; slots are used again.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    slots: Vec<Block>,
    vacant: Vec<BlockId>,
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
        // 2^32 blocks of 64 bytes each would need 256 GiB of bookkeeping before this fails.
        let id = u32::try_from(self.slots.len()).ok().filter(|&id| id != u32::MAX);
        self.slots.push(block);
        BlockId(id.expect("fewer than 2^32 blocks"))
    }

    #[inline]
    pub(crate) fn remove(&mut self, id: BlockId) {
        self.get_mut(id).state = BlockState::Vacant;
        self.vacant.push(id);
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
            requested: 0,
            mapped_pages: 0,
            segment: whole.segment,
            prev: id,
            next: whole.next,
            state: BlockState::Free,
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
