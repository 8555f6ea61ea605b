//! The least rights: what docs/redis.md says has to be enough, and not more than that.

use std::time::Duration;

use oncegate::redis_url::RedisUrl;
use oncegate::store::redis::{OpenError, RedisStore, Settings};
use oncegate::store::{Store, StoreError, Written};

use super::{PATIENT, say};
use crate::store_contract::rights::first_failure;
use crate::support::eventually;
use crate::support::operations::*;
use crate::support::redis_fleet::replicated;
use crate::support::redis_server::RedisServer;

const DOCUMENT: &str = include_str!("../../../docs/redis.md");

/// The rule that the document shows, for a namespace.
fn documented_rule(namespace: &str) -> Vec<String> {
    let (_, rule) = DOCUMENT.split_once("ACL SETUSER").unwrap();
    let (rule, _) = rule.split_once("```").unwrap();
    let rule = format!("ACL SETUSER{rule}").replace("checkout", namespace).replace("PASSWORD", "secret");
    rule.replace('\\', "").split_whitespace().map(str::to_owned).collect()
}

/// Gives `user` the documented rights over all namespaces of these tests, but not `without`, and also `more`. The password
/// is `secret`.
pub fn grant(server: &RedisServer, user: &str, without: &str, more: &[&str]) {
    let mut rule = documented_rule("shop*");
    rule[2] = user.to_owned();
    rule.retain(|word| word != without);
    rule.extend(more.iter().map(|right| (*right).to_owned()));
    say::<()>(server, &rule.iter().map(String::as_str).collect::<Vec<_>>());
}

/// The same, and the settings of that user.
fn allowed(server: &RedisServer, user: &str, without: &str, more: &[&str]) -> Settings {
    grant(server, user, without, more);
    let url = server.url().replace("//", &format!("//{user}:secret@"));
    Settings::new(RedisUrl::parse(&url).unwrap(), "shop", PATIENT)
}

/// The case of the contract that fails first, or `None`.
async fn failure(settings: Settings) -> Option<&'static str> {
    let open = async |case: &'static str| {
        let namespace = format!("shop-{}-{case}", settings.url.user.clone().unwrap_or_default());
        RedisStore::open(Settings { namespace, ..settings.clone() }).await.ok()
    };
    first_failure(open).await
}

#[tokio::test]
async fn the_documented_rights_are_enough() {
    let server = RedisServer::start();
    assert_eq!(failure(allowed(&server, "gateway", "", &[])).await, None);
}

/// These only show whether a server is fit, which the tests below see.
const ABOUT_FITNESS: [&str; 3] = ["+info", "+role", "+config|get"];

#[tokio::test]
async fn each_documented_right_is_needed() {
    let server = RedisServer::start();
    let rights: Vec<_> = documented_rule("shop").into_iter().filter(|word| word.starts_with('+')).collect();
    let tries = rights.iter().map(async |right| (right, failure(allowed(&server, &right[1..], right, &[])).await));
    let unneeded = at_once(tries).await.into_iter().filter(|(_, failure)| failure.is_none()).map(|(right, _)| right);
    assert_eq!(unneeded.collect::<Vec<_>>(), ABOUT_FITNESS);
}

#[test]
fn the_documented_rights_are_over_one_namespace() {
    let server = RedisServer::start();
    say::<()>(&server, &documented_rule("shop").iter().map(String::as_str).collect::<Vec<_>>());
    let may_read = |key| say::<String>(&server, &["ACL", "DRYRUN", "gateway", "GET", key]) == "OK";
    for (key, is_ours) in [
        ("oncegate:{shop}:epoch", true),
        ("oncegate:{shop:7f}:m", true),
        ("oncegate:{shop2}:epoch", false),
        ("oncegate:{shop2:7f}:m", false),
        ("oncegate:{shop-2:7f}:m", false),
    ] {
        assert_eq!(may_read(key), is_ours, "{key}");
    }
}

#[tokio::test]
async fn another_database_needs_one_more() {
    let server = RedisServer::start();
    let opened = async |user, more: &[&str]| {
        let mut settings = allowed(&server, user, "", more);
        settings.url.database = 1;
        RedisStore::open(settings).await
    };
    let store = opened("with", &["+select"]).await.unwrap();
    won(&store, claim(&store, "k")).await;
    let error = opened("without", &[]).await.err();
    assert!(matches!(error, Some(OpenError::Refused(_))), "{error:?}");
}

