//! Durations as Go writes them (`1m30s`, `1.5ms`), because fake-service uses them in its variables
//! and its answers.

use std::time::Duration;

const UNITS: &[(&str, f64)] = &[
    ("ns", 1e-9),
    ("us", 1e-6),
    ("µs", 1e-6),
    ("ms", 1e-3),
    ("s", 1.0),
    ("m", 60.0),
    ("h", 3600.0),
];
/// The longest that is accepted.
const SECONDS_MAX: f64 = 86_400.0;

/// Reads a duration. `None` if it is none, or longer than a day.
pub(crate) fn parse(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut seconds = 0.0;
    let mut rest = text;
    while !rest.is_empty() || seconds == 0.0 && text.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        let tail = &rest[digits..];
        let unit = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let (_, factor) = UNITS.iter().find(|(name, _)| *name == &tail[..unit])?;
        seconds += number * factor;
        rest = &tail[unit..];
    }
    (0.0..=SECONDS_MAX).contains(&seconds).then(|| Duration::from_secs_f64(seconds))
}

/// Writes a duration: the largest unit that leaves a whole part, no trailing zeros.
pub(crate) fn format(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    let (unit, per_unit): (_, u128) = match nanos {
        0 => return "0s".to_owned(),
        1..1_000 => ("ns", 1),
        1_000..1_000_000 => ("µs", 1_000),
        1_000_000..1_000_000_000 => ("ms", 1_000_000),
        _ => ("s", 1_000_000_000),
    };
    let (minutes, nanos) = match unit {
        "s" => (nanos / 60_000_000_000, nanos % 60_000_000_000),
        _ => (0, nanos),
    };
    let minutes = if minutes > 0 { format!("{minutes}m") } else { String::new() };
    let fraction = if per_unit == 1 {
        String::new()
    } else {
        let digits = per_unit.ilog10() as usize;
        format!(".{:0digits$}", nanos % per_unit)
    };
    let fraction = fraction.trim_end_matches('0').trim_end_matches('.');
    format!("{minutes}{}{fraction}{unit}", nanos / per_unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_written_as_go_does() {
        for (text, nanos) in [
            ("0s", 0),
            ("7ns", 7),
            ("1.5µs", 1_500),
            ("1.234567ms", 1_234_567),
            ("30s", 30_000_000_000),
            ("1m30.5s", 90_500_000_000),
        ] {
            assert_eq!(parse(text), Some(Duration::from_nanos(nanos)), "{text}");
            assert_eq!(format(Duration::from_nanos(nanos)), text);
        }
        assert_eq!(parse("0"), Some(Duration::ZERO));
        for text in ["", "5", "s", "1x", "-1s", "1.2.3s", "99h"] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }
}
