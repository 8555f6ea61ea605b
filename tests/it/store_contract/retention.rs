//! How long things are kept.

use oncegate::operation::dead_letter::Next;
use oncegate::operation::transition::{Ended, Opening, Retention};
use oncegate::operation::{Cause, StateName};
use oncegate::store::{Claimed, Found, Store, Written};

use crate::support::lives;
use crate::support::operations::*;

pub async fn a_receipt_ends_before_its_tombstone(store: &dyn Store) {
    let keep = Retention { receipts: SOON, tombstones: HOUR, unknowns: None };
    let ended = put_settled(store, "tombstone", keep).await;
    past(store, ended.state.settled().unwrap().receipt_until).await;
    let tombstone = Found::new(ended.clone(), None);
    assert_eq!(store.read(ended.id).await.unwrap(), Some(tombstone.clone()));
    assert!(store.at_hand(ended.id).is_none_or(|found| found == tombstone));
    let claimed = store.claim(&claim(store, "tombstone"), None).await.unwrap();
    assert_eq!(claimed, Claimed::Exists(Box::new(tombstone.clone())));
    store.purge(100).await.unwrap();
    assert_eq!(store.read(ended.id).await.unwrap(), Some(tombstone));
}

pub async fn a_record_that_ended_leaves_nothing(store: &dyn Store) {
    let ended = put_settled(store, "gone", Retention { receipts: SOON, tombstones: SOON, unknowns: None }).await;
    past(store, ended.expires_at.unwrap()).await;
    assert_eq!((store.read(ended.id).await.unwrap(), store.at_hand(ended.id)), (None, None));
    assert!(store.events(ended.id).await.unwrap().is_empty());
    assert_eq!(store.list(None, 10).await.unwrap().operations, []);
    // A server may keep it longer by as much as the write was under way.
    past(store, ended.expires_at.unwrap().after(SOON)).await;
    assert_eq!(store.write(&claim_again(store, &ended)).await.unwrap(), Written::Gone);
    let anew = won(store, claim(store, "gone")).await;
    assert_eq!(store.read(anew.id).await.unwrap(), Some(Found::new(anew.clone(), None)));
    assert_eq!(store.events(anew.id).await.unwrap().len(), 1);
    assert_eq!(store.purge(100).await.unwrap(), 0);
    assert_eq!(store.request(anew.id).await.unwrap(), Some(request("{}")));
}

pub async fn a_new_run_takes_the_end_of_life_away(store: &dyn Store) {
    let running = put_sent(store, claim(store, "back")).await;
    let keep = Retention { receipts: SOON, tombstones: std::time::Duration::from_secs(2), unknowns: None };
    let ended = Ended { cause: Cause::Status(503), may_have_run: false };
    let refused = applied(store, running.end(ended, Next::Client, keep, step(store.now())).unwrap()).await;
    assert_eq!(store.request(refused.id).await.unwrap(), Some(request("{}")));
    let now = store.now();
    let again = refused.claim_again(ownership(now, HOUR), Opening::Sent, step(now)).unwrap();
    let again = applied(store, again).await;
    past(store, refused.expires_at.unwrap()).await;
    store.purge(100).await.unwrap();
    assert_eq!(store.read(again.id).await.unwrap().unwrap().operation, again);
    assert_eq!(store.request(again.id).await.unwrap(), Some(request("{}")));
    assert_eq!(store.events(again.id).await.unwrap().len(), 4);
}

pub async fn what_is_over_leaves_nothing(store: &dyn Store) {
    past(store, lives::live(store).await).await;
    lives::purge(store).await;
}

pub async fn purging_leaves_what_lives(store: &dyn Store) {
    let unresolved = put_unknown(store, claim(store, "unknown")).await;
    let running = put_sent(store, claim(store, "running")).await;
    let ended = put_settled(store, "ended", KEPT_LONG).await;
    assert_eq!(store.purge(100).await.unwrap(), 0);
    assert_eq!(store.read(unresolved.id).await.unwrap().unwrap().operation.state.name(), StateName::Unknown);
    assert_eq!(store.read(running.id).await.unwrap().unwrap().operation, running);
    assert_eq!(store.read(ended.id).await.unwrap().unwrap().receipt, Some(receipt("done")));
    assert_eq!(store.at_hand(running.id), None);
    assert!(store.at_hand(ended.id).is_none_or(|found| found.receipt == Some(receipt("done"))));
    assert_eq!(store.events(ended.id).await.unwrap().len(), 3);
}

/// Any write will do; this one is of a record that may still be written.
fn claim_again(store: &dyn Store, ended: &oncegate::operation::Operation) -> oncegate::operation::transition::Change {
    let mut change = claim(store, "gone");
    change.expected = Some(ended.fence);
    change
}
