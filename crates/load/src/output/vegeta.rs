//! The lines of `vegeta report`, its JSON, and the numbers as Vegeta means them.

use std::fmt::Write;
use std::time::Duration;

use ambit_words::durations::write_duration;
use serde_json::{Value, json};

use crate::report::Report;

/// Where Vegeta's columns begin.
const NAME_COLUMNS: usize = 14;
const FIELD_COLUMNS: usize = 34;

/// `vegeta report`.
pub(crate) fn text(report: &Report) -> String {
    let numbers = Numbers::of(report);
    let mut text = String::new();
    let mut line = |name: &str, fields: &str, values: String| {
        writeln!(text, "{name:<NAME_COLUMNS$}{fields:<FIELD_COLUMNS$}{values}")
            .expect("a text takes all that is written to it");
    };
    let Numbers { rate, throughput, .. } = numbers;
    let (requests, success) = (report.requests, numbers.success * 100.0);
    line(
        "Requests",
        "[total, rate, throughput]",
        format!("{requests}, {rate:.2}, {throughput:.2}"),
    );
    let durations = [numbers.attack_s + numbers.wait_s, numbers.attack_s, numbers.wait_s];
    line("Duration", "[total, attack, wait]", durations.map(|s| rounded(s * 1e6)).join(", "));
    let l = &report.latency;
    let latencies = [l.min_us, l.mean_us, l.p50_us, l.p90_us, l.p95_us, l.p99_us, l.max_us];
    line("Latencies", "[min, mean, 50, 90, 95, 99, max]", latencies.map(rounded).join(", "));
    let mean = |total: u64| total as f64 / requests.max(1) as f64;
    let (read, written) = (report.body_bytes_in, report.body_bytes_out);
    line("Bytes In", "[total, mean]", format!("{read}, {:.2}", mean(read)));
    line("Bytes Out", "[total, mean]", format!("{written}, {:.2}", mean(written)));
    line("Success", "[ratio]", format!("{success:.2}%"));
    let codes: String =
        numbers.codes.iter().map(|(code, count)| format!("{code}:{count}  ")).collect();
    line("Status Codes", "[code:count]", codes);
    text.push_str("Error Set:\n");
    for reason in report.errors.keys() {
        text.push_str(reason);
        text.push('\n');
    }
    text
}

/// `vegeta report -type=json`.
pub(crate) fn json(report: &Report) -> Value {
    let numbers = Numbers::of(report);
    let l = &report.latency;
    let ns = |us: f64| (us * 1e3).round() as u64;
    let mean = |total: u64| total as f64 / report.requests.max(1) as f64;
    let codes = numbers.codes.iter().map(|(code, count)| (code.to_string(), json!(count)));
    json!({
        "latencies": {
            "total": ns(l.mean_us * l.count as f64), "mean": ns(l.mean_us),
            "50th": ns(l.p50_us), "90th": ns(l.p90_us), "95th": ns(l.p95_us), "99th": ns(l.p99_us),
            "max": ns(l.max_us), "min": ns(l.min_us),
        },
        "bytes_in": {"total": report.body_bytes_in, "mean": mean(report.body_bytes_in)},
        "bytes_out": {"total": report.body_bytes_out, "mean": mean(report.body_bytes_out)},
        "earliest": report.started_at,
        "duration": ns(numbers.attack_s * 1e6),
        "wait": ns(numbers.wait_s * 1e6),
        "requests": report.requests,
        "rate": numbers.rate,
        "throughput": numbers.throughput,
        "success": numbers.success,
        "status_codes": codes.collect::<serde_json::Map<_, _>>(),
        "errors": report.errors.keys().collect::<Vec<_>>(),
    })
}

/// What Vegeta calls rate, throughput and so on.
struct Numbers {
    attack_s: f64,
    wait_s: f64,
    rate: f64,
    throughput: f64,
    success: f64,
    /// What had no answer has the code 0.
    codes: Vec<(u16, u64)>,
}

impl Numbers {
    fn of(report: &Report) -> Self {
        let (attack_s, wait_s) = (report.attack_seconds, report.wait_seconds);
        let requests = report.requests as f64;
        let good = (report.requests - report.failed.min(report.requests)) as f64;
        let per = |count: f64, seconds: f64| if seconds > 0.0 { count / seconds } else { count };
        let answered: u64 = report.status_codes.values().sum();
        let silent = report.requests.saturating_sub(answered);
        let mut codes: Vec<_> = (silent > 0).then_some((0, silent)).into_iter().collect();
        codes.extend(report.status_codes.iter().map(|(code, count)| (*code, *count)));
        Self {
            attack_s,
            wait_s,
            rate: per(requests, attack_s),
            throughput: per(good, attack_s + wait_s),
            success: good / requests.max(1.0),
            codes,
        }
    }
}

/// A duration as Go writes it, rounded to the next smaller unit than its largest.
fn rounded(micros: f64) -> String {
    const UNITS_NS: [u64; 6] =
        [3_600_000_000_000, 60_000_000_000, 1_000_000_000, 1_000_000, 1_000, 1];
    let nanos = (micros * 1e3).round() as u64;
    let next = UNITS_NS.windows(2).find(|pair| nanos >= pair[0]).map_or(1, |pair| pair[1]);
    write_duration(Duration::from_nanos((nanos + next / 2) / next * next))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::tests::report;

    #[test]
    fn the_lines_of_a_report() {
        insta::assert_snapshot!(text(&report()));
    }

    #[test]
    fn a_run_of_ten_minutes_reads_as_vegetas_own() {
        let mut report = report();
        (report.requests, report.failed) = (270_000, 0);
        (report.attack_seconds, report.wait_seconds) = (599.997_778, 0.001_682_4);
        report.body_bytes_in = 736_131_394;
        report.status_codes = [(200, 270_000)].into();
        report.errors.clear();
        let l = &mut report.latency;
        (l.min_us, l.mean_us, l.p50_us, l.p90_us) = (1237.0, 1612.0, 1592.0, 1757.0);
        (l.p95_us, l.p99_us, l.max_us) = (1842.0, 2099.0, 11_693.0);
        let expected = "\
Requests      [total, rate, throughput]         270000, 450.00, 450.00
Duration      [total, attack, wait]             10m0s, 10m0s, 1.682ms
Latencies     [min, mean, 50, 90, 95, 99, max]  1.237ms, 1.612ms, 1.592ms, 1.757ms, \
1.842ms, 2.099ms, 11.693ms
Bytes In      [total, mean]                     736131394, 2726.41
Bytes Out     [total, mean]                     0, 0.00
Success       [ratio]                           100.00%
Status Codes  [code:count]                      200:270000  
Error Set:
";
        assert_eq!(text(&report), expected);
    }

    #[test]
    fn the_json_of_a_report() {
        let json = json(&report());
        assert_eq!(json["latencies"]["99th"], 2_000_000);
        assert_eq!(json["status_codes"], serde_json::json!({"0": 2, "200": 197, "503": 1}));
    }
}
