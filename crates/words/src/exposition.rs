//! The two formats of metrics that Prometheus reads, and which one a scraper is answered with.
//!
//! OpenMetrics is what is counted in. Scrapers that do not ask for it, and `promtool check
//! metrics`, read Prometheus' older text, which has the names of counters with their suffix and no
//! type `info`.

use std::collections::HashMap;
use std::fmt::Write as _;

/// The content type of OpenMetrics.
pub const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The content type of Prometheus' text.
pub const PROMETHEUS_TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Where every part serves its metrics.
pub const METRICS_PATH: &str = "/metrics";
/// How a scraper asks for OpenMetrics.
const ASKED: &str = "application/openmetrics-text";

/// The content type and the text for a scraper that sent this `Accept` field, of OpenMetrics.
pub fn answer(accept: Option<&str>, open_metrics: String) -> (&'static str, String) {
    match accept.is_some_and(|it| it.contains(ASKED)) {
        true => (OPEN_METRICS, open_metrics),
        false => (PROMETHEUS_TEXT, prometheus_text(&open_metrics)),
    }
}

/// The version of the program whose metrics these are: the tag of Istio's `istio_build`.
pub fn build_tag(text: &str) -> Option<&str> {
    let line = text.lines().find(|line| line.starts_with("istio_build{"))?;
    let (_, rest) = line.split_once("tag=\"")?;
    rest.split_once('"').map(|(tag, _)| tag)
}

/// OpenMetrics as Prometheus' text.
fn prometheus_text(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len());
    let types: HashMap<&str, &str> = open_metrics
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
        .collect();
    for line in open_metrics.lines() {
        let Some(comment) = line.strip_prefix("# ") else {
            text.push_str(line);
            text.push('\n');
            continue;
        };
        let mut words = comment.splitn(3, ' ');
        let (Some(what), Some(name), Some(rest)) = (words.next(), words.next(), words.next())
        else {
            continue;
        };
        let kind = types.get(name).copied().unwrap_or("unknown");
        let suffix = match kind {
            "counter" => "_total",
            "info" => "_info",
            _ => "",
        };
        let rest = match (what, kind) {
            ("HELP", _) => rest,
            ("TYPE", "info") => "gauge",
            ("TYPE", "unknown") => "untyped",
            ("TYPE", kind) => kind,
            _ => continue,
        };
        writeln!(text, "# {what} {name}{suffix} {rest}").expect("a string takes everything");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN: &str = "\
# HELP istio_build Version of this proxy.
# TYPE istio_build info
istio_build_info{tag=\"a # b\"} 1
# HELP istio_requests Requests.
# TYPE istio_requests counter
istio_requests_total{code=\"200\"} 3
# HELP istio_request_bytes Bodies.
# TYPE istio_request_bytes histogram
# UNIT istio_request_bytes bytes
istio_request_bytes_bucket{le=\"+Inf\"} 1
# HELP process_threads Threads.
# TYPE process_threads gauge
process_threads 4
# EOF
";
    const TEXT: &str = "\
# HELP istio_build_info Version of this proxy.
# TYPE istio_build_info gauge
istio_build_info{tag=\"a # b\"} 1
# HELP istio_requests_total Requests.
# TYPE istio_requests_total counter
istio_requests_total{code=\"200\"} 3
# HELP istio_request_bytes Bodies.
# TYPE istio_request_bytes histogram
istio_request_bytes_bucket{le=\"+Inf\"} 1
# HELP process_threads Threads.
# TYPE process_threads gauge
process_threads 4
";

    #[test]
    fn who_asks_for_open_metrics_gets_it_and_everybody_else_the_older_text() {
        let asked = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5,*/*;q=0.1";
        assert_eq!(answer(Some(asked), OPEN.to_owned()), (OPEN_METRICS, OPEN.to_owned()));
        for other in [None, Some("*/*"), Some("text/plain;version=0.0.4")] {
            assert_eq!(answer(other, OPEN.to_owned()), (PROMETHEUS_TEXT, TEXT.to_owned()));
        }
    }

    #[test]
    fn a_program_says_its_version() {
        let text = "a 1\nistio_build{component=\"cni\",tag=\"0.1.0\"} 1\n";
        assert_eq!(build_tag(text), Some("0.1.0"));
        assert_eq!(build_tag("istio_build{component=\"x\"} 1\n"), None);
        assert_eq!(build_tag("istio_builds 1\n"), None);
    }
}
