//! Operations as the gateway would write them, made by the pure core.

use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, HeaderName};
use oncegate::clock::Timestamp;
use oncegate::operation::dead_letter::Next;
use oncegate::operation::transition::{self, Change, Ended, Opening, Ownership, Retention, Step, Verdict};
use oncegate::operation::{
    Alike, Cause, Fingerprint, Identity, Kept, KeySource, Operation, OperationId, OwnerId, Receipt, Scope, Settled,
    StoredRequest, WriteId,
};
use oncegate::store::{Claimed, Store, Written};

pub const HOUR: Duration = Duration::from_secs(3600);
/// Over before anybody waits for it, and after the step that sets it.
pub const SOON: Duration = Duration::from_millis(50);
pub const KEPT_LONG: Retention = Retention { receipts: HOUR, tombstones: Duration::from_secs(7200), unknowns: None };

const ROUTE: &str = "payments";

/// The name of the operation with `key`.
pub fn id(key: &str) -> OperationId {
    OperationId::of(Scope::none().digest(), ROUTE, key, None)
}

pub fn identity(key: &str) -> Identity {
    Identity {
        scope: Scope::none(),
        route: ROUTE.to_owned(),
        key: key.to_owned(),
        upstream_key: Some(key.to_owned()),
        source: KeySource::Client,
        fingerprint: Fingerprint { version: 1, digest: [7; 32] },
        session: None,
        step: None,
        alike: None,
        rules: [0; 8],
    }
}

pub fn request(body: impl Into<Bytes>) -> StoredRequest {
    StoredRequest {
        method: "POST".to_owned(),
        target: "/charges?expand=a%20b".to_owned(),
        headers: HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_bytes(b"application/json; \xff").unwrap())])
            .into(),
        body: body.into(),
        had_credential: false,
    }
}

pub fn receipt(body: impl Into<Bytes>) -> Receipt {
    let one = || HeaderName::from_static("x-one");
    let mut headers = HeaderMap::from_iter([(one(), HeaderValue::from_bytes(b"\x80").unwrap())]);
    headers.append(one(), HeaderValue::from_static(""));
    Receipt { status: 201, headers: headers.into(), body: body.into() }
}

/// A claim of `key` by a new owner with a lease of an hour, opened without a send.
pub fn claim(store: &dyn Store, key: &str) -> Change {
    claim_as(store, identity(key), HOUR)
}

pub fn claim_as(store: &dyn Store, identity: Identity, lease: Duration) -> Change {
    let step = step(store.now());
    transition::claim(id(&identity.key), identity, request("{}"), ownership(step.now, lease), Opening::Claimed, step)
        .unwrap()
}

/// A claim of an unnamed call. Look-alikes share the bucket that their digest names.
pub fn claim_unnamed(store: &dyn Store, key: &str, digest: [u8; 32], until: Option<Timestamp>) -> Change {
    let identity = Identity { alike: Some(Alike { digest, until }), source: KeySource::Stamped, ..identity(key) };
    let mut change = claim_as(store, identity, HOUR);
    change.operation.id = OperationId::of(Scope::none().digest(), ROUTE, key, Some(digest[0]));
    change
}

pub fn ownership(now: Timestamp, lease: Duration) -> Ownership {
    Ownership { owner: OwnerId(unique()), lease, deadline: now.after(HOUR), destination: [0; 8], accepted: false }
}

/// A write that has not been sent before.
pub fn step(now: Timestamp) -> Step {
    Step { now, write: WriteId(unique()) }
}

pub fn sent(store: &dyn Store, operation: &Operation) -> Change {
    operation.mark_sent(HOUR, step(store.now())).unwrap()
}

pub fn unknown(store: &dyn Store, operation: &Operation) -> Change {
    let ended = Ended { cause: Cause::Timeout, may_have_run: true };
    operation.end(ended, Next::Person, KEPT_LONG, step(store.now())).unwrap()
}

pub fn settled(store: &dyn Store, operation: &Operation, receipt: Receipt, keep: Retention) -> Change {
    let now = store.now();
    let settled = Settled {
        status: receipt.status,
        length: receipt.body.len() as u64,
        digest: [3; 32],
        kept: Kept::Whole,
        receipt_until: now.after(keep.receipts),
        after_doubt: false,
    };
    operation.settle(Verdict::Succeeded, settled, Some(receipt), keep, step(now)).unwrap()
}

pub async fn won(store: &dyn Store, change: Change) -> Operation {
    assert_eq!(store.claim(&change, None).await.unwrap(), Claimed::Won);
    change.operation
}

pub async fn applied(store: &dyn Store, change: Change) -> Operation {
    assert_eq!(store.write(&change).await.unwrap(), Written::Applied);
    change.operation
}

/// An operation that was claimed and sent.
pub async fn put_sent(store: &dyn Store, claim: Change) -> Operation {
    let claimed = won(store, claim).await;
    applied(store, sent(store, &claimed)).await
}

pub async fn put_unknown(store: &dyn Store, claim: Change) -> Operation {
    let running = put_sent(store, claim).await;
    applied(store, unknown(store, &running)).await
}

pub async fn put_not_executed(store: &dyn Store, key: &str, who: Next) -> Operation {
    let running = put_sent(store, claim(store, key)).await;
    let ended = Ended { cause: Cause::Connect, may_have_run: false };
    applied(store, running.end(ended, who, KEPT_LONG, step(store.now())).unwrap()).await
}

pub async fn put_settled(store: &dyn Store, key: &str, keep: Retention) -> Operation {
    let running = put_sent(store, claim(store, key)).await;
    applied(store, settled(store, &running, receipt("done"), keep)).await
}

/// All of `calls` in flight together; their answers in order.
pub async fn at_once<F: Future>(calls: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut calls: Vec<_> = calls.map(|call| (Box::pin(call), None)).collect();
    std::future::poll_fn(|context| {
        for (call, answer) in calls.iter_mut().filter(|(_, answer)| answer.is_none()) {
            if let Poll::Ready(answered) = call.as_mut().poll(context) {
                *answer = Some(answered);
            }
        }
        if calls.iter().all(|(_, answer)| answer.is_some()) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    calls.into_iter().filter_map(|(_, answer)| answer).collect()
}

/// Returns when the store's clock is past `time`.
pub async fn past(store: &dyn Store, time: Timestamp) {
    while store.now() <= time {
        let rest = time.since(store.now()) + Duration::from_millis(1);
        tokio::time::sleep(rest).await;
    }
}

fn unique() -> [u8; 16] {
    static DRAWN: AtomicU64 = AtomicU64::new(1);
    u128::from(DRAWN.fetch_add(1, Ordering::Relaxed)).to_be_bytes()
}
