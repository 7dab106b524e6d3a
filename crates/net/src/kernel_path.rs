//! Joins two applications' sockets in the kernel, past the proxy.
//!
//! A connection between two pods of one node is four sockets: that of the client, the two of the
//! proxy, that of the server. After some small messages, what an application sends is put by the
//! kernel straight into the send queue of the proxy's other socket (`sk_msg`, sockmap), and the
//! proxy sleeps. Applications receive as always: nothing is ever put into their own queues.
//!
//! * **Order**: a message goes past the proxy only while the proxy has handed on every byte that
//!   its sender ever sent over TCP. Otherwise it goes over TCP, behind those.
//! * **Bound**: a queue takes no more than a window. What is beyond goes over TCP, so the sender
//!   waits as it always does, and the proxy, woken by it, measures the queue.
//! * **Who**: programs whose calls do not wait (`O_NONBLOCK`). In others a call that waits for
//!   bytes could return `EAGAIN`, which they do not expect of the kernel.
//! * **End**: FIN and RST go over TCP. The proxy ends a connection by closing its sockets.
//!
//! It never decides whether a connection may be: the proxy has judged it before, and cuts it later.

mod assembly;
mod lanes;
mod programs;
mod shortcut;
mod types;

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use lanes::{Kernel, Lanes};
pub use lanes::{LaneError, Sender};
use programs::{Maps, Offsets};
pub use shortcut::Shortcut;
use types::Types;
pub use types::TypesError;

use crate::sys::bpf::{
    self, Bell, Lines, MMAPABLE, MapKind, MapShape, NO_PREALLOC, ProgramKind, attach, create_map,
    load_program, load_types,
};

/// What the running kernel is called.
const KERNEL_RELEASE: &str = "/proc/sys/kernel/osrelease";
/// Directions that can be joined at once; other connections are carried by the proxy.
const MAX_LANES: u32 = 4096;
/// How long the self-test waits for its one byte.
const TEST_TIMEOUT: Duration = Duration::from_secs(1);
/// The first kernel with all repairs that are known to concern this (`tcp_bpf: Charge receive
/// socket buffer in bpf_tcp_ingress()`, and those before it).
const MIN_KERNEL: (u32, u32) = (6, 13);
/// When a full queue is measured again, before its sender has to go over TCP and may ask again.
const MEASURE_AGAIN_AFTER_US: [u64; 6] = [200, 400, 800, 1600, 3200, 6400];

