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

/// square/square-mcp-server#31; Adyen/adyen-commercetools#1305: each try has another key, and another time in its body.
#[tokio::test(start_paused = true)]
async fn what_changes_with_each_try_makes_no_other_call_where_the_route_says_so() {
    let (first, again) = ("{\"amount\": 1, \"at\": \"09:00\"}", "{\"at\": \"09:01\", \"amount\": 1.0}");
    let key = "client_key = \"prefer-derived\"";
    let setup = Setup { key, route: "payload = { ignore = [\"/at\"] }", ..Setup::UNSAFE };
    let gateway = Gateway::before(vec![], setup);
    let step = |key: &str| Ask::of_step("s", "3").with("idempotency-key", key).with("content-type", "application/json");
    let ask = |key: &str, body| gateway.ask(step(key).body(body));
    let made = ask("7f3a", first).await;
    assert_eq!((made.says(), made.marks.key.as_ref().unwrap().1), ((201, "says 201", false), KeySource::Derived));
    assert_eq!(ask("c01d", again).await.says(), (201, "says 201", true));
    assert_eq!(gateway.upstream.seen().len(), 1);

    let believing = Gateway::before(vec![], Setup::UNSAFE);
    for key in ["7f3a", "c01d"] {
        assert!(!believing.ask(step(key)).await.marks.replayed, "a client's own key is believed");
    }
}
