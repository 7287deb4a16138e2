//! A registry, accessed by the distribution protocol over HTTP/1.1.
//!
//! Everything that a registry sends is bounded: documents, headers and tokens have a largest size, blobs the announced
//! size, redirections a number, and each answer a time limit. The bytes of a blob have to come at a minimum rate: the size
//! that a manifest announces earns no time.

mod challenge;
mod elsewhere;
mod paced;
mod token;

use std::io::{self, Read};
use std::sync::Arc;
use std::time::Duration;

use ureq::config::RedirectAuthHeaders;
use ureq::http::{Response, StatusCode, header};
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::unversioned::transport::DefaultConnector;
use ureq::{Agent, Body};

use crate::credentials::Credentials;
use crate::digest::Digest;
use crate::error::{DocumentPart, ImageError};
use crate::limits::MAX_DOCUMENT_BYTES;
use crate::manifest::{Descriptor, accepted_types};
use crate::reference::Reference;
use crate::source::{BlobSource, describe};

use challenge::Challenge;
use elsewhere::Elsewhere;
use paced::{MAX_TIME, PacedBody};

const CONNECT_TIME: Duration = Duration::from_secs(10);
const ANSWER_TIME: Duration = Duration::from_secs(60);
const MAX_REDIRECTIONS: u32 = 5;
const MAX_HEADER_BYTES: usize = 64 << 10;

/// Way to access a registry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegistryAccess {
    /// Credentials for the registry.
    pub credentials: Credentials,
    /// Transport of the requests.
    pub transport: RegistryTransport,
}

/// Transport of requests to a registry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RegistryTransport {
    /// TLS, with the certificates that this machine trusts; plain HTTP for registries of this machine (`localhost`).
    #[default]
    Safe,
    /// TLS, and never with this machine itself, for names from untrusted sources.
    Elsewhere,
    /// Plain HTTP. Everyone on the network path reads credentials and images, and can block images, but cannot change
    /// pinned images.
    Plain,
}

/// Resolves a name to its current digest, by which a package can pin it. For an image for several kinds of machines
/// this is the digest of the index, so that it means the same on all of them.
pub fn resolve(reference: &Reference, access: &RegistryAccess) -> Result<Digest, ImageError> {
    match reference.digest {
        Some(digest) => Ok(digest),
        None => Ok(Registry::new(reference, access)?.root(reference)?.digest),
    }
}

/// Resolves a name as a user writes it to its current digest, with the user's credentials.
pub fn current_digest(name: &str) -> Result<Digest, ImageError> {
    let reference: Reference = name.parse()?;
    let credentials = Credentials::of_docker(&reference)?;
    resolve(&reference, &RegistryAccess { credentials, ..RegistryAccess::default() })
}

/// One repository of one registry.
pub(crate) struct Registry {
    agent: Agent,
    registry: String,
    /// `https://HOST/v2/REPOSITORY`.
    base: String,
    repository: String,
    is_plain: bool,
    credentials: Credentials,
    /// Value of the header to send, once the registry has demanded authentication.
    authorization: Option<String>,
    /// Document to which the name has led, so that it is fetched once.
    root: Option<(Descriptor, Vec<u8>)>,
}

impl Registry {
    pub(crate) fn new(reference: &Reference, access: &RegistryAccess) -> Result<Registry, ImageError> {
        let is_plain = match access.transport {
            RegistryTransport::Safe => reference.is_local(),
            RegistryTransport::Elsewhere => false,
            RegistryTransport::Plain => true,
        };
        let scheme = if is_plain { "http" } else { "https" };
        Ok(Registry {
            agent: agent(reference, access.transport, is_plain),
            registry: reference.registry.clone(),
            base: format!("{scheme}://{}/v2/{}", reference.host(), reference.repository),
            repository: reference.repository.clone(),
            is_plain,
            credentials: access.credentials.clone(),
            authorization: None,
            root: None,
        })
    }

    /// Fetches the index or manifest to which a name leads, and verifies its digest if the name has one.
    pub(crate) fn root(&mut self, reference: &Reference) -> Result<Descriptor, ImageError> {
        let wanted = reference.wanted();
        let mut response = self.get(&format!("manifests/{wanted}"), ANSWER_TIME)?;
        let bytes = self.short(&mut response)?;
        let found = describe(&bytes);
        if let Some(expected) = reference.digest.filter(|expected| *expected != found.digest) {
            return Err(ImageError::DigestMismatch {
                part: DocumentPart::Manifest,
                expected,
                actual: found.digest,
            });
        }
        self.root = Some((found.clone(), bytes));
        Ok(found)
    }

