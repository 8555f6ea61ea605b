//! Answers that mean something else than their status says, and vendors' own words for when to come back.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method};
use http_body_util::BodyExt;
use oncegate::engine::answer::{Body, Content, Execution};
use oncegate::engine::pass::Passage;
use oncegate::engine::status::RouteStatus;
use oncegate::operation::Scope;
use oncegate::operation::StateName as S;
use oncegate::retry::decide::Stop;
use oncegate::upstream::SendBody;
use tokio::sync::mpsc::unbounded_channel;
use tokio::time::Instant;

use crate::rig::{Act, Gateway, Setup, TICK, answers, ms, secs};

const BUSY: &str = r#"classify = [{ status = 409, json = { "/error/code" = "in_progress" }, as = "busy" }]"#;
const NOT_OK: &str = r#"classify = [
    { status = 200, json = { "/ok" = false, "/error" = "ratelimited" }, as = "throttled" },
    { status = 200, json = { "/ok" = false }, as = "failed" },
]"#;
const IN_PROGRESS: &str = r#"{"error": {"code": "in_progress"}}"#;
const NO: &str = r#"{"ok": false, "error": "channel_not_found"}"#;
const LIMITED: &str = r#"{"ok": false, "error": "ratelimited"}"#;

fn with(setup: Setup, route: &'static str) -> Setup {
    Setup { route, ..setup }
}

fn gap(gateway: &Gateway) -> Duration {
    let seen = gateway.upstream.seen();
    seen[1].at - seen[0].at
}

fn counters(gateway: &Gateway) -> Arc<RouteStatus> {
    gateway.engine.shared().status.route("payments")
}

