//! The operators' API. Reads, and a few words of theirs; on a loopback address, and only for programs on this machine.
//!
//! A page in a browser on this machine can reach a loopback address, too, by a name that it makes resolve there. So the
//! Host has to be a loopback one.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::header::{HOST, ORIGIN};
use http::request::Parts;
use http::{HeaderMap, Method, Response, StatusCode};
use serde::Serialize;

use crate::config::Config;
use crate::engine::Engine;
use crate::engine::answer::Marks;
use crate::engine::gates::{GateSnapshot, Gates, PlacesSnapshot};
use crate::engine::problem::{Code, Problem};
use crate::engine::status::{Snapshot, Status};
use crate::operation::OperationId;
use crate::server::body::ResponseBody;
use crate::server::door::is_loopback;
use crate::server::filter::Filter;
use crate::server::health::{StoreHealth, store_health};
use crate::server::listener::Peer;
use crate::server::view::{EventView, OperationView, SentView};
use crate::server::{pauses, respond};
use crate::store::{Kind, Page, Store, StoreError};

/// Where an operator says that a store is to be used again that has lost its memory.
const ACCEPT_LOSS: &str = "/v1/store/accept-loss";

const ADDRESSES: &str = "The operators' API has GET /v1/operations, GET /v1/operations/NAME, POST .../redrive and .../abandon, \
                         GET /v1/status, GET and PUT /v1/pauses, POST /v1/store/accept-loss.";

/// Reads of the store that one list may take; a list that is not done by then has a cursor to go on.
const READS: usize = 100;

/// What the operators' API is answered from.
#[derive(Clone)]
pub struct AdminState {
    pub engine: Arc<Engine>,
}

impl AdminState {
    pub(super) fn store(&self) -> &Arc<dyn Store> {
        self.engine.store()
    }

    pub(super) fn gates(&self) -> &Gates {
        &self.engine.shared().gates
    }

    pub(super) fn config(&self) -> &Config {
        &self.engine.shared().config
    }

    fn process(&self) -> &Status {
        &self.engine.shared().status
    }

    /// Answers one request of the operators' API.
    pub async fn answer(&self, head: &Parts, peer: &Peer) -> Response<ResponseBody> {
        match self.find(head, peer).await {
            Ok(response) => response,
            Err(problem) => respond::problem(problem, &Marks::default()),
        }
    }

    async fn find(&self, head: &Parts, peer: &Peer) -> Result<Response<ResponseBody>, Problem> {
        check_local(&head.headers, peer)?;
        let path = head.uri.path();
        if path == ACCEPT_LOSS {
            return self.accept_loss(head).await;
        }
        if path == pauses::ADDRESS {
            return pauses::answer(self, head).await;
        }
        let id = path.strip_prefix("/v1/operations/");
        if let Some((id, word)) = id.and_then(|rest| rest.split_once('/')) {
            return self.word(head, id, word).await;
        }
        if id.is_none() && !matches!(path, "/v1/operations" | "/v1/status") {
            return Err(self.no_address());
        }
        if !matches!(head.method, Method::GET | Method::HEAD) {
            return Ok(respond::wrong_method("GET, HEAD"));
        }
        match (id, path) {
            (Some(id), _) => self.operation(id).await,
            (None, "/v1/status") => Ok(self.status().await),
            (None, _) => self.operations(head.uri.query()).await,
        }
    }

    fn no_address(&self) -> Problem {
        let detail = format!("{ADDRESSES} /livez and /readyz are at the health port, {}.", self.config().server.health);
        Problem::new(Code::NotFound, detail).with_advice("Ask one of the addresses that the detail names.")
    }

    /// What is to become of a dead letter. A new run goes on by itself; what comes of it is in the operation.
    async fn word(&self, head: &Parts, id: &str, word: &str) -> Result<Response<ResponseBody>, Problem> {
        if !matches!(word, "redrive" | "abandon") {
            return Err(self.no_address());
        }
        if head.method != Method::POST {
            return Ok(respond::wrong_method("POST"));
        }
        refuse_pages(&head.headers)?;
        let id = parse_id(id)?;
        let (status, operation) = match word {
            "redrive" => (StatusCode::ACCEPTED, self.engine.redrive(id).await.map_err(for_operators)?),
            _ => (StatusCode::OK, self.engine.abandon(id).await.map_err(for_operators)?),
        };
        Ok(respond::json(status, &OperationView::of(&operation)))
    }