    /// Sends a request, with credentials once the registry demands them.
    fn get(&mut self, what: &str, body_time: Duration) -> Result<Response<Body>, ImageError> {
        let response = self.try_get(what, body_time)?;
        if response.status() != StatusCode::UNAUTHORIZED {
            return self.checked(what, response);
        }
        let challenges = response.headers().get_all(header::WWW_AUTHENTICATE);
        let challenges = challenges.iter().filter_map(|header| header.to_str().ok());
        let challenges: Vec<_> = challenges.filter_map(Challenge::parse).collect();
        drop(response);
        self.authorization = self.authorize(&challenges)?;
        let response = self.try_get(what, body_time)?;
        self.checked(what, response)
    }

    fn try_get(&self, what: &str, body_time: Duration) -> Result<Response<Body>, ImageError> {
        let mut request = self.agent.get(format!("{}/{what}", self.base));
        if what.starts_with("manifests/") {
            request = request.header(header::ACCEPT, accepted_types().collect::<Vec<_>>().join(", "));
        }
        if let Some(authorization) = &self.authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        let sent = request.config().timeout_recv_body(Some(body_time)).build().call();
        sent.map_err(|error| self.unreachable(error))
    }

    fn checked(&self, what: &str, response: Response<Body>) -> Result<Response<Body>, ImageError> {
        let (registry, what) = (self.registry.clone(), format!("{}/{what}", self.repository));
        match response.status().as_u16() {
            200 => Ok(response),
            404 => Err(ImageError::NotInRegistry { registry, what }),
            status @ (401 | 403) => Err(ImageError::Refused { registry, status }),
            status => Err(ImageError::Status { registry, what, status }),
        }
    }

    /// Reads the body of an answer that is not a blob.
    fn short(&self, response: &mut Response<Body>) -> Result<Vec<u8>, ImageError> {
        let mut bytes = Vec::new();
        let reader = response.body_mut().with_config().limit(u64::MAX).reader();
        let read = reader.take(MAX_DOCUMENT_BYTES + 1).read_to_end(&mut bytes);
        read.map_err(|error| self.unreachable(error.into()))?;
        match bytes.len() as u64 > MAX_DOCUMENT_BYTES {
            true => Err(ImageError::TooLarge {
                part: DocumentPart::Manifest,
                limit: MAX_DOCUMENT_BYTES,
                unit: "bytes",
            }),
            false => Ok(bytes),
        }
    }

    fn unreachable(&self, error: ureq::Error) -> ImageError {
        ImageError::Unreachable { registry: self.registry.clone(), source: Box::new(error) }
    }

    fn nonsense(&self, problem: &'static str) -> ImageError {
        ImageError::Nonsense { registry: self.registry.clone(), problem }
    }
}

impl BlobSource for Registry {
    fn open<'a>(
        &'a mut self,
        part: DocumentPart,
        blob: &Descriptor,
    ) -> Result<Box<dyn Read + 'a>, ImageError> {
        let is_root = self.root.as_ref().is_some_and(|(root, _)| root.digest == blob.digest);
        if is_root && part == DocumentPart::Manifest {
            let bytes = self.root.as_ref().map(|(_, bytes)| bytes.as_slice());
            return Ok(Box::new(bytes.unwrap_or_default()));
        }
        let kind = if part == DocumentPart::Manifest { "manifests" } else { "blobs" };
        let response = self.get(&format!("{kind}/{}", blob.digest), MAX_TIME)?;
        Ok(Box::new(PacedBody::new(response.into_body().into_with_config().limit(u64::MAX).reader())))
    }

    fn damaged(&self, _part: DocumentPart, error: io::Error) -> ImageError {
        self.unreachable(error.into())
    }
}

fn agent(reference: &Reference, transport: RegistryTransport, is_plain: bool) -> Agent {
    let mut config = Agent::config_builder()
        .http_status_as_error(false)
        .https_only(!is_plain)
        .max_redirects(MAX_REDIRECTIONS)
        .redirect_auth_headers(RedirectAuthHeaders::SameHost)
        .max_response_header_size(MAX_HEADER_BYTES)
        .user_agent(concat!("sublet/", env!("CARGO_PKG_VERSION")))
        .timeout_resolve(Some(CONNECT_TIME))
        .timeout_connect(Some(CONNECT_TIME))
        .timeout_recv_response(Some(ANSWER_TIME))
        .timeout_per_read(Some(ANSWER_TIME));
    if !is_plain {
        config = config.tls_config(tls());
    }
    // The environment may name a proxy, which would resolve the name to another machine.
    if reference.is_local() {
        config = config.proxy(None);
    }
    match transport {
        RegistryTransport::Elsewhere => {
            Agent::with_parts(config.build(), DefaultConnector::default(), Elsewhere::default())
        }
        _ => config.build().into(),
    }
}

/// TLS settings with the certificates that this machine trusts, except those that cannot be read.
fn tls() -> TlsConfig {
    let found = rustls_native_certs::load_native_certs().certs;
    let certificates: Vec<_> = found.iter().map(|found| Certificate::from_der(found).to_owned()).collect();
    TlsConfig::builder()
        .root_certs(RootCerts::new_with_certs(&certificates))
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .build()
}
