//! Fortio's JSON and text, with what this generator knows.
//!
//! Percentiles are the HDR histogram's, not interpolated between Fortio's coarse buckets. What is
//! not known (durations of errors, sizes one by one) is left out rather than made up.

use std::fmt::Write;

use ambit_words::durations::write_duration;
use serde_json::{Value, json};

use crate::report::{Latencies, Report};

/// The ends of Fortio's buckets, in units of its resolution.
const BUCKETS: [u32; 56] = [
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 16, 18, 20, 25, 30, 35, 40, 45, 50, 60, 70, 80,
    90, 100, 120, 140, 160, 180, 200, 250, 300, 350, 400, 450, 500, 600, 700, 800, 900, 1000, 2000,
    3000, 4000, 5000, 7500, 10_000, 20_000, 30_000, 40_000, 50_000, 75_000, 100_000,
];
/// The code of a request without an answer.
const NO_ANSWER: &str = "-1";

/// What Fortio's flags ask for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Settings {
    /// The width of the smallest bucket.
    pub(crate) resolution_s: f64,
    pub(crate) percentiles: Vec<f64>,
    pub(crate) labels: String,
    pub(crate) run_id: u64,
    /// The name of the saved result.
    pub(crate) id: String,
}

impl Default for Settings {
    fn default() -> Self {
        let percentiles = vec![50.0, 75.0, 90.0, 99.0, 99.9];
        Self {
            resolution_s: 0.001,
            percentiles,
            labels: String::new(),
            run_id: 0,
            id: String::new(),
        }
    }
}

/// Fortio's result.
pub(crate) fn json(report: &Report, settings: &Settings) -> Value {
    let answered: u64 = report.status_codes.values().sum();
    let silent = report.requests.saturating_sub(answered);
    let mut codes: serde_json::Map<_, _> =
        report.status_codes.iter().map(|(code, count)| (code.to_string(), json!(count))).collect();
    if silent > 0 {
        codes.insert(NO_ANSWER.to_owned(), json!(silent));
    }
    let mut result = json!({
        "RunType": if report.protocol.is_http() { "HTTP" } else { "TCP" },
        "Labels": settings.labels,
        "StartTime": report.started_at,
        "RequestedQPS": report.requested_rate.map_or("max".to_owned(), |rate| rate.to_string()),
        "RequestedDuration": requested(report),
        "ActualQPS": report.rate,
        "ActualDuration": (report.seconds * 1e9).round() as u64,
        "NumThreads": report.connections,
        "Version": concat!("ambit ", env!("CARGO_PKG_VERSION")),
        "DurationHistogram": histogram(&report.latency, settings),
        "Exactly": report.requested_count.unwrap_or_default(),
        "RunID": settings.run_id,
        "ID": settings.id,
        "RetCodes": codes,
        "URL": report.url,
        "Sizes": {
            "Count": answered,
            "Sum": report.bytes_in,
            "Avg": report.bytes_in as f64 / answered.max(1) as f64,
        },
        "SocketCount": report.connections_opened,
    });
    let doubts = super::text::doubts(report).into_iter();
    let warnings: Vec<_> = doubts.map(|(name, value)| format!("{name}: {value}")).collect();
    if !warnings.is_empty() {
        // Fortio has no field for it, and who reads its result skips what it does not know.
        result["Warnings"] = json!(warnings);
    }
    result
}

fn requested(report: &Report) -> String {
    match (report.requested_count, report.requested_seconds) {
        (Some(count), _) => format!("exactly {count} calls"),
        (None, Some(seconds)) => write_duration(std::time::Duration::from_secs_f64(seconds)),
        (None, None) => "until stop".to_owned(),
    }
}

fn histogram(latencies: &Latencies, settings: &Settings) -> Value {
    let seconds = |us: f64| us / 1e6;
    let l = latencies;
    let full = l.histogram();
    let at = |percentile: &f64| {
        let value = full.value_at_quantile(percentile / 100.0) as f64 / 1e9;
        json!({"Percentile": percentile, "Value": value})
    };
    json!({
        "Count": l.count,
        "Min": seconds(l.min_us),
        "Max": seconds(l.max_us),
        "Sum": seconds(l.mean_us) * l.count as f64,
        "Avg": seconds(l.mean_us),
        "StdDev": seconds(l.stddev_us),
        "Data": buckets(l, settings.resolution_s),
        "Percentiles": settings.percentiles.iter().map(at).collect::<Vec<_>>(),
    })
}

