//! Options of commands that connect to a manager, and the environment variables in their place.

use std::path::PathBuf;

use clap::Args;
use sublet_proto::Error;
use sublet_runtime::Access;
use sublet_runtime::access::default_address;
use sublet_runtime::manager::ManagerClient;

use super::files;

/// Options of commands that connect to a manager.
#[derive(Debug, Args)]
pub(crate) struct ConnectionArguments {
    // Environment variables are read at their use: the parser would show them in usage lines as if they were required.
    /// Addresses of the managers, as unix:/path or https://HOST:PORT, separated by commas [default: $SUBLET_MANAGER, or this
    /// user's own `sublet up`]
    #[arg(long, value_name = "ADDRESSES")]
    pub(crate) manager: Option<String>,

    /// PEM file of the certificate authority that issued the managers' certificates; required for https [default:
    /// $SUBLET_CA]
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,

    /// File with the access token [default: $SUBLET_TOKEN_FILE, or the token in $SUBLET_TOKEN]
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
}

impl ConnectionArguments {
    pub(crate) fn open(&self) -> Result<ManagerClient, Error> {
        ManagerClient::connect_with(self.access()?)
    }

    pub(crate) fn access(&self) -> Result<Access, Error> {
        let managers = self.manager.clone().filter(|managers| !managers.is_empty());
        let mut access = Access::parse(&managers.unwrap_or_else(default_address))?;
        if let Some(path) = given(&self.ca, "SUBLET_CA") {
            access = access.with_ca_file(&path)?;
        }
        if let Some(path) = given(&self.token_file, "SUBLET_TOKEN_FILE") {
            files::warn_of_open_secret(&path);
            return access.with_token_file(&path);
        }
        match std::env::var("SUBLET_TOKEN") {
            Ok(token) if !token.is_empty() => access.with_token(token),
            _ => Ok(access),
        }
    }
}

/// Returns the path from the flag or, without one, from the environment variable. An empty path counts as absent.
pub(crate) fn given(path: &Option<PathBuf>, variable: &str) -> Option<PathBuf> {
    let is_path = |path: &PathBuf| !path.as_os_str().is_empty();
    path.clone().filter(is_path).or_else(|| std::env::var_os(variable).map(PathBuf::from).filter(is_path))
}
