//! Answers of gRPC whose status does not come.

use oncegate::engine::answer::Execution;
use oncegate::operation::StateName as S;

use crate::rig::upstream::Reply;
use crate::rig::{Gateway, Setup, answers};

fn grpc() -> Reply {
    answers(200).with("content-type", "application/grpc")
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_ends_without_a_status_says_nothing() {
    for act in [grpc(), grpc().cut()] {
        let gateway = Gateway::before(vec![act.into()], Setup::UNSAFE);
        assert_eq!(gateway.call("k").await.marks.execution, Some(Execution::Unknown));
        assert_eq!(gateway.states("k").await, [S::Claimed, S::Sent, S::Unknown]);
    }
}

#[tokio::test(start_paused = true)]
async fn who_honours_keys_is_asked_again_for_the_status() {
    for act in [grpc(), grpc().cut()] {
        let gateway = Gateway::before(vec![act.into(), grpc().with("grpc-status", "0").into()], Setup::WITH_KEY);
        assert_eq!(gateway.call("k").await.says(), (200, "says 200", false));
        assert_eq!(gateway.upstream.seen().len(), 2);
    }
}

/// There the status is a part of the body.
#[tokio::test(start_paused = true)]
async fn grpc_web_needs_no_status_behind_its_body() {
    let web = answers(200).with("content-type", "application/grpc-web+proto");
    let gateway = Gateway::before(vec![web.into()], Setup::UNSAFE);
    assert_eq!(gateway.call("k").await.marks.execution, Some(Execution::Executed));
    assert_eq!(gateway.upstream.seen().len(), 1);
}
