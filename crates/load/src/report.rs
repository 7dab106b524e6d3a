//! What a run measured: the JSON of `ambit load --output json`, written and read through one type.

use std::collections::BTreeMap;
use std::time::Duration;

use ambit_net::sys::clock::ProcessUsage;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::plan::{Extent, Plan, Protocol};
use super::tally::{MAX_FAILED_AT, Tally, empty_histogram};

/// The shape of the JSON; a reader that does not know it must refuse it.
pub const REPORT_VERSION: u32 = 1;
/// Such a part of a percentile may be the generator's own lateness before it is called too slow.
const LATE_PART_MAX: f64 = 0.05;
/// A percentile that fewer requests lie above is decided by chance, and judges no generator.
const REQUESTS_ABOVE_MIN: f64 = 10.0;
/// What works such a part of its time, a thread or a whole host, cannot be trusted to be in time.
pub const BUSY_MAX: f64 = 0.95;
/// In a shorter run, every thread may be busy all the time.
const BUSY_MIN_SECONDS: f64 = 0.1;

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
    /// The run was ended early, and this is what it had measured by then.
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
    /// From the moment each request was sent: this figure hides a stalled server.
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
    /// WebSockets or gRPC streams that were answered; the protocols without messages have none.
    #[serde(default)]
    pub streams_opened: u64,
    /// Of these, the ones that the other side ended, by a message or between two. Each is opened
    /// again for the next message.
    #[serde(default)]
    pub streams_cut: u64,
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
    /// Its threads' processor time from the end of the warm-up on; connecting is not included.
    pub cpu_seconds: f64,
    /// The whole process outside the kernel, from the end of the warm-up on.
    pub user_seconds: f64,
    /// The whole process in the kernel, from the end of the warm-up on.
    pub system_seconds: f64,
    /// Context switches from the end of the warm-up on, because a thread of the process waited.
    pub voluntary_switches: u64,
    /// Context switches from the end of the warm-up on, because a thread's time was up.
    pub involuntary_switches: u64,
    /// Requests that left more than a millisecond after their moment though a connection was idle.
    pub late: u64,
    /// The latest of all.
    pub max_late_us: f64,
    /// What these make of the latencies.
    #[serde(default)]
    pub late_adds: LateAdds,
    /// Requests whose moment came while all connections were busy. Not its fault, but a rate that
    /// the server or the number of connections does not carry.
    pub backlogged: u64,
    /// More than 5 % of a percentile that ten requests lie above is its own lateness, or, in an
    /// open loop, a thread was busy all the time: do not trust the latencies; give it more
    /// processor or more threads.
    pub saturated: bool,
}

/// By how much latencies are longer because the generator was late, in microseconds: what they are,
/// less what they would be if those sends had left in time. Of several generators the greatest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct LateAdds {
    pub p50_us: f64,
    pub p75_us: f64,
    pub p90_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    pub max_us: f64,
}

/// A latency that a report prints, and what of it is the generator's own lateness.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PrintedLatency {
    /// `p99`, and so on.
    pub name: &'static str,
    /// What it is.
    pub us: f64,
    /// What of that the generator's own lateness adds.
    pub late_us: f64,
    /// Whether enough requests lie above it to judge the generator by it.
    pub is_decided: bool,
}

impl PrintedLatency {
    /// Which part the generator's own lateness adds, of 1.
    pub fn late_part(&self) -> f64 {
        if self.us > 0.0 { self.late_us / self.us } else { 0.0 }
    }
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

    /// The figures that are printed, each with what the generator's own lateness adds to it.
    pub(crate) fn printed(&self, late: &LateAdds) -> [PrintedLatency; 6] {
        let of = |name, quantile: f64, us, late_us| {
            let is_decided = self.count as f64 * (1.0 - quantile) >= REQUESTS_ABOVE_MIN;
            PrintedLatency { name, us, late_us, is_decided }
        };
        [
            of("p50", 0.5, self.p50_us, late.p50_us),
            of("p75", 0.75, self.p75_us, late.p75_us),
            of("p90", 0.9, self.p90_us, late.p90_us),
            of("p99", 0.99, self.p99_us, late.p99_us),
            of("p99.9", 0.999, self.p999_us, late.p999_us),
            of("max", 1.0, self.max_us, late.max_us),
        ]
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
    /// Makes it of what all threads counted and what the process used meanwhile.
    pub(super) fn new(
        plan: &Plan,
        started_at: jiff::Timestamp,
        start: Instant,
        end: Instant,
        interrupted: bool,
        tally: &Tally,
        used: &ProcessUsage,
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
        let wait = tally.last_answer.zip(tally.last_due).map(|(it, due)| it - due.min(it));
        let attack_seconds = span.unwrap_or_default().as_secs_f64();
        let sent = tally.requests - tally.unsent;
        let answered = tally.statuses().values().sum::<u64>().max(sent - tally.failed.min(sent));
        let per_second = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        let (requested_seconds, requested_count) = match plan.extent {
            Extent::Time(time) => (Some(time.as_secs_f64()), None),
            Extent::Count(count) => (None, Some(count)),
        };
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
            streams_opened: tally.streams_opened,
            streams_cut: tally.streams_cut,
            generator: Generator::new(plan, tally, used, seconds),
        }
    }

