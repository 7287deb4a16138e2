//! The ends of leases: putting them off, and learning of them.

use std::ffi::c_char;
use std::time::{Duration, Instant};

use sublet::Notice;

use crate::boundary::{argument, guarded, invalid, output, sublet_status};
use crate::invoker::sublet_invoker;

const LEASE_BYTES: usize = 36;
const MESSAGE_BYTES: usize = 208;

/// `struct sublet_notice`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sublet_notice {
    left_ns: u64,
    status: sublet_status,
    lease: [c_char; LEASE_BYTES],
    message: [c_char; MESSAGE_BYTES],
}

const _: () = assert!(size_of::<sublet_notice>() == 256);

impl From<&Notice> for sublet_notice {
    fn from(notice: &Notice) -> sublet_notice {
        let left = notice.until.saturating_duration_since(Instant::now());
        sublet_notice {
            left_ns: u64::try_from(left.as_nanos()).unwrap_or(u64::MAX),
            status: notice.error.code.number(),
            lease: characters(&notice.lease),
            message: characters(&notice.error.message),
        }
    }
}

/// A text as C has it in a structure, cut between characters if it is too long.
fn characters<const BYTES: usize>(text: &str) -> [c_char; BYTES] {
    let mut characters = [0; BYTES];
    let most = text.len().min(BYTES - 1);
    let end = (0..=most).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    for (place, byte) in characters.iter_mut().zip(text[..end].bytes()) {
        *place = c_char::from_ne_bytes([if byte == 0 { b'?' } else { byte }]);
    }
    characters
}

/// Puts the end of all leases off.
///
/// # Safety
/// The duties of `sublet.h` hold for invokers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_invoker_renew(
    invoker: *const sublet_invoker,
    timeout_ns: u64,
) -> sublet_status {
    guarded(|| {
        // SAFETY: the caller's invoker, which it does not free or lease with meanwhile.
        let invoker = unsafe { argument(invoker, "invoker") }?;
        invoker.facade().renew(Duration::from_nanos(timeout_ns))
    })
}

/// The ends that have been announced.
///
/// # Safety
/// The duties of `sublet.h` hold for invokers and outputs; `notices` has space for `capacity` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_invoker_notices(
    invoker: *const sublet_invoker,
    notices: *mut sublet_notice,
    capacity: usize,
    count: *mut usize,
) -> sublet_status {
    guarded(|| {
        let place = output(count, "count")?;
        if notices.is_null() && capacity > 0 {
            return Err(invalid(format!("a null pointer for {capacity} notices")));
        }
        // SAFETY: the caller's invoker, which it does not free or lease with meanwhile.
        let announced = unsafe { argument(invoker, "invoker") }?.facade().notices();
        for (index, notice) in announced.iter().take(capacity).enumerate() {
            // SAFETY: not null, with space for `capacity` elements, of which this is one.
            unsafe { notices.add(index).write(notice.into()) };
        }
        // SAFETY: not null, so it is the caller's memory.
        unsafe { place.write(announced.len()) };
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    #[test]
    fn texts_end_with_a_zero_and_are_cut_between_characters() {
        let shown = |text| {
            let characters = characters::<4>(text);
            // SAFETY: the last of the characters is zero.
            unsafe { CStr::from_ptr(characters.as_ptr()) }.to_str().unwrap().to_owned()
        };
        assert_eq!(["", "ab", "abcd", "ab\u{e9}", "a\0b"].map(shown), ["", "ab", "abc", "ab", "a?b"]);
    }
}
