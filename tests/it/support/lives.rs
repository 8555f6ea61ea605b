//! Lives of operations of every kind, short enough to see them end.

use std::time::Duration;

use oncegate::clock::Timestamp;
use oncegate::operation::dead_letter::Next;
use oncegate::operation::transition::{Ended, Opening, Retention};
use oncegate::operation::{Cause, Scope};
use oncegate::store::Store;

use crate::support::operations::*;

const SHORT: Retention = Retention { receipts: SOON, tombstones: Duration::from_millis(150), unknowns: None };
const ENDED: Ended = Ended { cause: Cause::Connect, may_have_run: false };

/// Lives through all of them; gives back when the last one is over.
pub async fn live(store: &dyn Store) -> Timestamp {
    for number in 0..20 {
        put_settled(store, &format!("settled-{number}"), SHORT).await;
    }
    not_executed_twice(store).await;
    late_answer(store).await;
    stamped(store).await;
    let until = store.now().after(SHORT.tombstones);
    store.remember("step:session 1", "op_1", Some(until)).await.unwrap();
    store.remember("step:session 1", "op_2", Some(until)).await.unwrap();
    until.after(SHORT.tombstones)
}

/// Returns when nothing is left to remove.
pub async fn purge(store: &dyn Store) {
    let mut idle = 0;
    while idle < 2 {
        // Of a fleet one gateway has the turn, for about a second.
        idle = if store.purge(7).await.unwrap() == 0 { idle + 1 } else { 0 };
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(store.list(None, 100).await.unwrap().operations.is_empty());
    assert!(store.due(100).await.unwrap().is_empty());
    assert_eq!(store.count_open(&Scope::none()).await.unwrap(), 0);
}

async fn not_executed_twice(store: &dyn Store) {
    let running = put_sent(store, claim(store, "refused")).await;
    let ended = applied(store, running.end(ENDED, Next::Client, KEPT_LONG, step(store.now())).unwrap()).await;
    let again = ended.claim_again(ownership(store.now(), HOUR), Opening::Claimed, step(store.now())).unwrap();
    let again = applied(store, again).await;
    applied(store, again.end(ENDED, Next::Client, SHORT, step(store.now())).unwrap()).await;
}

async fn late_answer(store: &dyn Store) {
    let unresolved = put_unknown(store, claim(store, "late")).await;
    applied(store, settled(store, &unresolved, receipt("late"), SHORT)).await;
}

/// Calls without a key of their own, with a window and without one.
async fn stamped(store: &dyn Store) {
    let window = store.now().after(SHORT.tombstones);
    for (number, until) in [Some(window), None].into_iter().enumerate() {
        let claim = claim_unnamed(store, &format!("stamped-{number}"), [number as u8; 32], until);
        let running = put_sent(store, claim).await;
        let unresolved = applied(store, unknown(store, &running)).await;
        applied(store, settled(store, &unresolved, receipt("done"), SHORT)).await;
    }
}
