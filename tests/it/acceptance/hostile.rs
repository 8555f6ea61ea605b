//! A service that answers in a way that two hops could read in two ways, without end, or in somebody else's name.

use crate::support::gateway::Settings;
use crate::support::ground::Ground;
use crate::support::upstream::{Reply, ScriptedUpstream, Step};

on! { [memory]
    s20_what_a_service_says_in_our_name_or_of_its_connection_is_not_passed_on
    s21_an_answer_that_cannot_be_trusted_leaves_a_call_unknown
    s21_an_answer_that_is_cut_is_never_made_again
}

fn s20_what_a_service_says_in_our_name_or_of_its_connection_is_not_passed_on(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let reply = Reply::new(201).line("Connection: X-Internal").line("X-Internal: 1").line("Keep-Alive: timeout=9");
    let reply = reply.line("Proxy-Authenticate: Basic").line("Set-Cookie: a=1").line("Oncegate-Receipt: none");
    let reply = reply.line("Idempotent-Replayed: true").line("Oncegate-Execution: unknown").line("X-Own: \u{e9}");
    upstream.then(Step::Reply(reply.body("made")));
    let gateway = Settings::of(&upstream).start(&ground);

    let (first, repeat) = (gateway.charge("k-1").send().expect(201), gateway.charge("k-1").send().expect(201));

    assert_eq!((first.is_replay(), repeat.is_replay()), (false, true));
    for answer in [&first, &repeat] {
        assert_eq!((answer.execution(), answer.header("X-Own")), (Some("executed"), Some("\u{e9}")));
        for name in ["X-Internal", "Keep-Alive", "Proxy-Authenticate", "Oncegate-Receipt"] {
            assert_eq!(answer.header(name), None, "{name}");
        }
    }
    assert_eq!((first.header("Set-Cookie"), repeat.header("Set-Cookie")), (Some("a=1"), None));
}

fn s21_an_answer_that_cannot_be_trusted_leaves_a_call_unknown(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let gateway = Settings::of(&upstream).start(&ground);
    let lines = [
        "Content-Length: 2\r\nContent-Length: 2\r\n\r\nok",
        "Content-Length: 2\r\nContent-Length: 3\r\n\r\nok!",
        "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        "Transfer-Encoding: gzip, chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        "Content-Length: +2\r\n\r\nok",
        "X-A: one\r\n two\r\nContent-Length: 2\r\n\r\nok",
        "X-A: one\rSet-Cookie: a=1\r\nContent-Length: 2\r\n\r\nok",
        "X-A: one\0two\r\nContent-Length: 2\r\n\r\nok",
        "X A: one\r\nContent-Length: 2\r\n\r\nok",
    ];
    let mut answers: Vec<String> = lines.iter().map(|lines| format!("HTTP/1.1 201 Created\r\n{lines}")).collect();
    answers.push("HTTP/1.1 102 Processing\r\n\r\n".repeat(100_000));
    answers.push(format!("HTTP/1.1 201 Created\r\nX-A: {}\r\n\r\n", "a".repeat(4 << 20)));
    answers.push(format!("HTTP/1.1 201 Created\r\n{}\r\n", "X-A: a\r\n".repeat(1000)));
    answers.push("ICY 200 OK\r\n\r\n".to_owned());

    for (number, answer) in answers.iter().enumerate() {
        let (key, shown) = (format!("k-{number}"), answer.get(..60));
        upstream.then(Step::Raw(answer.clone().into_bytes()));
        let first = gateway.charge(&key).send().expect_problem(502, "outcome-unknown");
        assert_eq!((first.execution(), first.header("Oncegate-Attempts")), (Some("unknown"), Some("1")), "{shown:?}");
        gateway.charge(&key).send().expect_problem(409, "outcome-unknown");
        assert_eq!(upstream.seen().len(), number + 1, "{shown:?}");
    }
    gateway.charge("k-good").send().expect(201);
}

fn s21_an_answer_that_is_cut_is_never_made_again(ground: Ground) {
    let upstream = ScriptedUpstream::start();
    let gateway = Settings::of(&upstream).start(&ground);
    let rests = [
        "Content-Length: 10\r\n\r\nhalf",
        "Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
        "Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\nzz\r\n",
        "Transfer-Encoding: chunked\r\n\r\n4\r\nhalfway\r\n0\r\n\r\n",
    ];
    for (number, rest) in rests.iter().enumerate() {
        let key = format!("k-{number}");
        upstream.then(Step::Raw(format!("HTTP/1.1 201 Created\r\n{rest}").into_bytes()));
        let first = gateway.charge(&key).send().expect_problem(502, "result-unavailable");
        assert_eq!(first.execution(), Some("executed"), "{rest}");
        gateway.charge(&key).send().expect_problem(409, "result-unavailable");
        assert_eq!(upstream.seen().len(), number + 1);
    }
}
