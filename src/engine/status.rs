//! What the gateway counts while it runs, for `GET /v1/status`.
//!
//! Counters are atomic and never locked on the request path: a route takes its own [`RouteStatus`] once, when the
//! configuration is loaded. They live as long as the process and decide nothing.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use tokio::time::Instant;

use crate::engine::answer::Unguarded;
use crate::engine::judge::Judgement;
use crate::engine::unreadable::{UnreadableCounts, UnreadableParts};
use crate::operation::KeySource;
use crate::telemetry::lost_lines;

/// The state of this process.
#[derive(Debug)]
pub struct Status {
    started: Instant,
    routes: Mutex<BTreeMap<String, Arc<RouteStatus>>>,
    warnings: Mutex<BTreeMap<&'static str, Vec<String>>>,
    /// What is stored and cannot be read.
    pub unreadable: UnreadableParts,
    pub alerts: AlertStatus,
}

/// What became of alerts.
#[derive(Debug, Default)]
pub struct AlertStatus {
    /// Taken by the receiver.
    pub sent: Counter,
    /// Tries that it did not take.
    pub failures: Counter,
}

impl Status {
    /// Nothing counted yet; uptime starts here.
    pub fn new() -> Self {
        Self {
            started: Instant::now(),
            routes: Mutex::default(),
            warnings: Mutex::default(),
            unreadable: UnreadableParts::default(),
            alerts: AlertStatus::default(),
        }
    }

    /// The counters of a route: the same ones for the same name, also after a reload.
    pub fn route(&self, name: &str) -> Arc<RouteStatus> {
        Arc::clone(locked(&self.routes).entry(name.to_owned()).or_default())
    }

    /// Replaces everything that is to be said about `topic`; an empty list takes it back.
    pub fn warn(&self, topic: &'static str, warnings: Vec<String>) {
        locked(&self.warnings).insert(topic, warnings);
    }

    /// All of it as it stands now.
    pub fn snapshot(&self) -> Snapshot {
        let routes: BTreeMap<_, _> =
            locked(&self.routes).iter().map(|(name, route)| (name.clone(), route.snapshot())).collect();
        let mut warnings: Vec<String> = locked(&self.warnings).values().flatten().cloned().collect();
        warnings.extend(routes.iter().filter_map(|(name, route)| route.warning(name)));
        warnings.extend(self.unreadable.warning());
        let (uptime_seconds, unreadable) = (self.started.elapsed().as_secs(), self.unreadable.counts());
        let lost_log_lines = lost_lines();
        warnings.extend(lost_log_warning(lost_log_lines));
        let alerts = AlertSnapshot { sent: self.alerts.sent.get(), failures: self.alerts.failures.get() };
        Snapshot { uptime_seconds, routes, alerts, unreadable, lost_log_lines, warnings }
    }
}

impl Default for Status {
    fn default() -> Self {
        Self::new()
    }
}

fn lost_log_warning(lines: u64) -> Option<String> {
    (lines > 0).then(|| {
        format!("{lines} lines of the log are lost: standard error is closed or full, or its reader stands still")
    })
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// One more.
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// How many so far.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What is counted for one route.
#[derive(Debug, Default)]
pub struct RouteStatus {
    /// Requests, guarded or not.
    pub calls: Counter,
    /// Answers that came from a receipt.
    pub replays: Counter,
    /// Sends to the upstream.
    pub attempts: Counter,
    /// Operations that ended unknown.
    pub unknown: Counter,
    /// Dead letters that were opened.
    pub dead_letters: Counter,
    /// Calls whose key was last seen under another scope.
    pub new_scopes: Counter,
    /// Writes that were refused because their owner had lost the operation.
    pub fenced_writes: Counter,
    /// Answers of owners that had lost their operation and ended its unknown.
    pub late_answers: Counter,
    /// Requests whose caller says that it has tried before.
    pub client_retries: Counter,
    /// Answers with something in place of a wait that is none.
    pub invalid_hints: Counter,
    /// Answers that a rule would have judged by a body into which nobody can look.
    pub unread_answers: Counter,
    keys: Keys,
    unguarded: UnguardedCalls,
    refused: RefusedCalls,
    session_without_step: AtomicBool,
}

/// Why the gateway turned a call away before anything of it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// `limit.rate` or `limit.rate_per_scope`.
    Rate,
    Pause,
    Breaker,
    Concurrency,
    /// `store.max_open`.
    MaxOpen,
    /// The store did not take its claim.
    Store,
}

