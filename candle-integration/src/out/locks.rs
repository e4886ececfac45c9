//! All storages of an operation at once: sources to read, outputs to write.
//!
//! candle keeps each storage behind a lock. An operation waits for one lock at a time and holds others for some milliseconds at
//! most while it does: if one of its storages stays taken, it lets go of all others, waits for that one, and begins
//! again from there. So no circle of threads that wait for each other lasts, whatever the others do.
//!
//! An order of the locks would not be enough. candle's in-place operations take theirs in the order of addresses, but
//! those that allocate hold several storages to read in any order. Their reads pass a writer that waits for
//! readers to leave, yet not always: one that was put to sleep behind another writer stays asleep when new readers come and
//! the next writer waits for those. Two readers, one who writes and one who waits to write then make a circle.
//!
//! What is left is the program's own: a thread that keeps a guard of `storage_and_layout` and starts an operation on that
//! storage may wait for itself, to write it, or to learn its address while another thread waits to write it.

use std::thread;
use std::time::Duration;

use candle_core::{CpuStorage, CudaStorage, Storage, StorageMutRef, StorageRef as Guard, Tensor};
use parking_lot::RwLock;

use crate::error::{Error, Result};

/// A storage to write.
pub(super) enum StorageMut<'a> {
    Cpu(&'a mut CpuStorage),
    Cuda(&'a mut CudaStorage),
}

/// A storage to read.
#[derive(Clone, Copy)]
pub(super) enum StorageRef<'a> {
    Cpu(&'a CpuStorage),
    Cuda(&'a CudaStorage),
}

/// The storages that are locked, each with its key.
#[derive(Default)]
pub(super) struct Held<'a> {
    pub(super) written: Vec<(usize, StorageMut<'a>)>,
    pub(super) read: Vec<(usize, StorageRef<'a>)>,
}

/// The address of a tensor's storage: equal for two tensors if and only if they share it.
pub(super) fn key(tensor: &Tensor) -> usize {
    std::ptr::from_ref(lock_of(tensor)).addr()
}

/// The lock that a tensor's storage lies in.
fn lock_of(tensor: &Tensor) -> &RwLock<Storage> {
    let (storage, _) = tensor.storage_and_layout();
    Guard::rwlock(&storage)
}

/// Runs `work` with the storages of `written` locked to write, and those of `read` to read unless they are
/// among the former.
pub(super) fn with_storages<T>(
    op: &'static str,
    written: &[&Tensor],
    read: &[&Tensor],
    work: impl FnOnce(Held<'_>) -> Result<T>,
) -> Result<T> {
    let mut locks: Vec<Lock<'_>> = Vec::with_capacity(written.len() + read.len());
    for (tensors, reads) in [(written, false), (read, true)] {
        locks.extend(tensors.iter().map(|&tensor| Lock::new(lock_of(tensor), reads)));
    }
    // Of one storage the lock to write comes first, and is the one that stays.
    locks.sort_unstable_by_key(|lock| (lock.key, lock.reads));
    locks.dedup_by_key(|lock| lock.key);
    let mut taken = take_all(&locks);
    let mut held = Held::default();
    for (lock, taken) in locks.iter().zip(&mut taken) {
        let other = || Error::Failed { op, message: "neither host memory nor CUDA".into() };
        match taken {
            Taken::Read(storage) => held.read.push((lock.key, to_read(storage).ok_or_else(other)?)),
            Taken::Written(storage) => held.written.push((lock.key, to_write(storage).ok_or_else(other)?)),
        }
    }
    work(held)
}

/// A lock to take.
struct Lock<'t> {
    key: usize,
    reads: bool,
    storage: &'t RwLock<Storage>,
}

/// A lock that is held.
enum Taken<'t> {
    Read(Guard<'t>),
    Written(StorageMutRef<'t>),
}

impl<'t> Lock<'t> {
    fn new(storage: &'t RwLock<Storage>, reads: bool) -> Self {
        Self { key: std::ptr::from_ref(storage).addr(), reads, storage }
    }

    fn wait(&self) -> Taken<'t> {
        match self.reads {
            true => Taken::Read(self.storage.read_recursive()),
            false => Taken::Written(self.storage.write()),
        }
    }

    fn attempt(&self, patience: Duration) -> Option<Taken<'t>> {
        match self.reads {
            true => self.storage.try_read_recursive_for(patience).map(Taken::Read),
            false => self.storage.try_write_for(patience).map(Taken::Written),
        }
    }
}

/// Waiting for one lock while others are held ends after this, in the first round.
const FIRST_PATIENCE: Duration = Duration::from_micros(20);
/// And after this at most, in later ones.
const MOST_PATIENCE: Duration = Duration::from_millis(5);

/// Takes all of `locks`. It waits for as long as it takes while no other is held, and for a moment while some are, so that
/// it gets its turn where others use the same tensors all the time.
fn take_all<'t>(locks: &[Lock<'t>]) -> Vec<Taken<'t>> {
    let (mut wait_for, mut patience) = (0, FIRST_PATIENCE);
    loop {
        match attempt_all(locks, wait_for, patience) {
            Ok(taken) => return taken,
            Err(busy) => wait_for = busy,
        }
        patience = (patience * 2).min(MOST_PATIENCE);
        // Lets the one go on that has the busy lock, and perhaps waits for what was just given back.
        thread::yield_now();
    }
}

/// Waits for the lock at `wait_for` and takes the others if they get free in time; fails with one that does not.
fn attempt_all<'t>(
    locks: &[Lock<'t>],
    wait_for: usize,
    patience: Duration,
) -> std::result::Result<Vec<Taken<'t>>, usize> {
    let Some(first) = locks.get(wait_for) else { return Ok(Vec::new()) };
    let mut first = Some(first.wait());
    let take = |(index, lock): (usize, &Lock<'t>)| match index == wait_for {
        true => first.take().ok_or(index),
        false => lock.attempt(patience).ok_or(index),
    };
    locks.iter().enumerate().map(take).collect()
}

fn to_read(storage: &Storage) -> Option<StorageRef<'_>> {
    match storage {
        Storage::Cpu(storage) => Some(StorageRef::Cpu(storage)),
        Storage::Cuda(storage) => Some(StorageRef::Cuda(storage)),
        Storage::Metal(_) => None,
    }
}

fn to_write(storage: &mut Storage) -> Option<StorageMut<'_>> {
    match storage {
        Storage::Cpu(storage) => Some(StorageMut::Cpu(storage)),
        Storage::Cuda(storage) => Some(StorageMut::Cuda(storage)),
        Storage::Metal(_) => None,
    }
}
