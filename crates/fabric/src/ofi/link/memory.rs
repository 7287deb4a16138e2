//! Memory that is registered with the provider, and the keys by which a peer accesses it.

use std::ffi::c_int;
use std::ptr::NonNull;

use rustix::process::{Resource, getrlimit};
use sublet_proto::to_usize;

use super::OfiLink;
use super::random::random;
use crate::FabricError;
use crate::ofi::ffi::{self, RawRegistration};

impl OfiLink {
    /// Registers memory with the provider, and makes it accessible to the peer if `remote`. The registration ends with
    /// the link at the latest.
    ///
    /// # Safety
    /// The memory must stay mapped until then.
    pub unsafe fn enroll(
        &mut self,
        memory: NonNull<u8>,
        len_bytes: u64,
        remote: bool,
    ) -> Result<RawRegistration, FabricError> {
        const ATTEMPTS: u32 = 8;
        let mut rc = -ffi::ENOKEY;
        for _ in 0..ATTEMPTS {
            let key = self.new_key()?;
            let mut registration =
                RawRegistration { handle: std::ptr::null_mut(), descriptor: std::ptr::null_mut(), key };
            let (raw, into) = (self.raw.as_ptr(), &raw mut registration);
            // SAFETY: the memory is the caller's duty; the rest is valid for the call.
            rc = unsafe {
                (self.table.enroll)(
                    raw,
                    memory.as_ptr().cast(),
                    to_usize(len_bytes),
                    c_int::from(remote),
                    key,
                    into,
                )
            };
            if rc == 0 {
                self.registrations.push(registration);
                return Ok(registration);
            }
            if rc != -ffi::ENOKEY {
                break;
            }
        }
        Err(self.enroll_error(len_bytes, rc))
    }

    /// Ends a registration.
    pub fn dismiss(&mut self, registration: &RawRegistration) {
        if let Some(at) = self.registrations.iter().position(|known| known.handle == registration.handle) {
            let known = self.registrations.swap_remove(at);
            // SAFETY: it was made by this link and not dismissed before.
            unsafe { (self.table.dismiss)(known.handle) };
        }
    }

    fn new_key(&self) -> Result<u64, FabricError> {
        let mut bytes = [0; 8];
        random(&mut bytes)?;
        let key = u64::from_ne_bytes(bytes);
        Ok(if self.facts.key_bytes >= 8 { key } else { key & ((1 << (8 * self.facts.key_bytes)) - 1) })
    }

    fn enroll_error(&self, len_bytes: u64, rc: c_int) -> FabricError {
        let limit = getrlimit(Resource::Memlock).current;
        match limit.filter(|_| rc == -ffi::ENOMEM) {
            Some(limit) => FabricError::Limit(lock_limit(&self.facts.provider(), len_bytes, limit)),
            None => {
                let operation = format!("registering {len_bytes} bytes with {}", self.facts.provider());
                FabricError::system(operation, std::io::Error::other(self.table.text(rc)))
            }
        }
    }
}

fn lock_limit(provider: &str, len_bytes: u64, limit: u64) -> String {
    format!(
        "{provider} cannot register {len_bytes} bytes of memory: this process may lock {limit} bytes (RLIMIT_MEMLOCK). \
         Raise the limit: `ulimit -l unlimited` in the shell that starts it, LimitMEMLOCK=infinity in a systemd unit, \
         or a memlock line in /etc/security/limits.conf"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_low_a_lock_limit_is_named_with_a_remedy() {
        let said = lock_limit("verbs", 1 << 20, 65536);
        for part in ["verbs", "1048576", "65536", "RLIMIT_MEMLOCK", "ulimit -l", "LimitMEMLOCK=infinity"] {
            assert!(said.contains(part), "{part} in {said}");
        }
    }
}
