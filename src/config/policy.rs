//! What one layer of the file says about a call: `[defaults]`, a policy, or a route's own tables.

use std::num::NonZeroU32;
use std::time::Duration;

use http::HeaderName;

use crate::operation::admission::Repeat;
use crate::operation::meaning::Rule;

use super::classify;
use super::grammar;
use super::reader::{Reader, Section, Stated};
use super::rules::{
    ClientKey, Compare, DuplicateWindow, Effect, Forward, Ignored, InFlight, Ingredient, KeyFormat, KeyMode,
    OnChangedPayload, OnLargeBody, OnStoreDown,
};
use super::schema;
use super::units::{self, Accepts};
use super::words::word;

/// A setting that a layer may leave to the one below.
pub(super) type Setting<T> = Option<Stated<T>>;

#[derive(Default)]
pub(super) struct Policy {
    pub(super) effect: Setting<Effect>,
    pub(super) repeat: Setting<Repeat>,
    pub(super) receipts: Setting<Duration>,
    pub(super) tombstones: Setting<Duration>,
    pub(super) max_body: Setting<u64>,
    pub(super) on_large_body: Setting<OnLargeBody>,
    pub(super) max_receipt: Setting<u64>,
    pub(super) in_flight: Setting<InFlight>,
    pub(super) in_flight_wait: Setting<Duration>,
    pub(super) duplicate_window: Setting<DuplicateWindow>,
    pub(super) on_store_down: Setting<OnStoreDown>,
    pub(super) key: KeyPolicy,
    pub(super) payload: PayloadPolicy,
    pub(super) retry: RetrySettings,
    pub(super) limit: LimitPolicy,
    pub(super) breaker: BreakerSettings,
    pub(super) classify: Setting<Vec<Rule>>,
}

#[derive(Default)]
pub(super) struct KeyPolicy {
    pub(super) mode: Setting<KeyMode>,
    pub(super) client_key: Setting<ClientKey>,
    pub(super) forward: Setting<Forward>,
    pub(super) header: Setting<HeaderName>,
    pub(super) session_header: Setting<HeaderName>,
    pub(super) step_header: Setting<HeaderName>,
    pub(super) from: Setting<Vec<Ingredient>>,
    pub(super) on_changed_payload: Setting<OnChangedPayload>,
    pub(super) headers: Setting<Vec<HeaderName>>,
    pub(super) upstream_header: Setting<Option<HeaderName>>,
    pub(super) format: Setting<KeyFormat>,
}

#[derive(Default)]
pub(super) struct PayloadPolicy {
    pub(super) compare: Setting<Compare>,
    pub(super) ignore: Setting<Vec<Ignored>>,
    pub(super) store_request: Setting<bool>,
}

#[derive(Default)]
pub(super) struct RetrySettings {
    pub(super) max_attempts: Setting<u32>,
    pub(super) base_interval: Setting<Duration>,
    pub(super) max_interval: Setting<Duration>,
    pub(super) attempt_timeout: Setting<Duration>,
    pub(super) deadline: Setting<Duration>,
    pub(super) retry_after_max: Setting<Duration>,
    pub(super) budget: BudgetPolicy,
}

#[derive(Default)]
pub(super) struct BudgetPolicy {
    pub(super) percent: Setting<u32>,
    pub(super) per_second: Setting<u32>,
}

#[derive(Default)]
pub(super) struct LimitPolicy {
    pub(super) rate: Setting<(NonZeroU32, Duration)>,
    pub(super) burst: Setting<NonZeroU32>,
    pub(super) rate_per_scope: Setting<(NonZeroU32, Duration)>,
    pub(super) burst_per_scope: Setting<NonZeroU32>,
    pub(super) rate_queue: Setting<u32>,
    pub(super) shared: Setting<bool>,
    pub(super) concurrency: Setting<u32>,
    pub(super) queue: Setting<u32>,
}

#[derive(Default)]
pub(super) struct BreakerSettings {
    pub(super) consecutive_failures: Setting<u32>,
    pub(super) failure_percent: Setting<u32>,
    pub(super) minimum_calls: Setting<u32>,
    pub(super) window: Setting<Duration>,
    pub(super) open_for: Setting<Duration>,
}

impl Policy {
    pub(super) fn read(reader: &mut Reader<'_>, section: &Section<'_>) -> Self {
        Self {
            effect: reader.text(section, "effect", word),
            repeat: reader.text(section, "repeat", word),
            max_body: reader.text(section, "max_body", units::size),
            on_large_body: reader.text(section, "on_large_body", word),
            max_receipt: reader.text(section, "max_receipt", units::size),
            in_flight: reader.text(section, "in_flight", word),
            in_flight_wait: reader.text(section, "in_flight_wait", units::duration_or_zero),
            duplicate_window: reader.text(section, "duplicate_window", grammar::duplicate_window),
            on_store_down: reader.text(section, "on_store_down", word),
            key: KeyPolicy::read(reader, section),
            payload: PayloadPolicy::read(reader, section),
            retry: RetrySettings::read(reader, section),
            limit: LimitPolicy::read(reader, section),
            breaker: BreakerSettings::read(reader, section),
            classify: classify::read(reader, section),
            ..Self::of_store(reader, section)
        }
    }

    /// What `[store]` says for all routes.
    pub(super) fn of_store(reader: &mut Reader<'_>, section: &Section<'_>) -> Self {
        Self {
            receipts: reader.text(section, "receipts", units::duration),
            tombstones: reader.text(section, "tombstones", units::duration),
            ..Self::default()
        }
    }

