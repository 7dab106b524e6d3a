//! Floods of HTTP/2 frames by a peer that passed TLS: each closes its own connection, or costs a
//! bounded amount.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use ambit_net::drain::Drain;
use ambit_net::hbone::{Connect, HboneError, MAX_SERVER_STREAMS, Settings, Transport, serve};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::timeout;

use crate::frames::{
    DATA, END_HEADERS, HEADERS, PING, PREFACE, RST_STREAM, SETTINGS, WINDOW_UPDATE,
};
use crate::{on_one_thread, tcp_pair};

// What only a flood says.
const PRIORITY: u8 = 2;
const CONTINUATION: u8 = 9;
const UNKNOWN: u8 = 0xbe;
const CANCEL: [u8; 4] = [0, 0, 0, 8];

/// What a flood sends at most. A connection that survives all of it must not have grown by it.
const FLOOD_BYTES: usize = 8 << 20;
/// A peer that is closed is closed long before.
const CLOSED_WITHIN: Duration = Duration::from_secs(10);
/// What a connection may hold for a peer that reads no answers: buffers, not the flood.
const HELD_BYTES: usize = 2 << 20;
/// Growth of the whole process that is no sign of a leak.
const NOISE_BYTES: usize = 4 << 20;
/// Set in the process in which a test that looks at the process' memory runs alone.
const ALONE: &str = "AMBIT_TEST_ALONE";

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = vec![length[1], length[2], length[3], kind, flags];
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// CONNECT 127.0.0.1:1 as an HPACK block of literals without indexing (RFC 7541 section 6.2.2).
fn connect(stream: u32) -> Vec<u8> {
    let mut block = vec![0x02, 7];
    block.extend(b"CONNECT");
    block.extend([0x01, 11]);
    block.extend(b"127.0.0.1:1");
    frame(HEADERS, END_HEADERS, stream, &block)
}

/// Pieces of one flood, numbered from 0; none may leave the connection's state behind.
type Flood = Box<dyn FnMut(u32) -> Vec<u8>>;

/// A server, and a peer that may send anything.
struct Victim {
    peer: TcpStream,
    /// Tunnels that were asked of the server.
    asked: Rc<Cell<usize>>,
    served: JoinHandle<Result<(), HboneError>>,
}

impl Victim {
    /// `keep`: tunnels stay open, unanswered; else each is refused at once.
    async fn new(keep: bool) -> Self {
        let (mut peer, far) = tcp_pair().await;
        let asked = Rc::new(Cell::new(0));
        let counted = asked.clone();
        let served = spawn_local(async move {
            let transport = Transport::new(far);
            let activity = transport.activity();
            let mut kept = Vec::new();
            let each = |mut connect: Connect| {
                counted.set(counted.get() + 1);
                drop(connect.take_headers());
                if keep {
                    kept.push(connect);
                }
            };
            let drain = Drain::new();
            serve(transport, activity, &Settings::default(), &drain.guard(), each).await
        });
        peer.write_all(PREFACE).await.unwrap();
        peer.write_all(&frame(SETTINGS, 0, 0, &[])).await.unwrap();
        Self { peer, asked, served }
    }

    /// A PING is answered with its own bytes.
    async fn still_answers(&mut self, what: &str) {
        self.peer.write_all(&frame(PING, 0, 0, b"are you?")).await.unwrap();
        let mut heard: Vec<u8> = Vec::new();
        while !heard.windows(8).any(|window| window == b"are you?") {
            let mut some = [0; 1024];
            let read = self.peer.read(&mut some).await.unwrap();
            assert!(read > 0, "{what}: closed");
            heard.extend(&some[..read]);
        }
    }

    /// Sends pieces until they are enough, or nobody takes more; says how many bytes were taken.
    async fn flood(&mut self, mut piece: Flood) -> usize {
        let mut sent = 0;
        let mut number = 0;
        while sent < FLOOD_BYTES {
            let mut burst = Vec::new();
            while burst.len() < 16 << 10 {
                burst.extend(piece(number));
                number += 1;
            }
            match timeout(Duration::from_secs(1), self.peer.write_all(&burst)).await {
                Ok(Ok(())) => sent += burst.len(),
                Ok(Err(_)) | Err(_) => break,
            }
        }
        sent
    }
}

