//! `[server] tls`: the gateway's own certificate, and whose clients it lets in.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use sha2::{Digest, Sha256};

use super::error::Problem;
use super::reader::{Reader, Section, Stated};
use super::{grammar, schema, text};
use crate::tls::{Identity, SERVER_PROTOCOLS, ServerTlsError, TlsError, server_config};

/// Certificates from files, which may be others later.
#[derive(Clone, Debug)]
pub struct ServerTls {
    files: Files,
    /// Of what the files said.
    digest: [u8; 32],
    /// For new connections.
    pub config: Arc<ServerConfig>,
}

#[derive(Clone, Debug)]
struct Files {
    cert: PathBuf,
    key: PathBuf,
    client_ca: Option<PathBuf>,
}

/// What the files say.
struct Contents {
    cert: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

/// Why certificates cannot be used, and which file is at fault.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    #[error("{key}: {} cannot be read: {source}", .path.display())]
    Unreadable { key: &'static str, path: PathBuf, source: io::Error },
    #[error("{key}: {} is no PEM file with {wanted}: {source}", .path.display())]
    Unusable { key: &'static str, path: PathBuf, wanted: &'static str, source: TlsError },
}

impl ServerTls {
    fn load(files: Files) -> Result<Self, CertificateError> {
        let contents = files.read()?;
        Ok(Self { digest: contents.digest(), config: contents.config(&files)?, files })
    }

    /// Looks at the files again; `None` if they say what they said. Blocks.
    ///
    /// # Errors
    /// They are others and cannot be used.
    pub fn reload(&self) -> Result<Option<Self>, CertificateError> {
        let contents = self.files.read()?;
        if contents.digest() == self.digest {
            return Ok(None);
        }
        let (digest, config) = (contents.digest(), contents.config(&self.files)?);
        Ok(Some(Self { digest, config, files: self.files.clone() }))
    }

    /// Whether every client has to show a certificate.
    pub fn asks_clients(&self) -> bool {
        self.files.client_ca.is_some()
    }
}

impl fmt::Display for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "certificate {}", self.files.cert.display())?;
        match &self.files.client_ca {
            Some(authorities) => write!(f, ", clients show one of {}", authorities.display()),
            None => Ok(()),
        }
    }
}

impl Files {
    fn read(&self) -> Result<Contents, CertificateError> {
        let read = |key, path: &Path| {
            let unreadable = |source| CertificateError::Unreadable { key, path: path.to_owned(), source };
            text::read_bounded(path).map_err(unreadable)
        };
        let client_ca = self.client_ca.as_deref().map(|path| read("client_ca", path)).transpose()?;
        Ok(Contents { cert: read("cert", &self.cert)?, key: read("key", &self.key)?, client_ca })
    }

    fn at_fault(&self, error: ServerTlsError) -> CertificateError {
        const CERTIFICATE: &str = "at least one certificate";
        let (key, path, wanted, source) = match error {
            ServerTlsError::Certificate(source) => ("cert", self.cert.clone(), CERTIFICATE, source),
            ServerTlsError::Key(source) => ("key", self.key.clone(), "the key of the certificate in `cert`", source),
            ServerTlsError::ClientAuthorities(source) => {
                ("client_ca", self.client_ca.clone().unwrap_or_default(), CERTIFICATE, source)
            }
        };
        CertificateError::Unusable { key, path, wanted, source }
    }
}

impl Contents {
    fn digest(&self) -> [u8; 32] {
        let parts = [self.cert.as_slice(), self.key.as_slice(), self.client_ca.as_deref().unwrap_or_default()];
        let sized = |digest: Sha256, part: &[u8]| digest.chain_update(part.len().to_be_bytes()).chain_update(part);
        parts.into_iter().fold(Sha256::new(), sized).finalize().into()
    }

    fn config(&self, files: &Files) -> Result<Arc<ServerConfig>, CertificateError> {
        let identity = Identity { certificates: &self.cert, key: &self.key };
        server_config(identity, self.client_ca.as_deref(), SERVER_PROTOCOLS).map_err(|error| files.at_fault(error))
    }
}

pub(super) fn read(reader: &mut Reader<'_>, server: &Section<'_>) -> Option<ServerTls> {
    if !server.states("tls") {
        return None;
    }
    let section = &reader.child(server, "tls", &schema::SERVER_TLS);
    let path = grammar::pem_path;
    let cert =
        reader.required(section, "cert", "a PEM file with the certificate, and those that lead to its root", path);
    let key = reader.required(section, "key", "a PEM file with the key of the certificate", path);
    let client_ca = reader.text(section, "client_ca", path);
    let (Some(cert), Some(key)) = (cert, key) else { return None };
    let files = Files {
        cert: cert.value.clone(),
        key: key.value.clone(),
        client_ca: client_ca.as_ref().map(|stated| stated.value.clone()),
    };
    let loaded = ServerTls::load(files);
    let stated: Vec<_> = [Some(cert), Some(key), client_ca].into_iter().flatten().collect();
    loaded.map_err(|error| refuse(reader, section, &stated, error)).ok()
}

/// Beside the path that is at fault.
fn refuse(reader: &mut Reader<'_>, section: &Section<'_>, stated: &[Stated<PathBuf>], error: CertificateError) {
    let (key, problem) = match error {
        CertificateError::Unreadable { key, path, source } => (key, Problem::UnreadableFile { path, error: source }),
        CertificateError::Unusable { key, wanted, source, path: _ } => {
            (key, Problem::Accepts(format!("a PEM file with {wanted}: {source}").into()))
        }
    };
    let key = section.key(key);
    reader.errors.extend(stated.iter().find(|stated| stated.key == key).map(|stated| stated.refused(problem)));
}
