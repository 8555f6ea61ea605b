//! Keys under which bodies are encrypted at rest: their text, and the names by which they may be spoken of.

use std::fmt;

use sha2::{Digest, Sha256};

/// 256 bits that nobody can guess.
#[derive(Clone, PartialEq, Eq)]
pub struct SealingKey([u8; 32]);

/// The name of a key: a digest, which may be shown and stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyId(pub [u8; 8]);

/// Why a text is not a list of keys. Never the text itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyTextError {
    #[error("no key is in it; `openssl rand -hex 32` makes one")]
    Empty,
    #[error(
        "line {0} is not a key of 256 bits, as 64 hexadecimal digits or in base64; `openssl rand -hex 32` makes one"
    )]
    NotAKey(usize),
    #[error("line {0} is a key that anybody would guess; `openssl rand -hex 32` makes one")]
    Guessable(usize),
    #[error("line {0} is there twice")]
    Twice(usize),
}

impl SealingKey {
    /// A key of these bytes, which come from a source of randomness.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// One key a line, as hexadecimal digits or in base64; empty lines do not count.
    ///
    /// # Errors
    /// A line is something else, or there is none.
    pub fn parse_lines(text: &str) -> Result<Vec<Self>, KeyTextError> {
        let mut keys = Vec::new();
        for (index, line) in text.lines().map(str::trim).enumerate().filter(|(_, line)| !line.is_empty()) {
            let bytes = from_hex(line).or_else(|| from_base64(line)).ok_or(KeyTextError::NotAKey(index + 1))?;
            let key = Self(bytes);
            if bytes.iter().all(|byte| *byte == bytes[0]) {
                return Err(KeyTextError::Guessable(index + 1));
            }
            if keys.contains(&key) {
                return Err(KeyTextError::Twice(index + 1));
            }
            keys.push(key);
        }
        if keys.is_empty() { Err(KeyTextError::Empty) } else { Ok(keys) }
    }

    /// The key as a line that `parse_lines` reads. A secret.
    pub fn to_line(&self) -> String {
        hex(&self.0)
    }

    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    pub fn id(&self) -> KeyId {
        let digest: [u8; 32] = Sha256::new().chain_update(b"oncegate-key-1").chain_update(self.0).finalize().into();
        let mut id = [0; 8];
        id.copy_from_slice(&digest[..8]);
        KeyId(id)
    }
}

/// A key must not reach a log.
impl fmt::Debug for SealingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SealingKey({})", self.id())
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(line: &str) -> Option<[u8; 32]> {
    let (pairs, []) = line.as_bytes().as_chunks::<2>() else { return None };
    let byte = |pair: &[u8; 2]| {
        let [high, low] = pair.map(|digit| char::from(digit).to_digit(16));
        u8::try_from(high? << 4 | low?).ok()
    };
    let bytes: Vec<u8> = pairs.iter().map(byte).collect::<Option<_>>()?;
    bytes.try_into().ok()
}

/// Either alphabet, with or without the sign at the end.
fn from_base64(line: &str) -> Option<[u8; 32]> {
    let digits = line.strip_suffix('=').unwrap_or(line);
    let (mut bytes, mut bits, mut held) = (Vec::with_capacity(33), 0_u32, 0);
    for digit in digits.bytes() {
        bits = bits << 6 | base64_digit(digit)?;
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held & 0xff) as u8);
        }
    }
    let is_whole = held == 2 && bits & 3 == 0;
    bytes.try_into().ok().filter(|_| is_whole)
}

fn base64_digit(digit: u8) -> Option<u32> {
    let value = match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' | b'-' => 62,
        b'/' | b'_' => 63,
        _ => return None,
    };
    Some(u32::from(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEX: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
    const BASE64: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

    #[test]
    fn both_spellings_are_the_same_key() {
        let bytes = std::array::from_fn(|index| index as u8);
        for text in [HEX, BASE64, &HEX.to_uppercase(), BASE64.trim_end_matches('='), &format!("\n {HEX} \r\n\n")] {
            assert_eq!(SealingKey::parse_lines(text).unwrap(), [SealingKey::new(bytes)], "{text}");
        }
        let high = SealingKey::new(std::array::from_fn(|index| 0xf0 | index as u8));
        let url_safe = "8PHy8_T19vf4-fr7_P3-__Dx8vP09fb3-Pn6-_z9_v8";
        for text in [url_safe, &high.to_line()] {
            assert_eq!(SealingKey::parse_lines(text).unwrap(), std::slice::from_ref(&high), "{text}");
        }
    }

    #[test]
    fn what_is_no_key_is_refused_without_being_shown() {
        for (text, error) in [
            ("", KeyTextError::Empty),
            ("\n\n", KeyTextError::Empty),
            (&HEX[1..], KeyTextError::NotAKey(1)),
            (&HEX[..62], KeyTextError::NotAKey(1)),
            ("correct horse battery staple", KeyTextError::NotAKey(1)),
            (&BASE64.replace("8=", "9="), KeyTextError::NotAKey(1)),
            (&format!("{HEX}\nx"), KeyTextError::NotAKey(2)),
            (&format!("{HEX}\n\n{BASE64}"), KeyTextError::Twice(3)),
            (&"0".repeat(64), KeyTextError::Guessable(1)),
        ] {
            assert_eq!(SealingKey::parse_lines(text), Err(error), "{text}");
        }
    }

    #[test]
    fn a_key_is_spoken_of_by_its_id() {
        let keys = SealingKey::parse_lines(&format!("{HEX}\n{}", HEX.replace("1f", "20"))).unwrap();
        assert_ne!(keys[0].id(), keys[1].id());
        assert_eq!(format!("{:?}", keys[0]), format!("SealingKey({})", keys[0].id()));
        assert!(!HEX.contains(&keys[0].id().to_string()));
    }
}
