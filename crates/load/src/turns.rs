//! The schedule of a run: which request is due when.
//!
//! Open loop: the n-th request is due at the start plus n intervals, whatever the responses do. An
//! idle worker takes the next turn and waits for its due time. If every worker is busy at that
//! time, the turn waits for one, but its latency still counts from its due time. That is the whole
//! defence against coordinated omission, so nothing here may ever skip or move a turn.

use std::cell::Cell;
use std::time::Duration;

use tokio::sync::{Mutex, Notify};
use tokio::time::Instant;

use super::plan::{Extent, Pace, Plan};

/// Waits for moments. A seam: real time wants the kernel's timer, tests have simulated time.
pub(super) trait Alarm {
    /// Waits until the moment has come.
    async fn until(&mut self, moment: Instant);
}

/// This thread's part of the schedule: every `of`-th turn, beginning with `index`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    pub(super) index: u64,
    pub(super) of: u64,
}

impl Share {
    /// This share of a number of things.
    pub(super) fn count(self, all: u64) -> u64 {
        all / self.of + u64::from(self.index < all % self.of)
    }
}

/// A request that may leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Turn {
    /// When it was to leave; latency counts from here.
    pub(super) due: Instant,
    /// When a worker was there for it. After `due` only if all were busy.
    pub(super) ready: Instant,
    /// When it leaves.
    pub(super) sent: Instant,
    /// It comes after the warm-up.
    pub(super) counts: bool,
}

/// The turns of one thread.
#[derive(Debug)]
pub(super) struct Turns<A> {
    start: Instant,
    warm_until: Instant,
    /// Of a closed loop.
    end: Option<Instant>,
    /// No turn is taken any more from here on, though it were due.
    give_up: Option<Instant>,
    /// Turns to take; in an open loop, the warm-up's included.
    limit: Option<u64>,
    /// In an open loop, the turns of all threads that are the warm-up's.
    warm: u64,
    /// Of the rate; absent in a closed loop.
    interval_ns: Option<f64>,
    share: Share,
    taken: Cell<u64>,
    counted: Cell<u64>,
    /// Workers that wait for a turn.
    waiting: Cell<usize>,
    /// Nobody is left to take the next turn.
    all_busy: Notify,
    /// Its holder waits for the next turn's moment; the others queue, first come, first served.
    alarm: Mutex<A>,
}

impl<A: Alarm> Turns<A> {
    /// The turns of a share of the plan.
    pub(super) fn new(plan: &Plan, share: Share, start: Instant, alarm: A) -> Self {
        let warm_until = start + plan.warm_up;
        let (interval_ns, warm, limit, end) = match (plan.pace, plan.extent) {
            (Pace::Rate(rate), extent) => {
                let (warm, all) = open_loop(rate, plan.warm_up, extent);
                let end = match extent {
                    Extent::Time(time) => Some(warm_until + time),
                    Extent::Count(_) => None,
                };
                (Some(1e9 / rate), warm, Some(share.count(all)), end)
            }
            (Pace::Max, Extent::Time(time)) => (None, 0, None, Some(warm_until + time)),
            // How many the warm-up takes is known only when it is over.
            (Pace::Max, Extent::Count(count)) => (None, 0, Some(share.count(count)), None),
        };
        Self {
            start,
            warm_until,
            end,
            give_up: end.map(|end| end + plan.timeout),
            limit,
            warm,
            interval_ns,
            share,
            taken: Cell::new(0),
            counted: Cell::new(0),
            waiting: Cell::new(0),
            all_busy: Notify::new(),
            alarm: Mutex::new(alarm),
        }
    }

    /// The next turn, when its moment has come; `None` when there is none left.
    pub(super) async fn next(&self) -> Option<Turn> {
        let Some(interval_ns) = self.interval_ns else { return self.at_once() };
        let arrived = Instant::now();
        self.waiting.update(|count| count + 1);
        let mut alarm = self.alarm.lock().await;
        self.waiting.update(|count| count - 1);
        let number = self.number(self.taken.get());
        let due = self.due(interval_ns, number);
        let mut now = Instant::now();
        let is_over = self.give_up.is_some_and(|give_up| now >= give_up)
            || self.limit.is_some_and(|limit| self.taken.get() >= limit);
        if is_over {
            return None;
        }
        self.taken.update(|taken| taken + 1);
        if due > now {
            alarm.until(due).await;
            now = Instant::now();
        }
        drop(alarm);
        if self.waiting.get() == 0 {
            self.all_busy.notify_one();
        }
        let counts = number >= self.warm;
        Some(Turn { due, ready: due.max(arrived), sent: now, counts })
    }

    /// Closed loop: it is always somebody's turn.
    fn at_once(&self) -> Option<Turn> {
        let now = Instant::now();
        let counts = now >= self.warm_until;
        let is_over = self.end.is_some_and(|end| now >= end)
            || self.limit.is_some_and(|limit| self.counted.get() >= limit);
        if is_over {
            return None;
        }
        self.taken.update(|taken| taken + 1);
        self.counted.update(|counted| counted + u64::from(counts));
        Some(Turn { due: now, ready: now, sent: now, counts })
    }

    /// The number, among the turns of all threads, of one of this thread's.
    fn number(&self, taken: u64) -> u64 {
        taken * self.share.of + self.share.index
    }

    fn due(&self, interval_ns: f64, number: u64) -> Instant {
        self.start + Duration::from_nanos((number as f64 * interval_ns) as u64)
    }

    /// The due times of turns that no worker took; for the end of a run.
    pub(super) fn unsent(&self) -> impl Iterator<Item = Instant> {
        let left = self.limit.zip(self.interval_ns).map(|(limit, interval_ns)| {
            let numbers = (self.taken.get()..limit).map(|taken| self.number(taken));
            let counted = numbers.filter(|number| *number >= self.warm);
            counted.map(move |number| self.due(interval_ns, number))
        });
        left.into_iter().flatten()
    }

    /// Waits until a turn was taken by the last worker that was idle.
    pub(super) async fn all_busy(&self) {
        self.all_busy.notified().await;
    }

    /// Turns that were taken, the warm-up's included.
    pub(super) fn taken(&self) -> u64 {
        self.taken.get()
    }
}

/// How many requests of an open loop warm up, and how many become due in all. The last is due
/// before the end: 450/s for 2 s are 900.
fn open_loop(rate: f64, warm_up: Duration, extent: Extent) -> (u64, u64) {
    // What is a whole number on paper must not become the next one by its last digit.
    let due_before = |time: Duration| (time.as_secs_f64() * rate - 1e-6).ceil().max(0.0) as u64;
    let warm = due_before(warm_up);
    match extent {
        Extent::Time(time) => (warm, due_before(warm_up + time)),
        Extent::Count(count) => (warm, warm + count),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_and_a_time_make_a_number() {
        let check = |rate, warm_ms, time_ms, expected| {
            let time = Extent::Time(Duration::from_millis(time_ms));
            assert_eq!(open_loop(rate, Duration::from_millis(warm_ms), time), expected, "{rate}");
        };
        check(450.0, 0, 2000, (0, 900));
        check(450.0, 0, 600_000, (0, 270_000));
        check(100.0, 305, 1000, (31, 131));
        check(0.5, 0, 1000, (0, 1));
        check(1.0 / 3.0, 0, 9000, (0, 3));
        let count = Extent::Count(50);
        assert_eq!(open_loop(100.0, Duration::from_millis(305), count), (31, 81));
    }
}
