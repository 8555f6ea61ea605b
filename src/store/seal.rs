//! Encryption at rest of what holds bodies: receipts and requests.
//!
//! XChaCha20-Poly1305 under a random nonce, bound to what the bytes are: the format, the kind of part, the operation (its
//! id is a digest of scope, route and key) and the namespace. What was sealed for one place opens in no other.
//!
//! | bytes | what |
//! |---|---|
//! | 0 | format, the digit 2 |
//! | 1..9 | id of the key |
//! | 9..33 | nonce |
//! | 33.. | the MessagePack, encrypted, and its tag of 16 bytes |

use std::fmt;
use std::sync::Arc;

use chacha20poly1305::{AeadInOut, KeyInit, XChaCha20Poly1305};

use crate::entropy::Entropy;
use crate::sealing_key::{KeyId, SealingKey};
use crate::store::StoreError;
use crate::store::checksum::Label;
use crate::store::unreadable::{Damage, Unreadable};

/// The first byte of what is sealed.
pub(super) const SEALED: u8 = b'2';

const HEADER: usize = 1 + 8 + 24;

/// Seals under its first key and opens under all of them. Without keys it lets everything through as it is.
#[derive(Clone)]
pub struct Sealer(Option<Arc<Keyring>>);

pub(super) struct Keyring {
    seals: Key,
    /// Those that only open.
    older: Vec<Key>,
    namespace: String,
    entropy: Entropy,
}

struct Key {
    id: KeyId,
    cipher: XChaCha20Poly1305,
}

impl Sealer {
    /// Without keys.
    pub const fn none() -> Self {
        Self(None)
    }

    /// What `namespace` sealed opens in no other one.
    pub fn new(keys: &[SealingKey], namespace: &str, entropy: Entropy) -> Self {
        Self(keys.split_first().map(|(first, older)| {
            let older = older.iter().map(Key::new).collect();
            Arc::new(Keyring { seals: Key::new(first), older, namespace: namespace.to_owned(), entropy })
        }))
    }

    pub(super) fn keyring(&self) -> Option<&Keyring> {
        self.0.as_deref()
    }

    /// What was sealed for `label`; `sealed` begins behind the format.
    pub(super) fn open(&self, label: Label, sealed: &[u8]) -> Result<Vec<u8>, Unreadable> {
        let (id, rest) = sealed.split_first_chunk().ok_or(Damage::Truncated)?;
        let id = KeyId(*id);
        let keyring = self.keyring().ok_or(Unreadable::NoKey(id))?;
        let key = keyring.key(id).ok_or(Damage::KeyGone(id))?;
        let (nonce, rest) = rest.split_first_chunk::<24>().ok_or(Damage::Truncated)?;
        let (content, tag) = rest.split_last_chunk::<16>().ok_or(Damage::Truncated)?;
        let mut content = content.to_vec();
        let bound = keyring.bound_to(label);
        let opened = key.cipher.decrypt_inout_detached(nonce.into(), &bound, content.as_mut_slice().into(), tag.into());
        opened.map_err(|_| Damage::Seal)?;
        Ok(content)
    }
}

impl Keyring {
    /// Seals what `write` appends.
    pub(super) fn seal(
        &self,
        label: Label,
        write: impl FnOnce(&mut Vec<u8>) -> Result<(), StoreError>,
    ) -> Result<Vec<u8>, StoreError> {
        let nonce: [u8; 24] = self.entropy.bytes();
        let mut bytes = vec![SEALED];
        bytes.extend(self.seals.id.0);
        bytes.extend(nonce);
        write(&mut bytes)?;
        let content = bytes.get_mut(HEADER..).unwrap_or_default();
        let tag = self.seals.cipher.encrypt_inout_detached((&nonce).into(), &self.bound_to(label), content.into());
        bytes.extend(tag.map_err(|error| StoreError::Unencodable(error.to_string().into()))?);
        Ok(bytes)
    }

    fn key(&self, id: KeyId) -> Option<&Key> {
        [&self.seals].into_iter().chain(&self.older).find(|key| key.id == id)
    }

    fn bound_to(&self, label: Label) -> Vec<u8> {
        let mut bound = b"oncegate-seal-1".to_vec();
        bound.push(SEALED);
        bound.extend(label.bytes());
        bound.extend(self.namespace.as_bytes());
        bound
    }
}

impl Key {
    fn new(key: &SealingKey) -> Self {
        Self { id: key.id(), cipher: XChaCha20Poly1305::new(key.bytes().into()) }
    }
}

/// No key of it must reach a log.
impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sealer({:?})", self.keyring().map(|keyring| keyring.seals.id))
    }
}
