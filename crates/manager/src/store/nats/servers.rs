//! Parses the addresses and credentials of NATS servers.

use std::fmt;
use std::path::Path;

use async_nats::{Client, ConnectOptions, ServerAddr};
use sublet_proto::{Code, Error};

use super::text;

/// The servers of one address: `nats://` or `tls://`, several separated by commas, each perhaps with `user:password@`
/// or `token@` before its host. They are shown without secrets.
pub(super) struct Servers {
    pub(super) addresses: Vec<ServerAddr>,
    identity: Option<ServerCredentials>,
}

/// Credentials of the manager.
enum ServerCredentials {
    Token(String),
    User { name: String, password: String },
}

impl Servers {
    /// Parses the servers of an address; the credentials are those of the first server that has some.
    pub(super) fn parse(url: &str) -> Result<Servers, Error> {
        let mut servers = Servers { addresses: Vec::new(), identity: None };
        for (place, url) in url.split(',').enumerate() {
            let (address, identity) = parse_one(url.trim()).ok_or_else(|| {
                let message = format!(
                    "address {} is not nats://[user:password@]host[:port], or tls:// for nats://",
                    place + 1
                );
                Error::new(Code::InvalidArgument, message)
            })?;
            servers.addresses.push(address);
            servers.identity = servers.identity.or(identity);
        }
        Ok(servers)
    }

    /// Adds the manager's credentials to the options of a connection.
    pub(super) fn authorize(&self, options: ConnectOptions) -> ConnectOptions {
        match &self.identity {
            None => options,
            Some(ServerCredentials::Token(token)) => options.token(token.clone()),
            Some(ServerCredentials::User { name, password }) => {
                options.user_and_password(name.clone(), password.clone())
            }
        }
    }
}

impl fmt::Display for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, address) in self.addresses.iter().enumerate() {
            let comma = if place == 0 { "" } else { "," };
            write!(f, "{comma}{}", address.as_url_str())?;
        }
        Ok(())
    }
}

/// A connection that is no store's, for a program that calls itself so.
///
/// # Errors
/// `invalid_argument` if the address makes no sense, `system` if no server answers or it refuses.
pub async fn connect(url: &str, ca_file: Option<&Path>, name: &str) -> Result<Client, Error> {
    let servers = Servers::parse(url)?;
    let mut options = servers.authorize(ConnectOptions::new().name(name));
    if let Some(ca_file) = ca_file {
        options = options.add_root_certificates(ca_file.to_owned());
    }
    let connected = options.connect(servers.addresses.as_slice()).await;
    connected.map_err(|error| {
        Error::new(Code::System, format!("the servers of NATS at {servers} do not answer: {error}"))
    })
}

fn parse_one(url: &str) -> Option<(ServerAddr, Option<ServerCredentials>)> {
    let (scheme, rest) = url.split_once("://")?;
    if !matches!(scheme, "nats" | "tls") {
        return None;
    }
    let (identity, host) = match rest.rsplit_once('@') {
        None => (None, rest),
        Some((identity, host)) => (Some(parse_identity(identity)?), host),
    };
    let address: ServerAddr = format!("{scheme}://{host}").parse().ok()?;
    (!address.host().is_empty()).then_some((address, identity))
}

fn parse_identity(identity: &str) -> Option<ServerCredentials> {
    let plain = |text| text::unescape(text, '%');
    match identity.split_once(':') {
        None => plain(identity).map(ServerCredentials::Token),
        Some((name, password)) => {
            Some(ServerCredentials::User { name: plain(name)?, password: plain(password)? })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_secret_is_not_shown() {
        let servers = Servers::parse("nats://me:p%40ss@a:1,tls://b:2").unwrap();
        assert_eq!(servers.to_string(), "nats://a:1,tls://b:2");
        assert!(
            matches!(servers.identity, Some(ServerCredentials::User { name, password }) if name == "me" && password == "p@ss")
        );
        let servers = Servers::parse("nats://t0ken@a").unwrap();
        assert!(matches!(servers.identity, Some(ServerCredentials::Token(token)) if token == "t0ken"));
    }

    #[test]
    fn rejects_invalid_addresses_without_showing_them() {
        for url in ["", "a:1", "http://a", "nats://", "nats://s3cret%zz@a", "nats://a:99999", "nats://a,"] {
            let error = Servers::parse(url).err().unwrap_or_else(|| panic!("{url:?} was taken"));
            assert_eq!(error.code, Code::InvalidArgument);
            assert!(!error.message.contains("s3cret"), "{error}");
        }
    }
}
