//! Buffers with names.

use candle_core::{DType, Shape, Tensor};

use crate::buffer::Buffer;
use crate::error::{Error, Result};
use crate::pool::MemPool;

/// Buffers of one pool, by name: the workspace of a model whose shapes are known.
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
#[derive(Debug)]
pub struct BufferSet {
    pool: MemPool,
    /// In the order in which they were added.
    buffers: Vec<(String, Buffer)>,
}

impl BufferSet {
    /// A set without buffers.
    #[must_use]
    pub fn new(pool: &MemPool) -> Self {
        Self { pool: pool.clone(), buffers: Vec::new() }
    }

    /// Adds a buffer for results of this shape and dtype.
    ///
    /// # Errors
    /// [`Error::BufferExists`]; [`Error::Pool`] when the pool has no memory for it.
    pub fn add(&mut self, name: &str, shape: impl Into<Shape>, dtype: DType) -> Result<()> {
        let buffer = self.pool.buffer(shape, dtype)?;
        self.insert(name, buffer)
    }

    /// Adds a buffer for results that may be smaller: see [`MemPool::buffer_up_to`].
    ///
    /// # Errors
    /// As [`add`](Self::add).
    pub fn add_up_to(&mut self, name: &str, shape: impl Into<Shape>, dtype: DType) -> Result<()> {
        let buffer = self.pool.buffer_up_to(shape, dtype)?;
        self.insert(name, buffer)
    }

    /// Adds a buffer that was made elsewhere.
    ///
    /// # Errors
    /// [`Error::BufferExists`].
    pub fn insert(&mut self, name: &str, buffer: Buffer) -> Result<()> {
        if self.buffers.iter().any(|(other, _)| other == name) {
            return Err(Error::BufferExists { name: name.to_owned() });
        }
        self.buffers.push((name.to_owned(), buffer));
        Ok(())
    }

    /// Computes `f` with its result in the buffer of this name: see [`Buffer::write`].
    ///
    /// # Errors
    /// [`Error::NoBuffer`] with the names there are; as [`Buffer::write`].
    pub fn write(&mut self, name: &str, f: impl FnOnce() -> candle_core::Result<Tensor>) -> Result<Tensor> {
        let Some((_, buffer)) = self.buffers.iter_mut().find(|(other, _)| other == name) else {
            let known = self.buffers.iter().map(|(name, _)| name.clone()).collect();
            return Err(Error::NoBuffer { name: name.to_owned(), known });
        };
        buffer.write(f)
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
