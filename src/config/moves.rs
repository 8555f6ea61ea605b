//! What takes calls away from their records without another name for them: another route, no guard, another caller's
//! name, another store.

use http::{HeaderMap, Method};

use super::{Callers, Config, Effect, KeyMode, Route, RouteMatch, StoreUrl};
use crate::redis_url::Layout;

/// Methods that a route without a list of its own is asked about.
const WRITES: [Method; 4] = [Method::POST, Method::PUT, Method::PATCH, Method::DELETE];

/// Calls of a route that are treated alike, by what becomes of them.
struct Moved<'c> {
    route: &'c str,
    path: &'c str,
    now: String,
    methods: Vec<&'c str>,
}

/// All of it between two configurations, one line each.
pub(super) fn moves(old: &Config, new: &Config) -> Vec<String> {
    let mut lines: Vec<String> = moved(old, new).iter().map(Moved::line).collect();
    lines.extend(renamed_callers(&old.callers, &new.callers));
    if memory(&old.store.url) != memory(&new.store.url) {
        lines.push(format!(
            "store.url was {}, is {}: what is in the one is not in the other",
            old.store.url, new.store.url
        ));
    }
    lines
}

/// Every path that a route of either file begins with is asked for, by each method and with the conditions of each route.
fn moved<'c>(old: &'c Config, new: &'c Config) -> Vec<Moved<'c>> {
    let matches: Vec<&RouteMatch> = [old, new].iter().flat_map(|it| &it.routes.0).map(|route| &route.matches).collect();
    let listed = matches.iter().filter_map(|it| it.methods.as_ref()).flatten();
    let mut methods: Vec<&Method> = WRITES.iter().chain(listed).collect();
    methods.sort_by_key(|method| method.as_str());
    methods.dedup();
    let conditions = conditions(&matches);
    let mut moved = Vec::new();
    for path in each_once(matches.iter().map(|it| it.path.as_str())) {
        for (host, headers) in &conditions {
            for method in &methods {
                let find = |config: &'c Config| config.routes.find(method, host, path, headers);
                let Some(was) = find(old).filter(|route| guards(route, method)) else { continue };
                if let Some(now) = new.routes.named(&was.name).and_then(|_| becomes(was, find(new)?, method)) {
                    note(&mut moved, Moved { route: &was.name, path, now, methods: vec![method.as_str()] });
                }
            }
        }
    }
    moved
}

/// Host and headers of each route, and none of them.
fn conditions(matches: &[&RouteMatch]) -> Vec<(String, HeaderMap)> {
    let of = |it: &&RouteMatch| (it.host.clone().unwrap_or_default(), it.headers.iter().cloned().collect());
    each_once(matches.iter().map(of).chain([(String::new(), HeaderMap::new())]))
}

/// What is asked with what is a product of three: of hundreds of routes, most have the same conditions.
fn each_once<T: PartialEq>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut once = Vec::new();
    for item in items {
        if !once.contains(&item) {
            once.push(item);
        }
    }
    once
}

fn guards(route: &Route, method: &Method) -> bool {
    route.effect_for(method) == Effect::Write && route.key.mode != KeyMode::Off
}

/// What becomes of a call that `was` guarded under its own name.
fn becomes(was: &Route, now: &Route, method: &Method) -> Option<String> {
    match (now.name == was.name, guards(now, method)) {
        (true, true) => None,
        (true, false) => Some("not guarded any more".to_owned()),
        (false, true) => Some(format!("taken by route {}, where calls get new keys", now.name)),
        (false, false) => Some(format!("taken by route {}, which does not guard them", now.name)),
    }
}

fn note<'c>(moved: &mut Vec<Moved<'c>>, found: Moved<'c>) {
    let is_same = |it: &&mut Moved<'c>| (it.route, it.path, &it.now) == (found.route, found.path, &found.now);
    match moved.iter_mut().find(is_same) {
        Some(same) => {
            same.methods.extend(found.methods);
            same.methods.sort_unstable();
            same.methods.dedup();
        }
        None => moved.push(found),
    }
}

impl Moved<'_> {
    fn line(&self) -> String {
        format!("route {}: {} {} is {}", self.route, self.methods.join(" "), self.path, self.now)
    }
}

/// A token goes on under another name, which is the caller's.
fn renamed_callers(old: &Callers, new: &Callers) -> Vec<String> {
    let (Callers::Token(old), Callers::Token(new)) = (old, new) else { return Vec::new() };
    let renamed = old.iter().filter_map(|was| {
        let is = new.iter().find(|is| is.token == was.token && is.name != was.name)?;
        Some(format!("callers.tokens: {} is called {}", was.name, is.name))
    });
    renamed.collect()
}

/// What tells one memory from another, whoever opens it and by whichever of its servers.
fn memory(url: &StoreUrl) -> String {
    match url {
        StoreUrl::Memory | StoreUrl::File(_) => url.to_string(),
        StoreUrl::Redis(redis) => match &redis.layout {
            Layout::Server(host) => format!("server {host} {}", redis.database),
            Layout::Sentinel { master, .. } => format!("master {master} {}", redis.database),
            Layout::Cluster { .. } => "cluster".to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Environment;

    #[test]
    fn routes_without_conditions_are_asked_for_under_one() {
        let routes =
            (0..50).map(|number| format!("{{ name = 'r{number}', match.path = '/r{number}', upstream = 'main' }}"));
        let routes = routes.collect::<Vec<_>>().join(", ");
        let file = format!("upstreams.main.url = 'http://127.0.0.1:1'\nroutes = [{routes}]");
        let config = Config::parse(&file, "gateway.toml", &Environment::default()).unwrap();
        let matches: Vec<_> = config.routes.0.iter().map(|route| &route.matches).collect();
        assert_eq!((matches.len(), conditions(&matches).len()), (50, 1));
    }
}
