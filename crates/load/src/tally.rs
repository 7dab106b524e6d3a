//! What a thread counts while it runs. Nothing here may allocate for a successful request.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use tokio::time::Instant;

use super::transport::{Answer, Failure};
use super::turns::Turn;

/// The longest latency that is recorded: longer than any run, in nanoseconds.
const MAX_LATENCY_NS: u64 = 2 * 86_400 * 1_000_000_000;
/// A send that leaves so much after a worker was there for it is the generator's own fault.
pub(super) const LATE: Duration = Duration::from_millis(1);
/// As many failures keep their moment.
pub(super) const MAX_FAILED_AT: usize = 1000;
/// Most different reasons of failure that are counted separately.
const MAX_REASONS: usize = 100;
const MAX_STATUS: usize = 1000;

/// The counts of one thread, or of several added up.
#[derive(Clone, Debug)]
pub(super) struct Tally {
    /// From the moment a request was due, in nanoseconds.
    pub(super) latency: Histogram<u64>,
    /// The same, but for late sends from when they left: as if they had left in time.
    pub(super) punctual: Histogram<u64>,
    /// From the moment it left.
    pub(super) service: Histogram<u64>,
    /// Exchanges that ended, the warm-up's included.
    pub(super) seen: u64,
    pub(super) requests: u64,
    pub(super) failed: u64,
    pub(super) unsent: u64,
    pub(super) abandoned: u64,
    statuses: Vec<u64>,
    pub(super) reasons: BTreeMap<String, u64>,
    pub(super) failed_at_ms: Vec<u64>,
    pub(super) bytes_in: u64,
    pub(super) body_bytes_in: u64,
    pub(super) bytes_out: u64,
    pub(super) reads: u64,
    pub(super) opened: u64,
    pub(super) lost_idle: u64,
    pub(super) streams_opened: u64,
    pub(super) streams_cut: u64,
    pub(super) late: u64,
    pub(super) max_late: Duration,
    pub(super) backlogged: u64,
    pub(super) cpu: Duration,
    /// Of the requests that count.
    pub(super) first_due: Option<Instant>,
    pub(super) last_due: Option<Instant>,
    pub(super) last_answer: Option<Instant>,
}

/// Three digits, from a nanosecond on.
pub(super) fn empty_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, MAX_LATENCY_NS, 3)
        .expect("three digits up to two days are within what a histogram can hold")
}

impl Tally {
    pub(super) fn new() -> Self {
        Self {
            latency: empty_histogram(),
            punctual: empty_histogram(),
            service: empty_histogram(),
            seen: 0,
            requests: 0,
            failed: 0,
            unsent: 0,
            abandoned: 0,
            statuses: vec![0; MAX_STATUS],
            reasons: BTreeMap::new(),
            failed_at_ms: Vec::new(),
            bytes_in: 0,
            body_bytes_in: 0,
            bytes_out: 0,
            reads: 0,
            opened: 0,
            lost_idle: 0,
            streams_opened: 0,
            streams_cut: 0,
            late: 0,
            max_late: Duration::ZERO,
            backlogged: 0,
            cpu: Duration::ZERO,
            first_due: None,
            last_due: None,
            last_answer: None,
        }
    }

    /// Counts a turn and what came of it. `start` is the run's.
    pub(super) fn count(
        &mut self,
        turn: &Turn,
        now: Instant,
        outcome: &Result<Answer, Failure>,
        start: Instant,
    ) {
        self.seen += 1;
        if !turn.counts {
            return;
        }
        self.requests += 1;
        self.first_due = Some(self.first_due.map_or(turn.due, |first| first.min(turn.due)));
        self.last_due = Some(self.last_due.map_or(turn.due, |last| last.max(turn.due)));
        self.last_answer = Some(now);
        let late = turn.sent - turn.ready;
        let is_late = late > LATE;
        self.late += u64::from(is_late);
        self.max_late = self.max_late.max(late);
        self.backlogged += u64::from(turn.ready > turn.due);
        let is_timed = match outcome {
            Ok(answer) => {
                self.answer(answer, now, start);
                true
            }
            Err(failure) => {
                self.fail(failure.to_string(), now, start);
                // Who gave up waiting knows that it took that long at least.
                matches!(failure, Failure::Timeout)
            }
        };
        if is_timed {
            let latency = now - turn.due;
            self.latency.saturating_record(nanos(latency));
            let own = if is_late { late } else { Duration::ZERO };
            self.punctual.saturating_record(nanos(latency - own));
            self.service.saturating_record(nanos(now - turn.sent));
        }
    }