    /// Of the percentiles that judge the generator, the one of which its own lateness is the
    /// greatest part; `None` if it adds nothing to any.
    pub fn latest(&self) -> Option<PrintedLatency> {
        latest(&self.latency, &self.generator.late_adds)
    }

    /// What several generators saw that drove load at the same time: sums, the longest time, and
    /// one histogram of all answers. `None` of none.
    pub fn merged(reports: &[Self]) -> Option<Self> {
        let (first, others) = reports.split_first()?;
        let mut all = first.clone();
        for other in others {
            all.add(other);
        }
        let merged = |latencies: fn(&Self) -> &Latencies| {
            let mut histogram = empty_histogram();
            for report in reports {
                for (value, count) in &latencies(report).histogram_ns {
                    histogram.saturating_record_n(*value, *count);
                }
            }
            Latencies::new(&histogram)
        };
        if !others.is_empty() {
            all.latency = merged(|report| &report.latency);
            all.service_time = merged(|report| &report.service_time);
        }
        Some(all)
    }

    fn add(&mut self, other: &Self) {
        let answered = |report: &Self| report.requests.saturating_sub(report.failed) as f64;
        let (ours, theirs) = (answered(self), answered(other));
        let reads = self.reads_per_response * ours + other.reads_per_response * theirs;
        self.reads_per_response = reads / (ours + theirs).max(1.0);
        self.requested_rate = self.requested_rate.zip(other.requested_rate).map(|(a, b)| a + b);
        self.requested_count = self.requested_count.zip(other.requested_count).map(|(a, b)| a + b);
        self.connections += other.connections;
        self.threads += other.threads;
        self.interrupted |= other.interrupted;
        self.requests += other.requests;
        self.failed += other.failed;
        self.unsent += other.unsent;
        self.abandoned += other.abandoned;
        self.seconds = self.seconds.max(other.seconds);
        self.attack_seconds = self.attack_seconds.max(other.attack_seconds);
        self.wait_seconds = self.wait_seconds.max(other.wait_seconds);
        self.rate += other.rate;
        self.throughput += other.throughput;
        self.gigabits_per_second_out += other.gigabits_per_second_out;
        for (status, count) in &other.status_codes {
            *self.status_codes.entry(*status).or_default() += count;
        }
        for (reason, count) in &other.errors {
            *self.errors.entry(reason.clone()).or_default() += count;
        }
        self.failed_at_ms.extend(&other.failed_at_ms);
        // The first of all are kept, not the first generator's.
        self.failed_at_ms.sort_unstable();
        self.failed_at_ms.truncate(MAX_FAILED_AT);
        self.bytes_in += other.bytes_in;
        self.body_bytes_in += other.body_bytes_in;
        self.bytes_out += other.bytes_out;
        self.body_bytes_out += other.body_bytes_out;
        self.connections_opened += other.connections_opened;
        self.connections_lost_idle += other.connections_lost_idle;
        self.streams_opened += other.streams_opened;
        self.streams_cut += other.streams_cut;
        self.generator.add(&other.generator);
    }
}

fn latest(latency: &Latencies, late: &LateAdds) -> Option<PrintedLatency> {
    let judging = latency.printed(late).into_iter().filter(|it| it.is_decided && it.late_us > 0.0);
    judging.max_by(|a, b| a.late_part().total_cmp(&b.late_part()))
}

impl LateAdds {
    fn new(tally: &Tally) -> Self {
        let added = |quantile| {
            let of = |histogram: &Histogram<u64>| histogram.value_at_quantile(quantile);
            of(&tally.latency).saturating_sub(of(&tally.punctual)) as f64 / 1e3
        };
        Self {
            p50_us: added(0.5),
            p75_us: added(0.75),
            p90_us: added(0.9),
            p99_us: added(0.99),
            p999_us: added(0.999),
            max_us: added(1.0),
        }
    }

    fn greatest(&self, other: &Self) -> Self {
        Self {
            p50_us: self.p50_us.max(other.p50_us),
            p75_us: self.p75_us.max(other.p75_us),
            p90_us: self.p90_us.max(other.p90_us),
            p99_us: self.p99_us.max(other.p99_us),
            p999_us: self.p999_us.max(other.p999_us),
            max_us: self.max_us.max(other.max_us),
        }
    }
}

impl Generator {
    fn add(&mut self, other: &Self) {
        self.cpu_seconds += other.cpu_seconds;
        self.user_seconds += other.user_seconds;
        self.system_seconds += other.system_seconds;
        self.voluntary_switches += other.voluntary_switches;
        self.involuntary_switches += other.involuntary_switches;
        self.late += other.late;
        self.max_late_us = self.max_late_us.max(other.max_late_us);
        self.late_adds = self.late_adds.greatest(&other.late_adds);
        self.backlogged += other.backlogged;
        self.saturated |= other.saturated;
    }

