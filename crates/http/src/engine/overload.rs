//! When a pod has too much to do, and what it refuses then.
//!
//! Three signs are looked at: requests under way and bytes in buffers, of all threads, and how late
//! this thread's timers are, which is how long everything waits for its turn. New requests are
//! refused first, with 503 and the reason `overload`; what is under way goes on. Where that does
//! not help, new connections are refused too. What operators and the control plane need runs on
//! threads of its own. A state machine: the caller looks, and passes the time in.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::engine::compression::room::Room;
pub use crate::engine::copies::{Copies, Cut};

/// How often a thread looks ...
pub(crate) const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// ... and how often where there is nothing to do.
pub(crate) const IDLE_LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// Looks one after the other that find timers late before anything is refused: a thread that was
/// stopped once, as a container is by its limit of processor time, is not overloaded.
const LATE_LOOKS: u32 = 5;
/// So many more of a hundred requests are refused with each look that finds timers late ...
const MORE_PERCENT: u32 = 10;
/// ... and so many fewer with each that does not.
const LESS_PERCENT: u32 = 5;
/// At most so many: what gets through shows whether it is over.
const MOST_PERCENT: u32 = 95;
/// After so long of refusing all that may be refused, connections are refused too.
const PATIENCE: Duration = Duration::from_secs(2);

/// How much a pod may have to do. `None` is no bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// Requests under way.
    pub requests: Option<usize>,
    /// Bytes in the engine's buffers.
    pub held_bytes: Option<usize>,
    /// How late a thread's timers may be.
    pub lag: Option<Duration>,
}

/// What one request needs of a pod's memory, by and large: its task, its heads, a buffer.
const REQUEST_BYTES: usize = 64 * 1024;
/// The part of a pod's memory that may be in buffers.
const HELD_PART: usize = 4;
/// The part of it that copies of requests may hold besides: they have nothing refused.
const COPIES_PART: usize = 4;
/// The part of it that encoders of responses may take besides.
const ENCODERS_PART: usize = 4;
/// Descriptors of a request: a connection of its own to an endpoint, and maybe its client's.
const REQUEST_DESCRIPTORS: usize = 2;

impl Bounds {
    /// What suits a pod of this size.
    pub fn derived(memory_bytes: usize, descriptors: usize) -> Self {
        let requests = (memory_bytes / REQUEST_BYTES).min(descriptors / REQUEST_DESCRIPTORS);
        Self {
            requests: Some(requests.max(1)),
            held_bytes: Some(memory_bytes / HELD_PART),
            lag: None,
        }
    }
}

/// What all engines of a pod have to do, and may have.
#[derive(Debug, Default)]
pub struct Pressure {
    bounds: Bounds,
    requests: AtomicUsize,
    held_bytes: AtomicUsize,
    /// Requests that were refused, by [`Shed`].
    shed: [AtomicUsize; Shed::ALL.len()],
    copies: Arc<Copies>,
    encoders: Arc<Room>,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shed {
    /// As many are under way as may be.
    Requests,
    /// The buffers hold as much as they may.
    Memory,
    /// Everything waits too long for its turn.
    Lag,
}

impl Shed {
    const ALL: [Self; 3] = [Self::Requests, Self::Memory, Self::Lag];

    /// One word, for metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Memory => "memory",
            Self::Lag => "lag",
        }
    }
}

/// A request under way; dropped, it has ended.
#[derive(Debug)]
pub(crate) struct Counted<'a>(&'a Pressure);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.requests.fetch_sub(1, Relaxed);
    }
}

impl Pressure {
    /// Nothing is under way.
    pub fn new(bounds: Bounds) -> Self {
        let copies = Arc::new(Copies::new(bounds.held_bytes.map(|most| most / COPIES_PART)));
        let encoders = Arc::new(Room::new(bounds.held_bytes.map(|most| most / ENCODERS_PART)));
        Self { bounds, copies, encoders, ..Self::default() }
    }

    /// Requests under way.
    pub fn requests(&self) -> usize {
        self.requests.load(Relaxed)
    }

