//! What operators say about pauses, and what they are shown.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::pausing::{PauseSnapshot, Pausing, hold_until, parsed};
use super::{Gates, locked};
use crate::clock::Timestamp;
use crate::retry::pause::Whom;
use crate::store::{Store, StoreError};

/// An operator's word: hold calls back for so long, or no longer. It is for the service at the address of the upstream, so
/// also for other upstreams that lead there.
pub struct PauseCommand {
    pub upstream: String,
    /// As a list shows it; without it everybody's.
    pub credential: Option<String>,
    /// Zero ends the pause.
    pub wait: Duration,
}

/// Why it cannot be done.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    #[error("no route leads to an upstream of this name")]
    Upstream,
    #[error("a credential is named by the digest that GET /v1/pauses shows")]
    Credential,
    /// What the store says in the end counts here, too: it may still have a longer pause.
    #[error("this gateway does so for now, and the others have not heard of it: say it again when the store answers")]
    Store(#[from] StoreError),
}

/// A pause, and whose.
#[derive(Debug, Serialize)]
pub struct PauseRow {
    pub upstream: String,
    #[serde(flatten)]
    pub pause: PauseSnapshot,
}

impl Gates {
    /// Every pause of this gateway.
    pub fn pauses(&self) -> Vec<PauseRow> {
        let upstreams = locked(&self.upstreams);
        let rows = upstreams.iter().flat_map(|(name, upstream)| {
            let pauses = upstream.pausing.snapshot().into_iter();
            pauses.map(|pause| PauseRow { upstream: name.clone(), pause })
        });
        rows.collect()
    }

    /// Does what an operator says, and tells the store.
    ///
    /// # Errors
    /// There is nothing of that name, or the store has not taken it.
    pub async fn command(&self, store: &dyn Store, command: &PauseCommand) -> Result<(), CommandError> {
        let pausing = self.pausing(&command.upstream).ok_or(CommandError::Upstream)?;
        let named = command.credential.as_deref().map(parsed).map(|whom| whom.ok_or(CommandError::Credential));
        let named = named.transpose()?;
        if !command.wait.is_zero() {
            let whom = named.unwrap_or(Whom::Everybody);
            let name = pausing.name(whom);
            pausing.set(whom, command.wait);
            hold_until(store, &name, stored_end(store, &name).await?, store.now().after(command.wait)).await?;
            pausing.stored(whom);
            return Ok(());
        }
        let whoms = named.map_or_else(|| pausing.everyone(), |whom| vec![whom]);
        whoms.iter().for_each(|whom| pausing.clear(*whom));
        let names: HashSet<_> = whoms.into_iter().map(|whom| pausing.name(whom)).collect();
        for (name, end) in store.held().await?.into_iter().filter(|(name, _)| names.contains(name)) {
            store.replace_hold(&name, end, None).await?;
        }
        Ok(())
    }

    fn pausing(&self, upstream: &str) -> Option<Arc<Pausing>> {
        locked(&self.upstreams).get(upstream).map(|upstream| Arc::clone(&upstream.pausing))
    }
}

async fn stored_end(store: &dyn Store, name: &str) -> Result<Option<Timestamp>, StoreError> {
    Ok(store.held().await?.into_iter().find_map(|(held, end)| (held == name).then_some(end)))
}
