//! The memory of Node.js: V8 excludes some of it from being copied when a process is forked.

use std::fs;
use std::io;

/// Advises the kernel to copy all anonymous memory in a fork.
pub(crate) fn copy_all() -> io::Result<()> {
    for line in fs::read_to_string("/proc/self/maps")?.lines() {
        let Some((begin, end)) = anonymous(line) else { continue };
        debug_assert!(begin < end, "the kernel maps {begin:#x} to {end:#x}");
        // SAFETY: the range is mapped; the advice changes what a fork does, and nothing here.
        unsafe { libc::madvise(begin as *mut libc::c_void, end - begin, libc::MADV_DOFORK) };
    }
    Ok(())
}

/// The range of a line of `/proc/self/maps`, if it is no file's: addresses, rights, offset, device, inode.
fn anonymous(line: &str) -> Option<(usize, usize)> {
    let mut words = line.split_whitespace();
    let (begin, end) = words.next()?.split_once('-')?;
    let is_anonymous = words.nth(3)? == "0" && words.next().is_none();
    let address = |text| usize::from_str_radix(text, 16).ok();
    address(begin).zip(address(end)).filter(|_| is_anonymous)
}
