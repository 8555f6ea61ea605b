//! What is known of operations afterwards: by the operators' API, and in the store itself.

use std::path::Path;
use std::sync::Arc;

use oncegate::operation::event::FIRST_EVENTS;
use oncegate::operation::{Event, EventKind, Operation, Receipt, StateName};
use oncegate::store::Store;
use oncegate::store::redis::RedisStore;
use serde_json::Value;

use super::Repeat;
use crate::support::gateway::{Gateway, NAMESPACE};
use crate::support::ground::Ground;
use crate::support::stores::open_file;
use crate::support::{PATIENCE, eventually};

const PAGE: usize = 200;

/// Returns when the newest operation is the one with `key`: it has been claimed.
pub fn has_begun(gateway: &Gateway, key: &str) {
    eventually(key, || gateway.operations("?limit=1").first().filter(|newest| newest.0["key"] == key).map(|_| ()));
}

/// Why the events that operators see do not tell one story up to the present state, each change once.
pub fn broken_view(shown: &Value) -> Option<String> {
    let (mut state, mut token) = (&Value::Null, 0);
    let has_gap = !shown["events_left_out"].is_null();
    for (place, event) in shown["events"].as_array()?.iter().enumerate() {
        let its_token = event["token"].as_u64()?;
        if its_token < token {
            return Some(format!("the token falls at {event}"));
        }
        token = its_token;
        if event["to"].is_null() {
            continue;
        }
        let is_after_gap = has_gap && place >= FIRST_EVENTS;
        if event["from"] != *state && !is_after_gap || event["from"] == event["to"] {
            return Some(format!("{event} does not follow from {state}"));
        }
        state = &event["to"];
    }
    (*state != shown["state"]).then(|| format!("the events end in {state}, not in {}", shown["state"]))
}

/// An operation as it is stored.
pub struct Stored {
    pub operation: Operation,
    pub receipt: Option<Receipt>,
    pub events: Vec<Event>,
}

impl Stored {
    pub fn key(&self) -> &str {
        &self.operation.identity.key
    }

    /// Whether nobody is at work on it, nor has to be.
    pub fn has_ended(&self) -> bool {
        !matches!(self.operation.state.name(), StateName::Claimed | StateName::Sent | StateName::Waiting)
    }

    /// Why the events are not totally ordered with one for each change of state.
    pub fn broken_order(&self) -> Option<String> {
        let ordered = self.events.windows(2).all(|pair| pair[0].revision < pair[1].revision);
        let has_gap = self.operation.events_left_out(self.events.len()) > 0;
        let mut state = None;
        let follows = self.events.iter().enumerate().filter(|(_, event)| event.to.is_some()).all(|(place, event)| {
            let follows = event.from == state || has_gap && place >= FIRST_EVENTS;
            state = event.to;
            follows && event.from != event.to
        });
        let ends = state == Some(self.operation.state.name());
        (!(ordered && follows && ends)).then(|| format!("events out of order: {:#?}", self.events))
    }

    /// Why some event is by another than the owner of its time, or by a token that was lower than one before it.
    pub fn broken_ownership(&self) -> Option<String> {
        let (mut owner, mut token) = (None, 0);
        let by_its_owner = self.events.iter().all(|event| {
            let is_begin = matches!(
                event.kind,
                EventKind::Claimed | EventKind::ClaimedAgain | EventKind::TakenOver | EventKind::Due
            );
            let changes_nothing = matches!(event.kind, EventKind::AnswerRefused | EventKind::Disputed);
            if is_begin {
                owner = Some(event.owner);
            }
            let is_in_turn = event.token >= token && (event.token > token) == is_begin;
            token = event.token;
            is_in_turn && (changes_nothing || owner == Some(event.owner))
        });
        (!by_its_owner).then(|| format!("an event by no owner: {:#?}", self.events))
    }

    /// Why an unknown ended though nobody brought evidence and nobody may send it again. Evidence is the late answer of its
    /// attempt, or the word of its owner that the attempt came to nothing.
    pub fn silent_end_of_doubt(&self) -> Option<String> {
        let may_resend = Repeat::of(self.key()) != Repeat::Unsafe;
        let silent = self.events.iter().filter(|event| event.from == Some(StateName::Unknown)).any(|event| {
            let is_resent = may_resend && event.kind == EventKind::ClaimedAgain;
            !matches!(event.kind, EventKind::LateAnswer | EventKind::NotExecuted) && !is_resent
        });
        silent.then(|| format!("an unknown ended by itself: {:#?}", self.events))
    }
}

/// Everything that is stored on `ground`. A file must not be in use.
pub fn stored_on(ground: &Ground) -> Vec<Stored> {
    stored_at(&ground.url())
}

/// Everything that is stored at `url`.
pub fn stored_at(url: &str) -> Vec<Stored> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = open(url).await;
        all(store.as_ref()).await
    })
}

async fn open(url: &str) -> Arc<dyn Store> {
    match url.strip_prefix("file:") {
        Some(path) => Arc::new(open_file(Path::new(path)).unwrap()),
        None => Arc::new(RedisStore::connect(url, NAMESPACE, PATIENCE).await.unwrap()),
    }
}

async fn all(store: &dyn Store) -> Vec<Stored> {
    let (mut stored, mut cursor) = (Vec::new(), None::<String>);
    loop {
        let page = store.list(cursor.as_deref(), PAGE).await.unwrap();
        for operation in page.operations {
            let receipt = store.read(operation.id).await.unwrap().unwrap().receipt;
            let events = store.events(operation.id).await.unwrap().events;
            stored.push(Stored { operation, receipt, events });
        }
        cursor = page.next;
        if cursor.is_none() {
            return stored;
        }
    }
}
