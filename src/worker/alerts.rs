//! Tells somebody of operations that need a person: each open dead letter in at least one alert.
//!
//! An alert is stored before its first try and tried until it is taken; only then are its letters noted as told. So it
//! survives a crash between any two steps, and every try of it has the same id and says the same. Of a fleet, one gateway
//! at a time does this.

mod alert;
mod delivery;
mod groups;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use self::alert::Alert;
use self::delivery::{Delivery, DeliveryError};
use self::groups::{Groups, Named};
use crate::config::Alerts;
use crate::engine::Engine;
use crate::operation::WriteId;
use crate::operation::transition::Step;
use crate::retry::backoff::Backoff;
use crate::store::StoreError;

/// Between two looks at the letters, unless one takes longer than a part of it.
const EVERY: Duration = Duration::from_secs(1);
/// Looks take one part of so many of the time.
const PARTS: u32 = 20;
const PAGE: usize = 500;
/// For how long one gateway of a fleet does it from a round on: longer than a try takes.
const TURN: Duration = Duration::from_secs(8);
/// Between two tries.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Under which the alert on its way is stored.
const OUTBOX: &str = "alert";

/// Runs until `stop`. What was not taken by then goes on after the next start, or at another gateway.
pub async fn tell(engine: Arc<Engine>, rules: Alerts, stop: CancellationToken) {
    let delivery = rules.receiver.as_ref().map(Delivery::to);
    let mut desk = Desk { engine, rules, delivery, trying: String::new(), failures: 0 };
    while let Some(pause) = stop.run_until_cancelled(desk.round()).await {
        if stop.run_until_cancelled(sleep(pause)).await.is_none() {
            return;
        }
    }
}

/// Where alerts are written and sent.
struct Desk {
    engine: Arc<Engine>,
    rules: Alerts,
    /// `None`: they are lines of the log.
    delivery: Option<Delivery>,
    /// The alert that was tried last.
    trying: String,
    /// Tries of it in a row that failed here.
    failures: u32,
}

/// Why a round ended early.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Delivery(#[from] DeliveryError),
    #[error("the alert has no stored form")]
    Unencodable(#[from] serde_json::Error),
    /// Whatever this one was about is the other's to do.
    #[error("another gateway has the turn")]
    NotOurTurn,
}

impl Desk {
    /// Sends one alert, if one is due. Gives back how long to wait until the next round.
    async fn round(&mut self) -> Duration {
        let since = Instant::now();
        match self.next_alert().await {
            Ok(true) => {
                self.succeeded();
                Duration::ZERO
            }
            Ok(false) => EVERY.max(since.elapsed() * PARTS),
            Err(Trouble::Delivery(error)) => self.failed(&error),
            Err(Trouble::NotOurTurn) => {
                self.engine.shared().status.warn("alerts", Vec::new());
                EVERY
            }
            Err(trouble) => {
                tracing::debug!(error = &trouble as &dyn std::error::Error, "alerts wait for the store");
                EVERY
            }
        }
    }

    async fn next_alert(&mut self) -> Result<bool, Trouble> {
        self.take_turn().await?;
        let outgoing = self.outgoing().await?;
        self.note_tried(outgoing.as_ref());
        let Some(alert) = outgoing else { return Ok(false) };
        self.send(&alert).await?;
        for letter in &alert.letters {
            self.take_turn().await?;
            self.note_told(letter).await?;
        }
        self.put(None).await?;
        Ok(true)
    }

    /// One that failed here may have been taken at another gateway, which had the turn meanwhile.
    fn note_tried(&mut self, outgoing: Option<&Alert>) {
        let id = outgoing.map_or("", |alert| &alert.id);
        if self.trying != id {
            (self.trying, self.failures) = (id.to_owned(), 0);
        }
    }

    /// Before each step but those that only read: many of them take longer than a turn, and whoever has the next one may
    /// have stored another alert by then.
    async fn take_turn(&self) -> Result<(), Trouble> {
        let is_ours = self.engine.store().take_turn("alerts", TURN).await?;
        if is_ours { Ok(()) } else { Err(Trouble::NotOurTurn) }
    }

