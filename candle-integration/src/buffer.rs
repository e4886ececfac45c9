//! Tensors of known shape whose memory is allocated once and written every step.

use candle_core::{DType, Device, Shape, Tensor};
use mempool_pools::BufferStats;

use crate::address;
use crate::contents::Contents;
use crate::device::Backing;
use crate::error::{Error, Result};
use crate::pool::MemPool;

/// How large results of a buffer may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fits {
    /// As the buffer.
    Exactly,
    /// No dimension longer than the buffer's.
    UpTo,
}

/// Memory for results of one shape and dtype, one after the other, always at the same address.
///
/// ```
/// # use candle_core::{DType, Device, Tensor};
/// # use candle_mempool::{MemPool, PoolAllocator};
/// # #[global_allocator]
/// # static ALLOC: PoolAllocator = PoolAllocator::new();
/// # fn main() -> candle_core::Result<()> {
/// # let device = Device::Cpu;
/// # let x = Tensor::rand(0_f32, 1., (64, 512), &device)?;
/// # let weight = Tensor::rand(0_f32, 1., (512, 128), &device)?;
/// let pool = MemPool::new(&device)?;
/// let mut logits = pool.buffer((64, 128), DType::F32)?;
/// for _ in 0..10 {
///     let y = logits.write(|| x.matmul(&weight)?.relu())?; // any expression, a custom operation included
///     assert_eq!(y.dims(), [64, 128]);
/// } // `y` is dropped before it is written again
/// assert_eq!(logits.stats().placed, 9); // the first was copied, and which allocation it is was learned
/// # Ok(())
/// # }
/// ```
///
/// The result of a [`write`](Self::write) *is* the buffer: its storage owns the memory until it is dropped, so
/// nothing else can write there meanwhile. The computation is not changed: its allocations are looked at, and the
/// one that became the result the last time gets the buffer's memory. If that turns out to be another one this
/// time, the result is copied into the buffer, which [`stats`](Self::stats) counts.
///
/// On CUDA a buffer belongs to the stream that the device has on the thread that made it: results that another
/// stream computes are refused.
#[derive(Debug)]
pub struct Buffer {
    /// One, or two that take turns.
    blocks: Vec<mempool_pools::Buffer>,
    pool: MemPool,
    shape: Shape,
    dtype: DType,
    fits: Fits,
    /// What was written last, and to which block.
    last: Option<(usize, Contents)>,
}

impl MemPool {
    /// A buffer for results of this shape and dtype. See [`Buffer`].
    ///
    /// # Errors
    /// [`Error::Pool`] when the pool has no memory for it.
    pub fn buffer(&self, shape: impl Into<Shape>, dtype: DType) -> Result<Buffer> {
        Buffer::new(self, shape.into(), dtype, Fits::Exactly)
    }

    /// A buffer for results of this dtype with as many dimensions, none of which is longer: for batches that may be
    /// smaller.
    ///
    /// # Errors
    /// As [`buffer`](Self::buffer).
    pub fn buffer_up_to(&self, shape: impl Into<Shape>, dtype: DType) -> Result<Buffer> {
        Buffer::new(self, shape.into(), dtype, Fits::UpTo)
    }
}

impl Buffer {
    fn new(pool: &MemPool, shape: Shape, dtype: DType, fits: Fits) -> Result<Self> {
        let mut buffer = Self { blocks: Vec::new(), pool: pool.clone(), shape, dtype, fits, last: None };
        buffer.add_block()?;
        Ok(buffer)
    }

    /// A buffer of a set, for results of this shape or up to it.
    pub(crate) fn in_set(
        pool: &MemPool,
        set: &mut mempool_pools::BufferSet,
        shape: Shape,
        dtype: DType,
        may_be_smaller: bool,
    ) -> Result<Self> {
        let fits = if may_be_smaller { Fits::UpTo } else { Fits::Exactly };
        let mut buffer = Self { blocks: Vec::new(), pool: pool.clone(), shape, dtype, fits, last: None };
        let block = set.add(buffer.bytes()?)?;
        buffer.blocks.push(block);
        Ok(buffer)
    }

    /// Adds a second block: then the last result may still be held while the next one is written, and the address is
    /// one of two.
    ///
    /// # Errors
    /// [`Error::Pool`] when the pool has no memory for it.
    pub fn double_buffered(mut self) -> Result<Self> {
        if self.blocks.len() == 1 {
            self.add_block()?;
        }
        Ok(self)
    }

    fn add_block(&mut self) -> Result<()> {
        let block = Backing::of(&self.pool.device)?.buffer(&self.pool, self.bytes()?)?;
        self.blocks.push(block);
        Ok(())
    }

