//! Keeps resources that a forked child must not give up, since its parent still has them.
//!
//! A child has copies of leases, calls and registered memory. Giving them up there would end the parent's leases, and take pages
//! from under its arrays.

use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::prelude::*;

/// Whether this process is a child of the one that loaded the library. Written once, by its only thread; read by those that it starts
/// later.
static FORKED: AtomicBool = AtomicBool::new(false);

/// This process was forked, and has nothing of its parent's any more.
#[pyfunction]
pub fn forked() {
    FORKED.store(true, Ordering::Relaxed);
}

/// Whether this process is such a child.
pub fn is_forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// Dropped with its holder, but for a child's copy of it.
pub struct ForkCell<T>(ManuallyDrop<T>);

impl<T> ForkCell<T> {
    /// Keeps it.
    pub fn new(value: T) -> ForkCell<T> {
        ForkCell(ManuallyDrop::new(value))
    }

    /// Returns the object, which the caller must drop or use up.
    pub fn into_inner(self) -> T {
        let mut kept = ManuallyDrop::new(self);
        // SAFETY: its holder is forgotten, so this is the only one.
        unsafe { ManuallyDrop::take(&mut kept.0) }
    }
}

impl<T> Deref for ForkCell<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for ForkCell<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T> Drop for ForkCell<T> {
    fn drop(&mut self) {
        if !is_forked() {
            // SAFETY: this is the one place where it is dropped.
            unsafe {
                ManuallyDrop::drop(&mut self.0);
            }
        }
    }
}
