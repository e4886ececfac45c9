//! Buffers: results at fixed addresses, whatever computes them.

use candle_core::{CpuStorage, CustomOp1, D, DType, Layout, Result, Shape, Tensor, Var};
use candle_mempool::{BufferSet, Error, MemPool, PoolError};
use candle_nn::ops;

use crate::weights::tensor;

fn bits(tensor: &Tensor) -> Vec<u32> {
    let values = tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
    values.into_iter().map(f32::to_bits).collect()
}

/// Writes `f` again and again: the same bits each time, in the buffer from the second time on.
fn placed(f: impl Fn() -> Result<Tensor>) {
    let expected = f().unwrap();
    let pool = MemPool::new(&crate::device()).unwrap();
    let mut buffer = pool.buffer(expected.shape(), expected.dtype()).unwrap();
    for _ in 0..5 {
        let result = buffer.write(&f).unwrap();
        assert_eq!(bits(&result), bits(&expected));
        assert_eq!((result.shape(), result.dtype()), (expected.shape(), expected.dtype()));
    }
    let stats = buffer.stats();
    assert_eq!((stats.copied, stats.placed), (1, 4));
    drop(buffer);
    pool.validate().unwrap();
}

#[test]
fn results_of_any_expression_are_placed() {
    let _alone = crate::alone();
    let x = tensor(1, (64, 256), 1.0).unwrap();
    let weight = tensor(2, (256, 256), 0.1).unwrap();
    let image = tensor(3, (2, 8, 16, 16), 1.0).unwrap();
    let kernel = tensor(4, (16, 8, 3, 3), 0.3).unwrap();
    placed(|| x.matmul(&weight));
    placed(|| x.matmul(&weight)?.gelu_erf()?.matmul(&weight)? + &x);
    placed(|| ops::softmax_last_dim(&x.matmul(&weight)?));
    placed(|| ops::softmax(&x, D::Minus1));
    placed(|| image.conv2d(&kernel, 1, 1, 1, 1)?.relu());
    placed(|| Tensor::cat(&[&x, &x.affine(2.0, 1.0)?], 0));
    placed(|| x.sum_keepdim(1));
    placed(|| x.mean(0));
    placed(|| x.to_dtype(DType::F16));
    placed(|| x.t()?.contiguous());
    placed(|| x.narrow(1, 3, 5)?.contiguous());
    placed(|| Tensor::zeros((300, 300), DType::F32, x.device()));
    placed(|| x.i(1));
}

/// Rows by number.
trait Row {
    fn i(&self, row: usize) -> Result<Tensor>;
}

impl Row for Tensor {
    fn i(&self, row: usize) -> Result<Tensor> {
        let index = Tensor::new(&[row as u32], self.device())?;
        self.index_select(&index, 0)
    }
}

#[test]
fn a_view_is_copied_each_time() {
    let _alone = crate::alone();
    let x = tensor(1, (64, 256), 1.0).unwrap();
    let pool = MemPool::new(&crate::device()).unwrap();
    let mut buffer = pool.buffer((256, 64), DType::F32).unwrap();
    for _ in 0..3 {
        let result = buffer.write(|| (&x + 1.0)?.t()).unwrap();
        assert!(result.is_contiguous());
        assert_eq!(bits(&result), bits(&(&x + 1.0).unwrap().t().unwrap()));
    }
    assert_eq!(buffer.stats().copied, 3);
}

#[test]
fn a_result_that_is_sometimes_a_view_of_what_lies_in_the_buffer_is_copied_then() {
    let _alone = crate::alone();
    let x = tensor(1, (64, 64), 1.0).unwrap();
    let pool = MemPool::new(&crate::device()).unwrap();
    let mut buffer = pool.buffer((64, 64), DType::F32).unwrap();
    for turned in [false, true, false, false, true, true, false] {
        let result = buffer.write(|| if turned { (&x + 1.0)?.t() } else { &x + 1.0 }).unwrap();
        let expected = (&x + 1.0).unwrap();
        assert_eq!(bits(&result), bits(&if turned { expected.t().unwrap() } else { expected }));
        assert_eq!(buffer.addresses().len(), 1);
    }
    pool.validate().unwrap();
}

/// Twice its input, with a temporary.
struct Twice;

impl CustomOp1 for Twice {
    fn name(&self) -> &'static str {
        "twice"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let values = storage.as_slice::<f32>()?;
        let temporary: Vec<f32> = values.to_vec();
        let result = temporary.iter().map(|value| value * 2.0).collect();
        Ok((CpuStorage::F32(result), layout.shape().clone()))
    }
}

#[test]
fn a_custom_operation_is_placed_too() {
    let x = Tensor::rand(0_f32, 1.0, (100, 100), &candle_core::Device::Cpu).unwrap();
    let pool = MemPool::new(x.device()).unwrap();
    let mut buffer = pool.buffer((100, 100), DType::F32).unwrap();
    for _ in 0..4 {
        let result = buffer.write(|| x.apply_op1_no_bwd(&Twice)).unwrap();
        assert_eq!(bits(&result), bits(&(&x * 2.0).unwrap()));
    }
    assert_eq!(buffer.stats().placed, 3);
}

