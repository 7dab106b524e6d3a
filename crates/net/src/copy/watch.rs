//! Checks the ends of a stalled connection at intervals.
//!
//! While one end does not take bytes, nobody reads from the other, so nobody would notice that it
//! is gone: the runtime wakes a reader for bytes, and there are some already. A timer checks
//! instead. It starts when bytes wait for the first time, so a connection that never waits pays
//! nothing. It checks what the runtime knows already, without a system call unless an end has
//! failed.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

use super::MAX_STANDSTILL;

/// How often a stalled connection is checked: often enough that a client which gives up and
/// reconnects has its share back, seldom enough that thousands cost next to nothing.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);

/// The looks at one connection. Boxed: an idle connection pays for a pointer.
#[derive(Debug, Default)]
pub(super) struct Watch(Option<Box<Looks>>);

#[derive(Debug)]
struct Looks {
    timer: Pin<Box<Sleep>>,
    /// Bytes that had moved at the last look at which any had.
    moved: u64,
    since: Instant,
}

impl Watch {
    /// Ready when it is time to look; the task is woken then.
    pub(super) fn poll_look(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let looks = self.0.get_or_insert_with(|| {
            let now = Instant::now();
            let timer = Box::pin(sleep_until(now + LOOK_INTERVAL));
            Box::new(Looks { timer, moved: 0, since: now })
        });
        if looks.timer.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        looks.timer.as_mut().reset(Instant::now() + LOOK_INTERVAL);
        // Registers the task with the timer: it does not fire at once.
        let _pending = looks.timer.as_mut().poll(cx);
        Poll::Ready(())
    }

    /// Whether no byte has moved for too long, at a look; `is_last`: bytes wait behind which
    /// nothing comes any more.
    pub(super) fn is_over(&mut self, moved: u64, is_last: bool) -> bool {
        let Some(looks) = &mut self.0 else { return false };
        if moved != looks.moved || !is_last {
            looks.moved = moved;
            looks.since = Instant::now();
        }
        looks.since.elapsed() >= MAX_STANDSTILL
    }
}
