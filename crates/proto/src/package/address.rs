//! Addresses of packages and functions: `package`, `package/function`, `tenant/package`, `tenant/package/function`.

use super::digest::is_digest;
use crate::names::{is_name, is_node_name};

/// The owner of the packages that operators publish for all tenants. No tenant has this name.
pub const PUBLIC: &str = "public";

/// One meaning of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackageAddress<'a> {
    /// The tenant that is named as the owner. `None`: the caller, and then [`PUBLIC`].
    pub owner: Option<&'a str>,
    /// The package's name or digest.
    pub package: &'a str,
    /// The function, if the address names one.
    pub function: Option<&'a str>,
}

/// Whether a tenant may be called so: a name that begins with a dot would look like a path in addresses.
pub fn is_owner(name: &str) -> bool {
    is_node_name(name) && !name.starts_with('.')
}

/// Whether the text can be the address of a package: a name or a digest, of the caller or of a tenant, and a name may be
/// followed by `@` and the digest of one of the packages that had it.
pub fn is_package(address: &str) -> bool {
    let is_named = |package: &str| match package.split_once('@') {
        Some((name, digest)) => is_name(name) && is_digest(digest),
        None => is_name(package) || is_digest(package),
    };
    readings(address)
        .any(|read| read.function.is_none() && read.owner.is_none_or(is_owner) && is_named(read.package))
}

/// Returns the meanings of an address in the order in which they are tried. The caller's own and public packages come
/// first: `a/b` is function `b` of package `a`, and package `b` of tenant `a` only if no package `a` exists.
pub fn readings(address: &str) -> impl Iterator<Item = PackageAddress<'_>> {
    let mut parts = address.splitn(3, '/');
    let first = parts.next().unwrap_or_default();
    let (second, third) = (parts.next(), parts.next());
    let unowned = third.is_none().then_some(PackageAddress { owner: None, package: first, function: second });
    let owned = second.map(|package| PackageAddress { owner: Some(first), package, function: third });
    unowned.into_iter().chain(owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(address: &str) -> Vec<(Option<&str>, &str, Option<&str>)> {
        readings(address).map(|found| (found.owner, found.package, found.function)).collect()
    }

    #[test]
    fn tries_packages_of_the_caller_before_other_tenants() {
        assert_eq!(read("libx"), [(None, "libx", None)]);
        assert_eq!(read("libx/f"), [(None, "libx", Some("f")), (Some("libx"), "f", None)]);
        assert_eq!(read("alice/libx/f"), [(Some("alice"), "libx", Some("f"))]);
        assert_eq!(read(""), [(None, "", None)]);
    }

    #[test]
    fn a_package_is_named_without_a_function() {
        let digest = format!("sha256:{}", "a".repeat(64));
        for address in ["libx", &digest, "uid:0/libx", "public/libx", &format!("alice/libx@{digest}")] {
            assert!(is_package(address), "{address}");
        }
        let long = "a".repeat(65);
        for address in ["", "alice/libx/f", "../x", "./x", "alice/", "/x", "libx@1", &long, "a b"] {
            assert!(!is_package(address), "{address}");
        }
    }
}
