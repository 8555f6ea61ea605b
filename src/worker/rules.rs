//! At start: says how many live keys were made under identity rules that have changed since, so that a repeat of their
//! calls is not recognised.
//!
//! The store remembers for each route every set of rules under which live records may have been made, also those from
//! before a change that was taken back. Records are looked through from the newest on, and not without end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::config::{ON_CHANGED_PAYLOAD, Route};
use crate::engine::Engine;
use crate::operation::KeySource;
use crate::store::{Store, StoreError};

const PAGE: usize = 500;
/// What a start may cost a store that holds millions. Right after a change the newest are those from before it.
const PAGES: usize = 100;
/// How long after a store that did not answer.
const AGAIN: Duration = Duration::from_secs(5);
/// All that a client's own key depends on.
const OF_CLIENT_KEYS: [&str; 3] = ["callers.scope", "key.header", "key.client_key"];

/// The rules of a route by the names of the file; none where only their digest is known.
type Rules = BTreeMap<String, String>;
/// Rules by the digest that records bear.
type Known = BTreeMap<String, Rules>;

/// Live records of one set of rules. Keys that were made for one call alone are in no repeat.
#[derive(Default)]
struct Live {
    derived: usize,
    client: usize,
}

/// What a look through the records has found.
#[derive(Default)]
struct Found {
    live: BTreeMap<String, Live>,
    /// There are more records than were looked at.
    is_cut: bool,
}

/// Compares the rules of every route with those that the store remembers, and remembers the present ones. A store that is
/// away is asked again until `stop`.
pub async fn compare(engine: Arc<Engine>, stop: CancellationToken) {
    let mut warnings = Vec::new();
    for route in &engine.shared().config.routes.0 {
        let found = loop {
            match look_back(&engine, route).await {
                Ok(found) => break found,
                Err(error) => tracing::debug!(route = %route.name, %error, "identity rules not compared yet"),
            }
            if stop.run_until_cancelled(sleep(AGAIN)).await.is_none() {
                return;
            }
        };
        found.iter().for_each(|warning| tracing::warn!("{warning}"));
        warnings.extend(found);
        engine.shared().status.warn("identity rules", warnings.clone());
    }
}

async fn look_back(engine: &Engine, route: &Route) -> Result<Vec<String>, StoreError> {
    let config = &engine.shared().config;
    let (name, own) = (format!("rules:{}", route.name), text(&route.rules));
    let present: Rules = config.identity_rules(route).into_iter().map(|(key, rule)| (key.to_owned(), rule)).collect();
    let only = Known::from([(own.clone(), present.clone())]);
    let (known, is_whole) = note(engine.store().as_ref(), &name, only, &Known::new()).await?;
    if is_whole && known.len() == 1 {
        return Ok(Vec::new());
    }
    let found = live_under_others(engine, route).await?;
    note(engine.store().as_ref(), &name, found.kept(&known, &own), &known).await?;
    let recognised: Vec<_> = config.rules_of_found_keys(route).iter().chain([&route.rules]).map(text).collect();
    Ok(warnings(&route.name, &found, &known, &recognised, &present))
}

impl Found {
    /// Of the `known` rules, and of those that were met, which are to be remembered beside one's `own`.
    fn kept(&self, known: &Known, own: &str) -> Known {
        let mut kept = known.clone();
        kept.retain(|digest, _| self.is_cut || *digest == own || self.live.contains_key(digest));
        for digest in self.live.keys() {
            kept.entry(digest.clone()).or_default();
        }
        kept
    }
}

/// Notes `known` and what other gateways have noted beside it; `settled` are those whose fate is decided. False if an
/// older version wrote the note, which knew one set of rules only.
async fn note(store: &dyn Store, name: &str, mut known: Known, settled: &Known) -> Result<(Known, bool), StoreError> {
    let mut is_whole = true;
    loop {
        let before = store.remember(name, &json!(known).to_string(), None).await?.unwrap_or_else(|| "{}".to_owned());
        let others = serde_json::from_str::<Known>(&before).unwrap_or_else(|_| {
            is_whole = false;
            Known::from([(before, Rules::new())])
        });
        let new: Known =
            others.into_iter().filter(|(it, _)| !known.contains_key(it) && !settled.contains_key(it)).collect();
        if new.is_empty() {
            return Ok((known, is_whole));
        }
        known.extend(new);
    }
}

async fn live_under_others(engine: &Engine, route: &Route) -> Result<Found, StoreError> {
    let (mut live, mut cursor) = (BTreeMap::<_, Live>::new(), None::<String>);
    for _ in 0..PAGES {
        let page = engine.store().list(cursor.as_deref(), PAGE).await?;
        let identities = page.operations.into_iter().map(|operation| operation.identity);
        for identity in identities.filter(|it| it.route == route.name && it.rules != route.rules) {
            match identity.source {
                KeySource::Derived => live.entry(text(&identity.rules)).or_default().derived += 1,
                KeySource::Client => live.entry(text(&identity.rules)).or_default().client += 1,
                KeySource::Window | KeySource::Stamped => {}
            }
        }
        cursor = page.next;
        if cursor.is_none() {
            return Ok(Found { live, is_cut: false });
        }
    }
    Ok(Found { live, is_cut: true })
}

