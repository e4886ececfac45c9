//! All storages of an operation at once: sources to read, outputs to write.
//!
//! candle keeps a storage behind a lock and lends it to callbacks only, so the locks are taken one inside the
//! other. They are taken in the order of the storages' addresses, each storage once, whatever its part in the
//! operation. Nobody waits in a circle then:
//!
//! * Out-operations take their locks in this order, and so do candle's `inplace_op1` to `inplace_op3`. Each waits only for
//!   addresses above all that it holds.
//! * candle's operations that allocate hold several storages to read, in any order. Their reads pass writers that only
//!   wait, and so do those in here (a `CustomOp1` gets such a read; `storage_and_layout` does not, and would close a circle
//!   of two readers and two waiting writers). Such a read waits only for one who holds the storage to write, and who
//!   holds to write waits only for addresses above. The one of a circle with the highest address could not be waiting.
//!
//! What is left does not keep the order. `Var::set`, `Tensor::slice_set`, `scatter_set` and `scatter_add_set` lock what
//! they write first, or last, wherever it lies: two of them that run at the same time with swapped tensors can wait for
//! each other for ever, and so can one of them and an out-operation that reads what it writes and writes what it reads. And
//! a program that keeps a guard of `storage_and_layout` while it starts an operation that writes that storage waits for
//! itself.

use std::cell::Cell;

use candle_core::{
    CpuStorage, CudaStorage, CustomOp1, Error as CandleError, InplaceOp1, Layout, Result as CandleResult,
    Shape, Tensor,
};

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

/// What is to be done with all storages locked.
type Work<'w> = dyn FnMut(Held<'_>) -> Result<()> + 'w;

/// The address of a tensor's storage: equal for two tensors if and only if they share it, and in the order of
/// candle's own keys, because a storage lies at a fixed place in its lock.
pub(super) fn key(tensor: &Tensor) -> usize {
    let (storage, _) = tensor.storage_and_layout();
    std::ptr::from_ref(&*storage).addr()
}

/// Runs `work` with the storages of `written` locked to write, and those of `read` to read unless they are
/// among the former.
pub(super) fn with_storages(
    op: &'static str,
    written: &[&Tensor],
    read: &[&Tensor],
    work: &mut Work<'_>,
) -> Result<()> {
    let mut locks: Vec<Lock<'_>> = Vec::with_capacity(written.len() + read.len());
    for (tensors, written) in [(written, true), (read, false)] {
        locks.extend(tensors.iter().map(|&tensor| Lock { key: key(tensor), reads: !written, tensor }));
    }
    // Of one storage the lock to write comes first, and is the one that stays.
    locks.sort_unstable_by_key(|lock| (lock.key, lock.reads));
    locks.dedup_by_key(|lock| lock.key);
    descend(op, &locks, Held::default(), work)
}

/// A lock to take.
struct Lock<'t> {
    key: usize,
    reads: bool,
    tensor: &'t Tensor,
}

/// Takes the first of `locks`, and inside it the others.
fn descend(op: &'static str, locks: &[Lock<'_>], held: Held<'_>, work: &mut Work<'_>) -> Result<()> {
    let Some((lock, inner)) = locks.split_first() else { return work(held) };
    let level =
        Level { op, key: lock.key, inner, state: Cell::new(Some((held, work))), done: Cell::new(None) };
    let outcome = if lock.reads {
        lock.tensor.apply_op1_no_bwd(&level).map(|_| ())
    } else {
        lock.tensor.inplace_op1(&level)
    };
    match (level.done.take(), outcome) {
        (Some(done), _) => done,
        (None, Err(error)) => Err(Error::Failed { op, message: error.to_string() }),
        (None, Ok(())) => unreachable!("candle calls back or fails"),
    }
}

/// The callback that gets one storage.
struct Level<'l, 'h, 'w> {
    op: &'static str,
    key: usize,
    inner: &'l [Lock<'l>],
    state: Cell<Option<(Held<'h>, &'l mut Work<'w>)>>,
    /// What became of the work. candle's own result has no room for a typed error.
    done: Cell<Option<Result<()>>>,
}

impl Level<'_, '_, '_> {
    fn write(&self, storage: StorageMut<'_>) -> CandleResult<()> {
        let (mut held, work) = self.state.take().expect("candle calls back once");
        held.written.push((self.key, storage));
        self.done.set(Some(descend(self.op, self.inner, held, work)));
        Ok(())
    }

    /// Always an error: what candle would make of a result is not needed.
    fn read<T>(&self, storage: StorageRef<'_>) -> CandleResult<T> {
        let (mut held, work) = self.state.take().expect("candle calls back once");
        held.read.push((self.key, storage));
        self.done.set(Some(descend(self.op, self.inner, held, work)));
        Err(CandleError::Msg(String::new()))
    }
}

impl InplaceOp1 for Level<'_, '_, '_> {
    fn name(&self) -> &'static str {
        self.op
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, _: &Layout) -> CandleResult<()> {
        self.write(StorageMut::Cpu(storage))
    }

    fn cuda_fwd(&self, storage: &mut CudaStorage, _: &Layout) -> CandleResult<()> {
        self.write(StorageMut::Cuda(storage))
    }
}

impl CustomOp1 for Level<'_, '_, '_> {
    fn name(&self) -> &'static str {
        self.op
    }

    fn cpu_fwd(&self, storage: &CpuStorage, _: &Layout) -> CandleResult<(CpuStorage, Shape)> {
        self.read(StorageRef::Cpu(storage))
    }

    fn cuda_fwd(&self, storage: &CudaStorage, _: &Layout) -> CandleResult<(CudaStorage, Shape)> {
        self.read(StorageRef::Cuda(storage))
    }
}