    fn new(plan: &Plan, tally: &Tally, used: &ProcessUsage, wall_seconds: f64) -> Self {
        let late_adds = LateAdds::new(tally);
        let latest = latest(&Latencies::new(&tally.latency), &late_adds);
        let is_late = latest.is_some_and(|it| it.late_part() > LATE_PART_MAX);
        let busy = tally.cpu.as_secs_f64() / (wall_seconds * plan.threads as f64).max(1e-9);
        let may_be_idle = plan.pace.rate().is_some() && wall_seconds >= BUSY_MIN_SECONDS;
        Self {
            cpu_seconds: tally.cpu.as_secs_f64(),
            user_seconds: used.user.as_secs_f64(),
            system_seconds: used.system.as_secs_f64(),
            voluntary_switches: used.voluntary_switches,
            involuntary_switches: used.involuntary_switches,
            late: tally.late,
            max_late_us: tally.max_late.as_nanos() as f64 / 1e3,
            late_adds,
            backlogged: tally.backlogged,
            saturated: is_late || may_be_idle && busy > BUSY_MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::Answer;
    use crate::turns::Turn;

    fn report(requests: u64, latency_ns: u64) -> Report {
        let mut histogram = empty_histogram();
        histogram.record_n(latency_ns, requests).unwrap();
        let latency = Latencies::new(&histogram);
        Report { requests, rate: 10.0, reads_per_response: 2.0, latency, ..Report::default() }
    }

    #[test]
    fn a_generator_is_judged_by_what_it_had_time_for() {
        let plan = crate::plan::tests::plan("http://a/");
        let check = |cpu_ms, wall_seconds, expected| {
            let mut tally = Tally::new();
            tally.cpu = Duration::from_millis(cpu_ms);
            let generator = Generator::new(&plan, &tally, &ProcessUsage::default(), wall_seconds);
            assert_eq!(generator.saturated, expected, "{cpu_ms} ms in {wall_seconds} s");
        };
        check(20, 0.0, false);
        check(20, 0.01, false);
        check(900, 1.0, false);
        check(990, 1.0, true);
    }

    #[test]
    fn late_sends_are_judged_by_what_they_do_to_percentiles() {
        let plan = crate::plan::tests::plan("http://a/");
        let start = Instant::now();
        let ms = Duration::from_millis;
        let judged = |requests: u64, late: u64, late_ms: u64| {
            let mut tally = Tally::new();
            for number in 0..requests {
                let (due, late) = (start, if number < late { ms(late_ms) } else { ms(0) });
                let turn = Turn { due, ready: due, sent: due + late, counts: true };
                let answered = Ok(Answer { status: Some(200), ..Answer::default() });
                let service = Duration::from_micros(2000 + 10 * (number % 300));
                tally.count(&turn, turn.sent + service, &answered, start);
            }
            let generator = Generator::new(&plan, &tally, &ProcessUsage::default(), 10.0);
            let latency = Latencies::new(&tally.latency);
            Report { latency, generator, ..Report::default() }
        };
        let check = |report: &Report, saturated: bool, latest: Option<&str>| {
            assert_eq!(report.generator.saturated, saturated, "{report:?}");
            assert_eq!(report.latest().map(|it| it.name), latest, "{report:?}");
        };
        check(&judged(300, 0, 0), false, None);
        let six = judged(300, 6, 30);
        check(&six, false, Some("p50"));
        assert_eq!(six.generator.late, 6);
        let [.., p99, _, most] = six.latency.printed(&six.generator.late_adds);
        assert!(!p99.is_decided && p99.late_us > 20_000.0, "{p99:?}");
        assert!((most.late_us - 27_000.0).abs() < 200.0, "{most:?}");
        check(&judged(3000, 60, 30), true, Some("p99"));
        check(&judged(300, 100, 30), true, Some("p75"));
        check(&judged(300, 300, 1), false, None);
    }

    #[test]
    fn several_generators_make_one_report() {
        let all = Report::merged(&[report(30, 1_000), report(10, 9_000)]).unwrap();
        assert_eq!((all.requests, all.rate, all.latency.count), (40, 20.0, 40));
        assert_eq!((all.latency.p50_us.round(), all.latency.max_us.round()), (1.0, 9.0));
        assert_eq!(all.reads_per_response, 2.0);
        assert_eq!(Report::merged(&[report(3, 1_000)]), Some(report(3, 1_000)));
        assert_eq!(Report::merged(&[]), None);
    }

    #[test]
    fn the_first_failures_of_all_generators_are_kept() {
        let failing_from = |start: u64| {
            let failed_at_ms = (start..start + MAX_FAILED_AT as u64).collect();
            Report { failed_at_ms, ..report(1, 1_000) }
        };
        let all = Report::merged(&[failing_from(500), failing_from(0)]).unwrap();
        assert_eq!(all.failed_at_ms.len(), MAX_FAILED_AT);
        assert_eq!(all.failed_at_ms[..2], [0, 1]);
        assert_eq!(all.failed_at_ms[MAX_FAILED_AT - 2..], [749, 749]);
    }
}