/// Why sockets cannot be joined here.
#[derive(Debug, thiserror::Error)]
pub enum KernelPathError {
    /// Programs are written for one order of bytes.
    #[error("programs for the kernel are only written for little-endian machines")]
    BigEndian,
    /// It is too old.
    #[error(
        "this kernel is Linux {0}; it must be {min}.{minor} or newer",
        min = MIN_KERNEL.0,
        minor = MIN_KERNEL.1
    )]
    Old(String),
    /// The kernel's structures are not known.
    #[error(transparent)]
    Types(#[from] TypesError),
    /// A map cannot be made.
    #[error(
        "cannot make the map {name} (bpf(2) needs CAP_SYS_ADMIN, or CAP_BPF and CAP_NET_ADMIN)"
    )]
    Map {
        /// Which.
        name: &'static str,
        /// Why.
        #[source]
        cause: io::Error,
    },
    /// The kernel refuses a program.
    #[error("the kernel does not take the program {name}")]
    Program {
        /// Which.
        name: &'static str,
        /// Why.
        #[source]
        cause: io::Error,
    },
    /// The kernel cannot say when programs have ended.
    #[error("the kernel does not wait for its programs")]
    Grace(#[source] io::Error),
    /// The thread cannot be started.
    #[error("cannot start the thread that measures queues")]
    Thread(#[source] io::Error),
    /// It was tried over loopback, and failed.
    #[error("joined sockets do not work here: {problem}")]
    Test {
        /// What happened.
        problem: &'static str,
        /// Why, if known.
        #[source]
        cause: Option<io::Error>,
    },
}

/// What joins sockets; one for each process.
#[derive(Debug)]
pub struct KernelPath {
    /// The last one to go ends the thread.
    lanes: Arc<Lanes>,
}

impl KernelPath {
    /// Loads the programs and tries them over loopback, in the caller's network namespace. No more
    /// than `budget_bytes` wait in all queues together.
    pub fn open(budget_bytes: u64) -> Result<Self, KernelPathError> {
        if cfg!(target_endian = "big") {
            return Err(KernelPathError::BigEndian);
        }
        let release = std::fs::read_to_string(KERNEL_RELEASE).unwrap_or_default();
        if !is_new_enough(&release) {
            return Err(KernelPathError::Old(release.trim().to_owned()));
        }
        let offsets = Offsets::of(&Types::of_kernel()?)?;
        let (wake, woken) = UnixStream::pair().map_err(KernelPathError::Thread)?;
        wake.set_nonblocking(true).map_err(KernelPathError::Thread)?;
        let (lanes, bell) = load(offsets, budget_bytes, wake)?;
        let lanes = Arc::new(lanes);
        let measured = Arc::downgrade(&lanes);
        std::thread::Builder::new()
            .name("kernel-path".to_owned())
            .spawn(move || serve(&bell, woken, || measured.upgrade()))
            .map_err(KernelPathError::Thread)?;
        try_out(&lanes)?;
        Ok(Self { lanes })
    }

    /// A way past the proxy for what `sender` sends; the socket that it leads to is shown later.
    pub fn shortcut(&self, sender: Sender) -> Shortcut {
        Shortcut::new(self.lanes.clone(), sender)
    }

    /// Directions that are joined now.
    pub fn joined(&self) -> usize {
        self.lanes.open()
    }
}

fn is_new_enough(release: &str) -> bool {
    let mut numbers = release.split(['.', '-', '\n']).map_while(|number| number.parse().ok());
    let version: Option<(u32, u32)> = numbers.next().zip(numbers.next());
    version.is_some_and(|version| version >= MIN_KERNEL)
}

/// Makes the maps and loads the programs.
fn load(
    offsets: Offsets,
    budget_bytes: u64,
    wake: UnixStream,
) -> Result<(Lanes, Bell), KernelPathError> {
    let failed = |name| move |cause| KernelPathError::Map { name, cause };
    let types = load_types(&integers()).map_err(failed("lane_of"))?;
    let four = MapShape { key_bytes: 4, value_bytes: 4, entries: MAX_LANES, ..MapShape::default() };
    let beside = MapShape {
        value_bytes: 8,
        entries: 0,
        flags: NO_PREALLOC,
        types: types.as_raw_fd().unsigned_abs(),
        key_type: 1,
        value_type: 2,
        ..four
    };
    let lane_bytes = size_of::<bpf::Line>() as u32;
    let shared = MapShape { value_bytes: lane_bytes, flags: MMAPABLE, ..four };
    let ring = MapShape { entries: bpf::page_bytes(), ..MapShape::default() };
    let lane_of = create_map(MapKind::BesideSocket, beside).map_err(failed("lane_of"))?;
    let lanes = create_map(MapKind::Array, shared).map_err(failed("lanes"))?;
    let senders = create_map(MapKind::Sockets, four).map_err(failed("senders"))?;
    let sinks = create_map(MapKind::Sockets, four).map_err(failed("sinks"))?;
    let ring = create_map(MapKind::Ring, ring).map_err(failed("bell"))?;
    let maps = Maps {
        lane_of: lane_of.as_raw_fd(),
        lanes: lanes.as_raw_fd(),
        senders: senders.as_raw_fd(),
        sinks: sinks.as_raw_fd(),
        bell: ring.as_raw_fd(),
    };
    let program = |name, kind, code: Vec<u64>| {
        load_program(kind, &code).map_err(|cause| KernelPathError::Program { name, cause })
    };
    let watch = program("watch", ProgramKind::Message, programs::watch(maps, offsets))?;
    let join = program("join", ProgramKind::Classifier, programs::join(maps, offsets))?;
    let measure = program("measure", ProgramKind::Classifier, programs::measure(maps, offsets))?;
    let attached = attach(&watch, &senders);
    attached.map_err(|cause| KernelPathError::Program { name: "watch", cause })?;
    let bell = Bell::new(ring).map_err(failed("bell"))?;
    let lines = Lines::of(&lanes, MAX_LANES as usize).map_err(failed("lanes"))?;
    let shape = MapShape { entries: 1, inner_map: lanes.as_raw_fd().unsigned_abs(), ..four };
    let grace = create_map(MapKind::Maps, shape).map_err(failed("grace"))?;
    let kernel = Kernel { lines, lanes, senders, sinks, grace, join, measure };
    kernel.wait_for_programs().map_err(KernelPathError::Grace)?;
    Ok((Lanes::new(kernel, MAX_LANES, budget_bytes, wake), bell))
}

/// Type information with two types: integers of 32 and of 64 bits (`include/uapi/linux/btf.h`).
fn integers() -> Vec<u8> {
    const NAMES: &[u8] = b"\0int\0long\0";
    const TYPES: [u32; 8] = [1, 1 << 24, 4, 32, 5, 1 << 24, 8, 64];
    let length = |bytes: usize| u32::try_from(bytes).expect("a few bytes");
    let type_bytes = length(size_of_val(&TYPES));
    let mut bytes = types::MAGIC.to_ne_bytes().to_vec();
    bytes.extend([1, 0]);
    let header = [24, 0, type_bytes, type_bytes, length(NAMES.len())];
    bytes.extend(header.into_iter().chain(TYPES).flat_map(u32::to_ne_bytes));
    bytes.extend(NAMES);
    bytes
}

/// Measures queues when senders ask for it, and gives lanes back that no program can see any more.
/// Ends when nobody can wake it any more.
fn serve(bell: &Bell, mut woken: UnixStream, lanes: impl Fn() -> Option<Arc<Lanes>>) {
    loop {
        let (is_rung, is_woken) = match bell.wait(&woken) {
            Ok(both) => both,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return tracing::error!(%error, "queues are not measured any more"),
        };
        if is_woken && !matches!(woken.read(&mut [0; 64]), Ok(1..)) {
            return;
        }
        let Some(lanes) = lanes() else { return };
        if is_woken {
            lanes.recycle();
        }
        if is_rung {
            bell.hear();
            let mut full = lanes.measure_asked();
            for pause_us in MEASURE_AGAIN_AFTER_US {
                if full.is_empty() {
                    break;
                }
                std::thread::sleep(Duration::from_micros(pause_us));
                full = lanes.measure_asked();
            }
            lanes.stop_asking(&full);
        }
    }
}

/// Two connections over loopback, as the proxy has them: from a client, and to a server.
struct Trial {
    client: TcpStream,
    accepted: TcpStream,
    dialled: TcpStream,
    server: TcpStream,
}

impl Trial {
    fn new() -> io::Result<Self> {
        let pair = || {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            let there = TcpStream::connect(listener.local_addr()?)?;
            let (here, from) = listener.accept()?;
            if from != there.local_addr()? {
                return Err(io::Error::other("somebody else connected"));
            }
            there.set_read_timeout(Some(TEST_TIMEOUT))?;
            here.set_read_timeout(Some(TEST_TIMEOUT))?;
            Ok::<_, io::Error>((there, here))
        };
        let ((client, accepted), (dialled, server)) = (pair()?, pair()?);
        Ok(Self { client, accepted, dialled, server })
    }

    fn sender(&self) -> io::Result<Sender> {
        let (local, remote) = (self.client.local_addr()?, self.client.peer_addr()?);
        Ok(Sender { local, remote, netns: None })
    }
}

/// Sends a byte past, and one that must not go past.
fn try_out(lanes: &Arc<Lanes>) -> Result<(), KernelPathError> {
    let failed = |problem| move |cause| KernelPathError::Test { problem, cause: Some(cause) };
    let sockets = failed("no connections over loopback");
    let trial = Trial::new().map_err(sockets)?;
    trial.client.set_nonblocking(true).map_err(sockets)?;
    let sender = trial.sender().map_err(sockets)?;
    let lane = lanes.open_lane(&sender, trial.dialled.as_fd(), 0);
    let lane = lane.map_err(|error| failed("a socket was not joined")(io::Error::other(error)))?;
    let sent = say(&trial.client, &trial.server, b"past");
    let past = lanes.bytes(lane);
    // As if the proxy owed the other side something that came before.
    lanes.relayed(lane, trial.dialled.as_fd(), 1);
    let relayed = say(&trial.client, &trial.accepted, b"over TCP");
    lanes.close_lane(lane);
    sent.map_err(failed("what was sent past did not arrive"))?;
    relayed.map_err(failed("what was to go over TCP did not arrive"))?;
    match past {
        4 => Ok(()),
        _ => Err(KernelPathError::Test { problem: "nothing went past", cause: None }),
    }
}

fn say(mut from: &TcpStream, mut to: &TcpStream, what: &[u8]) -> io::Result<()> {
    from.write_all(what)?;
    let mut heard = vec![0; what.len()];
    to.read_exact(&mut heard)?;
    if heard == what { Ok(()) } else { Err(io::Error::other("other bytes arrived")) }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::programs::GENERATION;
    use super::*;
    use crate::sys::process::effective_uid;

    /// A socket can keep its lane's number while the lane serves another connection already.
    #[test]
    fn a_socket_that_knows_an_earlier_use_of_a_lane_goes_over_tcp() {
        let path = match KernelPath::open(64 << 20) {
            Err(KernelPathError::Map { .. }) if effective_uid() != 0 => return,
            opened => opened.expect("root of the machine may"),
        };
        let trial = Trial::new().expect("connections");
        trial.client.set_nonblocking(true).expect("set");
        let sender = trial.sender().expect("addresses");
        let lane = path.lanes.open_lane(&sender, trial.dialled.as_fd(), 0).expect("a lane");
        say(&trial.client, &trial.server, b"past").expect("it went past");
        GENERATION.of(path.lanes.line(lane)).fetch_add(1, Relaxed);
        say(&trial.client, &trial.accepted, b"over TCP").expect("it went over TCP");
        assert_eq!(path.lanes.close_lane(lane), 4);
    }

    #[test]
    fn kernels_are_told_by_their_version() {
        for release in ["6.13.0", "6.18.44-fc-v657\n", "7.0-rc1", "10.2"] {
            assert!(is_new_enough(release), "{release}");
        }
        for release in ["6.12.9", "5.15.0-91-generic", "6", "", "six.thirteen"] {
            assert!(!is_new_enough(release), "{release}");
        }
    }
}
