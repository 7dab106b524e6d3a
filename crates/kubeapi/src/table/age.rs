//! How long ago something was, as kubectl writes it.

use jiff::Timestamp;
use serde_json::{Value, json};

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;
const YEAR: i64 = 365 * DAY;

/// How long ago a time in an object was.
pub(super) fn age(time: Option<&Value>, now: Timestamp) -> Value {
    let time = time.and_then(Value::as_str).and_then(|it| it.parse::<Timestamp>().ok());
    match time {
        Some(time) => json!(written(now.as_second() - time.as_second())),
        None => json!("<unknown>"),
    }
}

/// A time span with two units at most; `duration.HumanDuration` of Kubernetes.
pub(super) fn written(seconds: i64) -> String {
    let both = |large: i64, unit: &str, small: i64, small_unit: &str| match small {
        0 => format!("{large}{unit}"),
        small => format!("{large}{unit}{small}{small_unit}"),
    };
    let (minutes, hours, days) = (seconds / MINUTE, seconds / HOUR, seconds / DAY);
    match seconds {
        ..-1 => "<invalid>".to_owned(),
        -1..0 => "0s".to_owned(),
        _ if seconds < 2 * MINUTE => format!("{seconds}s"),
        _ if minutes < 10 => both(minutes, "m", seconds % MINUTE, "s"),
        _ if minutes < 3 * 60 => format!("{minutes}m"),
        _ if hours < 8 => both(hours, "h", minutes % 60, "m"),
        _ if hours < 48 => format!("{hours}h"),
        _ if hours < 8 * 24 => both(days, "d", hours % 24, "h"),
        _ if days < 2 * 365 => format!("{days}d"),
        _ if seconds < 8 * YEAR => both(days / 365, "y", days % 365, "d"),
        _ => format!("{}y", days / 365),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_two_units_at_most() {
        let check = |seconds: i64, expected: &str| assert_eq!(written(seconds), expected);
        check(-2, "<invalid>");
        check(-1, "0s");
        check(0, "0s");
        check(119, "119s");
        check(120, "2m");
        check(125, "2m5s");
        check(10 * MINUTE + 5, "10m");
        check(3 * HOUR + MINUTE, "3h1m");
        check(9 * HOUR, "9h");
        check(2 * DAY + HOUR, "2d1h");
        check(9 * DAY, "9d");
        check(3 * YEAR + DAY, "3y1d");
        check(9 * YEAR, "9y");
    }
}
