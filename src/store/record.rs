//! The stored form of an operation and of what is kept beside it, one for all stores.
//!
//! A record is a fixed header, then MessagePack with named fields. The header lets a store compare the fence without
//! decoding anything, in a script too. The names of serde are the format: version N writes what N-1 reads, fields that a
//! newer version added are skipped, and a newer format byte is an error, never an absent record.
//!
//! | bytes | what |
//! |---|---|
//! | 0 | format, an ASCII digit |
//! | 1..17 | owner |
//! | 17..25 | token, big endian |
//! | 25..33 | revision, big endian |
//! | 33..49 | the last write |
//! | 49.. | everything else |

use std::ops::Range;

use rmp_serde::config::BytesMode;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::operation::{Event, Fence, Operation, OwnerId, Receipt, StoredRequest, WriteId};
use crate::store::StoreError;

/// The first byte of everything this version writes.
pub const FORMAT: u8 = b'1';
/// Where a record holds what a write must expect; see [`expected`]. For `string.sub` in Lua: 2 to 33.
pub const FENCE: Range<usize> = 1..33;
/// Where a record holds the identifier of its last write. For `string.sub` in Lua: 34 to 49.
pub const WRITE: Range<usize> = 33..49;

/// The stored form of an operation.
///
/// # Errors
/// None in practice; MessagePack has a form for all of it.
pub fn encode(operation: &Operation) -> Result<Vec<u8>, StoreError> {
    let mut record = vec![FORMAT];
    record.extend(expected(&operation.fence));
    record.extend(operation.fence.write.0);
    append(record, operation)
}

/// Reads a record back.
///
/// # Errors
/// A newer version wrote it, or it is damaged.
pub fn decode(record: &[u8]) -> Result<Operation, StoreError> {
    let fields = after_format(record)?;
    let (fence, fields) = split_fence(fields).ok_or_else(|| corrupt(Truncated))?;
    let operation: Operation = rmp_serde::from_slice(fields).map_err(corrupt)?;
    Ok(Operation { fence, ..operation })
}

/// Owner, token and revision as a record holds them at [`FENCE`].
pub fn expected(fence: &Fence) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[..16].copy_from_slice(&fence.owner.0);
    bytes[16..24].copy_from_slice(&fence.token.to_be_bytes());
    bytes[24..].copy_from_slice(&fence.revision.to_be_bytes());
    bytes
}

/// What is stored beside a record, under the same format byte.
pub trait Part: Serialize + DeserializeOwned {}

impl Part for Receipt {}
impl Part for StoredRequest {}
impl Part for Event {}

/// The stored form of a part. Bodies and header values stay raw bytes.
///
/// # Errors
/// None in practice; MessagePack has a form for all of it.
pub fn encode_part(part: &impl Part) -> Result<Vec<u8>, StoreError> {
    append(vec![FORMAT], part)
}

/// Reads a part back.
///
/// # Errors
/// A newer version wrote it, or it is damaged.
pub fn decode_part<T: Part>(bytes: &[u8]) -> Result<T, StoreError> {
    rmp_serde::from_slice(after_format(bytes)?).map_err(corrupt)
}

fn append(mut bytes: Vec<u8>, fields: &impl Serialize) -> Result<Vec<u8>, StoreError> {
    let mut serializer = rmp_serde::Serializer::new(&mut bytes).with_struct_map().with_bytes(BytesMode::ForceAll);
    fields.serialize(&mut serializer).map_err(|error| StoreError::Unencodable(error.into()))?;
    Ok(bytes)
}

fn after_format(bytes: &[u8]) -> Result<&[u8], StoreError> {
    match bytes.split_first() {
        Some((&FORMAT, rest)) => Ok(rest),
        Some((&format, _)) if format > FORMAT => Err(StoreError::RecordTooNew(format.saturating_sub(b'0'))),
        Some(_) => Err(corrupt(NoFormat)),
        None => Err(corrupt(Truncated)),
    }
}

