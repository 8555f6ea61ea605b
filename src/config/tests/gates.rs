//! What bounds the cost of an outage, as the file says it.

use super::describing::line;
use super::*;
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
    ] {
        assert_eq!(errors(&format!("{LEAST}{lines}\n")), message, "{lines}");
    }
}
