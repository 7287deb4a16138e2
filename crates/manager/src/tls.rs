//! Certificates: made here, or read from files, and renewed while the manager runs.
//!
//! Managers of one store share one authority, whose secret is in the store like that of tickets. So clients and agents
//! trust one `ca.pem`, for every manager. Server certificates are made anew at each start and live only in memory: a
//! changed name needs only a restart.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prost::Message;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use sublet_fabric::sync::{read_lock, write_lock};
use sublet_proto::{Code, Error, decode};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig};

use crate::store::Store;

/// Interval at which certificates are made or read anew.
pub(crate) const RENEWAL: Duration = Duration::from_secs(60 * 60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Validity of a server certificate that is made here, in days.
const SERVER_DAYS: u32 = 90;
/// Validity of the authority, in days.
const AUTHORITY_DAYS: u32 = 20 * 365;
const AUTHORITY_NAME: &str = "Sublet managers";
const KEY: &str = "manager/authority";
const CA_FILE: &str = "ca.pem";

/// Protection of the manager's TCP listeners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tls {
    /// Certificates of the managers' own authority, which is written to `tls/ca.pem` in the state folder.
    Generated {
        /// Names and addresses by which clients reach this manager, beside its host's name and `localhost`.
        names: Vec<String>,
    },
    /// A certificate of the operator, in PEM. The files are read again each hour.
    Files {
        /// The certificate, and those between it and its authority.
        certificate: PathBuf,
        /// Private key of the certificate.
        key: PathBuf,
    },
    /// No protection: loopback addresses only.
    Plain,
}

impl Tls {
    /// Refuses to listen in the clear on an address that other machines can reach.
    pub(crate) fn check(&self, listen: &[SocketAddr]) -> Result<(), Error> {
        match listen.iter().find(|address| !address.ip().is_loopback()) {
            Some(address) if *self == Tls::Plain => Err(Error::new(
                Code::InvalidArgument,
                format!(
                    "{address} is no loopback address: without TLS it would carry tokens and tickets in the clear"
                ),
            )),
            _ => Ok(()),
        }
    }
}

/// Source of certificates, and the configuration that holds the current ones.
pub(crate) struct Certificates {
    source: CertificateSource,
    current: RwLock<Arc<ServerConfig>>,
}

enum CertificateSource {
    Authority { authority: Authority, names: Vec<String> },
    Files { certificate: PathBuf, key: PathBuf },
}

impl Certificates {
    /// Opens the certificates for the addresses that it listens on, and the one that it advertises; `None` without
    /// protection.
    pub(crate) fn open(
        tls: &Tls,
        (listen, advertised): (&[SocketAddr], Option<&str>),
        state: &Path,
        store: &mut dyn Store,
    ) -> Result<Option<Certificates>, Error> {
        tls.check(listen)?;
        let source = match tls {
            Tls::Plain => return Ok(None),
            Tls::Files { certificate, key } => {
                CertificateSource::Files { certificate: certificate.clone(), key: key.clone() }
            }
            Tls::Generated { names } => {
                let authority = Authority::of(store)?;
                authority.publish(state)?;
                CertificateSource::Authority { authority, names: server_names(names, listen, advertised) }
            }
        };
        let current = RwLock::new(source.configuration()?);
        Ok(Some(Certificates { source, current }))
    }

    pub(crate) fn current(&self) -> Arc<ServerConfig> {
        Arc::clone(&read_lock(&self.current))
    }

    /// Makes or reads them anew. The previous ones stay if that fails.
    pub(crate) fn renew(&self) -> Result<(), Error> {
        let renewed = self.source.configuration()?;
        *write_lock(&self.current) = renewed;
        Ok(())
    }
}

impl CertificateSource {
    fn configuration(&self) -> Result<Arc<ServerConfig>, Error> {
        match self {
            CertificateSource::Authority { authority, names } => authority.issue(names),
            CertificateSource::Files { certificate, key } => configuration(
                &Pem { from: certificate.display().to_string(), bytes: read(certificate)? },
                &Pem { from: key.display().to_string(), bytes: read(key)? },
            ),
        }
    }
}

