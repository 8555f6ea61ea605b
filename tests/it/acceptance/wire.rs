//! What goes to the service, and what it cannot say in our name.

use std::time::Duration;

use crate::support::gateway::Settings;
use crate::support::ground::Ground;
use crate::support::upstream::{Reply, ScriptedUpstream, Step};

on! { [memory]
    a_service_gets_the_call_as_it_came_and_who_brought_it
    s13_only_a_trusted_proxy_is_believed_about_the_way_here
    a_service_may_get_the_key_under_its_own_name_or_not_at_all
    a_clients_own_deadline_ends_the_retries
    a_hint_beyond_reach_goes_to_the_client_at_once
    a_retried_answer_is_passed_on_verbatim_when_the_tries_are_used_up
}

fn a_service_gets_the_call_as_it_came_and_who_brought_it(ground: Ground) {
    const BODY: &[u8] = b"{ \"amount\":5.00,\n \"note\": \"\xc3\xa9\" }";
    let upstream = ScriptedUpstream::start();
    let gateway = Settings::of(&upstream).start(&ground);

    let call = gateway.post("/charges/a%20b//c?x=1&x=%2f&y").key("k-1").header("X-Own", "1");
    let call = call.header("Oncegate-Attempt", "7").header("Oncegate-Operation", "op_forged");
    let call = call.header("X-Forwarded-For", "10.9.8.7").header("Connection", "x-hop").header("X-Hop", "1");
    let call = call.header("TE", "gzip, trailers;q=1").header("TE", "Trailers");
    call.header("X-Request-Timeout-Ms", "5000").json(BODY).send().expect(201);

    let seen = upstream.only();
    assert_eq!((seen.method.as_str(), seen.target.as_str()), ("POST", "/charges/a%20b//c?x=1&x=%2f&y"));
    assert_eq!((seen.body.as_slice(), seen.header("X-Own")), (BODY, Some("1")));
    assert_eq!((seen.key(), seen.header("Oncegate-Attempt")), (Some("k-1"), Some("1")));
    assert_eq!((seen.header("Oncegate-Operation"), seen.header("X-Hop")), (None, None));
    assert_eq!((seen.header("TE"), seen.header("Connection")), (Some("trailers"), Some("te")));
    assert_eq!(seen.header("Host"), Some(upstream.address().to_string().as_str()));
    assert_eq!(seen.header("X-Forwarded-For"), Some("127.0.0.1"));
    assert_eq!(seen.header("X-Forwarded-Host"), Some(gateway.address().to_string().as_str()));
    assert!(seen.header("Via").is_some_and(|via| via.starts_with("1.1 oncegate")), "{seen:?}");
    let left: u64 = seen.header("X-Request-Timeout-Ms").unwrap().parse().unwrap();
    assert!((1..=5000).contains(&left), "{left}");
}

fn s13_only_a_trusted_proxy_is_believed_about_the_way_here(ground: Ground) {
    for trusted in [false, true] {
        let upstream = ScriptedUpstream::start();
        let proxies = if trusted { "127.0.0.0/8" } else { "10.0.0.0/8" };
        let gateway = Settings::of(&upstream).top(&format!("server.trusted_proxies = ['{proxies}']")).start(&ground);

        let call = gateway.charge("k-1").header("X-Forwarded-For", "10.9.8.7").header("X-Forwarded-For", "10.1.1.1");
        let call = call.header("X-Forwarded-Proto", "https").header("X-Forwarded-Host", "shop.test");
        let call = call.header("Forwarded", "for=10.9.8.7").header("X-Real-IP", "10.9.8.7").header("Via", "1.0 fred");
        call.header("Oncegate-Attempt", "9").header("Idempotent-Replayed", "true").send().expect(201);

        let (seen, address) = (upstream.only(), gateway.address().to_string());
        let way = ["X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Host", "Forwarded", "X-Real-IP"];
        let told = way.map(|name| seen.header(name));
        let expected = match trusted {
            false => [Some("127.0.0.1"), Some("http"), Some(address.as_str()), None, None],
            true => [
                Some("10.9.8.7, 10.1.1.1, 127.0.0.1"),
                Some("https"),
                Some("shop.test"),
                Some("for=10.9.8.7"),
                Some("10.9.8.7"),
            ],
        };
        assert_eq!(told, expected, "trusted: {trusted}");
        let via: Vec<_> = seen.headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case("Via")).collect();
        assert!(via.len() == 2 && via[0].1 == "1.0 fred" && via[1].1.starts_with("1.1 oncegate-"), "{via:?}");
        assert_eq!((seen.header("Oncegate-Attempt"), seen.header("Idempotent-Replayed")), (Some("1"), None));
    }
}

