//! What runs once in a process, beside the threads that serve agents: signals, the operators' API, probes, the sweep.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::{AppError, Common, listen};
use crate::clock::Uptime;
use crate::config::{Config, StoreUrl};
use crate::engine::Engine;
use crate::server::admin::AdminState;
use crate::server::body::ResponseBody;
use crate::server::health::{Health, Readiness, store_health};
use crate::server::listener::{Limits, Listener, Peer};
use crate::server::request_body::RequestBody;
use crate::store::Store;
use crate::worker::{advice, alerts, certificates, pauses, rules, space, sweep};

/// Connections of operators and probes: they never wait behind agents.
const PLACES: usize = 256;

/// How long a prober may be silent. Nobody needs a name to connect to the health port, and a few hundred silent ones
/// would make every probe late.
const PROBE_PATIENCE: Duration = Duration::from_secs(2);

/// A terminal sends its signal to a gateway and to what started it, which may send it on: that is one word, not two.
const SAME_WORD: Duration = Duration::from_secs(1);

/// The tasks of the first thread that are not requests of agents.
pub(super) struct Control {
    readiness: Arc<Readiness>,
    store: Arc<dyn Store>,
    signals: Signals,
    /// Ended last, so that probes can see the gateway drain.
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

/// What asks a process to end.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Control {
    pub(super) fn start(common: &Arc<Common>, engine: &Arc<Engine>) -> Result<Self, AppError> {
        let (stop, readiness, mut tasks) = (CancellationToken::new(), Arc::new(Readiness::default()), JoinSet::new());
        let health = Health::new(Arc::clone(&readiness), Arc::clone(engine.store()));
        let admin = AdminState { engine: Arc::clone(engine) };
        let server = &common.shared.config.server;
        let limits = Limits::from(server);
        let probers = Limits { header_timeout: limits.header_timeout.min(PROBE_PATIENCE), ..limits };
        tasks.spawn(serve(("health", server.health), probers, &stop, move |request, _| {
            let health = health.clone();
            async move { health.answer(request.method(), request.uri().path(), request.uri().query()).await }
        })?);
        tasks.spawn(serve(("admin", server.admin), limits, &stop, move |request, peer| {
            let (admin, (head, _)) = (admin.clone(), request.into_parts());
            async move { admin.answer(&head, &peer).await }
        })?);
        if let (Some(tls), Some(current)) = (&server.tls, &common.certificates) {
            let status = Arc::clone(&common.shared.status);
            tasks.spawn(certificates::follow(tls.clone(), current.clone(), status, common.stop.clone()));
        }
        tasks.spawn(pauses::follow(Arc::clone(engine), common.stop.clone()));
        if let Some(rules) = &common.shared.config.alerts {
            tasks.spawn(alerts::tell(Arc::clone(engine), rules.clone(), common.stop.clone()));
        }
        tasks.spawn(sweep::sweep(Arc::clone(engine), common.stop.clone()));
        tasks.spawn(space::watch(Arc::clone(engine), common.stop.clone()));
        tasks.spawn(advice::watch(Arc::clone(engine), common.stop.clone()));
        tasks.spawn(rules::compare(Arc::clone(engine), common.stop.clone()));
        Ok(Self { readiness, store: Arc::clone(engine.store()), signals: Signals::listen()?, stop, tasks })
    }

    /// What becomes of them now. A file that was opened has just been written.
    async fn guarded_calls(&self, store: &StoreUrl) -> String {
        let error = match store {
            StoreUrl::Memory | StoreUrl::File(_) => None,
            StoreUrl::Redis(_) => store_health(self.store.as_ref()).await.error,
        };
        error.map_or_else(|| "taken".to_owned(), |error| format!("refused until the store is there: {error}"))
    }

    async fn begin(&self, config: &Config) {
        warn_without_uptime(&config.store.url);
        self.readiness.set_ready();
        let store = place_of(&config.store.url);
        let guarded_calls = self.guarded_calls(&config.store.url).await;
        let (listen, admin, health) = (config.server.listen, config.server.admin, config.server.health);
        tracing::info!(%listen, %admin, %health, store, guarded_calls, "ready");
    }

    /// Ready while `serving`; a signal or the end of the store stops it, and what is under way is let finish, unless a
    /// second signal comes.
    pub(super) async fn until_stopped(
        mut self,
        common: &Common,
        serving: impl Future<Output = Result<(), AppError>>,
    ) -> Result<(), AppError> {
        self.begin(&common.shared.config).await;
        let drained = CancellationToken::new();
        let serving = async {
            let served = serving.await;
            drained.cancel();
            served
        };
        let stopping = async {
            let ended = tokio::select! {
                ended = self.store.ended() => Some(ended),
                _ = common.stop.run_until_cancelled(self.signals.next()) => None,
            };
            tracing::info!("draining");
            self.readiness.set_draining();
            common.stop.cancel();
            match &ended {
                None => self.signals.again_before(&drained).await.map(|()| ended),
                Some(_) => Ok(ended),
            }
        };
        let served = tokio::try_join!(serving, stopping);
        self.stop.cancel();
        self.tasks.shutdown().await;
        served.and_then(|((), ended)| ended.map_or(Ok(()), |ended| Err(AppError::StoreEnded(ended))))
    }
}

impl Signals {
    fn listen() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// Waits for `drained`, or for one more from somebody who does not want to wait for it.
    ///
    /// # Errors
    /// There was one more.
    async fn again_before(&mut self, drained: &CancellationToken) -> Result<(), AppError> {
        drained.run_until_cancelled(sleep(SAME_WORD)).await;
        *self = Self::listen()?;
        drained.run_until_cancelled(self.next()).await.map_or(Ok(()), |()| Err(AppError::ToldTwice))
    }
}

/// A file goes by the uptime of its machine from one start to the next; a container may be told none.
fn warn_without_uptime(store: &StoreUrl) {
    match store {
        StoreUrl::File(_) if Uptime::read().is_none() => tracing::warn!(
            "this system does not tell its boot (/proc/sys/kernel/random/boot_id): if its clock jumps between two \
             starts, receipts and tombstones run out by it"
        ),
        StoreUrl::File(_) | StoreUrl::Memory | StoreUrl::Redis(_) => {}
    }
}

/// Where the records are: a relative path depends on where the gateway was started, so it is told whole.
fn place_of(store: &StoreUrl) -> String {
    match store {
        StoreUrl::File(path) => format!("file:{}", path::absolute(path).as_ref().unwrap_or(path).display()),
        StoreUrl::Memory | StoreUrl::Redis(_) => store.to_string(),
    }
}

fn serve<S, F>(
    (key, address): (&'static str, SocketAddr),
    limits: Limits,
    stop: &CancellationToken,
    service: S,
) -> Result<impl Future<Output = ()> + Send + use<S, F>, AppError>
where
    S: Fn(Request<RequestBody>, Peer) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<ResponseBody>> + Send + 'static,
{
    let places = Arc::new(Semaphore::new(PLACES));
    Ok(Listener::new(listen(key, address, 1)?, limits, places, stop.clone())?.serve(service))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relative_store_is_told_with_the_folder_it_is_in() {
        let told = place_of(&StoreUrl::File("data/oncegate.db".into()));
        assert!(told.starts_with("file:/") && told.ends_with("/data/oncegate.db"), "{told}");
        assert_eq!(place_of(&StoreUrl::Memory), "memory:");
    }
}
