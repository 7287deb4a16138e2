//! A page fault as the kernel reports it.

/// A page fault of a thread, which waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageFault {
    /// The address that the thread touched.
    pub address: u64,
    /// The kind of access.
    pub touch: Touch,
    /// The thread's number in the kernel.
    pub thread: u32,
}

/// Access by which a thread caused a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touch {
    /// The thread read a missing page.
    Read,
    /// The thread wrote a missing page.
    Write,
    /// The thread wrote a protected page.
    Protected,
}
