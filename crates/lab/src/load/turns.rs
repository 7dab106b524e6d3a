//! Whose turn it is, and when: the schedule of a run.
//!
//! Open loop: the n-th request is due at the start plus n intervals, whatever the answers do. A
//! worker that has nothing to do takes the next turn and waits for its moment; a turn whose moment
//! comes while every worker is busy waits for one, and its latency counts from its moment all the
//! same. That is the whole defence against coordinated omission, so nothing here may ever skip or
//! move a turn.

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
    /// Of the turns that are due; after it nothing becomes due.
    end: Option<Instant>,
    /// No turn is taken any more from here on, though it were due.
    give_up: Option<Instant>,
    /// Turns to take, the warm-up's included.
    limit: Option<u64>,
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
        let interval_ns = match plan.pace {
            Pace::Rate(rate) => Some(1e9 / rate),
            Pace::Max => None,
        };
        let (end, limit) = match (plan.extent, plan.pace) {
            (Extent::Time(time), _) => (Some(warm_until + time), None),
            (Extent::Count(count), Pace::Rate(rate)) => {
                let warm = (plan.warm_up.as_secs_f64() * rate).ceil() as u64;
                (None, Some(share.count(warm + count)))
            }
            // How many the warm-up takes is known only when it is over.
            (Extent::Count(count), Pace::Max) => (None, Some(share.count(count))),
        };
        Self {
            start,
            warm_until,
            end,
            give_up: end.map(|end| end + plan.timeout),
            limit,
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
        let due = self.start + self.offset(interval_ns, self.taken.get());
        let mut now = Instant::now();
        let is_over = self.end.is_some_and(|end| due >= end)
            || self.give_up.is_some_and(|give_up| now >= give_up)
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
        let counts = due >= self.warm_until;
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

    fn offset(&self, interval_ns: f64, taken: u64) -> Duration {
        let number = taken * self.share.of + self.share.index;
        Duration::from_nanos((number as f64 * interval_ns) as u64)
    }

    /// The moments of the turns that nobody took though they were due; for the end of a run.
    pub(super) fn unsent(&self) -> impl Iterator<Item = Instant> {
        let left = self.end.zip(self.interval_ns).map(|(end, interval_ns)| {
            (self.taken.get()..)
                .map(move |taken| self.start + self.offset(interval_ns, taken))
                .take_while(move |due| *due < end)
                .filter(|due| *due >= self.warm_until)
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
