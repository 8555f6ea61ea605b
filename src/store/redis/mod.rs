//! A Redis that several gateways share.
//!
//! Every step that writes is one script over keys of one hash slot, safe to send twice: a script that finds its own
//! write in the record replies as it did the first time. Only records that have ended may expire; the server must never
//! drop another one, and one that would is refused.

mod bounds;
mod clock;
mod cluster;
mod connection;
mod epoch;
mod failure;
mod fitness;
mod fleet_time;
mod gathered;
mod held;
mod keeper;
mod keys;
mod line;
mod map;
mod node;
mod replicas;
mod replies;
mod scripts;
mod sentinel;
mod shares;
mod slots;
mod survey;
mod surveyor;
mod sweep;
mod topology;
mod wire;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use redis::{Cmd, RedisConnectionInfo};
use rustls::ClientConfig;
use tokio::time::{Instant, sleep};

pub use self::epoch::Loss;
pub use self::fitness::OpenError;

use self::connection::{Connection, Done};
use self::epoch::Epoch;
use self::fleet_time::{FleetTime, Shift};
use self::keeper::Terms;
use self::keys::{Index, Keys, Part};
use self::replicas::must_last;
use self::replies::{Claiming, Writing};
use self::scripts::{CLAIM, Call, REMEMBER, Request, TIME, WRITE};
use self::wire::Wiring;
use crate::clock::{Timestamp, millis};
use crate::crash_point::{self, Point};
use crate::entropy::Entropy;
use crate::operation::dead_letter::Letter;
use crate::operation::transition::{Change, RequestChange};
use crate::operation::{Alike, Operation, OperationId, Scope, StoredRequest, WriteId};
use crate::redis_url::RedisUrl;
use crate::store::ended::Ended;
use crate::store::record::{self, FORMAT, Part as Stored};
use crate::store::{Claimed, Found, History, Pace, Page, Sealer, Space, Store, StoreError, TooMany, Written};
use crate::tls::client_config;

/// How long the key of a probe stays, in milliseconds.
const PROBE: u64 = 1000;
/// Before a record that is over is looked for again.
const LEFTOVER: Duration = Duration::from_millis(2);

/// Operations in a Redis server, under one namespace. Stays on the runtime it was made on.
pub struct RedisStore {
    connection: Connection,
    time: FleetTime,
    epoch: Arc<Epoch>,
    keys: Keys,
    sealer: Sealer,
    entropy: Entropy,
    ended: Ended,
    /// Tells this store from others that would take its turn.
    instance: [u8; 16],
}

/// Whose keys a call begins with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Begin {
    Claim,
    Write(Letter),
}

/// Which Redis, and how it is used.
#[derive(Clone, Debug)]
pub struct Settings {
    pub url: RedisUrl,
    /// Part of every key.
    pub namespace: String,
    /// Of every step, whatever happens in it.
    pub timeout: Duration,
    /// What connections are made with if the URL says TLS; without it only the public authorities are trusted.
    pub tls: Option<Arc<ClientConfig>>,
    /// User and password at the sentinels, where they have their own.
    pub sentinel_login: Option<(Option<String>, String)>,
    /// How many replicas have to have a step before it counts; without it the master is enough.
    pub replicas: Option<usize>,
}

impl Settings {
    /// What is not stated is as it mostly is.
    pub fn new(url: RedisUrl, namespace: &str, timeout: Duration) -> Self {
        Self { url, namespace: namespace.to_owned(), timeout, tls: None, sentinel_login: None, replicas: None }
    }

    fn tls(&self) -> Result<Option<Arc<ClientConfig>>, OpenError> {
        match (&self.tls, self.url.tls) {
            (_, false) => Ok(None),
            (Some(config), true) => Ok(Some(Arc::clone(config))),
            (None, true) => client_config(None, None, &[]).map(Some).map_err(|error| OpenError::Tls(error.into())),
        }
    }
}

impl RedisStore {
    /// Opens the store at a URL of [`RedisUrl`], as [`open`](Self::open) does with settings that are mostly not stated.
    ///
    /// # Errors
    /// The URL is wrong, or the server answered and must not be used.
    pub async fn connect(url: &str, namespace: &str, timeout: Duration) -> Result<Self, OpenError> {
        Self::open(Settings::new(RedisUrl::parse(url)?, namespace, timeout)).await
    }

