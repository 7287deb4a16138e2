//! Tests of page faults that the process handles itself, against the kernel of this machine.

#![allow(clippy::unwrap_used)]

use super::*;
use crate::stretch::{HUGE_BYTES, PageSize};
use sublet_means::{Means, skip};

/// Opens fault handling, or skips the test where this process may not.
fn open() -> Option<PageFaults> {
    let faults = PageFaults::open();
    if let Err(error) = &faults {
        skip(Means::Userfaultfd, error);
    }
    faults.ok()
}

#[test]
fn touch_gets_filled_page_and_write_to_protected_page_waits() {
    let Some(faults) = open() else { return };
    let stretch = Stretch::reserve(1 << 20, PageSize::Small).unwrap();
    faults.watch(&stretch).unwrap();
    let byte = stretch.pointer(5 * 4096 + 7, 1).unwrap().as_ptr() as usize;
    std::thread::scope(|scope| {
        let touches = scope.spawn(move || {
            let byte = byte as *mut u8;
            // SAFETY: the byte is inside of the stretch, which outlives this thread; no other thread touches it.
            unsafe {
                let was = byte.read_volatile();
                byte.write_volatile(9);
                (was, byte.read_volatile())
            }
        });
        let fault = faults.next().unwrap();
        assert_eq!((fault.touch, stretch.offset_of(fault.address & !4095)), (Touch::Read, Some(5 * 4096)));
        faults.fill(&stretch, 5 * 4096, &[3; 4096], Writing::Faults).unwrap();
        let again = faults.next().unwrap();
        assert_eq!((again.touch, again.thread), (Touch::Protected, fault.thread));
        let page = Extent { offset: 5 * 4096, len_bytes: 4096 };
        faults.protect(&stretch, page, Writing::Allowed).unwrap();
        assert_eq!(touches.join().unwrap(), (3, 9));
    });
}

#[test]
fn pages_move_between_stretches_and_back() {
    let Some(faults) = open().filter(PageFaults::can_shift) else { return };
    let array = Stretch::reserve(2 * HUGE_BYTES, PageSize::Small).unwrap();
    let slots = Stretch::reserve(HUGE_BYTES, PageSize::Huge).unwrap();
    faults.watch(&array).unwrap();
    faults.accept(&slots).unwrap();
    let at = |stretch: &Stretch, offset| stretch.pointer(offset, 1).unwrap();
    // SAFETY: both stretches belong to this test only, and the pages of the array that it reads exist.
    unsafe {
        at(&slots, 0).write_bytes(7, HUGE_BYTES as usize);
        faults.shift((&array, HUGE_BYTES), (&slots, 0), HUGE_BYTES).unwrap();
        assert_eq!(at(&array, 2 * HUGE_BYTES - 1).read(), 7);
        at(&array, HUGE_BYTES).write(8);
        faults.shift((&slots, 0), (&array, HUGE_BYTES), HUGE_BYTES).unwrap();
        assert_eq!((at(&slots, 0).read(), at(&slots, 1).read()), (8, 7));
        at(&slots, 0).write(1);
        let extents = [0, HUGE_BYTES / 2].map(|offset| Extent { offset, len_bytes: 4096 });
        faults.discard(&slots, &extents).unwrap();
        assert_eq!((at(&slots, 0).read(), at(&slots, 4096).read()), (0, 7));
    }
    let beyond = faults.shift((&array, HUGE_BYTES), (&slots, HUGE_BYTES), HUGE_BYTES);
    assert!(matches!(beyond, Err(FabricError::OutOfBounds { .. })), "{beyond:?}");
}
