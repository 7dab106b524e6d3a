//! The revocations that the replicas of a cluster share, as written in ConfigMaps.
//!
//! Only the serial and the expiry of a revoked certificate are shared, so this list can be as long
//! as the one that proxies get. It is split into parts, each in its own ConfigMap, so that none
//! comes near the API server's limit. A part that cannot be read is an error: the others must not
//! pass for the whole list.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use ambit_tls::certificate::Serial;
use serde::{Deserialize, Serialize};

/// Most certificates that may be taken back at a time: `istio-ca-crl` has 48 bytes for each, in a
/// ConfigMap of 1 MiB. While a root is rotated it holds a list for each of two keys, and half of
/// this fits.
pub(crate) const REVOKED_MAX: usize = 20_000;
/// Most orders. An operator gives them, one by one, and each is forgotten with the certificates
/// that it names.
pub(crate) const ORDERS_MAX: usize = 2000;
/// Parts of the list. A line has at most 52 bytes, so one ConfigMap would hold the whole list
/// except with the longest serials; parts keep each write small.
pub(crate) const PARTS: usize = 4;

/// An order to revoke certificates by name. Each replica carries it out on the certificates that it
/// signed itself.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Order {
    /// Whose certificates.
    pub(super) identity: String,
    /// Those of one node only.
    pub(super) node: Option<String>,
    /// When, in seconds since 1970; certificates that were signed later are valid.
    pub(super) ordered_at: u64,
    /// When the last certificate that it names has ended, seconds since 1970.
    pub(super) until: u64,
}

/// What all replicas of a cluster must know of revocations.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Shared {
    /// The revoked certificates: serial, and expiry in seconds since 1970, if that is known.
    pub(super) revoked: BTreeMap<String, Option<u64>>,
    /// How, where it was not by serial.
    pub(super) orders: BTreeSet<Order>,
}

/// A line of the list that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {0} is no serial and end")]
pub struct LineError(usize);

impl Shared {
    /// The text of one part, a line for each certificate: its serial, a space, its end or `-`.
    pub(super) fn part(&self, part: usize) -> String {
        let own = self.revoked.iter().filter(|(serial, _)| part_of(serial) == part);
        own.fold(String::new(), |mut text, (serial, end)| {
            let written = match end {
                Some(end) => writeln!(text, "{serial} {end}"),
                None => writeln!(text, "{serial} -"),
            };
            written.expect("a text takes whatever is written");
            text
        })
    }

    /// Adds what the text of a part says.
    pub(super) fn add_part(&mut self, text: &str) -> Result<(), LineError> {
        let read = text.lines().enumerate().map(|(index, line)| {
            let (serial, end) = line.split_once(' ').ok_or(LineError(index + 1))?;
            let serial: Serial = serial.parse().map_err(|_| LineError(index + 1))?;
            let end = match end {
                "-" => None,
                end => Some(end.parse().map_err(|_| LineError(index + 1))?),
            };
            Ok((serial.to_string(), end))
        });
        let read: Vec<_> = read.collect::<Result<_, _>>()?;
        self.revoked.extend(read);
        Ok(())
    }
}

/// In which part a serial is. Serials are random to their last digit.
fn part_of(serial: &str) -> usize {
    serial.bytes().last().map_or(0, usize::from) % PARTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut shared = Shared::default();
        for number in 0..100_u64 {
            let end = (number > 0).then_some(1_700_000_000 + number);
            shared.revoked.insert(format!("ab{number:02x}"), end);
        }
        let mut read = Shared::default();
        for part in 0..PARTS {
            let text = shared.part(part);
            assert!(text.lines().count() > 10, "{part}: {text}");
            read.add_part(&text).unwrap();
        }
        assert_eq!(read, shared);
        let before = read.clone();
        for (text, line) in [("ab 1\ncd", 2), ("ab -1", 1), ("xy 1", 1), ("ab 1\n\n", 2)] {
            assert_eq!(read.add_part(text), Err(LineError(line)), "{text:?}");
        }
        assert_eq!(read, before, "nothing by halves");
    }

    #[test]
    fn the_longest_list_fits_into_its_config_maps() {
        // The longest serials have 20 octets, RFC 5280 section 4.1.2.2.
        let line = format!("{} 9999999999\n", "f".repeat(40));
        assert!(REVOKED_MAX.div_ceil(PARTS) * line.len() < 1 << 20);
        let mut shared = Shared::default();
        for number in 0..REVOKED_MAX {
            shared.revoked.insert(format!("f{number:031x}"), Some(1_700_000_000));
        }
        for part in 0..PARTS {
            assert!(shared.part(part).len() < 600 << 10, "{}", shared.part(part).len());
        }
    }
}