/// Fortio's buckets: `(Start, End]`, the first from the minimum, the last to the maximum.
fn buckets(latencies: &Latencies, resolution_s: f64) -> Vec<Value> {
    let bound = |index: usize| match BUCKETS.get(index) {
        Some(units) => f64::from(*units) * resolution_s,
        None => f64::INFINITY,
    };
    let mut counts = vec![0u64; BUCKETS.len() + 1];
    for (value_ns, count) in &latencies.histogram_ns {
        let seconds = *value_ns as f64 / 1e9;
        counts[(0..BUCKETS.len()).find(|i| seconds <= bound(*i)).unwrap_or(BUCKETS.len())] += count;
    }
    let (min, max) = (latencies.min_us / 1e6, latencies.max_us / 1e6);
    let mut below = 0;
    let mut data = Vec::new();
    for (index, count) in counts.into_iter().enumerate().filter(|(_, count)| *count > 0) {
        below += count;
        let start = if data.is_empty() { min } else { bound(index.saturating_sub(1)) };
        data.push(json!({
            "Start": start,
            "End": bound(index).min(max),
            "Percent": below as f64 * 100.0 / latencies.count.max(1) as f64,
            "Count": count,
        }));
    }
    data
}

/// What `fortio load` prints.
pub(crate) fn text(report: &Report, settings: &Settings) -> String {
    let mut text = String::new();
    let mut line = |line: String| {
        writeln!(text, "{line}").expect("a text takes all that is written to it");
    };
    let l = &report.latency;
    line(format!(
        "Aggregated Function Time : count {} avg {} +/- {} min {} max {} sum {}",
        l.count,
        significant(l.mean_us / 1e6),
        significant(l.stddev_us / 1e6),
        significant(l.min_us / 1e6),
        significant(l.max_us / 1e6),
        significant(l.mean_us / 1e6 * l.count as f64)
    ));
    let full = l.histogram();
    for percentile in &settings.percentiles {
        let value = full.value_at_quantile(percentile / 100.0) as f64 / 1e9;
        line(format!("# target {percentile}% {}", significant(value)));
    }
    line(format!("Error cases : count {}", report.failed));
    let (opened, kept) = (report.connections_opened, report.connections);
    line(format!("Sockets used: {opened} (for perfect keepalive, would be {kept})"));
    let percent = |count: u64| count as f64 * 100.0 / report.requests.max(1) as f64;
    let answered: u64 = report.status_codes.values().sum();
    let silent = report.requests.saturating_sub(answered);
    if silent > 0 {
        line(format!("Code {NO_ANSWER:>3} : {silent} ({:.1} %)", percent(silent)));
    }
    for (code, count) in &report.status_codes {
        line(format!("Code {code} : {count} ({:.1} %)", percent(*count)));
    }
    line(format!(
        "All done {} calls (plus 0 warmup) {:.3} ms avg, {:.1} qps",
        report.requests,
        l.mean_us / 1e3,
        report.rate
    ));
    text
}

/// Six significant digits.
fn significant(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let digits = (5 - value.abs().log10().floor() as i32).clamp(0, 12);
    let text = format!("{value:.*}", usize::try_from(digits).unwrap_or_default());
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::tests::report;

    #[test]
    fn the_result_as_json() {
        let json = json(&report(), &Settings::default());
        insta::assert_snapshot!(serde_json::to_string_pretty(&json).unwrap());
    }

    #[test]
    fn what_is_doubtful_is_in_the_result() {
        let mut report = report();
        report.interrupted = true;
        let json = json(&report, &Settings::default());
        let warning = "PARTIAL: interrupted after 2.0 s; this is what was measured";
        assert_eq!(json["Warnings"], json!([warning]));
    }

    #[test]
    fn the_result_as_text() {
        insta::assert_snapshot!(text(&report(), &Settings::default()));
    }

    #[test]
    fn six_digits_are_significant() {
        for (value, text) in
            [(0.000_338_177, "0.000338177"), (123_456_789.0, "123456789"), (1.5, "1.5"), (0.0, "0")]
        {
            assert_eq!(significant(value), text);
        }
    }
}
