//! The functions of a lease's package, by their names.

use sublet_proto::v1::PackageInfo;
use sublet_proto::{Code, Error};

use super::ClientLease;

/// Number of functions that the error for an unknown function lists.
const SHOWN: usize = 8;

/// The functions of a package with their indices, sorted by name. A function beyond those that an index can name, which
/// no valid package has, is unknown.
pub(super) fn names(package: &PackageInfo) -> Vec<(String, u16)> {
    let named = (0..=u16::MAX).zip(&package.functions);
    let mut names: Vec<_> = named.map(|(index, info)| (info.name.clone(), index)).collect();
    names.sort_unstable();
    names
}

impl ClientLease {
    /// The index of a function, by its own name or with the package's before it.
    #[inline(always)]
    pub(crate) fn function(&self, name: &str) -> Result<u16, Error> {
        match self.find(name) {
            Some(index) => Ok(index),
            None => self.function_of_package(name),
        }
    }

    #[inline(always)]
    fn find(&self, name: &str) -> Option<u16> {
        let found = self.names.binary_search_by(|(known, _)| known.as_str().cmp(name)).ok()?;
        Some(self.names[found].1)
    }

    #[cold]
    fn function_of_package(&self, name: &str) -> Result<u16, Error> {
        let package = &self.package.name;
        let own = name.strip_prefix(package.as_str()).and_then(|rest| rest.strip_prefix('/'));
        own.and_then(|own| self.find(own)).ok_or_else(|| {
            let known: Vec<_> = self.names.iter().take(SHOWN).map(|(name, _)| name.as_str()).collect();
            let more = if self.names.len() > SHOWN { ", ..." } else { "" };
            let message =
                format!("package {package} has no function {name}; it has {}{more}", known.join(", "));
            Error::new(Code::UnknownFunction, message)
        })
    }

    /// The name of a function as `package/function`.
    pub(crate) fn function_name(&self, index: u16) -> String {
        let own = self.package.functions.get(usize::from(index)).map_or("?", |info| info.name.as_str());
        format!("{}/{own}", self.package.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sublet_proto::v1::FunctionInfo;

    #[test]
    fn functions_beyond_the_largest_index_are_unknown() {
        let function = |number: usize| FunctionInfo { name: number.to_string() };
        let most = usize::from(u16::MAX) + 1;
        let functions = (0..most + 1).map(function).collect();
        let names = names(&PackageInfo { functions, ..PackageInfo::default() });
        assert_eq!(names.len(), most);
        assert!(names.iter().all(|(name, index)| *name == index.to_string()));
    }
}
