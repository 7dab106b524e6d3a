//! One direction of a connection: from one end's source to the other's sink.

use std::cell::Cell;
use std::task::{Context, Poll, ready};

use super::{Batch, CopyError, End, EndError, Taken};

/// When a direction has moved so much between two sockets, others of its thread have their turn. A
/// read of a stream is four times as much, and a turn by itself.
///
/// Without turns a connection whose ends are both fast moves 2 MiB at a time, and with dozens of
/// those nobody else's request is served within half a second. Beside moving so much, a turn of the
/// runtime costs nothing. A tunnel's window ends its turns, and more of them would cost it a fifth
/// of its speed.
const TURN_BYTES: usize = 64 * 1024;

/// The state of a direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The source may have more.
    Open,
    /// The source has ended; the sink has not been closed yet.
    Ending,
    /// The sink was closed.
    Done,
}

/// One direction of a connection.
#[derive(Debug)]
pub(super) struct Direction {
    state: State,
    /// Taken and not yet given. Lent: an idle direction holds none.
    in_flight: Option<Batch>,
    /// Whether the source has something that the sink does not take.
    is_stuck: bool,
}

/// Which end broke.
#[derive(Debug)]
pub(super) enum Broken {
    Source(EndError),
    Sink(EndError),
}

impl Broken {
    /// Names the ends as the connection knows them.
    pub(super) fn of(
        self,
        source: impl FnOnce(EndError) -> CopyError,
        sink: impl FnOnce(EndError) -> CopyError,
    ) -> CopyError {
        match self {
            Self::Source(error) => source(error),
            Self::Sink(error) => sink(error),
        }
    }
}

impl Direction {
    pub(super) fn new() -> Self {
        Self { state: State::Open, in_flight: None, is_stuck: false }
    }

    pub(super) fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Whether bytes, or the close, wait for the sink.
    pub(super) fn is_stuck(&self) -> bool {
        self.is_stuck
    }

    /// Whether what waits for the sink is the last that the source says.
    pub(super) fn is_stuck_at_the_end(&self, source: &impl End) -> bool {
        self.is_stuck && (self.state == State::Ending || source.has_ended())
    }