    async fn accept_loss(&self, head: &Parts) -> Result<Response<ResponseBody>, Problem> {
        if head.method != Method::POST {
            return Ok(respond::wrong_method("POST"));
        }
        refuse_pages(&head.headers)?;
        match self.store().accept_loss().await.map_err(store_problem)? {
            true => {
                tracing::warn!("an operator accepted that the store has lost its memory");
                Ok(respond::json(StatusCode::OK, &Accepted { accepted: true }))
            }
            false => Err(Problem::new(Code::Conflict, "The store has lost nothing that could be accepted.")),
        }
    }

    async fn operations(&self, query: Option<&str>) -> Result<Response<ResponseBody>, Problem> {
        let filter = Filter::read(query, self.store().now())
            .map_err(|error| Problem::new(Code::InvalidRequest, error.to_string()))?;
        let page = self.list(filter).await.map_err(store_problem)?;
        let operations = page.operations.iter().map(OperationView::of).collect();
        let unreadable = page.unreadable.iter().map(|(id, _)| id.to_string()).collect();
        Ok(respond::json(StatusCode::OK, &OperationList { operations, unreadable, next: page.next }))
    }

    /// The store's pages are read until the list is full, so that a page never has to be cut in the middle.
    async fn list(&self, filter: Filter) -> Result<Page, StoreError> {
        let mut found = Page { next: filter.cursor.clone(), ..Page::default() };
        for _ in 0..READS {
            let (cursor, missing) = (found.next.as_deref(), filter.limit - found.operations.len());
            let page = match filter.dead {
                Some(true) => self.store().dead_letters(cursor, missing).await?,
                Some(false) | None => self.store().list(cursor, missing).await?,
            };
            let is_past = page.operations.last().is_some_and(|oldest| filter.ends_before(oldest));
            found.operations.extend(page.operations.into_iter().filter(|operation| filter.takes(operation)));
            found.unreadable.extend(page.unreadable);
            found.next = page.next.filter(|_| !is_past);
            if found.next.is_none() || found.operations.len() >= filter.limit {
                break;
            }
        }
        for (id, why) in &found.unreadable {
            self.process().unreadable.note(*id, Kind::Record, *why);
        }
        Ok(found)
    }

    async fn operation(&self, id: &str) -> Result<Response<ResponseBody>, Problem> {
        let id = parse_id(id)?;
        let found = self.store().read(id).await.map_err(|error| self.unreadable_or(id, error))?;
        let Some(found) = found else {
            return Err(not_found("There is no such operation, or its record has run out."));
        };
        let history = self.store().events(id).await.map_err(store_problem)?;
        for why in &history.unreadable {
            self.process().unreadable.note(id, Kind::Event, *why);
        }
        // It is gone when there is a final answer, and one that cannot be read has nothing to show.
        let request = self.store().request(id).await.ok().flatten();
        let route = self.config().routes.named(&found.operation.identity.route);
        let upstream = route.map(|route| route.upstream.name.as_str());
        let (events, damaged) = (history.events.iter().map(EventView::of).collect(), history.unreadable.len());
        let shown = OperationHistory {
            operation: OperationView::of(&found.operation),
            sent: SentView::of(&found.operation, upstream, request.as_ref()),
            events,
            events_left_out: found.operation.events_left_out(history.len() + damaged),
            unreadable_events: u32::try_from(damaged).unwrap_or(u32::MAX),
        };
        Ok(respond::json(StatusCode::OK, &shown))
    }

    fn unreadable_or(&self, id: OperationId, error: StoreError) -> Problem {
        if let Some(why) = error.unreadable() {
            self.process().unreadable.note(id, Kind::Record, why);
        }
        store_problem(error)
    }

