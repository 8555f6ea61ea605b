//! What the server's replies mean. A reply of another shape than the question calls for is never taken for an answer.

use std::time::Duration;

use redis::{ServerErrorKind, Value};

use crate::clock::Timestamp;
use crate::operation::{Operation, OperationId, StoredRequest, WriteId};
use crate::store::record;
use crate::store::redis::failure::Failure;
use crate::store::redis::fleet_time::Said;
use crate::store::{Found, History, Sealer, Space, TooMany, Written};

type Read<T> = Result<T, Failure>;

/// How one run of the claim script ended.
pub(super) enum Claiming {
    Won,
    Exists(Box<Found>),
    /// Another unnamed call stands in the way.
    Alike(OperationId),
    /// Nothing was written: the last moment is over by the server's clock, which is this.
    Late(Timestamp),
}

/// How one run of the script for writes ended.
pub(super) enum Writing {
    Done(Written),
    /// As of a claim.
    Late(Timestamp),
}

/// A reply that is an error, or holds one, is no answer.
pub(super) fn whole(reply: Value) -> Read<Value> {
    Ok(reply.extract_error()?)
}

/// The same, but for those of several answers that another server of the cluster has to give.
pub(super) fn in_part(reply: Value) -> Read<Value> {
    let Value::Array(answers) = reply else { return whole(reply) };
    let answers = answers.into_iter().map(|answer| if is_elsewhere(&answer) { Ok(answer) } else { whole(answer) });
    answers.collect::<Read<_>>().map(Value::Array)
}

/// The word of a server that another one has the key.
pub(super) fn is_elsewhere(answer: &Value) -> bool {
    let Value::ServerError(error) = answer else { return false };
    matches!(error.kind(), Some(ServerErrorKind::Moved | ServerErrorKind::Ask))
}

/// Replies of scripts begin with the write id, so that an answer that slipped in from elsewhere is seen as such.
pub(super) fn claiming(sealer: &Sealer, reply: Value, id: OperationId, write: WriteId) -> Read<Claiming> {
    match parts(&reply).ok_or(Failure::Garbage)?.as_slice() {
        [echo] if *echo == write.0 && !is_list(&reply) => Ok(Claiming::Won),
        [echo, b"record", stored, receipt @ ..] if *echo == write.0 => {
            found_in(sealer, stored, receipt.first().copied(), id).map(|found| Claiming::Exists(Box::new(found)))
        }
        [echo, b"forgotten"] if *echo == write.0 => Err(Failure::Forgotten),
        [echo, b"alike", other] if *echo == write.0 => parse_id(other).map(Claiming::Alike),
        [echo, b"late", clock] if *echo == write.0 => parse_clock(clock).map(Claiming::Late),
        _ => Err(Failure::Garbage),
    }
}

pub(super) fn written(sealer: &Sealer, reply: Value, id: OperationId, write: WriteId) -> Read<Writing> {
    match parts(&reply).ok_or(Failure::Garbage)?.as_slice() {
        [echo] if *echo == write.0 && is_list(&reply) => Ok(Writing::Done(Written::Gone)),
        [echo] if *echo == write.0 => Ok(Writing::Done(Written::Applied)),
        [echo, b"late", clock] if *echo == write.0 => parse_clock(clock).map(Writing::Late),
        [echo, stored, receipt @ ..] if *echo == write.0 => {
            let found = found_in(sealer, stored, receipt.first().copied(), id)?;
            Ok(Writing::Done(Written::Refused(Box::new(found))))
        }
        _ => Err(Failure::Garbage),
    }
}

/// Record and receipt, side by side.
pub(super) fn found(sealer: &Sealer, reply: Value, id: OperationId) -> Read<Option<Found>> {
    match list(&reply)? {
        [Value::Nil, _] => Ok(None),
        [Value::BulkString(stored), Value::Nil] => found_in(sealer, stored, None, id).map(Some),
        [Value::BulkString(stored), Value::BulkString(receipt)] => {
            found_in(sealer, stored, Some(receipt), id).map(Some)
        }
        _ => Err(Failure::Garbage),
    }
}