#[tokio::test(start_paused = true)]
async fn a_200_that_says_no_is_a_failure_and_its_receipt() {
    let gateway = Gateway::before(vec![answers(200).body(NO).into()], with(Setup::UNSAFE, NOT_OK));
    let told = gateway.call("k").await;
    assert_eq!(told.says(), (200, NO, false));
    assert_eq!((told.marks.execution, told.marks.stop), (Some(Execution::Executed), None));
    assert_eq!(gateway.states("k").await, [S::Claimed, S::Sent, S::Failed]);
    assert_eq!(gateway.call("k").await.says(), (200, NO, true));
    assert_eq!(gateway.upstream.seen().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_200_that_says_yes_is_what_it_was() {
    let gateway = Gateway::before(vec![answers(200).body("{\"ok\": true}").into()], with(Setup::UNSAFE, NOT_OK));
    assert_eq!(gateway.call("k").await.says(), (200, "{\"ok\": true}", false));
    assert_eq!(gateway.states("k").await, [S::Claimed, S::Sent, S::Succeeded]);
}

#[tokio::test(start_paused = true)]
async fn a_throttle_in_a_200_waits_and_goes_on_also_where_a_repeat_is_unsafe() {
    for (hint, least) in [(Some("7"), secs(7)), (None, secs(1))] {
        let throttled = answers(200).body(LIMITED);
        let throttled = hint.into_iter().fold(throttled, |reply, hint| reply.with("retry-after", hint));
        let gateway = Gateway::before(vec![throttled.into()], with(Setup::UNSAFE, NOT_OK));
        assert_eq!(gateway.call("k").await.says(), (201, "says 201", false));
        assert!(gap(&gateway) >= least && gap(&gateway) <= least + ms(250) + TICK, "{:?}", gap(&gateway));
        assert_eq!(gateway.states("k").await, [S::Claimed, S::Sent, S::Waiting, S::Sent, S::Succeeded]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_still_runs_there_is_waited_for() {
    let busy = || answers(409).with("retry-after", "2").body(IN_PROGRESS).into();
    let gateway = Gateway::before(vec![busy(), answers(200).body("done").into()], with(Setup::WITH_KEY, BUSY));
    assert_eq!(gateway.call("k").await.says(), (200, "done", false));
    assert!(gap(&gateway) >= secs(2), "{:?}", gap(&gateway));
    let seen = gateway.upstream.seen();
    assert_eq!(seen[0].request(), seen[1].request());
    let other = answers(409).body("{\"error\": {\"code\": \"taken\"}}").into();
    let gateway = Gateway::before(vec![other], with(Setup::WITH_KEY, BUSY));
    assert_eq!(gateway.call("k").await.status, 409);
    assert_eq!(gateway.states("k").await, [S::Sent, S::Failed]);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_still_runs_where_a_repeat_is_unsafe_is_unknown() {
    let gateway = Gateway::before(vec![answers(409).body(IN_PROGRESS).into()], with(Setup::UNSAFE, BUSY));
    let told = gateway.call("k").await;
    assert_eq!(told.says(), (409, IN_PROGRESS, false));
    assert_eq!((told.marks.stop, told.marks.execution), (Some(Stop::Unsafe), Some(Execution::Unknown)));
    assert_eq!(gateway.states("k").await, [S::Claimed, S::Sent, S::Unknown]);
}

#[tokio::test(start_paused = true)]
async fn a_front_that_turned_the_call_away_is_asked_again_everywhere() {
    let route = r#"classify = [{ status = 503, headers = { Server = "awselb/*" }, as = "not-executed" }]"#;
    let script = || vec![answers(503).with("server", "awselb/2.0").into(), answers(503).with("server", "app").into()];
    let gateway = Gateway::before(script(), with(Setup::UNSAFE, route));
    let told = gateway.call("k").await;
    assert_eq!((told.status, told.marks.attempts, told.marks.stop), (503, 2, Some(Stop::Unsafe)));
    assert_eq!(gateway.states("k").await, [S::Claimed, S::Sent, S::Waiting, S::Sent, S::Unknown]);
}

#[tokio::test(start_paused = true)]
async fn what_a_rule_calls_executed_is_a_receipt_whatever_its_status() {
    let route = r#"classify = [{ headers = { X-Ran = true }, as = "executed" }]"#;
    let gateway = Gateway::before(vec![answers(500).with("x-ran", "yes").into()], with(Setup::UNSAFE, route));
    assert_eq!(gateway.call("k").await.says(), (500, "says 500", false));
    assert_eq!(gateway.states("k").await, [S::Claimed, S::Sent, S::Succeeded]);
    assert_eq!(gateway.call("k").await.says(), (500, "says 500", true));
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_breaks_off_before_its_rule_can_see_it_is_in_doubt() {
    let gateway = Gateway::before(vec![answers(200).body(NO).cut().into()], with(Setup::UNSAFE, NOT_OK));
    assert_eq!(gateway.call("k").await.marks.execution, Some(Execution::Unknown));
    assert_eq!(gateway.states("k").await, [S::Claimed, S::Sent, S::Unknown]);
}

#[tokio::test(start_paused = true)]
async fn a_body_into_which_nobody_can_look_is_judged_by_its_head_and_counted() {
    let long = format!("{{\"ok\": false, \"pad\": \"{}\"}}", "x".repeat(1 << 20));
    for reply in [
        answers(200).with("content-encoding", "gzip").body(NO),
        answers(200).with("content-type", "application/json").body(&long),
    ] {
        let gateway = Gateway::before(vec![reply.into()], with(Setup::UNSAFE, NOT_OK));
        assert_eq!(gateway.call("k").await.status, 200);
        assert_eq!(gateway.states("k").await, [S::Claimed, S::Sent, S::Succeeded]);
        assert_eq!(counters(&gateway).unread_answers.get(), 1);
    }
    let page = answers(200).with("content-type", "text/html").body(NO);
    let gateway = Gateway::before(vec![page.into()], with(Setup::UNSAFE, NOT_OK));
    assert_eq!((gateway.call("k").await.status, counters(&gateway).unread_answers.get()), (200, 0));
}

#[tokio::test(start_paused = true)]
async fn the_wait_that_google_names_in_a_body_is_kept() {
    let body =
        r#"{"error": {"details": [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "37s"}]}}"#;
    let setup = Setup { upstream: "dialect = \"google\"", ..Setup::UNSAFE };
    let gateway = Gateway::before(vec![answers(429).body(body).into()], setup);
    assert_eq!(gateway.call("k").await.status, 201);
    assert!(gap(&gateway) >= secs(37) && gap(&gateway) <= secs(38), "{:?}", gap(&gateway));
}

#[tokio::test(start_paused = true)]
async fn limits_of_github_are_no_denials() {
    let setup = Setup { upstream: "dialect = \"github\"", ..Setup::UNSAFE };
    let secondary = r#"{"message": "You have exceeded a secondary rate limit. Please wait."}"#;
    for (reply, least) in [
        (answers(403).with("retry-after", "3"), secs(3)),
        (answers(403).with("x-ratelimit-remaining", "0").with("x-ratelimit-reset", "1767225620"), secs(21)),
        (answers(403).body(secondary), secs(60)),
        (answers(429), secs(60)),
    ] {
        let gateway = Gateway::before(vec![reply.into()], setup);
        assert_eq!(gateway.call("k").await.status, 201);
        assert!(gap(&gateway) + TICK >= least && gap(&gateway) <= least + secs(6), "{:?}", gap(&gateway));
    }
    let gateway = Gateway::before(vec![answers(403).body("{\"message\": \"Not yours.\"}").into()], setup);
    assert_eq!(gateway.call("k").await.status, 403);
    assert_eq!(gateway.states("k").await, [S::Claimed, S::Sent, S::NotExecuted]);
}

#[tokio::test(start_paused = true)]
async fn presets_know_their_services() {
    let stripe = Setup { upstream: "preset = \"stripe\"", ..Setup::WITH_KEY };
    let in_use = answers(409).body(r#"{"error": {"code": "idempotency_key_in_use"}}"#).into();
    let gateway = Gateway::before(vec![in_use], stripe);
    assert_eq!(gateway.call("k").await.status, 201);

    let slack = Setup { upstream: "preset = \"slack\"", ..Setup::UNSAFE };
    for (body, end) in
        [(NO, S::Failed), ("{\"ok\": false, \"error\": \"fatal_error\"}", S::Unknown), ("{\"ok\": true}", S::Succeeded)]
    {
        let gateway = Gateway::before(vec![answers(200).body(body).into()], slack);
        assert_eq!(gateway.call("k").await.says(), (200, body, false));
        assert_eq!(gateway.states("k").await.last(), Some(&end), "{body}");
    }

    let anthropic = Setup { upstream: "preset = \"anthropic\"", ..Setup::UNSAFE };
    let overloaded = answers(529).body(r#"{"type": "error", "error": {"type": "overloaded_error"}}"#).into();
    let gateway = Gateway::before(vec![overloaded, answers(529).into()], anthropic);
    assert_eq!(gateway.call("k").await.marks.execution, Some(Execution::Unknown), "another 529 proves nothing");
    assert_eq!(gateway.upstream.seen().len(), 2);

    let cloudflare = Setup { upstream: "preset = \"cloudflare\"", ..Setup::UNSAFE };
    let gateway = Gateway::before(vec![answers(526).with("server", "cloudflare").into()], cloudflare);
    assert_eq!(gateway.call("k").await.status, 201);
    let gateway = Gateway::before(vec![answers(524).with("server", "cloudflare").into()], cloudflare);
    assert_eq!(gateway.call("k").await.marks.execution, Some(Execution::Unknown));
}

#[tokio::test(start_paused = true)]
async fn a_bad_token_of_a_preset_is_met_as_a_401_is() {
    for setup in [Setup::UNSAFE, Setup::WITH_KEY, Setup::HARMLESS] {
        let met = async |bad: Act| {
            let gateway = Gateway::before(vec![bad], Setup { upstream: "preset = \"slack\"", ..setup });
            let told = gateway.call("k").await;
            let seen =
                (gateway.upstream.seen().len(), gateway.states("k").await, told.marks.execution, told.marks.stop);
            (seen, gateway.call("k").await.status)
        };
        let denied = met(answers(401).into()).await;
        assert_eq!((denied.0.0, denied.0.2, denied.1), (1, Some(Execution::NotExecuted), 201));
        for error in ["not_authed", "invalid_auth", "account_inactive", "token_expired", "token_revoked"] {
            let body = format!("{{\"ok\": false, \"error\": \"{error}\"}}").leak();
            assert_eq!(met(answers(200).body(body).into()).await, denied, "{error} {}", setup.repeat);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_rule_decided_is_said_to_be_so() {
    let slack = Setup { upstream: "preset = \"slack\"", ..Setup::UNSAFE };
    for (error, reason, why) in [
        ("internal_error", "ruled_unknown_200", "the upstream answered 200, which a rule calls unknown"),
        ("invalid_auth", "ruled_denied_200", "the upstream answered 200, which a rule calls denied"),
    ] {
        let body = format!("{{\"ok\": false, \"error\": \"{error}\"}}").leak();
        let gateway = Gateway::before(vec![answers(200).body(body).into()], slack);
        gateway.call("k").await;
        let kept = gateway.kept("k").await.unwrap();
        assert_eq!(kept.operation.letter_reason().as_deref(), Some(reason));
        let last = kept.events.last().unwrap();
        assert_eq!((last.cause.unwrap().to_string().as_str(), last.status), (why, Some(200)));
        let asked = gateway.engine.receipt(&Scope::none(), kept.operation.id, ms(0)).await.unwrap();
        let told = gateway.told(asked).await;
        assert!(told.says().1.contains(why), "{told:?}");
    }
    let unruled = Gateway::before(vec![answers(500).into()], Setup::UNSAFE);
    unruled.call("k").await;
    assert_eq!(unruled.kept("k").await.unwrap().operation.letter_reason().as_deref(), Some("status_500"));
}

#[tokio::test(start_paused = true)]
async fn a_request_of_graphql_that_was_not_run_is_a_failure() {
    let route = r#"classify = [{ status = 200, json = { "/errors/0" = { exists = true }, "/data" = { exists = true } }, as = "executed" },
        { status = 200, json = { "/errors/0" = { exists = true } }, as = "failed" }]"#;
    for (body, end) in [
        ("{\"errors\": [{\"message\": \"no such field\"}]}", S::Failed),
        ("{\"errors\": [{}], \"data\": {\"pay\": null}}", S::Succeeded),
    ] {
        let gateway = Gateway::before(vec![answers(200).body(body).into()], with(Setup::UNSAFE, route));
        gateway.call("k").await;
        assert_eq!(gateway.states("k").await.last(), Some(&end), "{body}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_invalid_hint_is_counted_and_passed_on_as_it_came() {
    let setup = Setup { retry: "max_attempts = 1", ..Setup::UNSAFE };
    let gateway = Gateway::before(vec![answers(429).with("retry-after", "-1").into()], setup);
    let told = gateway.call("k").await;
    assert_eq!((told.status, told.headers["retry-after"].as_bytes()), (429, &b"-1"[..]));
    assert_eq!(counters(&gateway).invalid_hints.get(), 1);
    assert_eq!(gateway.call("again").await.status, 201);
    assert_eq!(counters(&gateway).invalid_hints.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_service_may_ask_for_another_try() {
    let asks = |status| answers(status).with("x-should-retry", "true").into();
    let gateway = Gateway::before(vec![asks(409)], Setup::WITH_KEY);
    assert_eq!(gateway.call("k").await.status, 201);
    let gateway = Gateway::before(vec![asks(500)], Setup::UNSAFE);
    assert_eq!(gateway.call("k").await.marks.execution, Some(Execution::Unknown));
    assert_eq!(gateway.upstream.seen().len(), 1);
}

/// openresty/openresty#351; webserver-llc/angie#169; haproxy/haproxy#439; api7/aisix#144.
#[tokio::test(start_paused = true)]
async fn the_answer_of_a_call_that_is_not_repeated_reaches_its_caller_whole() {
    for status in [500, 502, 503] {
        let answer = answers(status).with("retry-after", "30").body("what the service said").into();
        let gateway = Gateway::before(vec![answer], Setup::UNSAFE);
        let told = gateway.call("k").await;
        assert_eq!(told.says(), (status, "what the service said", false));
        assert_eq!((told.headers["retry-after"].as_bytes(), gateway.upstream.seen().len()), (&b"30"[..], 1));
    }
}

/// What somebody gets whom nobody guards: status, body, and whether it ended cleanly.
async fn pass(gateway: &Gateway) -> (u16, Vec<u8>, bool) {
    let passage = Passage {
        scope: Scope::none(),
        route: Arc::clone(gateway.route()),
        method: Method::GET,
        target: "/v1/charges".to_owned(),
        headers: HeaderMap::new(),
        body: SendBody::Full(Bytes::new()),
        interim: None,
        key: None,
        unguarded: None,
        deadline: Instant::now() + secs(120),
    };
    let answer = gateway.engine.unguarded(passage).await;
    let Content::Upstream { status, body: Body::Passed { mut body, .. }, .. } = answer.content else {
        panic!("not the upstream's answer")
    };
    let mut read = Vec::new();
    loop {
        match body.frame().await {
            Some(Ok(frame)) => read.extend_from_slice(&frame.into_data().unwrap_or_default()),
            end => return (status.as_u16(), read, end.is_none()),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_unguarded_answer_is_looked_at_and_goes_on_unchanged() {
    let script = vec![answers(200).body(LIMITED).with("retry-after", "3").into(), answers(200).body(NO).into()];
    let gateway = Gateway::before(script, with(Setup::HARMLESS, NOT_OK));
    assert_eq!(pass(&gateway).await, (200, NO.as_bytes().to_vec(), true));
    assert!(gap(&gateway) >= secs(3), "{:?}", gap(&gateway));

    let long = format!("{{\"ok\": false, \"pad\": \"{}\"}}", "x".repeat(200_000));
    let gateway = Gateway::before(vec![answers(200).body(&long).into()], with(Setup::HARMLESS, NOT_OK));
    assert_eq!(pass(&gateway).await, (200, long.into_bytes(), true));
    assert_eq!(counters(&gateway).unread_answers.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_unguarded_answer_that_breaks_off_while_it_is_looked_at_is_asked_for_again() {
    let script = vec![answers(200).body(NO).cut().into(), answers(200).body("{\"ok\": true}").into()];
    let gateway = Gateway::before(script, with(Setup::HARMLESS, NOT_OK));
    assert_eq!(pass(&gateway).await, (200, b"{\"ok\": true}".to_vec(), true));

    let setup = Setup { retry: "max_attempts = 1", ..with(Setup::HARMLESS, NOT_OK) };
    let gateway = Gateway::before(vec![answers(200).body(NO).cut().into()], setup);
    assert_eq!(pass(&gateway).await, (200, NO.as_bytes().to_vec(), false), "told as far as it came, and broken");
}

#[tokio::test(start_paused = true)]
async fn the_last_answer_to_a_read_reaches_its_caller_whole() {
    let script = (1..=4).map(|number| answers(500).body(&format!("oops {number}")).into()).collect();
    let gateway = Gateway::before(script, Setup { retry: "max_attempts = 4", ..Setup::HARMLESS });
    assert_eq!(pass(&gateway).await, (500, b"oops 4".to_vec(), true));
    assert_eq!(gateway.upstream.seen().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_read_whose_answer_breaks_off_is_broken_and_not_asked_again() {
    let gateway = Gateway::before(vec![answers(200).body("ten bytes!").cut().into()], Setup::HARMLESS);
    assert_eq!(pass(&gateway).await, (200, b"ten bytes!".to_vec(), false));
    assert_eq!(gateway.upstream.seen().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_read_needs_no_key_to_be_asked_again() {
    let gateway = Gateway::before(vec![answers(503).into()], Setup::WITH_KEY);
    assert_eq!(pass(&gateway).await.0, 201);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_in_pieces_is_put_together_to_be_looked_at() {
    let (pieces, script) = unbounded_channel();
    let gateway = Gateway::before(vec![Act::Streams(script)], with(Setup::HARMLESS, NOT_OK));
    for piece in
        ["HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", "6\r\n{\"ok\":\r\n", "7\r\n false}\r\n", "0\r\n\r\n"]
    {
        pieces.send(Bytes::from_static(piece.as_bytes())).unwrap();
    }
    assert_eq!(pass(&gateway).await, (200, b"{\"ok\": false}".to_vec(), true));
}
