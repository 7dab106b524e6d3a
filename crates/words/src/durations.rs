//! Durations as people write them: `500ms`, `90s`, `1h30m`, `7d`.
//!
//! One grammar for every flag, variable and file: Go's, which is Kubernetes' too, and days. A
//! number without a unit is not a duration, except `0`.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

/// The units and their nanoseconds. Longer names come before those that they begin with.
const UNITS: [(&str, u128); 9] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", SECOND),
    ("m", 60 * SECOND),
    ("h", 3_600 * SECOND),
    ("d", 86_400 * SECOND),
];
const SECOND: u128 = 1_000_000_000;
/// No setting needs more than ten years. With this limit, a moment plus a duration cannot overflow.
const DAYS_MAX: u128 = 3_653;
/// Most digits on each side of a decimal point. A longer number is not a duration.
const DIGITS_MAX: usize = 18;

/// Why a text is not the duration that is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DurationError {
    /// It is not a duration.
    Syntax(String),
    /// It is longer than any setting takes.
    TooLong(String),
    /// It is a duration that this setting does not accept.
    OutOfRange {
        /// The text.
        text: String,
        /// What the setting takes.
        range: RangeInclusive<Duration>,
    },
}

impl fmt::Display for DurationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax(text) => {
                write!(f, "{text:?} is not a duration; write for example 500ms, 90s, 1h30m or 7d")
            }
            Self::TooLong(text) => {
                write!(f, "{text:?} is longer than ten years; write at most {DAYS_MAX}d")
            }
            Self::OutOfRange { text, range } => {
                let (min, max) = (write_duration(*range.start()), write_duration(*range.end()));
                write!(f, "{text} is out of range; write {min} to {max}")
            }
        }
    }
}

impl std::error::Error for DurationError {}

/// Reads a duration: numbers with units, such as `1h30m`, `1.5s` and `7d`, or `0`.
pub fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    let wrong = || DurationError::Syntax(text.to_owned());
    let mut rest = text.trim();
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    if rest.is_empty() {
        return Err(wrong());
    }
    let mut total = 0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
        let (number, tail) = rest.split_at(end);
        let unit_end = tail.find(|c: char| !c.is_alphabetic()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        let known = UNITS.iter().find(|(name, _)| *name == unit);
        let (_, nanos_per_unit) = known.ok_or_else(wrong)?;
        total += nanos(number, *nanos_per_unit).ok_or_else(wrong)?;
        rest = tail.trim_start();
    }
    bounded(text, total)
}

/// Reads a duration in a range, or a number of seconds. For settings that have always taken one,
/// because what they stand in for does: those of ztunnel, and those of load generators.
pub fn parse_duration_or_seconds(
    text: &str,
    range: RangeInclusive<Duration>,
) -> Result<Duration, DurationError> {
    let read = match nanos(text.trim(), SECOND) {
        Some(total) => bounded(text, total),
        None => parse_duration(text),
    };
    within(text, read?, range)
}

/// Reads a duration that lies in a range.
pub fn parse_duration_within(
    text: &str,
    range: RangeInclusive<Duration>,
) -> Result<Duration, DurationError> {
    within(text, parse_duration(text)?, range)
}

fn within(
    text: &str,
    duration: Duration,
    range: RangeInclusive<Duration>,
) -> Result<Duration, DurationError> {
    match range.contains(&duration) {
        true => Ok(duration),
        false => Err(DurationError::OutOfRange { text: text.to_owned(), range }),
    }
}

/// A decimal number of such units, in nanoseconds; what is shorter is dropped.
fn nanos(number: &str, nanos_per_unit: u128) -> Option<u128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let is_number = |part: &str| part.bytes().all(|it| it.is_ascii_digit());
    let fits = whole.len() <= DIGITS_MAX && fraction.len() <= DIGITS_MAX;
    if !fits || !is_number(whole) || !is_number(fraction) || (whole.len() + fraction.len()) == 0 {
        return None;
    }
    // Eighteen digits of days are below 2^110 nanoseconds, and a fraction of them is less.
    let read = |part: &str| if part.is_empty() { Some(0) } else { part.parse::<u128>().ok() };
    let scale = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    Some(read(whole)? * nanos_per_unit + read(fraction)? * nanos_per_unit / scale)
}

