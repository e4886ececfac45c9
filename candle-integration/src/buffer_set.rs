//! Buffers with names.

use candle_core::{DType, Shape, Tensor};
use mempool_pools::{Compaction, CompactionOptions, CompactionStats, HeapStats};

use crate::buffer::Buffer;
use crate::error::{Error, Result};
use crate::pool::MemPool;

/// Buffers of one pool, by name: the workspace of a model whose shapes are known, or what a program keeps from step to
/// step.
///
/// ```
/// # use candle_core::{DType, Device, Tensor};
/// # use candle_mempool::{BufferSet, MemPool, PoolAllocator};
/// # #[global_allocator]
/// # static ALLOC: PoolAllocator = PoolAllocator::new();
/// # fn main() -> candle_core::Result<()> {
/// # let device = Device::Cpu;
/// # let weight = Tensor::rand(0_f32, 1., (512, 128), &device)?;
/// let mut buffers = BufferSet::new(&MemPool::new(&device)?);
/// buffers.add_up_to("hidden", (64, 128), DType::F32)?; // batches of up to 64
/// buffers.add("out", 128, DType::F32)?;
/// for batch in [64, 17, 64, 17] {
///     let x = Tensor::rand(0_f32, 1., (batch, 512), &device)?;
///     let hidden = buffers.write("hidden", || x.matmul(&weight)?.gelu())?;
///     let out = buffers.write("out", || hidden.mean(0))?;
///     assert_eq!(out.dims(), [128]);
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Compaction
/// A buffer keeps what it holds when its result is dropped; [`tensor`](Self::tensor) gives that back. So what comes and
/// goes at its own pace (caches of sessions, activations of steps of any length) can live in a set, and
/// the holes it leaves are closed by [`compact`](Self::compact), which moves buffers that nobody has: between any two
/// operations, such as backward pass and optimizer, and without waiting for the device. A buffer that a tensor
/// holds, that another stream's queued work uses, or that was held while a living graph was captured stays where it is.
/// Buffers that were [inserted](Self::insert) never move.
///
/// ```
/// # use candle_core::{DType, Device, Tensor};
/// # use candle_mempool::{BufferSet, MemPool, PoolAllocator};
/// # #[global_allocator]
/// # static ALLOC: PoolAllocator = PoolAllocator::new();
/// # fn main() -> candle_core::Result<()> {
/// # let device = Device::Cpu;
/// let mut caches = BufferSet::new(&MemPool::new(&device)?);
/// caches.reserve(64 << 20)?;
/// for (name, length) in [("anna", 3000), ("ben", 500), ("cleo", 1800)] {
///     caches.add(name, (length, 256), DType::F32)?;
///     caches.write(name, || Tensor::zeros((length, 256), DType::F32, &device))?;
/// }
/// caches.remove("anna")?;
/// let done = caches.defrag_if(|fragmentation| fragmentation > 0.10)?; // or compact(), each step
/// assert_eq!(done.unwrap().moved, 2);
/// assert_eq!(caches.fragmentation(), 0.0);
/// assert_eq!(caches.tensor("cleo")?.dims(), [1800, 256]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct BufferSet {
    pool: MemPool,
    /// Where buffers lie that may move.
    set: mempool_pools::BufferSet,
    /// In the order in which they were added.
    buffers: Vec<(String, Buffer)>,
}

impl BufferSet {
    /// A set without buffers. On CUDA it belongs to the stream that the device has on this thread.
    #[must_use]
    pub fn new(pool: &MemPool) -> Self {
        let set = match &pool.device {
            #[cfg(all(feature = "cuda", target_os = "linux"))]
            candle_core::Device::Cuda(cuda) => {
                mempool_pools::cuda::buffer_set(&pool.pool, &cuda.cuda_stream())
            }
            _ => mempool_pools::BufferSet::new(&pool.pool),
        };
        Self { pool: pool.clone(), set, buffers: Vec::new() }
    }

    /// Sets how buffers are moved together.
    ///
    /// # Errors
    /// [`Error::Pool`] for numbers that cannot work.
    pub fn set_compaction(&mut self, options: CompactionOptions) -> Result<()> {
        Ok(self.set.set_options(options)?)
    }

    /// Takes `bytes` from the pool in one block for buffers to come. Without it the set grows by what a buffer
    /// needs, or by half.
    ///
    /// # Errors
    /// [`Error::Pool`] when the pool has no memory for it.
    pub fn reserve(&mut self, bytes: usize) -> Result<()> {
        Ok(self.set.reserve(bytes)?)
    }

