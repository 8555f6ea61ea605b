use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::*;
use crate::clock::Timestamp;
use crate::entropy::Entropy;
use crate::operation::meaning::Meaning;
use crate::operation::{
    Alike, Cause, EventKind, Fingerprint, Identity, Kept, KeySource, Lease, OperationId, Scope, Sender, Settled, State,
    StateName,
};
use crate::sealing_key::SealingKey;

/// What the first version wrote, without checksums. It never changes: it may be in a store for as long as tombstones
/// live.
const RECORD_1: &str = include_str!("../../../tests/vectors/record-1.hex");
const RECEIPT_1: &str = include_str!("../../../tests/vectors/receipt-1.hex");
const REQUEST_1: &str = include_str!("../../../tests/vectors/request-1.hex");
const EVENT_1: &str = include_str!("../../../tests/vectors/event-1.hex");

#[test]
fn what_the_first_version_wrote_is_read_forever() {
    assert_eq!(decode(&from_hex(RECORD_1)).unwrap(), settled_operation());
    assert_eq!(decode_part::<Receipt>(&PLAIN, ID, &from_hex(RECEIPT_1)).unwrap(), receipt());
    assert_eq!(decode_part::<StoredRequest>(&PLAIN, ID, &from_hex(REQUEST_1)).unwrap(), request());
    assert_eq!(decode_part::<Event>(&PLAIN, ID, &from_hex(EVENT_1)).unwrap(), event());
}

/// How the first version reads: one byte of format, MessagePack, and no look at what stands behind it.
#[test]
fn the_first_version_reads_what_is_written_now() {
    for state in states() {
        let operation = Operation { state, ..settled_operation() };
        let record = encode(&operation).unwrap();
        assert_eq!(record[0], b'1');
        let read: Operation = rmp_serde::from_slice(&record[49..]).unwrap();
        assert_eq!(Operation { fence: operation.fence, ..read }, operation);
    }
    fn read_part<T: Part + PartialEq + std::fmt::Debug>(part: &T) {
        let bytes = encode_part(&PLAIN, ID, part).unwrap();
        assert_eq!(bytes[0], b'1');
        assert_eq!(rmp_serde::from_slice::<T>(&bytes[1..]).unwrap(), *part);
    }
    read_part(&receipt());
    read_part(&request());
    read_part(&event());
}

#[test]
fn a_checksum_is_all_that_was_added() {
    let receipt = encode_part(&PLAIN, ID, &receipt()).unwrap();
    let old = from_hex(RECEIPT_1);
    assert_eq!((&receipt[..old.len()], receipt.len()), (old.as_slice(), old.len() + 8));
}

