//! Whether a server may hold records at all. Asked on every new connection, before anything else is.

use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, FromRedisValue, RedisError, ServerErrorKind, Value};
use tokio::time::Instant;

use crate::clock::Timestamp;
use crate::redis_url::{Host, Misread};
use crate::store::redis::clock::ServerClock;
use crate::store::redis::epoch::Loss;
use crate::store::redis::failure::Failure;
use crate::store::redis::wire::is_about_trust;

/// `SET` with `NX` and `GET` together came with it.
const OLDEST: u32 = 7;
/// The one policy under which no record is dropped before its time.
const KEEPS_ALL: &str = "noeviction";

/// Why a Redis store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("the URL of the Redis store is not understood: {0}")]
    Url(#[from] Misread),
    #[error("the operating system has no randomness to give")]
    Entropy(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("Redis cannot be reached: {0}")]
    Unreachable(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("TLS with Redis failed, for certificates are missing or not trusted: {0}")]
    Tls(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("no sentinel knows a master called {0}")]
    NoSuchMaster(String),
    #[error("durability = \"replicas\" needs the right to ask this Redis for INFO replication")]
    Mute,
    #[error("this Redis is the master no more")]
    Deposed,
    #[error("Redis refused the credentials: {0}")]
    Credentials(#[source] RedisError),
    #[error("Redis refused a question that has to be answered first: {0}")]
    Refused(#[source] RedisError),
    #[error("Redis takes no writes now: {0}")]
    TakesNoWrites(#[source] RedisError),
    #[error("Redis has version {0}; 7.0 or newer is needed")]
    TooOld(String),
    #[error("this Redis is a replica; the store has to be its master")]
    Replica,
    #[error("maxmemory-policy is {0}: Redis would drop records, and calls would run twice; it has to be noeviction")]
    Evicts(String),
    #[error("the store has lost its memory: {0}")]
    Lost(#[from] Loss),
}

impl OpenError {
    /// Whether another try may find it better without anybody doing something.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::Deposed | Self::TakesNoWrites(_) => true,
            Self::Url(_)
            | Self::Entropy(_)
            | Self::Tls(_)
            | Self::NoSuchMaster(_)
            | Self::Credentials(_)
            | Self::Refused(_)
            | Self::TooOld(_)
            | Self::Replica
            | Self::Mute
            | Self::Evicts(_)
            | Self::Lost(_) => false,
        }
    }
}

impl OpenError {
    /// Whether an operator has to say how to go on.
    pub(super) fn is_loss(&self) -> bool {
        matches!(self, Self::Lost(_))
    }
}

/// A failure to set up a connection or to ask over it.
impl From<RedisError> for OpenError {
    fn from(error: RedisError) -> Self {
        match error.kind() {
            _ if is_about_trust(&error) => Self::Tls(error.into()),
            ErrorKind::AuthenticationFailed => Self::Credentials(error),
            _ if error.code() == Some("NOAUTH") => Self::Credentials(error),
            ErrorKind::Server(
                ServerErrorKind::BusyLoading | ServerErrorKind::TryAgain | ServerErrorKind::ClusterDown,
            ) => Self::Unreachable(error.into()),
            ErrorKind::Server(_) | ErrorKind::Extension => Self::Refused(error),
            _ => Self::Unreachable(error.into()),
        }
    }
}

/// A failure to ask for the epoch.
impl From<Failure> for OpenError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused(error) if is_about_writes(&error) => Self::TakesNoWrites(error),
            Failure::Refused(error) => Self::Refused(error),
            Failure::NotNow(error) | Failure::Broken(error) => Self::Unreachable(error.into()),
            Failure::Demoted(error) => Self::TakesNoWrites(error),
            Failure::Moved(error) | Failure::Ask(error) => Self::Unreachable(error.into()),
            failure @ (Failure::NoScript | Failure::Forgotten | Failure::Garbage | Failure::Unreadable(_)) => {
                Self::Unreachable(failure.into())
            }
        }
    }
}

/// Full, unable to save, or without its replicas: somebody or something will see to it.
fn is_about_writes(error: &RedisError) -> bool {
    matches!(error.code(), Some("OOM" | "MISCONF" | "NOREPLICAS"))
}

/// Asks all there is to ask in one round trip, and reads the clock on the way.
///
/// # Errors
/// The server must not be used, or did not answer.
pub(super) async fn examine(connection: &mut MultiplexedConnection, clock: &ServerClock) -> Result<(), OpenError> {
    let asked = Instant::now();
    let mut questions = redis::pipe();
    questions.cmd("TIME").cmd("INFO").cmd("ROLE").cmd("CONFIG").arg("GET").arg("maxmemory-policy");
    let answers = connection.send_packed_commands(&questions, 0, questions.len()).await?;
    let [time, info, role, policy] = <[Value; 4]>::try_from(answers).map_err(|_| nonsense())?;
    clock.read(time_of(time)?, asked);
    judge(&Profile::of(info, role, policy))
}

