//! One worker: takes a turn, makes the exchange, counts it, until no turn is left.

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use tokio::task::unconstrained;
use tokio::time::{Instant, Sleep, sleep_until};

use super::plan::Pace;
use super::tally::Tally;
use super::transport::{Failure, Transport};
use super::turns::{Alarm, Turns};

/// The pause after a failure when requests go as fast as they can, so that a refusal does not spin.
const FAILURE_PAUSE: Duration = Duration::from_millis(1);

/// What the workers of a thread share.
#[derive(Debug)]
pub(super) struct Work<A> {
    pub(super) turns: Turns<A>,
    pub(super) tally: RefCell<Tally>,
    pub(super) start: Instant,
    pub(super) pace: Pace,
    pub(super) timeout: Duration,
}

/// Works until there is no turn left.
pub(super) async fn work<A: Alarm>(work: &Work<A>, mut transport: impl Transport) {
    let mut deadline = Deadline::new(work.timeout);
    while let Some(turn) = work.turns.next().await {
        let outcome = deadline.within(turn.sent, transport.exchange()).await;
        let now = Instant::now();
        let has_failed = outcome.is_err();
        work.tally.borrow_mut().count(&turn, now, &outcome, work.start);
        if has_failed {
            transport.abandon();
            if work.pace == Pace::Max {
                tokio::time::sleep(FAILURE_PAUSE).await;
            }
        }
    }
    let end = deadline.within(Instant::now(), transport.finish()).await;
    if let Err(failure) = end {
        work.tally.borrow_mut().count_end(&failure, Instant::now(), work.start);
    }
}

/// The longest wait for an answer. One timer serves all exchanges of a worker: it is moved only
/// when it fires, not for each of them.
///
/// It is polled outside of the runtime's budget: an exchange that always has something to read
/// uses the budget up each time, and a timer without budget never fires.
struct Deadline {
    limit: Duration,
    sleep: Pin<Box<Sleep>>,
}

impl Deadline {
    fn new(limit: Duration) -> Self {
        Self { limit, sleep: Box::pin(sleep_until(Instant::now() + limit)) }
    }

