//! Reads managers' addresses, trusted certificates and credentials.
//!
//! An [`Access`] is a value without a connection. Clients, agents and the command make channels out of it; each channel
//! connects when it is first used and again after it broke, within a bounded time. A network that was cut is noticed
//! by unanswered pings, within [`KEEP_ALIVE_INTERVAL`] and [`KEEP_ALIVE_TIMEOUT`], for as long as a request is
//! waiting.
//!
//! Connections over a network always use TLS and trust only the given certificate authority. Plain HTTP is allowed for
//! loopback addresses only. The token is sent to managers only, and appears in no message and no log.

use std::fmt;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use sublet_fabric::socket_path::SocketPath;
use sublet_proto::{Code, Error, version};
use tokio::net::UnixStream;
use tonic::codegen::http::Uri;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Request, Status};

/// Longest time to make a connection, TLS included.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Silence on a connection after which the other side is pinged, and longest wait for the answer.
pub const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(2);
/// See [`KEEP_ALIVE_INTERVAL`].
pub const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(2);
/// Managers of one store.
pub const MAX_MANAGERS: usize = 16;
/// Largest file of trusted certificates, and largest file of a token, in bytes.
const MAX_CA_BYTES: u64 = 1 << 20;
const MAX_TOKEN_BYTES: u64 = 4096;
/// Longest path that the kernel takes, in bytes, without the final zero.
const MAX_SOCKET_PATH_BYTES: usize = 4095;

const UNIX_SCHEME: &str = "unix:";

/// Addresses and credentials for the managers of one store.
#[derive(Clone, PartialEq, Eq)]
pub struct Access {
    /// Addresses of the managers: at least one. The client may use any of them.
    pub managers: Vec<Address>,
    /// The certificates of the authority that the managers' own are signed by, as PEM.
    pub ca_pem: Option<Vec<u8>>,
    /// The access token. A manager's own Unix socket needs none.
    pub token: Option<String>,
    /// The tenant as whose user an operator acts. `None`: the caller's own tenant.
    pub tenant: Option<String>,
}

/// Address of a manager: `unix:/path`, `https://host:port`, or on this machine `http://127.0.0.1:port`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// A socket in the file system.
    Unix(PathBuf),
    /// A host and a port.
    Tcp {
        /// Whether by TLS. Without it, the host is this one.
        tls: bool,
        /// Host and port, as `host:port`.
        authority: String,
    },
}

impl Access {
    /// Parses the addresses of managers, separated by commas.
    pub fn parse(managers: &str) -> Result<Access, Error> {
        let managers: Vec<Address> =
            managers.split(',').map(|one| one.trim().parse()).collect::<Result<_, _>>()?;
        if managers.len() > MAX_MANAGERS {
            return Err(invalid(format!("{} managers: at most {MAX_MANAGERS}", managers.len())));
        }
        Ok(Access { managers, ca_pem: None, token: None, tenant: None })
    }

    /// Reads the environment: the address from `$SUBLET_MANAGER` or the socket in the [default folder](default_state),
    /// the trusted certificates from the file `$SUBLET_CA`, and the token from `$SUBLET_TOKEN_FILE` or `$SUBLET_TOKEN`.
    pub fn from_env() -> Result<Access, Error> {
        Access::parse(&default_address())?.with_env()
    }

    /// Adds the certificates and the token that the environment names.
    pub fn with_env(mut self) -> Result<Access, Error> {
        if let Some(path) = path_of("SUBLET_CA") {
            self = self.with_ca_file(&path)?;
        }
        if let Some(path) = path_of("SUBLET_TOKEN_FILE") {
            return self.with_token_file(&path);
        }
        match std::env::var("SUBLET_TOKEN") {
            Ok(token) if !token.is_empty() => self.with_token(token),
            _ => Ok(self),
        }
    }

    /// Trusts the certificates in a PEM file, and no others.
    pub fn with_ca_file(mut self, path: &Path) -> Result<Access, Error> {
        let pem = read_file("certificate file", path, MAX_CA_BYTES)?;
        check_pem(&pem).map_err(|why| invalid(format!("{}: {why}", path.display())))?;
        self.ca_pem = Some(pem);
        Ok(self)
    }

