//! How the servers behind `store.url` are reached: certificates, and what the sentinels want to hear.

use std::num::NonZeroUsize;
use std::sync::Arc;

use rustls::ClientConfig;

use super::error::Problem;
use super::reader::{Reader, Section};
use super::{Durability, Secret, SentinelLogin, StoreUrl, certificates};
use crate::redis_url::Layout;

const MOST_REPLICAS: usize = 16;

/// What the connections of a `rediss` URL are made with. Certificates without such a URL are refused, and so are files
/// that hold none.
pub(super) fn tls(reader: &mut Reader<'_>, section: &Section<'_>, url: &StoreUrl) -> Option<Arc<ClientConfig>> {
    let is_encrypted = matches!(url, StoreUrl::Redis(url) if url.tls);
    let needs_tls = "only a rediss://, rediss+sentinel:// or rediss+cluster:// store has certificates";
    certificates::read(reader, section, (!is_encrypted).then_some(needs_tls)).map(|tls| tls.config)
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
