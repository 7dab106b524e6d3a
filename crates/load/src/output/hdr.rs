//! The interval log of HdrHistogram, which its plotters and every language's library read.

use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};

use crate::report::Report;

/// Nanoseconds are logged, milliseconds are shown.
const NS_PER_MS: f64 = 1e6;

/// One interval, the whole run, for each of the two ways of counting.
pub(super) fn write(report: &Report) -> Result<String> {
    let started: jiff::Timestamp = report.started_at.parse().context("read the start")?;
    let mut bytes = Vec::new();
    let mut serializer = V2DeflateSerializer::new();
    let mut builder = IntervalLogWriterBuilder::new();
    builder.add_comment(&format!("ambit load {}; values in nanoseconds", report.url));
    builder.with_start_time(SystemTime::from(started)).with_max_value_divisor(NS_PER_MS);
    let mut log = builder.begin_log_with(&mut bytes, &mut serializer).context("begin the log")?;
    let length = Duration::from_secs_f64(report.seconds);
    let begin = Duration::from_secs_f64(report.warm_up_seconds);
    for (tag, series) in [("latency", &report.latency), ("service_time", &report.service_time)] {
        log.write_histogram(&series.histogram(), begin, length, Tag::new(tag))
            .map_err(|error| anyhow::anyhow!("write the {tag} histogram: {error:?}"))?;
    }
    String::from_utf8(bytes).context("an HDR log is text")
}
