//! What a run measured: the JSON of `ambit load --output json`, written and read through one type.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::plan::{Extent, Plan, Protocol};
use super::tally::{Tally, empty_histogram};

/// The shape of the JSON; a reader that does not know it must refuse it.
pub const REPORT_VERSION: u32 = 1;
/// So many of a hundred sends may leave late before the generator is called too slow.
const LATE_PERCENT_MAX: f64 = 1.0;
/// A thread that works so much of its time cannot be trusted to be in time.
const BUSY_MAX: f64 = 0.95;

/// What a run measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`REPORT_VERSION`].
    pub version: u32,
    /// As written.
    pub url: String,
    /// How the server was spoken to.
    pub protocol: Protocol,
    /// HTTP's method.
    pub method: String,
    /// RFC 3339, before the warm-up.
    pub started_at: String,
    /// Requests per second that were to become due; absent in a closed loop.
    pub requested_rate: Option<f64>,
    /// How long they were to become due, if not a number of them was asked for.
    pub requested_seconds: Option<f64>,
    /// How many were asked for.
    pub requested_count: Option<u64>,
    /// Connections at the start.
    pub connections: usize,
    /// Threads.
    pub threads: usize,
    /// What came before and is not counted.
    pub warm_up_seconds: f64,
    /// It was ended before its time, and this is what it had measured by then.
    pub interrupted: bool,
    /// Requests that were sent, or should have been.
    pub requests: u64,
    /// Of these, the ones without an answer or with a status other than 2xx and 3xx.
    pub failed: u64,
    /// Of these, the ones that were due and for which no time was left.
    pub unsent: u64,
    /// Requests that were under way when it was ended before its time; not counted elsewhere.
    pub abandoned: u64,
    /// From the end of the warm-up to the last answer.
    pub seconds: f64,
    /// From the first to the last moment at which a request was due.
    pub attack_seconds: f64,
    /// From the last such moment to the last answer.
    pub wait_seconds: f64,
    /// Requests that left, per second.
    pub rate: f64,
    /// Good answers per second.
    pub throughput: f64,
    /// Sent, in billions of bits per second.
    pub gigabits_per_second_out: f64,
    /// From the moment each request was due: of all that were answered, timed out or never left.
    pub latency: Latencies,
    /// From the moment each request left: what hides a server that stands still.
    pub service_time: Latencies,
    /// Answers by HTTP's status.
    pub status_codes: BTreeMap<u16, u64>,
    /// Failures by reason.
    pub errors: BTreeMap<String, u64>,
    /// When failures happened, in milliseconds from the start; the first 1,000.
    pub failed_at_ms: Vec<u64>,
    /// Read, heads included.
    pub bytes_in: u64,
    /// Read, heads not included.
    pub body_bytes_in: u64,
    /// Written, heads included.
    pub bytes_out: u64,
    /// Written, heads not included.
    pub body_bytes_out: u64,
    /// Calls of read(2) per answer; 0 where a library reads.
    pub reads_per_response: f64,
    /// Connections that were made.
    pub connections_opened: u64,
    /// Connections that the server closed between two requests.
    pub connections_lost_idle: u64,
    /// Whether to trust it.
    pub generator: Generator,
}

/// Percentiles in microseconds, and all there is behind them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Latencies {
    pub count: u64,
    pub min_us: f64,
    pub mean_us: f64,
    pub stddev_us: f64,
    pub p50_us: f64,
    pub p75_us: f64,
    pub p90_us: f64,
    pub p95_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    pub max_us: f64,
    /// Value in nanoseconds, as exact as three digits are, and how often it was seen.
    pub histogram_ns: Vec<(u64, u64)>,
}

/// What the load generator itself did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Generator {
    /// Its threads' processor time, warm-up included.
    pub cpu_seconds: f64,
    /// Requests that left more than a millisecond after their moment though a connection was idle.
    pub late: u64,
    /// The latest of all.
    pub max_late_us: f64,
    /// Requests whose moment came while all connections were busy. Not its fault, but a rate that
    /// the server or the number of connections does not carry.
    pub backlogged: u64,
    /// More than 1 % left late, or, in an open loop, a thread was busy all the time: do not trust
    /// the latencies; give it more processor or more threads.
    pub saturated: bool,
}

