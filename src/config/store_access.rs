//! How the servers behind `store.url` are reached: certificates, and what the sentinels want to hear.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::ClientConfig;

use super::error::Problem;
use super::reader::{Reader, Section, Stated};
use super::text;
use super::{Durability, Secret, SentinelLogin, StoreUrl};
use crate::redis_url::Layout;
use crate::tls::{Identity, TlsError, client_config};

const MOST_REPLICAS: usize = 16;

const TLS_KEYS: [&str; 3] = ["ca_file", "client_cert", "client_key"];

/// What the connections of a `rediss` URL are made with. Certificates without such a URL are refused, and so are files
/// that hold none.
pub(super) fn tls(reader: &mut Reader<'_>, section: &Section<'_>, url: &StoreUrl) -> Option<Arc<ClientConfig>> {
    let files = TLS_KEYS.map(|key| pem(reader, section, key));
    if !matches!(url, StoreUrl::Redis(url) if url.tls) {
        let needs_tls = "only a rediss://, rediss+sentinel:// or rediss+cluster:// store has certificates";
        let stated = TLS_KEYS.into_iter().filter(|key| section.states(key));
        let refusals = stated.map(|key| section.refused(key, Problem::Contradiction(needs_tls.into())));
        reader.errors.extend(refusals);
        return None;
    }
    let [authorities, certificates, key] = &files;
    let identity = match (certificates, key) {
        (Some(certificates), Some(key)) => Some(Identity { certificates: &certificates.value, key: &key.value }),
        (None, None) => None,
        (Some(_), None) | (None, Some(_)) => {
            refuse_half_an_identity(reader, section);
            None
        }
    };
    let authorities_pem = authorities.as_ref().map(|file| file.value.as_slice());
    if let Err(error) = client_config(authorities_pem, None, &[]) {
        refuse(reader, authorities.as_ref(), "at least one certificate", &error);
        return None;
    }
    match client_config(authorities_pem, identity, &[]) {
        Ok(config) => Some(config),
        Err(error) => {
            refuse(reader, certificates.as_ref(), "a certificate that `client_key` fits to", &error);
            None
        }
    }
}

/// `sentinel_user` and `sentinel_password`: sentinels have rights of their own.
pub(super) fn sentinel_login(reader: &mut Reader<'_>, section: &Section<'_>, url: &StoreUrl) -> Option<SentinelLogin> {
    let user = reader.text(section, "sentinel_user", |text| Ok(text.to_owned()));
    let password = reader.secret(section, "sentinel_password", |text| Ok(Secret(text.text.clone())));
    let has_sentinels = matches!(url, StoreUrl::Redis(url) if matches!(url.layout, Layout::Sentinel { .. }));
    for key in ["sentinel_user", "sentinel_password"].into_iter().filter(|key| section.states(key) && !has_sentinels) {
        let problem = "only a redis+sentinel:// or rediss+sentinel:// store has sentinels";
        reader.errors.push(section.refused(key, Problem::Contradiction(problem.into())));
    }
    if user.is_some() && !section.states("sentinel_password") {
        let problem = Problem::Missing("`sentinel_user` needs it, best as { env = \"NAME\" }");
        reader.errors.push(section.refused("sentinel_password", problem));
    }
    Some(SentinelLogin { user: user.map(|user| user.value), password: password?.value })
}

/// How many replicas to wait for, which `durability = "replicas"` needs and nothing else has.
pub(super) fn replicas(
    reader: &mut Reader<'_>,
    section: &Section<'_>,
    durability: Option<Durability>,
) -> Option<NonZeroUsize> {
    let stated = reader.number(section, "replicas", |number| {
        let count = usize::try_from(number).ok().filter(|count| *count <= MOST_REPLICAS).and_then(NonZeroUsize::new);
        count.ok_or_else(|| format!("between 1 and {MOST_REPLICAS}").into())
    });
    match (durability == Some(Durability::Replicas), stated) {
        (true, stated) => {
            if !section.states("replicas") {
                let problem = Problem::Missing("how many replicas durability = \"replicas\" waits for: all there are");
                reader.errors.push(section.refused("replicas", problem));
            }
            stated.map(|stated| stated.value)
        }
        (false, Some(stated)) => {
            let problem = "waited for with durability = \"replicas\" only";
            reader.errors.push(stated.refused(Problem::Contradiction(problem.into())));
            None
        }
        (false, None) => None,
    }
}

fn pem(reader: &mut Reader<'_>, section: &Section<'_>, key: &str) -> Option<Stated<Vec<u8>>> {
    let path = reader.text(section, key, |text| Ok(PathBuf::from(text)))?;
    match text::read_bounded(&path.value) {
        Ok(pem) => Some(path.map(|_| pem)),
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

fn refuse(reader: &mut Reader<'_>, file: Option<&Stated<Vec<u8>>>, what: &str, error: &TlsError) {
    if let Some(file) = file {
        reader.errors.push(file.refused(Problem::Accepts(format!("a PEM file with {what}: {error}").into())));
    }
}
