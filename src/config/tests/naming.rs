//! How long what a name leads to is believed.

use std::time::Duration;

use super::describing::line;
use super::*;

fn with(line: &str) -> String {
    LEAST.replace("http://127.0.0.1:9000\"", &format!("http://pay.internal\"\n{line}"))
}

#[test]
fn a_name_is_looked_up_again_after_some_seconds_unless_stated() {
    let ttl = |line: &str| config(&with(line)).routes.0[0].upstream.dns_ttl;
    assert_eq!(ttl(""), Duration::from_secs(5));
    assert_eq!(ttl("dns_ttl = \"1m\""), Duration::from_secs(60));
}

#[test]
fn a_time_that_is_none_is_refused_and_other_words_are_answered_with_ours() {
    let refused = |line: &str| errors(&with(line));
    assert_eq!(refused("dns_ttl = \"0s\""), "gateway.toml:4:11: upstreams.main.dns_ttl = \"0s\": longer than zero");
    assert_eq!(
        refused("dns_refresh_rate = \"10s\""),
        "gateway.toml:4:1: upstreams.main.dns_refresh_rate: unknown key `dns_refresh_rate`; here `dns_ttl = \"10s\"`"
    );
}

#[test]
fn the_name_that_is_looked_up_is_described() {
    let told = |line_of_upstream: &str, name: &str| line(&config(&with(line_of_upstream)), name);
    assert_eq!(told("dns_ttl = \"90s\"", "pay.internal"), "pay.internal is looked up again after 90s");
    assert_eq!(told("proxy = \"http://egress:3128\"", "egress"), "egress is looked up again after 5s");
    assert_eq!(told("proxy = \"http://10.0.0.1:3128\"", "pay.internal"), "");
}