    /// Shows the token that a file holds.
    pub fn with_token_file(self, path: &Path) -> Result<Access, Error> {
        let text = read_file("token file", path, MAX_TOKEN_BYTES)?;
        let token = String::from_utf8(text).map_err(|_| invalid(format!("{} is no text", path.display())))?;
        let named = |error: Error| Error::new(error.code, format!("{}: {}", path.display(), error.message));
        self.with_token(token.trim()).map_err(named)
    }

    /// Shows this token.
    pub fn with_token(mut self, token: impl Into<String>) -> Result<Access, Error> {
        let token = token.into();
        if token.is_empty() || bearer(&token).is_none() {
            return Err(invalid("the access token is empty or has characters that no token has"));
        }
        self.token = Some(token);
        Ok(self)
    }

    /// Acts as a user of this tenant, which only operators may: with that tenant's rights and quota.
    ///
    /// # Errors
    /// `invalid_argument` if no tenant can have this name.
    pub fn for_tenant(mut self, tenant: impl Into<String>) -> Result<Access, Error> {
        let tenant = tenant.into();
        if tenant.is_empty() || MetadataValue::<Ascii>::try_from(tenant.as_str()).is_err() {
            return Err(invalid(format!("{tenant:?} cannot be the name of a tenant")));
        }
        self.tenant = Some(tenant);
        Ok(self)
    }

    /// Makes a channel to one of the managers. It connects when it is first used, and again after it broke. A failed
    /// connection shows in the requests. To be called within a tokio runtime, which then drives it.
    pub fn channel(&self, which: usize) -> Result<Channel, Error> {
        let address = self.managers.get(which).ok_or_else(|| {
            invalid(format!("there is no manager {which}: {} are known", self.managers.len()))
        })?;
        match address {
            Address::Unix(path) => Ok(unix_channel(path.clone())),
            Address::Tcp { tls: false, authority } => Ok(endpoint("http", authority)?.connect_lazy()),
            Address::Tcp { tls: true, authority } => {
                let tls = self.tls(address)?;
                let endpoint = endpoint("https", authority)?.tls_config(tls).map_err(|error| {
                    invalid(format!("the certificates to trust cannot be read: {}", root_cause(&error)))
                })?;
                Ok(endpoint.connect_lazy())
            }
        }
    }

    /// A request with the token and the tenant in it.
    pub fn authorize<T>(&self, mut request: Request<T>) -> Request<T> {
        if let Some(bearer) = self.token.as_deref().and_then(bearer) {
            request.metadata_mut().insert("authorization", bearer);
        }
        let tenant = self.tenant.as_deref().map(MetadataValue::<Ascii>::try_from);
        if let Some(Ok(tenant)) = tenant {
            request.metadata_mut().insert("sublet-tenant", tenant);
        }
        request
    }

    fn tls(&self, address: &Address) -> Result<ClientTlsConfig, Error> {
        let pem = self.ca_pem.as_deref().ok_or_else(|| {
            let message = format!(
                "{address} needs the certificate of its authority: give its ca.pem by --ca or $SUBLET_CA"
            );
            invalid(message)
        })?;
        check_pem(pem).map_err(|why| invalid(format!("the certificates to trust: {why}")))?;
        Ok(ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem)).timeout(CONNECT_TIMEOUT))
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let token = self.token.as_ref().map(|_| "(secret)");
        let ca_bytes = self.ca_pem.as_ref().map(Vec::len);
        f.debug_struct("Access")
            .field("managers", &self.managers)
            .field("ca_bytes", &ca_bytes)
            .field("token", &token)
            .field("tenant", &self.tenant)
            .finish()
    }
}

/// Start of a manager's answer to a request that it does not know.
const NO_METHOD: &str = "there is no method /sublet.";

impl Address {
    /// Translates the failure of a request: the manager's own error, or the reason why no manager answers at this
    /// address.
    pub fn failure(&self, status: &Status) -> Error {
        if !status.details().is_empty() {
            let error = Error::from_status(status);
            let is_unknown = error.message.starts_with(NO_METHOD);
            return if is_unknown { self.does_not_know(&error.message) } else { error };
        }
        // The status carries no manager's error: the network, or a server of another kind, has produced it.
        let said = || format!("the manager at {self} refused: {}", status.message());
        match status.code() {
            tonic::Code::Unauthenticated => Error::new(Code::Unauthenticated, said()),
            tonic::Code::PermissionDenied => Error::new(Code::PermissionDenied, said()),
            tonic::Code::Unimplemented | tonic::Code::OutOfRange => {
                let message = format!("the manager at {self} does not understand: {}", status.message());
                Error::new(Code::Protocol, message)
            }
            _ => self.unreachable(&reason(status)),
        }
    }

