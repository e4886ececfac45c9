//! What is refused, with the numbers that say why, before anything is written.

use candle_core::{DType, DeviceLocation, Tensor, Var};
use candle_mempool::{ConvParams, Error, Result, TensorOut, cat_out};

use super::bits::{Numbers, Place, numbers, output, placed};
use crate::{alone, device};

/// Runs an operation that has to refuse `out`, and returns the error.
fn refused(out: &Tensor, run: impl FnOnce(&Tensor) -> Result<()>) -> Error {
    let before = numbers(out);
    let error = run(out).expect_err("is refused");
    assert_eq!(numbers(out), before, "nothing was written: {error}");
    let _: candle_core::Error = error.clone().into();
    error
}

fn ones(dims: &[usize]) -> Tensor {
    Tensor::ones(dims, DType::F32, &device()).unwrap()
}

#[test]
fn an_output_of_another_shape_is_refused_even_if_it_would_broadcast() {
    let _alone = alone();
    let x = ones(&[2, 3]);
    let others: [&[usize]; 5] = [&[3, 2], &[2, 3, 1], &[1, 2, 3], &[6], &[4, 3]];
    for dims in others {
        let error = refused(&ones(dims), |out| x.exp_out(out));
        let expected = Error::OutputShape { op: "exp_out", expected: vec![2, 3], got: dims.to_vec() };
        assert_eq!(error, expected);
    }
    let error = refused(&ones(&[2, 3]), |out| x.sum_out(1, out));
    assert_eq!(error, Error::OutputShape { op: "sum_out", expected: vec![2], got: vec![2, 3] });
}

#[test]
fn sources_that_do_not_go_together_are_refused_with_their_shapes() {
    let _alone = alone();
    let shapes =
        |error: &Error| if let Error::Shapes { shapes, .. } = error { shapes.clone() } else { Vec::new() };
    let error = refused(&ones(&[2, 3]), |out| ones(&[2, 3]).add_out(&ones(&[2, 2]), out));
    assert_eq!(shapes(&error), [[2, 3], [2, 2]], "{error}");
    let error = refused(&ones(&[2, 2]), |out| ones(&[2, 3]).matmul_out(&ones(&[2, 2]), out));
    assert_eq!(shapes(&error), [[2, 3], [2, 2]], "{error}");
    let error = refused(&ones(&[2, 2]), |out| ones(&[2]).matmul_out(&ones(&[2, 2]), out));
    assert_eq!(shapes(&error), [vec![2], vec![2, 2]], "{error}");
    let error = refused(&ones(&[2, 3]), |out| ones(&[2, 3]).rms_norm_out(&ones(&[2]), 1e-5, out));
    assert_eq!(shapes(&error), [vec![2, 3], vec![2]], "{error}");
    let error = refused(&ones(&[1, 1, 2]), |out| {
        ones(&[1, 2, 3]).conv1d_out(&ones(&[1, 2, 4]), ConvParams::default(), out)
    });
    assert_eq!(shapes(&error), [[1, 2, 3], [1, 2, 4]], "{error}");
    let error = refused(&ones(&[4, 3]), |out| cat_out(&[&ones(&[2, 3]), &ones(&[2, 2])], 0, out));
    assert_eq!(shapes(&error), [[2, 3], [2, 2]], "{error}");
    let error = refused(&ones(&[1]), |out| cat_out(&[], 0, out));
    assert!(matches!(error, Error::Shapes { .. }), "{error}");
}

#[test]
fn another_format_is_refused() {
    let _alone = alone();
    let half = ones(&[2, 3]).to_dtype(DType::F16).unwrap();
    let error = refused(&half, |out| ones(&[2, 3]).exp_out(out));
    let operand = "the output".to_owned();
    let expected = Error::OperandDType { op: "exp_out", operand, expected: DType::F32, got: DType::F16 };
    assert_eq!(error, expected);
    let error = refused(&ones(&[2, 3]), |out| ones(&[2, 3]).mul_out(&half, out));
    let operand = "source 1".to_owned();
    let expected = Error::OperandDType { op: "mul_out", operand, expected: DType::F32, got: DType::F16 };
    assert_eq!(error, expected);
    let error = refused(&ones(&[2, 3]), |out| ones(&[4, 3]).index_select_out(&ones(&[2]), 0, out));
    assert_eq!(error, Error::UnsupportedDType { op: "index_select_out", dtype: DType::F32 });
    let ints = ones(&[2]).to_dtype(DType::U32).unwrap();
    let error = refused(&ints, |out| ints.clone().exp_out(out));
    assert_eq!(error, Error::UnsupportedDType { op: "exp_out", dtype: DType::U32 });
}