    /// What an upstream says for its routes.
    pub(super) fn of_upstream(reader: &mut Reader<'_>, section: &Section<'_>) -> Self {
        Self { repeat: reader.text(section, "repeat", word), ..Self::default() }
    }

    /// What a preset, or a dialect, says for the routes of its upstream.
    pub(super) fn of_preset(reader: &mut Reader<'_>, section: &Section<'_>) -> Self {
        Self { classify: classify::read(reader, section), ..Self::of_upstream(reader, section) }
    }
}

impl KeyPolicy {
    fn read(reader: &mut Reader<'_>, parent: &Section<'_>) -> Self {
        let section = &reader.child(parent, "key", &schema::KEY);
        Self {
            mode: reader.text(section, "mode", word),
            client_key: reader.text(section, "client_key", word),
            forward: reader.text(section, "forward", word),
            header: reader.text(section, "header", grammar::header),
            session_header: reader.text(section, "session_header", grammar::header),
            step_header: reader.text(section, "step_header", grammar::header),
            from: ingredients(reader, section),
            on_changed_payload: reader.text(section, "on_changed_payload", grammar::on_changed_payload),
            headers: reader.list(section, "headers", grammar::header),
            upstream_header: reader.text(section, "upstream_header", grammar::header_or_off),
            format: reader.text(section, "format", word),
        }
    }
}

impl PayloadPolicy {
    fn read(reader: &mut Reader<'_>, parent: &Section<'_>) -> Self {
        let section = &reader.child(parent, "payload", &schema::PAYLOAD);
        Self {
            compare: reader.text(section, "compare", word),
            ignore: reader.list(section, "ignore", grammar::field),
            store_request: reader.flag(section, "store_request"),
        }
    }
}

impl RetrySettings {
    fn read(reader: &mut Reader<'_>, parent: &Section<'_>) -> Self {
        let section = &reader.child(parent, "retry", &schema::RETRY);
        Self {
            max_attempts: reader.number(section, "max_attempts", attempts),
            base_interval: reader.text(section, "base_interval", units::duration),
            max_interval: reader.text(section, "max_interval", units::duration),
            attempt_timeout: reader.text(section, "attempt_timeout", units::duration),
            deadline: reader.text(section, "deadline", units::duration),
            retry_after_max: reader.text(section, "retry_after_max", units::duration_or_zero),
            budget: BudgetPolicy::read(reader, section),
        }
    }
}

impl BudgetPolicy {
    fn read(reader: &mut Reader<'_>, parent: &Section<'_>) -> Self {
        let section = &reader.child(parent, "budget", &schema::BUDGET);
        Self {
            percent: reader.number(section, "percent", |number| within(number, 0, 1_000)),
            per_second: reader.number(section, "per_second", |number| within(number, 0, 1_000_000)),
        }
    }
}

impl LimitPolicy {
    fn read(reader: &mut Reader<'_>, parent: &Section<'_>) -> Self {
        let section = &reader.child(parent, "limit", &schema::LIMIT);
        Self {
            rate: reader.text(section, "rate", units::rate),
            burst: reader.number(section, "burst", burst),
            rate_per_scope: reader.text(section, "rate_per_scope", units::rate),
            burst_per_scope: reader.number(section, "burst_per_scope", burst),
            rate_queue: reader.number(section, "rate_queue", |number| within(number, 0, 1_000_000)),
            shared: reader.flag(section, "shared"),
            concurrency: reader.number(section, "concurrency", |number| within(number, 1, 1_000_000)),
            queue: reader.number(section, "queue", |number| within(number, 0, 1_000_000)),
        }
    }
}

impl BreakerSettings {
    fn read(reader: &mut Reader<'_>, parent: &Section<'_>) -> Self {
        let section = &reader.child(parent, "breaker", &schema::BREAKER);
        Self {
            consecutive_failures: reader.number(section, "consecutive_failures", |number| within(number, 0, 1_000_000)),
            failure_percent: reader.number(section, "failure_percent", |number| within(number, 1, 100)),
            minimum_calls: reader.number(section, "minimum_calls", |number| within(number, 1, 1_000_000)),
            window: reader.text(section, "window", units::duration),
            open_for: reader.text(section, "open_for", units::duration),
        }
    }
}

/// Without any ingredient every call would have the same key.
fn ingredients(reader: &mut Reader<'_>, section: &Section<'_>) -> Setting<Vec<Ingredient>> {
    let from = reader.list(section, "from", grammar::ingredient)?;
    if from.value.is_empty() {
        let accepts = "at least one ingredient, such as \"session\"; `mode` says what happens where none is there";
        reader.errors.push(from.refused(super::Problem::Accepts(accepts.into())));
        return None;
    }
    Some(from)
}

fn attempts(number: i64) -> Result<u32, Accepts> {
    const MOST: u32 = 1_000;
    match u32::try_from(number) {
        Ok(0) | Err(_) if number <= 0 => Err("at least 1 (the first send counts)".into()),
        Ok(attempts) if attempts <= MOST => Ok(attempts),
        Ok(_) | Err(_) => Err("at most 1000".into()),
    }
}

fn within(number: i64, least: u32, most: u32) -> Result<u32, Accepts> {
    let number = u32::try_from(number).ok().filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| format!("a whole number from {least} to {most}").into())
}

fn burst(number: i64) -> Result<NonZeroU32, Accepts> {
    let burst = u32::try_from(number).ok().and_then(NonZeroU32::new);
    burst.ok_or_else(|| "a whole number of at least 1, and below 2^32".into())
}
