//! Gateways that share a store and an upstream, and what their callers ask and are told.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use oncegate::clock::{Clock, Timestamp};
use oncegate::config::{Config, Route};
use oncegate::engine::answer::{Answer, Body, Content, Marks, Piece};
use oncegate::engine::call::{Call, Presence};
use oncegate::engine::problem::Code;
use oncegate::engine::{Engine, Lane, Shared};
use oncegate::entropy::Entropy;
use oncegate::operation::{OperationId, Scope, StateName};
use oncegate::store::Store;
use oncegate::store::memory::MemoryStore;
use oncegate::upstream::{Client, Connector, Endpoint, MAX_IDLE, POOL_IDLE, Settings};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::Setup;
use super::history::check_history;
use super::store::{FrailStore, Kept, kept};
use super::upstream::{Act, Upstream};

/// 2026-01-01 00:00:00, when every story begins.
pub const BEGIN: Timestamp = Timestamp(1_767_225_600_000);

/// One process. Clones are the same one; `neighbour` is another.
#[derive(Clone)]
pub struct Gateway {
    pub engine: Arc<Engine>,
    /// The store as this gateway sees it.
    pub store: Arc<FrailStore>,
    pub upstream: Upstream,
    world: Arc<World>,
}

/// What all gateways of a story have in common.
struct World {
    start: Instant,
    config: Arc<Config>,
    memory: Arc<MemoryStore>,
    seeds: AtomicU64,
}

impl Gateway {
    /// The first one, before an upstream with a script.
    pub fn before(script: Vec<Act>, setup: Setup) -> Self {
        Self::seeded(1, script, setup)
    }

    pub fn seeded(seed: u64, script: Vec<Act>, setup: Setup) -> Self {
        let memory = Arc::new(MemoryStore::new(Clock::starting_at(BEGIN)));
        let (start, config, seeds) = (Instant::now(), setup.config(), AtomicU64::new(seed));
        Self::in_world(Arc::new(World { start, config, memory, seeds }), Upstream::playing(script))
    }

    /// Another process with the same store and upstream, and its own view of both.
    pub fn neighbour(&self) -> Self {
        Self::in_world(Arc::clone(&self.world), self.upstream.clone())
    }

    /// Another process that was started with another file.
    pub fn neighbour_with(&self, setup: Setup) -> Self {
        let World { start, memory, .. } = &*self.world;
        let seeds = AtomicU64::new(self.world.seeds.fetch_add(1000, Ordering::Relaxed) + 500);
        let world = World { start: *start, config: setup.config(), memory: Arc::clone(memory), seeds };
        Self::in_world(Arc::new(world), self.upstream.clone())
    }

    fn in_world(world: Arc<World>, upstream: Upstream) -> Self {
        let store = Arc::new(FrailStore::over(Arc::clone(&world.memory)));
        let entropy = Entropy::seeded(world.seeds.fetch_add(1, Ordering::Relaxed));
        let shared = Arc::new(Shared::new(Arc::clone(&world.config), entropy));
        let lanes = lanes(&shared, &Arc::new(upstream.clone()));
        Self { engine: Engine::new(shared, Arc::<FrailStore>::clone(&store), lanes), store, upstream, world }
    }

    pub fn route(&self) -> &Arc<Route> {
        &self.world.config.routes.0[0]
    }

    /// A call with this key.
    pub async fn call(&self, key: &str) -> Told {
        self.ask(Ask::keyed(key)).await
    }

    pub async fn ask(&self, ask: Ask) -> Told {
        let answer = self.open(ask).await;
        Told::read(answer, self).await
    }

    /// An answer that came in another way than by a call.
    pub async fn told(&self, answer: Answer) -> Told {
        Told::read(answer, self).await
    }