impl Latencies {
    fn new(histogram: &Histogram<u64>) -> Self {
        let us = |ns: u64| ns as f64 / 1e3;
        let at = |quantile| us(histogram.value_at_quantile(quantile));
        let seen = histogram.iter_recorded();
        Self {
            count: histogram.len(),
            min_us: if histogram.is_empty() { 0.0 } else { us(histogram.min()) },
            mean_us: histogram.mean() / 1e3,
            stddev_us: histogram.stdev() / 1e3,
            p50_us: at(0.5),
            p75_us: at(0.75),
            p90_us: at(0.9),
            p95_us: at(0.95),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: us(histogram.max()),
            histogram_ns: seen
                .map(|step| (step.value_iterated_to(), step.count_since_last_iteration()))
                .collect(),
        }
    }

    /// The histogram it was made from.
    pub fn histogram(&self) -> Histogram<u64> {
        let mut histogram = empty_histogram();
        for (value, count) in &self.histogram_ns {
            histogram.saturating_record_n(*value, *count);
        }
        histogram
    }
}

impl Report {
    /// Makes it of what all threads counted.
    pub(super) fn new(
        plan: &Plan,
        started_at: jiff::Timestamp,
        start: Instant,
        end: Instant,
        interrupted: bool,
        tally: &Tally,
    ) -> Self {
        let warm_until = start + plan.warm_up;
        let requested = match plan.extent {
            Extent::Time(time) if !interrupted => time,
            _ => Duration::ZERO,
        };
        // The last request is due before the end, and the run lasts until then at least.
        let is_stream = plan.target.protocol == Protocol::TcpStream;
        let last = if interrupted || is_stream { Some(end) } else { tally.last_answer };
        let elapsed =
            last.map_or(Duration::ZERO, |last| last.saturating_duration_since(warm_until));
        let seconds = elapsed.max(requested).as_secs_f64();
        let span = tally.last_due.zip(tally.first_due).map(|(last, first)| last - first);
        let wait = tally.last_answer.zip(tally.last_due);
        let wait = wait.map(|(answer, due)| answer.saturating_duration_since(due));
        let attack_seconds = span.unwrap_or_default().as_secs_f64();
        let sent = tally.requests - tally.unsent;
        let answered = tally.statuses().values().sum::<u64>().max(sent - tally.failed.min(sent));
        let per_second = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        let (requested_seconds, requested_count) = match plan.extent {
            Extent::Time(time) => (Some(time.as_secs_f64()), None),
            Extent::Count(count) => (None, Some(count)),
        };
        let wall = plan.warm_up.as_secs_f64() + seconds;
        Self {
            version: REPORT_VERSION,
            url: plan.target.url.clone(),
            protocol: plan.target.protocol,
            method: plan.request.method.clone(),
            started_at: started_at.to_string(),
            requested_rate: plan.pace.rate(),
            requested_seconds,
            requested_count,
            connections: plan.connections,
            threads: plan.threads,
            warm_up_seconds: plan.warm_up.as_secs_f64(),
            interrupted,
            requests: tally.requests,
            failed: tally.failed,
            unsent: tally.unsent,
            abandoned: tally.abandoned,
            seconds,
            attack_seconds,
            wait_seconds: wait.unwrap_or_default().as_secs_f64(),
            rate: per_second(sent),
            throughput: per_second(tally.requests - tally.failed.min(tally.requests)),
            gigabits_per_second_out: per_second(tally.bytes_out) * 8e-9,
            latency: Latencies::new(&tally.latency),
            service_time: Latencies::new(&tally.service),
            status_codes: tally.statuses(),
            errors: tally.reasons.clone(),
            failed_at_ms: tally.failed_at_ms.clone(),
            bytes_in: tally.bytes_in,
            body_bytes_in: tally.body_bytes_in,
            bytes_out: tally.bytes_out,
            body_bytes_out: answered * plan.request.body.len() as u64,
            reads_per_response: tally.reads as f64 / answered.max(1) as f64,
            connections_opened: tally.opened,
            connections_lost_idle: tally.lost_idle,
            generator: Generator::new(plan, tally, sent, wall),
        }
    }
}

impl Generator {
    fn new(plan: &Plan, tally: &Tally, sent: u64, wall_seconds: f64) -> Self {
        let late_percent = tally.late as f64 * 100.0 / sent.max(1) as f64;
        let busy = tally.cpu.as_secs_f64() / (wall_seconds * plan.threads as f64).max(1e-9);
        let is_open_loop = plan.pace.rate().is_some();
        Self {
            cpu_seconds: tally.cpu.as_secs_f64(),
            late: tally.late,
            max_late_us: tally.max_late.as_nanos() as f64 / 1e3,
            backlogged: tally.backlogged,
            saturated: late_percent > LATE_PERCENT_MAX || is_open_loop && busy > BUSY_MAX,
        }
    }
}
