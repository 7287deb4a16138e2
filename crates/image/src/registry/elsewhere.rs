//! Resolves untrusted names to other machines only: neither the name of a registry nor its redirections may lead to
//! services of this machine.

use std::io;
use std::net::{IpAddr, UdpSocket};

use ureq::Error;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Elsewhere(DefaultResolver);

impl Resolver for Elsewhere {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, Error> {
        let found = self.0.resolve(uri, config, timeout)?;
        // A proxy is set by the operator, wherever it is, and resolves names by itself.
        if config.proxy().is_none() && found.iter().any(|address| is_here(address.ip())) {
            return Err(Error::Io(io::Error::other("its name leads to this machine")));
        }
        Ok(found)
    }
}

/// Whether an address belongs to this machine, or is reachable from it alone.
fn is_here(address: IpAddr) -> bool {
    let address = address.to_canonical();
    let is_link_local = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    is_link_local || UdpSocket::bind((address, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_this_machine_are_known() {
        for here in [
            "127.0.0.1",
            "127.8.9.10",
            "0.0.0.0",
            "::1",
            "::",
            "::ffff:127.0.0.1",
            "169.254.169.254",
            "fe80::1",
        ] {
            assert!(is_here(here.parse().unwrap()), "{here}");
        }
        for elsewhere in ["192.0.2.1", "2001:db8::1", "8.8.8.8"] {
            assert!(!is_here(elsewhere.parse().unwrap()), "{elsewhere}");
        }
    }
}