fn split_fence(fields: &[u8]) -> Option<(Fence, &[u8])> {
    let (owner, rest) = fields.split_first_chunk()?;
    let (token, rest) = rest.split_first_chunk()?;
    let (revision, rest) = rest.split_first_chunk()?;
    let (write, rest) = rest.split_first_chunk()?;
    let fence = Fence {
        owner: OwnerId(*owner),
        token: u64::from_be_bytes(*token),
        revision: u64::from_be_bytes(*revision),
        write: WriteId(*write),
    };
    Some((fence, rest))
}

fn corrupt(error: impl std::error::Error + Send + Sync + 'static) -> StoreError {
    StoreError::Corrupt(Box::new(error))
}

#[derive(Debug, thiserror::Error)]
#[error("it ends before its header does")]
struct Truncated;

#[derive(Debug, thiserror::Error)]
#[error("it does not begin with the digit of a format")]
struct NoFormat;

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::{HeaderMap, HeaderName, HeaderValue};

    use super::*;
    use crate::clock::Timestamp;
    use crate::operation::{
        Alike, Cause, EventKind, Fingerprint, Identity, Kept, KeySource, Lease, OperationId, Scope, Sender, Settled,
        State, StateName,
    };

    /// What version 1 wrote. It never changes: records of it may be in a store for as long as tombstones live.
    const RECORD_1: &str = include_str!("../../tests/vectors/record-1.hex");

    #[test]
    fn a_record_of_format_1_is_read_forever() {
        assert_eq!(decode(&from_hex(RECORD_1)).unwrap(), settled_operation());
    }

    #[test]
    fn every_state_is_read_back() {
        for state in states() {
            let operation = Operation { state, ..settled_operation() };
            assert_eq!(decode(&encode(&operation).unwrap()).unwrap(), operation);
        }
    }

    #[test]
    fn the_fence_is_where_a_script_looks_for_it() {
        let operation = settled_operation();
        let record = encode(&operation).unwrap();
        assert_eq!(record[FENCE], expected(&operation.fence));
        assert_eq!(record[WRITE], operation.fence.write.0);
    }

    #[test]
    fn fields_of_a_newer_version_are_skipped() {
        let request = StoredRequest {
            method: "POST".into(),
            target: "/".into(),
            headers: HeaderMap::from_iter([(
                HeaderName::from_static("x-odd"),
                HeaderValue::from_bytes(b"\xff").unwrap(),
            )]),
            body: Bytes::from_static(b"\x00\xff"),
            had_credential: true,
        };
        let mut bytes = encode_part(&request).unwrap();
        assert_eq!(bytes[1], 0x85, "a map of five");
        bytes[1] = 0x86;
        bytes.extend(b"\xa5added\x92\x01\xa1x");
        assert_eq!(decode_part::<StoredRequest>(&bytes).unwrap(), request);
    }

    #[test]
    fn parts_are_read_back_and_bodies_are_stored_raw() {
        let body = Bytes::from((0..=255).collect::<Vec<u8>>());
        let receipt = Receipt {
            status: 201,
            headers: HeaderMap::from_iter([(HeaderName::from_static("a"), HeaderValue::from_static("b"))]),
            body: body.clone(),
        };
        let bytes = encode_part(&receipt).unwrap();
        assert!(bytes.windows(body.len()).any(|window| window == body));
        assert_eq!(decode_part::<Receipt>(&bytes).unwrap(), receipt);
        assert_eq!(decode_part::<Event>(&encode_part(&event()).unwrap()).unwrap(), event());
    }

    #[test]
    fn a_word_that_a_newer_version_added_is_read_as_other() {
        let bytes = append(Vec::new(), &"breaker_opened").unwrap();
        assert_eq!(rmp_serde::from_slice::<Cause>(&bytes).unwrap(), Cause::Other);
        assert_eq!(rmp_serde::from_slice::<EventKind>(&bytes).unwrap(), EventKind::Other);
    }

    #[test]
    fn a_newer_format_is_not_an_absent_record() {
        let mut record = encode(&settled_operation()).unwrap();
        record[0] = b'2';
        assert!(matches!(decode(&record), Err(StoreError::RecordTooNew(2))));
        assert!(matches!(decode_part::<Event>(&record), Err(StoreError::RecordTooNew(2))));
    }

    #[test]
    fn damage_is_an_error_wherever_it_is() {
        let record = encode(&settled_operation()).unwrap();
        for length in 0..record.len() {
            assert!(matches!(decode(&record[..length]), Err(StoreError::Corrupt(_))), "{length}");
        }
        assert!(matches!(decode(b"\x00"), Err(StoreError::Corrupt(_))));
    }

    fn settled_operation() -> Operation {
        Operation {
            id: OperationId::of(&[7; 32], "payments", "k-1", None),
            identity: Identity {
                scope: Scope::named("token", "support-bot"),
                route: "payments".into(),
                key: "k-1".into(),
                upstream_key: Some("9f".into()),
                source: KeySource::Derived,
                fingerprint: Fingerprint { version: 1, digest: [0xf1; 32] },
                session: Some("s\u{e9}ance".into()),
                step: Some("3.1".into()),
                alike: Some(Alike { digest: [0xa1; 32], until: Some(Timestamp(1_700_000_600_000)) }),
                rules: *b"rules-01",
            },
            state: State::Succeeded { settled: settled() },
            fence: Fence { owner: OwnerId([1; 16]), token: 2, revision: 0x0102, write: WriteId([3; 16]) },
            attempts: 3,
            attempts_before: 1,
            may_have_run: true,
            first_sent_at: Some(Timestamp(1_700_000_000_010)),
            attempt_ended_at: Some(Timestamp(1_700_000_000_500)),
            sender: Some(Sender { owner: OwnerId([1; 16]), attempt: 3 }),
            deadline: Timestamp(1_700_000_120_000),
            created_at: Timestamp(1_700_000_000_000),
            changed_at: Timestamp(1_700_000_000_500),
            expires_at: Some(Timestamp(1_702_592_000_500)),
            events: 0,
            late_answers: 0,
        }
    }

    fn settled() -> Settled {
        Settled {
            status: 201,
            length: 1 << 33,
            digest: [0xd1; 32],
            kept: Kept::Whole,
            receipt_until: Timestamp(1_700_086_400_500),
            after_doubt: true,
        }
    }

    fn states() -> Vec<State> {
        let lease = Lease { until: Timestamp(5) };
        let cause = Cause::Status(503);
        vec![
            State::Claimed { lease },
            State::AwaitingApproval,
            State::Sent { lease },
            State::Waiting { not_before: Timestamp(4), lease: Some(lease) },
            State::Waiting { not_before: Timestamp(4), lease: None },
            State::Succeeded { settled: settled() },
            State::Failed { settled: Settled { kept: Kept::TooLarge, ..settled() } },
            State::NotExecuted { cause: Cause::Connect },
            State::Unknown { cause, since: Timestamp(6) },
            State::Rejected,
            State::Abandoned,
            State::Compensating { settled: settled() },
            State::Compensated { settled: Settled { kept: Kept::Cut, ..settled() } },
        ]
    }

    fn event() -> Event {
        Event {
            revision: 2,
            at: Timestamp(9),
            kind: EventKind::LateAnswer,
            from: Some(StateName::Unknown),
            to: Some(StateName::Succeeded),
            attempts: 1,
            token: 1,
            owner: OwnerId([9; 16]),
            cause: None,
            status: Some(200),
        }
    }

    fn from_hex(text: &str) -> Vec<u8> {
        let digits: String = text.split_whitespace().collect();
        (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
    }
}
