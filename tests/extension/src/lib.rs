//! A shared library with candle and its pools inside, as a Python extension is one. `check.py`
//! loads it.
//!
//! Functions return 0, or -1 after a line on standard error. A device is a CUDA device's number,
//! or -1 for the CPU.
#![allow(unsafe_code)] // listed in ARCHITECTURE.md

use std::cell::RefCell;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Mutex;

use candle_core::{DType, Device, Error, Result, Tensor};
use candle_mempool::{MemPool, PoolAllocator, default_pool, without_pools};

#[global_allocator]
static ALLOC: PoolAllocator = PoolAllocator::new();

/// What [`run_steps`] saw.
#[repr(C)]
#[derive(Debug)]
pub struct Report {
    /// Sum of the last step's result, without a pool and inside one.
    pub expected: f64,
    /// See `expected`.
    pub sum: f64,
    /// Requests that the pool served, and those for which it mapped memory after the first step.
    pub requests: u64,
    /// See `requests`.
    pub late_misses: u64,
    /// Tensor bytes that live in the default pool now.
    pub default_pool_bytes: u64,
}

fn device(number: c_int) -> Result<Device> {
    match usize::try_from(number) {
        Ok(ordinal) => Device::new_cuda(ordinal),
        Err(_) => Ok(Device::Cpu),
    }
}

fn report_errors(what: &str, run: impl FnOnce() -> Result<()>) -> c_int {
    match run() {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("{what}: {error}");
            -1
        }
    }
}

fn step(x: &Tensor, weight: &Tensor) -> Result<f64> {
    let y = x.matmul(weight)?.gelu()?.matmul(&weight.t()?)?;
    (y.to_dtype(DType::F64)?.sum_all()? / 1e3)?.to_scalar()
}

/// Runs `steps` steps of a small network inside a pool.
///
/// # Safety
/// `report` is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn run_steps(number: c_int, steps: c_uint, report: *mut Report) -> c_int {
    report_errors("run_steps", || {
        let device = device(number)?;
        let x = Tensor::arange(0_f32, 64. * 256., &device)?.reshape((64, 256))?.affine(1e-4, -0.5)?;
        let weight =
            Tensor::arange(0_f32, 256. * 1024., &device)?.reshape((256, 1024))?.affine(1e-6, -0.1)?;
        let pool = MemPool::new(&device)?;
        let expected = without_pools(|| step(&x, &weight))?;
        let mut sum = pool.with(|| step(&x, &weight))?;
        let misses = pool.stats().misses;
        for _ in 1..steps {
            sum = pool.with(|| step(&x, &weight))?;
        }
        let stats = pool.stats();
        let seen = Report {
            expected,
            sum,
            requests: stats.hits + stats.misses,
            late_misses: stats.misses - misses,
            default_pool_bytes: default_pool(&device)?.stats().requested.current as u64,
        };
        // SAFETY: the caller's contract.
        unsafe { report.write(seen) };
        Ok(())
    })
}

/// A tensor that lives until the process exits.
static KEPT: Mutex<Option<Tensor>> = Mutex::new(None);

/// Drops what [`keep_until_exit`] keeps. In a forked child, too, which has a driver that answers
/// nothing.
#[unsafe(no_mangle)]
pub extern "C" fn drop_kept() {
    KEPT.lock().expect("not poisoned").take();
}

/// Keeps a tensor of a pool that is dropped at once, and drops the tensor while the process exits.
#[unsafe(no_mangle)]
pub extern "C" fn keep_until_exit(number: c_int) -> c_int {
    report_errors("keep_until_exit", || {
        let device = device(number)?;
        let tensor = MemPool::new(&device)?.with(|| Tensor::ones((512, 1024), DType::F32, &device))?;
        *KEPT.lock().expect("not poisoned") = Some(tensor);
        // SAFETY: the function lives as long as this library, which is never unloaded.
        let refused = unsafe { libc::atexit(drop_kept) };
        assert_eq!(refused, 0, "atexit");
        Ok(())
    })
}

/// Drops a tensor.
///
/// # Safety
/// `tensor` is a tensor from a box, and nobody else has it.
unsafe extern "C" fn drop_tensor(tensor: *mut c_void) {
    // SAFETY: the caller's contract.
    drop(unsafe { Box::from_raw(tensor.cast::<Tensor>()) });
}

thread_local! {
    static OF_THREAD: RefCell<Option<Tensor>> = const { RefCell::new(None) };
}

/// Leaves two tensors to a thread that ends: one is dropped with its thread-locals, one after
/// those are gone, by a destructor of the C library.
#[unsafe(no_mangle)]
pub extern "C" fn keep_until_thread_ends(number: c_int) -> c_int {
    report_errors("keep_until_thread_ends", || {
        let device = device(number)?;
        let pool = MemPool::new(&device)?;
        let of_thread = pool.with(|| Tensor::ones((512, 1024), DType::F32, &device))?;
        let last = pool.with(|| Tensor::ones((256, 1024), DType::F32, &device))?;
        let keep = move || {
            OF_THREAD.set(Some(of_thread));
            let mut key = 0;
            // SAFETY: `key` is valid for a write, and the destructor fits what is stored under it.
            let refused = unsafe { libc::pthread_key_create(&raw mut key, Some(drop_tensor)) };
            assert_eq!(refused, 0, "pthread_key_create");
            let last = Box::into_raw(Box::new(last));
            // SAFETY: the key was just made.
            let refused = unsafe { libc::pthread_setspecific(key, last.cast_const().cast()) };
            assert_eq!(refused, 0, "pthread_setspecific");
            key
        };
        let live = pool.stats().requested.current;
        let key = std::thread::spawn(keep).join().expect("the thread does not panic");
        // SAFETY: no thread that used it is left.
        unsafe { libc::pthread_key_delete(key) };
        let left = pool.stats().requested.current;
        match (live, left) {
            (3_145_728, 0) => Ok(()),
            _ => Err(Error::Msg(format!("{live} bytes were live, and {left} are after the thread"))),
        }
    })
}
