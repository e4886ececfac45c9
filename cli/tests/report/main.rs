//! `mempool report`: the pages that it makes, read back as data, and in a browser.

mod browser;
mod command;
mod in_browser;
mod replayed;
mod snapshots;

#[global_allocator]
static ALLOC: mempool_pools::PoolAllocator = mempool_pools::PoolAllocator::new();
