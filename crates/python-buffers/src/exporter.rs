//! An exporter of memory that Python does not own. The exporter knows whether any Python object still refers to the
//! memory.
//!
//! A memoryview of an [`Exporter`], and every array or view made of that memoryview, holds a reference to the exporter's object. So
//! the object's reference count answers the question exactly, and its deallocation is the moment from which the memory is free.
//! The garbage collector does not track the object: it refers to no other object.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::{self, NonNull};

use pyo3::ffi::{self, PyObject, PyTypeObject};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

use crate::BufferUse;

/// The type's name, as a function sees it in `memoryview.obj`.
const NAME: &CStr = c"sublet.Exporter";

/// Called with a number when an exporter's object is deallocated, by a thread that is attached to the interpreter.
pub type Notify = fn(u64);

#[repr(C)]
#[derive(Clone, Copy)]
struct BufferStretch {
    at: *mut c_void,
    len: isize,
    readonly: c_int,
}

/// The object, as the interpreter allocates it: zeroed.
#[repr(C)]
struct ExporterObject {
    head: PyObject,
    /// The memory of the next memoryview; null outside of [`Exporter::memoryview`], so that no other code makes views.
    next: BufferStretch,
    /// Called at the deallocation, with the number.
    notify: Option<Notify>,
    number: u64,
}

const _: () = assert!(std::mem::offset_of!(ExporterObject, head) == 0, "an object begins with its head");

/// A reference to an exporter's object; see the [module](self).
pub struct Exporter(Py<PyAny>);

impl Exporter {
    /// Makes an exporter without memory.
    ///
    /// # Errors
    /// `MemoryError`.
    pub fn new(py: Python<'_>) -> PyResult<Exporter> {
        static TYPE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
        let kind = TYPE.get_or_try_init(py, || make_type(py))?.as_ptr().cast::<PyTypeObject>();
        // SAFETY: this thread is attached, and the type is one that `make_type` has made, which stays alive.
        let object = unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyType_GenericAlloc(kind, 0))? };
        Ok(Exporter(object.unbind()))
    }

    /// A memoryview of `len_bytes` bytes at that address.
    ///
    /// # Errors
    /// `MemoryError`, and `OverflowError` beyond what a Python object can have.
    ///
    /// # Safety
    /// The bytes stay mapped until the exporter's object is deallocated.
    pub unsafe fn memoryview<'py>(
        &self,
        py: Python<'py>,
        at: NonNull<u8>,
        len_bytes: u64,
        how: BufferUse,
    ) -> PyResult<Bound<'py, PyAny>> {
        let next = BufferStretch {
            at: at.as_ptr().cast(),
            len: isize::try_from(len_bytes)?,
            readonly: c_int::from(how == BufferUse::Reading),
        };
        let object = self.0.as_ptr();
        let own = object.cast::<ExporterObject>();
        // SAFETY: the object is alive, of this layout, and used only by threads that are attached: by this one now.
        let outer = unsafe { ptr::replace(&raw mut (*own).next, next) };
        // SAFETY: this thread is attached, and the object is alive.
        let made = unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyMemoryView_FromObject(object)) };
        // An allocation may collect garbage, and that may call any function: this one, too.
        // SAFETY: as above.
        unsafe { (*own).next = outer };
        made
    }

    /// Another reference to the same exporter.
    pub fn clone_ref(&self, py: Python<'_>) -> Exporter {
        Exporter(self.0.clone_ref(py))
    }

    /// Whether any object refers to the exporter's memory, of which this is the only [`Exporter`].
    pub fn is_in_use(&self, _py: Python<'_>) -> bool {
        // SAFETY: this thread is attached, and the object is alive.
        unsafe { ffi::Py_REFCNT(self.0.as_ptr()) > 1 }
    }

    /// Gives the reference up, and has `notify` called with this number as soon as nothing refers to the memory: within this call
    /// if that is so already.
    pub fn notify_when_free(self, _py: Python<'_>, notify: Notify, number: u64) {
        let own = self.0.as_ptr().cast::<ExporterObject>();
        // SAFETY: the object is alive, of this layout, and used only by threads that are attached: by this one now.
        let before = unsafe { ((*own).notify, (*own).number) };
        debug_assert!(before.0.is_none(), "an exporter reports {number}, and {} as well", before.1);
        // SAFETY: as above.
        unsafe { ((*own).notify, (*own).number) = (Some(notify), number) };
    }
}

/// The type of exporters' objects.
fn make_type(py: Python<'_>) -> PyResult<Py<PyType>> {
    let slots = [
        ffi::PyType_Slot { slot: ffi::Py_bf_getbuffer, pfunc: get_buffer as *mut c_void },
        ffi::PyType_Slot { slot: ffi::Py_tp_dealloc, pfunc: deallocate as *mut c_void },
        ffi::PyType_Slot { slot: 0, pfunc: ptr::null_mut() },
    ];
    // The interpreter keeps the slots of the buffer protocol by value, but some versions keep the specification's name.
    let mut spec = ffi::PyType_Spec {
        name: NAME.as_ptr().cast::<c_char>(),
        #[expect(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "a few words")]
        basicsize: size_of::<ExporterObject>() as c_int,
        itemsize: 0,
        #[expect(clippy::cast_possible_truncation, reason = "a specification has 32 bits for flags")]
        flags: ffi::Py_TPFLAGS_DEFAULT as c_uint,
        slots: slots.as_ptr().cast_mut(),
    };
    // SAFETY: this thread is attached; the specification is whole, its functions are of the types that its slots have, and its
    // name is static.
    let made = unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyType_FromSpec(&mut spec))? };
    Ok(made.cast_into::<PyType>()?.unbind())
}

/// `bf_getbuffer`: shows the memory of the memoryview that is being made.
///
/// # Safety
/// The interpreter calls it, with an object of the type and a structure to fill.
unsafe extern "C" fn get_buffer(object: *mut PyObject, view: *mut ffi::Py_buffer, flags: c_int) -> c_int {
    let own = object.cast::<ExporterObject>();
    // SAFETY: as this function's; the object is used only by threads that are attached, and this one is.
    let BufferStretch { at, len, readonly } = unsafe { (*own).next };
    if at.is_null() {
        // SAFETY: this thread is attached; the exception and its text are static.
        unsafe {
            (*view).obj = ptr::null_mut();
            ffi::PyErr_SetString(ffi::PyExc_BufferError, c"this memory has no further views".as_ptr());
        }
        return -1;
    }
    // SAFETY: as this function's; `memoryview` promises that the memory stays mapped for as long as the object lives, which the
    // structure refers to from now on.
    unsafe { ffi::PyBuffer_FillInfo(view, object, at, len, readonly, flags) }
}

/// `tp_dealloc`.
///
/// # Safety
/// The interpreter calls it, with an object of the type that nothing refers to.
unsafe extern "C" fn deallocate(object: *mut PyObject) {
    let own = object.cast::<ExporterObject>();
    // SAFETY: as this function's; an object that was not made by `Exporter::new` has zeros here, and so no function to call.
    // The memory is the interpreter's, by `PyType_GenericAlloc` of a type that is not collected, and an object has a reference
    // to its type, as those of all types that are made at run time.
    unsafe {
        let (notify, number) = ((*own).notify, (*own).number);
        let kind = ffi::Py_TYPE(object);
        ffi::PyObject_Free(object.cast());
        ffi::Py_DECREF(kind.cast());
        if let Some(notify) = notify {
            notify(number);
        }
    }
}
