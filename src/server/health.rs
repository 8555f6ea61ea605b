//! `/livez` and `/readyz`: whether the process lives, and whether it should get requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use http::{Method, Response, StatusCode};
use serde::Serialize;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use crate::engine::answer::Marks;
use crate::engine::problem::{Code, Problem};
use crate::server::body::ResponseBody;
use crate::server::respond;
use crate::store::Store;
use crate::telemetry::story;

/// Every `/readyz` tells of the store, and probes have short timeouts of their own, often a second: a store that is silent
/// makes one late by no more than this.
const STORE_PATIENCE: Duration = Duration::from_millis(500);

/// How long what the store said is told again. It is asked for a write, for a full disk shows in nothing less; of a file
/// that is 64 KiB and a sync, no more often than this whoever asks.
const FRESH: Duration = Duration::from_secs(1);

const PARAMETER: &str = "/readyz takes no parameter but store=1: ready only while the store takes steps.";

/// Whether the gateway takes requests; shared with whoever starts and stops it.
#[derive(Debug, Default)]
pub struct Readiness(AtomicU8);

/// How far the gateway is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    Starting,
    Ready,
    Draining,
}

impl Readiness {
    /// The listeners are open and the configuration is loaded.
    pub fn set_ready(&self) {
        self.0.store(1, Ordering::Release);
    }

    /// Running requests finish; new ones should go elsewhere.
    pub fn set_draining(&self) {
        self.0.store(2, Ordering::Release);
    }

    /// How far the gateway is now.
    pub fn stage(&self) -> Stage {
        match self.0.load(Ordering::Acquire) {
            0 => Stage::Starting,
            1 => Stage::Ready,
            _ => Stage::Draining,
        }
    }
}

/// What the probes are answered from.
#[derive(Clone)]
pub struct Health {
    readiness: Arc<Readiness>,
    store: Arc<dyn Store>,
    /// The store is asked once a second at most, whoever asks here how often.
    last: Arc<Mutex<Option<(Instant, StoreHealth)>>>,
}

#[derive(Serialize)]
struct Alive {
    status: &'static str,
}

#[derive(Serialize)]
struct Ready {
    ready: bool,
    stage: Stage,
    store: StoreHealth,
}

/// Whether the store takes writes.
#[derive(Clone, Debug, Serialize)]
pub struct StoreHealth {
    pub ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Health {
    /// Answers for this store.
    pub fn new(readiness: Arc<Readiness>, store: Arc<dyn Store>) -> Self {
        Self { readiness, store, last: Arc::default() }
    }

    /// Answers a probe.
    pub async fn answer(&self, method: &Method, path: &str, query: Option<&str>) -> Response<ResponseBody> {
        if !matches!(path, "/livez" | "/readyz") {
            let told = Problem::new(Code::NotFound, "The health port has /livez and /readyz.")
                .with_advice("Ask for one of these; calls and the operators' API have ports of their own.");
            return respond::problem(told, &Marks::default());
        }
        if !matches!(*method, Method::GET | Method::HEAD) {
            return respond::wrong_method("GET, HEAD");
        }
        match path {
            "/livez" => respond::json(StatusCode::OK, &Alive { status: "alive" }),
            _ => match store_decides(query) {
                Some(store_decides) => self.ready(store_decides).await,
                None => respond::problem(Problem::new(Code::InvalidRequest, PARAMETER), &Marks::default()),
            },
        }
    }

    async fn ready(&self, store_decides: bool) -> Response<ResponseBody> {
        let (stage, store) = (self.readiness.stage(), self.store_health().await);
        let ready = stage == Stage::Ready && (store.ok || !store_decides);
        let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        respond::json(status, &Ready { ready, stage, store })
    }
}

impl Health {
    async fn store_health(&self) -> StoreHealth {
        let mut last = self.last.lock().await;
        match &*last {
            Some((asked, health)) if asked.elapsed() < FRESH => health.clone(),
            _ => last.insert((Instant::now(), store_health(self.store.as_ref()).await)).1.clone(),
        }
    }
}

/// `None` for what is not known: a word that was misspelled would say ready while the store is down.
fn store_decides(query: Option<&str>) -> Option<bool> {
    match query.unwrap_or_default() {
        "" => Some(false),
        "store" | "store=1" | "store=true" => Some(true),
        _ => None,
    }
}

/// Asks the store, for a moment.
pub async fn store_health(store: &dyn Store) -> StoreHealth {
    match timeout(STORE_PATIENCE, store.ping()).await {
        Ok(Ok(())) => StoreHealth { ok: true, error: None },
        Ok(Err(error)) => StoreHealth { ok: false, error: Some(story(&error)) },
        Err(_) => StoreHealth { ok: false, error: Some("no answer yet".to_owned()) },
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use serde_json::{Value, json};

    use super::*;
    use crate::server::test_store::{Mood, TestStore};

    async fn probe(health: &Health, path: &str, query: Option<&str>) -> (u16, Value) {
        let response = health.answer(&Method::GET, path, query).await;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&body).unwrap())
    }

    fn health(mood: Mood) -> Health {
        Health::new(Arc::default(), Arc::new(TestStore { mood, ..TestStore::default() }))
    }

    #[tokio::test]
    async fn readiness_follows_start_and_drain() {
        let health = health(Mood::Well);
        let store = json!({ "ok": true });
        let seen = probe(&health, "/readyz", None).await;
        assert_eq!(seen, (503, json!({ "ready": false, "stage": "starting", "store": store })));
        health.readiness.set_ready();
        let seen = probe(&health, "/readyz", None).await;
        assert_eq!(seen, (200, json!({ "ready": true, "stage": "ready", "store": store })));
        health.readiness.set_draining();
        let seen = probe(&health, "/readyz", None).await;
        assert_eq!(seen, (503, json!({ "ready": false, "stage": "draining", "store": store })));
        assert_eq!(probe(&health, "/livez", None).await.0, 200);
    }

    #[tokio::test(start_paused = true)]
    async fn the_store_is_told_of_and_decides_only_where_it_is_asked_for() {
        for mood in [Mood::Away, Mood::Silent] {
            let health = health(mood);
            health.readiness.set_ready();
            let (status, body) = probe(&health, "/readyz", None).await;
            assert_eq!((status, &body["store"]["ok"]), (200, &json!(false)));
            for query in ["store=1", "store=true", "store"] {
                assert_eq!(probe(&health, "/readyz", Some(query)).await.0, 503, "{query}");
            }
            for query in ["stor=1", "store=yes", "store=0", "store=1&stor=1"] {
                assert_eq!(probe(&health, "/readyz", Some(query)).await.0, 400, "{query}");
            }
        }
    }

    #[tokio::test]
    async fn there_is_nothing_else_on_this_port() {
        let health = health(Mood::Well);
        assert_eq!(probe(&health, "/v1/operations", None).await.0, 404);
        assert_eq!(health.answer(&Method::POST, "/readyz", None).await.status(), 405);
    }
}
