//! What the worker and the operators go through, and small values.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use oncegate::clock::Timestamp;
use oncegate::operation::dead_letter::Next;
use oncegate::operation::transition::{Ended, Opening};
use oncegate::operation::{Cause, OperationId};
use oncegate::store::{Pace, Store, StoreError, TooMany};

use crate::support::operations::*;

pub async fn due_are_lapsed_leases_only(store: &dyn Store) {
    won(store, claim(store, "owned")).await;
    put_unknown(store, claim(store, "unknown")).await;
    put_settled(store, "ended", KEPT_LONG).await;
    let lapsed = [lapsed(store, "one").await, lapsed(store, "two").await, lapsed(store, "three").await];
    assert_eq!(due(store, 10).await, lapsed.into_iter().collect());
    let two = due(store, 2).await;
    assert_eq!(two.len(), 2);
    assert!(two.is_subset(&lapsed.into_iter().collect()));
}

pub async fn what_is_due_moves_with_the_lease(store: &dyn Store) {
    let operation = won(store, claim_as(store, identity("moves"), Duration::ZERO)).await;
    let renewed = applied(store, operation.renew(HOUR, step(store.now())).unwrap()).await;
    assert_eq!(due(store, 10).await, HashSet::new());
    let lapsed = applied(store, renewed.renew(Duration::ZERO, step(store.now())).unwrap()).await;
    assert_eq!(due(store, 10).await, HashSet::from([lapsed.id]));
    applied(store, lapsed.lapse(KEPT_LONG, step(store.now())).unwrap()).await;
    assert_eq!(due(store, 10).await, HashSet::new());
}

