//! What clients have sent of bodies by HTTP/2 that nobody has read yet.
//!
//! The library keeps these bytes, up to the window of their connection, and knows how many they
//! are: a look asks it for each body. They count as buffered. While the buffers are full, a
//! connection of which too much waits is read no more, and one that stays so for long is cut: its
//! windows were given away before, and cannot be taken back.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::mem::take;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::engine::piece::{Broken, Piece, Source};
use crate::engine::upstream::h2::Incoming;

/// So much may wait of a connection while the buffers are full.
const CONNECTION_BYTES_MAX: usize = 64 * 1024;
/// A connection of which more waits, and of which nothing is read for so long, is cut.
const STUCK_TIMEOUT: Duration = Duration::from_secs(10);

/// The connections of a thread that have bodies to be read.
#[derive(Clone, Default)]
pub(crate) struct Unread(Rc<All>);

#[derive(Default)]
struct All {
    connections: RefCell<Vec<Rc<Bodies>>>,
    is_full: Cell<bool>,
}

/// The bodies of one connection.
#[derive(Clone)]
pub(crate) struct OfConnection {
    all: Rc<All>,
    bodies: Rc<Bodies>,
}

#[derive(Default)]
struct Bodies {
    open: RefCell<Vec<Rc<RefCell<Incoming>>>>,
    waits: Cell<Waits>,
    /// Who reads the connection when it may be read again.
    reader: RefCell<Option<Waker>>,
    was_cut: Notify,
}

/// What waits of one connection.
#[derive(Clone, Copy, Debug, Default)]
struct Waits {
    bytes: usize,
    /// What came since the look that found these.
    more_bytes: usize,
    /// Since when too much waits, the buffers are full, and nothing is read.
    stuck_since: Option<Instant>,
}

impl Waits {
    fn is_too_much(self) -> bool {
        self.bytes + self.more_bytes >= CONNECTION_BYTES_MAX
    }

    /// Takes what a look has found; answers whether the connection is to be cut.
    fn look(&mut self, bytes: usize, is_full: bool, now: Instant) -> bool {
        let is_read = bytes < self.bytes;
        (self.bytes, self.more_bytes) = (bytes, 0);
        if !is_full || is_read || !self.is_too_much() {
            self.stuck_since = None;
            return false;
        }
        now.duration_since(*self.stuck_since.get_or_insert(now)) >= STUCK_TIMEOUT
    }
}

impl Unread {
    /// A new connection.
    pub(crate) fn connection(&self) -> OfConnection {
        OfConnection { all: self.0.clone(), bodies: Rc::default() }
    }

    /// How many bytes wait.
    pub(crate) fn bytes(&self) -> usize {
        self.0.connections.borrow().iter().map(|it| it.unread()).sum()
    }

    /// Looks at each connection; `is_full`: the buffers are.
    pub(crate) fn look(&self, is_full: bool, now: Instant) {
        self.0.is_full.set(is_full);
        for bodies in self.0.connections.borrow().iter() {
            let mut waits = bodies.waits.get();
            let is_stuck = waits.look(bodies.unread(), is_full, now);
            bodies.waits.set(waits);
            if is_stuck {
                bodies.was_cut.notify_one();
            }
            if !is_full || !waits.is_too_much() {
                bodies.wake();
            }
        }
    }
}

impl Bodies {
    fn unread(&self) -> usize {
        self.open.borrow().iter().map(|body| body.borrow_mut().unread_bytes()).sum()
    }

    fn wake(&self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }
}

impl OfConnection {
    /// A body that has begun.
    pub(crate) fn begin(&self, body: Incoming) -> Upload {
        if body.has_ended() {
            return Upload { body: None, of: self.clone() };
        }
        let body = Rc::new(RefCell::new(body));
        let mut open = self.bodies.open.borrow_mut();
        if open.is_empty() {
            self.all.connections.borrow_mut().push(self.bodies.clone());
        }
        open.push(body.clone());
        Upload { body: Some(body), of: self.clone() }
    }