#[derive(Debug, Default)]
struct RefusedCalls {
    rate: Counter,
    pause: Counter,
    breaker: Counter,
    concurrency: Counter,
    max_open: Counter,
    store: Counter,
}

#[derive(Debug, Default)]
struct Keys {
    client: Counter,
    derived: Counter,
    window: Counter,
    stamped: Counter,
}

#[derive(Debug, Default)]
struct UnguardedCalls {
    store: Counter,
    body_size: Counter,
    off: Counter,
}

impl RouteStatus {
    /// The counter of guarded calls whose key came by this rule.
    pub fn keys(&self, source: KeySource) -> &Counter {
        match source {
            KeySource::Client => &self.keys.client,
            KeySource::Derived => &self.keys.derived,
            KeySource::Window => &self.keys.window,
            KeySource::Stamped => &self.keys.stamped,
        }
    }

    /// The counter of writes that went unguarded for this reason.
    pub fn unguarded(&self, reason: Unguarded) -> &Counter {
        match reason {
            Unguarded::Store => &self.unguarded.store,
            Unguarded::BodySize => &self.unguarded.body_size,
            Unguarded::Off => &self.unguarded.off,
        }
    }

    /// The counter of calls that were turned away for this reason.
    pub fn refused(&self, reason: Refusal) -> &Counter {
        match reason {
            Refusal::Rate => &self.refused.rate,
            Refusal::Pause => &self.refused.pause,
            Refusal::Breaker => &self.refused.breaker,
            Refusal::Concurrency => &self.refused.concurrency,
            Refusal::MaxOpen => &self.refused.max_open,
            Refusal::Store => &self.refused.store,
        }
    }

    /// Notes what an answer had in it that could not be read.
    pub fn note(&self, judgement: &Judgement) {
        if judgement.advice.has_invalid_hint {
            self.invalid_hints.add();
        }
        if judgement.is_unread {
            self.unread_answers.add();
        }
    }

    /// Notes a call that carried a session and no step. True the first time, when the log should say so.
    pub fn saw_session_without_step(&self) -> bool {
        !self.session_without_step.swap(true, Ordering::Relaxed)
    }

    fn snapshot(&self) -> RouteSnapshot {
        RouteSnapshot {
            calls: self.calls.get(),
            replays: self.replays.get(),
            attempts: self.attempts.get(),
            unknown: self.unknown.get(),
            dead_letters: self.dead_letters.get(),
            new_scopes: self.new_scopes.get(),
            fenced_writes: self.fenced_writes.get(),
            late_answers: self.late_answers.get(),
            client_retries: self.client_retries.get(),
            invalid_hints: self.invalid_hints.get(),
            unread_answers: self.unread_answers.get(),
            keys: KeySnapshot::of(&self.keys),
            unguarded: UnguardedSnapshot {
                store: self.unguarded.store.get(),
                body_size: self.unguarded.body_size.get(),
                off: self.unguarded.off.get(),
            },
            refused: RefusedSnapshot {
                rate: self.refused.rate.get(),
                pause: self.refused.pause.get(),
                breaker: self.refused.breaker.get(),
                concurrency: self.refused.concurrency.get(),
                max_open: self.refused.max_open.get(),
                store: self.refused.store.get(),
            },
            session_without_step: self.session_without_step.load(Ordering::Relaxed),
        }
    }
}

/// The state of the process at one moment.
#[derive(Debug, Serialize)]
pub struct Snapshot {
    pub uptime_seconds: u64,
    pub routes: BTreeMap<String, RouteSnapshot>,
    pub alerts: AlertSnapshot,
    /// Stored parts that were found damaged, or encrypted with a key that is not here.
    pub unreadable: UnreadableCounts,
    /// Lines of the log that standard error did not take.
    pub lost_log_lines: u64,
    pub warnings: Vec<String>,
}