    async fn space(&self) -> Option<SpaceReport> {
        let space = self.store().space().await.ok()??;
        Some(SpaceReport { used: space.used, limit: space.limit, share: (space.share() * 1000.0).round() / 1000.0 })
    }

    async fn status(&self) -> Response<ResponseBody> {
        let health = store_health(self.store().as_ref()).await;
        let report = Report {
            version: env!("CARGO_PKG_VERSION"),
            store: StoreReport { kind: self.config().store.url.kind(), health, space: self.space().await },
            process: self.process().snapshot(),
            upstreams: self.gates().snapshot(),
            places: self.gates().places(),
        };
        respond::json(StatusCode::OK, &report)
    }
}

#[derive(Serialize)]
struct SpaceReport {
    used: u64,
    limit: u64,
    share: f64,
}

#[derive(Serialize)]
struct Accepted {
    accepted: bool,
}

#[derive(Serialize)]
struct OperationList<'a> {
    operations: Vec<OperationView<'a>>,
    /// The ids of those whose records cannot be read: what they are is not known, so no filter holds for them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unreadable: Vec<String>,
    /// Give it back as `cursor` to go on.
    next: Option<String>,
}

#[derive(Serialize)]
struct OperationHistory<'a> {
    #[serde(flatten)]
    operation: OperationView<'a>,
    #[serde(flatten)]
    sent: SentView<'a>,
    events: Vec<EventView>,
    /// Between the first ones and the newest.
    #[serde(skip_serializing_if = "is_zero")]
    events_left_out: u32,
    /// Events that are there and damaged.
    #[serde(skip_serializing_if = "is_zero")]
    unreadable_events: u32,
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

#[derive(Serialize)]
struct Report {
    version: &'static str,
    store: StoreReport,
    #[serde(flatten)]
    process: Snapshot,
    upstreams: BTreeMap<String, GateSnapshot>,
    /// By route.
    places: BTreeMap<String, PlacesSnapshot>,
}

#[derive(Serialize)]
struct StoreReport {
    kind: &'static str,
    #[serde(flatten)]
    health: StoreHealth,
    /// Absent where there is no limit, or the store does not tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    space: Option<SpaceReport>,
}

fn parse_id(id: &str) -> Result<OperationId, Problem> {
    id.parse().map_err(|error| not_found(format!("{error}")))
}

fn check_local(headers: &HeaderMap, peer: &Peer) -> Result<(), Problem> {
    if !peer.address.ip().to_canonical().is_loopback() {
        return Err(Problem::new(Code::Unauthenticated, "The operators' API answers to this machine only."));
    }
    let mut hosts = headers.get_all(HOST).iter();
    match (hosts.next().and_then(|host| host.to_str().ok()), hosts.next()) {
        (Some(host), None) if is_loopback(host) => Ok(()),
        _ => {
            let detail = "The operators' API is asked by a loopback address: localhost, 127.0.0.1 or [::1].";
            Err(Problem::new(Code::InvalidRequest, detail).with_status(421))
        }
    }
}

/// An operator's word, which no page in a browser may say for him.
pub(super) fn refuse_pages(headers: &HeaderMap) -> Result<(), Problem> {
    match headers.contains_key(ORIGIN) {
        true => Err(Problem::new(Code::InvalidRequest, "This is not for pages in a browser.")),
        false => Ok(()),
    }
}

fn not_found(detail: impl Into<String>) -> Problem {
    Problem::new(Code::NotFound, detail).with_advice("Check the address; GET /v1/operations lists what there is.")
}

pub(super) fn store_problem(error: StoreError) -> Problem {
    let code = match error {
        StoreError::NoSuchPlace => return Problem::new(Code::InvalidRequest, format!("{error}")),
        StoreError::RecordTooNew(_) => Code::RecordTooNew,
        StoreError::Corrupt(_) => Code::ResultUnavailable,
        StoreError::Unencodable(_)
        | StoreError::Timeout
        | StoreError::Away(_)
        | StoreError::Connection(_)
        | StoreError::Unreplicated(_)
        | StoreError::LostMemory(_)
        | StoreError::NoKey(_)
        | StoreError::Refused(_)
        | StoreError::Ended(_) => Code::StoreUnavailable,
    };
    for_operators(Problem::new(code, error.to_string()))
}

