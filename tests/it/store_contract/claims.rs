//! Who wins a key, and who stands in the way.

use oncegate::clock::Timestamp;
use oncegate::operation::transition::Retention;
use oncegate::operation::{Identity, Operation};
use oncegate::store::{Claimed, Found, Store};

use crate::support::operations::*;

const DIGEST: [u8; 32] = [0xd1; 32];

pub async fn of_many_claims_one_wins(store: &dyn Store) {
    let changes: Vec<_> = (0..64).map(|_| claim(store, "one")).collect();
    let claims = at_once(changes.iter().map(|change| store.claim(change, None))).await;
    let claims = changes.iter().zip(claims.into_iter().map(Result::unwrap));
    let (winners, losers): (Vec<_>, Vec<_>) = claims.partition(|(_, claimed)| *claimed == Claimed::Won);
    assert_eq!(winners.len(), 1);
    for (_, claimed) in losers {
        assert_eq!(claimed, exists(&winners[0].0.operation));
    }
}

pub async fn a_claim_sent_again_is_won(store: &dyn Store) {
    let change = claim(store, "again");
    won(store, change.clone()).await;
    won(store, change.clone()).await;
    assert_eq!(store.events(change.operation.id).await.unwrap().len(), 1);
}

pub async fn a_key_with_an_end_answers_with_its_receipt(store: &dyn Store) {
    let operation = put_settled(store, "ended", KEPT_LONG).await;
    let found = Found::new(operation, Some(Ok(receipt("done"))));
    let claimed = store.claim(&claim(store, "ended"), None).await.unwrap();
    assert_eq!(claimed, Claimed::Exists(Box::new(found)));
}

pub async fn keys_of_odd_bytes_stay_apart(store: &dyn Store) {
    let long = "k".repeat(255);
    let keys = ["", " ", "{a}", "a\0b", "a\nb", "'; --", "\u{7f}\u{fffd}", "ключ", "a:b", "a*", &long];
    for key in keys {
        let identity = Identity { session: Some(key.to_owned()), step: Some(key.to_owned()), ..identity(key) };
        won(store, claim_as(store, identity, HOUR)).await;
    }
    for key in keys {
        let found = store.read(id(key)).await.unwrap().unwrap();
        assert_eq!(found.operation.identity.key, key);
        assert_eq!(found.operation.identity.session.as_deref(), Some(key));
    }
}

pub async fn an_unresolved_call_stops_its_alike(store: &dyn Store) {
    let unresolved = put_unknown(store, claim_unnamed(store, "a", DIGEST, None)).await;
    let second = claim_unnamed(store, "b", DIGEST, None);
    assert_eq!(store.claim(&second, None).await.unwrap(), alike(&unresolved));
    assert_eq!(store.read(second.operation.id).await.unwrap(), None, "nothing was written");
    assert_eq!(store.claim(&second, Some(unresolved.id)).await.unwrap(), Claimed::Won);
    won(store, claim_unnamed(store, "c", [0xd2; 32], None)).await;
}

pub async fn a_running_call_does_not_stop_its_alike(store: &dyn Store) {
    put_sent(store, claim_unnamed(store, "a", DIGEST, None)).await;
    won(store, claim_unnamed(store, "b", DIGEST, None)).await;
}

/// Whether its owner is alive nobody knows, and the sweep may not have looked yet.
pub async fn a_call_whose_lease_is_over_stops_its_alike(store: &dyn Store) {
    let running = put_sent(store, claim_unnamed(store, "a", DIGEST, None)).await;
    let over = applied(store, running.renew(SOON, step(store.now())).unwrap()).await;
    past(store, over.due().unwrap()).await;
    let second = claim_unnamed(store, "b", DIGEST, None);
    assert_eq!(store.claim(&second, None).await.unwrap(), alike(&over));
    let renewed = applied(store, over.renew(HOUR, step(store.now())).unwrap()).await;
    won(store, second).await;
    applied(store, settled(store, &renewed, receipt("done"), KEPT_LONG)).await;
    won(store, claim_unnamed(store, "c", DIGEST, None)).await;
}

pub async fn a_call_that_moved_on_lets_its_alike_pass(store: &dyn Store) {
    let unresolved = put_unknown(store, claim_unnamed(store, "a", DIGEST, None)).await;
    applied(store, settled(store, &unresolved, receipt("late"), KEPT_LONG)).await;
    won(store, claim_unnamed(store, "b", DIGEST, None)).await;
}

pub async fn an_alike_is_the_same_call_within_its_window_only(store: &dyn Store) {
    let now = store.now();
    let first = won(store, claim_unnamed(store, "a", DIGEST, Some(now.after(HOUR)))).await;
    let second = claim_unnamed(store, "b", DIGEST, Some(now.after(HOUR)));
    assert_eq!(store.claim(&second, None).await.unwrap(), alike(&first));
    let other = [0xd3; 32];
    won(store, claim_unnamed(store, "c", other, Some(Timestamp(now.0 - 1)))).await;
    won(store, claim_unnamed(store, "d", other, Some(now.after(HOUR)))).await;
}

pub async fn of_two_unresolved_calls_the_end_of_one_frees_nothing(store: &dyn Store) {
    let first = put_unknown(store, claim_unnamed(store, "a", DIGEST, None)).await;
    let claim = claim_unnamed(store, "b", DIGEST, None);
    assert_eq!(store.claim(&claim, Some(first.id)).await.unwrap(), Claimed::Won);
    let running = applied(store, sent(store, &claim.operation)).await;
    let second = applied(store, unknown(store, &running)).await;
    applied(store, settled(store, &second, receipt("late"), KEPT_LONG)).await;
    let third = claim_unnamed(store, "c", DIGEST, None);
    assert_eq!(store.claim(&third, None).await.unwrap(), alike(&first));
}

pub async fn a_vanished_call_stops_nobody(store: &dyn Store) {
    let window = store.now().after(HOUR);
    let short = Retention { receipts: SOON, tombstones: SOON, unknowns: None };
    let running = put_sent(store, claim_unnamed(store, "a", DIGEST, Some(window))).await;
    let ended = applied(store, settled(store, &running, receipt("done"), short)).await;
    past(store, ended.expires_at.unwrap()).await;
    won(store, claim_unnamed(store, "b", DIGEST, Some(window))).await;
}

fn exists(operation: &Operation) -> Claimed {
    Claimed::Exists(Box::new(Found::new(operation.clone(), None)))
}

fn alike(operation: &Operation) -> Claimed {
    Claimed::Alike(Box::new(Found::new(operation.clone(), None)))
}
