//! How many bytes one HBONE connection may receive and hold, by the accounts of its owners.
//!
//! HTTP/2 has two windows. The *stream's* follows the accounts (SETTINGS, rarely). The
//! *connection's* is the credit of its peer: what is held already plus some headroom, so a stalled
//! reader never takes the window of its neighbours. Credit cannot be taken back, so it is reserved
//! before it is given. Every connection has [`FLOOR_BYTES`] without a reservation: HTTP/2 has no
//! smaller window. Headroom grows with use and shrinks when unused.
//!
//! In the other direction, bytes that wait for the transport are counted for all tunnels together:
//! beyond a bound no source is read. No byte waits there for a window: a source is read for as much
//! as its stream may send. A stream whose reader has stalled stops no others.

use std::cell::RefCell;
use std::task::{Context, Waker};
use std::time::Duration;

use ambit_wire::http2::Session;
use tokio::time::Instant;

use super::{MAX_SEND_BUFFER_BYTES, Settings};
use crate::copy::READ_BYTES;
use crate::memory::{Accounts, Holder, MIN_WINDOW_BYTES};

/// The window with which every HTTP/2 connection begins (RFC 9113 section 6.9.2).
pub(super) const FLOOR_BYTES: u32 = 65_535;
/// Headroom in windows of a stream: so many streams may send at once without waiting.
const HEADROOM_WINDOWS: usize = 4;
/// Headroom that is used up faster than this is doubled: longer than most round trips, so that it
/// is the headroom that holds the peer up.
const GROWTH_TIME: Duration = Duration::from_millis(250);
/// Headroom that was not used for so long is given up.
const HEADROOM_TIME: Duration = Duration::from_secs(10);
/// What may wait for the transport without a reservation.
const FREE_QUEUE_BYTES: usize = 64 * 1024;
/// What is reserved for those that wait for it beyond that.
const QUEUE_PART_BYTES: usize = MAX_SEND_BUFFER_BYTES - FREE_QUEUE_BYTES;

/// What one HBONE connection may bring and hold. Shared by its driver and its tunnels.
pub(super) struct Credit {
    accounts: Accounts,
    /// The largest windows, by the settings.
    most_of_stream: u32,
    most_of_connection: usize,
    incoming: RefCell<Incoming>,
    outgoing: RefCell<Outgoing>,
    /// Wakes the driver.
    driver: RefCell<Option<Waker>>,
}

/// Bytes from the peer.
struct Incoming {
    /// A stream's window as last asked for.
    window: u32,
    /// Taken by tunnels and not delivered.
    held: usize,
    /// The part of the connection's window that makes up for what is held.
    made_up: usize,
    /// Beyond what is held.
    headroom: usize,
    /// Came since the headroom was last used up, and when that was.
    came: usize,
    used_up_at: Instant,
    /// The connection's window as last set.
    target: usize,
    /// At most so much is held or may come: the window, or a larger one that was given before.
    exposed: usize,
    /// Delivered since the last check.
    delivered: usize,
    reserved: usize,
    holder: Holder,
}

/// Bytes to the peer.
struct Outgoing {
    /// What waits for the transport.
    queued: usize,
    reserved: usize,
    waiting: Vec<Waker>,
}

impl Credit {
    pub(super) fn new(settings: &Settings) -> Self {
        let accounts = settings.accounts.clone();
        let incoming = Incoming {
            window: accounts.window(settings.stream_window_bytes),
            held: 0,
            made_up: 0,
            headroom: FLOOR_BYTES as usize,
            came: 0,
            used_up_at: Instant::now(),
            target: FLOOR_BYTES as usize,
            exposed: FLOOR_BYTES as usize,
            delivered: 0,
            reserved: 0,
            holder: Holder::new(accounts.clone()),
        };
        let outgoing = Outgoing { queued: 0, reserved: 0, waiting: Vec::new() };
        Self {
            accounts,
            most_of_stream: settings.stream_window_bytes,
            most_of_connection: settings.connection_window_bytes.max(FLOOR_BYTES) as usize,
            incoming: RefCell::new(incoming),
            outgoing: RefCell::new(outgoing),
            driver: RefCell::default(),
        }
    }

    /// The window that streams begin with.
    pub(super) fn window(&self) -> u32 {
        self.incoming.borrow().window
    }

    /// Whether memory is short.
    pub(super) fn is_short(&self) -> bool {
        self.accounts.are_short()
    }

    /// A tunnel's place among the holders.
    pub(super) fn holder(&self) -> Holder {
        Holder::new(self.accounts.clone())
    }

    /// A tunnel took bytes.
    pub(super) fn taken(&self, bytes: usize) {
        let mut incoming = self.incoming.borrow_mut();
        incoming.held += bytes;
        let grows = incoming.grows_by(bytes, self.most_of_connection);
        // What the window does not make up for is missing to the other tunnels.
        if grows || incoming.held > incoming.made_up {
            drop(incoming);
            self.wake_driver();
        }
    }

    /// The driver has something to do.
    pub(super) fn wake_driver(&self) {
        self.driver.borrow().iter().for_each(Waker::wake_by_ref);
    }

    /// Bytes that a tunnel took have gone on, or are gone with it.
    pub(super) fn delivered(&self, bytes: usize) {
        let mut incoming = self.incoming.borrow_mut();
        incoming.held -= bytes;
        incoming.delivered += bytes;
    }