pub(super) fn stored_request(sealer: &Sealer, reply: Value, id: OperationId) -> Read<Option<StoredRequest>> {
    Ok(bulk_or_nil(&reply)?.map(|bytes| record::decode_part(sealer, id, bytes)).transpose()?)
}

/// A record and its events.
pub(super) fn history(sealer: &Sealer, reply: Value, id: OperationId) -> Read<Option<(Operation, History)>> {
    match list(&reply)? {
        [Value::Nil, Value::Array(_)] => Ok(None),
        [Value::BulkString(stored), Value::Array(events)] => {
            let operation = found_in(sealer, stored, None, id)?.operation;
            let mut history = History::default();
            for event in events {
                let Value::BulkString(bytes) = event else { return Err(Failure::Garbage) };
                history.add(record::decode_part(sealer, id, bytes));
            }
            Ok(Some((operation, history)))
        }
        _ => Err(Failure::Garbage),
    }
}

pub(super) fn remembered(reply: Value, write: WriteId) -> Read<Option<String>> {
    match list(&reply)? {
        [Value::BulkString(echo), before @ ..] if *echo == write.0 => match before {
            [] | [Value::Nil] => Ok(None),
            [Value::BulkString(before)] => text(before).map(|before| Some(before.to_owned())),
            _ => Err(Failure::Garbage),
        },
        _ => Err(Failure::Garbage),
    }
}

pub(super) fn recalled(reply: Value) -> Read<Option<String>> {
    match list(&reply)? {
        [value] => bulk_or_nil(value)?.map(|value| text(value).map(str::to_owned)).transpose(),
        _ => Err(Failure::Garbage),
    }
}

pub(super) fn fleet_time(reply: Value) -> Read<Said> {
    let time = |number: i64| u64::try_from(number).map(Timestamp).map_err(|_| Failure::Garbage);
    match list(&reply)? {
        [Value::Int(server), Value::Int(offset), Value::Int(reached)] => {
            let reached = Some(time(*reached)?).filter(|reached| reached.0 > 0);
            Ok(Said { server: time(*server)?, offset: *offset, reached })
        }
        _ => Err(Failure::Garbage),
    }
}

pub(super) fn number(reply: Value) -> Read<usize> {
    match reply {
        Value::Int(number) => usize::try_from(number).map_err(|_| Failure::Garbage),
        _ => Err(Failure::Garbage),
    }
}

/// Which of several rates is used up for the longest, counted from one, and for how many microseconds.
pub(super) fn taken(reply: Value) -> Read<Result<(), TooMany>> {
    let [Value::Int(rate), Value::Int(wait)] = list(&reply)? else { return Err(Failure::Garbage) };
    let (Ok(rate), Ok(wait)) = (usize::try_from(*rate), u64::try_from(*wait)) else { return Err(Failure::Garbage) };
    let too_many = |rate| Err(TooMany { rate, wait: Duration::from_micros(wait) });
    Ok(rate.checked_sub(1).map_or(Ok(()), too_many))
}

/// A number, or nothing.
pub(super) fn count(reply: Value) -> Read<Option<u64>> {
    match reply {
        Value::Nil => Ok(None),
        Value::Int(count) => u64::try_from(count).map(Some).map_err(|_| Failure::Garbage),
        _ => Err(Failure::Garbage),
    }
}

/// What `INFO memory` says; nothing where memory has no bound.
pub(super) fn space(reply: Value) -> Read<Option<Space>> {
    let told = match &reply {
        Value::BulkString(bytes) => text(bytes)?,
        Value::VerbatimString { text, .. } => text,
        _ => return Err(Failure::Garbage),
    };
    let field = |name: &str| {
        let value = told.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        value.and_then(|value| value.parse().ok())
    };
    match (field("used_memory:"), field("maxmemory:")) {
        (Some(used), Some(limit)) if limit > 0 => Ok(Some(Space { used, limit })),
        _ => Ok(None),
    }
}

