//! Control connections, which make data connections and carry small packets: Unix sockets, TCP with a greeting, TLS.

pub mod connection;
pub mod greeting;
pub mod packet;
pub mod remote;
pub(crate) mod socket;
pub mod socket_path;
pub mod tls;