    /// The alert that is on its way, or a new one if a group is due, which is stored first.
    async fn outgoing(&self) -> Result<Option<Alert>, Trouble> {
        let stored = self.engine.store().recall(OUTBOX).await?.unwrap_or_default();
        if let Ok(alert) = serde_json::from_str(&stored) {
            return Ok(Some(alert));
        }
        let now = self.engine.store().now();
        let Some(due) = self.letters().await?.due(&self.rules, now) else { return Ok(None) };
        let alert = Alert::of(self.engine.shared().entropy.bytes(), due, now);
        self.put(Some(&alert)).await?;
        Ok(Some(alert))
    }

    async fn letters(&self) -> Result<Groups, StoreError> {
        let (mut groups, mut cursor) = (Groups::default(), None::<String>);
        let routes = &self.engine.shared().config.routes;
        loop {
            let page = self.engine.store().dead_letters(cursor.as_deref(), PAGE).await?;
            for operation in &page.operations {
                let route = routes.named(&operation.identity.route);
                let upstream = route.map_or("", |route| route.upstream.name.as_str());
                groups.add(operation, upstream, &self.rules.group_by);
            }
            cursor = page.next;
            if cursor.is_none() {
                return Ok(groups);
            }
        }
    }

    async fn put(&self, alert: Option<&Alert>) -> Result<(), Trouble> {
        self.take_turn().await?;
        let stored = alert.map(serde_json::to_string).transpose()?.unwrap_or_default();
        self.engine.store().remember(OUTBOX, &stored, None).await?;
        Ok(())
    }

    async fn send(&self, alert: &Alert) -> Result<(), DeliveryError> {
        let body = alert.body(self.rules.format);
        match &self.delivery {
            Some(delivery) => delivery.post(&alert.id, body, self.engine.store().now()).await,
            None => {
                let letters: Vec<_> = alert.letters.iter().map(|letter| letter.id.as_str()).collect();
                tracing::error!(
                    alert = alert.id,
                    operations = letters.join(" "),
                    text = body,
                    "operations need a person"
                );
                Ok(())
            }
        }
    }

    /// A letter that was closed meanwhile, or is another one now, has nothing to note.
    async fn note_told(&self, letter: &Named) -> Result<(), StoreError> {
        let Ok(id) = letter.id.parse() else { return Ok(()) };
        let store = self.engine.store();
        let found = match store.read(id).await {
            Ok(found) => found,
            // What cannot be read is told as that.
            Err(error) if error.unreadable().is_some() => None,
            Err(error) => return Err(error),
        };
        let step = Step { now: store.now(), write: WriteId(self.engine.shared().entropy.bytes()) };
        match found.and_then(|found| found.operation.alerted(letter.since, step.now, step)) {
            Some(change) => store.write(&change).await.map(drop),
            None => Ok(()),
        }
    }

    fn succeeded(&mut self) {
        self.engine.shared().status.alerts.sent.add();
        if std::mem::take(&mut self.failures) > 0 {
            tracing::info!("alerts are taken again");
            self.engine.shared().status.warn("alerts", Vec::new());
        }
    }

    /// The log hears of it once, the status as long as it lasts.
    fn failed(&mut self, error: &DeliveryError) -> Duration {
        let status = &self.engine.shared().status;
        status.alerts.failures.add();
        let warning = format!("alerts: {error}; it is tried again, and no other one is sent before it");
        if self.failures == 0 {
            tracing::error!(error = error as &dyn std::error::Error, "an alert was not taken; it is tried again");
        }
        status.warn("alerts", vec![warning]);
        let n = self.failures;
        self.failures = self.failures.saturating_add(1);
        let backoff = Backoff::new(BACKOFF.0, BACKOFF.1);
        self.engine.shared().entropy.with(|rng| backoff.wait(n, BACKOFF.1, rng)).unwrap_or(BACKOFF.1)
    }
}
