//! Tests of buffers, their parts, and the memory of calls.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use super::parts::FILL_BYTES;
use super::*;

fn buffer<T: Pod>(len: usize) -> Buffer<T> {
    Buffer::new(&Arena::new().unwrap(), len, || Ok(())).unwrap()
}

fn panics<R>(act: impl FnOnce() -> R) -> bool {
    catch_unwind(AssertUnwindSafe(|| drop(act()))).is_err()
}

#[test]
fn copies_values_in_and_out() {
    let mut values = buffer::<u32>(5);
    values.fill(9);
    values.set(0, 1);
    values.copy_from(2, &[3, 4]);
    assert_eq!(values.to_vec(), [1, 9, 3, 4, 9]);
    let mut middle = [0; 3];
    values.copy_to(1, &mut middle);
    assert_eq!((middle, values.get(4), values.len(), values.is_empty()), ([9, 3, 4], 9, 5, false));
    assert!(values.iter().rev().eq([9, 4, 3, 9, 1]) && values.iter().len() == 5);
    values.copy_from_slice(&[5, 6, 7, 8, 9]);
    assert_eq!(values.part(..).to_vec(), [5, 6, 7, 8, 9]);
}

#[test]
fn fills_whole_buffers_and_parts_of_any_length() {
    for len in [1, FILL_BYTES / 8 - 1, FILL_BYTES / 8, FILL_BYTES / 8 + 1, 3 * FILL_BYTES] {
        let mut values = buffer::<f64>(len);
        values.fill(1.5);
        assert!(values.iter().all(|value| value == 1.5), "{len} values");
        values.part_mut(1..).fill(2.5);
        assert!(values.get(0) == 1.5 && values.part(1..).iter().all(|value| value == 2.5), "{len} values");
    }
    // A value that is larger than the memory from which a buffer is filled.
    let mut large = buffer::<[u64; 1024]>(2);
    large.fill([7; 1024]);
    assert!(large.iter().all(|value| value == [7; 1024]));
}

#[test]
fn parts_are_ranges_of_the_buffer() {
    let mut values = buffer::<u16>(6);
    values.copy_from_slice(&[0, 1, 2, 3, 4, 5]);
    assert_eq!(values.part(2..=3).to_vec(), [2, 3]);
    assert_eq!(values.part(1..5).part(1..).part(..2).to_vec(), [2, 3]);
    assert_eq!(values.part(4..).bytes().to_vec(), bytemuck::cast_slice::<u16, u8>(&[4, 5]));
    let mut tail = values.part_mut(3..);
    tail.part_mut(1..2).set(0, 40);
    tail.copy_from(2, &[50]);
    assert_eq!(tail.as_part().to_vec(), [3, 40, 50]);
    let (mut front, mut back) = values.part_mut(..).split_at(2);
    front.copy_from_slice(&[10, 11]);
    back.set(0, 12);
    assert_eq!((front.len(), back.len(), back.is_empty()), (2, 4, false));
    assert_eq!(values.to_vec(), [10, 11, 12, 3, 40, 50]);
    assert!(values.part(6..).is_empty() && values.part_mut(..0).is_empty());
}

#[test]
fn rejects_accesses_beyond_the_buffer() {
    let mut values = buffer::<u64>(4);
    assert!(panics(|| values.get(4)) && panics(|| values.get(usize::MAX)));
    assert!(panics(|| values.set(4, 0)));
    assert!(panics(|| values.copy_to(3, &mut [0; 2])) && panics(|| values.copy_to(usize::MAX, &mut [0])));
    assert!(panics(|| values.copy_from(3, &[0; 2])) && panics(|| values.copy_from(5, &[])));
    assert!(panics(|| values.copy_from_slice(&[0; 3])) && panics(|| values.copy_from_slice(&[0; 5])));
    assert!(panics(|| values.part(..5).len()) && panics(|| values.part(..=4).len()));
    assert!(panics(|| values.part_mut(5..).len()));
    assert!(panics(|| values.part(1..3).get(2)) && panics(|| values.part(1..3).part(..3).len()));
    assert!(panics(|| values.part_mut(1..3).set(2, 0)));
    assert!(panics(|| values.part_mut(..).split_at(5).0.len()));
    #[expect(clippy::reversed_empty_ranges, reason = "that is what is refused")]
    let reversed = 3..2;
    assert!(panics(|| values.part(reversed).len()));
    assert!(values.part(4..).is_empty());
}

#[test]
fn empty_buffers_and_values_without_bytes_are_usable() {
    let mut none = buffer::<u32>(0);
    none.fill(1);
    none.copy_from_slice(&[]);
    assert!(none.is_empty() && none.to_vec().is_empty() && none.iter().next().is_none());
    let mut units = buffer::<()>(3);
    units.fill(());
    units.set(2, ());
    assert_eq!((units.to_vec(), units.part(1..).len()), (vec![(); 3], 2));
}

/// A worker that writes while the client uses its buffer. Each value is one that was written, or a mix of several.
#[test]
fn copies_values_that_a_worker_changes_meanwhile() {
    let mut values = buffer::<u32>(64);
    values.fill(0);
    let arena = values.arena.clone();
    let start = arena.pointer(&values.block).unwrap();
    // SAFETY: the block stays mapped as long as `values`, and only views and atomics access it.
    let mut worker = unsafe { SharedBytesMut::new(start, 64 * size_of::<u32>()) };
    worker.copy_from(&[0xff; 8]);
    assert_eq!((values.get(0), values.get(1), values.get(2)), (u32::MAX, u32::MAX, 0));
    values.set(1, 7);
    worker.part(0..4).copy_from(&[0; 4]);
    assert_eq!(values.part(..3).to_vec(), [0, 7, 0]);
    values.atomic(2).store(5, Ordering::Relaxed);
    assert_eq!(values.get(2), 5);
}

#[test]
fn slices_show_the_buffer_in_place() {
    let mut values = buffer::<u32>(3);
    values.copy_from_slice(&[1, 2, 3]);
    // SAFETY: no worker exists.
    unsafe {
        values.as_mut_slice()[1] = 20;
        assert_eq!(values.as_slice(), [1, 20, 3]);
    }
    assert_eq!(values.get(1), 20);
}

#[test]
fn calls_take_buffers_parts_and_private_memory() {
    let mut values = buffer::<u16>(3);
    values.copy_from_slice(&[1, 2, 3]);
    let start = values.start().cast::<u8>();
    assert_eq!((values.shared_bytes().start(), values.shared_bytes().len()), (start, 6));
    assert_eq!(values.part(1..).shared_bytes().len(), 4);
    assert_eq!(values.shared_bytes_mut().start(), start);
    let mut part = values.part_mut(2..);
    part.shared_bytes_mut().copy_from(&9_u16.to_ne_bytes());
    assert_eq!((part.as_part().get(0), part.shared_bytes().len()), (9, 2));
    let (mut array, mut vector) = ([1_u32; 2], vec![2_u64; 3]);
    assert_eq!((array.shared_bytes().len(), array.shared_bytes_mut().len()), (8, 8));
    assert_eq!((vector[1..].shared_bytes().len(), vector.shared_bytes_mut().len()), (16, 24));
    let bytes: SharedBytes<'_> = (&values).into();
    assert_eq!(bytes.to_vec(), bytemuck::cast_slice::<u16, u8>(&[1, 2, 9]));
}
