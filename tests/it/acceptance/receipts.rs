//! A call that was answered is answered the same way for as long as its receipt lives, and never made again.

use crate::support::eventually;
use crate::support::gateway::Settings;
use crate::support::ground::Ground;
use crate::support::upstream::{Reply, ScriptedUpstream, Step};

on! { [memory file redis]
    c01_a_repeat_gets_the_receipt
    c04_another_payload_is_another_use_of_the_key
    c21_a_refusal_is_replayed
    c22_what_is_for_one_client_or_one_moment_is_not_replayed
    c26_a_client_that_hangs_up_drops_nothing
    c28_a_receipt_runs_out_before_its_tombstone
}

on! { [memory]
    c06_a_key_is_for_one_target_of_one_route
    c08_quotes_do_not_make_another_key
    c29_reads_are_never_claimed
}

fn c01_a_repeat_gets_the_receipt(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let gateway = Settings::of(&upstream).start(&ground);

    let first = gateway.charge("k-1").send().expect(201);
    let second = gateway.charge("k-1").send().expect(201);

    assert!(!first.is_replay() && second.is_replay());
    assert_eq!(first.body, br#"{"id": "ch_1"}"#);
    assert_eq!((&second.body, second.header("Location")), (&first.body, Some("/charges/ch_1")));
    for answer in [&first, &second] {
        assert_eq!((answer.header("Idempotency-Key"), answer.execution()), (Some("k-1"), Some("executed")));
        assert_eq!(answer.header("Oncegate-Key-Source"), Some("client"));
        assert_eq!((answer.header("Oncegate-Attempts"), answer.operation()), (Some("1"), first.operation()));
    }
    let seen = upstream.only();
    assert_eq!((seen.key(), seen.body.as_slice()), (Some("k-1"), br#"{"amount": 500}"#.as_slice()));
    let operation = gateway.operation(first.operation());
    assert_eq!((operation.state(), operation.attempts()), ("succeeded", 1));
    assert_eq!(operation.events(), ["claimed", "sent", "settled"]);
}

fn c04_another_payload_is_another_use_of_the_key(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let gateway = Settings::of(&upstream).start(&ground);

    let first = gateway.charge("k-1").send().expect(201);
    let other = gateway.post("/charges").key("k-1").json(r#"{"amount": 501}"#).send();
    let again = gateway.charge("k-1").send().expect(201);

    other.expect_problem(422, "key-reused");
    assert!(again.is_replay());
    assert_eq!(again.body, first.body);
    assert_eq!(upstream.effects(), 1);
}

fn c06_a_key_is_for_one_target_of_one_route(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let refunds = "[[routes]]\nname = 'refunds'\nmatch.path = '/refunds'\nupstream = 'payments'";
    let gateway = Settings::of(&upstream).and(refunds).start(&ground);

    gateway.post("/a").key("k-1").json("{}").send().expect(201);
    gateway.post("/b").key("k-1").json("{}").send().expect_problem(422, "key-reused");
    let elsewhere = gateway.post("/refunds").key("k-1").json("{}").send().expect(201);

    assert!(!elsewhere.is_replay());
    let targets: Vec<_> = upstream.seen().into_iter().map(|call| call.target).collect();
    assert_eq!(targets, ["/a", "/refunds"]);
}

fn c08_quotes_do_not_make_another_key(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let gateway = Settings::of(&upstream).start(&ground);

    for (first, second) in [("abc", "\"abc\""), ("\"xyz\"", "xyz")] {
        let made = gateway.charge(first).send().expect(201);
        let again = gateway.charge(second).send().expect(201);
        assert!(again.is_replay());
        assert_eq!(again.operation(), made.operation());
    }

    let keys: Vec<_> = upstream.seen().iter().map(|call| call.key().unwrap().to_owned()).collect();
    assert_eq!(keys, ["abc", "\"xyz\""], "each as it came first");
}

fn c21_a_refusal_is_replayed(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    upstream.then(Step::Reply(Reply::new(400).body("no such currency")));
    let gateway = Settings::of(&upstream).start(&ground);

    let first = gateway.charge("k-1").send().expect(400);
    let second = gateway.charge("k-1").send().expect(400);

    assert!(!first.is_replay() && second.is_replay());
    assert_eq!((first.body.as_slice(), second.body.as_slice()), (b"no such currency".as_slice(), &first.body[..]));
    assert_eq!(upstream.seen().len(), 1);
    assert_eq!(gateway.operation(first.operation()).state(), "failed");
}

/// "compressed" as gzip packs it.
const PACKED: &[u8] = b"\x1f\x8b\x08\0\0\0\0\0\x02\x03K\xce\xcf-(J-.NM\x01\0\x1eKV\x97\n\0\0\0";

fn c22_what_is_for_one_client_or_one_moment_is_not_replayed(ground: Ground) {
    const PASSING: [&str; 7] =
        ["Set-Cookie", "WWW-Authenticate", "Age", "Retry-After", "RateLimit-Limit", "X-RateLimit-Reset", "Alt-Svc"];
    const HOP: [&str; 3] = ["X-Foo", "Keep-Alive", "Connection"];
    let upstream = ScriptedUpstream::start();
    let reply = Reply::new(201).line("Connection: keep-alive, x-foo").line("X-Foo: 1").line("Keep-Alive: timeout=5");
    let reply = PASSING.iter().fold(reply, |reply, name| reply.line(&format!("{name}: 1")));
    let reply = reply.line("Link: </a>; rel=next").line("X-Between: 1").line("Link: </b>; rel=\"a, b\"");
    let reply = reply.line("Content-Encoding: gzip").line("ETag: \"v1\"").line("Oncegate-Execution: unknown");
    upstream.then(Step::Reply(reply.line("Idempotent-Replayed: true").body(PACKED)));
    let gateway = Settings::of(&upstream).start(&ground);

    let first = gateway.charge("k-1").send().expect(201);
    let second = gateway.charge("k-1").send().expect(201);

    assert!(!first.is_replay() && second.is_replay());
    assert!(PASSING.iter().all(|name| first.header(name) == Some("1")), "{first:?}");
    assert!(PASSING.iter().all(|name| second.header(name).is_none()), "{second:?}");
    for answer in [&first, &second] {
        assert!(HOP.iter().all(|name| answer.header(name).is_none()), "{answer:?}");
        assert_eq!(answer.lines("Link"), ["</a>; rel=next", "</b>; rel=\"a, b\""]);
        assert_eq!((answer.header("ETag"), answer.header("Content-Encoding")), (Some("\"v1\""), Some("gzip")));
        assert_eq!((answer.body.as_slice(), answer.execution()), (PACKED, Some("executed")));
        assert!(answer.header("Date").is_some() && answer.header("Via").is_some_and(|via| via.contains("oncegate")));
    }
}

fn c26_a_client_that_hangs_up_drops_nothing(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    upstream.then(Step::Held(Reply::charge(1)));
    let gateway = Settings::of(&upstream).start(&ground);

    let call = gateway.charge("k-1").begin();
    upstream.wait_for(1);
    call.hang_up();
    let repeat = gateway.charge("k-1").begin();
    upstream.release();

    let answer = repeat.answer().expect(201);
    assert!(answer.is_replay());
    assert_eq!((answer.body, upstream.seen().len()), (br#"{"id": "ch_1"}"#.to_vec(), 1));
    assert_eq!(gateway.state().as_deref(), Some("succeeded"));
}

fn c28_a_receipt_runs_out_before_its_tombstone(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let settings = Settings::of(&upstream).top("store.receipts = '500ms'").top("store.tombstones = '3s'");
    let gateway = settings.start(&ground);
    let repeat = || gateway.charge("k-1").send();

    repeat().expect(201);
    let expired = eventually("the end of the receipt", || Some(repeat()).filter(|answer| answer.status != 201));
    let expired = expired.expect_problem(409, "result-expired");
    assert_eq!((expired.execution(), upstream.effects()), (Some("executed"), 1));

    let anew = eventually("the end of the tombstone", || Some(repeat()).filter(|answer| answer.status != 409));
    assert!(!anew.expect(201).is_replay());
    assert_eq!(upstream.effects(), 2);
}

fn c29_reads_are_never_claimed(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let gateway = Settings::of(&upstream).start(&ground);

    for method in ["GET", "HEAD", "OPTIONS", "GET"] {
        let answer = gateway.call(method, "/charges").key("k-1").send().expect(201);
        assert!(!answer.is_replay() && answer.execution().is_none(), "{answer:?}");
        assert_eq!(answer.header("Oncegate-Guarded"), None, "nothing is missing: a read needs no guard");
    }

    assert_eq!(upstream.seen().len(), 4);
    assert_eq!(upstream.seen()[0].key(), Some("k-1"));
    assert!(gateway.operations("").is_empty());
}
