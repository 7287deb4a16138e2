//! Translates the C description of the managers' addresses and credentials.

use std::ffi::c_char;
use std::path::Path;

use sublet::{Access, Error, Invoker};

use crate::boundary::{argument, check_size, guarded, invalid, output, sublet_status, text_if_any};
use crate::invoker::sublet_invoker;

/// Layout of `struct sublet_access`.
#[repr(C)]
pub struct sublet_access {
    size_bytes: u32,
    managers: *const c_char,
    ca_file: *const c_char,
    token: *const c_char,
    token_file: *const c_char,
}

const _: () = assert!(size_of::<sublet_access>() == 40);

impl sublet_access {
    /// # Safety
    /// The string pointers are null or point to strings.
    unsafe fn to_facade(&self) -> Result<Access, Error> {
        check_size::<sublet_access>(self.size_bytes, "access")?;
        // SAFETY: as the caller vouches.
        let said = |pointer, name| unsafe { text_if_any(pointer, name) };
        let mut access = match said(self.managers, "access.managers")? {
            Some(managers) => Access::parse(managers)?.with_env()?,
            None => Access::from_env()?,
        };
        if let Some(path) = said(self.ca_file, "access.ca_file")? {
            access = access.with_ca_file(Path::new(path))?;
        }
        match (said(self.token, "access.token")?, said(self.token_file, "access.token_file")?) {
            (Some(_), Some(_)) => Err(invalid("`access` has a token and a token file")),
            (Some(token), None) => access.with_token(token),
            (None, Some(path)) => access.with_token_file(Path::new(path)),
            (None, None) => Ok(access),
        }
    }
}

/// Connects to managers with the given access.
///
/// # Safety
/// The duties of `sublet.h` hold for strings and outputs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_invoker_connect_with(
    access: *const sublet_access,
    invoker: *mut *mut sublet_invoker,
) -> sublet_status {
    guarded(|| {
        let place = output(invoker, "invoker")?;
        // SAFETY: the caller's structure, with the caller's strings in it.
        let access = unsafe { argument(access, "access")?.to_facade() }?;
        let invoker = Invoker::connect_with(access)?;
        // SAFETY: not null, so it is the caller's pointer to write.
        unsafe { place.write(sublet_invoker::handle(invoker)) };
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::null;
    use sublet::Code;

    fn refusal(access: &sublet_access) -> Error {
        // SAFETY: literals and null pointers.
        unsafe { access.to_facade() }.unwrap_err()
    }

    fn access() -> sublet_access {
        let managers = c"https://host:1".as_ptr();
        sublet_access { size_bytes: 40, managers, ca_file: null(), token: null(), token_file: null() }
    }

    #[test]
    fn accepts_given_access_and_rejects_invalid_one() {
        let said = sublet_access { token: c"sublet_1_x".as_ptr(), ..access() };
        // SAFETY: literals and null pointers.
        let taken = unsafe { said.to_facade() }.unwrap();
        assert_eq!((taken.managers.len(), taken.token.as_deref()), (1, Some("sublet_1_x")));
        for broken in [
            sublet_access { size_bytes: 8, ..access() },
            sublet_access { managers: c"host".as_ptr(), ..access() },
            sublet_access { ca_file: c"/nonexistent".as_ptr(), ..access() },
            sublet_access { token_file: c"/nonexistent".as_ptr(), ..access() },
            sublet_access { token_file: c"/nonexistent".as_ptr(), ..said },
        ] {
            assert_eq!(refusal(&broken).code, Code::InvalidArgument);
        }
    }
}