    /// Opens the store. A server that is away is no error: steps fail until it answers and is found fit.
    ///
    /// # Errors
    /// The server answered and must not be used: credentials, certificates, version, role, eviction.
    pub async fn open(settings: Settings) -> Result<Self, OpenError> {
        let entropy = Entropy::system().map_err(|error| OpenError::Entropy(error.into()))?;
        let tls = settings.tls()?;
        let Settings { url, namespace, timeout, sentinel_login, replicas, .. } = settings;
        let wiring = Wiring::new(tls, login(url.user, url.password).set_db(url.database.into()));
        let (user, password) = sentinel_login.map_or((None, None), |(user, password)| (user, Some(password)));
        let sentinels = wiring.with_login(login(user, password));
        let epoch = Arc::new(Epoch::new(Keys::new(&namespace), entropy.clone(), replicas.is_none()));
        let terms = Terms { wiring, timeout, entropy: entropy.clone(), epoch: Arc::clone(&epoch), replicas };
        let connection = Connection::open(url.layout, terms, &sentinels).await?;
        let instance = entropy.bytes();
        let (time, sealer, ended) = (FleetTime::default(), Sealer::none(), Ended::default());
        let store = Self { connection, time, epoch, keys: Keys::new(&namespace), sealer, entropy, ended, instance };
        if let Err(error) = store.keep_time().await {
            tracing::debug!(%error, "the fleet's time is not known yet");
        }
        Ok(store)
    }

    /// The same store with a sealer for what holds bodies.
    #[must_use]
    pub fn sealed_by(self, sealer: Sealer) -> Self {
        Self { sealer, ..self }
    }

    /// Compares clocks with the fleet. A jump of the server's that it does not know of yet is told to it.
    async fn keep_time(&self) -> Result<(), StoreError> {
        if let Some(shift) = self.ask_time(None).await? {
            self.ask_time(Some(shift)).await?;
        }
        Ok(())
    }

    async fn ask_time(&self, shift: Option<Shift>) -> Result<Option<Shift>, StoreError> {
        let asked = Instant::now();
        let call = TIME.call(1, 64).with(self.keys.clock()).with_optional(self.time.known(self.connection.now()));
        let call = call.with_optional(shift.map(|shift| shift.found)).with_optional(shift.map(|shift| shift.wanted));
        let said = self.connection.ask(self.connection.deadline(), &call.into(), replies::fleet_time).await?;
        Ok(self.time.heed(said, self.connection.now(), asked.elapsed()))
    }

    async fn claim_once(
        &self,
        change: &Change,
        past: Option<OperationId>,
        last: Timestamp,
        deadline: Instant,
    ) -> Result<(Claiming, Done), StoreError> {
        let write = change.operation.fence.write;
        let request = self.claim_call(change, past, last)?.into();
        let read = |reply| replies::claiming(&self.sealer, reply, change.operation.id, write);
        let asking = pin!(self.connection.ask_placed(deadline, &request, read));
        crash_point::midway(Point::StoreAsked, asking).await.inspect(|_| crash_point::reached(Point::StoreDone))
    }

    /// Up to when a step that begins a run may be made, by the clock of the server that makes it, as it was `told` or as it
    /// is known here.
    fn last_moment(&self, id: OperationId, told: Option<Timestamp>, deadline: Instant) -> Timestamp {
        let clock = told.unwrap_or_else(|| self.connection.now_at(|| self.keys.marker(id.bucket())));
        clock.after(deadline.saturating_duration_since(Instant::now()))
    }

    fn claim_call(&self, change: &Change, past: Option<OperationId>, last: Timestamp) -> Result<Call, StoreError> {
        let operation = &change.operation;
        let record = record::encode(operation)?;
        let event = encoded(&self.sealer, operation.id, change.event.as_ref())?;
        let request = match &change.request {
            RequestChange::Put(request) => record::encode_part(&self.sealer, operation.id, request)?,
            RequestChange::Keep | RequestChange::Drop => Vec::new(),
        };
        let size = record.len() + event.len() + request.len();
        let call = self.begin(CLAIM.call(8 + keys_of_alike(operation), size + 512), operation, Begin::Claim);
        let call = call.with_write(operation.fence.write).with(record).with(self.keys.of(operation.id).member());
        let call = call.with(operation.created_at.0).with_optional(self.place_in_schedule(operation));
        let call = call
            .with(event)
            .with(request)
            .with(member_of_open(&operation.identity.scope))
            .with(&self.epoch.marker()[..])
            .with(last.0);
        Ok(match operation.identity.alike {
            Some(_) => call.with(self.now().0).with_optional(end_as_alike(operation)).with_optional(past),
            None => call,
        })
    }

