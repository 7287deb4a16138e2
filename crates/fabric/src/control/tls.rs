//! TLS between nodes: TLS 1.3 only, each side by rustls and *ring*.
//!
//! There is no certificate authority. Agents make certificates for themselves ([`Identity`]), and a client trusts
//! exactly the certificate that it received over a connection which it trusts already ([`Trust`]). For that reason
//! names, dates and other certificates are ignored. Sessions are not resumed: each connection verifies again.

use std::sync::Arc;

use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PKCS_ED25519};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, UnbufferedClientConnection};
use rustls::crypto::ring::cipher_suite::{
    TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256,
};
use rustls::crypto::ring::kx_group::X25519;
use rustls::crypto::ring::sign::any_eddsa_type;
use rustls::crypto::{
    CryptoProvider, GetRandomFailed, KeyProvider, SecureRandom, WebPkiSupportedAlgorithms,
    verify_tls13_signature,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::{ParsedCertificate, UnbufferedServerConnection};
use rustls::sign::SigningKey;
use rustls::version::TLS13;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, ServerConfig, SignatureScheme};
use sublet_proto::{Code, Error};

use crate::FabricError;

mod buffer;
mod parts;
mod session;
mod stream;

pub(crate) use parts::Plaintext;
pub use stream::TlsStream;

/// A certificate and its key, as an agent makes them for itself or for a lease's workers.
///
/// ```
/// let identity = sublet_fabric::tls::Identity::generate("agent of node7")?;
/// assert!(!identity.certificate.is_empty() && !identity.private_key.is_empty());
/// # Ok::<(), sublet_proto::Error>(())
/// ```
#[derive(Clone)]
pub struct Identity {
    /// The certificate, as DER.
    pub certificate: Vec<u8>,
    /// The private key, as PKCS #8 in DER.
    pub private_key: Vec<u8>,
}

impl Identity {
    /// Makes a new identity. The name is only for people who inspect the certificate.
    pub fn generate(name: &str) -> Result<Identity, Error> {
        let made = || {
            let key = KeyPair::generate_for(&PKCS_ED25519)?;
            let mut params = CertificateParams::default();
            params.distinguished_name = DistinguishedName::new();
            params.distinguished_name.push(DnType::CommonName, name);
            Ok((params.self_signed(&key)?.der().to_vec(), key.serialize_der()))
        };
        let (certificate, private_key) = made().map_err(|error: rcgen::Error| {
            Error::new(Code::Internal, format!("a certificate cannot be made: {error}"))
        })?;
        Ok(Identity { certificate, private_key })
    }

    fn session(&self) -> Result<UnbufferedServerConnection, rustls::Error> {
        let key = PrivatePkcs8KeyDer::from(self.private_key.clone());
        let mut configuration = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])?
            .with_no_client_auth()
            .with_single_cert(vec![self.certificate.clone().into()], key.into())?;
        configuration.send_tls13_tickets = 0;
        UnbufferedServerConnection::new(Arc::new(configuration))
    }
}

impl std::fmt::Debug for Identity {
    /// Formats the identity without its key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity").field("certificate_bytes", &self.certificate.len()).finish_non_exhaustive()
    }
}

/// The one certificate that a client accepts.
#[derive(Clone, Debug)]
pub struct Trust(CertificateDer<'static>);

impl Trust {
    /// Trusts this certificate (DER), byte for byte.
    pub fn pinned(certificate: &[u8]) -> Result<Trust, FabricError> {
        let pinned = CertificateDer::from(certificate.to_vec());
        match ParsedCertificate::try_from(&pinned) {
            Ok(_) => Ok(Trust(pinned)),
            Err(error) => Err(FabricError::Protocol(format!(
                "the {} bytes of the certificate to trust are not a certificate: {error}",
                certificate.len()
            ))),
        }
    }

    fn session(self) -> Result<UnbufferedClientConnection, rustls::Error> {
        let provider = provider();
        let pinned = PinnedCertificate { certificate: self.0, provider: Arc::clone(&provider) };
        let mut configuration = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(pinned))
            .with_no_client_auth();
        configuration.resumption = Resumption::disabled();
        configuration.enable_sni = false;
        let unused = ServerName::try_from("sublet").expect("a name of letters is one");
        UnbufferedClientConnection::new(Arc::new(configuration), unused)
    }
}

/// Signatures that both sides verify: those of the keys that [`Identity::generate`] makes.
static SIGNATURES: WebPkiSupportedAlgorithms = WebPkiSupportedAlgorithms {
    all: &[webpki::ring::ED25519],
    mapping: &[(SignatureScheme::ED25519, &[webpki::ring::ED25519])],
};

/// Cryptography of *ring*, with the cipher first that is the fastest where the processor has instructions for it. Identities
/// have keys of Ed25519, and the key exchange is X25519: the tables and code of other curves, and of RSA, are in no program
/// that uses no other TLS than this.
fn provider() -> Arc<CryptoProvider> {
    let cipher_suites =
        vec![TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256];
    Arc::new(CryptoProvider {
        cipher_suites,
        kx_groups: vec![X25519],
        signature_verification_algorithms: SIGNATURES,
        secure_random: &SystemRandom,
        key_provider: &IdentityKeys,
    })
}

/// Random numbers of the kernel.
#[derive(Debug)]
struct SystemRandom;

impl SecureRandom for SystemRandom {
    fn fill(&self, buffer: &mut [u8]) -> Result<(), GetRandomFailed> {
        getrandom::fill(buffer).map_err(|_| GetRandomFailed)
    }
}

/// Reads the private keys of identities.
#[derive(Debug)]
struct IdentityKeys;

impl KeyProvider for IdentityKeys {
    fn load_private_key(&self, key: PrivateKeyDer<'static>) -> Result<Arc<dyn SigningKey>, rustls::Error> {
        match &key {
            PrivateKeyDer::Pkcs8(key) => any_eddsa_type(key),
            _ => Err(rustls::Error::General("the private key of an identity is not in PKCS #8".into())),
        }
    }
}

/// Accepts one certificate, and requires that its owner proves possession of the key in each handshake.
#[derive(Debug)]
struct PinnedCertificate {
    certificate: CertificateDer<'static>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for PinnedCertificate {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        match *end_entity == self.certificate {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("TLS 1.2 is not spoken here".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(
            message,
            certificate,
            signature,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests;
