//! The same session and step with another payload.

use oncegate::engine::problem::Code;
use oncegate::operation::KeySource;

use crate::rig::{Ask, Fault, Gateway, Setup, Step};

const OTHER: &str = "{\"amount\": 2}";

#[tokio::test(start_paused = true)]
async fn another_payload_runs_and_names_the_one_before() {
    let gateway = Gateway::before(vec![], Setup::WITH_KEY);
    let first = gateway.ask(Ask::of_step("s", "3")).await;
    assert_eq!((first.status, first.marks.earlier), (201, None));
    assert_eq!(first.marks.key.as_ref().unwrap().1, KeySource::Derived);

    let second = gateway.ask(Ask::of_step("s", "3").body(OTHER)).await;
    assert_eq!((second.status, second.marks.earlier), (201, first.marks.operation));
    let third = gateway.ask(Ask::of_step("s", "3").body("{\"amount\": 3}")).await;
    assert_eq!((third.status, third.marks.earlier), (201, second.marks.operation));

    let again = gateway.ask(Ask::of_step("s", "3")).await;
    assert_eq!((again.says(), again.marks.operation), ((201, "says 201", true), first.marks.operation));
    for other in [Ask::of_step("s", "4"), Ask::of_step("t", "3")] {
        assert_eq!(gateway.ask(other).await.marks.earlier, None);
    }
    assert_eq!(gateway.upstream.seen().len(), 5);
}

#[tokio::test(start_paused = true)]
async fn it_never_applies_to_a_clients_own_key() {
    let gateway = Gateway::before(vec![], Setup::WITH_KEY);
    gateway.ask(Ask::of_step("s", "3")).await;
    let told = gateway.ask(Ask::of_step("s", "3").with("idempotency-key", "mine").body(OTHER)).await;
    assert_eq!((told.status, told.marks.earlier), (201, None));
}

#[tokio::test(start_paused = true)]
async fn a_note_that_cannot_be_read_costs_the_mark_and_nothing_else() {
    let gateway = Gateway::before(vec![], Setup::WITH_KEY);
    gateway.ask(Ask::of_step("s", "3")).await;
    gateway.store.fails(Step::Note, Fault::Unheard, 1);
    let told = gateway.ask(Ask::of_step("s", "3").body(OTHER)).await;
    assert_eq!((told.says(), told.marks.earlier), ((201, "says 201", false), None));
}

#[tokio::test(start_paused = true)]
async fn another_payload_is_rejected_where_a_second_run_may_do_harm() {
    for setup in [Setup::UNSAFE, Setup { key: "on_changed_payload = \"reject\"", ..Setup::WITH_KEY }] {
        let gateway = Gateway::before(vec![], setup);
        let first = gateway.ask(Ask::of_step("s", "3")).await;
        let told = gateway.ask(Ask::of_step("s", "3").body(OTHER)).await;
        assert_eq!(told.problem(), (422, Some(Code::PayloadChanged)));
        assert_eq!(told.marks.operation, first.marks.operation);
        assert_eq!(gateway.upstream.seen().len(), 1);
        assert_eq!(gateway.ask(Ask::of_step("s", "3")).await.says(), (201, "says 201", true));
    }
}