    /// A call whose answer is not read yet.
    pub async fn open(&self, ask: Ask) -> Answer {
        let wait = ask.within.unwrap_or(self.route().retry.deadline);
        let call = Call {
            route: Arc::clone(self.route()),
            scope: Scope::none(),
            method: ask.method,
            target: "/charges?expand=a%20b".to_owned(),
            headers: ask.headers.into(),
            body: ask.body,
            deadline: Instant::now() + wait,
            respond_async: ask.respond_async,
            room: None,
            presence: Presence::default(),
        };
        self.engine.guarded(call).await
    }

    /// A caller of his own, who can be waited for later.
    pub fn caller(&self, ask: Ask) -> JoinHandle<Told> {
        let gateway = self.clone();
        tokio::spawn(async move { gateway.ask(ask).await })
    }

    /// Looks after what nobody owns, as the worker does once a second.
    pub async fn sweep(&self) {
        for id in self.engine.store().due(100).await.unwrap_or_default() {
            drop(self.engine.recover(id).await);
        }
    }

    /// Sweeps each second until nothing is left to do.
    pub fn worker(&self) -> JoinHandle<()> {
        let gateway = self.clone();
        tokio::spawn(async move {
            loop {
                sleep(Duration::from_secs(1)).await;
                gateway.sweep().await;
            }
        })
    }

    /// The record of a key with its history, which is checked.
    pub async fn kept(&self, key: &str) -> Option<Kept> {
        let kept = kept(&self.world.memory, id(key)).await?;
        check_history(&kept);
        Some(kept)
    }

    /// The states that the operation of a key went through.
    pub async fn states(&self, key: &str) -> Vec<StateName> {
        let kept = self.kept(key).await;
        kept.map(|kept| kept.events.iter().filter_map(|event| event.to).collect()).unwrap_or_default()
    }

    /// Returns when the record of a key is in this state.
    pub async fn has_become(&self, key: &str, state: StateName) {
        let reached = async {
            while self.kept(key).await.is_none_or(|kept| kept.operation.state.name() != state) {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(Duration::from_secs(3600), reached).await.unwrap_or_else(|_| panic!("never {state}"));
    }

    /// Whether callers of this key would share a flight with one who is on his way.
    pub async fn is_flying(&self, key: &str) -> bool {
        let fingerprint = self.kept(key).await.unwrap().operation.identity.fingerprint;
        self.engine.shared().flights.watch(id(key), fingerprint).is_some()
    }

    /// Returns when no task of this gateway's engine is left.
    pub async fn is_idle(&self) {
        let tasks = &self.engine.shared().tasks;
        tasks.close();
        timeout(Duration::from_secs(3600), tasks.wait()).await.expect("the tasks ended");
        tasks.reopen();
    }

    /// The moment of the story that is so long after its begin.
    pub async fn at(&self, moment: Duration) {
        sleep_until(self.world.start + moment).await;
    }

    /// Time since the story began.
    pub fn elapsed(&self) -> Duration {
        self.world.start.elapsed()
    }

    pub fn now(&self) -> Timestamp {
        self.store.now()
    }
}

pub fn id(key: &str) -> OperationId {
    OperationId::of(Scope::none().digest(), "payments", key, None)
}

/// A gateway by itself, before an upstream that plays no acts.
pub fn engine_before(upstream: impl Connector + 'static, setup: Setup) -> Arc<Engine> {
    let shared = Arc::new(Shared::new(setup.config(), Entropy::seeded(1)));
    let lanes = lanes(&shared, &Arc::new(upstream));
    Engine::new(shared, Arc::new(MemoryStore::new(Clock::starting_at(BEGIN))), lanes)
}

fn lanes<C: Connector + 'static>(shared: &Shared, upstream: &Arc<C>) -> HashMap<String, Lane> {
    let lane = |route: &Arc<Route>| {
        let settings = Settings {
            connect_timeout: route.upstream.connect_timeout,
            idle_timeout: route.upstream.idle_timeout,
            pool_idle: POOL_IDLE,
            max_idle: MAX_IDLE,
            protocol: route.upstream.protocol,
        };
        let endpoint = Endpoint { tls: false, host: "payments.internal".to_owned(), port: 80 };
        let client = Client::new(Arc::<C>::clone(upstream), endpoint, settings);
        let (counters, gate) = (shared.status.route(&route.name), shared.gates.of(route));
        (route.name.clone(), Lane { client, counters, gate })
    };
    shared.config.routes.0.iter().map(lane).collect()
}

/// What a caller asks.
#[derive(Clone)]
pub struct Ask {
    method: Method,
    headers: HeaderMap,
    body: Bytes,
    within: Option<Duration>,
    respond_async: Option<Duration>,
}

impl Ask {
    pub fn unnamed() -> Self {
        let body = Bytes::from_static(b"{\"amount\": 1.0,  \"to\": \"\xc3\xa9\"}");
        Self { method: Method::POST, headers: HeaderMap::new(), body, within: None, respond_async: None }
    }

