//! Wall clocks that jump by two days, under gateways, under Redis, and while nobody is there: nothing is free early,
//! and nobody waits for the dead.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use rusqlite::Connection;

use crate::support::client::Answer;
use crate::support::eventually;
use crate::support::gateway::{Gateway, Settings};
use crate::support::ground::Ground;
use crate::support::redis_server::RedisServer;
use crate::support::upstream::{Reply, ScriptedUpstream, Step};
use crate::support::wall_clock::WallClock;

const FORTH_AND_BACK: [&str; 2] = ["+2d", "-2d"];
/// Longer than three leases.
const LONG: Duration = Duration::from_millis(3200);
/// Two days are more than this, and a busy machine needs less.
const SOON: Duration = Duration::from_secs(20);
const WAIT: Duration = Duration::from_secs(2);

fn settings(upstream: &ScriptedUpstream) -> Settings {
    Settings::of(upstream).top("store.lease = '1s'").route("in_flight_wait = '200ms'").quick()
}

fn settings_under(clock: &WallClock, upstream: &ScriptedUpstream) -> Settings {
    let settings = settings(upstream);
    clock.environment().into_iter().fold(settings, |settings, (name, value)| settings.environment(name, value))
}

/// For longer than the lease the owner of the key is the one that it was.
#[track_caller]
fn stays_in_progress(gateway: &Gateway, key: &str) {
    let until = Instant::now() + LONG;
    while Instant::now() < until {
        gateway.charge(key).send().expect_problem(409, "in-progress");
    }
}

/// The first answer that does not say "not yet".
#[track_caller]
fn end_of(gateway: &Gateway, key: &str) -> Answer {
    eventually("the end of a call", || {
        let answer = gateway.charge(key).send();
        (answer.status == 201 || answer.json()["code"] != "in-progress").then_some(answer)
    })
}

fn a_running_gateway_does_not_notice(ground: &Ground) {
    let (upstream, clock) = (ScriptedUpstream::start(), WallClock::start());
    let gateway = settings_under(&clock, &upstream).start(ground);
    for (number, jump) in FORTH_AND_BACK.into_iter().enumerate() {
        let key = format!("k-{number}");
        upstream.then(Step::Held(Reply::charge(number)));
        let call = gateway.charge(&key).begin();
        upstream.wait_for(number + 1);
        clock.jump(jump);
        stays_in_progress(&gateway, &key);
        upstream.release();
        call.answer().expect(201);
        for back in ["+0d", jump] {
            clock.jump(back);
            assert!(gateway.charge(&key).send().expect(201).is_replay());
        }
    }
    assert_eq!(upstream.effects(), 2);
}

#[test]
fn a_running_gateway_does_not_notice_with_a_file() {
    a_running_gateway_does_not_notice(&Ground::file());
}

#[test]
fn a_running_gateway_does_not_notice_with_redis() {
    a_running_gateway_does_not_notice(&Ground::redis());
}

#[test]
fn a_wait_is_as_long_as_the_upstream_asked() {
    let (upstream, clock, ground) = (ScriptedUpstream::start(), WallClock::start(), Ground::file());
    let gateway = settings_under(&clock, &upstream).start(&ground);
    for (number, jump) in FORTH_AND_BACK.into_iter().enumerate() {
        upstream.then(Step::Reply(Reply::new(429).line("Retry-After: 2")));
        let call = gateway.charge(&format!("k-{number}")).begin();
        upstream.wait_for(2 * number + 1);
        clock.jump(jump);
        call.answer().expect(201);
        let seen = upstream.seen();
        let waited = seen[2 * number + 1].at.duration_since(seen[2 * number].at);
        assert!(waited >= WAIT && waited < SOON, "{jump}: {waited:?}");
    }
}

/// A Redis, its clock, and two gateways on it.
fn fleet(upstream: &ScriptedUpstream) -> (WallClock, Ground, [Gateway; 2]) {
    let clock = WallClock::start();
    let ground = Ground::Redis(RedisServer::within(clock.environment(), &[]));
    let gateways = [(), ()].map(|()| settings(upstream).start(&ground));
    (clock, ground, gateways)
}

#[test]
fn a_redis_whose_clock_jumps_frees_no_key_of_a_live_owner() {
    let upstream = ScriptedUpstream::start();
    let (clock, ground, [owner, other]) = fleet(&upstream);
    for (number, jump) in FORTH_AND_BACK.into_iter().enumerate() {
        let key = format!("k-{number}");
        upstream.then(Step::Held(Reply::charge(number)));
        let call = owner.charge(&key).begin();
        upstream.wait_for(number + 1);
        clock.jump(jump);
        stays_in_progress(&other, &key);
        let late = settings(&upstream).start(&ground);
        stays_in_progress(&late, &key);
        upstream.release();
        call.answer().expect(201);
        assert!(other.charge(&key).send().expect(201).is_replay());
    }
    assert_eq!(upstream.effects(), 2);
}

#[test]
fn a_redis_whose_clock_jumps_keeps_nobody_waiting_for_the_dead() {
    for jump in FORTH_AND_BACK {
        let upstream = ScriptedUpstream::start();
        let (clock, _ground, [mut owner, other]) = fleet(&upstream);
        upstream.then(Step::Held(Reply::charge(1)));
        let call = owner.charge("k").begin();
        upstream.wait_for(1);
        clock.jump(jump);
        owner.kill();
        let dead_since = Instant::now();
        other.wait_for("unknown");
        assert!(dead_since.elapsed() < SOON, "{jump}");
        drop(call);
    }
}