fn bounded(text: &str, nanos: u128) -> Result<Duration, DurationError> {
    let too_long = || DurationError::TooLong(text.to_owned());
    if nanos > DAYS_MAX * 86_400 * SECOND {
        return Err(too_long());
    }
    u64::try_from(nanos).map(Duration::from_nanos).map_err(|_| too_long())
}

/// Writes a duration as Go does: the largest unit that leaves a whole part, no trailing zeros.
pub fn write_duration(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    let (unit, per_unit) = match nanos {
        0 => return "0s".to_owned(),
        1..1_000 => ("ns", 1),
        1_000..1_000_000 => ("µs", 1_000),
        1_000_000..SECOND => ("ms", 1_000_000),
        _ => ("s", SECOND),
    };
    let minutes = nanos / (60 * SECOND);
    let larger = match (minutes / 60, minutes % 60) {
        (0, 0) => String::new(),
        (0, minutes) => format!("{minutes}m"),
        (hours, minutes) => format!("{hours}h{minutes}m"),
    };
    let nanos = nanos % (60 * SECOND);
    let digits = per_unit.ilog10() as usize;
    let fraction = match digits {
        0 => String::new(),
        digits => format!(".{:0digits$}", nanos % per_unit),
    };
    let fraction = fraction.trim_end_matches('0').trim_end_matches('.');
    format!("{larger}{}{fraction}{unit}", nanos / per_unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_what_go_writes_too() {
        for (text, nanos) in [
            ("0s", 0),
            ("7ns", 7),
            ("1.5µs", 1_500),
            ("1.234567ms", 1_234_567),
            ("500ms", 500_000_000),
            ("30s", 30_000_000_000),
            ("1m0s", 60_000_000_000),
            ("1m30.5s", 90_500_000_000),
            ("1h0m0s", 3_600_000_000_000),
            ("168h0m1s", 604_801_000_000_000),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_nanos(nanos)), "{text}");
            assert_eq!(write_duration(Duration::from_nanos(nanos)), text);
        }
    }

    #[test]
    fn every_unit_and_every_order_of_them_is_read() {
        let check = |text: &str, millis: u64| {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        };
        check("0", 0);
        check("1m", 60_000);
        check("1h30m", 5_400_000);
        check("1h 30m", 5_400_000);
        check(" 90s ", 90_000);
        check("7d", 604_800_000);
        check("1d12h", 129_600_000);
        check("1.5h", 5_400_000);
        check(".5s", 500);
        check("1.s", 1_000);
        check("2000us", 2);
        check("2000μs", 2);
        check("30s1m", 90_000);
        check("3653d", 3_653 * 86_400_000);
    }

    #[test]
    fn what_is_no_duration_is_refused_with_the_remedy() {
        let syntax = "is not a duration; write for example 500ms, 90s, 1h30m or 7d";
        let many = "9".repeat(40) + "s";
        let cases = ["", " ", "5", "s", ".s", "1x", "-1s", "+1s", "1.2.3s", "1 s", "1h30", "1w"];
        for text in cases.into_iter().chain(["∞", "1e3s", "soon", &many]) {
            let error = parse_duration(text).expect_err(text).to_string();
            assert!(error.contains(syntax), "{text:?}: {error}");
        }
        for text in ["3654d", "999999999999999999d"] {
            let error = parse_duration(text).expect_err(text).to_string();
            assert!(error.contains("at most 3653d"), "{text}: {error}");
        }
    }

    #[test]
    fn a_number_of_seconds_is_read_where_it_always_was() {
        let check = |text: &str, millis: Option<u64>| {
            let read =
                parse_duration_or_seconds(text, Duration::ZERO..=Duration::from_secs(99)).ok();
            assert_eq!(read, millis.map(Duration::from_millis), "{text}");
        };
        check("20", Some(20_000));
        check("0.5", Some(500));
        check("1m", Some(60_000));
        check("1h 30", None);
        check("", None);
        check("100", None);
        check("2m", None);
        check("-5", None);
        check("999999999999999999", None);
    }

    #[test]
    fn a_range_is_named_as_durations_are_written() {
        let range = || Duration::from_millis(50)..=Duration::from_secs(3600);
        assert_eq!(parse_duration_within("1m", range()), Ok(Duration::from_secs(60)));
        let error = parse_duration_within("10ms", range()).expect_err("too short").to_string();
        assert_eq!(error, "10ms is out of range; write 50ms to 1h0m0s");
    }
}