#[test]
fn gradients_flow_through_buffers() {
    let _alone = crate::alone();
    let weight = Var::from_tensor(&tensor(1, (64, 64), 0.2).unwrap()).unwrap();
    let x = tensor(2, (32, 64), 1.0).unwrap();
    let gradient = |hidden: Tensor| hidden.sqr()?.sum_all()?.backward();
    let expected = gradient(x.matmul(&weight).unwrap()).unwrap();
    let pool = MemPool::new(&crate::device()).unwrap();
    let mut buffer = pool.buffer((32, 64), DType::F32).unwrap();
    for _ in 0..3 {
        let hidden = buffer.write(|| x.matmul(&weight)).unwrap();
        let gradients = gradient(hidden).unwrap();
        assert_eq!(bits(gradients.get(&weight).unwrap()), bits(expected.get(&weight).unwrap()));
    }
}

#[test]
fn misuse_is_an_error_that_says_what_is_wrong() {
    let _alone = crate::alone();
    let x = tensor(1, (8, 16), 1.0).unwrap();
    let pool = MemPool::new(&crate::device()).unwrap();
    let mut buffer = pool.buffer((8, 16), DType::F32).unwrap();
    let held = buffer.write(|| &x + 1.0).unwrap();
    let error = buffer.write(|| unreachable!("it is not computed")).unwrap_err();
    assert_eq!(error, Error::Pool(PoolError::BufferInUse { bytes: 512 }));
    assert_eq!(bits(&held), bits(&(&x + 1.0).unwrap()));
    drop(held);
    let error = buffer.write(|| x.t()).unwrap_err();
    assert_eq!(error, Error::BufferShape { expected: vec![8, 16], got: vec![16, 8] });
    let error = buffer.write(|| x.to_dtype(DType::F64)).unwrap_err();
    assert_eq!(error, Error::BufferDType { expected: DType::F32, got: DType::F64 });
    let error = buffer.write(|| x.matmul(&x)).unwrap_err();
    assert!(matches!(error, Error::Candle(_)), "{error}");
    let back: candle_core::Error = error.into();
    assert!(back.to_string().contains("matmul"), "{back}");
    // It works on.
    drop(buffer.write(|| &x + 1.0).unwrap());
    let mut double = pool.buffer((8, 16), DType::F32).unwrap().double_buffered().unwrap();
    let mut last = None;
    for _ in 0..6 {
        assert!(double.is_free());
        last = Some(double.write(|| &x + 1.0).unwrap());
    }
    let before = last.take();
    let _now = double.write(|| &x + 1.0).unwrap();
    assert!(!double.is_free());
    drop(before);
    assert_eq!((double.addresses().len(), double.stats().copied), (2, 2));
}

#[test]
fn sets_of_buffers_know_their_names_and_take_smaller_batches() {
    let _alone = crate::alone();
    let pool = MemPool::new(&crate::device()).unwrap();
    let weight = tensor(1, (64, 32), 0.2).unwrap();
    let mut set = BufferSet::new(&pool);
    set.add_up_to("hidden", (48, 32), DType::F32).unwrap();
    set.add("sum", 32, DType::F32).unwrap();
    for batch in [48, 7, 1, 48, 7, 1, 7, 48] {
        let x = tensor(2, (batch, 64), 1.0).unwrap();
        let hidden = set.write("hidden", || x.matmul(&weight)).unwrap();
        let sum = set.write("sum", || hidden.sum(0)).unwrap();
        assert_eq!(bits(&sum), bits(&x.matmul(&weight).unwrap().sum(0).unwrap()));
    }
    assert_eq!(set.get("hidden").unwrap().stats().copied, 3, "one for each shape");
    assert_eq!(set.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["hidden", "sum"]);
    let empty = set.write("hidden", || tensor(2, (0, 64), 1.0)?.matmul(&weight)).unwrap();
    assert_eq!(empty.dims(), [0, 32]);
    let uncountable = set.add("huge", (1 << 31, 1 << 31, 1 << 31), DType::F32).unwrap_err();
    assert!(matches!(uncountable, Error::BufferTooLarge { .. }));
    let too_long = set.write("hidden", || tensor(2, (49, 64), 1.0)?.matmul(&weight)).unwrap_err();
    assert!(matches!(too_long, Error::BufferShape { .. }));
    let known = vec!["hidden".to_owned(), "sum".to_owned()];
    let error = set.write("hiden", || tensor(2, 3, 1.0)).unwrap_err();
    assert_eq!(error, Error::NoBuffer { name: "hiden".to_owned(), known });
    assert_eq!(set.add("sum", 3, DType::F32), Err(Error::BufferExists { name: "sum".to_owned() }));
}
