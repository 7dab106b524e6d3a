//! What stalled readers cost, wherever they are, and that the cost ends with them.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ambit_net::namespace::set_sysctl;
use ambit_net::socket::set_linger_reset;

use super::world::{self, PodBox, World, echo};
use super::{PLACES, Pair, Place, at, ping, wait_until};

/// How many stall: enough that the largest windows for all of them would be several times what is
/// allowed.
const READERS: usize = 600;
/// What all of them together may hold in a proxy: the share of the client, with what is lent to
/// HTTP/2 connections without asking.
const MOST_HELD: usize = 72 << 20;
/// What one side may take in the process for each of them: the proxies' own structures and the
/// test's come to some 20 KiB.
const MOST_GROWTH: usize = 2 * MOST_HELD;

/// What may stay reserved afterwards: credit that was given to the HBONE connections, which are
/// kept, and cannot be taken back.
const MOST_LEFT: usize = 24 << 20;

/// Who does not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reader {
    Server,
    Client,
}

/// Counted up when those that read nothing may leave.
static ROUND: AtomicUsize = AtomicUsize::new(0);

/// Says that it is there and reads nothing.
fn mute(mut stream: TcpStream) {
    let round = ROUND.load(Ordering::Relaxed);
    let _gone = stream.write_all(b"!");
    while ROUND.load(Ordering::Relaxed) == round {
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Says that it is there and sends until its client is gone.
fn gush(mut stream: TcpStream) {
    let bytes = [b'!'; 16 * 1024];
    while stream.write_all(&bytes).is_ok() {}
}

/// Sets small socket buffers, so that sent bytes reach the proxies and do not stay in the kernel.
pub(super) fn narrow(pod: &PodBox) {
    let set = || {
        for name in ["net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"] {
            set_sysctl(name, "4096 8192 16384").unwrap();
        }
    };
    pod.netns.run(set).unwrap();
}

fn resident_bytes() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// Writes to all of them until nothing more goes into any.
pub(super) fn fill(streams: &mut [TcpStream]) {
    let bytes = [b'.'; 16 * 1024];
    let mut quiet = 0;
    while quiet < 10 {
        let mut moved = 0;
        for stream in &mut *streams {
            match stream.write(&bytes) {
                Ok(written) => moved += written,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
            }
        }
        quiet = if moved == 0 { quiet + 1 } else { 0 };
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn open(pair: &Pair, to: SocketAddr) -> TcpStream {
    let mut stream = pair.client.connect(to).unwrap();
    let mut word = [0; 1];
    stream.read_exact(&mut word).unwrap();
    stream.set_nonblocking(true).unwrap();
    stream
}

/// Makes readers stall, measures what they cost, and lets them go.
fn check(place: Place, reader: Reader) {
    let world = World::new();
    let pair = Pair::new(&world, place);
    narrow(&pair.client);
    narrow(&pair.server);
    pair.server.serve(8080, if reader == Reader::Server { mute } else { gush });
    pair.server.serve(8081, echo);
    let mut neighbour = pair.client.connect(at(pair.server.v4, 8081)).unwrap();
    ping(&mut neighbour);
    let held = || {
        let proxies = pair.proxies();
        proxies.iter().map(|proxy| proxy.shared.mesh.memory.reserved_bytes()).max().unwrap()
    };
    let before = resident_bytes();
    let mut streams: Vec<_> = (0..READERS).map(|_| open(&pair, at(pair.server.v4, 8080))).collect();
    match reader {
        Reader::Server => fill(&mut streams),
        Reader::Client => settle(&held),
    }
    let (held_bytes, growth) = (held(), resident_bytes().saturating_sub(before));
    println!("{place:?} {reader:?}: {held_bytes} held, the process grew by {growth}");
    assert!(
        held_bytes > 1 << 20,
        "{place:?} {reader:?}: {held_bytes} held, they do not stand still"
    );
    assert!(held_bytes <= MOST_HELD, "{place:?} {reader:?}: {held_bytes} held");
    assert!(growth <= MOST_GROWTH, "{place:?} {reader:?}: the process grew by {growth}");
    // Same client, same HBONE connections.
    ping(&mut neighbour);
    // An orderly end would wait for the readers.
    ROUND.fetch_add(1, Ordering::Relaxed);
    streams.iter().for_each(|stream| set_linger_reset(stream).unwrap());
    drop(streams);
    wait_until("they are gone", || pair.proxies().iter().all(|it| it.list().len() <= 2));
    let word = vec![b'x'; 4 << 20];
    let mut back = neighbour.try_clone().unwrap();
    let sender = std::thread::spawn(move || back.write_all(&word));
    let mut answer = vec![0; 4 << 20];
    neighbour.read_exact(&mut answer).unwrap();
    sender.join().unwrap().unwrap();
    settle(&held);
    println!("{place:?} {reader:?}: {} held afterwards", held());
    assert!(held() <= MOST_LEFT, "{place:?} {reader:?}: {} held afterwards", held());
}

/// Waits until what is held has not changed for a while.
fn settle(held: &impl Fn() -> usize) {
    let start = Instant::now();
    let (mut last, mut since) = (held(), start);
    while since.elapsed() < Duration::from_millis(500) {
        assert!(start.elapsed() < Duration::from_secs(30), "it never comes to rest");
        std::thread::sleep(Duration::from_millis(50));
        let now = held();
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
}

/// Set in the process in which one of these tests runs alone: others would grow it too.
const ALONE: &str = "AMBIT_TEST_ALONE";

/// Runs a test body in a process of its own.
fn alone(test: &str, body: fn()) {
    if std::env::var_os(ALONE).is_some() {
        return body();
    }
    let name = format!("datapath_tests::slow_readers::{test}");
    let mut again = std::process::Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", &name, "--nocapture"]).env(ALONE, "1");
    let output = again.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "alone: {output:?}");
}

in_namespaces! {
    fn a_server_that_does_not_read_costs_a_bounded_share() {
        alone("a_server_that_does_not_read_costs_a_bounded_share", || {
            PLACES.into_iter().for_each(|place| check(place, Reader::Server));
        });
    }

    fn a_client_that_does_not_read_costs_a_bounded_share() {
        alone("a_client_that_does_not_read_costs_a_bounded_share", || {
            PLACES.into_iter().for_each(|place| check(place, Reader::Client));
        });
    }
}
