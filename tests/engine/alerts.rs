//! Alerts of a fleet: whose turn it is, and what is left to whoever has the next one.

use std::sync::Arc;
use std::time::Duration;

use oncegate::config::{AlertFormat, Alerts, Receiver, Secret};
use oncegate::store::Store;
use oncegate::worker::alerts::tell;
use tokio_util::sync::CancellationToken;

use crate::rig::{Act, Gateway, Setup, secs};

const KEYS: [&str; 3] = ["a", "b", "c"];

/// Nobody knows of any of its calls whether it ran.
async fn with_letters() -> Gateway {
    let gateway = Gateway::before(KEYS.map(|_| Act::Closes).into(), Setup::UNSAFE);
    for key in KEYS {
        gateway.call(key).await;
    }
    gateway
}

/// To the log, unless there is a receiver.
fn tells(gateway: &Gateway, receiver: Option<Receiver>) {
    let (group_by, group_wait, repeat_interval) = (Vec::new(), Duration::ZERO, secs(3600));
    let rules = Alerts { format: AlertFormat::Log, receiver, group_by, group_wait, repeat_interval };
    tokio::spawn(tell(Arc::clone(&gateway.engine), rules, CancellationToken::new()));
}

/// A receiver that is not there.
fn nobody() -> Receiver {
    Receiver {
        tls: false,
        host: "127.0.0.1".to_owned(),
        port: 1,
        authority: "127.0.0.1:1".to_owned(),
        target: Secret("/".to_owned()),
        client_tls: None,
        secret: None,
    }
}

/// Letters of which it is noted that they were told, and what is still on its way.
async fn told(gateway: &Gateway) -> (usize, String) {
    let mut told = 0;
    for key in KEYS {
        let letter = gateway.kept(key).await.unwrap().operation.dead_letter().unwrap();
        told += usize::from(letter.alerted_at.is_some());
    }
    (told, gateway.store.recall("alert").await.unwrap().unwrap())
}

#[tokio::test(start_paused = true)]
async fn who_loses_the_turn_leaves_the_rest_to_the_next_one() {
    let gateway = with_letters().await;
    let neighbour = gateway.neighbour();
    // To look for an alert, to store it, and for the first of its letters.
    gateway.store.has_turns(3);
    tells(&gateway, None);
    gateway.at(secs(10)).await;
    let (noted, on_its_way) = told(&gateway).await;
    assert_eq!(noted, 1);
    assert!(on_its_way.contains("al_"), "{on_its_way}");
    tells(&neighbour, None);
    gateway.at(secs(20)).await;
    assert_eq!(told(&gateway).await, (KEYS.len(), String::new()));
}

/// Another gateway has delivered what this one could not.
#[tokio::test(start_paused = true)]
async fn the_failures_of_one_alert_are_none_of_the_next() {
    let gateway = Gateway::before((0..4).map(|_| Act::Closes).collect(), Setup::UNSAFE);
    let neighbour = gateway.neighbour();
    gateway.call("first").await;
    neighbour.store.has_turns(0);
    tells(&gateway, Some(nobody()));
    tells(&neighbour, None);
    gateway.at(secs(200)).await;
    gateway.store.has_turns(0);
    neighbour.store.has_turns(usize::MAX);
    gateway.at(secs(300)).await;
    assert_eq!(gateway.store.recall("alert").await.unwrap().unwrap(), "");
    neighbour.store.has_turns(0);
    gateway.store.has_turns(usize::MAX);
    gateway.at(secs(310)).await;
    let failures = || gateway.engine.shared().status.alerts.failures.get();
    let before = failures();
    gateway.call("second").await;
    gateway.at(secs(345)).await;
    assert!(failures() >= before + 5, "waits of 1, 2, 4, 8 and 16 s at most: {before} and {}", failures());
}

#[tokio::test(start_paused = true)]
async fn who_has_not_the_turn_warns_of_nothing() {
    let gateway = with_letters().await;
    let warnings = || gateway.engine.shared().status.snapshot().warnings;
    tells(&gateway, Some(nobody()));
    gateway.at(secs(20)).await;
    assert!(warnings().iter().any(|warning| warning.starts_with("alerts: ")), "{:?}", warnings());
    gateway.store.has_turns(0);
    gateway.at(secs(200)).await;
    assert_eq!(warnings(), [""; 0]);
}
