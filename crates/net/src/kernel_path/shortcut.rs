//! One direction of one connection: opens its lane when it is worth it, and keeps it true.

use std::cell::Cell;
use std::os::fd::AsFd as _;
use std::sync::Arc;

use tokio::net::TcpStream;

use super::lanes::{Lanes, Sender};

/// How often something small is handed on before a lane is opened: a lane costs as much as a few
/// messages, and most connections carry no more.
const TURNS: u8 = 8;
/// What is small. A sender that has more to say than this at a time is behind over TCP, where it
/// stays: it would never be level with the proxy.
const SMALL_BYTES: u64 = 16 * 1024;
/// So many windows over TCP alone, and the lane is given up: for a sender that stays there it only
/// costs.
const STUCK_WINDOWS: u64 = 4;

/// The way past the proxy for one direction of a connection. Belongs to one thread.
#[derive(Debug)]
pub struct Shortcut {
    lanes: Arc<Lanes>,
    sender: Sender,
    /// What the proxy has handed on in this direction.
    relayed: Cell<u64>,
    /// What that was when it last held nothing back.
    relayed_before: Cell<u64>,
    /// What went past it, once the lane is closed.
    past: Cell<u64>,
    state: Cell<State>,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// The proxy carries it, and has handed something small on so often in a row.
    Relaying(u8),
    /// The kernel may carry it.
    Open(Progress),
    /// The proxy carries it to the end. The lane is kept with the room in the queue that it has.
    Retired(u32),
    /// The proxy carries it to the end.
    Off,
}

/// How far an open lane has come.
#[derive(Clone, Copy, Debug)]
struct Progress {
    lane: u32,
    /// What had gone past when the proxy last handed something on, and what that was before it.
    past: u64,
    relayed: u64,
}

impl Shortcut {
    pub(super) fn new(lanes: Arc<Lanes>, sender: Sender) -> Self {
        let [relayed, relayed_before, past] = [0, 0, 0].map(Cell::new);
        let state = Cell::new(State::Relaying(0));
        Self { lanes, sender, relayed, relayed_before, past, state }
    }

    /// The proxy has written so many more of the sender's bytes to `sink`; `is_all`: it holds none.
    pub(crate) fn relayed(&self, bytes: usize, sink: &TcpStream, is_all: bool) {
        let relayed = self.relayed.get() + bytes as u64;
        self.relayed.set(relayed);
        if !is_all {
            return;
        }
        let at_once = relayed - self.relayed_before.replace(relayed);
        match self.state.get() {
            State::Relaying(_) if at_once > SMALL_BYTES => self.state.set(State::Relaying(0)),
            State::Relaying(turns) if turns + 1 < TURNS => {
                self.state.set(State::Relaying(turns + 1));
            }
            State::Relaying(_) => self.open(sink),
            State::Open(progress) => self.keep(progress, sink),
            State::Retired(_) | State::Off => {}
        }
    }

    fn open(&self, sink: &TcpStream) {
        let relayed = self.relayed.get();
        self.state.set(match self.lanes.open_lane(&self.sender, sink.as_fd(), relayed) {
            Ok(lane) => State::Open(Progress { lane, past: 0, relayed }),
            Err(error) => {
                tracing::debug!(error = %error, sender = %self.sender.local, "not joined");
                State::Off
            }
        });
    }

    /// Something went over TCP although the lane is open.
    fn keep(&self, mut progress: Progress, sink: &TcpStream) {
        let (lane, relayed) = (progress.lane, self.relayed.get());
        let past = self.lanes.bytes(lane);
        if past != progress.past {
            progress = Progress { lane, past, relayed };
        }
        let stuck = relayed - progress.relayed;
        if self.lanes.is_given_up(lane) || stuck > STUCK_WINDOWS * self.lanes.window_bytes(lane) {
            self.lanes.retire_lane(lane);
            self.state.set(State::Retired(lane));
            return;
        }
        self.lanes.relayed(lane, sink.as_fd(), relayed);
        self.state.set(State::Open(progress));
    }

    /// Bytes that went past the proxy; of a message that breaks off, all.
    pub fn bytes(&self) -> u64 {
        match self.state.get() {
            State::Open(Progress { lane, .. }) | State::Retired(lane) => self.lanes.bytes(lane),
            State::Relaying(_) | State::Off => self.past.get(),
        }
    }

    /// Whether something may go past the proxy now, or did.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.state.get(), State::Open(_) | State::Retired(_))
    }

    /// Nothing goes past the proxy any more.
    pub(crate) fn close(&self) {
        let (State::Open(Progress { lane, .. }) | State::Retired(lane)) =
            self.state.replace(State::Off)
        else {
            return;
        };
        self.past.set(self.lanes.close_lane(lane));
    }
}

impl Drop for Shortcut {
    fn drop(&mut self) {
        self.close();
    }
}