    async fn write_once(
        &self,
        change: &Change,
        told: Option<Timestamp>,
        deadline: Instant,
    ) -> Result<(Writing, Done), StoreError> {
        let last = change.begins_run().then(|| self.last_moment(change.operation.id, told, deadline));
        let request = self.write_call(change, last)?.into();
        let (id, write) = (change.operation.id, change.operation.fence.write);
        let read = |reply| replies::written(&self.sealer, reply, id, write);
        let asking = pin!(self.connection.ask_placed(deadline, &request, read));
        crash_point::midway(Point::StoreAsked, asking).await.inspect(|_| crash_point::reached(Point::StoreDone))
    }

    /// When a write that begins now has to be over. Each try sends all of a receipt, and nobody else knows it.
    fn deadline_of(&self, change: &Change) -> Instant {
        let length = change.receipt.as_ref().map_or(0, |receipt| receipt.body.len() as u64);
        self.connection.deadline() + Duration::from_secs(length >> 20)
    }

    fn write_call(&self, change: &Change, last: Option<Timestamp>) -> Result<Call, StoreError> {
        let (operation, now) = (&change.operation, self.now());
        let record = record::encode(operation)?;
        let event = encoded(&self.sealer, operation.id, change.event.as_ref())?;
        let receipt = encoded(&self.sealer, operation.id, change.receipt.as_ref())?;
        let (action, request) = match &change.request {
            RequestChange::Keep => ("keep", Vec::new()),
            RequestChange::Put(request) => ("put", record::encode_part(&self.sealer, operation.id, request)?),
            RequestChange::Drop => ("drop", Vec::new()),
        };
        let size = record.len() + event.len() + receipt.len() + request.len();
        let letter = change.letter();
        let keys = 6 + usize::from(letter != Letter::None) + keys_of_alike(operation);
        let call = self.begin(WRITE.call(keys, size + 512), operation, Begin::Write(letter));
        let call = call.with_write(operation.fence.write).with(expected_head(change)).with(record);
        let call = call.with_optional(operation.expires_at.map(|end| life_until(end, now)));
        let call = call.with(self.keys.of(operation.id).member()).with_optional(self.place_in_schedule(operation));
        let receipt_end = operation.state.settled().map_or(operation.changed_at, |settled| settled.receipt_until);
        let call = call.with(event).with(receipt).with(life_until(receipt_end, now)).with(action).with(request);
        let call = call.with(member_of_open(&operation.identity.scope)).with_optional(last.map(|last| last.0));
        let call = match letter {
            Letter::Open => call.with(operation.created_at.0),
            Letter::Closed => call.with("close"),
            Letter::None => call.with(""),
        };
        Ok(match operation.identity.alike {
            Some(_) => call.with_optional(end_as_alike(operation)),
            None => call,
        })
    }

    /// The keys of an operation, in the order in which the scripts name them.
    fn begin(&self, call: Call, operation: &Operation, begin: Begin) -> Call {
        let mut keys = self.keys.of(operation.id);
        let call = call.with(keys.part(Part::Record)).with(keys.part(Part::Receipt)).with(keys.part(Part::Request));
        let mut call = call.with(keys.part(Part::Events)).with(keys.index(Index::Schedule));
        if begin == Begin::Claim {
            call = call.with(keys.index(Index::Creation));
        }
        call = call.with(keys.index(Index::Open));
        call = match begin {
            Begin::Claim => call.with(self.keys.marker(operation.id.bucket())),
            Begin::Write(Letter::None) => call,
            Begin::Write(Letter::Open | Letter::Closed) => call.with(keys.index(Index::Dead)),
        };
        match &operation.identity.alike {
            Some(alike) => call.with(self.keys.alike(operation.id.bucket(), alike)),
            None => call,
        }
    }