/// The advice of a store's problem is for callers.
fn for_operators(problem: Problem) -> Problem {
    match problem.code {
        Code::StoreUnavailable => problem.with_advice("Ask again later; GET /v1/status says how the store is."),
        _ => problem,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use http::Request;
    use http_body_util::BodyExt;
    use serde_json::{Value, json};

    use super::*;
    use crate::clock::Timestamp;
    use crate::config::Environment;
    use crate::engine::Shared;
    use crate::entropy::Entropy;
    use crate::operation::{Cause, Event, EventKind, Kept, OwnerId, State, StateName};
    use crate::server::listener::Transport;
    use crate::server::test_store::{Mood, TestStore};
    use crate::server::view::tests::{operation, settled};

    const FILE: &str = "store.url = 'memory:'\nupstreams.bank.url = 'http://127.0.0.1:1'\n\
        routes = [{ name = 'payments', match = { path = '/' }, upstream = 'bank' }]";

    /// Ten operations, newest first; the even ones are unknown.
    fn ten() -> TestStore {
        let operations = (0..10).rev().map(|number| {
            let state = match number % 2 {
                0 => State::Unknown { cause: Cause::Closed, since: Timestamp(0) },
                _ => State::Succeeded { settled: settled(Kept::Whole) },
            };
            operation(&format!("k-{number}"), number * 1000, state)
        });
        TestStore { operations: operations.collect(), ..TestStore::default() }
    }

    async fn ask(store: TestStore, request: http::request::Builder) -> (u16, Value) {
        ask_from("127.0.0.1:5000", store, request).await
    }

    async fn ask_from(peer: &str, store: TestStore, request: http::request::Builder) -> (u16, Value) {
        let config = Config::parse(FILE, "gateway.toml", &Environment::default()).unwrap();
        let shared = Arc::new(Shared::new(Arc::new(config), Entropy::seeded(1)));
        shared.config.routes.0.iter().for_each(|route| drop(shared.gates.of(route)));
        let state = AdminState { engine: Engine::new(shared, Arc::new(store), HashMap::new()) };
        let (head, ()) = request.body(()).unwrap().into_parts();
        let peer = Peer::new(peer.parse().unwrap(), Transport::Plain);
        let response = state.answer(&head, &peer).await;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&body).unwrap())
    }

    fn get(path: &str) -> http::request::Builder {
        Request::get(path).header("host", "localhost:8081")
    }

    fn keys(list: &Value) -> Vec<&str> {
        list["operations"].as_array().unwrap().iter().map(|operation| operation["key"].as_str().unwrap()).collect()
    }

    #[tokio::test]
    async fn a_list_is_given_page_by_page() {
        let (_, first) = ask(ten(), get("/v1/operations?limit=7")).await;
        assert_eq!(keys(&first), ["k-9", "k-8", "k-7", "k-6", "k-5", "k-4", "k-3"]);
        let next = first["next"].as_str().unwrap();
        let (_, second) = ask(ten(), get(&format!("/v1/operations?limit=7&cursor={next}"))).await;
        assert_eq!((keys(&second), &second["next"]), (vec!["k-2", "k-1", "k-0"], &Value::Null));
    }

    #[tokio::test]
    async fn a_filtered_page_is_filled_and_loses_nothing_between_pages() {
        let (_, first) = ask(ten(), get("/v1/operations?dead=true&limit=3")).await;
        assert_eq!(keys(&first), ["k-8", "k-6", "k-4"]);
        let next = first["next"].as_str().unwrap();
        let (_, second) = ask(ten(), get(&format!("/v1/operations?dead=true&limit=3&cursor={next}"))).await;
        assert_eq!((keys(&second), &second["next"]), (vec!["k-2", "k-0"], &Value::Null));
    }

    #[tokio::test]
    async fn what_is_older_than_since_is_not_read_on_for() {
        let (_, list) = ask(ten(), get("/v1/operations?since=7000&limit=4")).await;
        assert_eq!((keys(&list), &list["next"]), (vec!["k-9", "k-8", "k-7"], &Value::Null));
    }

    #[tokio::test]
    async fn an_operation_comes_with_its_events() {
        let event = Event {
            revision: 1,
            at: Timestamp(0),
            kind: EventKind::Claimed,
            from: None,
            to: Some(StateName::Sent),
            attempts: 1,
            token: 1,
            owner: OwnerId::default(),
            cause: None,
            status: None,
        };
        let store = TestStore { events: vec![event], ..ten() };
        let id = store.operations[0].id;
        let (status, shown) = ask(store, get(&format!("/v1/operations/{id}"))).await;
        assert_eq!((status, &shown["id"]), (200, &json!(id.to_string())));
        let expected = json!({ "at": "1970-01-01T00:00:00.000Z", "kind": "claimed", "from": null, "to": "sent",
            "attempts": 1, "token": 1 });
        assert_eq!(shown["events"], json!([expected]));
        assert_eq!((&shown["upstream"], &shown["upstream_key"]), (&json!("bank"), &json!("made-for-upstream")));
    }

    #[tokio::test]
    async fn status_tells_version_store_and_routes() {
        let (status, shown) = ask(TestStore { mood: Mood::Away, ..ten() }, get("/v1/status")).await;
        assert_eq!((status, &shown["version"]), (200, &json!(env!("CARGO_PKG_VERSION"))));
        assert_eq!(shown["store"]["kind"], "memory");
        assert_eq!(shown["store"]["ok"], false);
        assert_eq!((&shown["routes"], &shown["warnings"]), (&json!({}), &json!([])));
    }

    #[tokio::test]
    async fn what_cannot_be_answered_is_a_problem() {
        let away = TestStore { mood: Mood::Away, ..ten() };
        assert_eq!(ask(away, get("/v1/operations")).await.0, 503);
        assert_eq!(ask(ten(), get("/v1/operations?x=1")).await.0, 400);
        assert_eq!(ask(ten(), get("/v1/operations/op_1")).await.0, 404);
        assert_eq!(ask(TestStore::default(), get(&format!("/v1/operations/{}", ten().operations[0].id))).await.0, 404);
        let (status, shown) = ask(ten(), get("/")).await;
        assert_eq!((status, &shown["code"]), (404, &json!("not-found")));
        assert!(
            shown["detail"].as_str().unwrap().contains("/v1/pauses") && shown.to_string().contains("127.0.0.1:8082")
        );
        assert_eq!(ask(ten(), Request::delete("/v1/operations").header("host", "localhost")).await.0, 405);
    }

    #[tokio::test]
    async fn a_pause_that_the_store_has_not_taken_holds_here_for_now() {
        for seconds in [0, 9] {
            let put = Request::put(format!("/v1/pauses?upstream=bank&seconds={seconds}")).header("host", "localhost");
            let (status, shown) = ask(TestStore { mood: Mood::Away, ..ten() }, put).await;
            let detail = shown["detail"].as_str().unwrap();
            assert_eq!((status, &shown["code"]), (503, &json!("store-unavailable")));
            assert!(detail.contains("for now") && detail.contains("say it again when the store answers"), "{detail}");
        }
    }

    #[tokio::test]
    async fn a_foreign_page_or_machine_gets_nothing() {
        for host in ["localhost", "LOCALHOST:1", "127.0.0.1:8081", "127.1.2.3", "[::1]:8081"] {
            assert_eq!(ask(ten(), Request::get("/v1/status").header("host", host)).await.0, 200, "{host}");
        }
        for host in ["evil.example", "localhost.evil.example:8081", "10.0.0.1", "[::2]", "user@localhost", ""] {
            assert_eq!(ask(ten(), Request::get("/v1/status").header("host", host)).await.0, 421, "{host}");
        }
        assert_eq!(ask(ten(), Request::get("/v1/status")).await.0, 421);
        assert_eq!(ask_from("10.0.0.9:5000", ten(), get("/v1/status")).await.0, 401);
    }
}
