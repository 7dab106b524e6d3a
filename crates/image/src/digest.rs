//! What content is known by: its SHA-256.
//!
//! Nothing of an image is believed before its digest is checked. Other algorithms are refused: no
//! registry uses them.

use std::fmt;
use std::io::{self, Read};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

const ALGORITHM: &str = "sha256";

/// The SHA-256 of some content, written `sha256:` and 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest([u8; 32]);

/// A text that is no digest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a digest: write sha256: and 64 lower-case hexadecimal digits")]
pub struct DigestError {
    /// As written.
    pub text: String,
}

impl Digest {
    /// Of some bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    pub(crate) fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The 64 digits, without the algorithm's name.
    pub(crate) fn hex(&self) -> String {
        use fmt::Write;
        let mut text = String::with_capacity(64);
        for byte in self.0 {
            write!(text, "{byte:02x}").expect("a string takes whatever is written");
        }
        text
    }

    /// From its 64 digits alone.
    pub(crate) fn from_hex(hex: &str) -> Option<Self> {
        let digit = |letter: u8| match letter {
            b'0'..=b'9' => Some(letter - b'0'),
            b'a'..=b'f' => Some(letter - b'a' + 10),
            _ => None,
        };
        let mut bytes = [0; 32];
        if hex.len() != 64 {
            return None;
        }
        for (byte, pair) in bytes.iter_mut().zip(hex.as_bytes().chunks_exact(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(Self(bytes))
    }
}

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        let parsed = text
            .split_once(':')
            .filter(|(algorithm, _)| *algorithm == ALGORITHM)
            .and_then(|(_, hex)| Self::from_hex(hex));
        parsed.ok_or_else(|| DigestError { text: text.to_owned() })
    }
}

impl TryFrom<String> for Digest {
    type Error = DigestError;

    fn try_from(text: String) -> Result<Self, DigestError> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{ALGORITHM}:{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// A reader that knows the digest of all that was read through it.
pub(crate) struct Hashing<R> {
    inner: R,
    hasher: Sha256,
}

impl<R> Hashing<R> {
    pub(crate) fn new(inner: R) -> Self {
        Self { inner, hasher: Sha256::new() }
    }

    /// Of what has been read so far.
    pub(crate) fn digest(&self) -> Digest {
        Digest(self.hasher.clone().finalize().into())
    }
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.hasher.update(&buffer[..count]);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sha256_in_lower_case_is_a_digest() {
        let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Digest::of(b"").to_string(), empty);
        assert_eq!(empty.parse(), Ok(Digest::of(b"")));
        for wrong in ["", "sha256:", "sha512:00", &empty[7..], &empty.to_uppercase()] {
            assert!(wrong.parse::<Digest>().is_err(), "{wrong}");
        }
        assert!(format!("{}g", &empty[..70]).parse::<Digest>().is_err());
    }
}