    /// See [`Index::Schedule`].
    fn place_in_schedule(&self, operation: &Operation) -> Option<i64> {
        let signed = |time: Timestamp| i64::try_from(time.0).unwrap_or(i64::MAX);
        operation.due().map(signed).or_else(|| operation.expires_at.map(|end| -signed(end)))
    }

    async fn find(&self, id: OperationId, deadline: Instant) -> Result<Option<Found>, StoreError> {
        let mut keys = self.keys.of(id);
        let mut command = Cmd::new();
        command.arg("MGET").arg(keys.part(Part::Record)).arg(keys.part(Part::Receipt));
        let read = |reply| replies::found(&self.sealer, reply, id);
        let (found, done) = self.connection.ask_placed(deadline, &Request::One(command), read).await?;
        match found.and_then(|found| self.in_time(found)) {
            Some(found) => self.lasting(found, done, deadline).await.map(Some),
            None => Ok(None),
        }
    }

    /// The receipt of a call that ended lately, by a plain read: a fifth of what a claim costs the server that finds one.
    async fn recall(&self, id: OperationId, deadline: Instant) -> Result<Option<Found>, StoreError> {
        if !self.ended.has(id) {
            return Ok(None);
        }
        Ok(self.find(id, deadline).await?.filter(|found| found.receipt.is_some()))
    }

    /// What is told of a record that has ended must not be forgotten by a failover.
    async fn lasting(&self, found: Found, done: Done, deadline: Instant) -> Result<Found, StoreError> {
        if found.operation.state.settled().is_none() {
            return Ok(found);
        }
        let key = || self.keys.wake(found.operation.id.bucket());
        let replicated = done.replicated(key, deadline).await;
        replicated.map(|()| found).map_err(|shortfall| StoreError::Refused(shortfall.to_string()))
    }

    /// What was written is acted upon only when the replicas have it, too.
    async fn written(&self, operation: &Operation, done: Done, deadline: Instant) -> Result<(), StoreError> {
        if !must_last(operation) {
            return Ok(());
        }
        let replicated = done.replicated(|| self.keys.wake(operation.id.bucket()), deadline).await;
        replicated.map_err(|shortfall| StoreError::Unreplicated(shortfall.into()))
    }

    /// What is left of it by now. The server may keep things a moment longer than the record says, by as much as the
    /// write was under way.
    fn in_time(&self, mut found: Found) -> Option<Found> {
        if self.is_over(&found.operation) {
            return None;
        }
        if found.operation.state.settled().is_some_and(|settled| settled.receipt_until <= self.now()) {
            (found.receipt, found.lost) = (None, None);
        }
        Some(found)
    }

    fn is_over(&self, operation: &Operation) -> bool {
        operation.expires_at.is_some_and(|end| end <= self.now())
    }

    /// Takes out a look-alike whose record is gone, so that it stops nobody any more.
    async fn forget_alike(&self, alike: &Alike, id: OperationId, deadline: Instant) -> Result<(), StoreError> {
        let mut command = Cmd::new();
        command.arg("ZREM").arg(self.keys.alike(id.bucket(), alike)).arg(self.keys.of(id).member());
        self.connection.ask(deadline, &Request::One(command), replies::number).await.map(|_| ())
    }
}

#[async_trait]
impl Store for RedisStore {
    fn now(&self) -> Timestamp {
        self.time.now(self.connection.now())
    }

    async fn claim(&self, change: &Change, past: Option<OperationId>) -> Result<Claimed, StoreError> {
        let deadline = self.connection.deadline();
        if let Some(found) = self.recall(change.operation.id, deadline).await? {
            return Ok(Claimed::Exists(Box::new(found)));
        }
        let mut told = None;
        loop {
            let last = self.last_moment(change.operation.id, told.take(), deadline);
            let (claiming, done) = self.claim_once(change, past, last, deadline).await?;
            let id = match claiming {
                Claiming::Won => {
                    return self.written(&change.operation, done, deadline).await.map(|()| Claimed::Won);
                }
                Claiming::Exists(found) => match self.in_time(*found) {
                    Some(found) => {
                        self.ended.note(found.operation.id, found.receipt.as_ref());
                        return self.lasting(found, done, deadline).await.map(Box::new).map(Claimed::Exists);
                    }
                    None => {
                        sleep(LEFTOVER).await;
                        continue;
                    }
                },
                Claiming::Alike(id) => id,
                Claiming::Late(clock) => {
                    told = Some(in_time_by(clock, deadline)?);
                    continue;
                }
            };
            // Its record is of the same bucket, but its key was not known before, and scripts make no keys.
            if let Some(found) = self.find(id, deadline).await? {
                return Ok(Claimed::Alike(Box::new(found)));
            }
            if let Some(alike) = &change.operation.identity.alike {
                self.forget_alike(alike, id, deadline).await?;
            }
        }
    }

