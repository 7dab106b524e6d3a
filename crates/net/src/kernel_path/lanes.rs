//! The lanes: which are open, where they lead, how much may wait in them.
//!
//! A lane is one direction of a joined connection. Its number must not serve another connection
//! while a program may still act on the old one, so it rests until every program that ran at its
//! end has returned. A socket may keep the number, and even the program, for longer: so each use of
//! a lane has a generation, and a program that knows another one does nothing.

use std::collections::HashMap;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::programs::{
    self, ALLOWED, BYTES, COST, GENERATION, HAS_BASE, IS_ASKED, IS_OPEN, LOW, RELAYED, WINDOW, said,
};
use crate::namespace::NetNs;
use crate::socket::normalise;
use crate::sys::bpf::{self, Line, Lines};
use crate::sys::socket_option::{allow_unsent, grow_send_buffer, queued_bytes, send_buffer_bytes};

/// The most that may wait in one lane.
const MAX_WINDOW_BYTES: u64 = 4 << 20;
/// The least: with less, a sender goes over TCP all the time.
const MIN_WINDOW_BYTES: u64 = 64 << 10;
/// The first lane gets this part of the budget at most, the second half of that, the third a third:
/// a few may have much, and there is something for many.
const BUDGET_PART: u64 = 16;
/// What a socket's queue may hold, in windows. It must never fill up: a sender that does not wait
/// would not be told when there is room again. What is sent while the queue is measured counts
/// once too little, and the kernel needs memory beside the bytes.
const QUEUE_WINDOWS: u64 = 3;
/// One pod's part of the lanes and of the budget.
const POD_PART: u32 = 4;
/// Lanes that rest until somebody is asked to give them back.
const MAX_RESTING: usize = 64;

/// An application's socket, as it sees its addresses.
#[derive(Clone, Debug)]
pub struct Sender {
    /// Its own.
    pub local: SocketAddr,
    /// That which it is connected to; for a captured client the one before the redirect.
    pub remote: SocketAddr,
    /// The network namespace it is in; that of the calling thread if `None`.
    pub netns: Option<Arc<NetNs>>,
}

impl Sender {
    /// Addresses and ports of a segment that it would receive, in network order; `None` when there
    /// is none with these addresses.
    fn tuple(&self) -> Option<Vec<u8>> {
        let (from, to) = (normalise(self.remote), normalise(self.local));
        let mut tuple = Vec::with_capacity(programs::PACKET_BYTES);
        match (from, to) {
            (SocketAddr::V4(from), SocketAddr::V4(to)) => {
                tuple.extend(from.ip().octets());
                tuple.extend(to.ip().octets());
            }
            (SocketAddr::V6(from), SocketAddr::V6(to)) => {
                tuple.extend(from.ip().octets());
                tuple.extend(to.ip().octets());
            }
            _ => return None,
        }
        tuple.extend(from.port().to_be_bytes());
        tuple.extend(to.port().to_be_bytes());
        Some(tuple)
    }

    /// Whose lanes it uses: its network namespace is its pod.
    fn pod(&self) -> u64 {
        self.netns.as_ref().map_or(0, |netns| netns.inode())
    }
}

/// Why a direction stays with the proxy.
#[derive(Debug, thiserror::Error)]
pub enum LaneError {
    /// There is none for it now.
    #[error("all lanes, this pod's lanes or all memory for them are in use")]
    Full,
    /// The addresses are of two families.
    #[error("one address is IPv4, the other IPv6")]
    Families,
    /// The application's socket is not there.
    #[error("there is no socket with these addresses in the application's namespace")]
    NoSocket,
    /// It cannot be joined.
    #[error("the application's socket is closing, has TLS of the kernel, or SO_ZEROCOPY")]
    Unsuitable,
    /// The application's calls wait.
    #[error("the application's calls on the socket wait (no O_NONBLOCK)")]
    Blocking,
    /// The kernel refuses.
    #[error("the kernel refuses")]
    Kernel(#[from] io::Error),
}

/// What the kernel keeps for the lanes.
#[derive(Debug)]
pub(super) struct Kernel {
    /// What programs and this process share.
    pub(super) lines: Lines,
    /// The map of those lines.
    pub(super) lanes: OwnedFd,
    /// Joined applications' sockets.
    pub(super) senders: OwnedFd,
    /// Where each lane leads.
    pub(super) sinks: OwnedFd,
    /// A map of maps, which nobody looks into: changing it waits for programs.
    pub(super) grace: OwnedFd,
    /// The program that joins an application's socket.
    pub(super) join: OwnedFd,
    /// The program that measures a queue.
    pub(super) measure: OwnedFd,
}

impl Kernel {
    /// Waits until every program that runs now has returned.
    pub(super) fn wait_for_programs(&self) -> io::Result<()> {
        bpf::put(&self.grace, 0, self.lanes.as_fd())
    }
}

/// All lanes.
#[derive(Debug)]
pub(super) struct Lanes {
    kernel: Kernel,
    table: Mutex<Table>,
    /// Wakes who gives resting lanes back.
    wake: UnixStream,
}

/// Which lanes there are, and who has them.
#[derive(Debug)]
struct Table {
    free: Vec<u32>,
    resting: Vec<u32>,
    /// The first that was never used.
    unused: u32,
    count: u32,
    /// What may wait in all queues together, and how much of it is spoken for.
    budget_bytes: u64,
    granted_bytes: u64,
    /// Open lanes: whose, and what they were granted.
    open: HashMap<u32, Grant>,
    of_pods: HashMap<u64, Share>,
}

#[derive(Clone, Copy, Debug)]
struct Grant {
    pod: u64,
    bytes: u64,
}

/// What a pod has.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    lanes: u32,
    bytes: u64,
}