    fn answer(&mut self, answer: &Answer, now: Instant, start: Instant) {
        self.bytes_in += answer.bytes_in;
        self.body_bytes_in += answer.body_bytes_in;
        self.bytes_out += answer.bytes_out;
        self.reads += u64::from(answer.reads);
        if let Some(status) = answer.status {
            self.statuses[usize::from(status).min(MAX_STATUS - 1)] += 1;
            if !(200..400).contains(&status) {
                self.fail(format!("status {status}"), now, start);
            }
        }
    }

    fn fail(&mut self, reason: String, now: Instant, start: Instant) {
        self.failed += 1;
        self.reason(reason, 1);
        if self.failed_at_ms.len() < MAX_FAILED_AT {
            let at = now.saturating_duration_since(start).as_millis();
            self.failed_at_ms.push(u64::try_from(at).unwrap_or(u64::MAX));
        }
    }

    fn reason(&mut self, reason: String, count: u64) {
        let is_known = self.reasons.contains_key(&reason);
        let is_one_too_many = self.reasons.len() >= MAX_REASONS && !is_known;
        let reason = if is_one_too_many { "other reasons".to_owned() } else { reason };
        *self.reasons.entry(reason).or_default() += count;
    }

    /// Counts a request that was due and never sent. Its latency is its delay so far.
    pub(super) fn count_unsent(&mut self, due: Instant, now: Instant, start: Instant) {
        self.requests += 1;
        self.unsent += 1;
        self.last_due = Some(self.last_due.map_or(due, |last| last.max(due)));
        let waited = nanos(now.saturating_duration_since(due));
        self.latency.saturating_record(waited);
        self.punctual.saturating_record(waited);
        self.fail("no time left to send".to_owned(), now, start);
    }

    /// Counts what went wrong when a worker ended.
    pub(super) fn count_end(&mut self, failure: &Failure, now: Instant, start: Instant) {
        self.fail(failure.to_string(), now, start);
    }

    /// The statuses that came, with how often.
    pub(super) fn statuses(&self) -> BTreeMap<u16, u64> {
        let seen = self.statuses.iter().enumerate().filter(|(_, count)| **count > 0);
        seen.filter_map(|(status, count)| Some((u16::try_from(status).ok()?, *count))).collect()
    }

    /// Adds another thread's.
    pub(super) fn add(&mut self, other: &Self) {
        let same = "both histograms have the same bounds";
        self.latency.add(&other.latency).expect(same);
        self.punctual.add(&other.punctual).expect(same);
        self.service.add(&other.service).expect(same);
        self.seen += other.seen;
        self.requests += other.requests;
        self.failed += other.failed;
        self.unsent += other.unsent;
        self.abandoned += other.abandoned;
        for (mine, others) in self.statuses.iter_mut().zip(&other.statuses) {
            *mine += others;
        }
        for (reason, count) in &other.reasons {
            self.reason(reason.clone(), *count);
        }
        self.failed_at_ms.extend(&other.failed_at_ms);
        self.failed_at_ms.sort_unstable();
        self.failed_at_ms.truncate(MAX_FAILED_AT);
        self.bytes_in += other.bytes_in;
        self.body_bytes_in += other.body_bytes_in;
        self.bytes_out += other.bytes_out;
        self.reads += other.reads;
        self.opened += other.opened;
        self.lost_idle += other.lost_idle;
        self.streams_opened += other.streams_opened;
        self.streams_cut += other.streams_cut;
        self.late += other.late;
        self.max_late = self.max_late.max(other.max_late);
        self.backlogged += other.backlogged;
        self.cpu += other.cpu;
        self.first_due = [self.first_due, other.first_due].into_iter().flatten().min();
        self.last_due = self.last_due.max(other.last_due);
        self.last_answer = self.last_answer.max(other.last_answer);
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