    /// Bytes in buffers, as the threads last said, and those that wait for mirrors.
    pub fn held_bytes(&self) -> usize {
        self.held_bytes.load(Relaxed) + self.copies.bytes()
    }

    /// Copies of requests, for mirrors.
    pub fn copies(&self) -> &Arc<Copies> {
        &self.copies
    }

    /// Memory for the encoders of responses.
    pub(crate) fn encoders(&self) -> &Arc<Room> {
        &self.encoders
    }

    /// Requests that were refused.
    pub fn shed(&self) -> impl Iterator<Item = (Shed, usize)> {
        Shed::ALL.into_iter().map(|why| (why, self.shed[why as usize].load(Relaxed)))
    }

    /// Counts a request, unless it is refused.
    pub(crate) fn admit(
        &self,
        thread: &Overload,
        percent: impl FnOnce() -> u32,
    ) -> Result<Counted<'_>, Shed> {
        let before = self.requests.fetch_add(1, Relaxed);
        let counted = Counted(self);
        let is_over = self.bounds.requests.is_some_and(|most| before >= most);
        let why = if is_over { Some(Shed::Requests) } else { thread.sheds(percent) };
        match why {
            None => Ok(counted),
            Some(why) => {
                self.shed[why as usize].fetch_add(1, Relaxed);
                Err(why)
            }
        }
    }
}

/// What one thread refuses.
#[derive(Debug, Default)]
pub(crate) struct Overload {
    /// What this thread last said it holds.
    said_bytes: usize,
    is_full: bool,
    late_looks: u32,
    percent: u32,
    /// Since when all is refused that may be.
    saturated_since: Option<Instant>,
    is_closed: bool,
}

impl Overload {
    /// Takes what a look has found; answers whether the thread takes connections, if that is new.
    pub(crate) fn look(
        &mut self,
        pressure: &Pressure,
        held_bytes: usize,
        lag: Duration,
        now: Instant,
    ) -> Option<bool> {
        let all = pressure.held_bytes.fetch_add(held_bytes, Relaxed) + held_bytes;
        pressure.held_bytes.fetch_sub(self.said_bytes, Relaxed);
        let all = all - self.said_bytes;
        self.said_bytes = held_bytes;
        // An eighth below the bound it begins again, so that it does not flutter.
        let is_over = |most: usize| all >= if self.is_full { most - most / 8 } else { most };
        self.is_full = pressure.bounds.held_bytes.is_some_and(is_over);
        let is_late = pressure.bounds.lag.is_some_and(|most| lag > most);
        self.late_looks = if is_late { self.late_looks + 1 } else { 0 };
        if self.late_looks >= LATE_LOOKS {
            self.percent = (self.percent + MORE_PERCENT).min(MOST_PERCENT);
        } else if !is_late {
            self.percent = self.percent.saturating_sub(LESS_PERCENT);
        }
        let is_saturated = self.is_full || self.percent == MOST_PERCENT;
        self.saturated_since = is_saturated.then(|| self.saturated_since.unwrap_or(now));
        let was_closed = self.is_closed;
        let is_long = |since: Instant| now.duration_since(since) >= PATIENCE;
        // Once connections are refused, they are until half of the requests get through.
        self.is_closed = self.saturated_since.is_some_and(is_long)
            || was_closed && (self.is_full || self.percent > MOST_PERCENT / 2);
        (self.is_closed != was_closed).then_some(!self.is_closed)
    }

    /// Whether a request is refused; `percent` draws a number below 100.
    fn sheds(&self, percent: impl FnOnce() -> u32) -> Option<Shed> {
        if self.is_full {
            Some(Shed::Memory)
        } else {
            (self.percent > 0 && percent() < self.percent).then_some(Shed::Lag)
        }
    }

    /// Whether the buffers hold as much as they may.
    pub(crate) fn is_full(&self) -> bool {
        self.is_full
    }

    /// Whether nothing is refused.
    pub(crate) fn is_calm(&self) -> bool {
        !self.is_full && !self.is_closed && self.percent == 0
    }

    /// Whether connections are refused.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATE: Duration = Duration::from_millis(300);
    const FINE: Duration = Duration::from_millis(1);