#[test]
fn the_first_words_of_many_tunnels_are_no_flood() {
    on_one_thread(async {
        let mut victim = Victim::new(true).await;
        // Nobody has taken any of them yet, as when an application is slow to accept.
        for number in 0..MAX_SERVER_STREAMS {
            let stream = 2 * number + 1;
            let word = frame(DATA, 0, stream, b"ambit-42");
            victim.peer.write_all(&[connect(stream), word].concat()).await.unwrap();
        }
        victim.still_answers("small words").await;
        assert_eq!(victim.asked.get(), MAX_SERVER_STREAMS as usize);
        victim.served.abort();
    });
}

/// What comes with a request that is reset at once is nobody's, and its window goes to the others.
#[test]
fn hasty_resets_take_no_window() {
    on_one_thread(async {
        let mut victim = Victim::new(true).await;
        for number in 0..10 {
            let stream = 2 * number + 1;
            let bytes = frame(DATA, 0, stream, &[7; 14_000]);
            let reset = frame(RST_STREAM, 0, stream, &CANCEL);
            let all = [connect(stream), bytes.clone(), bytes, reset].concat();
            victim.peer.write_all(&all).await.unwrap();
            victim.still_answers("hasty resets").await;
        }
        victim.served.abort();
    });
}

/// A peer that never reads, and asks for an answer with every frame.
#[test]
fn who_reads_nothing_is_not_answered_for_ever() {
    let refused = |number: u32| connect(2 * number + 1);
    let pieces: [fn(u32) -> Vec<u8>; 2] = [|_| frame(PING, 0, 0, &[0; 8]), refused];
    for piece in pieces {
        on_one_thread(async move {
            let (mut peer, far) = duplex(1 << 16);
            let served = spawn_local(async move {
                let transport = Transport::new(far);
                let activity = transport.activity();
                let refuse = |connect: Connect| {
                    connect.refuse(http::StatusCode::UNAUTHORIZED).ok();
                };
                let drain = Drain::new();
                serve(transport, activity, &Settings::default(), &drain.guard(), refuse).await
            });
            peer.write_all(PREFACE).await.unwrap();
            peer.write_all(&frame(SETTINGS, 0, 0, &[])).await.unwrap();
            let mut sent = 0;
            for number in 0.. {
                let bytes = piece(number);
                sent += bytes.len();
                if peer.write_all(&bytes).await.is_err() {
                    break;
                }
                assert!(sent < FLOOD_BYTES, "it goes on");
            }
            assert!(matches!(served.await.unwrap(), Err(HboneError::Broken(_))));
        });
    }
}

/// The peer is closed, and asked for no more tunnels than it may have.
fn check_closed(what: &str, keep: bool, opening: &'static [u32], piece: fn(u32) -> Vec<u8>) {
    on_one_thread(async {
        let mut victim = Victim::new(keep).await;
        for stream in opening {
            victim.peer.write_all(&connect(*stream)).await.unwrap();
        }
        victim.flood(Box::new(piece)).await;
        let ended = timeout(CLOSED_WITHIN, &mut victim.served).await;
        let ended = ended.unwrap_or_else(|_| panic!("{what}: goes on")).unwrap();
        assert!(matches!(ended, Err(HboneError::Broken(_))), "{what}: {ended:?}");
        assert!(victim.asked.get() <= MAX_SERVER_STREAMS as usize, "{what}: {:?}", victim.asked);
    });
}

#[test]
fn floods_that_cost_are_closed() {
    check_closed("rapid reset", false, &[], |number| {
        let stream = 2 * number + 1;
        [connect(stream), frame(RST_STREAM, 0, stream, &CANCEL)].concat()
    });
    check_closed("CONTINUATION without an end", false, &[], |number| match number {
        0 => frame(HEADERS, 0, 1, &[0x02, 7]),
        _ => frame(CONTINUATION, 0, 1, &[0; 1024]),
    });
    check_closed("empty CONTINUATION without an end", false, &[], |number| match number {
        0 => frame(HEADERS, 0, 1, &[0x02, 7]),
        _ => frame(CONTINUATION, 0, 1, &[]),
    });
    check_closed("empty DATA", true, &[1], |_| frame(DATA, 0, 1, &[]));
    check_closed("more streams than allowed", true, &[], |number| connect(2 * number + 1));
    check_closed("DATA beyond the window", true, &[1], |_| frame(DATA, 0, 1, &[0; 16 << 10]));
    check_closed("DATA of no stream", true, &[], |_| frame(DATA, 0, 0, &[0]));
    check_closed("a window beyond its limit", true, &[1], |_| {
        frame(WINDOW_UPDATE, 0, 0, &0x7fff_ffff_u32.to_be_bytes())
    });
}

