//! Keys of two callers never meet, and nobody learns of another's.

use crate::support::client::{Answer, Call};
use crate::support::gateway::{Gateway, Settings};
use crate::support::ground::Ground;
use crate::support::upstream::ScriptedUpstream;

on! { [memory]
    c07_keys_of_two_callers_are_two_keys
    c07_a_credential_is_a_caller_of_its_own
    s05_a_guess_learns_nothing_of_another_callers_key
    a_stranger_is_turned_away_before_anything_else
    equal_keys_do_not_meet_at_an_upstream_with_our_credential
    equal_keys_do_not_meet_upstream_on_unguarded_calls_either
    a_key_under_the_name_that_the_service_has_for_it_does_not_meet_another_either
    a_page_of_another_site_does_not_spend_the_credential_of_a_sidecar
}

const TOKENS: &str = "[[callers.tokens]]\nname = 'support'\ntoken = 'old-token'\n\
                      [[callers.tokens]]\nname = 'support'\ntoken = 'new-token'\n\
                      [[callers.tokens]]\nname = 'billing'\ntoken = 'other-token'\n";

fn with_tokens(upstream: &ScriptedUpstream) -> Settings {
    Settings::of(upstream).top("callers.scope = 'token'").and(TOKENS)
}

fn charge_as(gateway: &Gateway, token: &str) -> Answer {
    gateway.charge("k-1").header("Authorization", format!("Bearer {token}")).send()
}

fn c07_keys_of_two_callers_are_two_keys(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let gateway = with_tokens(&upstream).start(&ground);

    let first = charge_as(&gateway, "old-token").expect(201);
    let other = charge_as(&gateway, "other-token").expect(201);
    let refreshed = charge_as(&gateway, "new-token").expect(201);

    assert!(!other.is_replay() && other.operation() != first.operation());
    assert!(refreshed.is_replay());
    assert_eq!((refreshed.operation(), &refreshed.body), (first.operation(), &first.body));
    assert_eq!(upstream.effects(), 2);
    assert!(upstream.seen().iter().all(|call| call.header("Authorization").is_none()), "ours goes no further");
    assert!(!gateway.log().contains("-token"));
}

fn c07_a_credential_is_a_caller_of_its_own(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let gateway = Settings::of(&upstream).top("callers.scope = 'credential'").start(&ground);

    let first = charge_as(&gateway, "one").expect(201);
    let other = charge_as(&gateway, "two").expect(201);
    let again = charge_as(&gateway, "one").expect(201);

    assert!(!other.is_replay() && again.is_replay());
    assert_eq!(again.operation(), first.operation());
    let credentials: Vec<_> =
        upstream.seen().iter().map(|call| call.header("Authorization").unwrap().to_owned()).collect();
    assert_eq!(credentials, ["Bearer one", "Bearer two"], "the callers' own go through");
}

fn s05_a_guess_learns_nothing_of_another_callers_key(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let gateway = Settings::of(&upstream).top("callers.scope = 'header:X-Tenant'").start(&ground);
    let as_tenant = |call: Call, tenant: &str| call.header("X-Tenant", tenant).send();

    let first = as_tenant(gateway.charge("k-1"), "one").expect(201);
    let other = as_tenant(gateway.post("/charges").key("k-1").json("{}"), "two").expect(201);
    assert!(!other.is_replay(), "neither a replay nor a 422");
    assert_eq!(upstream.effects(), 2);

    let look = |id: &str, tenant: &str| as_tenant(gateway.call("GET", &format!("/.oncegate/operations/{id}")), tenant);
    assert_eq!(look(first.operation(), "one").json()["state"], "succeeded");
    let foreign = look(first.operation(), "two").expect_problem(404, "not-found");
    let absent = look(&format!("op_{}", "0".repeat(32)), "two").expect_problem(404, "not-found");
    assert_eq!((&foreign.body, foreign.headers.len()), (&absent.body, absent.headers.len()));
}

