//! Draws the map of a cluster, by what its nodes say.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use redis::{FromRedisValue, Pipeline, Value};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::redis_url::Host;
use crate::store::redis::cluster::Cluster;
use crate::store::redis::fitness::OpenError;
use crate::store::redis::keeper::{LOOK, Terms};
use crate::store::redis::map::{Map, Ranges};
use crate::store::redis::slots::ranges;
use crate::store::redis::survey::{Said, Witness, freshest};

/// Between two questions for the map, however wrong it is.
const BREATH: Duration = Duration::from_millis(50);

/// What watches over a cluster: its map and its memory. It ends with this.
pub(super) struct Watch {
    _survey: AbortOnDropHandle<()>,
    _examination: AbortOnDropHandle<()>,
}

struct Surveyor {
    cluster: Arc<Cluster>,
    seeds: Vec<Arc<Witness>>,
    /// Those of the last map.
    masters: HashMap<Host, Arc<Witness>>,
}

/// Asks `seeds` for the map and connects to all masters in it, and goes on trying if the cluster is away.
///
/// # Errors
/// A server answered and must not be used.
pub(super) async fn open(seeds: Vec<Host>, terms: Terms) -> Result<(Arc<Cluster>, Watch), OpenError> {
    let seeds = seeds.into_iter().map(|host| Arc::new(Witness::new(host, terms.wiring.clone()))).collect();
    let cluster = Arc::new(Cluster::new(terms));
    let surveyor = Surveyor { cluster: Arc::clone(&cluster), seeds, masters: HashMap::new() };
    match surveyor.ask().await {
        Ok(ranges) => {
            let map = Map::open(ranges, &cluster.terms).await?;
            cluster.map.send_replace(map);
            drop(cluster.examine().await);
        }
        Err(error) if error.may_pass() => cluster.map.send_modify(|map| map.failure = Some(Arc::new(error))),
        Err(error) => return Err(error),
    }
    let _survey = AbortOnDropHandle::new(tokio::spawn(surveyor.keep_looking()));
    let _examination = AbortOnDropHandle::new(tokio::spawn(Arc::clone(&cluster).keep_examining()));
    Ok((cluster, Watch { _survey, _examination }))
}

impl Surveyor {
    async fn keep_looking(mut self) {
        loop {
            // Whichever comes first; a survey is the same after either.
            drop(timeout(LOOK, self.cluster.is_wrong.notified()).await);
            self.look().await;
            sleep(BREATH).await;
        }
    }

    async fn look(&mut self) {
        match self.ask().await {
            Ok(ranges) => self.redraw(ranges),
            Err(error) => {
                tracing::debug!(error = &error as &dyn std::error::Error, "no map of the cluster");
                self.cluster.map.send_if_modified(|map| {
                    map.failure = Some(Arc::new(error));
                    false
                });
            }
        }
    }

    fn redraw(&mut self, ranges: Ranges) {
        let (terms, now) = (&self.cluster.terms, self.cluster.now());
        self.cluster.map.send_if_modified(|map| map.redraw(ranges, terms, now));
        let map = self.cluster.map.borrow();
        let witness = |host: &Host| {
            let known = self.masters.get(host).cloned();
            known.unwrap_or_else(|| Arc::new(Witness::new(host.clone(), terms.wiring.clone())))
        };
        let masters = map.hosts().map(|host| (host.clone(), witness(host))).collect();
        self.masters = masters;
    }

    /// All masters that are known, and the seeds.
    async fn ask(&self) -> Result<Ranges, OpenError> {
        let mut asking = JoinSet::new();
        let seeds = self.seeds.iter().filter(|seed| !self.masters.contains_key(&seed.host));
        for witness in self.masters.values().chain(seeds) {
            asking.spawn(ask(Arc::clone(witness)));
        }
        freshest(asking, self.cluster.terms.timeout / 2).await
    }
}

async fn ask(node: Arc<Witness>) -> Result<Said<Ranges>, OpenError> {
    let mut questions = Pipeline::new();
    questions.cmd("CLUSTER").arg("INFO").cmd("CLUSTER").arg("SLOTS");
    let answers = node.ask(&questions).await?;
    let strange = || OpenError::Unreachable("a node gave an answer that is none".into());
    let [info, slots] = <[Value; 2]>::try_from(answers).map_err(|_| strange())?;
    let info = String::from_redis_value(info).map_err(|_| strange())?;
    let what = ranges(&slots, &node.host).ok_or_else(strange)?;
    let mut fields: HashMap<&str, &str> = info.lines().filter_map(|line| line.trim().split_once(':')).collect();
    // One that is cut off from most others knows no better than to wait.
    if fields.remove("cluster_state") != Some("ok") || what.is_empty() {
        return Err(OpenError::Unreachable("the cluster is not in order".into()));
    }
    let epoch = fields.remove("cluster_current_epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or_default();
    Ok(Said { epoch, what })
}