/// `known` are all rules that were ever in force, `recognised` those under which keys are found now.
fn warnings(route: &str, found: &Found, known: &Known, recognised: &[String], is: &Rules) -> Vec<String> {
    let nothing = Rules::new();
    let lost = found.live.iter().filter(|(digest, _)| !recognised.contains(digest));
    let rules_of = |digest| known.get(digest).unwrap_or(&nothing);
    let warnings: Vec<_> =
        lost.filter_map(|(digest, live)| warning(route, (live, found.is_cut), rules_of(digest), is)).collect();
    let may_be_more = found.is_cut && known.keys().any(|digest| !recognised.contains(digest));
    let unseen = (may_be_more && warnings.is_empty()).then(|| not_all_looked_at(route));
    warnings.into_iter().chain(unseen).collect()
}

fn warning(route: &str, (live, is_cut): (&Live, bool), was: &Rules, is: &Rules) -> Option<String> {
    let differs = |key: &str| !was.is_empty() && was.get(key) != is.get(key);
    let touches_clients = OF_CLIENT_KEYS.into_iter().any(differs);
    let keys = match live.derived + if touches_clients { live.client } else { 0 } {
        0 => return None,
        1 => "1 live key was".to_owned(),
        keys => format!("{keys} live keys were"),
    };
    let told = |rules: &Rules, key: &str| rules.get(key).cloned().unwrap_or_else(|| "not there".to_owned());
    let changes = is.keys().filter(|key| differs(key) && *key != ON_CHANGED_PAYLOAD);
    let changes: Vec<String> =
        changes.map(|key| format!("{key} was {}, is {}", told(was, key), told(is, key))).collect();
    let changes = if changes.is_empty() { "which is not known".to_owned() } else { changes.join("; ") };
    let at_least = if is_cut { "at least " } else { "" };
    Some(format!(
        "route `{route}`: {at_least}{keys} made under other identity rules ({changes}); a repeat of such a call is not recognised \
         and may run again. Go back to the old rules, or let nothing be repeated from before the change"
    ))
}

fn not_all_looked_at(route: &str) -> String {
    format!(
        "route `{route}`: there were other identity rules, and none of its newest {} records tells of a key that was made          under them; older ones were not looked at. A repeat of such a call is not recognised and may run again",
        PAGE * PAGES
    )
}

fn text(digest: &[u8; 8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::store::memory::MemoryStore;

    fn rules(pairs: &[(&str, &str)]) -> Rules {
        pairs.iter().map(|(key, rule)| ((*key).to_owned(), (*rule).to_owned())).collect()
    }

    fn known(digests: &[&str]) -> Known {
        digests.iter().map(|digest| ((*digest).to_owned(), Rules::new())).collect()
    }

    #[test]
    fn a_client_key_counts_only_where_a_rule_of_its_own_changed() {
        let live = Live { derived: 1, client: 4 };
        let is = rules(&[("key.from", "[step]"), ("callers.scope", "none")]);
        let said = |was: &[(&str, &str)]| warning("r", (&live, false), &rules(was), &is).unwrap();
        let from = said(&[("key.from", "[session]"), ("callers.scope", "none")]);
        assert!(from.contains("1 live key was made") && from.contains("key.from was [session], is [step]"), "{from}");
        assert!(said(&[("key.from", "[step]"), ("callers.scope", "credential")]).contains("5 live keys were made"));
        assert!(said(&[]).contains("1 live key was made"), "an older version left the digest alone");
        assert!(warning("r", (&Live { derived: 0, client: 4 }, false), &Rules::new(), &is).is_none());
    }

    #[test]
    fn what_was_not_looked_at_may_be_live() {
        let live = || BTreeMap::from([("b".to_owned(), Live { derived: 2, client: 0 })]);
        let kept = |is_cut| Found { live: live(), is_cut }.kept(&known(&["a", "own"]), "own");
        assert_eq!(kept(false), known(&["b", "own"]));
        assert_eq!(kept(true), known(&["a", "b", "own"]));
        let is = rules(&[("key.from", "[step]")]);
        let said = warning("r", (&live()["b"], true), &Rules::new(), &is).unwrap();
        assert!(said.contains("route `r`: at least 2 live keys were made"), "{said}");

        let own = ["own".to_owned()];
        let unseen = |digests: &[&str], is_cut| {
            warnings("r", &Found { is_cut, ..Found::default() }, &known(digests), &own, &is).join("\n")
        };
        assert!(unseen(&["a", "own"], true).contains("older ones were not looked at"));
        assert_eq!((unseen(&["a", "own"], false), unseen(&["own"], true)), (String::new(), String::new()));
    }

    #[tokio::test]
    async fn what_another_gateway_noted_stays_and_what_is_over_goes() {
        let store = MemoryStore::new(Clock::system());
        let note = async |wanted: &[&str], settled: &[&str]| {
            note(&store, "rules:r", known(wanted), &known(settled)).await.unwrap()
        };
        assert_eq!(note(&["a"], &[]).await, (known(&["a"]), true));
        assert_eq!(note(&["b"], &[]).await, (known(&["a", "b"]), true));
        assert_eq!(note(&["b"], &["a", "b"]).await, (known(&["b"]), true));
        assert_eq!(note(&["b"], &[]).await, (known(&["b"]), true));
    }

    #[tokio::test]
    async fn the_note_of_an_older_version_is_one_digest() {
        let store = MemoryStore::new(Clock::system());
        store.remember("rules:r", "0011223344556677", None).await.unwrap();
        let noted = note(&store, "rules:r", known(&["a"]), &Known::new()).await.unwrap();
        assert_eq!(noted, (known(&["0011223344556677", "a"]), false));
    }
}