#[test]
fn every_state_is_read_back() {
    for state in states() {
        let operation = Operation { state, destination: Some(*b"place-01"), ..settled_operation() };
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
    let mut bytes = vec![FORMAT];
    append(&mut bytes, &request()).unwrap();
    assert_eq!(bytes[1], 0x85, "a map of five");
    bytes[1] = 0x86;
    bytes.extend(b"\xa5added\x92\x01\xa1x");
    checksum::append(&mut bytes, label::<StoredRequest>(ID));
    assert_eq!(decode_part::<StoredRequest>(&PLAIN, ID, &bytes).unwrap(), request());
}

#[test]
fn parts_are_read_back_and_bodies_are_stored_raw() {
    let body = Bytes::from((0..=255).collect::<Vec<u8>>());
    let receipt = Receipt { body: body.clone(), ..receipt() };
    let bytes = encode_part(&PLAIN, ID, &receipt).unwrap();
    assert!(bytes.windows(body.len()).any(|window| window == body));
    assert_eq!(decode_part::<Receipt>(&PLAIN, ID, &bytes).unwrap(), receipt);
    assert_eq!(decode_part::<Event>(&PLAIN, ID, &encode_part(&PLAIN, ID, &event()).unwrap()).unwrap(), event());
}

#[test]
fn a_word_that_a_newer_version_added_is_read_as_other() {
    let mut bytes = Vec::new();
    append(&mut bytes, &"breaker_opened").unwrap();
    assert_eq!(rmp_serde::from_slice::<Cause>(&bytes).unwrap(), Cause::Other);
    assert_eq!(rmp_serde::from_slice::<EventKind>(&bytes).unwrap(), EventKind::Other);
}

/// A version without rules in its causes reads a word that it does not know, and no damage.
#[test]
fn what_a_rule_made_of_an_answer_is_one_word() {
    for meaning in Meaning::ALL {
        let cause = Cause::Ruled { status: 503, meaning };
        let mut bytes = Vec::new();
        append(&mut bytes, &cause).unwrap();
        assert_eq!(rmp_serde::from_slice::<String>(&bytes).unwrap(), cause.word());
        assert_eq!(rmp_serde::from_slice::<Cause>(&bytes).unwrap(), cause);
    }
    assert_eq!(Cause::Ruled { status: 200, meaning: Meaning::NotExecuted }.word(), "ruled_not_executed_200");
    for strange in ["ruled_", "ruled_unknown_", "ruled_unknown_70000", "ruled_never_200"] {
        let mut bytes = Vec::new();
        append(&mut bytes, &strange).unwrap();
        assert_eq!(rmp_serde::from_slice::<Cause>(&bytes).unwrap(), Cause::Other, "{strange}");
    }
}

#[test]
fn a_newer_format_is_neither_absent_nor_damaged() {
    for format in [*b"2", *b"9"] {
        let mut bytes = [&format[..], b"whatever is in it"].concat();
        assert_eq!(decode(&bytes).unwrap_err(), Unreadable::TooNew(format[0] - b'0'));
        checksum::append(&mut bytes, label::<Event>(ID));
        assert_eq!(decode_part::<Event>(&PLAIN, ID, &bytes).unwrap_err(), Unreadable::TooNew(format[0] - b'0'));
    }
}

#[test]
fn what_is_cut_short_is_damaged() {
    let record = encode(&settled_operation()).unwrap();
    let without_checksum = record.len() - 8;
    for length in (0..record.len()).filter(|length| *length != without_checksum) {
        assert_damaged(decode(&record[..length]), length);
    }
    assert_eq!(decode(&record[..without_checksum]).unwrap(), settled_operation(), "nothing of it is lost");
}

#[test]
fn damage_of_any_byte_is_seen() {
    let record = encode(&settled_operation()).unwrap();
    for_each_flip(&record, |at, bytes| assert_damaged(decode(bytes), at));
    let part = encode_part(&PLAIN, ID, &receipt()).unwrap();
    for_each_flip(&part, |at, bytes| assert_damaged(decode_part::<Receipt>(&PLAIN, ID, bytes), at));
    let part = encode_part(&PLAIN, ID, &request()).unwrap();
    for_each_flip(&part, |at, bytes| assert_damaged(decode_part::<StoredRequest>(&PLAIN, ID, bytes), at));
    let part = encode_part(&PLAIN, ID, &event()).unwrap();
    for_each_flip(&part, |at, bytes| assert_damaged(decode_part::<Event>(&PLAIN, ID, bytes), at));
}

/// Without a checksum damage may go unseen, but it never makes a panic, and nothing may stand behind the content.
#[test]
fn damage_of_what_the_first_version_wrote_is_seen_where_it_shows() {
    let mut seen = 0;
    for_each_flip(&from_hex(RECEIPT_1), |_, bytes| {
        seen += usize::from(decode_part::<Receipt>(&PLAIN, ID, bytes).is_err())
    });
    for_each_flip(&from_hex(RECORD_1), |_, bytes| seen += usize::from(decode(bytes).is_err()));
    assert!(seen > 10_000, "{seen}");
    let mut longer = from_hex(RECEIPT_1);
    longer.push(0);
    assert_damaged(decode_part::<Receipt>(&PLAIN, ID, &longer), longer.len());
}

#[test]
fn a_thing_in_the_place_of_another_is_damaged() {
    let receipt = encode_part(&PLAIN, ID, &receipt()).unwrap();
    let other = OperationId::from_bytes([8; 20]);
    assert_eq!(decode_part::<Receipt>(&PLAIN, other, &receipt).unwrap_err(), Damage::Checksum.into());
    assert_eq!(decode_part::<StoredRequest>(&PLAIN, ID, &receipt).unwrap_err(), Damage::Checksum.into());
    let record = encode(&settled_operation()).unwrap();
    assert_eq!(decode_of(other, &record).unwrap_err(), Damage::Misplaced.into());
    assert_eq!(decode_of(settled_operation().id, &record).unwrap(), settled_operation());
}

/// Every byte, each with every other value.
fn for_each_flip(bytes: &[u8], mut look: impl FnMut(usize, &[u8])) {
    let mut damaged = bytes.to_vec();
    for at in 0..bytes.len() {
        for flip in 1..=u8::MAX {
            damaged[at] = bytes[at] ^ flip;
            look(at, &damaged);
        }
        damaged[at] = bytes[at];
    }
}

#[track_caller]
fn assert_damaged<T: std::fmt::Debug>(read: Result<T, Unreadable>, at: usize) {
    assert!(matches!(read, Err(Unreadable::Damaged(_))), "{at}: {read:?}");
}

const ID: OperationId = OperationId::from_bytes([7; 20]);

fn receipt() -> Receipt {
    let one = HeaderName::from_static("x-one");
    let mut headers = HeaderMap::from_iter([(one.clone(), HeaderValue::from_bytes(b"\x80").unwrap())]);
    headers.append(one, HeaderValue::from_static(""));
    Receipt { status: 201, headers: headers.into(), body: Bytes::from_static(b"\x00done\xff") }
}

fn request() -> StoredRequest {
    let odd = HeaderValue::from_bytes(b"\xff").unwrap();
    StoredRequest {
        method: "POST".into(),
        target: "/charges?expand=a%20b".into(),
        headers: HeaderMap::from_iter([(HeaderName::from_static("x-odd"), odd)]).into(),
        body: Bytes::from_static(b"\x00\xff"),
        had_credential: true,
    }
}

fn settled_operation() -> Operation {
    Operation {
        id: OperationId::of(&[7; 32], "payments", "k-1", None),
        identity: Arc::new(Identity {
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
        }),
        state: State::Succeeded { settled: settled() },
        fence: Fence { owner: OwnerId([1; 16]), token: 2, revision: 0x0102, write: WriteId([3; 16]) },
        attempts: 3,
        attempts_before: 1,
        may_have_run: true,
        first_sent_at: Some(Timestamp(1_700_000_000_010)),
        attempt_ended_at: Some(Timestamp(1_700_000_000_500)),
        sender: Some(Sender { owner: OwnerId([1; 16]), attempt: 3 }),
        destination: None,
        deadline: Timestamp(1_700_000_120_000),
        created_at: Timestamp(1_700_000_000_000),
        changed_at: Timestamp(1_700_000_000_500),
        expires_at: Some(Timestamp(1_702_592_000_500)),
        events: 0,
        late_answers: 0,
        accepted: false,
        dead: None,
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
        State::NotExecuted { cause: Cause::Ruled { status: 503, meaning: Meaning::NotExecuted } },
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

#[test]
fn what_holds_bodies_is_sealed_and_nothing_else() {
    let sealer = sealer(&[1], "shop");
    let receipt = Receipt { body: Bytes::from_static(b"of the body no byte"), ..receipt() };
    let bytes = encode_part(&sealer, ID, &receipt).unwrap();
    assert_eq!(bytes[0], b'2', "a version that knows no keys says that it is too new");
    assert!(!bytes.windows(4).any(|window| window == b"body"));
    assert_eq!(decode_part::<Receipt>(&sealer, ID, &bytes).unwrap(), receipt);
    let again = encode_part(&sealer, ID, &receipt).unwrap();
    assert_ne!(bytes[9..33], again[9..33], "no nonce is used twice");
    let bytes = encode_part(&sealer, ID, &request()).unwrap();
    assert_eq!((bytes[0], decode_part::<StoredRequest>(&sealer, ID, &bytes).unwrap()), (b'2', request()));
    assert_eq!(encode_part(&sealer, ID, &event()).unwrap(), encode_part(&PLAIN, ID, &event()).unwrap());
}

#[test]
fn what_was_written_plainly_is_read_with_a_key_too() {
    let sealer = sealer(&[1], "shop");
    assert_eq!(decode_part::<Receipt>(&sealer, ID, &from_hex(RECEIPT_1)).unwrap(), receipt());
    let plain = encode_part(&PLAIN, ID, &receipt()).unwrap();
    assert_eq!(decode_part::<Receipt>(&sealer, ID, &plain).unwrap(), receipt());
}

#[test]
fn the_first_key_seals_and_all_open() {
    let old = encode_part(&sealer(&[1], "shop"), ID, &receipt()).unwrap();
    let rotated = sealer(&[2, 1], "shop");
    assert_eq!(decode_part::<Receipt>(&rotated, ID, &old).unwrap(), receipt());
    let new = encode_part(&rotated, ID, &receipt()).unwrap();
    assert_eq!(decode_part::<Receipt>(&sealer(&[2], "shop"), ID, &new).unwrap(), receipt());
    let gone = decode_part::<Receipt>(&sealer(&[2], "shop"), ID, &old).unwrap_err();
    assert_eq!(gone, Damage::KeyGone(key(1).id()).into());
    assert_eq!(decode_part::<Receipt>(&PLAIN, ID, &old).unwrap_err(), Unreadable::NoKey(key(1).id()));
}

/// With checksums that are right: somebody who can write to the store can make those.
#[test]
fn what_was_sealed_opens_in_its_own_place_only() {
    let ours = sealer(&[1], "shop");
    let sealed = encode_part(&ours, ID, &receipt()).unwrap();
    let moved = |label: Label| {
        let mut bytes = sealed[..sealed.len() - 8].to_vec();
        checksum::append(&mut bytes, label);
        bytes
    };
    let other = OperationId::from_bytes([8; 20]);
    let seal = Unreadable::from(Damage::Seal);
    assert_eq!(decode_part::<Receipt>(&ours, other, &moved(label::<Receipt>(other))).unwrap_err(), seal);
    assert_eq!(decode_part::<StoredRequest>(&ours, ID, &moved(label::<StoredRequest>(ID))).unwrap_err(), seal);
    assert_eq!(decode_part::<Receipt>(&sealer(&[1], "other shop"), ID, &sealed).unwrap_err(), seal);
    for at in 9..sealed.len() - 8 {
        let mut bytes = sealed[..sealed.len() - 8].to_vec();
        bytes[at] ^= 1;
        checksum::append(&mut bytes, label::<Receipt>(ID));
        assert_eq!(decode_part::<Receipt>(&ours, ID, &bytes).unwrap_err(), seal, "{at}");
    }
}

#[test]
fn damage_of_any_byte_of_what_is_sealed_is_seen() {
    let sealer = sealer(&[1], "shop");
    let sealed = encode_part(&sealer, ID, &receipt()).unwrap();
    for_each_flip(&sealed, |at, bytes| assert_damaged(decode_part::<Receipt>(&sealer, ID, bytes), at));
    for length in 0..sealed.len() - 8 {
        assert_damaged(decode_part::<Receipt>(&sealer, ID, &sealed[..length]), length);
    }
}

fn key(first: u8) -> SealingKey {
    SealingKey::new(std::array::from_fn(|index| first + index as u8))
}

fn sealer(keys: &[u8], namespace: &str) -> Sealer {
    let keys: Vec<_> = keys.iter().map(|first| key(*first)).collect();
    Sealer::new(&keys, namespace, Entropy::seeded(7))
}

const PLAIN: Sealer = Sealer::none();
