//! What goes over all buckets: leases that ended, lists, and what the server has let expire.
//!
//! None of it decides anything; the records do.

use std::cmp::Reverse;

use redis::{Cmd, Pipeline, Value};
use tokio::time::Instant;

use crate::operation::{OperationId, Scope};
use crate::store::redis::failure::Failure;
use crate::store::redis::keys::{Index, Part};
use crate::store::redis::replies;
use crate::store::redis::scripts::{PURGE, Request};
use crate::store::redis::{RedisStore, member_of_open};
use crate::store::{Page, Store, StoreError, record};

/// How long a gateway has its turn, in milliseconds: nearly as long as the time between two sweeps.
const TURN: u64 = 900;
/// Entries of one bucket that a list reads beyond its share.
const SLACK: usize = 16;

/// Where something stands in an index.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) score: u64,
    pub(super) id: String,
}

impl RedisStore {
    /// Leases that ended, the oldest first. Of a fleet, only the gateway whose turn it is looks.
    pub(super) async fn sweep_due(&self, limit: usize) -> Result<Vec<OperationId>, StoreError> {
        let deadline = self.connection.deadline();
        if !self.has_turn("due", deadline).await? {
            return Ok(Vec::new());
        }
        self.keep_epoch(deadline).await?;
        let now = self.now();
        let request = self.over_buckets(|command| {
            command.arg(0).arg(now.0).arg("WITHSCORES").arg("LIMIT").arg(0).arg(limit);
        });
        let mut places = self.connection.ask(deadline, &request, |reply| all_places(&reply)).await?.concat();
        places.sort_unstable();
        places.truncate(limit);
        Ok(places.iter().filter_map(|place| place.id.parse().ok()).collect())
    }

    /// Takes operations out of the indexes whose records the server has let expire.
    pub(super) async fn sweep_gone(&self, limit: usize) -> Result<usize, StoreError> {
        let deadline = self.connection.deadline();
        if !self.has_turn("purge", deadline).await? {
            return Ok(0);
        }
        let now = self.now();
        let request = self.over_buckets(|command| {
            command.arg(format!("-{now}")).arg("(0").arg("LIMIT").arg(0).arg(limit);
        });
        let buckets = self.connection.ask(deadline, &request, |reply| all_ids(&reply)).await?;
        let mut gone = 0;
        for ids in buckets {
            let ids = ids.get(..ids.len().min(limit - gone)).unwrap_or_default();
            gone += self.drop_from_indexes(ids, deadline).await?;
        }
        Ok(gone)
    }

