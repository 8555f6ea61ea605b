//! Services that are found by name.

use crate::support::eventually;
use crate::support::gateway::{Gateway, Settings};
use crate::support::ground::Ground;
use crate::support::names::Names;
use crate::support::upstream::ScriptedUpstream;

on! { [memory]
    a_name_that_moves_is_followed_within_its_time
    a_call_to_a_name_without_an_address_did_not_run_and_runs_when_there_is_one
    an_address_that_refuses_leaves_the_call_to_the_next_one
}

fn towards(service: &ScriptedUpstream, names: &Names) -> Settings {
    Settings::towards(&format!("http://tool.test:{}", service.address().port())).with_names(names).quick()
}

fn a_name_that_moves_is_followed_within_its_time(ground: Ground) {
    let old = ScriptedUpstream::start();
    let (new, names) = (old.beside(), Names::new());
    names.lead("tool.test", &["127.0.0.1"]);
    let settings = towards(&old, &names);
    let quick = settings.clone().top("upstreams.payments.dns_ttl = '50ms'").start(&ground);
    let slow = settings.top("upstreams.payments.dns_ttl = '1h'").start(&ground);
    for gateway in [&quick, &slow] {
        look(gateway);
    }
    assert_eq!(old.seen().len(), 2);

    names.lead("tool.test", &["127.0.0.2"]);
    eventually("a call at the new address", || {
        look(&quick);
        new.seen().first().cloned()
    });
    // The old service is still there and would answer on the connections that are open.
    let before = old.seen().len();
    (0..5).for_each(|_| look(&quick));
    assert_eq!(old.seen().len(), before);
    look(&slow);
    assert_eq!(old.seen().len(), before + 1);
}

fn look(gateway: &Gateway) {
    gateway.call("GET", "/charges").send().expect(201);
}

fn a_call_to_a_name_without_an_address_did_not_run_and_runs_when_there_is_one(ground: Ground) {
    let (service, names) = (ScriptedUpstream::start(), Names::new());
    let gateway = towards(&service, &names).route("retry.max_attempts = 2").start(&ground);
    let failed = gateway.charge("k-1").send().expect_problem(502, "upstream-failed");
    assert_eq!((failed.execution(), failed.header("Oncegate-Attempts")), (Some("not-executed"), Some("0")));

    names.lead("tool.test", &["127.0.0.1"]);
    assert_eq!(gateway.charge("k-1").send().expect(201).execution(), Some("executed"));
    assert_eq!(service.seen().len(), 1);
}

fn an_address_that_refuses_leaves_the_call_to_the_next_one(ground: Ground) {
    let (service, names) = (ScriptedUpstream::start(), Names::new());
    names.lead("tool.test", &["127.0.0.2", "127.0.0.1"]);
    let gateway = towards(&service, &names).start(&ground);
    let answer = gateway.charge("k-1").send().expect(201);
    assert_eq!((answer.header("Oncegate-Attempts"), service.seen().len()), (Some("1"), 1));
}