fn a_service_may_get_the_key_under_its_own_name_or_not_at_all(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let route = |name: &str, header: &str| {
        format!("[[routes]]\nname = '{name}'\nmatch.path = '/{name}'\nupstream = 'payments'\nkey.{header}")
    };
    let paypal = route("paypal", "upstream_header = 'PayPal-Request-Id'\nkey.format = 'uuid'");
    let off = route("off", "upstream_header = 'off'");
    let gateway = Settings::of(&upstream).and(&paypal).and(&off).start(&ground);

    for target in ["/paypal", "/off"] {
        gateway.post(target).session("s-1", "1").json("{}").send().expect(201);
    }

    let seen = upstream.seen();
    assert_eq!((seen[0].key(), seen[0].header("PayPal-Request-Id").unwrap().len()), (None, 36));
    assert_eq!((seen[1].key(), seen[1].header("PayPal-Request-Id")), (None, None));
}

fn a_clients_own_deadline_ends_the_retries(ground: Ground) {
    let upstream = ScriptedUpstream::honouring_keys();
    upstream.then(Step::Held(Reply::charge(1)));
    let gateway = Settings::of(&upstream).with_key().start(&ground);

    let late = gateway.charge("k-1").header("X-Request-Timeout-Ms", "600").send();

    let late = late.expect_problem(504, "outcome-unknown");
    assert_eq!((late.header("Oncegate-Stop"), late.execution()), (Some("deadline"), Some("unknown")));
    let repeat = gateway.charge("k-1").send().expect(201);
    assert_eq!((repeat.is_replay(), upstream.seen().len(), upstream.effects()), (false, 2, 1));
}

fn a_hint_beyond_reach_goes_to_the_client_at_once(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    upstream.then(Step::Reply(Reply::new(429).line("Retry-After: 3600").body("later")));
    let gateway = Settings::of(&upstream).start(&ground);

    let answer = gateway.charge("k-1").send().expect(429);

    assert_eq!((answer.body.as_slice(), answer.retry_after()), (b"later".as_slice(), Some(3600)));
    assert_eq!((answer.header("Oncegate-Stop"), answer.execution()), (Some("hint-too-long"), Some("not-executed")));
    assert_eq!(answer.header("x-should-retry"), None, "it says when to come back");
}

fn a_retried_answer_is_passed_on_verbatim_when_the_tries_are_used_up(ground: Ground) {
    const DELAY: Duration = Duration::from_millis(20);
    let upstream = ScriptedUpstream::honouring_keys();
    for number in 1..=3 {
        upstream.then(Step::After(DELAY, Reply::new(503).line("X-Number: 1").body(format!("busy {number}"))));
    }
    let gateway = Settings::of(&upstream).with_key().quick().route("retry.max_attempts = 3").start(&ground);

    let answer = gateway.charge("k-1").send().expect(503);

    assert_eq!((answer.body.as_slice(), answer.header("X-Number")), (b"busy 3".as_slice(), Some("1")));
    assert_eq!((answer.header("Oncegate-Stop"), answer.header("Oncegate-Attempts")), (Some("exhausted"), Some("3")));
    assert_eq!((answer.header("x-should-retry"), answer.header("Stripe-Should-Retry")), (Some("false"), Some("false")));
    assert_eq!((answer.execution(), upstream.seen().len()), (Some("unknown"), 3));
    gateway.charge("k-1").send().expect(201);
}
