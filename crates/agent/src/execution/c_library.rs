//! The C library of an image, with which the worker in the image has to be linked.
//!
//! A program or library for glibc cannot be used with musl, nor the other way round. So there are two worker programs for
//! native code, and two libraries that make a Python a worker. An image's Python reports its C library
//! ([`image_interpreters`](crate::execution::image_interpreters)). For native code the files of the image decide: a program names its
//! loader by a path that is the same on every system.
//!
//! A tenant has made the image. Its files are looked up, never read, and no link leads out of a layer's folder.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2};
use rustix::io::Errno;
use sublet_proto::network::Fabric;
use sublet_proto::package::needed_libraries;
use sublet_proto::v1::FabricChoice;
use sublet_proto::{Code, Error};

/// Name of glibc in the libraries that are linked with it.
const GLIBC: &str = "libc.so.6";
/// Maximum number of attempts to look a path up: the kernel gives up a lookup through `..` if any file of the machine is
/// renamed meanwhile.
const MAX_LOOKUPS: u32 = 1000;

/// A C library for Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CLibrary {
    /// C library of most distributions, and of this node.
    Glibc,
    /// C library of Alpine's images.
    Musl,
}

impl CLibrary {
    /// Returns the name of the C library.
    pub(crate) fn name(self) -> &'static str {
        match self {
            CLibrary::Glibc => "glibc",
            CLibrary::Musl => "musl",
        }
    }

    /// Parses an interpreter's report, such as `glibc 2.36` or `musl`.
    pub(crate) fn parse(report: &str) -> Option<CLibrary> {
        let name = report.split(' ').next();
        [CLibrary::Glibc, CLibrary::Musl].into_iter().find(|libc| name == Some(libc.name()))
    }

    /// Finds the C library of an image with these layers, from the bottom to the top, for a shared object of a package. An
    /// image with the loaders of both has the one with which the object is linked. An image with neither loader counts as
    /// one with glibc.
    pub(crate) fn of_image(layers: &[PathBuf], object: &Path) -> CLibrary {
        let has = |libc: CLibrary| {
            let loader = libc.loader(std::env::consts::ARCH);
            // In many distributions the first folder is a link, in a layer below the one with the file.
            has_file(layers, &loader) || has_file(layers, &format!("usr/{loader}"))
        };
        match (has(CLibrary::Glibc), has(CLibrary::Musl)) {
            (false, true) => CLibrary::Musl,
            (true, true) if !is_for_glibc(object) => CLibrary::Musl,
            _ => CLibrary::Glibc,
        }
    }

    /// Refuses a lease that demands what workers with this C library lack.
    ///
    /// # Errors
    /// With musl, `invalid_argument` for memory that is swapped, and `fabric_unavailable` for a network of libfabric.
    pub(crate) fn check_demands(
        self,
        swap_bytes: u64,
        fabric: Option<&FabricChoice>,
        image: &str,
    ) -> Result<(), Error> {
        if self == CLibrary::Glibc {
            return Ok(());
        }
        if swap_bytes > 0 {
            let message =
                format!("functions in the image {image} cannot swap memory, since its C library is musl");
            return Err(Error::new(Code::InvalidArgument, message));
        }
        if let Some(fabric @ Fabric::Ofi(_)) = Fabric::chosen(fabric)? {
            let message = format!(
                "functions in the image {image} cannot be called over {fabric}, since its C library is musl, with which \
                 libfabric cannot be loaded (choose the fabric tcp)"
            );
            return Err(Error::new(Code::FabricUnavailable, message));
        }
        Ok(())
    }

    /// Path of its loader in images for an architecture, without the first slash.
    fn loader(self, architecture: &str) -> String {
        match (self, architecture) {
            (CLibrary::Musl, _) => format!("lib/ld-musl-{architecture}.so.1"),
            (CLibrary::Glibc, "x86_64") => "lib64/ld-linux-x86-64.so.2".to_owned(),
            (CLibrary::Glibc, _) => format!("lib/ld-linux-{architecture}.so.1"),
        }
    }
}

/// Whether an image has a file: the topmost layer decides that has the file, or a mark that it was removed.
fn has_file(layers: &[PathBuf], path: &str) -> bool {
    layers.iter().rev().find_map(|layer| has_in_layer(layer, path)).unwrap_or(false)
}

/// Whether a layer has a file; `None` if the layer has nothing at this path.
fn has_in_layer(layer: &Path, path: &str) -> Option<bool> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let folder = openat(CWD, layer, flags | OFlags::DIRECTORY, Mode::empty()).ok()?;
    let look_up = || openat2(&folder, path, flags, Mode::empty(), ResolveFlags::IN_ROOT);
    let mut found = (0..MAX_LOOKUPS).map(|_| look_up());
    let file = found.find(|found| !matches!(found, Err(Errno::AGAIN)))?.ok()?;
    // The mark of a removed file is a device.
    Some(FileType::from_raw_mode(fstat(&file).ok()?.st_mode) == FileType::RegularFile)
}

