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
const SMALL_BYTES: usize = 16 * 1024;
/// So many windows over TCP alone, and the lane is closed again: for a sender that stays there it
/// only costs.
const STUCK_WINDOWS: u64 = 4;

/// The way past the proxy for one direction of a connection. Belongs to one thread.
#[derive(Debug)]
pub struct Shortcut {
    lanes: Arc<Lanes>,
    sender: Sender,
    /// What the proxy has handed on in this direction.
    relayed: Cell<u64>,
    /// What went past it on lanes that were closed.
    past: Cell<u64>,
    state: Cell<State>,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// The proxy carries it, and has handed something small on so often in a row.
    Relaying(u8),
    /// The kernel may carry it.
    Open(Progress),
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
        let (relayed, past) = (Cell::new(0), Cell::new(0));
        Self { lanes, sender, relayed, past, state: Cell::new(State::Relaying(0)) }
    }

    /// The proxy has written so many more of the sender's bytes to `sink`; `is_all`: it holds none.
    pub(crate) fn relayed(&self, bytes: usize, sink: &TcpStream, is_all: bool) {
        self.relayed.set(self.relayed.get() + bytes as u64);
        if !is_all {
            return;
        }
        match self.state.get() {
            State::Relaying(_) if bytes > SMALL_BYTES => self.state.set(State::Relaying(0)),
            State::Relaying(turns) if turns + 1 < TURNS => {
                self.state.set(State::Relaying(turns + 1));
            }
            State::Relaying(_) => self.open(sink),
            State::Open(progress) => self.keep(progress, sink),
            State::Off => {}
        }
    }

    fn open(&self, sink: &TcpStream) {
        let relayed = self.relayed.get();
        self.state.set(match self.lanes.open_lane(&self.sender, sink.as_fd(), relayed) {
            Ok(lane) => State::Open(Progress { lane, past: 0, relayed }),
            Err(error) if error.may_pass() => State::Relaying(0),
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
        if relayed - progress.relayed > STUCK_WINDOWS * self.lanes.window_bytes(lane) {
            self.close();
            self.state.set(State::Relaying(0));
            return;
        }
        self.lanes.relayed(lane, sink.as_fd(), relayed);
        self.state.set(State::Open(progress));
    }

    /// Bytes that went past the proxy; of a message that breaks off, all.
    pub fn bytes(&self) -> u64 {
        let now = match self.state.get() {
            State::Open(progress) => self.lanes.bytes(progress.lane),
            State::Relaying(_) | State::Off => 0,
        };
        self.past.get() + now
    }

    /// Whether something may go past the proxy now.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.state.get(), State::Open(_))
    }

    /// Nothing goes past the proxy any more.
    pub(crate) fn close(&self) {
        if let State::Open(progress) = self.state.replace(State::Off) {
            self.past.set(self.past.get() + self.lanes.close_lane(progress.lane));
        }
    }
}

impl Drop for Shortcut {
    fn drop(&mut self) {
        self.close();
    }
}