    /// The error of a request that was added to the messages after the manager's version.
    fn does_not_know(&self, said: &str) -> Error {
        let message = format!(
            "the manager at {self} does not know this request, and this program knows revision {} of Sublet's messages: upgrade \
             the manager first ({said})",
            version::MESSAGES
        );
        Error::new(Code::VersionMismatch, message)
    }

    /// Returns the error that no manager answers at this address.
    pub fn unreachable(&self, why: &str) -> Error {
        let hint = self.hint(why);
        Error::new(Code::ManagerUnreachable, format!("no manager answers at {self}: {why}{hint}"))
    }

    /// Suggests how to reach the manager, where the cause is known. Empty otherwise.
    fn hint(&self, why: &str) -> String {
        let path = match self {
            Address::Unix(path) => path,
            Address::Tcp { tls: false, authority } if !why.contains("refused") => {
                return format!(
                    "; a manager with TLS is reached by https://{authority}, with its ca.pem by --ca or $SUBLET_CA"
                );
            }
            Address::Tcp { tls: true, authority } if why.contains("corrupt message") => {
                return format!("; a manager without TLS is reached by http://{authority}");
            }
            Address::Tcp { .. } => return String::new(),
        };
        let reached =
            SocketPath::of(path).and_then(|path| std::os::unix::net::UnixStream::connect(path.as_path()));
        match reached.map_err(|error| error.kind()) {
            Err(ErrorKind::PermissionDenied) => {
                "; it is another user's: ask for an address and a token of theirs \
                 ($SUBLET_MANAGER, $SUBLET_TOKEN), or start your own with: sublet up --state FOLDER"
                    .to_owned()
            }
            Err(ErrorKind::NotFound | ErrorKind::ConnectionRefused) if *self == own_address() => {
                "; start one with: sublet up".to_owned()
            }
            _ => String::new(),
        }
    }
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Address, Error> {
        if text.starts_with(UNIX_SCHEME) {
            return socket_path(text).map(Address::Unix);
        }
        let refused = |why: &str| {
            let forms = "unix:/path, https://host:port, or http://127.0.0.1:port on this machine";
            invalid(format!("{text:?} is no address of a manager: {why} ({forms})"))
        };
        let uri: Uri = text.parse().map_err(|error| refused(&format!("{error}")))?;
        let tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(refused("its scheme must be unix, https or http")),
        };
        let authority = uri.authority().ok_or_else(|| refused("it names no host"))?;
        if authority.port_u16().is_none() || authority.as_str().contains('@') {
            return Err(refused("after the scheme stand a host and a port, and nothing else"));
        }
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(refused("there is something after its port"));
        }
        if !tls && !is_loopback(authority.host()) {
            return Err(refused("over a network a manager is reached by https alone"));
        }
        Ok(Address::Tcp { tls, authority: authority.to_string() })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "{UNIX_SCHEME}{}", path.display()),
            Address::Tcp { tls: true, authority } => write!(f, "https://{authority}"),
            Address::Tcp { tls: false, authority } => write!(f, "http://{authority}"),
        }
    }
}

/// Default address of the manager: `$SUBLET_MANAGER`, or the socket in [`default_state`].
pub fn default_address() -> String {
    match std::env::var("SUBLET_MANAGER") {
        Ok(address) if !address.is_empty() => address,
        _ => manager_address(&default_state()),
    }
}

/// The address of the manager whose state is in this folder.
pub fn manager_address(state: &Path) -> String {
    manager_socket(state).to_string()
}

