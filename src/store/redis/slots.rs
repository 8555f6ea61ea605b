//! Which of a cluster's slots a key is in, and who serves them.

use std::ops::RangeInclusive;

use redis::Value;

use crate::redis_url::Host;

/// What a cluster divides its keys into.
pub(super) const SLOTS: u16 = 16384;

/// The slot of a key: of what stands between its first braces, if anything does.
pub(super) fn slot_of(key: &[u8]) -> u16 {
    crc16(tag_of(key)) % SLOTS
}

fn tag_of(key: &[u8]) -> &[u8] {
    let Some(open) = key.iter().position(|byte| *byte == b'{') else { return key };
    let (_, rest) = key.split_at(open + 1);
    match rest.iter().position(|byte| *byte == b'}') {
        Some(length) if length > 0 => rest.split_at(length).0,
        _ => key,
    }
}

/// The variant that is called XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |sum, byte| {
        let sum = sum ^ (u16::from(*byte) << 8);
        (0..8).fold(sum, |sum, _| if sum & 0x8000 == 0 { sum << 1 } else { (sum << 1) ^ 0x1021 })
    })
}

/// A range of slots and the master that serves it, out of the answer to `CLUSTER SLOTS`. A node that does not know its
/// own address means the one under which it was asked.
pub(super) fn ranges(answer: &Value, asked: &Host) -> Option<Vec<(RangeInclusive<u16>, Host)>> {
    let Value::Array(ranges) = answer else { return None };
    ranges.iter().map(|range| range_of(range, asked)).collect()
}

fn range_of(range: &Value, asked: &Host) -> Option<(RangeInclusive<u16>, Host)> {
    let Value::Array(parts) = range else { return None };
    let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = parts.as_slice() else { return None };
    let [name, Value::Int(port), ..] = master.as_slice() else { return None };
    let name = match name {
        Value::BulkString(name) => std::str::from_utf8(name).ok()?,
        Value::SimpleString(name) => name,
        _ => "",
    };
    let name = if matches!(name, "" | "?") { asked.name.clone() } else { name.to_owned() };
    let slots = u16::try_from(*first).ok()?..=u16::try_from(*last).ok()?;
    Some((slots, Host { name, port: u16::try_from(*port).ok()? }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first is the example of the specification, the others are what `CLUSTER KEYSLOT` says.
    #[test]
    fn slots_are_those_of_the_servers() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(slot_of(b"foo"), 12182);
        assert_eq!(slot_of(b"somekey"), 11058);
        assert_eq!(slot_of(b"foo{hash_tag}"), 2515);
        assert_eq!(slot_of(b"oncegate:{foo}:r:op_1"), slot_of(b"foo"));
    }

    #[test]
    fn an_empty_tag_is_none() {
        assert_eq!(tag_of(b"a{}b{c}"), b"a{}b{c}");
        assert_eq!(tag_of(b"a{b"), b"a{b");
        assert_eq!(tag_of(b"a{{b}}"), b"{b");
    }

    #[test]
    fn a_node_without_a_name_is_the_one_that_was_asked() {
        let asked = Host { name: "10.0.0.1".to_owned(), port: 7000 };
        let node = |name: &[u8]| Value::Array(vec![Value::BulkString(name.to_vec()), Value::Int(7001), Value::Nil]);
        let range = |name| Value::Array(vec![Value::Int(0), Value::Int(9), node(name), node(b"replica")]);
        let read = ranges(&Value::Array(vec![range(b""), range(b"b")]), &asked).unwrap();
        assert_eq!(read[0], (0..=9, Host { name: "10.0.0.1".to_owned(), port: 7001 }));
        assert_eq!(read[1].1.name, "b");
        assert_eq!(ranges(&Value::Array(vec![Value::Nil]), &asked), None);
    }
}
