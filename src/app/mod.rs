//! The composition root: builds everything once, runs it, and takes it down in the opposite order.

mod control;

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread;

use rustls::ServerConfig;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use self::control::Control;
use crate::clock::Clock;
use crate::config::{self, Config, StoreSettings, StoreUrl, Upstream};
use crate::engine::{Engine, Lane, Shared};
use crate::entropy::Entropy;
use crate::redis_url::RedisUrl;
use crate::server::door::Instance;
use crate::server::listener::{self, Listener};
use crate::server::proxy::Proxy;
use crate::store::file::{self, FileStore};
use crate::store::memory::MemoryStore;
use crate::store::redis::{self, RedisStore};
use crate::store::{Sealer, Store, StoreError};
use crate::telemetry;
use crate::tls::offering;
use crate::upstream::{self, Client, Connector, Endpoint, MAX_IDLE, POOL_IDLE, Settings, TcpConnector};

/// Why the gateway could not start, or had to end.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    #[error("cannot listen on {address} (server.{key}, or ONCEGATE__SERVER__{})", .key.to_ascii_uppercase())]
    Listen {
        key: &'static str,
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
    #[error("cannot open the store")]
    File(#[from] crate::store::file::OpenError),
    #[error("cannot use the store")]
    Redis(#[from] crate::store::redis::OpenError),
    #[error("the operating system refuses what the gateway needs to run")]
    System(#[from] io::Error),
    #[error("the gateway had to end")]
    StoreEnded(#[source] StoreError),
    #[error("told to end twice: calls under way are left to their leases")]
    ToldTwice,
    #[error("a thread of the gateway ended abnormally")]
    Thread,
    #[error("the operating system gives no randomness")]
    Entropy(#[from] rand::rngs::SysError),
}

/// What all threads of the process share.
struct Common {
    shared: Arc<Shared>,
    stores: StoreSource,
    instance: Instance,
    places: Arc<Semaphore>,
    /// What agents get to see in a handshake, if they speak TLS.
    certificates: Option<watch::Sender<Arc<ServerConfig>>>,
    stop: CancellationToken,
}

/// Where each thread gets its store from.
enum StoreSource {
    Shared(Arc<dyn Store>),
    /// A connection for each thread.
    Redis(Box<redis::Settings>, Sealer),
}

/// Runs the gateway until SIGTERM or SIGINT or the end of its store, then lets what is under way finish within
/// `server.drain`, or until a second signal.
///
/// # Errors
/// The gateway could not start and nothing was served, or its store ended while it ran, or it was told to end twice.
pub fn run(config: Config) -> Result<(), AppError> {
    let _lines = telemetry::hold_lines();
    let runtime = runtime()?;
    let guard = runtime.enter();
    let threads = config.server.threads.get();
    let own = listen("listen", config.server.listen, threads)?;
    let others: Vec<_> =
        (1..threads).map(|_| listen("listen", config.server.listen, threads)).collect::<Result<_, _>>()?;
    let common = Arc::new(Common::new(Arc::new(config))?);
    let others: Vec<_> =
        others.into_iter().map(|socket| spawn(Arc::clone(&common), socket)).collect::<Result<_, _>>()?;
    let lead = async {
        let engine = common.engine().await?;
        let control = Control::start(&common, &engine)?;
        control.until_stopped(&common, common.serve(engine, own)).await
    };
    let ended = runtime.block_on(lead);
    common.stop.cancel();
    if matches!(ended, Err(AppError::ToldTwice)) {
        return ended;
    }
    others.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| Err(AppError::Thread)))?;
    drop(guard);
    // A resolver that does not answer would hold the end up for its own timeouts.
    runtime.shutdown_background();
    ended
}

/// A runtime for a thread that holds lines of the log back.
fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().on_thread_park(telemetry::write_held).build()
}

/// On the address that `key` of [server] states.
fn listen(key: &'static str, address: SocketAddr, threads: usize) -> Result<TcpListener, AppError> {
    listener::bind(address, threads > 1).map_err(|source| AppError::Listen { key, address, source })
}

/// A further thread: a runtime, a listener, pools and a store connection of its own.
fn spawn(common: Arc<Common>, socket: TcpListener) -> Result<thread::JoinHandle<Result<(), AppError>>, AppError> {
    let work = move || {
        let _lines = telemetry::hold_lines();
        let runtime = runtime()?;
        let served = runtime.block_on(async { common.serve(common.engine().await?, socket).await });
        common.stop.cancel();
        runtime.shutdown_background();
        served
    };
    Ok(thread::Builder::new().name("oncegate".to_owned()).spawn(work)?)
}

impl Common {
    fn new(config: Arc<Config>) -> Result<Self, AppError> {
        let entropy = Entropy::system()?;
        Ok(Self {
            stores: StoreSource::open(&config.store, &entropy)?,
            instance: Instance::new(&entropy),
            places: Arc::new(Semaphore::new(config.server.max_connections.get().min(Semaphore::MAX_PERMITS))),
            certificates: config.server.tls.as_ref().map(|tls| watch::Sender::new(Arc::clone(&tls.config))),
            stop: CancellationToken::new(),
            shared: Arc::new(Shared::new(config, entropy)),
        })
    }

    async fn engine(&self) -> Result<Arc<Engine>, AppError> {
        let mut clients: HashMap<&str, Client> = HashMap::new();
        let mut lanes = HashMap::new();
        for route in &self.shared.config.routes.0 {
            let upstream = &route.upstream;
            let client = match clients.get(upstream.name.as_str()) {
                Some(client) => client.clone(),
                None => Self::client(upstream),
            };
            clients.insert(&upstream.name, client.clone());
            let (counters, gate) = (self.shared.status.route(&route.name), self.shared.gates.of(route));
            lanes.insert(route.name.clone(), Lane { client, counters, gate });
        }
        Ok(Engine::new(Arc::clone(&self.shared), self.stores.connect().await?, lanes))
    }

    fn client(upstream: &Upstream) -> Client {
        let tls = upstream.client_tls.as_ref().map(|tls| offering(&tls.config, upstream.protocol.offer()));
        let endpoint = Endpoint { tls: upstream.tls, host: upstream.host.clone(), port: upstream.port };
        let proxy = upstream.proxy.as_ref().map(proxy);
        let connector: Arc<dyn Connector> = Arc::new(TcpConnector::new(&endpoint, tls, proxy, upstream.dns_ttl));
        let settings = Settings {
            connect_timeout: upstream.connect_timeout,
            idle_timeout: upstream.idle_timeout,
            pool_idle: POOL_IDLE,
            max_idle: MAX_IDLE,
            protocol: upstream.protocol,
        };
        Client::new(connector, endpoint, settings)
    }

    /// Serves agents on one socket until the process stops.
    async fn serve(&self, engine: Arc<Engine>, socket: TcpListener) -> Result<(), AppError> {
        // What was held back before a restart is so from the first call on.
        if let Err(error) = engine.look_at_pauses().await {
            tracing::debug!(%error, "no look at the pauses that the store has");
        }
        let limits = (&self.shared.config.server).into();
        let certificates = self.certificates.as_ref().map(watch::Sender::subscribe);
        let listener = Listener::new(socket, limits, Arc::clone(&self.places), self.stop.clone())?;
        let listener = listener.with_certificates(certificates);
        let proxy = Arc::new(Proxy::new(engine, self.instance.clone()));
        let service = move |request, peer| {
            let proxy = Arc::clone(&proxy);
            async move { proxy.handle(request, peer).await }
        };
        let drained = tokio::spawn(drain_calls(Arc::clone(&self.shared), self.stop.clone()));
        listener.serve(service).await;
        drained.await.unwrap_or_default();
        Ok(())
    }
}

/// Guarded calls outlive their callers' connections. Each thread waits for all of them: its own run only while it does.
async fn drain_calls(shared: Arc<Shared>, stop: CancellationToken) {
    stop.cancelled().await;
    shared.tasks.close();
    if timeout(shared.config.server.drain, shared.tasks.wait()).await.is_err() {
        tracing::warn!(calls = shared.tasks.len(), "drain time over; calls under way are left to their leases");
    }
}

fn proxy(proxy: &config::Proxy) -> upstream::Proxy {
    let config::Proxy { host, port, authorization, authority: _ } = proxy.clone();
    upstream::Proxy { host, port, authorization }
}

fn file_settings(store: &StoreSettings) -> file::Settings {
    let durability = match store.durability {
        Some(config::Durability::Os) => file::Durability::Os,
        Some(config::Durability::Fsync | config::Durability::Single | config::Durability::Replicas) | None => {
            file::Durability::Fsync
        }
    };
    file::Settings { timeout: store.timeout, durability }
}

fn redis_settings(store: &StoreSettings, url: &RedisUrl) -> redis::Settings {
    redis::Settings {
        url: url.clone(),
        namespace: store.namespace.clone(),
        timeout: store.timeout,
        tls: store.tls.clone(),
        replicas: store.replicas.map(NonZeroUsize::get),
        sentinel_login: store.sentinel_login.clone().map(|login| (login.user, login.password.0)),
    }
}

impl StoreSource {
    fn open(settings: &StoreSettings, entropy: &Entropy) -> Result<Self, AppError> {
        let (clock, keys) = (Clock::system(), settings.encryption.as_slice());
        Ok(match &settings.url {
            StoreUrl::Memory => Self::Shared(Arc::new(MemoryStore::new(clock))),
            StoreUrl::File(path) => {
                Self::Shared(Arc::new(FileStore::open(path, file_settings(settings), clock, keys)?))
            }
            StoreUrl::Redis(url) => {
                let sealer = Sealer::new(keys, &settings.namespace, entropy.clone());
                Self::Redis(Box::new(redis_settings(settings, url)), sealer)
            }
        })
    }

    async fn connect(&self) -> Result<Arc<dyn Store>, AppError> {
        Ok(match self {
            Self::Shared(store) => Arc::clone(store),
            Self::Redis(settings, sealer) => {
                Arc::new(RedisStore::open(redis::Settings::clone(settings)).await?.sealed_by(sealer.clone()))
            }
        })
    }
}
