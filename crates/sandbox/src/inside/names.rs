//! The name of a sandbox's user in the list of users, `/etc/passwd`.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};

use crate::USER;

/// Name of every sandbox's user.
pub(crate) const USER_NAME: &str = "sandbox";
/// Path of the list of users in an image.
const LIST: &str = "etc/passwd";
const MODE: Mode = Mode::RUSR.union(Mode::WUSR).union(Mode::RGRP).union(Mode::ROTH);
/// Largest list that is read, in bytes. Lists of images have a few thousand.
const MAX_LIST_BYTES: u64 = 1 << 20;

/// Line of the sandbox's user in `/etc/passwd`.
pub(crate) fn user_entry() -> String {
    format!("{USER_NAME}:x:{USER}:{USER}:{USER_NAME}:/tmp:/bin/sh\n")
}

/// Adds the sandbox's user to the list of an image, unless a user there has the same number. An image whose list cannot be read
/// or written stays as it is: programs then find no name for their user.
pub(super) fn add_user(root: &Path) -> io::Result<()> {
    let root = File::open(root)?;
    let open = |flags: OFlags| -> io::Result<File> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        // Links in the image are resolved within the image.
        let opened: OwnedFd = openat2(
            &root,
            LIST,
            flags,
            if flags.contains(OFlags::CREATE) { MODE } else { Mode::empty() },
            ResolveFlags::IN_ROOT,
        )?;
        Ok(opened.into())
    };
    let list = match open(OFlags::RDONLY) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            open(OFlags::RDWR | OFlags::CREATE | OFlags::EXCL)
        }
        opened => opened,
    };
    let Ok(list) = list else { return Ok(()) };
    let mut text = Vec::new();
    let is_readable = list.metadata()?.is_file() && list.take(MAX_LIST_BYTES).read_to_end(&mut text).is_ok();
    if !is_readable || text.len() as u64 == MAX_LIST_BYTES || has_user(&text) {
        return Ok(());
    }
    let separator = if text.last().is_none_or(|&last| last == b'\n') { "" } else { "\n" };
    if let Ok(mut list) = open(OFlags::WRONLY | OFlags::APPEND) {
        let _ = list.write_all(format!("{separator}{}", user_entry()).as_bytes());
    }
    Ok(())
}

fn has_user(list: &[u8]) -> bool {
    let number = USER.to_string();
    list.split(|&byte| byte == b'\n')
        .any(|line| line.split(|&byte| byte == b':').nth(2).is_some_and(|field| field == number.as_bytes()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn adds_user_once_and_only_within_image() {
        let folder = tempfile::tempdir().unwrap();
        let (image, outside) = (folder.path().join("image"), folder.path().join("outside"));
        fs::create_dir_all(image.join("etc")).unwrap();
        let list = image.join(LIST);
        for (before, after) in [
            ("root:x:0:0::/:/bin/sh", format!("root:x:0:0::/:/bin/sh\n{}", user_entry())),
            ("", user_entry()),
            ("me:x:1000:5::/:/bin/sh\n", "me:x:1000:5::/:/bin/sh\n".to_owned()),
        ] {
            fs::write(&list, before).unwrap();
            for _ in 0..2 {
                add_user(&image).unwrap();
                assert_eq!(fs::read_to_string(&list).unwrap(), after);
            }
        }
        fs::remove_file(&list).unwrap();
        fs::write(&outside, "").unwrap();
        for target in [outside.to_str().unwrap(), "../../outside"] {
            symlink(target, &list).unwrap();
            add_user(&image).unwrap();
            assert_eq!(fs::read_to_string(&outside).unwrap(), "", "{target}");
            fs::remove_file(&list).unwrap();
        }
        // An image without a list, and one in which the list is a folder.
        add_user(&image).unwrap();
        assert_eq!(fs::read_to_string(&list).unwrap(), user_entry());
        fs::remove_file(&list).unwrap();
        fs::create_dir(&list).unwrap();
        add_user(&image).unwrap();
    }
}
