//! What bounds the cost of an outage, as the file says it.

use std::time::Duration;

use super::describing::line;
use super::*;
use crate::config::{Concurrency, Rates};
use crate::retry::breaker::{BreakerPolicy, FailureRate};
use crate::retry::budget::Budget;

#[test]
fn a_budget_is_built_in_and_taken_key_by_key() {
    assert_eq!(route("").retry.budget, Budget { percent: 20, per_second: 3 });
    assert_eq!(route("retry.budget = { percent = 0, per_second = 0 }").retry.budget.percent, 0);
    let described = config(&format!("{LEAST}retry.budget.percent = 50\n[defaults.retry]\nbudget.per_second = 7"));
    assert_eq!(line(&described, "retry.budget.percent"), "retry.budget.percent 50 route");
    assert_eq!(line(&described, "retry.budget.per_second"), "retry.budget.per_second 7 defaults");
}

#[test]
fn a_breaker_is_built_in_and_a_rate_only_where_it_is_stated() {
    let seconds = Duration::from_secs;
    assert_eq!(route("").breaker, BreakerPolicy { consecutive_failures: 5, failure_rate: None, open_for: seconds(5) });
    let stated = route("breaker = { consecutive_failures = 0, failure_percent = 50 }").breaker;
    assert_eq!(stated.failure_rate, Some(FailureRate { percent: 50, minimum_calls: 20, window: seconds(30) }));
    assert!(stated.may_open() && !route("breaker.consecutive_failures = 0").breaker.may_open());
    let described = config(
        &format!("{LEAST}[policies.p.breaker]\nopen_for = \"2s\"").replace("[[routes]]", "[[routes]]\npolicy = \"p\""),
    );
    assert_eq!(line(&described, "breaker.consecutive_failures"), "breaker.consecutive_failures 5 built-in");
    assert_eq!(line(&described, "breaker.open_for"), "breaker.open_for 2s policy p");
    assert_eq!(line(&described, "breaker.window"), "");
}

#[test]
fn a_bound_on_calls_under_way_is_built_in() {
    assert_eq!(route("").concurrency, Concurrency { most: 128, queue: 0 });
    assert_eq!(route("limit = { concurrency = 7, queue = 3 }").concurrency, Concurrency { most: 7, queue: 3 });
    assert_eq!(line(&config(LEAST), "limit.concurrency"), "limit.concurrency 128 built-in");
}

#[test]
fn each_caller_may_have_a_rate_of_his_own() {
    let rates =
        route("limit = { rate = \"50/s\", rate_per_scope = \"5/m\", burst_per_scope = 2, rate_queue = 9 }").rates;
    let each = rates.each.unwrap();
    assert_eq!((each.count.get(), each.period, each.burst.get()), (5, Duration::from_secs(60), 2));
    assert_eq!((rates.all.unwrap().burst.get(), rates.queue), (50, 9));
    assert_eq!(route("").rates, Rates::default());
    let fleet =
        format!("{LEAST}limit = {{ rate = \"5/s\", shared = true }}\n[store]\nurl = \"redis://h\"\nnamespace = \"n\"");
    assert!(config(&fleet).routes.0[0].rates.shared);
    let described = config(&format!("{LEAST}limit.rate_per_scope = \"5/s\""));
    assert_eq!(line(&described, "limit.rate_per_scope"), "limit.rate_per_scope 5/s route");
}

#[test]
fn a_gate_that_cannot_be_is_refused() {
    for (lines, message) in [
        ("retry.budget = 3", "gateway.toml:8:16: routes.retry.budget = 3: a table"),
        (
            "retry.budget.percent = -1",
            "gateway.toml:8:24: routes.retry.budget.percent = -1: a whole number from 0 to 1000",
        ),
        (
            "retry.budget.per_second = 1000001",
            "gateway.toml:8:27: routes.retry.budget.per_second = 1000001: a whole number from 0 to 1000000",
        ),
        (
            "retry.budget.ratio = 1",
            "gateway.toml:8:14: routes.retry.budget.ratio: unknown key `ratio`; [routes.retry.budget] accepts percent, \
             per_second",
        ),
        (
            "breaker.consecutive_failures = -1",
            "gateway.toml:8:32: routes.breaker.consecutive_failures = -1: a whole number from 0 to 1000000",
        ),
        (
            "breaker.failure_percent = 101",
            "gateway.toml:8:27: routes.breaker.failure_percent = 101: a whole number from 1 to 100",
        ),
        ("limit.concurrency = 0", "gateway.toml:8:21: routes.limit.concurrency = 0: a whole number from 1 to 1000000"),
        ("limit.queue = -1", "gateway.toml:8:15: routes.limit.queue = -1: a whole number from 0 to 1000000"),
        (
            "limit.rate_queue = 5",
            "gateway.toml:8:20: routes.limit.rate_queue = 5: nothing limits the rate: `rate` or `rate_per_scope` has to \
             stand beside it",
        ),
        (
            "limit.burst_per_scope = 5",
            "gateway.toml:8:25: routes.limit.burst_per_scope = 5: nothing limits the rate: `rate_per_scope` has to stand \
             beside it",
        ),
        (
            "limit = { rate = \"5/s\", shared = true }",
            "gateway.toml:8:34: routes.limit.shared = true: the store is for one gateway; those of one Redis can share a rate",
        ),
        (
            "limit.shared = true",
            "gateway.toml:8:16: routes.limit.shared = true: nothing limits the rate: `rate` or `rate_per_scope` has to \
             stand beside it",
        ),
        ("breaker.open_for = \"0s\"", "gateway.toml:8:20: routes.breaker.open_for = \"0s\": longer than zero"),
        (
            "breaker.window = \"30s\"",
            "gateway.toml:8:18: routes.breaker.window = \"30s\": no rate of failures opens it: `failure_percent` has to \
             stand beside it",
        ),
        (
            "breaker.minimum_calls = 3",
            "gateway.toml:8:25: routes.breaker.minimum_calls = 3: no rate of failures opens it: `failure_percent` has to \
             stand beside it",
        ),
        (
            "[routes.breaker]\nfail_timeout = \"7s\"",
            "gateway.toml:9:1: routes.breaker.fail_timeout: unknown key `fail_timeout`; here `open_for = \"7s\"`",
        ),
    ] {
        assert_eq!(errors(&format!("{LEAST}{lines}\n")), message, "{lines}");
    }
}