/// Whether a shared object is linked with glibc; an unreadable one counts as such.
fn is_for_glibc(object: &Path) -> bool {
    fs::read(object).map_or(true, |bytes| needed_libraries(&bytes).contains(&GLIBC))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicBool, Ordering};

    use tempfile::TempDir;

    use super::*;

    /// A layer with these files, of which a name with `->` is a link.
    fn layer(files: &[&str]) -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        for file in files {
            let (path, target) = file.split_once("->").map_or((*file, None), |(path, to)| (path, Some(to)));
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            match target {
                Some(target) => symlink(target, path).unwrap(),
                None => fs::write(path, "").unwrap(),
            }
        }
        folder
    }

    fn of_layers(layers: &[TempDir], object: &Path) -> CLibrary {
        let paths: Vec<_> = layers.iter().map(|layer| layer.path().to_owned()).collect();
        CLibrary::of_image(&paths, object)
    }

    fn loader(libc: CLibrary) -> String {
        libc.loader(std::env::consts::ARCH)
    }

    #[test]
    fn loader_decides_the_c_library_of_an_image() {
        let (glibc, musl) = (loader(CLibrary::Glibc), loader(CLibrary::Musl));
        let object = Path::new("/nonexistent");
        let of = |files: &[&str]| of_layers(&[layer(&["etc/issue"]), layer(files), layer(&["x"])], object);
        assert_eq!(of(&[]), CLibrary::Glibc);
        assert_eq!(of(&[&glibc]), CLibrary::Glibc);
        assert_eq!(of(&[&musl]), CLibrary::Musl);
        assert_eq!(of(&[&format!("usr/{musl}")]), CLibrary::Musl);
        assert_eq!(of(&[&format!("usr/{musl}"), "lib->usr/lib"]), CLibrary::Musl);
        assert_eq!(of(&[&format!("{musl}->/lib/libc.so"), "lib/libc.so"]), CLibrary::Musl);
    }

    #[test]
    fn loader_is_found_while_other_files_are_renamed() {
        let loader = loader(CLibrary::Musl);
        let layer = layer(&["usr/lib/libc.so", &format!("{loader}->../usr/lib/libc.so")]);
        let others = tempfile::tempdir().unwrap();
        let [one, other] = ["one", "other"].map(|name| others.path().join(name));
        fs::write(&one, "").unwrap();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    fs::rename(&one, &other).unwrap();
                    fs::rename(&other, &one).unwrap();
                }
            });
            let missed = (0..20_000).filter(|_| has_in_layer(layer.path(), &loader) != Some(true)).count();
            is_over.store(true, Ordering::Relaxed);
            assert_eq!(missed, 0);
        });
    }

    #[test]
    fn links_do_not_lead_out_of_a_layer() {
        let outside = layer(&[&loader(CLibrary::Musl)]);
        let file = outside.path().join(loader(CLibrary::Musl));
        let absolute = format!("{}->{}", loader(CLibrary::Musl), file.display());
        let folder = format!("lib->{}", outside.path().join("lib").display());
        let relative = format!("lib->../{}/lib", outside.path().file_name().unwrap().display());
        for link in [absolute, folder, relative] {
            assert_eq!(of_layers(&[layer(&[&link])], Path::new("/nonexistent")), CLibrary::Glibc, "{link}");
        }
    }

    #[test]
    fn object_decides_in_an_image_with_both_loaders() {
        let both = [layer(&[&loader(CLibrary::Musl)]), layer(&[&loader(CLibrary::Glibc)])];
        let folder = tempfile::tempdir().unwrap();
        let plain = folder.path().join("plain.so");
        fs::write(&plain, "no object").unwrap();
        assert_eq!(of_layers(&both, &plain), CLibrary::Musl);
        assert_eq!(of_layers(&both, &std::env::current_exe().unwrap()), CLibrary::Glibc);
        assert_eq!(of_layers(&both, Path::new("/nonexistent")), CLibrary::Glibc);
    }

    #[test]
    fn musl_is_refused_what_its_workers_lack() {
        let ofi = FabricChoice { name: "ofi".into(), provider: "verbs".into(), encrypted: false };
        let tcp = FabricChoice { name: "tcp".into(), ..FabricChoice::default() };
        let check =
            |libc: CLibrary, swap_bytes, fabric| libc.check_demands(swap_bytes, fabric, "the/image:1");
        assert_eq!(check(CLibrary::Glibc, 1, Some(&ofi)), Ok(()));
        assert_eq!(check(CLibrary::Musl, 0, None), Ok(()));
        assert_eq!(check(CLibrary::Musl, 0, Some(&tcp)), Ok(()));
        let swapping = check(CLibrary::Musl, 1, None).unwrap_err();
        assert_eq!(swapping.code, Code::InvalidArgument);
        assert!(swapping.message.contains("the/image:1 cannot swap memory"), "{swapping}");
        let network = check(CLibrary::Musl, 0, Some(&ofi)).unwrap_err();
        assert_eq!(network.code, Code::FabricUnavailable);
        assert!(network.message.contains("the/image:1 cannot be called over ofi:verbs"), "{network}");
    }

    #[test]
    fn reports_of_interpreters_name_the_c_library() {
        assert_eq!(CLibrary::parse("glibc 2.36"), Some(CLibrary::Glibc));
        assert_eq!(CLibrary::parse("musl"), Some(CLibrary::Musl));
        for other in ["", "muslin", "bionic 1"] {
            assert_eq!(CLibrary::parse(other), None, "{other}");
        }
    }
}
