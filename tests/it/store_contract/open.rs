//! How many unfinished operations a scope has.

use oncegate::operation::dead_letter::Next;
use oncegate::operation::transition::{Ended, Opening};
use oncegate::operation::{Cause, Identity, Scope};
use oncegate::store::Store;

use crate::support::operations::*;

pub async fn what_is_unfinished_is_counted_until_it_ends(store: &dyn Store) {
    let running = put_sent(store, claim(store, "running")).await;
    let unresolved = put_unknown(store, claim(store, "unknown")).await;
    assert_eq!(open(store).await, 2);
    put_settled(store, "ended", KEPT_LONG).await;
    let again = claim(store, "running");
    store.claim(&again, None).await.unwrap();
    assert_eq!(open(store).await, 2, "neither one that ended nor one that is there already");
    let late = settled(store, &unresolved, receipt("late"), KEPT_LONG);
    applied(store, late.clone()).await;
    applied(store, late).await;
    applied(store, running.renew(HOUR, step(store.now())).unwrap()).await;
    assert_eq!(open(store).await, 1);
}

pub async fn a_new_run_counts_again(store: &dyn Store) {
    let running = put_sent(store, claim(store, "again")).await;
    let ended = Ended { cause: Cause::Connect, may_have_run: false };
    let ended = applied(store, running.end(ended, Next::Person, KEPT_LONG, step(store.now())).unwrap()).await;
    assert_eq!(open(store).await, 0);
    let again = ended.claim_again(ownership(store.now(), HOUR), Opening::Sent, step(store.now())).unwrap();
    let again = applied(store, again).await;
    assert_eq!(open(store).await, 1);
    applied(store, settled(store, &again, receipt("done"), KEPT_LONG)).await;
    assert_eq!(open(store).await, 0);
}

pub async fn scopes_are_counted_apart(store: &dyn Store) {
    let other = Scope::named("token", "other");
    for number in 0..3 {
        let key = format!("other-{number}");
        won(store, claim_as(store, Identity { scope: other.clone(), ..identity(&key) }, HOUR)).await;
    }
    won(store, claim(store, "own")).await;
    assert_eq!((open(store).await, store.count_open(&other).await.unwrap()), (1, 3));
    assert_eq!(store.count_open(&Scope::named("token", "nobody")).await.unwrap(), 0);
}

async fn open(store: &dyn Store) -> u64 {
    store.count_open(&Scope::none()).await.unwrap()
}