    fn end(&self, body: &Rc<RefCell<Incoming>>) {
        let mut open = self.bodies.open.borrow_mut();
        open.retain(|it| !Rc::ptr_eq(it, body));
        if open.is_empty() {
            take(&mut *open);
            self.bodies.waits.take();
            self.all.connections.borrow_mut().retain(|it| !Rc::ptr_eq(it, &self.bodies));
            self.bodies.wake();
        }
    }

    /// Ready when the connection may be read.
    pub(crate) fn poll_room(&self, cx: &Context<'_>) -> Poll<()> {
        if !self.all.is_full.get() || !self.bodies.waits.get().is_too_much() {
            return Poll::Ready(());
        }
        self.bodies.reader.replace(Some(cx.waker().clone()));
        Poll::Pending
    }

    /// So many bytes were read of the connection.
    pub(crate) fn received(&self, bytes: usize) {
        if !self.bodies.open.borrow().is_empty() {
            let waits = self.bodies.waits.get();
            self.bodies.waits.set(Waits { more_bytes: waits.more_bytes + bytes, ..waits });
        }
    }

    /// Waits until the connection is to be cut.
    pub(crate) async fn stuck(&self) {
        self.bodies.was_cut.notified().await;
    }
}

/// A request's body.
pub(crate) struct Upload {
    body: Option<Rc<RefCell<Incoming>>>,
    of: OfConnection,
}

impl Upload {
    /// Whether there is none.
    pub(crate) fn is_absent(&self) -> bool {
        self.body.is_none()
    }
}

impl Source for Upload {
    async fn piece(&mut self) -> Result<Option<Piece>, Broken> {
        match &self.body {
            Some(body) => poll_fn(|cx| body.borrow_mut().poll_piece(cx)).await,
            None => Ok(None),
        }
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if let Some(body) = &self.body {
            self.of.end(body);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a connection comes to after looks a second apart, while the buffers are full or not.
    fn check(looks: &[(usize, bool)], expected: &[bool]) {
        let (mut waits, start) = (Waits::default(), Instant::now());
        let seconds = (0..).map(Duration::from_secs);
        let found = looks.iter().zip(seconds);
        let cut = found.map(|((bytes, is_full), at)| waits.look(*bytes, *is_full, start + at));
        assert_eq!(cut.collect::<Vec<_>>(), expected, "{looks:?}");
    }

    #[test]
    fn only_what_is_too_much_and_not_read_while_the_buffers_are_full_is_cut() {
        const MUCH: usize = CONNECTION_BYTES_MAX;
        check(&[(MUCH, true); 11], &[[false; 10].as_slice(), &[true]].concat());
        check(&[(MUCH - 1, true); 20], &[false; 20]);
        check(&[(MUCH, false); 20], &[false; 20]);
        let is_read: Vec<_> = (0..20).map(|number| (2 * MUCH - number, true)).collect();
        check(&is_read, &[false; 20]);
        let pauses = [[(MUCH, true); 10].as_slice(), &[(MUCH, false)], &[(MUCH, true); 10]];
        check(&pauses.concat(), &[false; 21]);
    }

    #[test]
    fn what_comes_between_looks_counts() {
        let all = Unread::default();
        let connection = all.connection();
        connection.bodies.waits.set(Waits { bytes: 1, ..Waits::default() });
        let cx = Context::from_waker(Waker::noop());
        all.look(true, Instant::now());
        assert!(connection.poll_room(&cx).is_ready());
        let more_bytes = CONNECTION_BYTES_MAX - 1;
        connection.bodies.waits.set(Waits { bytes: 1, more_bytes, stuck_since: None });
        assert!(connection.poll_room(&cx).is_pending());
        all.look(false, Instant::now());
        assert!(connection.poll_room(&cx).is_ready());
    }
}
