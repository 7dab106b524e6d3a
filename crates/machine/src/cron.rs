//! Schedules of CronJobs: five fields and a time zone.

use std::time::Duration;

use cronexpr::{Crontab, MakeTimestamp, ParseOptions};
use jiff::Timestamp;
use jiff::tz::TimeZone;

/// How far back the latest time of a schedule is looked for, the nearest first: a schedule with a
/// time in the last hour need not be followed for a year.
const LOOK_BACK: [Duration; 5] = [
    Duration::from_secs(61),
    Duration::from_secs(3600),
    Duration::from_secs(86_400),
    Duration::from_secs(32 * 86_400),
    Duration::from_secs(5 * 366 * 86_400),
];

/// A schedule with its time zone.
pub(crate) fn schedule(written: &str, zone: Option<&str>) -> Result<Crontab, String> {
    let zone = zone.unwrap_or("UTC");
    if let Err(error) = TimeZone::get(zone) {
        return Err(format!("the time zone {zone:?} is not known here: {error}"));
    }
    // The library reads a zone behind the five fields.
    let fields = match written.trim() {
        "@yearly" | "@annually" => "0 0 1 1 *",
        "@monthly" => "0 0 1 * *",
        "@weekly" => "0 0 * * 0",
        "@daily" | "@midnight" => "0 0 * * *",
        "@hourly" => "0 * * * *",
        fields => fields,
    };
    if fields.split_whitespace().count() != 5 {
        return Err("a schedule has five fields: minute, hour, day, month, weekday".to_owned());
    }
    let whole = format!("{fields} {zone}");
    cronexpr::parse_crontab_with(&whole, ParseOptions::default()).map_err(|error| error.to_string())
}

/// The latest time behind `since` that is not in the future.
pub(crate) fn latest(schedule: &Crontab, since: Timestamp, now: Timestamp) -> Option<Timestamp> {
    let next = |after: Timestamp| {
        let found = schedule.find_next(MakeTimestamp(after)).ok()?.timestamp();
        (found <= now).then_some(found)
    };
    for back in LOOK_BACK {
        let from = now.checked_sub(back).map_or(since, |from| from.max(since));
        if let Some(first) = next(from) {
            let mut found = first;
            while let Some(later) = next(found) {
                found = later;
            }
            return Some(found);
        }
        if from == since {
            return None;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().expect("a time")
    }

    #[test]
    fn schedules_are_read_as_kubernetes_reads_them() {
        let first = |written: &str, zone: Option<&str>| {
            let since = at("2026-01-01T00:00:30Z");
            let until = at("2027-01-01T00:00:00Z");
            let schedule = schedule(written, zone).ok()?;
            let found = schedule.find_next(MakeTimestamp(since)).ok()?.timestamp();
            (found <= until).then(|| found.to_string())
        };
        assert_eq!(first("*/5 * * * *", None).as_deref(), Some("2026-01-01T00:05:00Z"));
        assert_eq!(first("@hourly", None).as_deref(), Some("2026-01-01T01:00:00Z"));
        assert_eq!(first("0 3 * * mon", None).as_deref(), Some("2026-01-05T03:00:00Z"));
        assert_eq!(first("0 12 1 jul *", None).as_deref(), Some("2026-07-01T12:00:00Z"));
        let zurich = first("0 3 * * *", Some("Europe/Zurich"));
        assert_eq!(zurich.as_deref(), Some("2026-01-01T02:00:00Z"));
        for wrong in ["", "* * * *", "* * * * * *", "61 * * * *", "@never", "* * * * * UTC"] {
            assert!(schedule(wrong, None).is_err(), "{wrong:?}");
        }
        assert!(schedule("* * * * *", Some("Mars/Olympus")).is_err());
    }
}