/// Reads the clock again and sees that the server still is a master and drops nothing.
///
/// # Errors
/// The connection is of no use any more.
pub(super) async fn look_again(connection: &mut MultiplexedConnection, clock: &ServerClock) -> Result<(), OpenError> {
    let asked = Instant::now();
    let mut questions = redis::pipe();
    questions.cmd("TIME").cmd("ROLE").cmd("CONFIG").arg("GET").arg("maxmemory-policy");
    let answers = connection.send_packed_commands(&questions, 0, questions.len()).await?;
    let [time, role, policy] = <[Value; 3]>::try_from(answers).map_err(|_| nonsense())?;
    clock.read(time_of(time)?, asked);
    if role_of(role).is_some_and(|role| role != "master") {
        return Err(OpenError::Replica);
    }
    match policy_of(policy) {
        Some(policy) if policy != KEEPS_ALL => Err(OpenError::Evicts(policy)),
        Some(_) | None => Ok(()),
    }
}

/// How a master stands to its replicas.
pub(super) struct Standing {
    /// The first 64 bits of its replication id: another one for each life as a master.
    pub(super) life: u64,
    pub(super) connected: usize,
    /// Whether it stops taking writes when too few of them are there.
    pub(super) needs_them: bool,
}

impl Standing {
    /// Out of the answer to `INFO replication`.
    ///
    /// # Errors
    /// It is no master, or does not tell.
    pub(super) fn of(info: Value) -> Result<Self, OpenError> {
        let info = String::from_redis_value(info).unwrap_or_default();
        let field = |name| field(&info, name);
        if field("role").is_some_and(|role| role != "master") {
            return Err(OpenError::Replica);
        }
        let life = field("master_replid").and_then(|id| u64::from_str_radix(id.get(..16)?, 16).ok());
        let connected = field("connected_slaves").and_then(|count| count.parse().ok());
        // It tells how many of them are good only if it needs any.
        let needs_them = field("min_slaves_good_slaves").is_some();
        life.zip(connected).map(|(life, connected)| Self { life, connected, needs_them }).ok_or(OpenError::Mute)
    }

    /// What an operator should know, if `needed` replicas have to have every step. Where they have, a master that was
    /// cut off acknowledges nothing anyway.
    fn advice(&self, host: &Host, needed: Option<usize>) -> Option<String> {
        let connected = self.connected;
        match needed {
            Some(needed) if connected < needed => Some(format!(
                "store: Redis {host} has {connected} of the {needed} replicas that store.replicas demands: guarded calls are \
                 refused"
            )),
            Some(needed) if connected > needed => Some(format!(
                "store: Redis {host} has {connected} replicas and store.replicas waits for {needed}: a failover may choose one \
                 that lacks calls, which then run again; say replicas = {connected}"
            )),
            None if connected > 0 && !self.needs_them => Some(format!(
                "store: Redis {host} has replicas and min-replicas-to-write is 0: once cut off, it takes writes that a \
                 failover forgets"
            )),
            Some(_) | None => None,
        }
    }
}

/// What an operator should change about a master and its replicas, if `needed` of these have to have every step. Of what
/// it may not tell it is not judged.
///
/// # Errors
/// It does not answer.
pub(super) async fn advice(
    connection: &mut MultiplexedConnection,
    host: &Host,
    needed: Option<usize>,
) -> Result<Vec<String>, OpenError> {
    let mut questions = redis::pipe();
    questions.cmd("INFO").arg("replication").arg("persistence").arg("memory");
    questions.cmd("CONFIG").arg("GET").arg("maxmemory-policy");
    let answers = connection.send_packed_commands(&questions, 0, questions.len()).await?;
    let [info, policy] = <[Value; 2]>::try_from(answers).map_err(|_| nonsense())?;
    let text = String::from_redis_value(info.clone()).unwrap_or_default();
    let is_mute = policy_of(policy).is_none() && field(&text, "maxmemory_policy").is_none();
    let of_replicas = Standing::of(info).ok().and_then(|standing| standing.advice(host, needed));
    Ok([of_replicas, advice_on_log(&text, host), is_mute.then(|| advice_on_policy(host))]
        .into_iter()
        .flatten()
        .collect())
}