#[test]
fn a_redis_whose_clock_went_back_while_nobody_was_there_blocks_nobody() {
    let upstream = ScriptedUpstream::start();
    let (clock, mut ground, [mut owner, mut other]) = fleet(&upstream);
    upstream.then(Step::Held(Reply::charge(1)));
    let call = owner.charge("k").begin();
    upstream.wait_for(1);
    other.kill();
    owner.kill();
    drop(call);
    ground.server().kill();
    clock.jump("-2d");
    ground.server().restart();
    owner.restart();
    end_of(&owner, "k").expect_problem(409, "outcome-unknown");
    owner.charge("another").send().expect(201);
    assert_eq!(upstream.seen().len(), 2);
}

/// A gateway on a file, killed with three calls in it: `done`, `sent` to an upstream that knows keys, and `waiting`.
fn killed(upstream: &ScriptedUpstream, clock: &WallClock, ground: &Ground) -> Gateway {
    let mut gateway = settings_under(clock, upstream).with_key().start(ground);
    gateway.charge("done").send().expect(201);
    upstream.then(Step::Reply(Reply::new(429).line("Retry-After: 2")));
    let waiting = gateway.charge("waiting").begin();
    gateway.wait_for("waiting");
    upstream.then(Step::Held(Reply::charge(2)));
    let sent = gateway.charge("sent").begin();
    upstream.wait_for(3);
    gateway.kill();
    drop((waiting, sent));
    gateway
}

#[test]
fn a_file_that_is_opened_by_another_clock_goes_on_by_its_own_time() {
    for jump in FORTH_AND_BACK {
        let (upstream, clock, ground) = (ScriptedUpstream::honouring_keys(), WallClock::start(), Ground::file());
        let mut gateway = killed(&upstream, &clock, &ground);
        clock.jump(jump);
        gateway.restart();
        let since = Instant::now();
        assert!(gateway.charge("done").send().expect(201).is_replay(), "{jump}");
        end_of(&gateway, "sent").expect(201);
        end_of(&gateway, "waiting").expect(201);
        assert!(since.elapsed() < SOON, "{jump}: {:?}", since.elapsed());
        assert_eq!(upstream.effects(), 3, "{jump}");
    }
}

/// By its own uptime it was closed for two days, and for a moment by that of the machine.
#[test]
fn the_uptime_of_a_container_is_not_that_of_the_machine() {
    let (upstream, directory) = (ScriptedUpstream::start(), tempfile::tempdir().unwrap());
    let (ground, uptime) = (Ground::file(), directory.path().join("uptime"));
    std::fs::write(&uptime, "1000000.00 1.00\n").unwrap();
    let mut gateway = settings(&upstream).with_uptime(&uptime).start(&ground);
    assert_eq!(std::fs::read(gateway.view("/proc/uptime".as_ref())).unwrap(), b"1000000.00 1.00\n");
    gateway.charge("done").send().expect(201);
    gateway.kill();
    std::fs::write(&uptime, "1172800.00 1.00\n").unwrap();
    gateway.restart();
    assert!(gateway.charge("done").send().expect(201).is_replay());
}

#[test]
fn a_machine_that_does_not_tell_its_boot_is_warned_of() {
    let (upstream, warning) = (ScriptedUpstream::start(), "does not tell its boot");
    assert!(settings(&upstream).without_boot().start(&Ground::file()).log().contains(warning));
    assert!(!settings(&upstream).start(&Ground::file()).log().contains(warning));
}

/// The file was noted in another life of the machine.
fn reboot(ground: &Ground) {
    let path = PathBuf::from(ground.url().trim_start_matches("file:"));
    let file = Connection::open(path).unwrap();
    let changed = file.execute("UPDATE notes SET value = value || '-before' WHERE name = 'clock'", []).unwrap();
    assert_eq!(changed, 1);
}

#[test]
fn after_a_reboot_with_the_clock_set_back_nothing_is_sent_that_may_be_too_late() {
    let (upstream, clock, ground) = (ScriptedUpstream::honouring_keys(), WallClock::start(), Ground::file());
    let mut gateway = killed(&upstream, &clock, &ground);
    reboot(&ground);
    clock.jump("-2d");
    gateway.restart();
    let since = Instant::now();
    assert!(gateway.charge("done").send().expect(201).is_replay());
    end_of(&gateway, "sent").expect_problem(409, "outcome-unknown");
    end_of(&gateway, "waiting").expect(201);
    assert!(since.elapsed() < SOON, "{:?}", since.elapsed());
}

#[test]
fn after_a_reboot_with_the_clock_set_forward_nothing_runs_again() {
    let (upstream, clock, ground) = (ScriptedUpstream::honouring_keys(), WallClock::start(), Ground::file());
    let mut gateway = killed(&upstream, &clock, &ground);
    reboot(&ground);
    clock.jump("+2d");
    gateway.restart();
    gateway.charge("done").send().expect_problem(409, "result-expired");
    end_of(&gateway, "sent").expect_problem(409, "outcome-unknown");
    assert_eq!(upstream.effects(), 2);
}