    async fn write(&self, change: &Change) -> Result<Written, StoreError> {
        let deadline = self.deadline_of(change);
        let mut told = None;
        let (written, done) = loop {
            match self.write_once(change, told, deadline).await? {
                (Writing::Done(written), done) => break (written, done),
                (Writing::Late(clock), _) => told = Some(in_time_by(clock, deadline)?),
            }
        };
        match written {
            Written::Refused(found) => match self.in_time(*found) {
                Some(found) => self.lasting(found, done, deadline).await.map(Box::new).map(Written::Refused),
                None => Ok(Written::Gone),
            },
            Written::Applied => {
                self.ended.note(change.operation.id, change.receipt.as_ref());
                self.written(&change.operation, done, deadline).await.map(|()| Written::Applied)
            }
            Written::Gone => Ok(Written::Gone),
        }
    }

    async fn read(&self, id: OperationId) -> Result<Option<Found>, StoreError> {
        self.find(id, self.connection.deadline()).await
    }

    async fn request(&self, id: OperationId) -> Result<Option<StoredRequest>, StoreError> {
        let mut command = Cmd::new();
        command.arg("GET").arg(self.keys.of(id).part(Part::Request));
        let read = |reply| replies::stored_request(&self.sealer, reply, id);
        self.connection.ask(self.connection.deadline(), &Request::One(command), read).await
    }

    async fn events(&self, id: OperationId) -> Result<History, StoreError> {
        let mut keys = self.keys.of(id);
        let mut commands = redis::pipe();
        commands.cmd("GET").arg(keys.part(Part::Record)).cmd("LRANGE").arg(keys.part(Part::Events)).arg(0).arg(-1);
        let read = |reply| replies::history(&self.sealer, reply, id);
        let history = self.connection.ask(self.connection.deadline(), &Request::Many(commands), read).await?;
        let live = history.filter(|(operation, _)| !self.is_over(operation));
        Ok(live.map(|(_, history)| history).unwrap_or_default())
    }

    async fn due(&self, limit: usize) -> Result<Vec<OperationId>, StoreError> {
        self.keep_time().await?;
        self.sweep_due(limit).await
    }

    async fn count_open(&self, scope: &Scope) -> Result<u64, StoreError> {
        self.sum_open(scope).await
    }

    async fn list(&self, cursor: Option<&str>, limit: usize) -> Result<Page, StoreError> {
        self.page(Index::Creation, cursor, limit).await.map(|(page, _)| page)
    }

    /// A version without dead letters closes none, and takes what ran out of no index of them.
    async fn dead_letters(&self, cursor: Option<&str>, limit: usize) -> Result<Page, StoreError> {
        let (mut page, gone) = self.page(Index::Dead, cursor, limit).await?;
        if let Err(error) = self.forget(gone).await {
            tracing::debug!(%error, "the index of dead letters keeps some that are gone");
        }
        page.operations.retain(|operation| operation.dead_letter().is_some());
        Ok(page)
    }

    async fn purge(&self, limit: usize) -> Result<usize, StoreError> {
        self.sweep_gone(limit).await
    }

    async fn remember(&self, name: &str, value: &str, until: Option<Timestamp>) -> Result<Option<String>, StoreError> {
        let write = WriteId(self.entropy.bytes());
        let life = until.map_or(0, |until| millis(until.since(self.now())).max(1));
        let call = REMEMBER
            .call(1, value.len())
            .with(self.keys.named(name))
            .with_write(write)
            .with(value)
            .with(life.to_string());
        let deadline = self.connection.deadline();
        self.connection.ask(deadline, &call.into(), |reply| replies::remembered(reply, write)).await
    }

    async fn hold(&self, name: &str, until: Timestamp) -> Result<(), StoreError> {
        self.hold_name(name, until, false).await.map(|_| ())
    }