    /// Adds a buffer for results of this shape and dtype.
    ///
    /// # Errors
    /// [`Error::BufferExists`]; [`Error::Pool`] when the pool has no memory for it.
    pub fn add(&mut self, name: &str, shape: impl Into<Shape>, dtype: DType) -> Result<()> {
        self.add_buffer(name, shape.into(), dtype, false)
    }

    /// Adds a buffer for results that may be smaller: see [`MemPool::buffer_up_to`].
    ///
    /// # Errors
    /// As [`add`](Self::add).
    pub fn add_up_to(&mut self, name: &str, shape: impl Into<Shape>, dtype: DType) -> Result<()> {
        self.add_buffer(name, shape.into(), dtype, true)
    }

    fn add_buffer(&mut self, name: &str, shape: Shape, dtype: DType, may_be_smaller: bool) -> Result<()> {
        self.expect_new(name)?;
        let buffer = Buffer::in_set(&self.pool, &mut self.set, shape, dtype, may_be_smaller)?;
        self.buffers.push((name.to_owned(), buffer));
        Ok(())
    }

    fn expect_new(&self, name: &str) -> Result<()> {
        if self.get(name).is_some() { Err(Error::BufferExists { name: name.to_owned() }) } else { Ok(()) }
    }

    /// Adds a buffer that was made elsewhere, and that is not moved.
    ///
    /// # Errors
    /// [`Error::BufferExists`].
    pub fn insert(&mut self, name: &str, buffer: Buffer) -> Result<()> {
        self.expect_new(name)?;
        self.buffers.push((name.to_owned(), buffer));
        Ok(())
    }

    /// Removes a buffer. A result that is held stays valid.
    ///
    /// # Errors
    /// [`Error::NoBuffer`] with the names there are.
    pub fn remove(&mut self, name: &str) -> Result<()> {
        let at = self.position(name)?;
        self.buffers.remove(at);
        Ok(())
    }

    fn position(&self, name: &str) -> Result<usize> {
        self.buffers.iter().position(|(other, _)| other == name).ok_or_else(|| Error::NoBuffer {
            name: name.to_owned(),
            known: self.buffers.iter().map(|(name, _)| name.clone()).collect(),
        })
    }

    /// Computes `f` with its result in the buffer of this name: see [`Buffer::write`].
    ///
    /// # Errors
    /// [`Error::NoBuffer`] with the names there are; as [`Buffer::write`].
    pub fn write(&mut self, name: &str, f: impl FnOnce() -> candle_core::Result<Tensor>) -> Result<Tensor> {
        let at = self.position(name)?;
        self.buffers[at].1.write(f)
    }

    /// What the buffer of this name holds: see [`Buffer::tensor`].
    ///
    /// # Errors
    /// [`Error::NoBuffer`] with the names there are; as [`Buffer::tensor`].
    pub fn tensor(&mut self, name: &str) -> Result<Tensor> {
        let at = self.position(name)?;
        self.buffers[at].1.tensor()
    }

    /// Moves buffers together that nobody has, those whose turn it is and as far as the budget goes: see
    /// [`CompactionOptions`]. To be called once a step, anywhere in it.
    ///
    /// # Errors
    /// [`Error::Pool`] in a capture, and on a thread whose stream is another one.
    pub fn compact(&mut self) -> Result<Compaction> {
        Ok(self.set.compact()?)
    }

    /// Moves all buffers together that nobody has, if `wanted` says so for the [fragmentation](Self::fragmentation).
    ///
    /// # Errors
    /// As [`compact`](Self::compact).
    pub fn defrag_if(&mut self, wanted: impl FnOnce(f64) -> bool) -> Result<Option<Compaction>> {
        Ok(self.set.defrag_if(wanted)?)
    }

    /// Share of the bytes up to the last buffers that lie in holes between them: between 0 and 1.
    #[must_use]
    pub fn fragmentation(&self) -> f64 {
        self.set.fragmentation()
    }

    /// What the set holds; inserted buffers are not counted.
    #[must_use]
    pub fn stats(&self) -> HeapStats {
        self.set.stats()
    }

    /// What all compactions came to.
    #[must_use]
    pub fn compaction_stats(&self) -> CompactionStats {
        self.set.compaction_stats()
    }

    /// The buffer of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Buffer> {
        self.buffers.iter().find(|(other, _)| other == name).map(|(_, buffer)| buffer)
    }

    /// The buffers, in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Buffer)> {
        self.buffers.iter().map(|(name, buffer)| (name.as_str(), buffer))
    }
}
