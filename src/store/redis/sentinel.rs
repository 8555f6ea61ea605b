//! Where the master is, by what its sentinels say.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use redis::{FromRedisValue, Pipeline, Value};
use tokio::task::JoinSet;

use crate::redis_url::Host;
use crate::store::redis::fitness::OpenError;
use crate::store::redis::survey::{Said, Witness, freshest};
use crate::store::redis::wire::Wiring;

/// The sentinels that watch one master.
#[derive(Clone)]
pub(super) struct Sentinels {
    master: String,
    sentinels: Vec<Arc<Witness>>,
    patience: Duration,
}

impl Sentinels {
    pub(super) fn master_name(&self) -> &str {
        &self.master
    }

    /// Nobody is asked yet; `patience` is for all of them together.
    pub(super) fn new(hosts: Vec<Host>, master: String, wiring: &Wiring, patience: Duration) -> Self {
        let sentinels = hosts.into_iter().map(|host| Arc::new(Witness::new(host, wiring.clone()))).collect();
        Self { master, sentinels, patience }
    }

    /// # Errors
    /// No sentinel answered, or none of them knows a master of that name.
    pub(super) async fn master(&self) -> Result<Host, OpenError> {
        let mut asking = JoinSet::new();
        for sentinel in &self.sentinels {
            asking.spawn(ask(Arc::clone(sentinel), self.master.clone()));
        }
        freshest(asking, self.patience).await
    }
}

/// The address comes from one question and the epoch from the other: during a failover only the first names the server
/// that is being promoted.
async fn ask(sentinel: Arc<Witness>, master: String) -> Result<Said<Host>, OpenError> {
    let mut questions = Pipeline::new();
    questions.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(&master);
    questions.cmd("SENTINEL").arg("MASTERS");
    let strange = || OpenError::Unreachable("a sentinel gave an answer that is none".into());
    let answers = sentinel.ask(&questions).await?;
    let [address, masters] = <[Value; 2]>::try_from(answers).map_err(|_| strange())?;
    if address == Value::Nil {
        return Err(OpenError::NoSuchMaster(master));
    }
    let (name, port) = FromRedisValue::from_redis_value(address).map_err(|_| strange())?;
    let masters: Vec<HashMap<String, String>> = FromRedisValue::from_redis_value(masters).map_err(|_| strange())?;
    let ours = masters.iter().find(|fields| fields.get("name") == Some(&master));
    let epoch = ours.and_then(|fields| fields.get("config-epoch")?.parse().ok()).unwrap_or_default();
    Ok(Said { epoch, what: Host { name, port } })
}