#[test]
fn tensors_that_track_gradients_are_refused_until_they_are_detached() {
    let _alone = alone();
    let variable = Var::from_tensor(&ones(&[2, 3])).unwrap();
    let derived = variable.affine(2.0, 0.0).unwrap();
    let x = ones(&[2, 3]);
    let tracked = |op, operand: &str| Error::Tracked { op, operand: operand.to_owned() };
    assert_eq!(refused(&variable, |out| x.exp_out(out)), tracked("exp_out", "the output"));
    assert_eq!(refused(&derived, |out| x.exp_out(out)), tracked("exp_out", "the output"));
    assert_eq!(refused(&x, |out| variable.exp_out(out)), tracked("exp_out", "source 0"));
    assert_eq!(refused(&x, |out| x.clone().add_out(&derived, out)), tracked("add_out", "source 1"));
    assert_eq!(
        refused(&ones(&[4, 3]), |out| cat_out(&[&x, &variable], 0, out)),
        tracked("cat_out", "source 1")
    );
    variable.detach().exp_out(&x).unwrap();
    x.exp_out(&variable.detach()).unwrap();
}

#[test]
fn an_output_without_a_place_for_each_element_is_refused() {
    let _alone = alone();
    let row = ones(&[3]);
    let wide = row.broadcast_as((2, 3)).unwrap();
    let error = refused(&wide, |out| ones(&[2, 3]).exp_out(out));
    let Error::OperandLayout { op: "exp_out", shape, strides, .. } = &error else { panic!("{error}") };
    assert_eq!((shape, strides), (&vec![2, 3], &vec![0, 1]));
}

#[test]
fn operations_that_need_contiguous_tensors_say_which_is_not() {
    let _alone = alone();
    let across = output(&[2, 3], DType::F32, Place::Transposed).tensor;
    let x = ones(&[2, 3]);
    for error in [
        refused(&across, |out| ones(&[2, 4]).matmul_out(&ones(&[4, 3]), out)),
        refused(&across, |out| x.softmax_last_dim_out(out)),
        refused(&across, |out| ones(&[2, 3, 4]).sum_out(2, out)),
        refused(&ones(&[2, 3]), |out| across.softmax_last_dim_out(out)),
    ] {
        let Error::OperandLayout { strides, requirement: "contiguous", .. } = &error else {
            panic!("{error}")
        };
        assert_eq!(strides, &[1, 2]);
    }
}

#[test]
fn a_dimension_or_an_index_that_is_not_there_is_refused() {
    let _alone = alone();
    let x = placed(&[2, 3], DType::F32, Numbers::small(1), Place::Plain).tensor;
    let error = refused(&ones(&[2]), |out| x.sum_out(2, out));
    assert!(matches!(&error, Error::Dimension { op: "sum_out", shape, .. } if shape == &[2, 3]), "{error}");
    let error = refused(&ones(&[2]), |out| x.max_out(5, out));
    assert!(matches!(error, Error::Dimension { op: "max_out", .. }), "{error}");
    if device().is_cpu() {
        let ids = Tensor::new(&[0_u32, 1, 2], &device()).unwrap();
        let error = refused(&ones(&[3, 3]), |out| x.index_select_out(&ids, 0, out));
        assert_eq!(error, Error::Index { op: "index_select_out", index: 2, len: 2 });
        let error = refused(&ones(&[1, 3]), |out| x.gather_out(&ids.reshape((1, 3)).unwrap(), 0, out));
        assert_eq!(error, Error::Index { op: "gather_out", index: 2, len: 2 });
    }
}

#[test]
fn tensors_on_different_devices_are_refused() {
    let _alone = alone();
    if device().is_cpu() {
        return;
    }
    let here = Tensor::ones((2, 3), DType::F32, &candle_core::Device::Cpu).unwrap();
    let error = refused(&ones(&[2, 3]), |out| here.exp_out(out));
    let Error::OperandDevice { op: "exp_out", expected: DeviceLocation::Cuda { .. }, got, .. } = error else {
        panic!("{error}")
    };
    assert_eq!(got, DeviceLocation::Cpu);
}

#[test]
fn outputs_that_candles_kernels_cannot_write_are_refused_on_cuda() {
    let _alone = alone();
    if device().is_cpu() {
        return;
    }
    let across = output(&[2, 3], DType::F32, Place::Transposed).tensor;
    let x = ones(&[2, 3]);
    let choice = x.to_dtype(DType::U8).unwrap();
    let ids =
        Tensor::new(&[[0_u32, 1], [1, 0]], &device()).unwrap().narrow(1, 0, 1).unwrap().squeeze(1).unwrap();
    for error in [
        refused(&across, |out| x.exp_out(out)),
        refused(&across, |out| x.add_out(&x, out)),
        refused(&across, |out| x.clamp_out(0.0, 1.0, out)),
        refused(&across, |out| choice.where_cond_out(&x, &x, out)),
        refused(&ones(&[2, 3]), |out| x.index_select_out(&ids, 0, out)),
    ] {
        assert!(matches!(error, Error::OperandLayout { requirement: "contiguous on CUDA", .. }), "{error}");
    }
    // Copies and fills have kernels for it.
    x.copy_out(&across).unwrap();
    across.fill_in_place(3.0).unwrap();
    assert_eq!(numbers(&across), [3.0; 6]);
}

#[test]
fn formats_without_operations_are_refused() {
    let _alone = alone();
    let Ok(x) = ones(&[2, 3]).to_dtype(DType::I32) else { return };
    let error = refused(&x, |out| x.clone().add_out(&x, out));
    assert_eq!(error, Error::UnsupportedDType { op: "add_out", dtype: DType::I32 });
}
