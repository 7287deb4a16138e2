//! Checks a client's choice of a transport before it requests a lease.
//!
//! The transport of a lease's calls is chosen when its node is known. By then the node's cores are reserved. A choice
//! that is impossible on every node must therefore fail before the request.

use sublet_fabric::greeting::check_interface;
use sublet_proto::{Code, Error};

use super::{CLIENT_HAS, ClientTerms, FabricChoice, Providers};

impl ClientTerms {
    /// Checks that this machine has the chosen transport, whatever nodes offer.
    ///
    /// # Errors
    /// `fabric_unavailable`.
    pub(crate) fn check(&self, here: &impl Providers) -> Result<(), Error> {
        if let FabricChoice::Ofi { provider } = &self.fabric {
            let usable = provider.as_ref().map_or_else(|| here.any(), |name| here.usable(name).map(drop));
            usable.map_err(|why| {
                let message =
                    format!("no network carries calls by {} from here: {CLIENT_HAS}: {why}", self.fabric);
                Error::new(Code::FabricUnavailable, message)
            })?;
        }
        match &self.interface {
            Some(interface) if self.fabric != FabricChoice::Shm => check_interface(interface),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Usable;
    use super::*;

    /// A machine on which libfabric has these alone.
    struct Has(&'static [&'static str]);

    impl Providers for Has {
        fn usable(&self, provider: &str) -> Result<Usable, String> {
            match self.0.contains(&provider) {
                true => Ok(Usable::ByName),
                false => Err("no card".to_owned()),
            }
        }

        fn any(&self) -> Result<(), String> {
            self.0.first().map(drop).ok_or_else(|| "no library".to_owned())
        }
    }

    fn check(fabric: &str, interface: Option<&str>, here: &Has) -> Result<(), Error> {
        ClientTerms { fabric: fabric.parse().unwrap(), interface: interface.map(str::to_owned) }.check(here)
    }

    #[track_caller]
    fn assert_refused(checked: Result<(), Error>, named: &[&str]) {
        let error = checked.unwrap_err();
        assert_eq!(error.code, Code::FabricUnavailable, "{error}");
        assert!(named.iter().all(|name| error.message.contains(name)), "{error}");
    }

    #[test]
    fn rejects_missing_providers_and_lists_the_usable_ones() {
        let (bare, card) = (Has(&[]), Has(&["verbs"]));
        assert_refused(check("ofi", None, &bare), &["by ofi ", "tcp", "shm", "no library"]);
        assert_refused(check("ofi:verbs", None, &bare), &["by ofi:verbs ", "no card"]);
        assert_refused(check("ofi:efa", None, &card), &["by ofi:efa ", "no card"]);
        for fabric in ["ofi", "ofi:verbs", "auto", "tcp+tls"] {
            check(fabric, None, &card).unwrap();
        }
        check("auto", None, &bare).unwrap();
    }

    #[test]
    fn rejects_interfaces_that_this_machine_lacks() {
        let here = Has(&[]);
        for interface in ["lo", "127.0.0.1"] {
            check("tcp", Some(interface), &here).unwrap();
        }
        for interface in ["no-such-link", "192.0.2.1", "2001:db8::1"] {
            for fabric in ["tcp", "auto"] {
                assert_refused(check(fabric, Some(interface), &here), &[interface]);
            }
            check("shm", Some(interface), &here).unwrap();
        }
    }
}