/// Runs a test body in a process of its own: tests beside it would grow its process too.
fn alone(test: &str, body: fn()) {
    if std::env::var_os(ALONE).is_some() {
        return body();
    }
    let mut again = std::process::Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", &format!("floods::{test}"), "--nocapture"]).env(ALONE, "1");
    let output = again.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "alone: {output:?}");
}

/// Bytes of this process that lie in memory.
fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

#[test]
fn floods_that_ask_for_answers_are_read_no_faster_than_the_answers_are() {
    alone("floods_that_ask_for_answers_are_read_no_faster_than_the_answers_are", asking);
}

fn asking() {
    for (what, piece) in [
        ("PING", frame(PING, 0, 0, &[7; 8])),
        ("SETTINGS", frame(SETTINGS, 0, 0, &[])),
        ("SETTINGS with values", frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0xff, 0xff].repeat(100))),
    ] {
        on_one_thread(async {
            let mut victim = Victim::new(true).await;
            let before = resident_bytes();
            // The peer reads nothing. What it could send is in the kernel's buffers, or was taken
            // without being kept.
            victim.flood(Box::new(move |_| piece.clone())).await;
            let grown = resident_bytes().saturating_sub(before);
            assert!(grown <= HELD_BYTES + NOISE_BYTES, "{what}: {grown} bytes more");
            victim.served.abort();
        });
    }
}

#[test]
fn long_headers_of_many_tunnels_are_not_kept() {
    alone("long_headers_of_many_tunnels_are_not_kept", swelling);
}

fn swelling() {
    on_one_thread(async {
        let mut victim = Victim::new(true).await;
        let before = resident_bytes();
        for number in 0..MAX_SERVER_STREAMS {
            let stream = 2 * number + 1;
            let mut head = frame(HEADERS, 0, stream, &connect(stream)[9..]);
            // Four fields of 14,000 bytes, literal and without indexing.
            for at in 0..4 {
                let mut field = vec![0x00, 1, b'a' + at, 0x7f];
                // 14,000 less 127, in groups of seven bits (RFC 7541 section 5.1).
                field.extend([0x80 | (13_873 % 128) as u8, (13_873 / 128) as u8]);
                field.resize(field.len() + 14_000, b'z');
                let flags = if at == 3 { END_HEADERS } else { 0 };
                head.extend(frame(CONTINUATION, flags, stream, &field));
            }
            victim.peer.write_all(&head).await.unwrap();
            // One after the other: what is read at once is a peak that the allocator keeps.
            victim.still_answers("long headers").await;
        }
        assert_eq!(victim.asked.get(), MAX_SERVER_STREAMS as usize);
        let grown = resident_bytes().saturating_sub(before);
        assert!(grown <= HELD_BYTES + NOISE_BYTES, "{grown} bytes more");
        victim.served.abort();
    });
}

#[test]
fn floods_that_say_nothing_leave_nothing() {
    alone("floods_that_say_nothing_leave_nothing", saying_nothing);
}

fn saying_nothing() {
    for (what, piece) in [
        ("PRIORITY", frame(PRIORITY, 0, 1, &[0, 0, 0, 3, 1])),
        ("unknown frames", frame(UNKNOWN, 0xff, 1, &[0; 64])),
        ("WINDOW_UPDATE", frame(WINDOW_UPDATE, 0, 1, &1_u32.to_be_bytes())),
    ] {
        on_one_thread(async {
            let mut victim = Victim::new(true).await;
            victim.peer.write_all(&connect(1)).await.unwrap();
            let before = resident_bytes();
            let sent = victim.flood(Box::new(move |_| piece.clone())).await;
            assert!(sent >= FLOOD_BYTES, "{what}: {sent} bytes were taken");
            let grown = resident_bytes().saturating_sub(before);
            assert!(grown <= HELD_BYTES + NOISE_BYTES, "{what}: {grown} bytes more");
            victim.still_answers(what).await;
            victim.served.abort();
        });
    }
}