    /// Moves as many bytes as possible now. `unwatched`: nothing reads from the sink's end any
    /// more.
    pub(super) fn poll<A: End, B: End>(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut A,
        sink: &mut B,
        unwatched: bool,
        count: &Cell<u64>,
    ) -> Poll<Result<(), Broken>> {
        self.is_stuck = true;
        let are_sockets = !A::SHARES_ITS_TRANSPORT && !B::SHARES_ITS_TRANSPORT;
        let mut moved = 0;
        loop {
            if self.in_flight.is_some() {
                let given = self.poll_give(cx, source, sink)?;
                let Poll::Ready(bytes) = given else { return Poll::Pending };
                count.set(count.get() + bytes as u64);
                moved += bytes;
                continue;
            }
            if are_sockets && moved >= TURN_BYTES && self.state == State::Open {
                self.is_stuck = false;
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            match self.state {
                State::Open => {
                    if source.poll_takeable(cx).map_err(Broken::Source)?.is_pending() {
                        return self.poll_idle(cx, sink, unwatched);
                    }
                    ready!(self.poll_take(cx, source, sink))?;
                }
                State::Ending => {
                    ready!(sink.poll_finish(cx)).map_err(Broken::Sink)?;
                    self.state = State::Done;
                }
                State::Done => {
                    self.is_stuck = false;
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }

    fn poll_take(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut impl End,
        sink: &mut impl End,
    ) -> Poll<Result<(), Broken>> {
        let room = ready!(sink.poll_room(cx)).map_err(Broken::Sink)?;
        let mut batch = Batch::lend();
        let taken = source.poll_take(cx, room, &mut batch).map_err(Broken::Source)?;
        if batch.is_empty() {
            batch.give_back();
        } else {
            self.in_flight = Some(batch);
        }
        match taken {
            Poll::Ready(Taken::Some) => {}
            Poll::Ready(Taken::Last) => self.state = State::Ending,
            Poll::Pending => {
                // Woken for nothing.
                self.is_stuck = false;
                return Poll::Pending;
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_give(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut impl End,
        sink: &mut impl End,
    ) -> Poll<Result<usize, Broken>> {
        let Some(batch) = &mut self.in_flight else { return Poll::Ready(Ok(0)) };
        let is_last = self.state == State::Ending;
        let Poll::Ready(bytes) = sink.poll_give(cx, batch, is_last).map_err(Broken::Sink)? else {
            self.hoard(cx, source);
            self.pack_if_short(source, sink);
            return Poll::Pending;
        };
        source.delivered(bytes);
        if batch.is_empty() {
            self.in_flight.take().into_iter().for_each(Batch::give_back);
        }
        Poll::Ready(Ok(bytes))
    }

    /// Takes from a source that must not be left full although the sink is slow. How much that
    /// can be is bounded by the window that only delivery opens again.
    fn hoard<S: End>(&mut self, cx: &mut Context<'_>, source: &mut S) {
        let Some(batch) = &mut self.in_flight else { return };
        while S::SHARES_ITS_TRANSPORT && self.state == State::Open {
            match source.poll_take(cx, usize::MAX, batch) {
                Poll::Ready(Ok(Taken::Some)) => {}
                Poll::Ready(Ok(Taken::Last)) => self.state = State::Ending,
                // A failure is seen again behind what is there, or when somebody looks.
                Poll::Ready(Err(_)) | Poll::Pending => break,
            }
        }
        if S::SHARES_ITS_TRANSPORT && batch.is_scattered() {
            batch.pack();
        }
    }

    /// What waits for a slow sink holds on to no more memory than it fills, where that is short.
    fn pack_if_short(&mut self, source: &impl End, sink: &impl End) {
        if let Some(batch) = &mut self.in_flight
            && (source.is_short() || sink.is_short())
        {
            batch.pack();
        }
    }

    fn poll_idle(
        &mut self,
        cx: &mut Context<'_>,
        sink: &mut impl End,
        unwatched: bool,
    ) -> Poll<Result<(), Broken>> {
        self.is_stuck = false;
        if unwatched && let Poll::Ready(error) = sink.poll_gone(cx) {
            return Poll::Ready(Err(Broken::Sink(error)));
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Wake, Waker};

    use bytes::Bytes;

    use super::*;

    /// What is read at a time.
    const PIECE_BYTES: usize = 16 * 1024;

    /// An end that always has something to say and takes whatever it is given.
    struct Endless;

    impl End for Endless {
        const SHARES_ITS_TRANSPORT: bool = false;

        fn poll_takeable(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), EndError>> {
            Poll::Ready(Ok(()))
        }

        fn poll_take(
            &mut self,
            _cx: &mut Context<'_>,
            limit: usize,
            into: &mut Batch,
        ) -> Poll<Result<Taken, EndError>> {
            into.push(Bytes::from(vec![0; limit.min(PIECE_BYTES)]));
            Poll::Ready(Ok(Taken::Some))
        }

        fn delivered(&mut self, _bytes: usize) {}

        fn poll_room(&mut self, _cx: &mut Context<'_>) -> Poll<Result<usize, EndError>> {
            Poll::Ready(Ok(usize::MAX))
        }

        fn poll_give(
            &mut self,
            _cx: &mut Context<'_>,
            batch: &mut Batch,
            _is_last: bool,
        ) -> Poll<Result<usize, EndError>> {
            batch.write(|slices| {
                let bytes = slices.iter().map(|slice| slice.len()).sum();
                (bytes, Poll::Ready(Ok(bytes)))
            })
        }

        fn has_ended(&self) -> bool {
            false
        }

        fn poll_gone(&mut self, _cx: &mut Context<'_>) -> Poll<EndError> {
            Poll::Pending
        }

        fn poll_finish(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), EndError>> {
            Poll::Ready(Ok(()))
        }

        fn is_short(&self) -> bool {
            false
        }

        fn reset(&mut self) {}
    }

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn ends_that_never_pause_give_others_a_turn() {
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(wakes.clone());
        let mut cx = Context::from_waker(&waker);
        let (mut direction, count) = (Direction::new(), Cell::new(0));
        for turn in 1..=3 {
            // The kernel would never make it wait, so that it has to stop by itself.
            let polled = direction.poll(&mut cx, &mut Endless, &mut Endless, false, &count);
            assert!(matches!(polled, Poll::Pending));
            assert_eq!(count.get(), turn * TURN_BYTES as u64);
            assert_eq!(wakes.0.load(Ordering::Relaxed), turn as usize, "it comes back by itself");
            assert!(!direction.is_stuck(), "nobody is in its way");
        }
    }
}