pub async fn pages_run_from_the_newest_to_the_oldest(store: &dyn Store) {
    let mut created = Vec::new();
    for number in 0..23 {
        let mut change = claim(store, &format!("listed-{number}"));
        change.operation.created_at = Timestamp(change.operation.created_at.0 + number);
        created.push(won(store, change).await);
    }
    created.reverse();
    let mut listed = Vec::new();
    let mut cursor = None;
    loop {
        let page = store.list(cursor.as_deref(), 10).await.unwrap();
        assert_eq!(page.operations.len(), 10.min(created.len() - listed.len()));
        listed.extend(page.operations);
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(listed, created);
    assert!(store.list(None, 23).await.unwrap().next.is_none());
}

pub async fn dead_letters_are_listed_while_they_are_open(store: &dyn Store) {
    put_sent(store, claim(store, "running")).await;
    put_settled(store, "done", KEPT_LONG).await;
    let unresolved = put_unknown(store, claim(store, "unknown")).await;
    let refused = put_not_executed(store, "refused", Next::Person).await;
    put_not_executed(store, "comes-back", Next::Client).await;
    let letters = async || {
        let page = store.dead_letters(None, 10).await.unwrap();
        page.operations.into_iter().map(|operation| operation.id).collect::<HashSet<_>>()
    };
    assert_eq!(letters().await, HashSet::from([unresolved.id, refused.id]));
    let since = refused.dead_letter().unwrap().since;
    let told = applied(store, refused.alerted(since, store.now(), step(store.now())).unwrap()).await;
    assert_eq!(letters().await, HashSet::from([unresolved.id, refused.id]));
    let again = told.claim_again(ownership(store.now(), HOUR), Opening::Sent, step(store.now())).unwrap();
    let again = applied(store, again).await;
    applied(store, settled(store, &unresolved, receipt("late"), KEPT_LONG)).await;
    assert_eq!(letters().await, HashSet::new());
    let ended = Ended { cause: Cause::Connect, may_have_run: false };
    applied(store, again.end(ended, Next::Person, KEPT_LONG, step(store.now())).unwrap()).await;
    assert_eq!(letters().await, HashSet::from([refused.id]), "one for each operation");
}

pub async fn dead_letters_come_page_by_page(store: &dyn Store) {
    let mut opened = HashSet::new();
    for number in 0..7 {
        opened.insert(put_not_executed(store, &format!("dead-{number}"), Next::Person).await.id);
        put_settled(store, &format!("done-{number}"), KEPT_LONG).await;
    }
    let (mut listed, mut cursor) = (Vec::new(), None);
    loop {
        let page = store.dead_letters(cursor.as_deref(), 3).await.unwrap();
        listed.extend(page.operations.into_iter().map(|operation| operation.id));
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(listed.len(), 7);
    assert_eq!(listed.into_iter().collect::<HashSet<_>>(), opened);
}

pub async fn a_cursor_of_nobody_is_refused(store: &dyn Store) {
    assert!(matches!(store.list(Some("\u{fffd} or so"), 10).await, Err(StoreError::NoSuchPlace)));
}

pub async fn a_note_gives_back_what_was_there(store: &dyn Store) {
    assert_eq!(store.remember("rules:a", "1\0\u{e9}", None).await.unwrap(), None);
    assert_eq!(store.remember("rules:b", "", None).await.unwrap(), None);
    assert_eq!(store.remember("rules:a", "2", None).await.unwrap().as_deref(), Some("1\0\u{e9}"));
    assert_eq!(store.remember("rules:b", "3", None).await.unwrap().as_deref(), Some(""));
}

pub async fn a_store_that_takes_writes_says_so(store: &dyn Store) {
    store.ping().await.unwrap();
}

async fn lapsed(store: &dyn Store, key: &str) -> OperationId {
    won(store, claim_as(store, identity(key), Duration::ZERO)).await.id
}

async fn due(store: &dyn Store, limit: usize) -> HashSet<OperationId> {
    store.due(limit).await.unwrap().into_iter().collect()
}

pub async fn a_name_is_held_for_the_longest_time_that_was_said(store: &dyn Store) {
    let (now, minute) = (store.now(), Duration::from_secs(60));
    store.hold("http://a *", now.after(minute)).await.unwrap();
    store.hold("http://a *", now.after(minute / 2)).await.unwrap();
    store.hold("http://b *", now.after(minute)).await.unwrap();
    store.hold("http://b *", now.after(minute * 2)).await.unwrap();
    store.hold("over", Timestamp(now.0 - 1)).await.unwrap();
    let until =
        HashMap::from([("http://a *".to_owned(), now.after(minute)), ("http://b *".to_owned(), now.after(minute * 2))]);
    assert_eq!(held(store).await, until);
    store.replace_hold("http://a *", now.after(minute / 2), None).await.unwrap();
    store.replace_hold("http://b *", now.after(minute * 2), None).await.unwrap();
    store.replace_hold("nobody", now, Some(now.after(minute))).await.unwrap();
    assert_eq!(held(store).await, HashMap::from([("http://a *".to_owned(), now.after(minute))]));
    store.replace_hold("http://a *", now.after(minute), Some(now.after(minute / 2))).await.unwrap();
    assert_eq!(held(store).await, HashMap::from([("http://a *".to_owned(), now.after(minute / 2))]));
}

pub async fn of_many_who_want_a_name_one_gets_it(store: &dyn Store) {
    let until = store.now().after(Duration::from_secs(60));
    let tries = at_once((0..8).map(|_| store.hold_if_over("canary", until))).await;
    let tries: Vec<_> = tries.into_iter().map(Result::unwrap).collect();
    assert_eq!(tries.iter().filter(|held| held.is_none()).count(), 1);
    assert!(tries.into_iter().flatten().all(|held| held == until));
    store.replace_hold("canary", until, None).await.unwrap();
    assert_eq!(store.hold_if_over("canary", until).await.unwrap(), None);
}

fn rate(name: &str, interval: Duration, burst: u32) -> (String, Pace) {
    (name.to_owned(), Pace { interval, burst })
}

pub async fn a_rate_is_taken_together_and_says_how_long_to_wait(store: &dyn Store) {
    let minute = Duration::from_secs(60);
    let three = [rate("rate:r", minute, 3)];
    let tries = at_once((0..8).map(|_| store.take(&three))).await;
    let waits: Vec<_> = tries.into_iter().filter_map(|taken| taken.unwrap().err()).collect();
    assert_eq!(waits.len(), 5);
    let soon = |told: &TooMany| told.rate == 0 && told.wait > Duration::from_secs(50) && told.wait <= minute;
    assert!(waits.iter().all(soon), "{waits:?}");
    assert_eq!(store.take(&[rate("rate:other", minute, 3)]).await.unwrap(), Ok(()));
    let quick = [rate("rate:quick", Duration::from_millis(1), 1)];
    assert_eq!(store.take(&quick).await.unwrap(), Ok(()));
    while store.take(&quick).await.unwrap().is_err() {
        tokio::task::yield_now().await;
    }
}

pub async fn what_one_rate_refuses_takes_nothing_from_another(store: &dyn Store) {
    let (minute, hour) = (Duration::from_secs(60), Duration::from_secs(3600));
    let all = || rate("rate:r", minute, 1);
    assert_eq!(store.take(&[all(), rate("rate:r:other", hour, 1)]).await.unwrap(), Ok(()));
    let own = rate("rate:r:own", hour, 1);
    for _ in 0..3 {
        assert_eq!(store.take(&[all(), own.clone()]).await.unwrap().unwrap_err().rate, 0);
    }
    let wide = || rate("rate:wide", minute, 9);
    assert_eq!(store.take(&[wide(), own.clone()]).await.unwrap(), Ok(()));
    let told = store.take(&[wide(), own]).await.unwrap().unwrap_err();
    assert!(told.rate == 1 && told.wait > minute, "the longest: {told:?}");
    for _ in 0..8 {
        assert_eq!(store.take(&[wide()]).await.unwrap(), Ok(()));
    }
    assert!(store.take(&[wide()]).await.unwrap().is_err());
}

async fn held(store: &dyn Store) -> HashMap<String, Timestamp> {
    store.held().await.unwrap().into_iter().collect()
}
