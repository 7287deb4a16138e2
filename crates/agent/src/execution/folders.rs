//! Folders that the operator of the node lends to functions: read-only data, and scratch folders of which each tenant has
//! a part of its own.
//!
//! A tenant's part is a folder of the scratch folder, with the tenant's name. On the disk it belongs to the user that
//! sandboxes see themselves as, with mode 700, and the scratch folder above keeps all other users out.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use sublet_proto::needs::{MAX_FOLDERS, check_folder_name};
use sublet_proto::{Code, Error, v1};
use sublet_sandbox::{FolderAccess, LentFolder, USER};

/// Permissions of users other than the owner.
const OTHERS: u32 = 0o077;

/// A folder that the operator lends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FolderOptions {
    /// Name by which leases ask for it.
    pub name: String,
    /// The folder: an absolute path.
    pub path: PathBuf,
    /// Use of the folder by functions.
    pub r#use: FolderUse,
}

/// Use of a lent folder by functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FolderUse {
    /// Functions read the folder.
    ReadOnly,
    /// Functions write to the part of their tenant, which is kept.
    Scratch,
}

/// The folders that a node lends.
#[derive(Debug)]
pub(crate) struct LentFolders(BTreeMap<String, FolderOptions>);

impl LentFolders {
    /// Checks the folders, and makes scratch folders that do not exist.
    ///
    /// # Errors
    /// `invalid_argument` with the name of the folder and what is wrong with it.
    pub(crate) fn open(options: &[FolderOptions], state: &Path) -> Result<LentFolders, Error> {
        if options.len() > MAX_FOLDERS {
            return Err(invalid(format!(
                "{} folders are lent, at most {MAX_FOLDERS} are possible",
                options.len()
            )));
        }
        let mut folders = BTreeMap::new();
        for folder in options {
            check(folder, state)?;
            if folders.insert(folder.name.clone(), folder.clone()).is_some() {
                return Err(invalid(format!("two folders are lent as {:?}", folder.name)));
            }
        }
        Ok(LentFolders(folders))
    }

    /// The folders as managers know them.
    pub(crate) fn described(&self) -> Vec<v1::LentFolder> {
        let described = |folder: &FolderOptions| v1::LentFolder {
            name: folder.name.clone(),
            writable: folder.r#use == FolderUse::Scratch,
        };
        self.0.values().map(described).collect()
    }

    /// Folders of these names for a sandbox of a tenant.
    pub(crate) fn of(&self, names: &[String], tenant: &str) -> Result<Vec<LentFolder>, Error> {
        let one = |name: &String| {
            let unknown = || {
                Error::new(Code::InsufficientResources, format!("this node does not lend folder {name:?}"))
            };
            let folder = self.0.get(name).ok_or_else(unknown)?;
            let (path, access) = match folder.r#use {
                FolderUse::ReadOnly => (folder.path.clone(), FolderAccess::ReadOnly),
                FolderUse::Scratch => (part_of(folder, tenant)?, FolderAccess::Write),
            };
            Ok(LentFolder { name: name.clone(), path, access })
        };
        names.iter().map(one).collect()
    }
}

fn check(folder: &FolderOptions, state: &Path) -> Result<(), Error> {
    check_folder_name(&folder.name)?;
    let FolderOptions { name, path, .. } = folder;
    let wrong = |why: String| invalid(format!("the lent folder {name:?}, {}, {why}", path.display()));
    if !path.is_absolute() {
        return Err(wrong("is not an absolute path".to_owned()));
    }
    if folder.r#use == FolderUse::Scratch {
        make(path).map_err(|error| wrong(format!("cannot be made: {error}")))?;
    }
    let found = path.canonicalize().and_then(|real| Ok((fs::metadata(&real)?, real)));
    let (metadata, real) = found.map_err(|error| wrong(format!("cannot be read: {error}")))?;
    if !metadata.is_dir() {
        return Err(wrong("is not a folder".to_owned()));
    }
    let state = state.canonicalize().unwrap_or_else(|_| state.to_owned());
    if state.starts_with(&real) || real.starts_with(&state) {
        return Err(wrong("has the agent's state folder in it, or is in that".to_owned()));
    }
    match folder.r#use {
        FolderUse::Scratch if is_open(&metadata) => Err(wrong(
            "can be entered by other users, who would see what tenants write: chmod 700".to_owned(),
        )),
        _ => Ok(()),
    }
}

fn is_open(metadata: &Metadata) -> bool {
    metadata.permissions().mode() & OTHERS != 0
}

