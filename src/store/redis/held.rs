//! What the gateways of a fleet hold back together, in one sorted set, for it is short and asked for often; and the rates
//! that they keep together.

use redis::{Cmd, Value};

use super::RedisStore;
use super::replies;
use super::scripts::{HOLD, RATE, REPLACE, Request};
use super::sweep::places;
use crate::clock::Timestamp;
use crate::store::{Pace, Store, StoreError, TooMany};

/// Beyond what anybody is held back for, in milliseconds: then the whole set goes by itself.
const LIFE: u64 = 2 * 60 * 60 * 1000;
/// Names in one look.
const MOST: usize = 10_000;

impl RedisStore {
    /// Until when somebody else holds it, where it is for one at a time.
    pub(super) async fn hold_name(
        &self,
        name: &str,
        until: Timestamp,
        only_if_over: bool,
    ) -> Result<Option<Timestamp>, StoreError> {
        let call = HOLD
            .call(1, name.len())
            .with(self.keys.held())
            .with(name)
            .with(until.0)
            .with(self.now().0)
            .with(u8::from(only_if_over))
            .with(LIFE);
        let known = self.connection.ask(self.connection.deadline(), &call.into(), replies::number).await?;
        Ok((known > 0).then_some(Timestamp(known as u64)))
    }

    pub(super) async fn take_call(&self, rates: &[(String, Pace)]) -> Result<Result<(), TooMany>, StoreError> {
        let first = rates.first().map_or("", |(name, _)| name);
        let size = rates.iter().map(|(name, _)| name.len() + 64).sum();
        let mut call = RATE.call(rates.len(), size);
        for (name, _) in rates {
            call = call.with(self.keys.named_beside(first, name));
        }
        for (_, pace) in rates {
            call = call.with(pace.micros()).with(pace.burst);
        }
        self.connection.ask(self.connection.deadline(), &call.into(), replies::taken).await
    }

    pub(super) async fn replace_end(
        &self,
        name: &str,
        known: Timestamp,
        until: Option<Timestamp>,
    ) -> Result<(), StoreError> {
        let until = until.map_or(0, |until| until.0);
        let call = REPLACE.call(1, name.len()).with(self.keys.held()).with(name).with(known.0).with(until);
        self.connection.ask(self.connection.deadline(), &call.into(), replies::number).await.map(|_| ())
    }

    pub(super) async fn held_names(&self) -> Result<Vec<(String, Timestamp)>, StoreError> {
        let mut command = Cmd::new();
        command.arg("ZRANGEBYSCORE").arg(self.keys.held()).arg(format!("({}", self.now())).arg("+inf");
        command.arg("WITHSCORES").arg("LIMIT").arg(0).arg(MOST);
        let read = |reply: Value| {
            let places = places(&reply)?;
            Ok(places.into_iter().map(|place| (place.id, Timestamp(place.score))).collect())
        };
        self.connection.ask(self.connection.deadline(), &Request::One(command), read).await
    }
}