    /// What an index has of operations by creation, newest first, and those in it whose records are gone. A page may be short
    /// of `limit` and still have a next one.
    pub(super) async fn page(
        &self,
        index: Index,
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<(Page, Vec<OperationId>), StoreError> {
        let deadline = self.connection.deadline();
        let before = cursor.map(parse_cursor).transpose()?;
        let share = limit.min(limit / 8 + SLACK) + SLACK;
        let buckets = self.newest(index, before.as_ref(), share, deadline).await?;
        // A bucket that gave its whole share may have more of the same age: nothing beyond its last one is certain.
        let horizon = buckets.iter().filter(|places| places.len() >= share).filter_map(|places| places.last()).max();
        let horizon = horizon.cloned();
        let mut places = buckets.concat();
        places.retain(|place| before.as_ref().is_none_or(|before| place < before));
        places.retain(|place| horizon.as_ref().is_none_or(|horizon| place >= horizon));
        places.sort_unstable_by_key(|place| Reverse(place.clone()));
        let more = horizon.is_some() || places.len() > limit;
        places.truncate(limit);
        let next = places.last().filter(|_| more).map(Place::to_cursor);
        let (page, gone) = self.records_at(&places, deadline).await?;
        Ok((Page { next, ..page }, gone))
    }

    /// Takes operations whose records are gone out of the indexes.
    pub(super) async fn forget(&self, mut gone: Vec<OperationId>) -> Result<(), StoreError> {
        gone.sort_unstable_by_key(|id| id.bucket());
        for ids in gone.chunk_by(|one, other| one.bucket() == other.bucket()) {
            self.drop_from_indexes(ids, self.connection.deadline()).await?;
        }
        Ok(())
    }

    /// Unfinished operations of a scope, over all buckets.
    pub(super) async fn sum_open(&self, scope: &Scope) -> Result<u64, StoreError> {
        let mut commands = Pipeline::with_capacity(256);
        for bucket in 0..=u8::MAX {
            commands.cmd("ZSCORE").arg(self.keys.index(bucket, Index::Open)).arg(member_of_open(scope));
        }
        let sum = |reply: Value| replies::list(&reply)?.iter().map(score).sum();
        self.connection.ask(self.connection.deadline(), &Request::Many(commands), sum).await
    }

    /// Whether this gateway has the turn, now or still.
    async fn has_turn(&self, work: &str, deadline: Instant) -> Result<bool, StoreError> {
        let holder = self.turn(work, TURN, deadline).await?;
        Ok(holder.is_none_or(|id| id == self.instance))
    }

    /// Takes a turn, or makes one that this gateway has last so many milliseconds more.
    pub(super) async fn keep_turn(&self, work: &str, life: u64, deadline: Instant) -> Result<bool, StoreError> {
        match self.turn(work, life, deadline).await? {
            None => Ok(true),
            Some(holder) if holder == self.instance => {
                let mut command = Cmd::new();
                command.arg("PEXPIRE").arg(self.keys.turn(work)).arg(life);
                let kept = self.connection.ask(deadline, &Request::One(command), replies::number).await?;
                Ok(kept > 0)
            }
            Some(_) => Ok(false),
        }
    }

    /// Takes a turn of so many milliseconds if nobody has it, and gives back who has.
    async fn turn(&self, work: &str, life: u64, deadline: Instant) -> Result<Option<Vec<u8>>, StoreError> {
        let turn = self.keys.turn(work);
        let mut command = Cmd::new();
        command.arg("SET").arg(&turn).arg(&self.instance[..]);
        command.arg("NX").arg("GET").arg("PX").arg(life);
        let holder = |reply| replies::bulk_or_nil(&reply).map(|holder| holder.map(<[u8]>::to_vec));
        let holder = self.connection.ask(deadline, &Request::One(command), holder).await?;
        if holder.as_ref().is_some_and(|id| *id != self.instance) {
            self.end_long_turn(&turn, life, deadline).await?;
        }
        Ok(holder)
    }

    /// The clock of a server may have gone back since a turn was taken, which would last for as long as it went.
    async fn end_long_turn(&self, turn: &str, life: u64, deadline: Instant) -> Result<(), StoreError> {
        let mut command = Cmd::new();
        command.arg("PTTL").arg(turn);
        let is_long = |reply: Value| match reply {
            Value::Int(left) => Ok(u64::try_from(left).is_ok_and(|left| left > life)),
            _ => Err(Failure::Garbage),
        };
        if self.connection.ask(deadline, &Request::One(command), is_long).await? {
            let mut command = Cmd::new();
            command.arg("DEL").arg(turn);
            self.connection.ask(deadline, &Request::One(command), replies::number).await?;
        }
        Ok(())
    }

    /// Raises the count of the epoch and looks for its markers. A full server does not take the count and is no reason
    /// to leave lost owners alone.
    async fn keep_epoch(&self, deadline: Instant) -> Result<(), StoreError> {
        let marked = |reply: Value| self.epoch.is_marked(&reply);
        if !self.connection.ask(deadline, &self.epoch.all_markers(), marked).await? {
            self.connection.examine_anew();
        }
        match self.connection.ask_placed(deadline, &self.epoch.raise(), replies::count).await {
            // One that a failover may forget would make the next master look like an older copy.
            Ok((count, done)) => match (count, done.replicated(|| self.keys.epoch_wake(), deadline).await) {
                (Some(count), Ok(())) => self.epoch.raised(count),
                (None, _) | (_, Err(_)) => {}
            },
            Err(error) => tracing::debug!(%error, "the epoch was not counted"),
        }
        Ok(())
    }

    async fn drop_from_indexes(&self, ids: &[OperationId], deadline: Instant) -> Result<usize, StoreError> {
        let Some(first) = ids.first() else {
            return Ok(0);
        };
        let mut call = PURGE.call(4 * ids.len() + 3, ids.len() * 320);
        for index in [Index::Schedule, Index::Creation, Index::Dead] {
            call = call.with(self.keys.index(first.bucket(), index));
        }
        for id in ids {
            let mut keys = self.keys.of(*id);
            for part in [Part::Record, Part::Receipt, Part::Request, Part::Events] {
                call = call.with(keys.part(part));
            }
        }
        for id in ids {
            call = call.with(self.keys.of(*id).member());
        }
        self.connection.ask(deadline, &call.into(), replies::number).await
    }

    async fn newest(
        &self,
        index: Index,
        before: Option<&Place>,
        share: usize,
        deadline: Instant,
    ) -> Result<Vec<Vec<Place>>, StoreError> {
        let mut commands = Pipeline::with_capacity(256);
        for bucket in 0..=u8::MAX {
            let command = commands.cmd("ZREVRANGEBYSCORE").arg(self.keys.index(bucket, index));
            match before {
                Some(before) => command.arg(before.score),
                None => command.arg("+inf"),
            };
            command.arg("-inf").arg("WITHSCORES").arg("LIMIT").arg(0).arg(share);
        }
        self.connection.ask(deadline, &Request::Many(commands), |reply| all_places(&reply)).await
    }

    /// Records that are gone by now stand beside the page.
    async fn records_at(&self, places: &[Place], deadline: Instant) -> Result<(Page, Vec<OperationId>), StoreError> {
        let ids: Vec<OperationId> = places.iter().filter_map(|place| place.id.parse().ok()).collect();
        if ids.is_empty() {
            return Ok((Page::default(), Vec::new()));
        }
        let mut commands = Pipeline::with_capacity(ids.len());
        for id in &ids {
            commands.cmd("GET").arg(self.keys.of(*id).part(Part::Record));
        }
        let read = |reply: Value| {
            let (mut page, mut gone) = (Page::default(), Vec::new());
            for (id, stored) in ids.iter().zip(replies::list(&reply)?) {
                match replies::bulk_or_nil(stored)? {
                    Some(stored) => page.add(*id, record::decode_of(*id, stored)),
                    None => gone.push(*id),
                }
            }
            Ok((page, gone))
        };
        let (mut page, gone) = self.connection.ask(deadline, &Request::Many(commands), read).await?;
        page.operations.retain(|operation| !self.is_over(operation));
        Ok((page, gone))
    }

    /// One range of the schedule of every bucket. Commands and no script: a script would hold up the claims meanwhile.
    fn over_buckets(&self, range: impl Fn(&mut Cmd)) -> Request {
        let mut commands = Pipeline::with_capacity(256);
        for bucket in 0..=u8::MAX {
            let mut command = Cmd::new();
            command.arg("ZRANGEBYSCORE").arg(self.keys.index(bucket, Index::Schedule));
            range(&mut command);
            commands.add_command(command);
        }
        Request::Many(commands)
    }
}

impl Place {
    fn to_cursor(&self) -> String {
        format!("{}-{}", self.score, self.id)
    }
}

fn parse_cursor(cursor: &str) -> Result<Place, StoreError> {
    let unknown = || StoreError::NoSuchPlace;
    let (score, id) = cursor.split_once('-').ok_or_else(unknown)?;
    let id: OperationId = id.parse().map_err(|_| unknown())?;
    Ok(Place { score: score.parse().map_err(|_| unknown())?, id: id.to_string() })
}

/// Members and scores, one after the other, of each bucket.
fn all_places(reply: &Value) -> Result<Vec<Vec<Place>>, Failure> {
    replies::list(reply)?.iter().map(places).collect()
}

pub(super) fn places(reply: &Value) -> Result<Vec<Place>, Failure> {
    let (pairs, []) = replies::list(reply)?.as_chunks::<2>() else {
        return Err(Failure::Garbage);
    };
    let place = |[id, score]: &[Value; 2]| match (id, score) {
        (Value::BulkString(id), Value::BulkString(score)) => Ok(Place {
            score: replies::text(score)?.parse().map_err(|_| Failure::Garbage)?,
            id: replies::text(id)?.to_owned(),
        }),
        _ => Err(Failure::Garbage),
    };
    pairs.iter().map(place).collect()
}

/// A member that is not there counts as none.
fn score(reply: &Value) -> Result<u64, Failure> {
    match replies::bulk_or_nil(reply)? {
        Some(score) => replies::text(score)?.parse().map_err(|_| Failure::Garbage),
        None => Ok(0),
    }
}

fn all_ids(reply: &Value) -> Result<Vec<Vec<OperationId>>, Failure> {
    let id = |entry: &Value| match entry {
        Value::BulkString(id) => replies::parse_id(id),
        _ => Err(Failure::Garbage),
    };
    let bucket = |reply: &Value| replies::list(reply)?.iter().map(id).collect();
    replies::list(reply)?.iter().map(bucket).collect()
}