    /// Brings the windows of a connection up to date; before each time that it is polled.
    pub(super) fn adjust(&self, cx: &Context<'_>, session: &mut Session) {
        let mut driver = self.driver.borrow_mut();
        if !driver.as_ref().is_some_and(|held| held.will_wake(cx.waker())) {
            *driver = Some(cx.waker().clone());
        }
        drop(driver);
        let mut incoming = self.incoming.borrow_mut();
        let window = self.accounts.window(self.most_of_stream);
        let now = incoming.window;
        let lasting = self.accounts.lasting_window(self.most_of_stream);
        let wanted = if window < now { window } else { now.max(lasting) };
        // Refused while the peer has not acknowledged the last one: tried again next time. Until
        // then the larger window holds, within the credit.
        if wanted != now && session.set_stream_window(wanted) {
            incoming.window = wanted;
        }
        if let Some(target) = incoming.retarget(window as usize, self.most_of_connection) {
            session.set_window(target);
        }
    }

    /// Whether one more read may be queued for the transport, and how large it may be; the caller
    /// is woken when there is room again.
    pub(super) fn queue_room(&self, cx: &Context<'_>) -> Option<usize> {
        let mut outgoing = self.outgoing.borrow_mut();
        let room = outgoing.room(self.accounts.are_short());
        if room == 0 {
            if !outgoing.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                outgoing.waiting.push(cx.waker().clone());
            }
            return None;
        }
        Some(room.min(READ_BYTES))
    }

    /// How much may be queued for the transport now, for who does not wait for more.
    pub(super) fn queue_left(&self) -> usize {
        self.outgoing.borrow().room(self.accounts.are_short())
    }

    /// So much waits for the transport by now.
    pub(super) fn queued(&self, bytes: usize) {
        let mut outgoing = self.outgoing.borrow_mut();
        outgoing.queued = bytes;
        outgoing.reserve(&self.accounts);
    }

    /// The transport took what it could, and so much is left.
    pub(super) fn written(&self, left: usize) {
        let mut outgoing = self.outgoing.borrow_mut();
        outgoing.queued = left;
        if left == 0 {
            self.accounts.release(std::mem::take(&mut outgoing.reserved));
        }
        if left < FREE_QUEUE_BYTES && outgoing.room(self.accounts.are_short()) > 0 {
            outgoing.waiting.drain(..).for_each(Waker::wake);
        }
    }
}

impl Outgoing {
    /// How many bytes to reserve.
    fn wanted(&self) -> usize {
        if self.queued > FREE_QUEUE_BYTES { QUEUE_PART_BYTES } else { 0 }
    }

    fn reserve(&mut self, accounts: &Accounts) {
        let wanted = self.wanted();
        if self.reserved < wanted && accounts.try_reserve(QUEUE_PART_BYTES) {
            self.reserved += QUEUE_PART_BYTES;
        }
    }

    /// How much more may be queued.
    fn room(&self, is_short: bool) -> usize {
        let is_reserved = self.reserved > 0;
        let limit = if is_reserved || !is_short { MAX_SEND_BUFFER_BYTES } else { FREE_QUEUE_BYTES };
        limit.saturating_sub(self.queued)
    }
}

impl Incoming {
    /// Notes what came, and doubles the headroom when that was used up fast.
    fn grows_by(&mut self, bytes: usize, most: usize) -> bool {
        self.came += bytes;
        if self.came < self.headroom {
            return false;
        }
        self.came = 0;
        let now = Instant::now();
        let grows = now - self.used_up_at < GROWTH_TIME && self.headroom < most;
        if grows {
            self.headroom = (2 * self.headroom).min(most);
        }
        self.used_up_at = now;
        grows
    }

    /// The connection's window, if it changes.
    fn retarget(&mut self, window: usize, most: usize) -> Option<u32> {
        let floor = FLOOR_BYTES as usize;
        let delivered = std::mem::take(&mut self.delivered);
        // Credit for it is given behind this, within the window that is set here.
        self.exposed = self.exposed.saturating_sub(delivered);
        if self.headroom > floor && self.used_up_at.elapsed() >= HEADROOM_TIME {
            self.headroom = floor;
        }
        self.headroom = self.headroom.min((HEADROOM_WINDOWS * window).max(floor));
        // In steps: what is held changes with every read.
        let step = (window / 4).max(MIN_WINDOW_BYTES as usize);
        if self.held > self.made_up || self.held + 2 * step < self.made_up {
            self.made_up = self.held.next_multiple_of(step);
        }
        let wishes = [self.made_up + self.headroom, self.held + floor];
        let wishes = wishes.map(|wish| wish.min(most));
        let fits = wishes.into_iter().find(|wish| self.reserve(self.exposed.max(*wish) - floor));
        // Without a reservation no more than what there is one for.
        let target = fits.unwrap_or(self.target.min(self.reserved + floor));
        if fits != Some(wishes[0]) {
            self.made_up = target.saturating_sub(floor).min(self.made_up);
        }
        self.holder.set_counted(self.headroom > floor);
        let is_new = target != self.target;
        self.target = target;
        self.exposed = self.exposed.max(target);
        is_new.then(|| u32::try_from(target).unwrap_or(i32::MAX as u32).min(i32::MAX as u32))
    }

    fn reserve(&mut self, bytes: usize) -> bool {
        let accounts = self.holder.accounts();
        if bytes > self.reserved && !accounts.try_reserve(bytes - self.reserved) {
            return false;
        }
        if bytes < self.reserved {
            accounts.release(self.reserved - bytes);
        }
        self.reserved = bytes;
        true
    }
}

impl Drop for Credit {
    fn drop(&mut self) {
        let (incoming, outgoing) = (self.incoming.get_mut(), self.outgoing.get_mut());
        self.accounts.release(incoming.reserved + outgoing.reserved);
        outgoing.waiting.drain(..).for_each(Waker::wake);
    }
}
