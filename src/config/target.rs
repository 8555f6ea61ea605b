//! The target that the upstream gets.

use std::borrow::Cow;

use super::Route;

/// The target of a call on its way to the upstream: the matched prefix becomes `upstream_path`, the upstream's own path
/// goes in front, and every other byte stays as it came, the query included.
///
/// Where a prefix is cut off, the rest never begins with two slashes: `//host/x` would read as another host.
pub fn upstream_target(route: &Route, path_and_query: &str) -> String {
    if !path_and_query.starts_with('/') {
        return path_and_query.to_owned();
    }
    let end = path_and_query.find('?').unwrap_or(path_and_query.len());
    let (path, query) = path_and_query.split_at(end);
    let path = match &route.upstream_path {
        Some(replacement) => replaced(path, &route.matches.path, replacement),
        None => Cow::Borrowed(path),
    };
    format!("{}{path}{query}", route.upstream.base_path)
}

fn replaced<'p>(path: &'p str, prefix: &str, replacement: &str) -> Cow<'p, str> {
    let rest = match path.strip_prefix(prefix.trim_end_matches('/')) {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => rest,
        Some(_) | None => return Cow::Borrowed(path),
    };
    match (replacement.trim_end_matches('/'), rest) {
        (_, "") => Cow::Owned(replacement.to_owned()),
        ("", rest) => Cow::Owned(format!("/{}", rest.trim_start_matches('/'))),
        (front, rest) => Cow::Owned(format!("{front}{rest}")),
    }
}
