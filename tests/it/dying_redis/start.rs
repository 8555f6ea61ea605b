//! A gateway that is started before its Redis is there.

use super::scene::{expect_away, settings};
use crate::support::eventually;
use crate::support::redis_server::RedisServer;
use crate::support::upstream::ScriptedUpstream;

#[test]
fn a_gateway_that_starts_first_says_what_it_does_and_goes_on_when_redis_is_there() {
    let (mut server, upstream) = (RedisServer::start(), ScriptedUpstream::start());
    server.kill();
    let gateway = settings(&upstream).start_on(&server.url());

    expect_away(gateway.charge("early").send());
    gateway.call("GET", "/charges").send().expect(201);
    let told = gateway.store_readiness();
    let why = told.json()["store"]["error"].to_string();
    assert!(told.status == 503 && why.contains("Connection refused"), "{told:?}");
    assert_eq!(gateway.readiness().status, 200);
    let said = |words: &str| eventually(words, || gateway.log().contains(words).then_some(()));
    said("store away: guarded calls get 503 store-unavailable and are not sent");

    server.restart();
    said("store back: guarded calls are made again");
    gateway.charge("early").send().expect(201);
    assert_eq!(upstream.effects(), 2, "a read, and the charge");
    assert_eq!(gateway.store_readiness().status, 200);
}

#[test]
fn a_wrong_password_ends_the_start_and_is_not_told() {
    let (server, upstream) = (RedisServer::start(), ScriptedUpstream::start());
    server.say::<()>(&["CONFIG", "SET", "requirepass", "right-one"]);
    let url = server.url().replace("//", "//:wrong-one@");
    let said = settings(&upstream).refusal(&url);
    assert!(said.contains("Redis refused the credentials") && !said.contains("wrong-one"), "{said}");
}
