//! Whose query is next: one from each pod in turn, and a limited number a second from each pod.
//!
//! All pods of a node share one thread. All queries of a pod, from all its sockets and connections,
//! go through its turns, so a pod has one place in the thread's round and not one for each
//! connection. Queries beyond its pace wait: in connections, and for datagrams in the socket, where
//! the kernel drops what has no room. That costs the thread nothing.

use std::cell::Cell;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until};

/// Queries and connections of a pod each second. One that looks up a name for each of 2,000 new
/// connections a second asks for two families, with five search domains: ten times. A query that is
/// dropped costs its client five seconds, so the pace is far above what is usual: others are
/// protected by the turns.
const PER_SECOND: u32 = 20_000;
/// How long a pod may save up: it may ask for so long's worth at once.
const SAVED_UP_AT_MOST: Duration = Duration::from_secs(1);

/// The turns of one pod.
pub(super) struct Turns {
    /// Held by the query that has the pod's turn; the others wait in their order.
    turn: Semaphore,
    pace: Cell<Pace>,
}

impl Turns {
    /// Those of a pod that has asked nothing yet.
    pub(super) fn new() -> Self {
        Self { turn: Semaphore::new(1), pace: Cell::new(Pace::new(Instant::now())) }
    }

    /// Does one piece of work when it is its turn, and lets every other pod do one before the next.
    pub(super) async fn take<T>(&self, work: impl FnOnce() -> T) -> T {
        let _turn = self.turn.acquire().await.expect("never closed");
        loop {
            let mut pace = self.pace.get();
            let next = pace.take(Instant::now());
            self.pace.set(pace);
            match next {
                Ok(()) => break,
                Err(at) => sleep_until(at).await,
            }
        }
        let done = work();
        // With the turn in hand: what else this pod asks is behind what others ask.
        yield_now().await;
        done
    }
}

/// A token bucket, written as the moment at which it would be full again but for what is saved up
/// (the generic cell rate algorithm).
#[derive(Clone, Copy, Debug)]
struct Pace {
    spent_until: Instant,
}

impl Pace {
    fn new(now: Instant) -> Self {
        Self { spent_until: now }
    }

    /// Takes one, or says when there is one.
    fn take(&mut self, now: Instant) -> Result<(), Instant> {
        let spent_until = self.spent_until.max(now) + Duration::from_secs(1) / PER_SECOND;
        if spent_until > now + SAVED_UP_AT_MOST {
            return Err(spent_until - SAVED_UP_AT_MOST);
        }
        self.spent_until = spent_until;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_asks_at_its_pace_and_may_save_up_a_second() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        let mut at_once = |after_ms| {
            let now = start + Duration::from_millis(after_ms);
            let taken = (0..100_000).take_while(|_| pace.take(now).is_ok()).count();
            let next = pace.take(now).expect_err("none is left");
            assert!(next > now && next <= now + Duration::from_millis(1), "{after_ms}");
            taken
        };
        assert_eq!(at_once(0), 20_000);
        assert_eq!(at_once(0), 0);
        assert_eq!(at_once(1), 20);
        assert_eq!(at_once(101), 2_000);
        assert_eq!(at_once(60_000), 20_000);
    }
}
