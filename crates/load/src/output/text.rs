//! A report as text for a person.

use std::fmt::Write;

use crate::plan::Protocol;
use crate::report::{Latencies, Report};

/// A smaller part of a latency that late sends add is not worth a word.
const LATE_PART_MIN: f64 = 0.01;

/// The report; what is doubtful about it comes first.
pub(crate) fn write(report: &Report) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        writeln!(text, "{name:<14}{value}").expect("a text takes all that is written to it");
    };
    doubts(report).into_iter().for_each(|(name, value)| line(name, value));
    let pace = report.requested_rate.map_or("as fast as they go".to_owned(), |r| rate(r) + "/s");
    let (protocol, connections) = (report.protocol, report.connections);
    line("load", format!("{} {protocol}, {pace}, {connections} connections", report.url));
    let failed = percent(report.failed, report.requests);
    let seconds = report.seconds;
    if report.protocol == Protocol::TcpStream {
        let gigabits = report.gigabits_per_second_out;
        line(
            "sent",
            format!("{} in {seconds:.2} s, {gigabits:.2} Gbit/s", bytes(report.bytes_out)),
        );
    }
    line(
        "requests",
        format!(
            "{} in {seconds:.2} s, {}/s; failed {} ({failed})",
            report.requests,
            rate(report.rate),
            report.failed
        ),
    );
    line("latency", latencies(&report.latency));
    line("  of service", latencies(&report.service_time));
    for (status, count) in &report.status_codes {
        line("status", format!("{status}: {count}"));
    }
    for (reason, count) in &report.errors {
        line("error", format!("{count} x {reason}"));
    }
    let (read, written) = (bytes(report.bytes_in), bytes(report.bytes_out));
    line("bytes", format!("{read} in, {written} out"));
    let (opened, lost) = (report.connections_opened, report.connections_lost_idle);
    line("connections", format!("{opened} opened, {lost} closed by the server while idle"));
    if report.protocol.is_of_messages() {
        let (opened, cut) = (report.streams_opened, report.streams_cut);
        line("streams", format!("{opened} opened, {cut} ended by the other side"));
    }
    let (cpu, backlogged) = (report.generator.cpu_seconds, report.generator.backlogged);
    let late = late_sends(report);
    line("generator", format!("{cpu:.2} s of CPU, {late}, {backlogged} waited for a connection"));
    text
}

/// How many there are, and what they add to which latencies.
fn late_sends(report: &Report) -> String {
    let late = report.generator.late;
    let printed = report.latency.printed(&report.generator.late_adds);
    let longer = printed.iter().filter(|it| it.late_part() >= LATE_PART_MIN);
    let longer = longer.map(|it| format!("{} +{}", it.name, duration_us(it.late_us)));
    match longer.collect::<Vec<_>>().join(", ").as_str() {
        "" => format!("{late} late sends"),
        longer => format!("{late} late sends ({longer})"),
    }
}

/// What is doubtful about a report, whichever way it is written: a word and its reason.
pub(crate) fn doubts(report: &Report) -> Vec<(&'static str, String)> {
    let mut doubts = Vec::new();
    if report.interrupted {
        let seconds = report.seconds;
        let what = if report.requests == 0 { ", before anything" } else { "; this is what" };
        doubts.push(("PARTIAL", format!("interrupted after {seconds:.1} s{what} was measured")));
    }
    if report.generator.saturated {
        let why = match report.latest() {
            None => "a thread was busy all the time".to_owned(),
            Some(it) => format!(
                "its late sends add {} to {}, which would be {}",
                duration_us(it.late_us),
                it.name,
                duration_us(it.us - it.late_us)
            ),
        };
        let remedy = "give it more CPU or --threads";
        doubts.push(("UNRELIABLE", format!("the generator could not keep up ({why}); {remedy}")));
    }
    doubts
}

fn latencies(latencies: &Latencies) -> String {
    if latencies.count == 0 {
        return "-".to_owned();
    }
    let Latencies { mean_us, p50_us, p75_us, p90_us, p99_us, p999_us, max_us, .. } = latencies;
    let named = [
        ("mean", mean_us),
        ("p50", p50_us),
        ("p75", p75_us),
        ("p90", p90_us),
        ("p99", p99_us),
        ("p99.9", p999_us),
        ("max", max_us),
    ];
    named.map(|(name, value)| format!("{name} {}", duration_us(*value))).join("  ")
}

/// Three digits and a unit.
pub(crate) fn duration_us(micros: f64) -> String {
    let (value, unit) = match micros {
        us if us < 1e3 => (us, "us"),
        us if us < 1e6 => (us / 1e3, "ms"),
        us => (us / 1e6, "s"),
    };
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.digits$} {unit}")
}

/// Whole, unless it is small.
pub(crate) fn rate(per_second: f64) -> String {
    let is_whole = per_second >= 1000.0 || (per_second - per_second.round()).abs() < 0.005;
    if is_whole { format!("{per_second:.0}") } else { format!("{per_second:.2}") }
}

fn percent(part: u64, whole: u64) -> String {
    format!("{:.2} %", part as f64 * 100.0 / whole.max(1) as f64)
}

fn bytes(count: u64) -> String {
    let (value, unit) = match count as f64 {
        count if count < 1e3 => return format!("{count} B"),
        count if count < 1e6 => (count / 1e3, "kB"),
        count if count < 1e9 => (count / 1e6, "MB"),
        count => (count / 1e9, "GB"),
    };
    format!("{value:.1} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::tests::report;
    use crate::report::LateAdds;

    #[test]
    fn a_report_for_a_person() {
        insta::assert_snapshot!(write(&report()));
    }

    #[test]
    fn what_is_doubtful_comes_first() {
        let mut report = report();
        report.interrupted = true;
        report.generator.saturated = true;
        let text = write(&report);
        let words: Vec<_> =
            text.lines().filter_map(|line| line.split(' ').next()).take(3).collect();
        assert_eq!(words, ["PARTIAL", "UNRELIABLE", "load"]);
        assert!(text.contains("could not keep up (a thread was busy all the time);"), "{text}");
    }

    #[test]
    fn late_sends_are_told_with_what_they_add() {
        let mut report = report();
        report.generator.late = 7;
        let late_adds = LateAdds { p90_us: 500.0, max_us: 1.0, ..LateAdds::default() };
        report.generator.late_adds = late_adds;
        let text = write(&report);
        assert!(text.contains("0.02 s of CPU, 7 late sends (p90 +500 us), 0 waited"), "{text}");
        report.generator.saturated = true;
        let text = write(&report);
        let why = "(its late sends add 500 us to p90, which would be 1.50 ms); give it more CPU";
        assert!(text.contains(why), "{text}");
    }

    #[test]
    fn what_was_not_timed_has_no_latency() {
        let nothing = Latencies::default();
        let text = write(&Report { latency: nothing.clone(), service_time: nothing, ..report() });
        assert!(text.contains("\nlatency       -\n  of service  -\n"), "{text}");
    }

    #[test]
    fn durations_have_three_digits() {
        for (us, text) in
            [(0.0, "0.00 us"), (999.0, "999 us"), (1590.0, "1.59 ms"), (65_268.0, "65.3 ms")]
        {
            assert_eq!(duration_us(us), text);
        }
        assert_eq!(duration_us(2_142_000.0), "2.14 s");
    }
}