impl Lanes {
    /// `count` lanes, whose queues hold no more than `budget_bytes` together.
    pub(super) fn new(kernel: Kernel, count: u32, budget_bytes: u64, wake: UnixStream) -> Self {
        let table = Table {
            free: Vec::new(),
            resting: Vec::new(),
            unused: 0,
            count,
            budget_bytes,
            granted_bytes: 0,
            open: HashMap::new(),
            of_pods: HashMap::new(),
        };
        Self { kernel, table: Mutex::new(table), wake }
    }

    /// How many are open.
    pub(super) fn open(&self) -> usize {
        self.table().open.len()
    }

    /// What programs know of it.
    pub(super) fn line(&self, lane: u32) -> &Line {
        self.kernel.lines.line(lane)
    }

    /// Bytes that went past the proxy on it.
    pub(super) fn bytes(&self, lane: u32) -> u64 {
        BYTES.of(self.line(lane)).load(Relaxed)
    }

    /// How much may wait in it.
    pub(super) fn window_bytes(&self, lane: u32) -> u64 {
        WINDOW.of(self.line(lane)).load(Relaxed).into()
    }

    /// Opens a lane from an application's socket to one of the proxy. The proxy has handed on
    /// `relayed` bytes of what the application sent.
    pub(super) fn open_lane(
        &self,
        sender: &Sender,
        sink: BorrowedFd<'_>,
        relayed: u64,
    ) -> Result<u32, LaneError> {
        let tuple = sender.tuple().ok_or(LaneError::Families)?;
        let taken = self.table().take(sender.pod());
        let Some((lane, window_bytes)) = taken else {
            if self.table().is_used_up() {
                self.ask_for_resting();
            }
            return Err(LaneError::Full);
        };
        let generation = prepare(self.line(lane), window_bytes);
        match self.join(lane, generation, &tuple, sender) {
            Ok(()) => {}
            // The socket may have the number, but nothing acts on it: the generation ends here.
            Err(error) if !matches!(error, LaneError::Kernel(_)) => {
                self.table().give_back_at_once(lane);
                return Err(error);
            }
            Err(error) => {
                self.close_lane(lane);
                return Err(error);
            }
        }
        if let Err(error) = self.lead(lane, sink, window_bytes) {
            self.close_lane(lane);
            return Err(error.into());
        }
        self.relayed(lane, sink, relayed);
        IS_OPEN.of(self.line(lane)).store(1, Release);
        Ok(lane)
    }

    /// Has the kernel look after the application's socket.
    fn join(
        &self,
        lane: u32,
        generation: u32,
        tuple: &[u8],
        sender: &Sender,
    ) -> Result<(), LaneError> {
        let packet = programs::packet(lane, generation, tuple);
        let run = || bpf::run(&self.kernel.join, &packet);
        let result = match &sender.netns {
            Some(netns) => netns.run(run)??,
            None => run()?,
        };
        match result {
            said::DONE => Ok(()),
            said::NO_SOCKET => Err(LaneError::NoSocket),
            said::BLOCKING => Err(LaneError::Blocking),
            said::UNSUITABLE => Err(LaneError::Unsuitable),
            other => Err(io::Error::other(format!("the program join returned {other}")).into()),
        }
    }