fn a_stranger_is_turned_away_before_anything_else(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let gateway = with_tokens(&upstream).start(&ground);

    let nobody = gateway.charge("k-1").send().expect_problem(401, "unauthenticated");
    assert!(nobody.header("WWW-Authenticate").unwrap().starts_with("Bearer"));
    charge_as(&gateway, "guess").expect_problem(401, "unauthenticated");
    gateway.call("GET", "/charges").send().expect_problem(401, "unauthenticated");
    let id = format!("op_{}", "0".repeat(32));
    gateway.look_up(&id, "").expect_problem(401, "unauthenticated");

    assert!(upstream.seen().is_empty() && gateway.operations("").is_empty());
}

fn equal_keys_do_not_meet_at_an_upstream_with_our_credential(ground: Ground) {
    let upstream = ScriptedUpstream::honouring_keys();
    let settings = with_tokens(&upstream).with_key();
    let gateway = settings.top("upstreams.payments.headers.Authorization = 'Bearer service'").start(&ground);

    let one = charge_as(&gateway, "old-token").expect(201);
    let other = charge_as(&gateway, "other-token").expect(201);

    assert_eq!(upstream.effects(), 2);
    let seen = upstream.seen();
    assert!(seen.iter().all(|call| call.header("Authorization") == Some("Bearer service")));
    assert!(seen[0].key() != seen[1].key() && seen.iter().all(|call| call.key() != Some("k-1")));
    for answer in [one, other] {
        assert_eq!(answer.header("Idempotency-Key"), Some("k-1"), "the client's own comes back");
    }
}

fn equal_keys_do_not_meet_upstream_on_unguarded_calls_either(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let gateway = with_tokens(&upstream).route("key.mode = 'off'").start(&ground);

    charge_as(&gateway, "old-token").expect(201);
    charge_as(&gateway, "other-token").expect(201);
    charge_as(&gateway, "new-token").expect(201);

    let keys: Vec<_> = upstream.seen().iter().map(|call| call.header("Idempotency-Key").unwrap().to_owned()).collect();
    assert!(keys[0] != "k-1" && keys[0] != keys[1], "{keys:?}");
    assert_eq!(keys[0], keys[2], "one caller's key stays the same");
}

fn a_key_under_the_name_that_the_service_has_for_it_does_not_meet_another_either(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let paypal = with_tokens(&upstream).route("key.upstream_header = 'PayPal-Request-Id'");
    let off = paypal.clone().route("key.mode = 'off'").start(&ground);
    let large = paypal.route("max_body = '1B'\non_large_body = 'pass-unguarded'").start(&ground);

    for gateway in [&off, &large] {
        let call = gateway.post("/charges").header("Authorization", "Bearer old-token").json("{}");
        let answer = call.header("PayPal-Request-Id", "order-1").send().expect(201);
        assert!(answer.header("Oncegate-Guarded").is_some());
    }

    assert!(upstream.seen().iter().all(|call| call.header("PayPal-Request-Id").is_none()), "{:?}", upstream.seen());
}

fn a_page_of_another_site_does_not_spend_the_credential_of_a_sidecar(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let ours = Settings::of(&upstream).top("upstreams.payments.headers.Authorization = 'Bearer service'");
    let gateway = ours.clone().start(&ground);
    let by_page = |gateway: &Gateway, method| gateway.call(method, "/charges").header("Origin", "https://evil.example");

    for method in ["POST", "GET", "OPTIONS"] {
        by_page(&gateway, method).send().expect_problem(403, "invalid-request");
    }
    gateway
        .call("GET", "/charges")
        .header("Sec-Fetch-Site", "cross-site")
        .send()
        .expect_problem(403, "invalid-request");
    assert_eq!((upstream.seen().len(), gateway.operations("").len()), (0, 0));

    gateway.charge("k-1").header("Origin", "http://localhost:3000").send().expect(201);
    let behind_a_proxy = ours.top("server.trusted_proxies = ['127.0.0.1/32']").start(&ground);
    by_page(&behind_a_proxy, "POST").send().expect(201);
    by_page(&Settings::of(&upstream).start(&ground), "POST").send().expect(201);
    assert_eq!(upstream.effects(), 3);
}