/// Signs the certificates of the managers of one store.
#[derive(Clone, PartialEq, Message)]
struct Authority {
    #[prost(string, tag = "1")]
    certificate: String,
    #[prost(string, tag = "2")]
    key: String,
}

impl Authority {
    /// The store's; the first manager makes it.
    fn of(store: &mut dyn Store) -> Result<Authority, Error> {
        if store.get(KEY)?.is_none() {
            let authority = Authority::new().map_err(not_made)?;
            store.compare_and_swap(KEY, 0, &authority.encode_to_vec())?;
        }
        let stored = store.get(KEY)?.map(|stored| stored.value).unwrap_or_default();
        decode("the store's authority", &stored)
    }

    fn new() -> Result<Authority, rcgen::Error> {
        let key = KeyPair::generate()?;
        let certificate = authority_params()?.self_signed(&key)?.pem();
        Ok(Authority { certificate, key: key.serialize_pem() })
    }

    /// Writes the certificate where operators find it.
    fn publish(&self, state: &Path) -> Result<(), Error> {
        let folder = state.join("tls");
        let file = folder.join(CA_FILE);
        std::fs::create_dir_all(&folder)
            .and_then(|()| std::fs::write(&file, &self.certificate))
            .map_err(|error| Error::new(Code::System, format!("cannot write {}: {error}", file.display())))
    }

    fn issue(&self, names: &[String]) -> Result<Arc<ServerConfig>, Error> {
        let (certificate, key) = self.sign(names).map_err(not_made)?;
        let pem = |bytes: String| Pem { from: "a new certificate".into(), bytes: bytes.into_bytes() };
        configuration(&pem(certificate + &self.certificate), &pem(key))
    }

    /// A certificate for these names, and its key.
    fn sign(&self, names: &[String]) -> Result<(String, String), rcgen::Error> {
        let authority = authority_params()?;
        let issuer = Issuer::from_params(&authority, KeyPair::from_pem(&self.key)?);
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name.push(DnType::CommonName, "Sublet manager");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        valid_for(&mut params, SERVER_DAYS);
        let key = KeyPair::generate()?;
        Ok((params.signed_by(&key, &issuer)?.pem(), key.serialize_pem()))
    }
}

/// The same for each of its certificates: they name it by this.
fn authority_params() -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name.push(DnType::CommonName, AUTHORITY_NAME);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    valid_for(&mut params, AUTHORITY_DAYS);
    Ok(params)
}

/// Sets the validity, from yesterday on because clocks differ.
fn valid_for(params: &mut CertificateParams, days: u32) {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let today = rcgen::date_time_ymd(1970, 1, 1) + since_1970;
    params.not_before = today - DAY;
    params.not_after = today + DAY * days;
}

/// Returns the names by which clients may reach this manager: those of the operator, of its host, of the addresses it
/// listens on, and of the address it advertises.
fn server_names(names: &[String], listen: &[SocketAddr], advertised: Option<&str>) -> Vec<String> {
    let uname = rustix::system::uname();
    let host = uname.nodename().to_string_lossy();
    let addresses = listen.iter().map(|address| address.ip()).filter(|ip| !ip.is_unspecified());
    let known = ["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned(), host.into_owned()];
    let mut all: Vec<String> =
        names.iter().cloned().chain(known).chain(addresses.map(|ip| ip.to_string())).collect();
    all.extend(advertised.and_then(host_of).map(str::to_owned));
    // A host without a name is called `(none)`, which no certificate can be for.
    all.retain(|name| !name.is_empty() && !name.contains(['(', ')']));
    all.sort();
    all.dedup();
    all
}

/// The host of `https://HOST:PORT`, without the brackets of an address of version 6.
fn host_of(address: &str) -> Option<&str> {
    let authority = address.strip_prefix("https://")?;
    let (host, _) = authority.rsplit_once(':')?;
    Some(host.trim_start_matches('[').trim_end_matches(']'))
}

/// Text that holds certificates or a key.
struct Pem {
    from: String,
    bytes: Vec<u8>,
}

impl Pem {
    fn refused(&self, what: &str, error: impl std::fmt::Display) -> Error {
        Error::new(Code::InvalidArgument, format!("{} holds no {what}: {error}", self.from))
    }
}

fn configuration(certificate: &Pem, key: &Pem) -> Result<Arc<ServerConfig>, Error> {
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&certificate.bytes)
        .collect::<Result<_, _>>()
        .map_err(|error| certificate.refused("certificates", error))?;
    let private =
        PrivateKeyDer::from_pem_slice(&key.bytes).map_err(|error| key.refused("private key", error))?;
    let refused = |error: rustls::Error| certificate.refused("certificate for its key", error);
    let mut configuration = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, private))
        .map_err(refused)?;
    configuration.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(configuration))
}