    /// Says where the lane leads.
    fn lead(&self, lane: u32, sink: BorrowedFd<'_>, window_bytes: u64) -> io::Result<()> {
        let wanted = QUEUE_WINDOWS * window_bytes;
        if u64::from(send_buffer_bytes(sink)?) < wanted {
            // The kernel doubles it.
            grow_send_buffer(sink, i32::try_from(wanted / 2).unwrap_or(i32::MAX))?;
        }
        // The system may allow less.
        let window_bytes = window_bytes.min(u64::from(send_buffer_bytes(sink)?) / QUEUE_WINDOWS);
        set_window(self.line(lane), window_bytes);
        // A pod may have set a bound for what is not sent yet (net.ipv4.tcp_notsent_lowat).
        allow_unsent(sink)?;
        bpf::put(&self.kernel.sinks, lane, sink)
    }

    /// The proxy has handed on all that it read: `relayed` bytes so far.
    pub(super) fn relayed(&self, lane: u32, sink: BorrowedFd<'_>, relayed: u64) {
        let line = self.line(lane);
        let cost = COST.of(line).load(Relaxed);
        let window = WINDOW.of(line).load(Relaxed);
        // A socket that does not say is taken for full.
        let room = window.saturating_sub(queued_bytes(sink).unwrap_or(window));
        ALLOWED.of(line).store(cost + u64::from(room), Relaxed);
        RELAYED.of(line).store(relayed, Release);
    }

    /// Measures the queues of those who asked; which are still full.
    pub(super) fn measure_asked(&self) -> Vec<u32> {
        let unused = self.table().unused;
        let mut full = Vec::new();
        for lane in 0..unused {
            if IS_ASKED.of(self.line(lane)).load(Acquire) == 0 {
                continue;
            }
            match bpf::run(&self.kernel.measure, &programs::packet(lane, 0, &[])) {
                Ok(said::FULL) => full.push(lane),
                Ok(said::DONE) => {}
                _ => IS_ASKED.of(self.line(lane)).store(0, Release),
            }
        }
        full
    }

    /// Lets those ask again whose queues stayed full. Who has asked since is heard next.
    pub(super) fn stop_asking(&self, full: &[u32]) {
        for &lane in full {
            IS_ASKED.of(self.line(lane)).store(0, Release);
        }
    }

    /// Whether `watch` has given the lane up.
    pub(super) fn is_given_up(&self, lane: u32) -> bool {
        IS_OPEN.of(self.line(lane)).load(Relaxed) == 0
    }

    /// From now on all goes over TCP. The lane is kept, and with it what its queue may hold.
    pub(super) fn retire_lane(&self, lane: u32) {
        IS_OPEN.of(self.line(lane)).store(0, Release);
        let _gone = bpf::take_socket(&self.kernel.senders, lane);
    }

    /// Ends a lane: what the application sends goes over TCP again. How many bytes went past.
    pub(super) fn close_lane(&self, lane: u32) -> u64 {
        IS_OPEN.of(self.line(lane)).store(0, Release);
        // Sockets that are closed are not there any more.
        let _gone = bpf::take_socket(&self.kernel.senders, lane);
        let _gone = bpf::take_socket(&self.kernel.sinks, lane);
        let bytes = self.bytes(lane);
        if self.table().rest(lane) >= MAX_RESTING {
            self.ask_for_resting();
        }
        bytes
    }

    fn ask_for_resting(&self) {
        // It is awake if there is no room for the byte.
        let _awake = (&self.wake).write(&[0]);
    }

