//! The rights to packages, as the output names them.

use clap::ValueEnum;
use serde::Serialize;
use sublet_proto::v1::{PackageGrant, PackageRight};

/// Right of a tenant to a package.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Right {
    Read,
    Execute,
}

impl Right {
    /// Returns the right of a stored grant, if this version knows it.
    pub(crate) fn of(grant: &PackageGrant) -> Option<Right> {
        match grant.right() {
            PackageRight::Unspecified => None,
            PackageRight::Read => Some(Right::Read),
            PackageRight::Execute => Some(Right::Execute),
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Right::Read => "read",
            Right::Execute => "execute",
        }
    }
}
