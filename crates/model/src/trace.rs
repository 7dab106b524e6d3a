//! Which trace a connection or a request belongs to: `traceparent` (W3C Trace Context, level 1),
//! and B3 in both of its forms.
//!
//! Invalid context is replaced, never repaired. The caller passes in the randomness.

use std::fmt;
use std::str::FromStr;

/// `00-<32>-<16>-<2>` hex digits.
const LENGTH: usize = 55;
/// The flag that says that the trace is recorded.
const SAMPLED: u8 = 1;

/// What is no `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("header traceparent is not 00-<32 hex digits>-<16 hex digits>-<2 hex digits>")]
pub struct NoTraceParent;

/// The position of a connection or a request in its trace.
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

    /// The trace, never 0.
    pub fn trace_id(self) -> u128 {
        self.trace_id
    }

    /// The span that whoever receives this is a part of, never 0.
    pub fn span_id(self) -> u64 {
        self.parent_id
    }

    /// Whether the trace is recorded.
    pub fn is_sampled(self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// The same trace, recorded or not.
    #[must_use]
    pub fn sampled(self, is_sampled: bool) -> Self {
        let flags = self.flags & !SAMPLED | if is_sampled { SAMPLED } else { 0 };
        Self { flags, ..self }
    }

    /// What a span of this trace with this id passes on.
    #[must_use]
    pub fn child(self, span_id: u64) -> Self {
        Self { parent_id: span_id.max(1), ..self }
    }
}

/// What B3 says of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct B3 {
    /// The trace and the span; `None` where only a decision is sent.
    pub parent: Option<TraceParent>,
    /// Whether the trace is recorded; `None` leaves it to whoever receives this.
    pub decision: Option<bool>,
}

impl B3 {
    /// The field `b3`: TRACE-SPAN, with -DECISION and -PARENT or without, or DECISION alone.
    pub fn single(text: &str) -> Option<Self> {
        if let Some(decision) = decision(text) {
            return Some(Self { parent: None, decision: Some(decision) });
        }
        let mut parts = text.split('-');
        let (trace, span) = (parts.next()?, parts.next()?);
        let decision = parts.next().map(decision);
        if decision == Some(None) || parts.next().is_some_and(|it| hex(it, 16).is_none()) {
            return None;
        }
        let parent = ids(trace, span)?;
        let read = Self { parent: Some(parent), decision: decision.flatten() };
        parts.next().is_none().then(|| read.decided())
    }

    /// The fields `x-b3-traceid`, `x-b3-spanid`, `x-b3-sampled` and `x-b3-flags`.
    pub fn several(
        trace: Option<&str>,
        span: Option<&str>,
        sampled: Option<&str>,
        flags: Option<&str>,
    ) -> Option<Self> {
        let is_debug = flags == Some("1");
        let decision = if is_debug { Some(true) } else { sampled.and_then(decision) };
        let parent = trace.zip(span).and_then(|(trace, span)| ids(trace, span));
        if parent.is_none() && decision.is_none() {
            return None;
        }
        Some(Self { parent, decision }.decided())
    }

    fn decided(self) -> Self {
        let is_sampled = self.decision == Some(true);
        Self { parent: self.parent.map(|it| it.sampled(is_sampled)), ..self }
    }
}

fn decision(text: &str) -> Option<bool> {
    match text {
        // `d` asks for debugging, which includes recording.
        "1" | "d" | "true" => Some(true),
        "0" | "false" => Some(false),
        _ => None,
    }
}

fn ids(trace: &str, span: &str) -> Option<TraceParent> {
    // Older systems have traces of 64 bits.
    let trace_id = hex(trace, 32).or_else(|| hex(trace, 16)).filter(|id| *id != 0)?;
    let parent_id = hex(span, 16).and_then(|id| id.try_into().ok()).filter(|id| *id != 0)?;
    Some(TraceParent { trace_id, parent_id, flags: 0 })
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace_id, self.parent_id, self.flags)
    }
}

impl FromStr for TraceParent {
    type Err = NoTraceParent;

    /// A later version may append to the four fields; they are read as version 0's.
    fn from_str(text: &str) -> Result<Self, NoTraceParent> {
        let malformed = NoTraceParent;
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
    fn b3_is_read_in_both_forms() {
        const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
        const SPAN: &str = "00f067aa0ba902b7";
        let told = |read: Option<B3>| match read {
            None => "none".to_owned(),
            Some(B3 { parent, decision }) => {
                let parent = parent.map_or("-".to_owned(), |it| it.to_string());
                format!("{parent} {decision:?}")
            }
        };
        let single = |text: &str| told(B3::single(text));
        assert_eq!(single(&format!("{TRACE}-{SPAN}-1")), format!("{VALID} Some(true)"));
        let unsampled = VALID.replace("-01", "-00");
        assert_eq!(single(&format!("{TRACE}-{SPAN}")), format!("{unsampled} None"));
        assert_eq!(single(&format!("{TRACE}-{SPAN}-0-{SPAN}")), format!("{unsampled} Some(false)"));
        assert_eq!(single("0"), "- Some(false)");
        let short = format!("00-{}{}-{SPAN}-01 Some(true)", "0".repeat(16), &TRACE[..16]);
        assert_eq!(single(&format!("{}-{SPAN}-d", &TRACE[..16])), short);
        for wrong in
            ["", "-", "x", "1-2", &format!("{TRACE}-{SPAN}-7"), &format!("{TRACE}-{SPAN}-1-x")]
        {
            assert_eq!(single(wrong), "none", "{wrong}");
        }
        let several = |sampled, flags| told(B3::several(Some(TRACE), Some(SPAN), sampled, flags));
        assert_eq!(several(Some("1"), None), format!("{VALID} Some(true)"));
        assert_eq!(several(None, Some("1")), format!("{VALID} Some(true)"));
        assert_eq!(several(None, None), format!("{unsampled} None"));
        assert_eq!(told(B3::several(Some("x"), Some(SPAN), None, None)), "none");
        assert_eq!(told(B3::several(None, None, Some("0"), None)), "- Some(false)");
    }

    #[test]
    fn a_child_keeps_its_trace_and_its_decision() {
        let parent: TraceParent = VALID.parse().unwrap();
        let child = parent.child(7);
        assert_eq!(child.to_string(), VALID.replace("00f067aa0ba902b7", "0000000000000007"));
        assert!(child.is_sampled());
        assert!(!child.sampled(false).is_sampled());
        assert_eq!(child.sampled(false).sampled(true), child);
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