/// What became of alerts so far.
#[derive(Debug, Serialize)]
pub struct AlertSnapshot {
    pub sent: u64,
    pub failures: u64,
}

/// The counters of a route at one moment.
#[derive(Debug, Serialize)]
pub struct RouteSnapshot {
    pub calls: u64,
    pub replays: u64,
    pub attempts: u64,
    pub unknown: u64,
    pub dead_letters: u64,
    pub new_scopes: u64,
    pub fenced_writes: u64,
    pub late_answers: u64,
    pub client_retries: u64,
    pub invalid_hints: u64,
    pub unread_answers: u64,
    pub keys: KeySnapshot,
    pub unguarded: UnguardedSnapshot,
    pub refused: RefusedSnapshot,
    pub session_without_step: bool,
}

/// How guarded calls came by their keys: counts, and each one's share of them all.
#[derive(Debug, Serialize)]
pub struct KeySnapshot {
    pub client: KeyShare,
    pub derived: KeyShare,
    pub window: KeyShare,
    pub stamped: KeyShare,
}

/// A count and its share, between 0 and 1.
#[derive(Debug, PartialEq, Serialize)]
pub struct KeyShare {
    pub count: u64,
    pub share: f64,
}

/// Writes that went unguarded, by reason.
#[derive(Debug, Serialize)]
pub struct UnguardedSnapshot {
    pub store: u64,
    pub body_size: u64,
    pub off: u64,
}

/// Calls that were turned away, by reason.
#[derive(Debug, PartialEq, Serialize)]
pub struct RefusedSnapshot {
    pub rate: u64,
    pub pause: u64,
    pub breaker: u64,
    pub concurrency: u64,
    pub max_open: u64,
    pub store: u64,
}

impl RouteSnapshot {
    fn warning(&self, route: &str) -> Option<String> {
        self.session_without_step.then(|| {
            format!(
                "route `{route}`: calls carry a session but no step, so no key can be derived from them; \
                 send X-Step-Index (key.step_header) with each"
            )
        })
    }
}

impl KeySnapshot {
    fn of(keys: &Keys) -> Self {
        let counts = [&keys.client, &keys.derived, &keys.window, &keys.stamped].map(Counter::get);
        let all = counts.iter().sum::<u64>().max(1);
        let [client, derived, window, stamped] =
            counts.map(|count| KeyShare { count, share: (count * 1000 / all) as f64 / 1000.0 });
        Self { client, derived, window, stamped }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_keeps_its_counters_when_it_is_loaded_again() {
        let status = Status::new();
        status.route("payments").calls.add();
        status.route("payments").calls.add();
        assert_eq!(status.snapshot().routes["payments"].calls, 2);
    }

    #[test]
    fn shares_are_of_all_guarded_calls() {
        let route = RouteStatus::default();
        for source in [KeySource::Client, KeySource::Client, KeySource::Client, KeySource::Stamped] {
            route.keys(source).add();
        }
        let keys = route.snapshot().keys;
        assert_eq!(keys.client, KeyShare { count: 3, share: 0.75 });
        assert_eq!(keys.stamped, KeyShare { count: 1, share: 0.25 });
        assert_eq!(keys.derived, KeyShare { count: 0, share: 0.0 });
    }

    #[test]
    fn a_session_without_step_is_told_once_to_the_log_and_always_in_the_status() {
        let status = Status::new();
        let route = status.route("orders");
        assert!(route.saw_session_without_step());
        assert!(!route.saw_session_without_step());
        assert!(status.snapshot().warnings.iter().any(|warning| warning.contains("`orders`")));
    }

    #[test]
    fn a_topic_can_be_taken_back() {
        let status = Status::new();
        status.warn("reload", vec!["line 3: unknown key".to_owned()]);
        assert_eq!(status.snapshot().warnings, ["line 3: unknown key"]);
        status.warn("reload", Vec::new());
        assert!(status.snapshot().warnings.is_empty());
    }
}
