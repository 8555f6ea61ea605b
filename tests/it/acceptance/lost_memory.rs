//! The store forgets what it acknowledged, under a fleet at work: no call of before runs a second time, and an operator
//! decides how to go on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use redis::Commands;

use crate::support::client::Answer;
use crate::support::eventually;
use crate::support::gateway::{Gateway, Settings};
use crate::support::ground::Ground;
use crate::support::upstream::ScriptedUpstream;

on! { [redis]
    a_flush_under_load_runs_nothing_a_second_time
    a_fleet_waits_for_one_word_of_an_operator
    a_route_that_passes_without_a_store_is_closed_as_well
}

on! { [memory file redis]
    a_store_that_lost_nothing_has_nothing_to_accept
}

fn a_flush_under_load_runs_nothing_a_second_time(mut ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let settings = Settings::of(&upstream).with_key();
    let gateways = [settings.start(&ground), settings.start(&ground)];
    let is_flushed = AtomicBool::new(false);
    let ran: Vec<String> = thread::scope(|scope| {
        let callers: Vec<_> = (0..4)
            .map(|caller| {
                let (gateway, is_flushed) = (&gateways[caller % 2], &is_flushed);
                scope.spawn(move || charge_until(gateway, caller, is_flushed))
            })
            .collect();
        eventually("some charges", || (upstream.effects() > 50).then_some(()));
        flush(&mut ground);
        is_flushed.store(true, Ordering::SeqCst);
        callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect()
    });
    assert!(ran.len() > 50, "{}", ran.len());
    for key in &ran {
        for gateway in &gateways {
            expect_lost_or_unkept(gateway.charge(key).send());
        }
    }
    let newcomer = settings.start(&ground);
    ran.iter().for_each(|key| expect_lost(newcomer.charge(key).send()));
    let seen = upstream.seen();
    for key in &ran {
        let sends = seen.iter().filter(|call| call.key() == Some(key)).count();
        assert_eq!(sends, 1, "{key}");
    }
}

fn a_fleet_waits_for_one_word_of_an_operator(mut ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let settings = Settings::of(&upstream);
    let (one, mut other) = (settings.start(&ground), settings.start(&ground));
    one.charge("k-1").send().expect(201);
    flush(&mut ground);

    expect_lost(one.charge("k-1").send());
    expect_lost(other.charge("k-1").send());
    for gateway in [&one, &other] {
        eventually("word of the loss", || is_told(gateway).then_some(()));
        assert_eq!(gateway.readiness().status, 200, "the store decides where it is asked for");
        assert_eq!(gateway.probe("/readyz?store=1").status, 503);
    }
    other.kill();
    other.restart();
    expect_lost(other.charge("k-1").send());
    other
        .admin_call("POST", "/v1/store/accept-loss")
        .header("Origin", "http://localhost")
        .send()
        .expect_problem(400, "invalid-request");

    let accepted = other.admin_call("POST", "/v1/store/accept-loss").send();
    assert_eq!((accepted.status, accepted.json()["accepted"].as_bool()), (200, Some(true)), "{accepted:?}");
    for (number, gateway) in [&one, &other].into_iter().enumerate() {
        let key = format!("after-{number}");
        let taken = eventually("calls", || Some(gateway.charge(&key).send()).filter(|answer| answer.status != 503));
        taken.expect(201);
        eventually("a status without the loss", || (!is_told(gateway)).then_some(()));
    }
    other.admin_call("POST", "/v1/store/accept-loss").send().expect_problem(409, "conflict");
    ground.server().kill();
    ground.server().restart();
    other.kill();
    other.restart();
    for gateway in [&one, &other] {
        let replay = eventually("the store", || Some(gateway.charge("after-0").send()).filter(|it| it.status != 503));
        assert!(replay.expect(201).is_replay());
    }
    assert_eq!(upstream.effects(), 3);
    assert_eq!(one.log().matches("the store has lost its memory; guarded calls").count(), 1);
}

fn a_route_that_passes_without_a_store_is_closed_as_well(mut ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let route = "[[routes]]\nname = 'open'\nmatch.path = '/open'\nmatch.methods = ['PUT']\nupstream = 'payments'\n\
                 on_store_down = 'pass'";
    let gateway = Settings::of(&upstream).and(route).start(&ground);
    flush(&mut ground);
    let put = || gateway.call("PUT", "/open").key("k-1").json(r#"{"limit": 5}"#).send();
    expect_lost(put());
    assert_eq!(upstream.seen().len(), 0);
    ground.server().kill();
    let passed = eventually("a pass past a store that is away", || Some(put()).filter(|answer| answer.status == 201));
    assert_eq!(passed.header("Oncegate-Guarded"), Some("no; reason=store"));
}

fn a_store_that_lost_nothing_has_nothing_to_accept(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let gateway = Settings::of(&upstream).start(&ground);
    gateway.admin_call("POST", "/v1/store/accept-loss").send().expect_problem(409, "conflict");
    assert_eq!(gateway.admin_call("GET", "/v1/store/accept-loss").send().header("Allow"), Some("POST"));
}

/// The keys whose calls were answered with a receipt; ends with the first that was refused after the flush.
fn charge_until(gateway: &Gateway, caller: usize, is_flushed: &AtomicBool) -> Vec<String> {
    let mut ran = Vec::new();
    for number in 0.. {
        let key = format!("caller-{caller}-{number}");
        let answer = gateway.charge(&key).send();
        match answer.status {
            201 => ran.push(key),
            _ if is_flushed.load(Ordering::SeqCst) => break,
            // It was on its way when the store was flushed.
            _ => {}
        }
    }
    ran
}

fn flush(ground: &mut Ground) {
    let client = redis::Client::open(ground.server().url()).unwrap();
    client.get_connection().unwrap().flushall::<()>().unwrap();
}

fn is_told(gateway: &Gateway) -> bool {
    let status = gateway.admin("/v1/status");
    let says = |warning: &serde_json::Value| warning.as_str().unwrap().contains("accept-loss");
    let readiness = gateway.readiness().json();
    let in_store = readiness["store"]["error"].as_str().is_some_and(|error| error.contains("lost its memory"));
    status["warnings"].as_array().unwrap().iter().any(says) && in_store
}

/// The owner of a call that was under way during the flush still holds its answer.
#[track_caller]
fn expect_lost_or_unkept(answer: Answer) {
    if answer.header("Oncegate-Receipt") != Some("none") {
        expect_lost(answer);
    }
}

#[track_caller]
fn expect_lost(answer: Answer) {
    let answer = answer.expect_problem(503, "store-unavailable");
    let told = answer.json();
    assert!(told["detail"].as_str().unwrap().contains("POST /v1/store/accept-loss"), "{answer:?}");
    assert!(told["advice"].as_str().unwrap().contains("operator"), "{answer:?}");
    assert_eq!(answer.execution(), Some("unknown"), "an earlier call of the key may be what was lost");
}
