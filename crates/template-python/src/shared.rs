//! Memory of Python objects as views that only copy: other threads of the interpreter may write it at any time.

use sublet_proto::to_usize;
use sublet_python_buffers::BufferView;
use sublet_xpu::{SharedBytes, SharedBytesMut};

/// The bytes of an object, to be read.
pub(crate) fn bytes_of(view: &BufferView) -> SharedBytes<'_> {
    // SAFETY: the view keeps that many readable bytes where they are for as long as it lives.
    unsafe { SharedBytes::new(view.pointer(), to_usize(view.len_bytes())) }
}

/// The bytes of an object, to be written: none if the object does not allow that.
pub(crate) fn bytes_of_mut(view: &BufferView) -> SharedBytesMut<'_> {
    let len_bytes = if view.is_read_only() { 0 } else { view.len_bytes() };
    // SAFETY: the view keeps that many writable bytes where they are for as long as it lives. Python's own accesses are by
    // pointers, and no slice of them is made here.
    unsafe { SharedBytesMut::new(view.pointer(), to_usize(len_bytes)) }
}