    async fn hold_if_over(&self, name: &str, until: Timestamp) -> Result<Option<Timestamp>, StoreError> {
        self.hold_name(name, until, true).await
    }

    async fn take(&self, rates: &[(String, Pace)]) -> Result<Result<(), TooMany>, StoreError> {
        self.take_call(rates).await
    }

    async fn replace_hold(&self, name: &str, known: Timestamp, until: Option<Timestamp>) -> Result<(), StoreError> {
        self.replace_end(name, known, until).await
    }

    async fn held(&self) -> Result<Vec<(String, Timestamp)>, StoreError> {
        self.held_names().await
    }

    async fn recall(&self, name: &str) -> Result<Option<String>, StoreError> {
        let mut command = Cmd::new();
        command.arg("HMGET").arg(self.keys.named(name)).arg("value");
        self.connection.ask(self.connection.deadline(), &Request::One(command), replies::recalled).await
    }

    async fn take_turn(&self, work: &str, life: Duration) -> Result<bool, StoreError> {
        self.keep_turn(work, millis(life), self.connection.deadline()).await
    }

    async fn accept_loss(&self) -> Result<bool, StoreError> {
        self.connection.accept_loss().await
    }

    /// By `maxmemory`; in a cluster that of one of its masters. Access rules may hide it.
    async fn space(&self) -> Result<Option<Space>, StoreError> {
        let mut command = Cmd::new();
        command.arg("INFO").arg("memory");
        match self.connection.ask(self.connection.deadline(), &Request::One(command), replies::space).await {
            Err(StoreError::Refused(_)) => Ok(None),
            told => told,
        }
    }

    async fn advice(&self) -> Result<Vec<String>, StoreError> {
        self.connection.advice().await
    }

    async fn ping(&self) -> Result<(), StoreError> {
        let mut command = Cmd::new();
        command.arg("SET").arg(self.keys.probe()).arg(self.now().0).arg("PX").arg(PROBE);
        let deadline = self.connection.deadline();
        let ((), done) = self.connection.ask_placed(deadline, &Request::One(command), replies::okay).await?;
        let replicated = done.replicated(|| self.keys.probe(), deadline).await;
        replicated.map_err(|shortfall| StoreError::Unreplicated(shortfall.into()))
    }
}

fn login(user: Option<String>, password: Option<String>) -> RedisConnectionInfo {
    let mut login = RedisConnectionInfo::default();
    if let Some(user) = user {
        login = login.set_username(user);
    }
    match password {
        Some(password) => login.set_password(password),
        None => login,
    }
}

/// The server's clock, where the answer that it makes a step late has come in time: then it is the one to go by.
fn in_time_by(clock: Timestamp, deadline: Instant) -> Result<Timestamp, StoreError> {
    if Instant::now() < deadline { Ok(clock) } else { Err(StoreError::Timeout) }
}

/// Relative, so that an error in the estimate of the server's clock is no error in the time things are kept.
fn life_until(end: Timestamp, now: Timestamp) -> u64 {
    millis(end.since(now)).max(1)
}

/// How a scope is named among those that have unfinished operations.
fn member_of_open(scope: &Scope) -> &[u8] {
    &scope.digest()[..16]
}

fn keys_of_alike(operation: &Operation) -> usize {
    usize::from(operation.identity.alike.is_some())
}

/// Until when an operation stands in the way of its look-alikes, as the score of a sorted set.
fn end_as_alike(operation: &Operation) -> Option<String> {
    let (_, blocking) = operation.blocks_alike()?;
    Some(blocking.as_number().map_or_else(|| "+inf".to_owned(), |until| until.to_string()))
}

/// The first bytes that the stored record must have; no record has those of a change that expects none.
fn expected_head(change: &Change) -> Vec<u8> {
    let mut head = vec![FORMAT];
    head.extend(change.expected.as_ref().map(record::expected).iter().flatten());
    head
}

/// Scripts see a part that is missing as an empty one.
fn encoded<T: Stored>(sealer: &Sealer, id: OperationId, part: Option<&T>) -> Result<Vec<u8>, StoreError> {
    part.map(|part| record::encode_part(sealer, id, part)).transpose().map(Option::unwrap_or_default)
}
