//! Schedules of CronJobs: five fields and a time zone, read as Kubernetes reads them
//! (robfig/cron 3).
//!
//! Each field becomes a plain list of numbers before the library sees it, because the library reads
//! steps, weekdays and stars otherwise, and knows letters that Kubernetes does not.

use std::collections::BTreeSet;

use cronexpr::{Crontab, FallbackTimezoneOption, MakeTimestamp, ParseOptions};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

/// Finished Jobs that stay where a CronJob does not say.
pub(crate) const SUCCESSFUL_KEPT: usize = 3;
pub(crate) const FAILED_KEPT: usize = 1;
/// Names of months and weekdays, of which the first has the lowest number of its field.
const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

/// Least and most of each field, and its names.
const FIELDS: [(u32, u32, &[&str]); 5] =
    [(0, 59, &[]), (0, 23, &[]), (1, 31, &[]), (1, 12, &MONTHS), (0, 6, &WEEKDAYS)];

/// What is wrong with a schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// Its fields.
    Schedule(String),
    /// Its time zone.
    Zone(String),
}

/// A schedule with its time zone; without one the times are UTC.
pub(crate) fn schedule(written: &str, zone: Option<&str>) -> Result<Crontab, Wrong> {
    let zone = match zone {
        None | Some("UTC" | "Etc/UTC") => String::new(),
        // The library knows them, Kubernetes does not.
        Some(zone @ ("" | "Local" | "Etc/Unknown")) => {
            return Err(Wrong::Zone(format!("{zone:?} is no time zone")));
        }
        Some(zone) => match TimeZone::get(zone) {
            Ok(_) => format!(" {zone}"),
            Err(error) => return Err(Wrong::Zone(error.to_string())),
        },
    };
    let whole = fields(written).map_err(Wrong::Schedule)? + &zone;
    let mut options = ParseOptions::default();
    options.fallback_timezone_option = FallbackTimezoneOption::UTC;
    let parsed = cronexpr::parse_crontab_with(&whole, options);
    parsed.map_err(|error| Wrong::Schedule(error.to_string()))
}

fn fields(written: &str) -> Result<String, String> {
    let written = match written.trim() {
        "@yearly" | "@annually" => "0 0 1 1 *",
        "@monthly" => "0 0 1 * *",
        "@weekly" => "0 0 * * 0",
        "@daily" | "@midnight" => "0 0 * * *",
        "@hourly" => "0 * * * *",
        written => written,
    };
    let fields: Vec<&str> = written.split_whitespace().collect();
    if fields.len() != FIELDS.len() {
        return Err("a schedule has five fields: minute, hour, day, month, weekday".to_owned());
    }
    let plain = fields.iter().zip(FIELDS).map(|(field, shape)| plain(field, shape));
    Ok(plain.collect::<Result<Vec<_>, _>>()?.join(" "))
}

/// A field as a list of numbers, or as a star. A star with a step is a list: then day and weekday
/// are alternatives.
fn plain(field: &str, shape: (u32, u32, &[&str])) -> Result<String, String> {
    let (mut all, mut is_star) = (BTreeSet::new(), false);
    for item in field.split(',').filter(|item| !item.is_empty()) {
        let (range, step) = match item.split_once('/') {
            Some((range, step)) => (range, Some(step)),
            None => (item, None),
        };
        let every = match step.map(str::parse::<usize>) {
            None => 1,
            Some(Ok(every @ 1..)) => every,
            Some(_) => return Err(format!("{item:?}: a step is a number from 1 on")),
        };
        if matches!(range, "*" | "?") {
            is_star |= every == 1;
            all.extend((shape.0..=shape.1).step_by(every));
            continue;
        }
        let (first, last) = match range.split_once('-') {
            Some((first, last)) => (number(first, shape)?, number(last, shape)?),
            None if step.is_some() => (number(range, shape)?, shape.1),
            None => (number(range, shape)?, number(range, shape)?),
        };
        if first > last {
            return Err(format!("{item:?} ends before it begins"));
        }
        all.extend((first..=last).step_by(every));
    }
    match (is_star, all.is_empty()) {
        (true, _) => Ok("*".to_owned()),
        (_, true) => Err(format!("{field:?} names no time")),
        _ => Ok(all.iter().map(u32::to_string).collect::<Vec<_>>().join(",")),
    }
}