    /// Bytes of the largest result.
    fn bytes(&self) -> Result<usize> {
        let mut dims = self.shape.dims().iter();
        let product = dims.try_fold(self.dtype.size_in_bytes(), |bytes, &dim| bytes.checked_mul(dim));
        product.ok_or_else(|| Error::BufferTooLarge { shape: self.shape.dims().to_vec() })
    }

    /// The shape of results, or the largest.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The dtype of results.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Where results lie: one address, or two.
    #[must_use]
    pub fn addresses(&self) -> Vec<usize> {
        self.blocks.iter().map(mempool_pools::Buffer::addr).collect()
    }

    /// Whether [`write`](Self::write) has a place to write to: results but the last one of a double buffer have been
    /// dropped.
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.blocks.iter().any(mempool_pools::Buffer::is_free)
    }

    /// Computes `f` with its result in the buffer, and returns it.
    ///
    /// # Errors
    /// [`PoolError::BufferInUse`](mempool_pools::PoolError::BufferInUse) in [`Error::Pool`] while earlier results are
    /// held; then `f` is not run. [`PoolError::BufferTaken`](mempool_pools::PoolError::BufferTaken) when another tensor
    /// of `f` than the result got the buffer this time, and is held. [`Error::Candle`] for an error of `f`. [`Error::BufferShape`] and
    /// [`Error::BufferDType`] for a result of another shape or dtype; [`Error::BufferDevice`] for one elsewhere, or
    /// of another stream.
    pub fn write(&mut self, f: impl FnOnce() -> candle_core::Result<Tensor>) -> Result<Tensor> {
        let free = self.blocks.iter().position(mempool_pools::Buffer::is_free);
        if free.is_some() {
            // However `f` ends, what is there then is no result until this says so.
            self.last = None;
        }
        let free = free.unwrap_or(0);
        let (result, written) = self.blocks[free].write(f)?;
        let result = result.map_err(Error::candle)?;
        self.check(&result)?;
        if result.elem_count() == 0 {
            // There is nothing to place.
            return Ok(result);
        }
        let block = &mut self.blocks[free];
        let bytes = result.elem_count() * self.dtype.size_in_bytes();
        // A view cannot be placed as it is.
        let whole = address::of_whole(&result);
        let result = if whole.is_none() && address::of_storage(&result) == Some(block.addr()) {
            // A view of what was computed in the buffer: that has to make room for the copy.
            let copy = self.pool.with(|| result.force_contiguous()).map_err(Error::candle)?;
            drop(result);
            block.settle(written, 0)?;
            block.place_next(bytes, || copy.copy())?.map_err(Error::candle)?
        } else if block.settle(written, whole.unwrap_or(0))? {
            result
        } else {
            block.place_next(bytes, || result.force_contiguous())?.map_err(Error::candle)?
        };
        let contents = Contents::of(&result, block).ok_or(Error::BufferDevice)?;
        self.last = Some((free, contents));
        Ok(result)
    }

    /// The last result again, after it was dropped: the buffer keeps what it holds until it is written. In-place
    /// operations on it change what the buffer holds.
    ///
    /// # Errors
    /// [`Error::BufferEmpty`] when nothing was written, the last write failed or had no element, or the driver failed while
    /// the buffer was moved;
    /// [`PoolError::BufferInUse`](mempool_pools::PoolError::BufferInUse) in [`Error::Pool`] while the result is held;
    /// [`Error::BufferDevice`] on a thread whose stream is another one.
    pub fn tensor(&mut self) -> Result<Tensor> {
        let Some((block, contents)) = &self.last else { return Err(Error::BufferEmpty) };
        if self.blocks[*block].has_lost_contents() {
            return Err(Error::BufferEmpty);
        }
        contents.tensor(&mut self.blocks[*block], &self.pool.device)
    }

    fn check(&self, result: &Tensor) -> Result<()> {
        if !result.device().same_device(&self.pool.device) {
            return Err(Error::BufferDevice);
        }
        if result.dtype() != self.dtype {
            return Err(Error::BufferDType { expected: self.dtype, got: result.dtype() });
        }
        let (dims, most) = (result.dims(), self.shape.dims());
        let fits = match self.fits {
            Fits::Exactly => dims == most,
            Fits::UpTo => dims.len() == most.len() && dims.iter().zip(most).all(|(dim, most)| dim <= most),
        };
        if fits { Ok(()) } else { Err(Error::BufferShape { expected: most.to_vec(), got: dims.to_vec() }) }
    }

    /// How the writes went.
    #[must_use]
    pub fn stats(&self) -> BufferStats {
        let add = |sum: BufferStats, block: &mempool_pools::Buffer| {
            let BufferStats { placed, copied, .. } = block.stats();
            BufferStats { placed: sum.placed + placed, copied: sum.copied + copied }
        };
        self.blocks.iter().fold(BufferStats::default(), add)
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.pool.device
    }
}
