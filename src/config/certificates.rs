//! `ca_file`, `client_cert`, `client_key`: whom we trust where we connect to, and who we say we are there.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::ClientConfig;

use super::error::Problem;
use super::reader::{Reader, Section, Stated};
use super::{grammar, text};
use crate::tls::{Identity, TlsError, client_config};

const KEYS: [&str; 3] = ["ca_file", "client_cert", "client_key"];

/// What TLS connections are made with.
#[derive(Clone, Debug)]
pub struct ClientTls {
    pub config: Arc<ClientConfig>,
    /// Only these authorities are trusted; `None` means the public ones.
    trusted: Option<PathBuf>,
    shown: Option<PathBuf>,
}

/// A file that is stated, and what it says.
struct Pem {
    path: Stated<PathBuf>,
    bytes: Vec<u8>,
}

impl ClientTls {
    /// Whether anything of it is stated.
    pub fn is_stated(&self) -> bool {
        self.trusted.is_some() || self.shows_certificate()
    }

    /// Whether the other end is told who we are.
    pub fn shows_certificate(&self) -> bool {
        self.shown.is_some()
    }
}

impl fmt::Display for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.trusted {
            Some(authorities) => write!(f, "trusts {}", authorities.display())?,
            None => f.write_str("trusts the public authorities")?,
        }
        match &self.shown {
            Some(certificate) => write!(f, ", shows {}", certificate.display()),
            None => Ok(()),
        }
    }
}

/// What is stated for connections that speak TLS. Where they do not, `plain` says so of each file that is stated.
pub(super) fn read(reader: &mut Reader<'_>, section: &Section<'_>, plain: Option<&'static str>) -> Option<ClientTls> {
    let paths = KEYS.map(|key| reader.text(section, key, grammar::pem_path));
    if let Some(problem) = plain {
        let refusals = paths.iter().flatten().map(|path| path.refused(Problem::Contradiction(problem.into())));
        reader.errors.extend(refusals);
        return None;
    }
    let [authorities, certificates, key] = paths.map(|path| path.and_then(|path| pem(reader, path)));
    let identity = match (&certificates, &key) {
        (Some(certificates), Some(key)) => Some(Identity { certificates: &certificates.bytes, key: &key.bytes }),
        (None, None) => None,
        (Some(_), None) | (None, Some(_)) => {
            refuse_half_an_identity(reader, section);
            None
        }
    };
    let trusted = authorities.as_ref().map(|file| file.bytes.as_slice());
    if let Err(error) = client_config(trusted, None, &[]) {
        refuse(reader, authorities.as_ref(), "at least one certificate", &error);
        return None;
    }
    match client_config(trusted, identity, &[]) {
        Ok(config) => {
            let [trusted, shown] = [authorities, certificates].map(|file| file.map(|file| file.path.value));
            Some(ClientTls { config, trusted, shown })
        }
        Err(error) => {
            refuse(reader, certificates.as_ref(), "a certificate that `client_key` fits to", &error);
            None
        }
    }
}

fn pem(reader: &mut Reader<'_>, path: Stated<PathBuf>) -> Option<Pem> {
    match text::read_bounded(&path.value) {
        Ok(bytes) => Some(Pem { path, bytes }),
        Err(error) => {
            reader.errors.push(path.refused(Problem::UnreadableFile { path: path.value.clone(), error }));
            None
        }
    }
}

fn refuse_half_an_identity(reader: &mut Reader<'_>, section: &Section<'_>) {
    let absent = ["client_cert", "client_key"].into_iter().find(|key| !section.states(key));
    if let Some(absent) = absent {
        let problem = Problem::Missing("`client_cert` and `client_key` go together");
        reader.errors.push(section.refused(absent, problem));
    }
}

fn refuse(reader: &mut Reader<'_>, file: Option<&Pem>, what: &str, error: &TlsError) {
    if let Some(file) = file {
        reader.errors.push(file.path.refused(Problem::Accepts(format!("a PEM file with {what}: {error}").into())));
    }
}