pub(super) fn okay(reply: Value) -> Read<()> {
    if reply == Value::Okay { Ok(()) } else { Err(Failure::Garbage) }
}

pub(super) fn bulk_or_nil(reply: &Value) -> Read<Option<&[u8]>> {
    match reply {
        Value::Nil => Ok(None),
        Value::BulkString(bytes) => Ok(Some(bytes)),
        _ => Err(Failure::Garbage),
    }
}

pub(super) fn list(reply: &Value) -> Read<&[Value]> {
    match reply {
        Value::Array(entries) => Ok(entries),
        _ => Err(Failure::Garbage),
    }
}

pub(super) fn text(bytes: &[u8]) -> Read<&str> {
    std::str::from_utf8(bytes).map_err(|_| Failure::Garbage)
}

pub(super) fn parse_id(bytes: &[u8]) -> Read<OperationId> {
    text(bytes)?.parse().map_err(|_| Failure::Garbage)
}

fn parse_clock(bytes: &[u8]) -> Read<Timestamp> {
    text(bytes)?.parse().map(Timestamp).map_err(|_| Failure::Garbage)
}

/// A reply of strings: one alone or a list, which ends where a nil is.
fn parts(reply: &Value) -> Option<Vec<&[u8]>> {
    match reply {
        Value::BulkString(bytes) => Some(vec![bytes]),
        Value::Array(entries) => {
            let present = entries.iter().take_while(|entry| **entry != Value::Nil);
            present.map(|entry| bulk_or_nil(entry).ok().flatten()).collect()
        }
        _ => None,
    }
}

fn is_list(reply: &Value) -> bool {
    matches!(reply, Value::Array(_))
}

/// A record of another operation than the one asked for shows that replies are out of step.
fn found_in(sealer: &Sealer, stored: &[u8], receipt: Option<&[u8]>, id: OperationId) -> Read<Found> {
    let operation = record::decode(stored)?;
    if operation.id != id {
        return Err(Failure::Garbage);
    }
    Ok(Found::new(operation, receipt.map(|bytes| record::decode_part(sealer, id, bytes))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Unreadable;

    const WRITE: WriteId = WriteId([7; 16]);

    fn id() -> OperationId {
        OperationId::of(&[0; 32], "r", "k", None)
    }

    fn bulk(bytes: &[u8]) -> Value {
        Value::BulkString(bytes.to_vec())
    }

    #[test]
    fn only_the_own_write_id_is_a_win() {
        assert!(matches!(claiming(&Sealer::none(), bulk(&WRITE.0), id(), WRITE), Ok(Claiming::Won)));
        let strange = [Value::Okay, Value::Nil, Value::Int(1), bulk(&[8; 16]), Value::Array(vec![bulk(&WRITE.0)])];
        for reply in strange {
            assert!(
                matches!(claiming(&Sealer::none(), reply.clone(), id(), WRITE), Err(Failure::Garbage)),
                "{reply:?}"
            );
        }
    }

    #[test]
    fn gone_and_applied_are_told_apart() {
        assert!(matches!(written(&Sealer::none(), bulk(&WRITE.0), id(), WRITE), Ok(Writing::Done(Written::Applied))));
        let gone = written(&Sealer::none(), Value::Array(vec![bulk(&WRITE.0)]), id(), WRITE);
        assert!(matches!(gone, Ok(Writing::Done(Written::Gone))));
        assert!(matches!(written(&Sealer::none(), Value::Array(vec![]), id(), WRITE), Err(Failure::Garbage)));
    }

    #[test]
    fn a_damaged_record_is_an_answer_and_no_reason_to_ask_again() {
        let reply = Value::Array(vec![bulk(&WRITE.0), bulk(b"record"), bulk(b"1short"), Value::Nil]);
        assert!(matches!(
            claiming(&Sealer::none(), reply, id(), WRITE),
            Err(Failure::Unreadable(Unreadable::Damaged(_)))
        ));
    }
}
