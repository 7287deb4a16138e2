//! A package's files: their paths, which may neither leave the package's folder nor conflict with each other.

use std::collections::BTreeSet;

use super::rules::{BUILT_FOLDER, INFO_FILE, MANIFEST_FILE, MAX_FILES, invalid};
use crate::Error;
use crate::text::is_terminal_control;
use crate::v1::PackageFile;

/// Longest path of a file, in bytes.
pub const MAX_PATH_BYTES: usize = 1024;
/// Longest component of a path, in bytes: the limit of Linux file systems.
pub const MAX_COMPONENT_BYTES: usize = 255;

/// Whether a path is one of a file in a package, and leads nowhere else.
///
/// # Errors
/// `invalid_package`, which says why not.
pub fn check_path(path: &str) -> Result<(), Error> {
    let bad = |why: &str| Err(invalid(format!("the path {path:?} in the package {why}")));
    if path.len() > MAX_PATH_BYTES {
        return bad(&format!("has {} bytes, at most {MAX_PATH_BYTES} are taken", path.len()));
    }
    if path.starts_with('/') {
        return bad("is absolute");
    }
    if path.contains(|c: char| c == '\\' || is_terminal_control(c)) {
        return bad("has a backslash, a control character or one that changes the direction of text");
    }
    for component in path.split('/') {
        match component {
            "" => return bad("has an empty component"),
            "." | ".." => return bad("leaves the package or is not in its shortest form"),
            long if long.len() > MAX_COMPONENT_BYTES => return bad("has a component that is too long"),
            _ => {}
        }
    }
    Ok(())
}

/// Checks paths one by one and against each other; the files must be sorted.
pub(super) fn check_files(files: &[PackageFile]) -> Result<(), Error> {
    if files.len() > MAX_FILES {
        return Err(invalid(format!("the package has {} files, at most {MAX_FILES} are taken", files.len())));
    }
    let mut seen = BTreeSet::new();
    for file in files {
        check_path(&file.path)?;
        let first = file.path.split('/').next();
        if let Some(taken) =
            [MANIFEST_FILE, INFO_FILE, BUILT_FOLDER].into_iter().find(|&taken| first == Some(taken))
        {
            return Err(invalid(format!("{taken} stands among the package's files, a name that is taken")));
        }
        if seen.last().is_some_and(|last: &&str| *last > file.path.as_str()) {
            return Err(invalid(format!("the package's files are not sorted: {:?}", file.path)));
        }
        if !seen.insert(file.path.as_str()) {
            return Err(invalid(format!("the package has the file {:?} twice", file.path)));
        }
    }
    seen.iter().try_for_each(|path| check_ancestors(path, &seen))
}

/// Refuses a path inside of another file.
fn check_ancestors(path: &str, files: &BTreeSet<&str>) -> Result<(), Error> {
    let inside = path.match_indices('/').map(|(end, _)| &path[..end]);
    match inside.into_iter().find(|folder| *folder == MANIFEST_FILE || files.contains(folder)) {
        Some(file) => Err(invalid(format!("the package has {file:?} both as a file and as a folder"))),
        None => Ok(()),
    }
}

pub(super) fn find_file<'a>(files: &'a [PackageFile], path: &str) -> Result<&'a PackageFile, Error> {
    files.iter().find(|file| file.path == path).ok_or_else(|| {
        invalid(format!("{MANIFEST_FILE} names the library {path:?}, which is not among the package's files"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Code;

    fn file(path: &str) -> PackageFile {
        PackageFile { path: path.into(), data: vec![1], executable: false }
    }

    fn refused(path: &str) -> bool {
        check_path(path).is_err_and(|error| error.code == Code::InvalidPackage)
    }

    #[test]
    fn paths_that_could_leave_the_package_are_refused() {
        let long = "a/".repeat(600) + "a";
        let component = "a".repeat(256);
        for path in [
            "",
            "/etc/passwd",
            "..",
            "a/../b",
            "./a",
            "a//b",
            "a/",
            "a\\b",
            "a\0b",
            "a\nb",
            "a\u{202e}os.b",
            &long,
            &component,
        ] {
            assert!(refused(path), "{path:?} was accepted");
        }
        for path in ["a", "a/b.so", "..a", "a..", "ä/ß"] {
            assert!(!refused(path), "{path:?} was refused");
        }
        assert!(check_path("/etc/passwd").unwrap_err().message.contains("is absolute"));
    }

    #[test]
    fn files_may_not_collide() {
        assert!(check_files(&[file("a"), file("a")]).unwrap_err().message.contains("twice"));
        assert!(check_files(&[file("a"), file("a.b"), file("a/b")]).unwrap_err().message.contains("both"));
        assert!(check_files(&[file("b"), file("a")]).unwrap_err().message.contains("sorted"));
        assert!(check_files(&[file(MANIFEST_FILE)]).is_err());
        assert!(check_files(&[file("sublet.toml/a")]).is_err());
        assert!(check_files(&[file("a.b"), file("a/b"), file("b")]).is_ok());
        let many: Vec<_> = (0..=MAX_FILES).map(|i| file(&format!("{i:05}"))).collect();
        assert!(check_files(&many).unwrap_err().message.contains("4097 files"));
    }
}
