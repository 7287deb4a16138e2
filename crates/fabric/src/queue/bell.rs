//! The bell of a connection: an eventfd that a thread of this side polls beside other descriptors, rung when a line that
//! asks for it is published here.

use std::os::fd::OwnedFd;

/// The eventfd of a connection's bell. If there is no descriptor, ringing does nothing.
pub struct Bell(pub Option<OwnedFd>);

impl Bell {
    /// Rings the bell, with a system call.
    #[cold]
    pub fn ring(&self) {
        if let Some(bell) = &self.0 {
            // A full counter means that the bell is ringing already.
            let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
        }
    }

    /// Clears the bell.
    #[cold]
    pub fn hush(&self) {
        if let Some(bell) = &self.0 {
            // Fails only if the bell was not rung.
            let _ = rustix::io::read(bell, &mut [0u8; 8]);
        }
    }
}