    /// Gives the resting lanes back when no program can act on them any more.
    pub(super) fn recycle(&self) {
        let mut resting = std::mem::take(&mut self.table().resting);
        if resting.is_empty() {
            return;
        }
        match self.kernel.wait_for_programs() {
            Ok(()) => self.table().free.append(&mut resting),
            Err(error) => {
                tracing::error!(%error, lanes = resting.len(), "lanes cannot be reused for now");
                self.table().resting.append(&mut resting);
            }
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// A lane for this pod, and its window.
    fn take(&mut self, pod: u64) -> Option<(u32, u64)> {
        let of_pod = self.of_pods.get(&pod).copied().unwrap_or_default();
        let left = self.budget_bytes - self.granted_bytes;
        let nth = self.open.len() as u64 + 1;
        let window = self.budget_bytes / QUEUE_WINDOWS / BUDGET_PART / nth;
        let window = window.clamp(MIN_WINDOW_BYTES, MAX_WINDOW_BYTES);
        let bytes = QUEUE_WINDOWS * window;
        let is_over_its_part = of_pod.lanes >= self.count / POD_PART
            || of_pod.bytes + bytes > self.budget_bytes / u64::from(POD_PART);
        if is_over_its_part || bytes > left {
            return None;
        }
        let lane = self.free.pop().or_else(|| {
            let lane = self.unused;
            (lane < self.count).then(|| {
                self.unused += 1;
                lane
            })
        })?;
        self.granted_bytes += bytes;
        self.open.insert(lane, Grant { pod, bytes });
        let of_pod = Share { lanes: of_pod.lanes + 1, bytes: of_pod.bytes + bytes };
        self.of_pods.insert(pod, of_pod);
        Some((lane, window))
    }

    /// Whether all lanes are open or rest, and some rest.
    fn is_used_up(&self) -> bool {
        self.unused == self.count && self.free.is_empty() && !self.resting.is_empty()
    }

    fn give_back_at_once(&mut self, lane: u32) {
        self.forget(lane);
        self.free.push(lane);
    }

    /// How many rest then.
    fn rest(&mut self, lane: u32) -> usize {
        self.forget(lane);
        self.resting.push(lane);
        self.resting.len()
    }

    fn forget(&mut self, lane: u32) {
        let Some(grant) = self.open.remove(&lane) else { return };
        self.granted_bytes -= grant.bytes;
        if let Some(of_pod) = self.of_pods.get_mut(&grant.pod) {
            of_pod.lanes -= 1;
            of_pod.bytes -= grant.bytes;
            if of_pod.lanes == 0 {
                self.of_pods.remove(&grant.pod);
            }
        }
    }
}

/// Begins a use of a lane; which one.
fn prepare(line: &Line, window_bytes: u64) -> u32 {
    for counter in [ALLOWED, RELAYED, COST, BYTES] {
        counter.of(line).store(0, Relaxed);
    }
    for flag in [HAS_BASE, IS_ASKED] {
        flag.of(line).store(0, Relaxed);
    }
    set_window(line, window_bytes);
    GENERATION.of(line).fetch_add(1, Relaxed).wrapping_add(1)
}

fn set_window(line: &Line, window_bytes: u64) {
    let window = u32::try_from(window_bytes).unwrap_or(u32::MAX);
    WINDOW.of(line).store(window, Relaxed);
    LOW.of(line).store(window / 2, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(count: u32, budget_bytes: u64) -> Table {
        Table {
            free: Vec::new(),
            resting: Vec::new(),
            unused: 0,
            count,
            budget_bytes,
            granted_bytes: 0,
            open: HashMap::new(),
            of_pods: HashMap::new(),
        }
    }

    #[test]
    fn queues_never_hold_more_than_the_budget() {
        const BUDGET_BYTES: u64 = 256 << 20;
        let mut table = table(4096, BUDGET_BYTES);
        let mut taken = Vec::new();
        while let Some((lane, window)) = table.take(taken.len() as u64) {
            assert!((MIN_WINDOW_BYTES..=MAX_WINDOW_BYTES).contains(&window));
            taken.push(lane);
            let queues: u64 = table.open.values().map(|grant| grant.bytes).sum();
            assert!(queues <= BUDGET_BYTES && queues == table.granted_bytes);
        }
        assert!(taken.len() > 900, "{} lanes", taken.len());
        taken.into_iter().for_each(|lane| table.give_back_at_once(lane));
        assert_eq!((table.granted_bytes, table.of_pods.len()), (0, 0));
        assert_eq!(table.take(0).expect("room").1, MAX_WINDOW_BYTES);
    }

    #[test]
    fn a_pod_leaves_lanes_to_others() {
        let mut few = table(16, u64::MAX);
        let of_one = std::iter::from_fn(|| few.take(7)).count();
        assert_eq!(of_one, 4);
        assert!(few.take(8).is_some());
        const BUDGET_BYTES: u64 = 256 << 20;
        let mut many = table(4096, BUDGET_BYTES);
        while many.take(7).is_some() {}
        assert!(many.granted_bytes <= BUDGET_BYTES / u64::from(POD_PART));
        assert!(many.take(8).is_some());
    }

    #[test]
    fn a_lane_rests_before_it_serves_again() {
        let mut table = table(4, u64::MAX);
        let (first, _) = table.take(0).expect("a lane");
        assert_eq!(table.rest(first), 1);
        assert_ne!(table.take(0).expect("another").0, first);
    }
}