    async fn within<T>(
        &mut self,
        began: Instant,
        exchange: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let mut exchange = pin!(exchange);
        let end = began + self.limit;
        poll_fn(|context| {
            if let Poll::Ready(outcome) = exchange.as_mut().poll(context) {
                return Poll::Ready(outcome);
            }
            while pin!(unconstrained(self.sleep.as_mut())).poll(context).is_ready() {
                if Instant::now() >= end {
                    return Poll::Ready(Err(Failure::Timeout));
                }
                self.sleep.as_mut().reset(end);
            }
            Poll::Pending
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use tokio::task::LocalSet;

    use super::*;
    use crate::plan::{Extent, Plan, tests::plan};
    use crate::transport::Answer;
    use crate::turns::Share;

    /// Simulated time.
    struct Simulated;

    impl Alarm for Simulated {
        async fn until(&mut self, moment: Instant) {
            tokio::time::sleep_until(moment).await;
        }
    }

    /// A server that answers after a millisecond, except that it stalls for the first `stall` of
    /// every second.
    struct Stalling {
        start: Instant,
        stall: Duration,
    }

    impl Transport for Stalling {
        async fn open(&mut self) -> Result<(), Failure> {
            Ok(())
        }

        async fn exchange(&mut self) -> Result<Answer, Failure> {
            let into = Duration::from_nanos(u64::from(self.start.elapsed().subsec_nanos()));
            tokio::time::sleep(self.stall.saturating_sub(into)).await;
            tokio::time::sleep(Duration::from_millis(1)).await;
            Ok(Answer { status: Some(200), ..Answer::default() })
        }

        fn abandon(&mut self) {}

        async fn finish(&mut self) -> Result<(), Failure> {
            Ok(())
        }
    }

    /// What the plan's workers count against such a server.
    async fn drive(plan: &Plan, stall: Duration) -> Tally {
        let start = Instant::now();
        let share = Share { index: 0, of: 1 };
        let shared = Rc::new(Work {
            turns: Turns::new(plan, share, start, Simulated),
            tally: RefCell::new(Tally::new()),
            start,
            pace: plan.pace,
            timeout: plan.timeout,
        });
        let local = LocalSet::new();
        for _ in 0..plan.connections {
            let shared = shared.clone();
            local.spawn_local(async move { work(&shared, Stalling { start, stall }).await });
        }
        local.await;
        for due in shared.turns.unsent() {
            shared.tally.borrow_mut().count_unsent(due, Instant::now(), start);
        }
        shared.tally.borrow().clone()
    }

    fn ms(tally: &hdrhistogram::Histogram<u64>, quantile: f64) -> u64 {
        (tally.value_at_quantile(quantile) + 500_000) / 1_000_000
    }

    #[tokio::test(start_paused = true)]
    async fn every_turn_comes_at_its_moment() {
        let plan = Plan { connections: 3, ..plan("http://a/") };
        let tally = drive(&plan, Duration::ZERO).await;
        assert_eq!((tally.requests, tally.failed, tally.late, tally.backlogged), (100, 0, 0, 0));
        let (first, last) = (tally.first_due.unwrap(), tally.last_due.unwrap());
        assert_eq!(last - first, Duration::from_millis(990));
        assert_eq!((ms(&tally.latency, 0.0), ms(&tally.latency, 1.0)), (1, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_stall_shows_in_all_that_it_delays() {
        // One of five requests is due while the server stalls for 200 ms, on one connection: from
        // its due time a request waits 100 ms in the middle of a stall, and the backlog of twenty
        // is worked off at a millisecond each.
        let mut plan = plan("http://a/");
        plan.extent = Extent::Time(Duration::from_secs(10));
        let stalled = drive(&plan, Duration::from_millis(200)).await;
        assert_eq!((stalled.requests, stalled.failed, stalled.late), (1000, 0, 0));
        assert_eq!(ms(&stalled.latency, 0.5), 1);
        assert!((95..=125).contains(&ms(&stalled.latency, 0.9)), "{}", ms(&stalled.latency, 0.9));
        assert!(ms(&stalled.latency, 0.99) >= 190, "{}", ms(&stalled.latency, 0.99));
        // Counted from when it was sent, only the one request that hung shows: what a closed loop
        // omits.
        assert_eq!((ms(&stalled.service, 0.9), ms(&stalled.service, 0.985)), (1, 1));
        assert!(stalled.backlogged >= 190, "{}", stalled.backlogged);
    }

    #[tokio::test(start_paused = true)]
    async fn what_warms_up_is_not_counted_and_a_count_is_kept() {
        let mut plan = plan("http://a/");
        plan.warm_up = Duration::from_millis(305);
        plan.extent = Extent::Count(50);
        let tally = drive(&plan, Duration::ZERO).await;
        assert_eq!(tally.requests, 50);
        plan.pace = Pace::Max;
        plan.connections = 4;
        let tally = drive(&plan, Duration::ZERO).await;
        assert_eq!((tally.requests, tally.failed), (50, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn what_gets_no_answer_and_what_never_leaves_counts_as_slow_and_failed() {
        let mut plan = plan("http://a/");
        plan.extent = Extent::Time(Duration::from_secs(25));
        let never = Duration::from_secs(1000);
        let tally = drive(&plan, never).await;
        assert_eq!((tally.requests, tally.failed), (2500, 2500));
        assert_eq!(tally.reasons["timeout"] + tally.reasons["no time left to send"], 2500);
        assert_eq!(tally.reasons["no time left to send"], tally.unsent);
        assert_eq!(tally.latency.len(), 2500);
        assert!(ms(&tally.latency, 0.5) >= 10_000);
    }

    #[tokio::test]
    async fn what_always_has_something_to_read_ends_at_the_timeout_too() {
        let endless = async {
            loop {
                tokio::task::consume_budget().await;
            }
        };
        let mut deadline = Deadline::new(Duration::from_millis(20));
        let limited = deadline.within::<()>(Instant::now(), endless);
        let outcome = tokio::time::timeout(Duration::from_secs(10), limited).await;
        assert!(matches!(outcome, Ok(Err(Failure::Timeout))), "{outcome:?}");
    }

    #[test]
    fn shares_of_threads_add_up() {
        for all in [0, 1, 7, 1000] {
            let sum: u64 = (0..3).map(|index| Share { index, of: 3 }.count(all)).sum();
            assert_eq!(sum, all);
        }
    }
}
