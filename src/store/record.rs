//! The stored form of an operation and of what is kept beside it, one for all stores.
//!
//! A record is a fixed header, then MessagePack with named fields, then a checksum of both. The header lets a store
//! compare the fence without decoding anything, in a script too. The names of serde are the format: version N writes what
//! N-1 reads, fields that a newer version added are skipped, and a newer format byte is an error, never an absent record.
//!
//! | bytes | what |
//! |---|---|
//! | 0 | format, an ASCII digit |
//! | 1..17 | owner |
//! | 17..25 | token, big endian |
//! | 25..33 | revision, big endian |
//! | 33..49 | the last write |
//! | 49.. | everything else |
//! | last 8 | a mark and a checksum; missing in what a version without checksums wrote |

use std::ops::Range;

use http::HeaderMap;
use rmp_serde::config::BytesMode;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::operation::{Event, Fence, Operation, OperationId, OwnerId, Receipt, StoredRequest, WriteId};
use crate::store::StoreError;
use crate::store::checksum::{self, Content, Kind, Label};
use crate::store::seal::{SEALED, Sealer};
use crate::store::unreadable::{Damage, Unreadable};

/// The first byte of everything that is not sealed.
pub const FORMAT: u8 = b'1';
/// Where a record holds what a write must expect; see [`expected`]. For `string.sub` in Lua: 2 to 33.
pub const FENCE: Range<usize> = 1..33;
/// Where a record holds the identifier of its last write. For `string.sub` in Lua: 34 to 49.
pub const WRITE: Range<usize> = 33..49;

/// Bytes of most records: room for all of it at once, where a buffer would grow ten times.
const ABOUT: usize = 768;
/// The same of a part without its headers and its body.
const FIELDS: usize = 256;

const RECORD: Label = Label { kind: Kind::Record, operation: None };

/// The stored form of an operation.
///
/// # Errors
/// None in practice; MessagePack has a form for all of it.
pub fn encode(operation: &Operation) -> Result<Vec<u8>, StoreError> {
    let mut record = Vec::with_capacity(ABOUT);
    record.push(FORMAT);
    record.extend(expected(&operation.fence));
    record.extend(operation.fence.write.0);
    append(&mut record, operation)?;
    checksum::append(&mut record, RECORD);
    Ok(record)
}

/// Reads a record back.
///
/// # Errors
/// A newer version wrote it, or it is damaged.
pub fn decode(record: &[u8]) -> Result<Operation, Unreadable> {
    let content = checksum::verify(record, RECORD)?;
    let (fence, fields) = split_fence(after_format(content.bytes())?).ok_or(Damage::Truncated)?;
    let operation: Operation = fields_of(content.with(fields))?;
    Ok(Operation { fence, ..operation })
}

/// Reads the record of `id` back.
///
/// # Errors
/// As [`decode`], or it is another operation's.
pub fn decode_of(id: OperationId, record: &[u8]) -> Result<Operation, Unreadable> {
    let operation = decode(record)?;
    if operation.id == id { Ok(operation) } else { Err(Damage::Misplaced.into()) }
}

/// The fence of a record, whatever the rest of it says: its owner may replace what has been damaged. `None` if the
/// header is not one of this version.
pub fn fence(record: &[u8]) -> Option<Fence> {
    split_fence(after_format(record).ok()?).map(|(fence, _)| fence)
}

/// Owner, token and revision as a record holds them at [`FENCE`].
pub fn expected(fence: &Fence) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[..16].copy_from_slice(&fence.owner.0);
    bytes[16..24].copy_from_slice(&fence.token.to_be_bytes());
    bytes[24..].copy_from_slice(&fence.revision.to_be_bytes());
    bytes
}

/// What is stored beside a record, under the same format byte and with the same checksum.
pub trait Part: Serialize + DeserializeOwned {
    const KIND: Kind;

    /// Bytes of its stored form, mostly.
    fn about(&self) -> usize;
}

impl Part for Receipt {
    const KIND: Kind = Kind::Receipt;

    fn about(&self) -> usize {
        FIELDS + lines(&self.headers) + self.body.len()
    }
}

impl Part for StoredRequest {
    const KIND: Kind = Kind::Request;

    fn about(&self) -> usize {
        FIELDS + lines(&self.headers) + self.target.len() + self.body.len()
    }
}

impl Part for Event {
    const KIND: Kind = Kind::Event;

    fn about(&self) -> usize {
        FIELDS
    }
}

fn lines(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 8).sum()
}

/// The stored form of a part of operation `id`, sealed if it holds bodies and there is a key. Otherwise bodies and header
/// values stay raw bytes.
///
/// # Errors
/// None in practice; MessagePack has a form for all of it.
pub fn encode_part<T: Part>(sealer: &Sealer, id: OperationId, part: &T) -> Result<Vec<u8>, StoreError> {
    let label = label::<T>(id);
    let mut bytes = match sealer.keyring().filter(|_| T::KIND.holds_bodies()) {
        Some(keyring) => keyring.seal(label, part.about(), |bytes| append(bytes, part))?,
        None => {
            let mut bytes = Vec::with_capacity(part.about());
            bytes.push(FORMAT);
            append(&mut bytes, part)?;
            bytes
        }
    };
    checksum::append(&mut bytes, label);
    Ok(bytes)
}

/// Reads a part of operation `id` back, sealed or not.
///
/// # Errors
/// A newer version wrote it, it is damaged, or its key is not here.
pub fn decode_part<T: Part>(sealer: &Sealer, id: OperationId, bytes: &[u8]) -> Result<T, Unreadable> {
    let label = label::<T>(id);
    let content = checksum::verify(bytes, label)?;
    match content.bytes().split_first() {
        Some((&SEALED, sealed)) if T::KIND.holds_bodies() => fields_of(Content::Verified(&sealer.open(label, sealed)?)),
        _ => fields_of(content.with(after_format(content.bytes())?)),
    }
}

const fn label<T: Part>(id: OperationId) -> Label {
    Label { kind: T::KIND, operation: Some(id) }
}

fn append(bytes: &mut Vec<u8>, fields: &impl Serialize) -> Result<(), StoreError> {
    let mut serializer = rmp_serde::Serializer::new(bytes).with_struct_map().with_bytes(BytesMode::ForceAll);
    fields.serialize(&mut serializer).map_err(|error| StoreError::Unencodable(error.into()))
}

fn after_format(bytes: &[u8]) -> Result<&[u8], Unreadable> {
    match bytes.split_first() {
        Some((&FORMAT, rest)) => Ok(rest),
        Some((&format, _)) if format > FORMAT => Err(Unreadable::TooNew(format.saturating_sub(b'0'))),
        Some(_) => Err(Damage::NoFormat.into()),
        None => Err(Damage::Truncated.into()),
    }
}

fn fields_of<T: DeserializeOwned>(content: Content<'_>) -> Result<T, Unreadable> {
    let read = match content {
        Content::Verified(fields) => rmp_serde::from_slice(fields).ok(),
        Content::Unverified(mut fields) => {
            let read = rmp_serde::from_read(&mut fields).ok();
            read.filter(|_| fields.is_empty())
        }
    };
    read.ok_or(Damage::Content.into())
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

#[cfg(test)]
mod tests;
