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
//! as its stream may send. A stream whose reader has stalled stops no others. The bound follows the
//! link, so that what waits leaves soon, and all sources that wait have a part of each turn: a
//! small request does not stand behind much of several large ones.

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
/// What waits for the transport should leave within this.
const QUEUE_TIME: Duration = Duration::from_millis(8);
/// The smallest part of a turn, which fills a TLS record.
const MIN_PART_BYTES: usize = 16 * 1024;
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
    /// The most that may wait, by how soon it leaves.
    most: usize,
    /// When much began to wait, and what had left by then.
    pace: Option<(Instant, u64)>,
    /// Since when somebody waits for room.
    full_since: Option<Instant>,
    /// Those that have waited longer than the others.
    waiting: Vec<Waker>,
    /// Those that had a part in this turn.
    behind: Vec<Waker>,
    /// Those that waited the last time share the room.
    sharers: usize,
    turn: u64,
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
        let outgoing = RefCell::new(Outgoing::new());
        Self {
            accounts,
            most_of_stream: settings.stream_window_bytes,
            most_of_connection: settings.connection_window_bytes.max(FLOOR_BYTES) as usize,
            incoming: RefCell::new(incoming),
            outgoing,
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
    /// is woken when there is room again. `turn`: the last one in which it was given any.
    pub(super) fn queue_room(&self, cx: &Context<'_>, turn: &mut u64) -> Option<usize> {
        let mut outgoing = self.outgoing.borrow_mut();
        let room = outgoing.room(self.accounts.are_short());
        // The rest of the room is for those that have waited beside it.
        let had_its_part = *turn == outgoing.turn;
        let is_held_back = had_its_part && outgoing.sharers > 1 && outgoing.queued > 0;
        if room == 0 || is_held_back {
            outgoing.full_since.get_or_insert_with(Instant::now);
            let Outgoing { waiting, behind, .. } = &mut *outgoing;
            let place = if had_its_part { behind } else { waiting };
            if !place.iter().any(|waker| waker.will_wake(cx.waker())) {
                place.push(cx.waker().clone());
            }
            return None;
        }
        *turn = outgoing.turn;
        Some(room.min(outgoing.part()))
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

    /// The transport took what it could. So much is left, and so much has left it since it began.
    pub(super) fn written(&self, left: usize, gone: u64) {
        let mut outgoing = self.outgoing.borrow_mut();
        outgoing.queued = left;
        outgoing.follow(gone);
        if left == 0 {
            self.accounts.release(std::mem::take(&mut outgoing.reserved));
        }
        if outgoing.is_low() && outgoing.room(self.accounts.are_short()) > 0 {
            outgoing.serve();
        }
    }
}

impl Outgoing {
    fn new() -> Self {
        Self {
            queued: 0,
            reserved: 0,
            most: MAX_SEND_BUFFER_BYTES,
            pace: None,
            full_since: None,
            waiting: Vec::new(),
            behind: Vec::new(),
            sharers: 1,
            turn: 1,
        }
    }

    /// There is room again, for all that wait.
    fn serve(&mut self) {
        let Some(since) = self.full_since.take() else {
            self.sharers = 1;
            return;
        };
        if since.elapsed() < QUEUE_TIME / 4 {
            self.most = (2 * self.most).min(MAX_SEND_BUFFER_BYTES);
        }
        self.sharers = (self.waiting.len() + self.behind.len()).max(1);
        self.turn += 1;
        self.waiting.drain(..).chain(self.behind.drain(..)).for_each(Waker::wake);
    }

    /// While much waits, no more may than what leaves within [`QUEUE_TIME`].
    fn follow(&mut self, gone: u64) {
        if self.queued <= FREE_QUEUE_BYTES {
            self.pace = None;
            return;
        }
        let now = Instant::now();
        let (since, from) = *self.pace.get_or_insert((now, gone));
        let time = now - since;
        if time >= QUEUE_TIME {
            let bytes = u128::from(gone - from) * QUEUE_TIME.as_micros() / time.as_micros();
            let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
            self.most = bytes.clamp(FREE_QUEUE_BYTES, MAX_SEND_BUFFER_BYTES);
            self.pace = Some((now, gone));
        }
    }

    /// Whether those that wait should come.
    fn is_low(&self) -> bool {
        self.queued < FREE_QUEUE_BYTES.min(self.most / 2)
    }

    /// The most that one source may add at once.
    fn part(&self) -> usize {
        (self.most / self.sharers).clamp(MIN_PART_BYTES, READ_BYTES)
    }

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
        let limit = if is_reserved || !is_short { self.most } else { FREE_QUEUE_BYTES };
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
        outgoing.waiting.drain(..).chain(outgoing.behind.drain(..)).for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::{Arc, Mutex};
    use std::task::Wake;

    use super::*;

    struct Task;

    impl Wake for Task {
        fn wake(self: Arc<Self>) {}
    }

    /// So many tasks find no room in a queue that is full, and it is empty after so long.
    async fn turn(credit: &Credit, tasks: usize, after: Duration) {
        credit.queued(MAX_SEND_BUFFER_BYTES);
        for _ in 0..tasks {
            let waker = Arc::new(Task).into();
            assert_eq!(credit.queue_room(&Context::from_waker(&waker), &mut 0), None);
        }
        tokio::time::advance(after).await;
        credit.written(0, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn what_waits_for_the_transport_follows_the_link() {
        let credit = Credit::new(&Settings::default());
        let mut gone = 0;
        // As much as before waits all the time, and so much leaves in a millisecond.
        for (bytes_per_ms, most) in [
            (1_000_000, MAX_SEND_BUFFER_BYTES),
            (12_500, 8 * 12_500),
            (1000, FREE_QUEUE_BYTES),
            (30_000, 8 * 30_000),
        ] {
            credit.written(MAX_SEND_BUFFER_BYTES, gone);
            tokio::time::advance(Duration::from_millis(10)).await;
            gone += 10 * bytes_per_ms;
            credit.written(MAX_SEND_BUFFER_BYTES, gone);
            credit.written(0, gone);
            assert_eq!(credit.queue_left(), most, "{bytes_per_ms}");
        }
        // Little waits for long where little may, so nobody sees how fast it could leave.
        for _ in 0..8 {
            turn(&credit, 1, Duration::from_millis(3)).await;
        }
        assert_eq!(credit.queue_left(), 8 * 30_000);
        for _ in 0..8 {
            turn(&credit, 1, Duration::from_millis(1)).await;
        }
        assert_eq!(credit.queue_left(), MAX_SEND_BUFFER_BYTES);
    }

    #[tokio::test(start_paused = true)]
    async fn those_that_wait_for_room_share_it() {
        let credit = Credit::new(&Settings::default());
        let waker = Arc::new(Task).into();
        let cx = Context::from_waker(&waker);
        for (tasks, part) in
            [(1, READ_BYTES), (4, MAX_SEND_BUFFER_BYTES / 4), (1000, MIN_PART_BYTES)]
        {
            turn(&credit, tasks, Duration::ZERO).await;
            assert_eq!(credit.queue_room(&cx, &mut 0), Some(part), "{tasks}");
        }
    }

    /// A task that is run again when it is woken, behind the others.
    struct Numbered(usize, Arc<Mutex<VecDeque<usize>>>);

    impl Wake for Numbered {
        fn wake(self: Arc<Self>) {
            self.1.lock().expect("unbroken").push_back(self.0);
        }
    }

    /// Sources that always have more to say, and a transport that takes all of a turn.
    #[tokio::test(start_paused = true)]
    async fn many_that_always_wait_are_served_alike() {
        for tasks in [2, 4, 8, 50, 100] {
            let credit = Credit::new(&Settings::default());
            let woken = Arc::new(Mutex::new((0..tasks).collect::<VecDeque<_>>()));
            let task = |number| Arc::new(Numbered(number, woken.clone())).into();
            let wakers: Vec<Waker> = (0..tasks).map(task).collect();
            let (mut turns, mut served) = (vec![0; tasks], vec![0; tasks]);
            for round in 0..60 {
                let mut queued = 0;
                loop {
                    let next = woken.lock().expect("unbroken").pop_front();
                    let Some(number) = next else { break };
                    let cx = Context::from_waker(&wakers[number]);
                    while let Some(part) = credit.queue_room(&cx, &mut turns[number]) {
                        queued += part;
                        served[number] += part;
                        credit.queued(queued);
                    }
                }
                tokio::time::advance(Duration::from_millis(3)).await;
                credit.written(0, 0);
                if round == 0 {
                    // Nobody knew of the others.
                    served.fill(0);
                }
            }
            let (least, most) = (served.iter().min(), served.iter().max());
            let (least, most) = (*least.expect("one"), *most.expect("one"));
            assert!(most <= 2 * least, "{tasks} tasks: {least} to {most} bytes");
        }
    }
}