/// The folder of a manager's state: `$SUBLET_STATE`, `$XDG_RUNTIME_DIR/sublet`, `$HOME/.local/state/sublet` or
/// `/tmp/sublet-UID`, whichever is known first.
pub fn default_state() -> PathBuf {
    path_of("SUBLET_STATE")
        .or_else(|| path_of("XDG_RUNTIME_DIR").map(|path| path.join("sublet")))
        .or_else(|| path_of("HOME").map(|path| path.join(".local/state/sublet")))
        .unwrap_or_else(|| PathBuf::from(format!("/tmp/sublet-{}", rustix::process::getuid().as_raw())))
}

/// The path in an address as `unix:/path`.
pub fn socket_path(address: &str) -> Result<PathBuf, Error> {
    let refused = |why: &str| invalid(format!("{address:?} is no address of a socket: {why} (unix:/path)"));
    let path = address.strip_prefix(UNIX_SCHEME).ok_or_else(|| refused("it is not a Unix socket's"))?;
    let path = path.strip_prefix("//").unwrap_or(path);
    if !path.starts_with('/') {
        return Err(refused("the socket's path is not absolute"));
    }
    if path.len() > MAX_SOCKET_PATH_BYTES || path.contains('\0') {
        return Err(refused(&format!(
            "a socket's path has at most {MAX_SOCKET_PATH_BYTES} bytes and no zero"
        )));
    }
    Ok(PathBuf::from(path))
}

fn manager_socket(state: &Path) -> Address {
    Address::Unix(state.join("manager.sock"))
}

/// Address of this machine's own `sublet up`.
fn own_address() -> Address {
    manager_socket(&default_state())
}

fn path_of(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from)
}

fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// Every channel's bounds.
fn bounded(endpoint: Endpoint) -> Endpoint {
    endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .tcp_nodelay(true)
}

fn endpoint(scheme: &str, authority: &str) -> Result<Endpoint, Error> {
    let address = format!("{scheme}://{authority}");
    let endpoint = Endpoint::from_shared(address.clone());
    Ok(bounded(endpoint.map_err(|error| invalid(format!("{address:?} is no address: {error}")))?))
}

fn unix_channel(socket: PathBuf) -> Channel {
    let connector = tower::service_fn(move |_| {
        let socket = socket.clone();
        async move {
            let reached = SocketPath::of(&socket)?;
            UnixStream::connect(reached.as_path()).await.map(TokioIo::new)
        }
    });
    // The authority is required by HTTP and means nothing on a Unix socket.
    bounded(Endpoint::from_static("http://manager")).connect_with_connector_lazy(connector)
}

/// Formats the token as the `authorization` value of a request's metadata.
fn bearer(token: &str) -> Option<MetadataValue<Ascii>> {
    let printable = token.bytes().all(|byte| byte.is_ascii_graphic());
    let mut bearer = MetadataValue::try_from(format!("Bearer {token}")).ok().filter(|_| printable)?;
    bearer.set_sensitive(true);
    Some(bearer)
}

/// Checks that the text contains a certificate, so that an unusable file is reported before a connection fails.
fn check_pem(pem: &[u8]) -> Result<(), &'static str> {
    const BEGIN: &[u8] = b"-----BEGIN CERTIFICATE-----";
    match pem.windows(BEGIN.len()).any(|window| window == BEGIN) {
        true => Ok(()),
        false => Err("there is no certificate in it (PEM, as the manager's tls/ca.pem)"),
    }
}

fn read_file(what: &str, path: &Path, most_bytes: u64) -> Result<Vec<u8>, Error> {
    let read = std::fs::metadata(path).and_then(|file| match file.len() {
        size if size > most_bytes => Ok(Err(size)),
        _ => std::fs::read(path).map(Ok),
    });
    match read {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(size)) => {
            Err(invalid(format!("the {what} {} has {size} bytes: at most {most_bytes}", path.display())))
        }
        Err(error) => Err(invalid(format!("the {what} {}: {error}", path.display()))),
    }
}

/// The innermost cause of a request that reached no server.
fn reason(status: &Status) -> String {
    match std::error::Error::source(status) {
        Some(source) => root_cause(source),
        None => status.message().to_owned(),
    }
}

fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(Code::InvalidArgument, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_unix_tls_and_loopback_addresses() {
        for text in [
            "unix:/run/a b.sock",
            "https://manager.example:7440",
            "https://[::2]:7440",
            "http://127.0.0.1:7440",
            "http://[::1]:1",
            "http://localhost:7440",
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        assert_eq!("unix:///run/m.sock".parse::<Address>().unwrap().to_string(), "unix:/run/m.sock");
    }

    #[test]
    fn rejects_invalid_addresses_and_lists_the_valid_forms() {
        let long = format!("unix:/{}", "a".repeat(4096));
        let others = ["", "tcp://host:1", "unix:", "unix:m.sock", "/run/m.sock", "host:1", "https://host"];
        let more = ["https://me@host:1", "https://host:1/path", "http://10.0.0.1:1", "http://example:1"];
        for text in others.into_iter().chain(more).chain([long.as_str()]) {
            let error = text.parse::<Address>().unwrap_err();
            assert!(error.code == Code::InvalidArgument && error.message.contains("unix:/path"), "{error}");
        }
    }

    #[test]
    fn request_that_a_manager_does_not_know_names_the_versions() {
        let address: Address = "unix:/m.sock".parse().unwrap();
        // The answer of managers before revision 1.
        let said = Error::new(Code::Protocol, "there is no method /sublet.v1.Manager/SetSecret");
        let error = address.failure(&said.into_status());
        assert_eq!(error.code, Code::VersionMismatch);
        for named in ["unix:/m.sock", &format!("revision {}", version::MESSAGES), "SetSecret"] {
            assert!(error.message.contains(named), "{error}");
        }
        let other = Error::new(Code::Protocol, "the packages are mixed up");
        assert_eq!(address.failure(&other.clone().into_status()), other);
    }

    #[test]
    fn several_managers_are_separated_by_commas_and_bounded() {
        let access = Access::parse("unix:/a, https://b:1").unwrap();
        assert_eq!(access.managers.len(), 2);
        let many = vec!["unix:/a"; MAX_MANAGERS + 1].join(",");
        assert_eq!(Access::parse(&many).unwrap_err().code, Code::InvalidArgument);
    }

    #[test]
    fn a_token_is_sent_and_never_shown() {
        let access = Access::parse("unix:/a").unwrap().with_token("sublet_1_secret").unwrap();
        let request = access.authorize(Request::new(()));
        let sent = request.metadata().get("authorization").unwrap();
        assert_eq!(sent.as_bytes(), b"Bearer sublet_1_secret");
        for shown in [format!("{access:?}"), format!("{sent:?}")] {
            assert!(!shown.contains("secret_1") && !shown.contains("1_secret"), "{shown}");
        }
        for token in ["", "a b", "a\nb", "\u{e9}"] {
            assert_eq!(access.clone().with_token(token).unwrap_err().code, Code::InvalidArgument);
        }
    }

    #[test]
    fn files_that_hold_no_certificate_or_token_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let access = Access::parse("https://host:1").unwrap();
        assert!(access.clone().with_ca_file(&path).unwrap_err().message.contains("file: No such file"));
        std::fs::write(&path, "no certificate\n").unwrap();
        let error = access.clone().with_ca_file(&path).unwrap_err();
        assert!(error.message.contains("there is no certificate in it"), "{error}");
        let error = access.clone().with_token_file(&path).unwrap_err();
        assert!(error.message.contains("file: the access token"), "{error}");
        std::fs::write(&path, "sublet_1_x\n").unwrap();
        assert_eq!(access.with_token_file(&path).unwrap().token.unwrap(), "sublet_1_x");
    }

    #[test]
    fn tls_without_an_authority_says_what_to_give() {
        let mut access = Access::parse("https://host:1").unwrap();
        let error = access.channel(0).err().unwrap();
        assert!(error.code == Code::InvalidArgument && error.message.contains("ca.pem"), "{error}");
        access.ca_pem = Some(b"-----BEGIN CERTIFICATE-----\nbad\n".to_vec());
        let error = access.channel(0).err().unwrap();
        assert!(error.code == Code::InvalidArgument && error.message.contains("cannot be read"), "{error}");
        assert_eq!(access.channel(1).err().unwrap().code, Code::InvalidArgument);
    }

    #[test]
    fn only_the_default_address_suggests_sublet_up() {
        assert!(own_address().unreachable("refused").message.contains("sublet up"));
        let elsewhere = "https://host:1".parse::<Address>().unwrap();
        assert!(!elsewhere.unreachable("refused").message.contains("sublet up"));
    }
}
