//! Writes a report: as text, as JSON, as an HDR log, or in the formats of Vegeta and Fortio.

pub(super) mod fortio;
mod hdr;
pub(super) mod text;
pub(super) mod vegeta;

use anyhow::{Context, Result};

use super::report::Report;

/// A way of writing it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    /// Text for people.
    Text,
    /// Everything, with the full histogram.
    Json,
    /// The lines of Vegeta's report.
    Vegeta,
    /// Fortio's JSON.
    Fortio,
    /// A log of HdrHistogram.
    Hdr,
}

impl Output {
    /// Whether the format shows the doubts about a report.
    pub(super) fn tells_doubts(self) -> bool {
        match self {
            Self::Text | Self::Json => true,
            Self::Vegeta | Self::Fortio | Self::Hdr => false,
        }
    }
}

/// The report, written like this, with its last line end.
pub(super) fn write(report: &Report, output: Output) -> Result<String> {
    Ok(match output {
        Output::Text => text::write(report),
        Output::Json => serde_json::to_string(report).context("write the report as JSON")? + "\n",
        Output::Vegeta => vegeta::text(report),
        Output::Fortio => {
            let json = fortio::json(report, &fortio::Settings::default());
            serde_json::to_string_pretty(&json).context("write the report as Fortio's")? + "\n"
        }
        Output::Hdr => hdr::write(report)?,
    })
}

#[cfg(test)]
pub(super) mod tests {
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

    use super::*;
    use crate::plan::Protocol;
    use crate::report::{Generator, Latencies, REPORT_VERSION};

    /// Half of 200 requests took 1 ms, half 2 ms; two were refused, one was a 503.
    pub(crate) fn report() -> Report {
        let latency = Latencies {
            count: 198,
            min_us: 1000.0,
            mean_us: 1500.0,
            stddev_us: 500.0,
            p50_us: 1000.0,
            p75_us: 2000.0,
            p90_us: 2000.0,
            p95_us: 2000.0,
            p99_us: 2000.0,
            p999_us: 2000.0,
            max_us: 2000.0,
            histogram_ns: vec![(1_000_000, 99), (2_000_000, 99)],
        };
        Report {
            version: REPORT_VERSION,
            url: "http://a/".to_owned(),
            protocol: Protocol::Http1,
            method: "GET".to_owned(),
            started_at: "2026-11-22T01:39:44Z".to_owned(),
            requested_rate: Some(100.0),
            requested_seconds: Some(2.0),
            requested_count: None,
            connections: 10,
            threads: 1,
            warm_up_seconds: 0.0,
            interrupted: false,
            requests: 200,
            failed: 3,
            unsent: 0,
            abandoned: 0,
            seconds: 2.0,
            attack_seconds: 1.99,
            wait_seconds: 0.001_682,
            rate: 100.0,
            throughput: 98.5,
            gigabits_per_second_out: 0.0001,
            service_time: latency.clone(),
            latency,
            status_codes: [(200, 197), (503, 1)].into(),
            errors: [("connect: connection refused".to_owned(), 2), ("status 503".to_owned(), 1)]
                .into(),
            failed_at_ms: vec![10, 20, 30],
            bytes_in: 550_000,
            body_bytes_in: 540_000,
            bytes_out: 20_000,
            body_bytes_out: 0,
            reads_per_response: 1.0,
            connections_opened: 10,
            connections_lost_idle: 0,
            streams_opened: 0,
            streams_cut: 0,
            generator: Generator { cpu_seconds: 0.02, ..Generator::default() },
        }
    }

    #[test]
    fn json_is_read_as_it_was_written() {
        let text = write(&report(), Output::Json).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report());
        let histogram = report().latency.histogram();
        assert_eq!((histogram.len(), histogram.value_at_quantile(0.4)), (198, 1_000_447));
    }

    #[test]
    fn an_hdr_log_holds_both_histograms() {
        let text = write(&report(), Output::Hdr).unwrap();
        let entries: Vec<_> =
            IntervalLogIterator::new(text.as_bytes()).map(Result::unwrap).collect();
        let tags = entries.iter().filter_map(|entry| match entry {
            LogEntry::Interval(interval) => {
                assert_eq!(interval.max().floor(), 2.0, "{text}");
                interval.tag().map(|tag| tag.as_str().to_owned())
            }
            _ => None,
        });
        assert_eq!(tags.collect::<Vec<_>>(), ["latency", "service_time"], "{text}");
    }
}
