//! Whom we trust, and who we say we are, when an upstream or a Redis speaks TLS.

use std::sync::Arc;

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

/// A client certificate in PEM: the chain, leaf first, and its key.
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
    #[error("not a certificate or key that can be used")]
    Unusable(#[source] rustls::Error),
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
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Unusable)?
        .with_root_certificates(roots(authorities)?);
    let mut config = match identity {
        Some(Identity { certificates: chain, key }) => builder
            .with_client_auth_cert(certificates(chain)?, PrivateKeyDer::from_pem_slice(key).map_err(TlsError::Pem)?)
            .map_err(TlsError::Unusable)?,
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    Ok(Arc::new(config))
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
