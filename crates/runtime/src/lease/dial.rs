//! Connections to a node on another machine.

use std::net::TcpStream;
use std::time::Instant;

use sublet_fabric::greeting;
use sublet_proto::Error;

use crate::access::CONNECT_TIMEOUT;

/// Address of an agent, and the interface for connections to it.
#[derive(Clone, Debug)]
pub(crate) struct Dial {
    /// Address of the agent, as `host:port`.
    pub(crate) address: String,
    /// The interface that connections go out by, by its name or one of its addresses.
    pub(crate) interface: Option<String>,
}

impl Dial {
    /// A new connection, within [`CONNECT_TIMEOUT`].
    pub(crate) fn connect(&self) -> Result<TcpStream, Error> {
        greeting::dial(&self.address, self.interface.as_deref(), Instant::now() + CONNECT_TIMEOUT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{IpAddr, TcpListener};
    use sublet_proto::Code;

    fn dial(address: impl ToString, interface: Option<&str>) -> Result<TcpStream, Error> {
        Dial { address: address.to_string(), interface: interface.map(str::to_owned) }.connect()
    }

    #[test]
    fn a_connection_goes_out_by_the_interface_that_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert_eq!(dial(address, None).unwrap().peer_addr().unwrap(), address);
        let from = dial(address, Some("127.0.0.3")).unwrap().local_addr().unwrap();
        assert_eq!(from.ip(), IpAddr::from([127, 0, 0, 3]));
        dial(address, Some("lo")).unwrap();
        let error = dial(address, Some("no-such-link")).unwrap_err();
        assert_eq!(error.code, Code::FabricUnavailable);
        assert!(error.message.contains("no-such-link"), "{error}");
    }

    #[test]
    fn an_address_where_nobody_listens_is_named() {
        let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        for address in [gone.to_string(), "no such host:1".into()] {
            let error = dial(&address, None).unwrap_err();
            assert_eq!(error.code, Code::AgentUnreachable);
            assert!(error.message.contains(&address), "{error}");
        }
    }
}