    fn pressure() -> Pressure {
        Pressure::new(Bounds {
            requests: Some(2),
            held_bytes: Some(800),
            lag: Some(Duration::from_millis(200)),
        })
    }

    /// What is refused of a hundred requests after looks 50 ms apart, and whether connections are.
    fn check(looks: &[(usize, usize, Duration)], expected: (usize, bool)) {
        let (pressure, start) = (pressure(), Instant::now());
        let mut thread = Overload::default();
        let mut number = 0;
        for (times, held, lag) in looks {
            for _ in 0..*times {
                number += 1;
                thread.look(&pressure, *held, *lag, start + LOOK_INTERVAL * number);
            }
        }
        let shed = (0..100).filter(|percent| pressure.admit(&thread, || *percent).is_err());
        assert_eq!((shed.count(), thread.is_closed()), expected, "{looks:?}");
        assert_eq!(pressure.requests(), 0, "who was refused is not under way");
    }

    #[test]
    fn late_timers_refuse_more_and_more_until_they_are_not_late() {
        check(&[], (0, false));
        check(&[(100, 0, FINE)], (0, false));
        check(&[(4, 0, LATE)], (0, false));
        check(&[(5, 0, LATE)], (10, false));
        check(&[(4, 0, LATE), (1, 0, FINE), (4, 0, LATE)], (0, false));
        check(&[(14, 0, LATE)], (95, false));
        check(&[(14, 0, LATE), (1, 0, FINE)], (90, false));
        check(&[(14, 0, LATE), (19, 0, FINE)], (0, false));
    }

    #[test]
    fn full_buffers_refuse_all_until_there_is_room_again() {
        check(&[(1, 799, FINE)], (0, false));
        check(&[(1, 800, FINE)], (100, false));
        check(&[(1, 800, FINE), (1, 701, FINE)], (100, false));
        check(&[(1, 800, FINE), (1, 699, FINE)], (0, false));
    }

    #[test]
    fn connections_are_refused_when_requests_alone_do_not_help() {
        check(&[(40, 800, FINE)], (100, false));
        check(&[(41, 800, FINE)], (100, true));
        check(&[(41, 800, FINE), (1, 0, FINE)], (0, false));
        check(&[(60, 0, LATE)], (95, true));
        check(&[(60, 0, LATE), (9, 0, FINE)], (50, true));
        check(&[(60, 0, LATE), (10, 0, FINE)], (45, false));
    }

    #[test]
    fn requests_and_buffers_of_all_threads_count_together() {
        let (pressure, now) = (pressure(), Instant::now());
        let (mut one, mut two) = (Overload::default(), Overload::default());
        one.look(&pressure, 500, FINE, now);
        two.look(&pressure, 200, FINE, now);
        assert_eq!(pressure.held_bytes(), 700);
        let first = pressure.admit(&one, || 99).expect("there is room");
        let second = pressure.admit(&two, || 99).expect("there is room");
        assert_eq!(pressure.admit(&two, || 99).err(), Some(Shed::Requests));
        drop(first);
        two.look(&pressure, 300, FINE, now);
        assert_eq!(pressure.admit(&two, || 99).err(), Some(Shed::Memory));
        assert_eq!(pressure.held_bytes(), 800);
        one.look(&pressure, 0, FINE, now);
        two.look(&pressure, 300, FINE, now);
        assert!(pressure.admit(&two, || 99).is_ok());
        drop(second);
        let shed: Vec<_> = pressure.shed().map(|(_, number)| number).collect();
        assert_eq!((shed, pressure.requests()), (vec![1, 1, 0], 0));
    }

    #[test]
    fn bounds_follow_from_the_pod() {
        const MIB: usize = 1 << 20;
        for (memory, descriptors, requests, held) in [
            (1024 * MIB, 1 << 20, 16_384, 256 * MIB),
            (128 * MIB, 1 << 20, 2_048, 32 * MIB),
            (1024 * MIB, 1_024, 512, 256 * MIB),
            (0, 0, 1, 0),
        ] {
            let expected = Bounds { requests: Some(requests), held_bytes: Some(held), lag: None };
            assert_eq!(Bounds::derived(memory, descriptors), expected);
        }
    }
}
