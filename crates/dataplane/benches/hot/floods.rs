//! Frames of HTTP/2 that a server must take from anybody and that are of no use, beside short words
//! in a tunnel, which are. A flood that costs more than the words would be the cheaper attack.
//!
//! The peer writes bytes and looks for one answer, so a figure is the server's cost almost alone.

use ambit_net::drain::Drain;
use ambit_net::hbone::{Connect, Settings, Transport, serve};
use criterion::{Criterion, Throughput};
use http::HeaderMap;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex, sink};
use tokio::task::spawn_local;

use crate::bytes::{PIPE_BYTES, Thread, timed};

/// How many frames are sent before the peer waits for the answer to a PING.
const BURST: usize = 2_000;
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// What the answered PING carries.
const MARK: &[u8; 8] = b"are you?";

// Types and flags of frames (RFC 9113 section 6); the last is nobody's.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const UNKNOWN: u8 = 0xbe;
const END_HEADERS: u8 = 4;

const TUNNEL: u32 = 401;

pub(crate) fn bench(criterion: &mut Criterion) {
    let thread = Thread::new();
    let mut group = criterion.benchmark_group("frames");
    group.throughput(Throughput::Elements(BURST as u64));
    for (name, one) in [
        ("words of a tunnel", frame(DATA, 0, TUNNEL, &[7; 8])),
        ("PING", frame(PING, 0, 0, &[7; 8])),
        ("SETTINGS", frame(SETTINGS, 0, 0, &[])),
        ("window of all", [sized(1), sized(1 << 20)].concat()),
        ("WINDOW_UPDATE", frame(WINDOW_UPDATE, 0, TUNNEL, &1_u32.to_be_bytes())),
        ("PRIORITY", frame(PRIORITY, 0, TUNNEL, &[0, 0, 0, 3, 1])),
        ("unknown", frame(UNKNOWN, 0xff, TUNNEL, &[0; 8])),
    ] {
        let burst = [one.repeat(BURST), frame(PING, 0, 0, MARK)].concat();
        let mut peer = thread.run(peer());
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|times| {
                thread.run(timed(times, async || send(&mut peer, &burst).await))
            });
        });
    }
    group.finish();
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let head = [length[1], length[2], length[3], kind, flags];
    [&head[..], &stream.to_be_bytes(), payload].concat()
}

/// SETTINGS with the window of streams, of which there are two hundred.
fn sized(window: u32) -> Vec<u8> {
    frame(SETTINGS, 0, 0, &[&[0, 4][..], &window.to_be_bytes()].concat())
}

/// CONNECT 127.0.0.1:1 as literals without indexing (RFC 7541 section 6.2.2).
fn connect(stream: u32) -> Vec<u8> {
    let block = [&[0x02, 7][..], b"CONNECT", &[0x01, 11], b"127.0.0.1:1"].concat();
    frame(HEADERS, END_HEADERS, stream, &block)
}

/// A peer of a server, with as many tunnels as it may have. They are read, and never answer.
async fn peer() -> DuplexStream {
    let (mut near, far) = duplex(PIPE_BYTES);
    let drain = Drain::new();
    let serving = drain.guard();
    spawn_local(async move {
        let _drain = drain;
        let transport = Transport::new(far);
        let (activity, settings) = (transport.activity(), Settings::default());
        let accept = |connect: Connect| {
            let mut tunnel = connect.accept(HeaderMap::new()).unwrap();
            spawn_local(async move { tokio::io::copy(&mut tunnel, &mut sink()).await });
        };
        serve(transport, activity, &settings, &serving, accept).await.ok();
    });
    near.write_all(PREFACE).await.unwrap();
    near.write_all(&frame(SETTINGS, 0, 0, &[])).await.unwrap();
    for stream in (3..=TUNNEL).step_by(2) {
        near.write_all(&connect(stream)).await.unwrap();
    }
    send(&mut near, &frame(PING, 0, 0, MARK)).await;
    near
}

/// Sends, and reads all answers up to that to the marked PING, which is the last.
async fn send(peer: &mut DuplexStream, burst: &[u8]) {
    let (mut read, mut write) = tokio::io::split(peer);
    let answered = async {
        let mut some = vec![0; PIPE_BYTES];
        let mut kept = 0;
        loop {
            let read = read.read(&mut some[kept..]).await.unwrap();
            assert!(read > 0, "the server closed the connection");
            let heard = &some[..kept + read];
            // An answer may come in two pieces. What follows the mark is read the next time.
            if heard.windows(MARK.len()).any(|window| window == MARK) {
                return;
            }
            let tail = heard.len().saturating_sub(MARK.len() - 1);
            kept = heard.len() - tail;
            some.copy_within(tail..tail + kept, 0);
        }
    };
    let (written, ()) = tokio::join!(write.write_all(burst), answered);
    written.unwrap();
}