fn read(file: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(file)
        .map_err(|error| Error::new(Code::System, format!("cannot read {}: {error}", file.display())))
}

fn not_made(error: rcgen::Error) -> Error {
    Error::new(Code::InvalidArgument, format!("a certificate cannot be made: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::SqliteStore;

    fn open(folder: &Path, names: &[&str]) -> Certificates {
        let mut store = SqliteStore::open(&folder.join("store.sqlite")).unwrap();
        let tls = Tls::Generated { names: names.iter().map(|&name| name.to_owned()).collect() };
        Certificates::open(&tls, (&[], None), folder, &mut store).unwrap().unwrap()
    }

    #[test]
    fn the_authority_stays_when_names_change() {
        let folder = tempfile::tempdir().unwrap();
        let ca = || std::fs::read_to_string(folder.path().join("tls/ca.pem")).unwrap();
        open(folder.path(), &[]);
        let before = ca();
        open(folder.path(), &["manager.example"]).renew().unwrap();
        assert!(before.contains("BEGIN CERTIFICATE") && before == ca());
    }

    #[test]
    fn a_generated_certificate_is_for_the_advertised_host() {
        let names = |address| server_names(&[], &[], Some(address));
        assert!(names("https://manager.example.org:7433").contains(&"manager.example.org".to_owned()));
        assert!(names("https://[2001:db8::7]:7433").contains(&"2001:db8::7".to_owned()));
        assert_eq!(names("unix:/run/m.sock"), server_names(&[], &[], None));
        // A host without a name of its own.
        assert_eq!(server_names(&["(none)".to_owned()], &[], None), server_names(&[], &[], None));
    }

    #[test]
    fn without_tls_only_loopback_is_listened_on() {
        let check = |tls: &Tls, address: &str| tls.check(&[address.parse().unwrap()]);
        assert!(check(&Tls::Plain, "127.0.0.1:0").is_ok() && check(&Tls::Plain, "[::1]:0").is_ok());
        let refused = check(&Tls::Plain, "0.0.0.0:7000").unwrap_err();
        assert!(
            refused.code == Code::InvalidArgument && refused.message.contains("0.0.0.0:7000"),
            "{refused}"
        );
        assert!(check(&Tls::Generated { names: Vec::new() }, "0.0.0.0:7000").is_ok());
    }

    #[test]
    fn files_that_are_no_certificates_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = SqliteStore::open(&folder.path().join("store.sqlite")).unwrap();
        let (certificate, key) = (folder.path().join("c.pem"), folder.path().join("k.pem"));
        std::fs::write(&certificate, "nothing").unwrap();
        let tls = Tls::Files { certificate: certificate.clone(), key: key.clone() };
        let error = Certificates::open(&tls, (&[], None), folder.path(), &mut store).err().unwrap();
        assert!(error.message.contains("k.pem"), "{error}");
        std::fs::write(&key, "nothing").unwrap();
        let error = Certificates::open(&tls, (&[], None), folder.path(), &mut store).err().unwrap();
        assert_eq!(error.code, Code::InvalidArgument);
    }
}