fn make(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// The part of a tenant, which is made if it is missing.
fn part_of(folder: &FolderOptions, tenant: &str) -> Result<PathBuf, Error> {
    let path = folder.path.join(part_name(tenant));
    let failed = |error: &io::Error| {
        let message = format!(
            "the part of tenant {tenant} in the lent folder {:?} cannot be made: {error}",
            folder.name
        );
        let is_full = matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        Error::new(if is_full { Code::InsufficientResources } else { Code::System }, message)
    };
    make(&path).map_err(|error| failed(&error))?;
    let metadata = fs::symlink_metadata(&path).map_err(|error| failed(&error))?;
    if !metadata.is_dir() {
        return Err(failed(&io::ErrorKind::NotADirectory.into()));
    }
    if rustix::process::geteuid().is_root() {
        // The sandbox's own user is mapped to this one. Without root the sandbox's user is this process's.
        chown(&path, Some(USER), Some(USER)).map_err(|error| failed(&error))?;
    }
    Ok(path)
}

/// The name of a tenant's part. Tenants have names of letters, digits and `.:_-@`, which do not begin with a dot; managers
/// know no tenant of another name.
fn part_name(tenant: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b':' | b'_' | b'-' | b'@' | b'.');
    let mut name = String::new();
    for (number, byte) in tenant.bytes().enumerate() {
        match byte {
            b'.' if number == 0 => name.push_str("%2e"),
            byte if plain(byte) => name.push(char::from(byte)),
            byte => name.push_str(&format!("%{byte:02x}")),
        }
    }
    name
}

fn invalid(message: String) -> Error {
    Error::new(Code::InvalidArgument, message)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;

    use super::*;

    fn folder(name: &str, path: &Path, r#use: FolderUse) -> FolderOptions {
        FolderOptions { name: name.into(), path: path.to_owned(), r#use }
    }

    #[test]
    fn each_tenant_has_a_closed_part_of_a_scratch_folder() {
        let own = tempfile::tempdir().unwrap();
        let path = own.path().join("work");
        let folders =
            LentFolders::open(&[folder("work", &path, FolderUse::Scratch)], Path::new("/no")).unwrap();
        assert!(folders.described()[0].writable);
        let of = |tenant: &str| folders.of(&["work".to_owned()], tenant).unwrap().remove(0);
        let (alice, bob) = (of("alice"), of("uid:0"));
        assert_ne!(alice.path, bob.path);
        assert_eq!(alice.access, FolderAccess::Write);
        for one in [&path, &alice.path] {
            assert_eq!(fs::metadata(one).unwrap().permissions().mode() & 0o777, 0o700);
        }
        fs::write(alice.path.join("x"), b"kept").unwrap();
        assert_eq!(fs::read(of("alice").path.join("x")).unwrap(), b"kept");
        assert!(folders.of(&["other".to_owned()], "alice").unwrap_err().message.contains("\"other\""));
    }

    #[test]
    fn names_of_tenants_cannot_leave_the_folder() {
        for (tenant, name) in [("a.b:c@d", "a.b:c@d"), ("..", "%2e."), ("a/b", "a%2fb"), (".x", "%2ex")] {
            assert_eq!(part_name(tenant), name);
        }
    }

    #[test]
    fn folders_that_cannot_be_lent_are_refused_by_name() {
        let own = tempfile::tempdir().unwrap();
        let file = own.path().join("file");
        fs::write(&file, "").unwrap();
        let open = own.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, Permissions::from_mode(0o755)).unwrap();
        let state = own.path().join("state");
        fs::create_dir(&state).unwrap();
        let message = |folder: FolderOptions| LentFolders::open(&[folder], &state).unwrap_err().message;
        for (wrong, named) in [
            (folder("../x", &open, FolderUse::ReadOnly), "../x"),
            (folder("a", Path::new("relative"), FolderUse::ReadOnly), "absolute"),
            (folder("a", &own.path().join("missing"), FolderUse::ReadOnly), "cannot be read"),
            (folder("a", &file, FolderUse::ReadOnly), "not a folder"),
            (folder("a", own.path(), FolderUse::ReadOnly), "state folder"),
            (folder("a", &open, FolderUse::Scratch), "chmod 700"),
        ] {
            let told = message(wrong);
            assert!(told.contains(named), "{told}");
        }
        let twice = [folder("a", &open, FolderUse::ReadOnly), folder("a", &open, FolderUse::ReadOnly)];
        assert!(LentFolders::open(&twice, &state).unwrap_err().message.contains("\"a\""));
    }
}
