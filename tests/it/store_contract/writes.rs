//! Whose write counts, and what changes with it.

use bytes::Bytes;
use oncegate::operation::transition::Ended;
use oncegate::operation::{Cause, EventKind, Fence, OwnerId};
use oncegate::store::{Found, Store, Written};

use crate::support::operations::*;

pub async fn a_write_sent_again_is_applied_once(store: &dyn Store) {
    let claimed = won(store, claim(store, "lost-reply")).await;
    let change = sent(store, &claimed);
    applied(store, change.clone()).await;
    applied(store, change.clone()).await;
    assert_eq!(store.read(claimed.id).await.unwrap().unwrap().operation, change.operation);
    assert_eq!(store.events(claimed.id).await.unwrap().len(), 2);
}

pub async fn any_part_of_a_stale_fence_is_refused(store: &dyn Store) {
    let running = put_sent(store, claim(store, "fenced")).await;
    let change = settled(store, &running, receipt("stale"), KEPT_LONG);
    let held = running.fence;
    let stale = [
        Fence { owner: OwnerId([0xee; 16]), ..held },
        Fence { token: held.token + 1, ..held },
        Fence { revision: held.revision - 1, ..held },
    ];
    let found = Found::new(running.clone(), None);
    for fence in stale {
        let mut change = change.clone();
        change.expected = Some(fence);
        assert_eq!(store.write(&change).await.unwrap(), Written::Refused(Box::new(found.clone())));
    }
    assert_eq!(store.read(running.id).await.unwrap(), Some(found));
    assert_eq!(store.request(running.id).await.unwrap(), Some(request("{}")));
    assert_eq!(store.events(running.id).await.unwrap().len(), 2);
    applied(store, change).await;
}

pub async fn of_two_writers_one_is_refused(store: &dyn Store) {
    let running = put_sent(store, claim(store, "raced")).await;
    let (settle, give_up) = (settled(store, &running, receipt("one"), KEPT_LONG), unknown(store, &running));
    let (one, other) = tokio::join!(store.write(&settle), store.write(&give_up));
    let (one, other) = (one.unwrap(), other.unwrap());
    let found = store.read(running.id).await.unwrap().unwrap();
    let winner = if one == Written::Applied { &settle } else { &give_up };
    assert_eq!(found.operation, winner.operation);
    assert_eq!([one, other].iter().filter(|written| **written == Written::Applied).count(), 1);
    assert_eq!(store.events(running.id).await.unwrap().len(), 3);
}

pub async fn there_is_nothing_to_write_without_a_record(store: &dyn Store) {
    let never = claim(store, "never").operation;
    assert_eq!(store.write(&sent(store, &never)).await.unwrap(), Written::Gone);
    assert_eq!(store.read(never.id).await.unwrap(), None);
    assert_eq!(store.request(never.id).await.unwrap(), None);
    assert!(store.events(never.id).await.unwrap().is_empty());
}

pub async fn the_request_lives_until_the_answer(store: &dyn Store) {
    let running = put_sent(store, claim(store, "kept")).await;
    assert_eq!(store.request(running.id).await.unwrap(), Some(request("{}")));
    let ended = applied(store, settled(store, &running, receipt("done"), KEPT_LONG)).await;
    assert_eq!(store.request(running.id).await.unwrap(), None);
    let found = Found::new(ended, Some(Ok(receipt("done"))));
    assert_eq!(store.read(running.id).await.unwrap(), Some(found));
}

pub async fn events_are_one_for_each_change_and_in_order(store: &dyn Store) {
    let first = put_sent(store, claim(store, "story")).await;
    let ended = Ended { cause: Cause::Status(429), may_have_run: false };
    let wait = first.wait(ended, store.now(), HOUR, step(store.now())).unwrap();
    let waiting = applied(store, wait).await;
    let renewed = applied(store, waiting.renew(HOUR, step(store.now())).unwrap()).await;
    let second = applied(store, sent(store, &renewed)).await;
    applied(store, settled(store, &second, receipt("done"), KEPT_LONG)).await;
    let events = store.events(first.id).await.unwrap();
    let kinds: Vec<_> = events.iter().map(|event| (event.revision, event.kind)).collect();
    let told = [EventKind::Claimed, EventKind::Sent, EventKind::Waiting, EventKind::Sent, EventKind::Settled];
    assert_eq!(kinds, [1, 2, 3, 5, 6].into_iter().zip(told).collect::<Vec<_>>());
    assert_eq!(events[2].cause, Some(Cause::Status(429)));
    assert!(events.is_sorted_by_key(|event| event.at));
}

pub async fn a_long_history_keeps_its_begin_and_its_newest_events(store: &dyn Store) {
    let mut operation = put_sent(store, claim(store, "restless")).await;
    for _ in 0..100 {
        let owner = ownership(store.now(), HOUR);
        operation = applied(store, operation.take_over(owner, step(store.now())).unwrap()).await;
    }
    let revisions: Vec<_> = store.events(operation.id).await.unwrap().iter().map(|event| event.revision).collect();
    assert_eq!(revisions, (1..=8).chain(47..=102).collect::<Vec<_>>());
    let record = store.read(operation.id).await.unwrap().unwrap().operation;
    assert_eq!((record.events, record.events_left_out(revisions.len())), (102, 38));
}

pub async fn bodies_come_back_byte_for_byte(store: &dyn Store) {
    let large: Vec<u8> = (0..1 << 20).map(|at: u32| (at.wrapping_mul(0x9e37_79b9) >> 24) as u8).collect();
    for (key, body) in [("empty", Bytes::new()), ("large", Bytes::from(large))] {
        let mut claim = claim(store, key);
        claim.request = oncegate::operation::transition::RequestChange::Put(request(body.clone()));
        let running = put_sent(store, claim).await;
        assert_eq!(store.request(running.id).await.unwrap(), Some(request(body.clone())));
        applied(store, settled(store, &running, receipt(body.clone()), KEPT_LONG)).await;
        assert_eq!(store.read(running.id).await.unwrap().unwrap().receipt, Some(receipt(body)));
    }
}
