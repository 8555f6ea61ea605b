//! What each value of a route may say alone, but not beside another.

use http::Method;

use crate::operation::admission::{Repeat, ResendRule};

use super::error::{ConfigError, Problem};
use super::layers::Layers;
use super::reader::{Section, Stated};
use super::{Compare, KeyMode, OnStoreDown, Route};

/// Refuses what a route says in two places that cannot hold together; `section` is where the route begins.
pub(super) fn check(section: &Section<'_>, route: &Route, layers: &Layers<'_>, errors: &mut Vec<ConfigError>) {
    let key = &route.key;
    let mut check = Check { section, route, errors };
    check.refuse("on_store_down", layers.stated(|policy| &policy.on_store_down), store_down_problem(route));
    check.refuse("repeat", layers.stated(|policy| &policy.repeat), key_retention_problem(route));

    let ignores_in_bytes = route.payload.compare == Compare::Bytes && !route.payload.ignore.is_empty();
    let problem = "bytes have no fields: say compare = \"auto\", \"json\", \"form\" or \"multipart\"";
    check.refuse("payload.ignore", layers.stated(|policy| &policy.payload.ignore), ignores_in_bytes.then_some(problem));

    let others = [&key.session_header, &key.step_header];
    let shares = others.contains(&&key.header) || key.session_header == key.step_header;
    let problem = "`header`, `session_header` and `step_header` are three headers";
    check.refuse("key.header", layers.stated(|policy| &policy.key.header), shares.then_some(problem));

    let names_itself = key.headers.contains(&key.header);
    let problem = "the header of the key itself needs no mention";
    check.refuse("key.headers", layers.stated(|policy| &policy.key.headers), names_itself.then_some(problem));

    let mut added = route.upstream.headers.iter();
    let is_added = added.any(|(name, _)| key.upstream_header.as_ref() == Some(name));
    let problem = "`headers` of the upstream set this header, too";
    check.refuse(
        "key.upstream_header",
        layers.stated(|policy| &policy.key.upstream_header),
        is_added.then_some(problem),
    );
}

struct Check<'c> {
    section: &'c Section<'c>,
    route: &'c Route,
    errors: &'c mut Vec<ConfigError>,
}

impl Check<'_> {
    /// Refuses beside the value, or beside the route where the value is built in.
    fn refuse<T>(&mut self, key: &str, stated: Option<&Stated<T>>, problem: Option<&'static str>) {
        let Some(problem) = problem else { return };
        let problem = Problem::Contradiction(format!("{problem} (route `{}`)", self.route.name).into());
        self.errors.push(match stated {
            Some(stated) => stated.refused(problem),
            None => self.section.refused(key, problem),
        });
    }
}

/// Unguarded, a call may run once more for each repeat: only where that is harmless, or where a key of the call's own
/// goes along. A stamped key is another one each time.
fn store_down_problem(route: &Route) -> Option<&'static str> {
    if route.on_store_down == OnStoreDown::Reject || route.key.mode == KeyMode::Off {
        return None;
    }
    let every_method = [Method::POST];
    let methods = route.matches.methods.as_deref().unwrap_or(&every_method);
    let problem = |method: &Method| match (route.repeat_for(method), route.key.mode) {
        (Repeat::Harmless, _) => None,
        (Repeat::WithKey, KeyMode::Stamp) => {
            Some("\"pass\" needs a client's or derived key on a with-key upstream: say key.mode = \"required\"")
        }
        (Repeat::WithKey, KeyMode::Required | KeyMode::Off) => {
            let problem = "\"pass\" needs the key to go upstream, and `upstream_header` is \"off\"";
            route.key.upstream_header.is_none().then_some(problem)
        }
        (Repeat::Unsafe, _) => Some("\"pass\" would let an unsafe call run twice: only with-key and harmless may pass"),
    };
    methods.iter().find_map(problem)
}

fn key_retention_problem(route: &Route) -> Option<&'static str> {
    let rule = ResendRule {
        repeat: route.repeat.or(route.upstream.repeat)?,
        key_retention: route.upstream.key_retention,
        attempt_timeout: route.retry.attempt_timeout,
        settle: route.upstream.settle,
        destination: route.destination,
    };
    let leaves_no_time = rule.repeat == Repeat::WithKey && rule.window().is_zero();
    leaves_no_time.then_some(
        "`key_retention` of the upstream leaves no time for a re-send: it must exceed `attempt_timeout` + `settle`",
    )
}