fn advice_on_log(info: &str, host: &Host) -> Option<String> {
    (field(info, "aof_enabled") == Some("0")).then(|| {
        format!(
            "store: Redis {host} has appendonly no: when it dies, all since its last snapshot is forgotten, and those calls \
             may run again; say appendonly yes"
        )
    })
}

fn advice_on_policy(host: &Host) -> String {
    format!("store: Redis {host} does not tell its maxmemory-policy; unless it is noeviction, calls may run twice")
}

/// Asks a master about its replicas.
///
/// # Errors
/// It is no master, or does not tell.
pub(super) async fn standing(connection: &mut MultiplexedConnection) -> Result<Standing, OpenError> {
    let mut question = Cmd::new();
    question.arg("INFO").arg("replication");
    Standing::of(connection.send_packed_command(&question).await?.extract_error()?)
}

fn field<'i>(info: &'i str, name: &str) -> Option<&'i str> {
    let mut lines = info.lines().filter_map(|line| line.split_once(':'));
    lines.find(|(key, _)| *key == name).map(|(_, value)| value.trim())
}

/// What a server said of itself; what its access rules hide is `None`.
#[derive(Debug, Default)]
struct Profile {
    version: Option<String>,
    role: Option<String>,
    policy: Option<String>,
}

impl Profile {
    fn of(info: Value, role: Value, policy: Value) -> Self {
        let info = String::from_redis_value(info).unwrap_or_default();
        let field = |name| field(&info, name).map(str::to_owned);
        Self {
            version: field("redis_version"),
            role: role_of(role).or_else(|| field("role")),
            policy: policy_of(policy).or_else(|| field("maxmemory_policy")),
        }
    }
}

fn judge(profile: &Profile) -> Result<(), OpenError> {
    if let Some(version) = &profile.version
        && major(version).is_some_and(|major| major < OLDEST)
    {
        return Err(OpenError::TooOld(version.clone()));
    }
    if profile.role.as_deref().is_some_and(|role| role != "master") {
        return Err(OpenError::Replica);
    }
    match profile.policy.as_deref() {
        Some(KEEPS_ALL) => Ok(()),
        Some(policy) => Err(OpenError::Evicts(policy.to_owned())),
        // An operator is advised of it.
        None => Ok(()),
    }
}

fn major(version: &str) -> Option<u32> {
    version.split('.').next()?.parse().ok()
}

/// `ROLE` calls a replica by an older word.
fn role_of(answer: Value) -> Option<String> {
    match answer {
        Value::Array(parts) => parts.into_iter().next().and_then(|role| String::from_redis_value(role).ok()),
        _ => None,
    }
}

fn policy_of(answer: Value) -> Option<String> {
    let [_, policy] = <[String; 2]>::try_from(Vec::from_redis_value(answer).ok()?).ok()?;
    Some(policy)
}

fn time_of(answer: Value) -> Result<Timestamp, OpenError> {
    let (seconds, micros) = <(u64, u64)>::from_redis_value(answer.extract_error()?).map_err(RedisError::from)?;
    Ok(Timestamp(seconds.saturating_mul(1000).saturating_add(micros / 1000)))
}

fn nonsense() -> OpenError {
    OpenError::Unreachable("it gave another number of answers than it was asked for".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(version: &str, role: &str, policy: &str) -> Profile {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Profile { version: some(version), role: some(role), policy: some(policy) }
    }

    #[test]
    fn only_a_master_that_keeps_everything_is_fit() {
        assert!(judge(&profile("7.0.15", "master", "noeviction")).is_ok());
        assert!(judge(&profile("", "", "")).is_ok(), "what cannot be asked is only warned about");
        assert!(matches!(judge(&profile("6.2.14", "master", "noeviction")), Err(OpenError::TooOld(_))));
        assert!(matches!(judge(&profile("8.2.0", "slave", "noeviction")), Err(OpenError::Replica)));
        assert!(matches!(judge(&profile("10.0.0", "master", "volatile-lru")), Err(OpenError::Evicts(_))));
    }

    #[test]
    fn info_stands_in_for_what_is_forbidden() {
        let info = "# Server\r\nredis_version:7.2.4\r\n# Memory\r\nmaxmemory_policy:allkeys-lru\r\nrole:slave\r\n";
        let profile = Profile::of(Value::BulkString(info.into()), Value::Nil, Value::Nil);
        assert_eq!(profile.version.as_deref(), Some("7.2.4"));
        assert_eq!(profile.role.as_deref(), Some("slave"));
        assert_eq!(profile.policy.as_deref(), Some("allkeys-lru"));
    }
}
