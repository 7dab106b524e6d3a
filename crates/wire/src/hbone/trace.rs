//! `traceparent`: which trace a connection belongs to (W3C Trace Context, level 1).
//!
//! Invalid context is replaced, never repaired. The caller passes in the randomness.

use std::fmt;
use std::str::FromStr;

use super::HeaderError;

/// `00-<32>-<16>-<2>` hex digits.
const LENGTH: usize = 55;

/// The position of a connection in its trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceParent {
    trace_id: u128,
    parent_id: u64,
    flags: u8,
}

impl TraceParent {
    /// The context in the header, or a new one made of `random`.
    pub fn continued(header: Option<&str>, random: [u8; 24]) -> Self {
        header.and_then(|it| it.parse().ok()).unwrap_or_else(|| Self::from_random(random))
    }

    /// A new trace, not sampled. The caller hands in bytes from its random source.
    pub fn from_random(random: [u8; 24]) -> Self {
        let (trace, parent) = random.split_at(16);
        let trace_id = trace.iter().fold(0, |id, byte| id << 8 | u128::from(*byte));
        let parent_id = parent.iter().fold(0, |id, byte| id << 8 | u64::from(*byte));
        // Zero means invalid.
        Self { trace_id: trace_id.max(1), parent_id: parent_id.max(1), flags: 0 }
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace_id, self.parent_id, self.flags)
    }
}

impl FromStr for TraceParent {
    type Err = HeaderError;

    /// A later version may append to the four fields; they are read as version 0's.
    fn from_str(text: &str) -> Result<Self, HeaderError> {
        let malformed = HeaderError::Malformed {
            header: "traceparent",
            expected: "00-<32 hex digits>-<16 hex digits>-<2 hex digits>",
        };
        let (fields, rest) = text.split_at_checked(LENGTH).ok_or(malformed)?;
        let parts: Vec<&str> = fields.split('-').collect();
        let [version, trace_id, parent_id, flags] = parts[..] else { return Err(malformed) };
        let version = hex(version, 2).ok_or(malformed)?;
        let rest_allowed = rest.is_empty() || version > 0 && rest.starts_with('-');
        let trace_id = hex(trace_id, 32).ok_or(malformed)?;
        let parent_id = hex(parent_id, 16).and_then(|id| id.try_into().ok()).ok_or(malformed)?;
        let flags = hex(flags, 2).and_then(|it| it.try_into().ok()).ok_or(malformed)?;
        if version == 0xff || !rest_allowed || trace_id == 0 || parent_id == 0 {
            return Err(malformed);
        }
        Ok(Self { trace_id, parent_id, flags })
    }
}

/// Lower-case hex digits, exactly that many.
fn hex(text: &str, digits: usize) -> Option<u128> {
    let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    if text.len() != digits || !text.bytes().all(is_hex) {
        return None;
    }
    u128::from_str_radix(text, 16).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const VALID: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn valid_contexts_parse_and_print() {
        assert_eq!(VALID.parse::<TraceParent>().unwrap().to_string(), VALID);
        let later = VALID.replacen("00", "01", 1) + "-more";
        assert_eq!(later.parse::<TraceParent>().unwrap().to_string(), VALID);
    }

    #[test]
    fn invalid_contexts_are_replaced() {
        let zero_trace = format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32));
        let zero_parent = format!("00-{}-{}-01", "1".repeat(32), "0".repeat(16));
        for wrong in [
            "",
            &VALID[1..],
            &VALID.to_uppercase(),
            &VALID.replace('-', "_"),
            &VALID.replacen("00", "ff", 1),
            &format!("{VALID}-more"),
            &zero_trace,
            &zero_parent,
        ] {
            assert!(wrong.parse::<TraceParent>().is_err(), "{wrong}");
            let new = TraceParent::continued(Some(wrong), [7; 24]);
            assert_eq!(new, TraceParent::from_random([7; 24]));
        }
        let least = TraceParent::from_random([0; 24]);
        assert_eq!(least.to_string().parse(), Ok(least));
    }

    proptest! {
        #[test]
        fn random_contexts_survive(random: [u8; 24]) {
            let context = TraceParent::from_random(random);
            prop_assert_eq!(context.to_string().parse(), Ok(context));
        }

        #[test]
        fn nothing_panics(text in "[0-9a-f\\-é]{50,60}") {
            let _ = text.parse::<TraceParent>();
        }
    }
}