fn number(word: &str, (least, most, names): (u32, u32, &[&str])) -> Result<u32, String> {
    let named = names.iter().zip(least..).find(|(name, _)| name.eq_ignore_ascii_case(word));
    let number = named.map(|(_, number)| number).or_else(|| word.parse().ok());
    let number = number.filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| format!("{word:?} is not within {least} to {most}"))
}

/// The first time behind `since`.
pub(crate) fn next(schedule: &Crontab, since: Timestamp) -> Option<Timestamp> {
    schedule.find_next(MakeTimestamp(since)).ok().map(|found| found.timestamp())
}

/// The latest time behind `since` that is not in the future. Found by halves, because there may be
/// a time in every minute of years.
pub(crate) fn latest(schedule: &Crontab, since: Timestamp, now: Timestamp) -> Option<Timestamp> {
    let next = |after: Timestamp| next(schedule, after).filter(|found| *found <= now);
    let (mut found, mut high) = (next(since)?, now);
    while high.duration_since(found) >= SignedDuration::from_mins(1) {
        let middle = found + high.duration_since(found) / 2;
        match next(middle) {
            Some(later) => found = later,
            None => high = middle,
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().expect("a time")
    }

    #[test]
    fn schedules_are_read_as_kubernetes_reads_them() {
        let check = |written: &str, expected: &str| {
            assert_eq!(fields(written).as_deref(), Ok(expected), "{written:?}");
        };
        check("* * * * *", "* * * * *");
        check("*/15 0-2 1,15 jan-MAR mon", "0,15,30,45 0,1,2 1,15 1,2,3 1");
        check("@weekly", "0 0 * * 0");
        // A step is no star: day and weekday are alternatives then.
        check("0 0 */10 * 1", "0 0 1,11,21,31 * 1");
        check("0 0 1,* * 1", "0 0 * * 1");
        check("0 0 ? * 1/2", "0 0 * * 1,3,5");
        check("*/60 */24 * * *", "0 0 * * *");
        for wrong in [
            "",
            "* * * *",
            "* * * * * *",
            "61 * * * *",
            "@never",
            "* * * * * UTC",
            "5-1 * * * *",
            "*/0 * * * *",
            "0 0 * * 7",
            "0 0 L * *",
            "0 0 15W * *",
            "0 0 * * 5#3",
            ", * * * *",
        ] {
            assert!(fields(wrong).is_err(), "{wrong:?}");
        }
        assert!(matches!(schedule("* * * * *", Some("Mars/Olympus")), Err(Wrong::Zone(_))));
        assert!(matches!(schedule("* * * * *", Some("")), Err(Wrong::Zone(_))));
    }

    #[test]
    fn times_are_those_of_the_zone() {
        let check = |written: &str, zone: Option<&str>, since: &str, expected: &[&str]| {
            let schedule = schedule(written, zone).expect("a schedule");
            let mut after = at(since);
            for expected in expected {
                after = next(&schedule, after).expect("a time");
                assert_eq!(after, at(expected), "{written} {zone:?}");
            }
        };
        check("0 3 * * mon", None, "2026-01-01T00:00:30Z", &["2026-01-05T03:00:00Z"]);
        let zurich = Some("Europe/Zurich");
        // In spring there is no half past two, in autumn there are two.
        let spring = ["2026-03-28T01:30:00Z", "2026-03-30T00:30:00Z"];
        check("30 2 * * *", zurich, "2026-03-28T00:00:00Z", &spring);
        check("0 3 * * *", zurich, "2026-01-01T00:00:00Z", &["2026-01-01T02:00:00Z"]);
    }

    #[test]
    fn the_latest_of_many_times_is_found() {
        let check = |written: &str, since: &str, now: &str, expected: Option<&str>| {
            let schedule = schedule(written, None).expect("a schedule");
            assert_eq!(latest(&schedule, at(since), at(now)), expected.map(at), "{written}");
        };
        let (since, now) = ("2026-01-01T00:00:00Z", "2029-01-01T00:00:10Z");
        check("* * * * *", since, now, Some("2029-01-01T00:00:00Z"));
        check("*/5 * * 1 *", since, now, Some("2029-01-01T00:00:00Z"));
        check("* 9-17 * * 1-5", since, now, Some("2028-12-29T17:59:00Z"));
        check("0 0 29 2 *", since, now, Some("2028-02-29T00:00:00Z"));
        check("* * * * *", since, "2026-01-01T00:00:59Z", None);
        check("* * * * *", since, "2026-01-01T00:01:00Z", Some("2026-01-01T00:01:00Z"));
    }
}