    pub fn keyed(key: &str) -> Self {
        Self::unnamed().with("idempotency-key", key)
    }

    pub fn of_step(session: &str, step: &str) -> Self {
        Self::unnamed().with("x-session-id", session).with("x-step-index", step)
    }

    pub fn with(mut self, name: &'static str, value: &str) -> Self {
        self.headers.insert(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
        self
    }

    pub fn method(self, method: Method) -> Self {
        Self { method, ..self }
    }

    pub fn body(self, body: &'static str) -> Self {
        Self { body: Bytes::from_static(body.as_bytes()), ..self }
    }

    /// The caller would rather be told where to ask than wait longer.
    pub fn respond_async(self, wait: Duration) -> Self {
        Self { respond_async: Some(wait), ..self }
    }

    /// The caller's own deadline.
    pub fn within(self, wait: Duration) -> Self {
        Self { within: Some(wait), ..self }
    }
}

/// What a caller was told.
#[derive(Debug)]
pub struct Told {
    /// Since the story began, when all of it was there.
    pub at: Duration,
    pub status: u16,
    /// Of a problem.
    pub code: Option<Code>,
    /// Of a problem.
    pub retry_after: Option<Duration>,
    pub headers: HeaderMap,
    /// Of a problem its detail.
    pub body: Bytes,
    /// The answer did not end cleanly.
    pub broken: bool,
    pub marks: Marks,
}

impl Told {
    async fn read(answer: Answer, gateway: &Gateway) -> Self {
        let Answer { content, marks } = answer;
        let mut retry_after = None;
        let (status, code, headers, (body, broken)) = match content {
            Content::Accepted => (202, None, HeaderMap::new(), (Bytes::new(), false)),
            Content::Problem(problem) => {
                retry_after = problem.retry_after;
                (problem.status, Some(problem.code), HeaderMap::new(), (problem.detail.into(), false))
            }
            Content::Upstream { status, headers, body } => (status.as_u16(), None, headers, read_body(body).await),
        };
        Self { at: gateway.elapsed(), status, code, retry_after, headers, body, broken, marks }
    }

    /// Status, body and whether it is a replay.
    pub fn says(&self) -> (u16, &str, bool) {
        (self.status, std::str::from_utf8(&self.body).unwrap(), self.marks.replayed)
    }

    /// Status and code of a problem.
    pub fn problem(&self) -> (u16, Option<Code>) {
        (self.status, self.code)
    }
}

async fn read_body(body: Body) -> (Bytes, bool) {
    match body {
        Body::Whole(bytes) => (bytes, false),
        Body::Live(mut pieces) => {
            let mut read = Vec::new();
            loop {
                match pieces.recv().await {
                    Some(Piece::Data(piece)) => read.extend_from_slice(&piece),
                    last => return (read.into(), last != Some(Piece::End)),
                }
            }
        }
        Body::Passed { .. } | Body::Switched(_) => panic!("a guarded answer went unguarded"),
    }
}
