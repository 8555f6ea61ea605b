//! Whom we trust, and who we say we are, when we speak TLS: to an upstream or a Redis, and towards agents.

#[cfg(test)]
pub mod authority;

use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ClientConfig, InconsistentKeys, RootCertStore, ServerConfig};

/// What agents are offered by ALPN, best first.
pub const SERVER_PROTOCOLS: &[&str] = &["h2", "http/1.1"];

/// A certificate in PEM: the chain, leaf first, and its key.
#[derive(Clone, Copy)]
pub struct Identity<'a> {
    pub certificates: &'a [u8],
    pub key: &'a [u8],
}

/// Why TLS settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("not a PEM file")]
    Pem(#[source] pem::Error),
    #[error("no certificate in the PEM file")]
    NoCertificate,
    #[error("no private key in the PEM file, or one that is encrypted")]
    NoKey,
    #[error("the key of another certificate")]
    OtherKey,
    #[error("not a certificate or key that can be used")]
    Unusable(#[source] rustls::Error),
}

/// Which part of a server's settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ServerTlsError {
    #[error("its certificate")]
    Certificate(#[source] TlsError),
    #[error("the key of its certificate")]
    Key(#[source] TlsError),
    #[error("the authorities of its clients")]
    ClientAuthorities(#[source] TlsError),
}

/// TLS 1.2 and 1.3 with the given protocols by ALPN, certificates always checked. Early data stays off: it may be replayed by
/// anybody on the way.
///
/// With `authorities` (PEM) only these are trusted, else the public ones that browsers trust.
///
/// # Errors
/// The PEM bytes hold nothing usable.
pub fn client_config(
    authorities: Option<&[u8]>,
    identity: Option<Identity<'_>>,
    protocols: &[&str],
) -> Result<Arc<ClientConfig>, TlsError> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(unusable)?
        .with_root_certificates(roots(authorities)?);
    let mut config = match identity {
        Some(Identity { certificates: chain, key }) => {
            builder.with_client_auth_cert(certificates(chain)?, private_key(key)?).map_err(unusable)?
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = names(protocols);
    Ok(Arc::new(config))
}

/// The same with other protocols by ALPN.
pub fn offering(config: &ClientConfig, protocols: &[&str]) -> Arc<ClientConfig> {
    let mut config = config.clone();
    config.alpn_protocols = names(protocols);
    Arc::new(config)
}

/// TLS 1.2 and 1.3 for those who connect to us, with the given protocols by ALPN and without early data.
///
/// With `client_authorities` (PEM) a client without a certificate of theirs is refused in the handshake. Such a
/// certificate is shown on every connection: none is taken up again by a ticket that may outlive it.
///
/// # Errors
/// The PEM bytes hold nothing usable, or not the key of the certificate.
pub fn server_config(
    identity: Identity<'_>,
    client_authorities: Option<&[u8]>,
    protocols: &[&str],
) -> Result<Arc<ServerConfig>, ServerTlsError> {
    let chain = certificates(identity.certificates).map_err(ServerTlsError::Certificate)?;
    let key = private_key(identity.key).map_err(ServerTlsError::Key)?;
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| ServerTlsError::Certificate(unusable(error)))?;
    let builder = match client_authorities {
        Some(authorities) => builder.with_client_cert_verifier(client_verifier(authorities)?),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_single_cert(chain, key).map_err(|error| match error {
        rustls::Error::InvalidCertificate(_) => ServerTlsError::Certificate(unusable(error)),
        error => ServerTlsError::Key(unusable(error)),
    })?;
    match client_authorities {
        Some(_) => {
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        }
        None => config.ticketer = ring::Ticketer::new().map_err(|error| ServerTlsError::Key(unusable(error)))?,
    }
    config.alpn_protocols = names(protocols);
    Ok(Arc::new(config))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn client_verifier(authorities: &[u8]) -> Result<Arc<dyn ClientCertVerifier>, ServerTlsError> {
    let roots = roots(Some(authorities)).map_err(ServerTlsError::ClientAuthorities)?;
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider()).build();
    verifier.map_err(|_without_roots| ServerTlsError::ClientAuthorities(TlsError::NoCertificate))
}

fn roots(authorities: Option<&[u8]>) -> Result<RootCertStore, TlsError> {
    let Some(authorities) = authorities else {
        return Ok(webpki_roots::TLS_SERVER_ROOTS.iter().cloned().collect());
    };
    let mut store = RootCertStore::empty();
    for certificate in certificates(authorities)? {
        store.add(certificate).map_err(TlsError::Unusable)?;
    }
    Ok(store)
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>().map_err(TlsError::Pem)?;
    if found.is_empty() { Err(TlsError::NoCertificate) } else { Ok(found) }
}

fn private_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|error| match error {
        pem::Error::NoItemsFound => TlsError::NoKey,
        broken => TlsError::Pem(broken),
    })
}

fn unusable(error: rustls::Error) -> TlsError {
    match error {
        rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => TlsError::OtherKey,
        other => TlsError::Unusable(other),
    }
}

fn names(protocols: &[&str]) -> Vec<Vec<u8>> {
    protocols.iter().map(|name| name.as_bytes().to_vec()).collect()
}
