//! Checks the names of tenants and nodes.

use sublet_proto::package::PUBLIC;
use sublet_proto::pu::{self, is_node_name};
use sublet_proto::{Code, Error};

/// Longest name of a tenant or node, in bytes.
pub const MAX_NAME_BYTES: usize = pu::MAX_NODE_NAME_BYTES;
/// The tenant of leases whose token is still being verified.
pub(crate) const UNVERIFIED: &str = "unverified";

/// Checks that a text is a valid name of a tenant.
pub(crate) fn check_tenant(name: &str) -> Result<(), Error> {
    if name == UNVERIFIED {
        return Err(Error::new(
            Code::InvalidArgument,
            format!("{name:?} is the name of tenants that are not known yet"),
        ));
    }
    if name == PUBLIC {
        let message =
            format!("{name:?} cannot be the name of a tenant: it owns what operators publish for all");
        return Err(Error::new(Code::InvalidArgument, message));
    }
    if name.starts_with('.') {
        let message = "the name of a tenant cannot begin with a dot: in addresses of packages it would look like a path";
        return Err(Error::new(Code::InvalidArgument, message));
    }
    check("tenant", name)
}

/// Checks that a text is a valid name of a node.
pub(crate) fn check_node(name: &str) -> Result<(), Error> {
    check("node", name)
}

/// The name of the tenant that a user of the manager's machine is.
pub(crate) fn of_user(uid: u32) -> String {
    format!("uid:{uid}")
}

fn check(what: &str, name: &str) -> Result<(), Error> {
    if is_node_name(name) {
        return Ok(());
    }
    let shown: String = name.chars().take(MAX_NAME_BYTES).collect();
    let message =
        format!("{shown:?} cannot be the name of a {what}: 1 to {MAX_NAME_BYTES} letters, digits or .:_-@");
    Err(Error::new(Code::InvalidArgument, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain_and_short() {
        for name in ["a", "uid:0", "team-7.eu_west@x"] {
            check_tenant(name).unwrap();
        }
        for name in ["", ".a", "..", "a/b", "a b", "ä", UNVERIFIED, PUBLIC, &"a".repeat(65)] {
            assert_eq!(check_tenant(name).unwrap_err().code, Code::InvalidArgument, "{name}");
        }
    }
}
