use super::{StepArena, StepArenaError};

#[test]
fn a_step_like_the_one_before_takes_no_new_memory() {
    let mut scratch = StepArena::new();
    let step = |scratch: &mut StepArena| {
        for k in 0..64 {
            let slice = scratch.alloc_slice_fill_copy(1000 + k, k as u32).unwrap();
            assert!(slice.iter().all(|&value| value == k as u32));
        }
        let held = scratch.reserved_bytes();
        scratch.reset();
        held
    };
    step(&mut scratch);
    let settled = step(&mut scratch);
    for _ in 0..10 {
        assert_eq!(step(&mut scratch), settled);
        assert_eq!(scratch.reserved_bytes(), settled);
    }
}

#[test]
fn slices_do_not_overlap() {
    let scratch = StepArena::new();
    let ids = scratch.alloc_slice_fill_with(100, |k| k as u32).unwrap();
    let mask = scratch.alloc_slice_copy(&[1_u8; 77]).unwrap();
    mask.fill(9);
    assert!(ids.iter().enumerate().all(|(k, &id)| id == k as u32));
}

#[test]
fn a_slice_over_the_limit_is_an_error_with_its_size() {
    let mut scratch = StepArena::new().limit_bytes(1 << 16);
    let error = scratch.alloc_slice_fill_copy(1 << 20, 0_u64).unwrap_err();
    assert!(matches!(error, StepArenaError::OutOfMemory { len: 1_048_576, element_bytes: 8, .. }));
    assert!(scratch.alloc_slice_fill_copy(100, 0_u64).is_ok());
    scratch.reset();
    assert!(scratch.alloc_slice_fill_copy(100, 0_u64).is_ok());
}

#[test]
fn an_impossible_length_is_an_error_not_a_panic() {
    let scratch = StepArena::new();
    assert!(scratch.alloc_slice_fill_copy(usize::MAX / 2, 0_u64).is_err());
    assert!(scratch.alloc_slice_fill_copy(0, 0_u64).is_ok());
}
