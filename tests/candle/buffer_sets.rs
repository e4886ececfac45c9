//! Sets of buffers that move: what they hold stays the same to the bit.

use candle_core::{DType, Tensor, Var};
use candle_mempool::{
    AdamW, AdamWParams, BufferSet, CompactionOptions, Error, MemPool, PoolError, TensorOut,
};

use crate::weights::tensor;

fn bits(tensor: &Tensor) -> Vec<u32> {
    let values = tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
    values.into_iter().map(f32::to_bits).collect()
}

/// Any sequence of numbers.
fn random(state: &mut u64) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 40) as usize
}

#[test]
fn what_a_buffer_holds_is_there_again_after_its_result_is_dropped() {
    let _alone = crate::alone();
    let pool = MemPool::new(&crate::device()).unwrap();
    let mut set = BufferSet::new(&pool);
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64, DType::U32, DType::I64, DType::U8] {
        let name = format!("{dtype:?}");
        set.add_up_to(&name, (70, 50), dtype).unwrap();
        assert_eq!(set.tensor(&name).unwrap_err(), Error::BufferEmpty);
        for rows in [70, 3] {
            let expected = tensor(5, (rows, 50), 100.0).unwrap().to_dtype(dtype).unwrap();
            drop(set.write(&name, || expected.contiguous()?.copy()).unwrap());
            for _ in 0..2 {
                let again = set.tensor(&name).unwrap();
                assert_eq!((again.dims(), again.dtype()), (expected.dims(), dtype));
                assert_eq!(bits(&again), bits(&expected));
            }
        }
    }
    // While somebody has it there is no second owner, and a change in place stays.
    let held = set.tensor("F32").unwrap();
    assert!(matches!(set.tensor("F32"), Err(Error::Pool(PoolError::BufferInUse { .. }))));
    held.affine_out(2.0, 0.0, &held).unwrap();
    let changed = bits(&held);
    drop(held);
    assert_eq!(bits(&set.tensor("F32").unwrap()), changed);
    // A write that fails leaves nothing that could be taken for a result.
    let refused = set.write("F32", || tensor(1, (71, 50), 1.0));
    assert!(matches!(refused, Err(Error::BufferShape { .. })));
    assert_eq!(set.tensor("F32").unwrap_err(), Error::BufferEmpty);
    // Nor does one that unwinds, however far it came.
    let written = || tensor(1, (70, 50), 1.0);
    drop(set.write("F32", written).unwrap());
    drop(set.write("F32", written).unwrap());
    let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        set.write("F32", || {
            let _begun = written()?;
            panic!("in the middle")
        })
    }));
    assert!(unwound.is_err());
    assert_eq!(set.tensor("F32").unwrap_err(), Error::BufferEmpty);
    // One that does not begin, because the result is held, changes nothing.
    let held = set.write("F32", written).unwrap();
    assert!(set.write("F32", || unreachable!("it is not computed")).is_err());
    drop(held);
    assert_eq!(bits(&set.tensor("F32").unwrap()), bits(&written().unwrap()));
    assert!(matches!(set.remove("F33"), Err(Error::NoBuffer { .. })));
    set.remove("F32").unwrap();
    assert!(matches!(set.tensor("F32"), Err(Error::NoBuffer { .. })));
    pool.validate().unwrap();
}

