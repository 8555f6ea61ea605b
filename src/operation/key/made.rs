//! Keys that the gateway makes: their text, and what is found in it again.

use sha2::{Digest, Sha256};

use crate::operation::Scope;

const BASE64URL: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
const HEX: &[u8; 16] = b"0123456789abcdef";
/// Where the hyphens of a UUID stand.
const HYPHENS: [usize; 4] = [8, 13, 18, 23];

/// How a made key is spelled; services differ in what they take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyFormat {
    /// 64 lower-case digits.
    Hex,
    /// 43 characters without padding (RFC 4648, section 5).
    Base64Url,
    /// 36 characters: a UUID of version 8 (RFC 9562) from the first 16 bytes.
    Uuid,
}

impl KeyFormat {
    /// The text of 32 bytes. The first byte survives in every format.
    pub fn text(self, bytes: &[u8; 32]) -> String {
        match self {
            Self::Hex => hex(bytes),
            Self::Base64Url => base64url(bytes),
            Self::Uuid => uuid(bytes),
        }
    }
}

/// The key that goes upstream in place of `key` where the gateway's own credential goes along: two scopes that use
/// equal keys must not meet at the upstream.
pub fn forwarded(scope: &Scope, route: &str, key: &str, format: KeyFormat) -> String {
    let mut hash = Sha256::new();
    hash.update(b"oncegate-forwarded-1");
    hash.update(scope.digest());
    for part in [route, key] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    format.text(&hash.finalize().into())
}

/// A fresh key from `random` for a call that has none, stamped or of a window. Its first byte is `bucket`, so that the
/// record lies in the bucket of its look-alikes and is found again by the key alone.
pub fn stamped(mut random: [u8; 32], bucket: u8, format: KeyFormat) -> String {
    random[0] = bucket;
    format.text(&random)
}

/// The bucket of a stamped key, in whichever format. A client's own key may have the same shape: whoever looks a key
/// up has to try its plain name as well.
pub fn bucket_of_stamped(text: &str) -> Option<u8> {
    match text.as_bytes() {
        digits if digits.len() == 64 => digits.iter().all(is_hex).then(|| first_of_hex(digits))?,
        digits if digits.len() == 43 => first_of_base64url(digits),
        digits if digits.len() == 36 => is_uuid(digits).then(|| first_of_hex(digits))?,
        _ => None,
    }
}

/// Lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]).map(|digit| char::from(HEX[usize::from(digit)])).collect()
}

fn base64url(bytes: &[u8; 32]) -> String {
    let mut text = String::with_capacity(43);
    for group in bytes.chunks(3) {
        let bits = group.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - group.len()));
        for place in 0..=group.len() {
            text.push(char::from(BASE64URL[(bits >> (18 - 6 * place) & 63) as usize]));
        }
    }
    text
}

fn uuid(bytes: &[u8; 32]) -> String {
    let mut short = [0; 16];
    short.copy_from_slice(&bytes[..16]);
    short[6] = short[6] & 0x0f | 0x80;
    short[8] = short[8] & 0x3f | 0x80;
    let mut text = hex(&short);
    for at in HYPHENS {
        text.insert(at, '-');
    }
    text
}

fn is_hex(digit: &u8) -> bool {
    HEX.contains(digit)
}

fn is_uuid(text: &[u8]) -> bool {
    text.iter().enumerate().all(|(at, byte)| match at {
        14 => *byte == b'8',
        19 => b"89ab".contains(byte),
        at if HYPHENS.contains(&at) => *byte == b'-',
        _ => is_hex(byte),
    })
}

fn first_of_hex(digits: &[u8]) -> Option<u8> {
    u8::from_str_radix(std::str::from_utf8(digits.get(..2)?).ok()?, 16).ok()
}

/// The last of 43 digits carries two bits that no byte owns; they are zero in every text that we make.
fn first_of_base64url(digits: &[u8]) -> Option<u8> {
    let values: Vec<usize> =
        digits.iter().map(|digit| BASE64URL.iter().position(|one| one == digit)).collect::<Option<_>>()?;
    match values[..] {
        [first, second, .., last] if last & 3 == 0 => u8::try_from(first << 2 | second >> 4).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use KeyFormat::{Base64Url, Hex, Uuid};

    #[test]
    fn a_stamped_key_tells_its_bucket_in_every_format() {
        for format in [Hex, Base64Url, Uuid] {
            for bucket in 0..=255 {
                let text = stamped([0xa7; 32], bucket, format);
                assert_eq!(bucket_of_stamped(&text), Some(bucket), "{text}");
            }
        }
    }

    #[test]
    fn other_texts_have_no_bucket() {
        let good = stamped([0xff; 32], 9, Base64Url);
        for text in [
            "",
            "abc",
            &"g".repeat(64),
            &"A".repeat(64),
            "09ffffff-ffff-4fff-bfff-ffffffffffff",
            "09ffffff-ffff-8fff-ffff-ffffffffffff",
            "09ffffffxffff-8fff-bfff-ffffffffffff",
            &good.replace('_', "+"),
            &format!("{}9", &good[..42]),
        ] {
            assert_eq!(bucket_of_stamped(text), None, "{text}");
        }
    }

    #[test]
    fn equal_keys_of_two_scopes_do_not_meet_upstream() {
        let [one, other] = ["a", "b"].map(|name| forwarded(&Scope::named("token", name), "payments", "abc", Hex));
        assert_ne!(one, other);
    }

    #[test]
    fn route_and_key_do_not_run_together() {
        let scope = Scope::none();
        assert_ne!(forwarded(&scope, "ab", "c", Uuid), forwarded(&scope, "a", "bc", Uuid));
    }
}