#[tokio::test]
async fn info_tells_what_a_server_is() {
    let server = RedisServer::start();
    say::<()>(&server, &["CONFIG", "SET", "maxmemory", "1gb"]);
    for (without, is_told) in [("", true), ("+info", false)] {
        let store = RedisStore::open(allowed(&server, "gateway", without, &[])).await.unwrap();
        assert_eq!(store.space().await.unwrap().is_some(), is_told, "without {without:?}");
        say::<()>(&server, &["ACL", "DELUSER", "gateway"]);
    }
    say::<()>(&server, &["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let opened = async |without, more| RedisStore::open(allowed(&server, "fresh", without, more)).await.err();
    let error = opened("", &[]).await;
    assert!(matches!(error, Some(OpenError::Evicts(_))), "{error:?}");
    say::<()>(&server, &["ACL", "DELUSER", "fresh"]);
    let error = opened("+info", &[]).await;
    assert!(matches!(error, Some(OpenError::Evicts(_))), "CONFIG tells it, too: {error:?}");
    assert!(opened("+info", &["-config|get"]).await.is_none(), "only warned about");
}

/// Each look asks whether the server is the master still, for a replica answers reads, and whether it keeps all.
#[tokio::test]
async fn a_server_that_becomes_unfit_is_seen_by_role_and_config() {
    for (right, change) in [
        ("+role", &["REPLICAOF", "127.0.0.1", "1"][..]),
        ("+config|get", &["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"][..]),
    ] {
        let server = RedisServer::start();
        let with = Settings { timeout: Duration::from_secs(3), ..allowed(&server, "with", "", &[]) };
        let with = RedisStore::open(with).await.unwrap();
        let without = RedisStore::open(allowed(&server, "without", right, &[])).await.unwrap();
        let kept = put_settled(&with, "kept", KEPT_LONG).await;
        say::<()>(&server, change);
        while with.read(kept.id).await.is_ok() {}
        drop(with);
        let looks = looks_at(&server);
        while looks_at(&server) < looks + 2 {
            let found = without.read(kept.id).await.unwrap();
            assert_eq!(found.map(|found| found.operation).as_ref(), Some(&kept), "{right}");
        }
    }
}

/// How often a server was asked for its time, which each look at it begins with.
fn looks_at(server: &RedisServer) -> u64 {
    let stats: String = say(server, &["INFO", "commandstats"]);
    let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_time:calls=")?.split(',').next());
    calls.unwrap().parse().unwrap()
}

#[tokio::test]
async fn replicas_are_waited_for_with_wait_and_info() {
    let (master, _replica) = replicated();
    let opened = async |user, without, more: &[&str]| {
        RedisStore::open(Settings { replicas: Some(1), ..allowed(&master, user, without, more) }).await
    };
    let store = opened("whole", "", &["+wait"]).await.unwrap();
    let claimed = won(&store, claim(&store, "k")).await;
    assert_eq!(store.write(&sent(&store, &claimed)).await.unwrap(), Written::Applied);
    let store = opened("no-wait", "", &[]).await.unwrap();
    let claimed = won(&store, claim(&store, "another")).await;
    let error = store.write(&sent(&store, &claimed)).await.unwrap_err();
    assert!(matches!(error, StoreError::Unreplicated(_)), "{error:?}");
    let error = opened("no-info", "+info", &["+wait"]).await.err();
    assert!(matches!(error, Some(OpenError::Refused(_) | OpenError::Mute)), "{error:?}");
}

#[tokio::test]
async fn a_cluster_needs_two_more() {
    let bus = crate::support::redis_server::free_port().to_string();
    let server = RedisServer::with(&["--cluster-enabled", "yes", "--cluster-port", &bus]);
    say::<()>(&server, &["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    eventually("a cluster", || say::<String>(&server, &["CLUSTER", "INFO"]).contains("cluster_state:ok").then_some(()));
    let opened = async |user: &str, more: &[&str]| {
        grant(&server, user, "", more);
        let url = format!("redis+cluster://{user}:secret@{}", server.address());
        RedisStore::open(Settings::new(RedisUrl::parse(&url).unwrap(), "shop", PATIENT)).await
    };
    let store = opened("both", &["+cluster|info", "+cluster|slots"]).await.unwrap();
    won(&store, claim(&store, "k")).await;
    for one in ["+cluster|info", "+cluster|slots"] {
        let error = opened(&one[9..], &[one]).await.err();
        assert!(matches!(error, Some(OpenError::Refused(_))), "{one}: {error:?}");
    }
}
