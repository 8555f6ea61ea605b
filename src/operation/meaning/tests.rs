use http::HeaderValue;
use proptest::prelude::*;

use super::*;

fn rule(meaning: Meaning) -> Rule {
    Rule { statuses: Vec::new(), headers: Vec::new(), json: Vec::new(), meaning }
}

fn only(number: u16) -> Vec<Statuses> {
    vec![Statuses { first: number, last: number }]
}

fn member(pointer: &str, test: JsonTest) -> (Pointer, JsonTest) {
    (pointer.parse().unwrap(), test)
}

fn equals(text: &str) -> JsonTest {
    JsonTest::OneOf(vec![canonical_json(text).unwrap()])
}

fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        headers.append(*name, HeaderValue::from_static(value));
    }
    headers
}

/// What `rules` say of a whole JSON answer.
fn said(rules: Vec<Rule>, status: u16, body: &str) -> Said {
    let body = json::read(body.as_bytes());
    Rules(rules).say(status, &HeaderMap::new(), body.as_ref().map_or(Look::Nothing, Look::Json))
}

#[test]
fn the_first_rule_that_fits_counts() {
    let rules = || {
        vec![
            Rule { statuses: only(409), ..rule(Meaning::Busy) },
            Rule { statuses: vec![Statuses { first: 400, last: 499 }], ..rule(Meaning::Failed) },
            rule(Meaning::Unknown),
        ]
    };
    assert_eq!(said(rules(), 409, ""), Said::Means(Meaning::Busy));
    assert_eq!(said(rules(), 400, ""), Said::Means(Meaning::Failed));
    assert_eq!(said(rules(), 499, ""), Said::Means(Meaning::Failed));
    assert_eq!(said(rules(), 500, ""), Said::Means(Meaning::Unknown));
    assert_eq!(said(Vec::new(), 500, ""), Said::Nothing);
}

#[test]
fn all_conditions_of_a_rule_have_to_hold() {
    let found = |lines| {
        let headers_of_rule = vec![
            ("server".parse().unwrap(), HeaderTest::StartsWith("nginx".to_owned())),
            ("x-ran".parse().unwrap(), HeaderTest::Equals("no".to_owned())),
            ("via".parse().unwrap(), HeaderTest::Present),
        ];
        let rules = Rules(vec![Rule { statuses: only(503), headers: headers_of_rule, ..rule(Meaning::NotExecuted) }]);
        rules.say(503, &headers(lines), Look::Nothing)
    };
    let fits = Said::Means(Meaning::NotExecuted);
    assert_eq!(found(&[("server", "nginx/1.25"), ("x-ran", "yes"), ("x-ran", "no"), ("via", "")]), fits);
    assert_eq!(found(&[("server", "apache"), ("x-ran", "no"), ("via", "a")]), Said::Nothing);
    assert_eq!(found(&[("server", "nginx"), ("x-ran", "No"), ("via", "a")]), Said::Nothing);
    assert_eq!(found(&[("server", "nginx"), ("x-ran", "no")]), Said::Nothing);
}

#[test]
fn members_are_compared_by_value() {
    let fits = |test: JsonTest, body: &str| {
        said(vec![Rule { json: vec![member("/a/0", test)], ..rule(Meaning::Failed) }], 200, body) != Said::Nothing
    };
    assert!(fits(equals("1"), "{\"a\": [1.0e0, 2]}"));
    assert!(fits(equals("\"\u{e9}\""), "{\"a\": [\"\\u00e9\"]}"));
    assert!(!fits(equals("1"), "{\"a\": [\"1\"]}"));
    assert!(!fits(equals("false"), "{\"a\": [null]}"));
    assert!(!fits(equals("false"), "{\"a\": []}"));
    assert!(fits(JsonTest::OneOf(vec![b"1e0".to_vec(), b"true".to_vec()]), "{\"a\": [true]}"));
    assert!(fits(JsonTest::Present, "{\"a\": [false]}"));
    assert!(!fits(JsonTest::Present, "{\"a\": [null]}"));
    assert!(fits(JsonTest::Contains("rate limit".to_owned()), "{\"a\": [\"secondary rate limit.\"]}"));
    assert!(!fits(JsonTest::Contains("rate limit".to_owned()), "{\"a\": [{\"rate limit\": 1}]}"));
    assert!(!fits(equals("1"), "{\"a\": [1]} and more"));
}

