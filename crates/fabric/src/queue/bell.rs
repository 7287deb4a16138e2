//! The bell of a connection: an eventfd that a thread of this side polls beside other descriptors, rung when a line that
//! asks for it is published here.

use std::os::fd::OwnedFd;

/// Without a descriptor nobody hears it.
pub struct Bell(pub Option<OwnedFd>);

impl Bell {
    /// Enters the kernel.
    #[cold]
    pub fn ring(&self) {
        if let Some(bell) = &self.0 {
            // A full counter means that the bell is ringing already.
            let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
        }
    }

    /// It is not ringing any more.
    #[cold]
    pub fn hush(&self) {
        if let Some(bell) = &self.0 {
            // Fails only if it was not rung.
            let _ = rustix::io::read(bell, &mut [0u8; 8]);
        }
    }
}