#[test]
fn caches_that_come_and_go_keep_their_bits_while_they_are_moved() {
    let _alone = crate::alone();
    let pool = MemPool::new(&crate::device()).unwrap();
    let mut set = BufferSet::new(&pool);
    let options = CompactionOptions { old_every: 5, old_after: 3, budget_share: 1.0, ..Default::default() };
    set.set_compaction(options).unwrap();
    set.reserve(8 << 20).unwrap();
    let mut known: Vec<(String, Vec<u32>)> = Vec::new();
    let mut held: Vec<(Tensor, Vec<u32>)> = Vec::new();
    let (mut state, mut moved) = (7, 0);
    for step in 0..200 {
        if known.len() < 12 {
            let name = format!("cache {step}");
            let rows = 1 + random(&mut state) % 400;
            set.add(&name, (rows, 256), DType::F32).unwrap();
            let result = set.write(&name, || tensor(step as u64, (rows, 256), 1.0)? + 1.0).unwrap();
            known.push((name, bits(&result)));
        }
        if step % 3 == 1 {
            let gone = random(&mut state) % known.len();
            set.remove(&known.swap_remove(gone).0).unwrap();
        }
        if step % 4 == 0 {
            held.truncate(2);
            let (name, expected) = &known[random(&mut state) % known.len()];
            if let Ok(tensor) = set.tensor(name) {
                held.insert(0, (tensor, expected.clone()));
            }
        }
        moved += match step % 2 {
            0 => set.compact().unwrap().moved,
            _ => set.defrag_if(|fragmentation| fragmentation > 0.10).unwrap().map_or(0, |done| done.moved),
        };
        held.iter().for_each(|(tensor, expected)| assert_eq!(&bits(tensor), expected, "held, step {step}"));
        for (name, expected) in &known {
            match set.tensor(name) {
                Ok(tensor) => assert_eq!(&bits(&tensor), expected, "{name}, step {step}"),
                Err(error) => assert!(matches!(error, Error::Pool(PoolError::BufferInUse { .. }))),
            }
        }
    }
    assert!(moved > 50, "{moved}");
    assert_eq!(set.compaction_stats().moved, moved as u64);
    pool.validate().unwrap();
}

/// Trains a small network on batches of random sizes. `between` keeps the gradients from the backward pass
/// to the optimizer.
fn train(mut between: impl FnMut(usize, Vec<Tensor>) -> Vec<Tensor>) -> Vec<Vec<u32>> {
    let vars: Vec<Var> = [(64, 96), (96, 96), (96, 32)]
        .iter()
        .zip(1..)
        .map(|(&shape, seed)| Var::from_tensor(&tensor(seed, shape, 0.2).unwrap()).unwrap())
        .collect();
    let mut optimizer = AdamW::new(vars.clone(), AdamWParams::default()).unwrap();
    let mut state = 3;
    for step in 0..25 {
        let batch = 1 + random(&mut state) % 40;
        let x = tensor(step as u64, (batch, 64), 1.0).unwrap();
        let hidden = x.matmul(&vars[0]).unwrap().gelu().unwrap().matmul(&vars[1]).unwrap().gelu().unwrap();
        let loss = hidden.matmul(&vars[2]).unwrap().sqr().unwrap().mean_all().unwrap();
        let mut gradients = loss.backward().unwrap();
        let taken = vars.iter().map(|var| gradients.remove(var).unwrap()).collect();
        drop(hidden);
        for (var, gradient) in vars.iter().zip(between(batch, taken)) {
            gradients.insert(var, gradient);
        }
        optimizer.step(&gradients).unwrap();
    }
    vars.iter().map(|var| bits(var)).collect()
}

#[test]
fn moving_between_backward_and_optimizer_changes_no_bit_of_the_weights() {
    let _alone = crate::alone();
    let expected = train(|_, gradients| gradients);
    let pool = MemPool::new(&crate::device()).unwrap();
    let mut set = BufferSet::new(&pool);
    set.reserve(1 << 20).unwrap();
    let mut moved = 0;
    let trained = train(|batch, gradients| {
        // Beside gradients the set has what lives from one step to the next, of the batch's size.
        set.add("first", (batch, 64), DType::F32).unwrap();
        for (k, gradient) in gradients.iter().enumerate() {
            let name = format!("gradient {k}");
            set.add(&name, gradient.shape(), gradient.dtype()).unwrap();
            drop(set.write(&name, || gradient.copy()).unwrap());
        }
        drop(gradients);
        set.remove("first").unwrap();
        moved += set.defrag_if(|fragmentation| fragmentation > 0.0).unwrap().map_or(0, |done| done.moved);
        let again = (0..3).map(|k| set.tensor(&format!("gradient {k}")).unwrap()).collect();
        (0..3).for_each(|k| set.remove(&format!("gradient {k}")).unwrap());
        again
    });
    assert_eq!(trained, expected);
    assert!(moved >= 25, "{moved}");
    pool.validate().unwrap();
}