#[test]
fn a_rule_that_has_to_see_the_body_hides_those_behind_it_until_it_has() {
    let rules = Rules(vec![
        Rule { statuses: only(200), json: vec![member("/ok", equals("false"))], ..rule(Meaning::Failed) },
        rule(Meaning::Executed),
    ]);
    let say = |status, look| rules.say(status, &HeaderMap::new(), look);
    assert_eq!(say(200, Look::NotYet), Said::Open);
    assert_eq!(say(201, Look::NotYet), Said::Means(Meaning::Executed));
    assert_eq!(say(200, Look::Nothing), Said::Means(Meaning::Executed));
    let (no, yes) = (json::read(b"{\"ok\": false}").unwrap(), json::read(b"{\"ok\": true}").unwrap());
    assert_eq!(say(200, Look::Json(&no)), Said::Means(Meaning::Failed));
    assert_eq!(say(200, Look::Json(&yes)), Said::Means(Meaning::Executed));
}

#[test]
fn an_answer_that_is_open_to_the_end_is_in_doubt() {
    for outcome in [Outcome::Answer { status: 200 }, Outcome::Cut { status: 200 }] {
        assert!(fact(&outcome, Said::Open).may_have_run(), "{outcome:?}");
    }
}

#[test]
fn where_no_answer_came_no_rule_speaks() {
    for outcome in [Outcome::TurnedAway, Outcome::BadHead, Outcome::Silent(crate::operation::outcome::Silence::Closed)]
    {
        for said in [Said::Open, Said::Nothing, Said::Means(Meaning::Executed)] {
            assert_eq!(fact(&outcome, said), classify(&outcome));
        }
    }
}

#[test]
fn a_rule_reads_as_it_is_written() {
    let shown = Rule {
        statuses: vec![Statuses { first: 409, last: 409 }, Statuses { first: 500, last: 504 }],
        headers: vec![("server".parse().unwrap(), HeaderTest::StartsWith("nginx".to_owned()))],
        json: vec![member("/ok", equals("false")), member("/error", JsonTest::Present)],
        meaning: Meaning::Busy,
    };
    assert_eq!(shown.to_string(), "409 500-504, server: \"nginx*\", /ok = false, /error = { exists = true }");
}

proptest! {
    #[test]
    fn no_body_breaks_it(body: Vec<u8>, status: u16) {
        let rules = Rules(vec![Rule { json: vec![member("/a/b/0", JsonTest::Present)], ..rule(Meaning::Busy) }]);
        let read = json::read(&body);
        rules.say(status, &HeaderMap::new(), read.as_ref().map_or(Look::Nothing, Look::Json));
    }
}

#[test]
fn where_an_exception_cannot_be_seen_a_no_is_no_proof() {
    let by_code = |meaning| Rule { json: vec![member("/code", equals("1"))], ..rule(meaning) };
    let hidden = |rules: Vec<Rule>| Rules(rules).say(409, &HeaderMap::new(), Look::Nothing);
    let no = || rule(Meaning::NotExecuted);
    assert_eq!(hidden(vec![by_code(Meaning::Busy), no()]), Said::Means(Meaning::Unknown));
    assert_eq!(hidden(vec![by_code(Meaning::Throttled), no()]), Said::Means(Meaning::NotExecuted), "neither ran");
    assert_eq!(hidden(vec![no(), by_code(Meaning::Busy)]), Said::Means(Meaning::NotExecuted));
    assert_eq!(hidden(vec![by_code(Meaning::Busy), rule(Meaning::Failed)]), Said::Means(Meaning::Failed));
}
