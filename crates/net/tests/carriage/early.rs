//! What a client says before its tunnel is there goes with the CONNECT, and to one proxy only.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use crate::frames::{
    DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PREFACE, RST_STREAM, SETTINGS, WINDOW_UPDATE,
};
use crate::{connect_to, in_simulated_time, on_one_thread, tcp_pair};
use ambit_net::copy::{Flow, SocketEnd, copy};
use ambit_net::drain::Drain;
use ambit_net::hbone::{Client, Early, HboneError, Tunnel};
use ambit_net::pool::Connection;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::net::TcpStream;

const OK: u8 = 0x88;
const UNAVAILABLE: &[u8] = &[0x48, 3, b'5', b'0', b'3'];
const TAKES_EARLY_DATA: &[u8] = &[0xf0, 0xea, 0, 0, 0, 1];
/// SETTINGS_MAX_CONCURRENT_STREAMS.
const ONE_STREAM: &[u8] = &[0, 3, 0, 0, 0, 1];
const NO_STREAM: &[u8] = &[0, 3, 0, 0, 0, 0];

/// A peer whose frames are written by hand.
struct Peer {
    io: DuplexStream,
}

#[derive(Debug, PartialEq, Eq)]
struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

impl Peer {
    async fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = u8::try_from(payload.len()).unwrap();
        let head = [&[0, 0, length, kind, flags], &stream.to_be_bytes()[..]].concat();
        self.io.write_all(&[&head, payload].concat()).await.unwrap();
    }

    /// The next frame of a stream.
    async fn frame(&mut self) -> Frame {
        loop {
            let mut head = [0; 9];
            self.io.read_exact(&mut head).await.unwrap();
            let [a, b, c, kind, flags, stream @ ..] = head;
            let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
            self.io.read_exact(&mut payload).await.unwrap();
            let stream = u32::from_be_bytes(stream);
            if stream != 0 {
                return Frame { kind, flags, stream, payload };
            }
        }
    }

    /// The next frame is this one.
    async fn expect(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let expected = Frame { kind, flags, stream, payload: payload.to_vec() };
        assert_eq!(self.frame().await, expected);
    }

    /// A CONNECT comes.
    async fn asked(&mut self) -> u32 {
        let frame = self.frame().await;
        assert_eq!((frame.kind, frame.flags), (HEADERS, END_HEADERS));
        frame.stream
    }

    /// Nothing comes for a while.
    async fn hears_nothing(&mut self) {
        let heard = tokio::time::timeout(Duration::from_millis(50), self.frame()).await;
        assert!(heard.is_err(), "{heard:?}");
    }
}

/// A client's end of a connection, its peer's, and one tunnel that has been there.
async fn connected(settings: &[u8]) -> (Client, Peer, Drain) {
    let (near, far) = duplex(1 << 20);
    let mut peer = Peer { io: far };
    peer.send(SETTINGS, 0, 0, settings).await;
    let mut preface = [0; PREFACE.len()];
    let drain = Drain::new();
    let transport = ambit_net::hbone::Transport::new(near);
    let activity = transport.activity();
    let client = Client::start(transport, activity, &Default::default(), &drain.guard());
    peer.io.read_exact(&mut preface).await.unwrap();
    (client, peer, drain)
}

async fn open(client: &Client, early: &Early<'_>) -> Result<Tunnel, HboneError> {
    let request = connect_to("10.0.0.1:80".parse().unwrap());
    client.connect_early(request, Some(early)).await.map(|(_, tunnel)| tunnel)
}

/// A tunnel for a client that says nothing: the peer has answered lately, then.
async fn warm(client: &Client, peer: &mut Peer) {
    let (_silent, socket) = tcp_pair().await;
    let early = Early::of(&socket);
    drop(open_with(client, peer, &early, b"").await);
    assert_eq!(peer.frame().await.kind, RST_STREAM);
}

/// A client that has said something already.
async fn talker(words: &[u8]) -> (TcpStream, TcpStream) {
    let (mut client, socket) = tcp_pair().await;
    client.write_all(words).await.unwrap();
    (client, socket)
}

/// Opens a tunnel to a peer that gets these bytes, and no more, before it answers.
async fn open_with(
    client: &Client,
    peer: &mut Peer,
    early: &Early<'_>,
    expected: &[u8],
) -> (Tunnel, u32) {
    let (tunnel, stream) = tokio::join!(open(client, early), async {
        let stream = peer.asked().await;
        if !expected.is_empty() {
            peer.expect(DATA, 0, stream, expected).await;
        }
        peer.hears_nothing().await;
        peer.send(HEADERS, END_HEADERS, stream, &[OK]).await;
        stream
    });
    assert!(!early.is_spent(), "it has answered");
    (tunnel.unwrap(), stream)
}

#[test]
fn the_first_bytes_go_with_the_connect_and_no_second_time() {
    on_one_thread(async {
        let (client, mut peer, _drain) = connected(TAKES_EARLY_DATA).await;
        warm(&client, &mut peer).await;
        let (mut application, socket) = talker(b"hello ").await;
        let early = Early::of(&socket);
        let (mut tunnel, stream) = open_with(&client, &mut peer, &early, b"hello ").await;
        application.write_all(b"world").await.unwrap();
        application.shutdown().await.unwrap();
        let flow = Flow::new();
        let mut end = SocketEnd::new(socket);
        let (ended, ()) = tokio::join!(copy(&mut end, &mut tunnel, &flow), async {
            let mut rest = Vec::new();
            loop {
                let frame = peer.frame().await;
                assert_eq!((frame.kind, frame.stream), (DATA, stream));
                rest.extend(frame.payload);
                if frame.flags & END_STREAM != 0 {
                    break;
                }
            }
            assert_eq!(rest, b"world");
            peer.send(DATA, END_STREAM, stream, b"answer").await;
        });
        ended.unwrap();
        assert_eq!((flow.to_server(), flow.to_client()), (11, 6));
        let mut answer = String::new();
        application.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, "answer");
    });
}

#[test]
fn a_client_that_has_said_all_at_once_ends_with_an_empty_frame() {
    on_one_thread(async {
        let (client, mut peer, _drain) = connected(TAKES_EARLY_DATA).await;
        warm(&client, &mut peer).await;
        let (mut application, socket) = talker(b"all").await;
        application.shutdown().await.unwrap();
        let early = Early::of(&socket);
        let (mut tunnel, stream) = open_with(&client, &mut peer, &early, b"all").await;
        let (mut end, flow) = (SocketEnd::new(socket), Flow::new());
        let (ended, ()) = tokio::join!(copy(&mut end, &mut tunnel, &flow), async {
            peer.expect(DATA, END_STREAM, stream, b"").await;
            peer.send(DATA, END_STREAM, stream, b"").await;
        });
        ended.unwrap();
        assert_eq!(flow.to_server(), 3);
    });
}

/// A window of one byte, too: what does not fit is said later.
#[test]
fn no_more_is_sent_than_the_window_allows() {
    on_one_thread(async {
        let settings = [TAKES_EARLY_DATA, &[0, 4, 0, 0, 0, 1]].concat();
        let (client, mut peer, _drain) = connected(&settings).await;
        warm(&client, &mut peer).await;
        let (application, socket) = talker(b"ab").await;
        let early = Early::of(&socket);
        let (mut tunnel, stream) = open_with(&client, &mut peer, &early, b"a").await;
        let (mut end, flow) = (SocketEnd::new(socket), Flow::new());
        let telling = async {
            peer.hears_nothing().await;
            peer.send(WINDOW_UPDATE, 0, stream, &[0, 0, 0, 9]).await;
            peer.expect(DATA, 0, stream, b"b").await;
            drop(application);
            peer.expect(DATA, END_STREAM, stream, b"").await;
            peer.send(DATA, END_STREAM, stream, b"").await;
        };
        let (ended, ()) = tokio::join!(copy(&mut end, &mut tunnel, &flow), telling);
        ended.unwrap();
        assert_eq!(flow.to_server(), 2);
    });
}

/// A connection has 65,535 bytes at first, and nobody reads what comes before its answer.
#[test]
fn tunnels_that_nobody_answers_leave_room_for_those_that_are_there() {
    on_one_thread(async {
        let (client, mut peer, _drain) = connected(TAKES_EARLY_DATA).await;
        warm(&client, &mut peer).await;
        let mut talkers = Vec::new();
        for _ in 0..20 {
            talkers.push(talker(&[7; 4096]).await);
        }
        let waiting = talkers.iter().map(|(_, socket)| async {
            let early = Early::of(socket);
            open(&client, &early).await.map(drop)
        });
        let hearing = async {
            let (mut asked, mut bytes) = (0, 0);
            while asked < 20 {
                let frame = peer.frame().await;
                asked += usize::from(frame.kind == HEADERS);
                bytes += if frame.kind == DATA { frame.payload.len() } else { 0 };
            }
            let rest = tokio::time::timeout(Duration::from_millis(50), peer.frame()).await;
            bytes + rest.map_or(0, |frame| frame.payload.len())
        };
        let waiting = futures::future::join_all(waiting);
        let bytes = tokio::select! {
            bytes = hearing => bytes,
            _ = waiting => panic!("nobody has answered"),
        };
        assert_eq!(bytes, 65_535 - 32 * 1024);
    });
}

#[test]
fn nothing_goes_early_to_a_peer_that_does_not_ask_for_it_or_has_not_answered_lately() {
    in_simulated_time(async {
        for (settings, is_warm, pause) in
            [(&[][..], true, 0), (TAKES_EARLY_DATA, false, 0), (TAKES_EARLY_DATA, true, 2)]
        {
            let (client, mut peer, _drain) = connected(settings).await;
            if is_warm {
                warm(&client, &mut peer).await;
            }
            tokio::time::sleep(Duration::from_secs(pause)).await;
            let (_application, socket) = talker(b"hello").await;
            let early = Early::of(&socket);
            open_with(&client, &mut peer, &early, b"").await;
        }
    });
}

#[test]
fn nothing_goes_early_behind_a_long_wait_for_a_place() {
    in_simulated_time(async {
        let settings = [TAKES_EARLY_DATA, ONE_STREAM].concat();
        let (client, mut peer, _drain) = connected(&settings).await;
        let (_silent, socket) = tcp_pair().await;
        let early = Early::of(&socket);
        let (first, _) = open_with(&client, &mut peer, &early, b"").await;
        let (_application, socket) = talker(b"hello").await;
        let early = Early::of(&socket);
        let leaving = async {
            tokio::time::sleep(Duration::from_secs(2)).await;
            drop(first);
        };
        let hearing = async {
            assert_eq!(peer.frame().await.kind, RST_STREAM);
            let stream = peer.asked().await;
            peer.hears_nothing().await;
            peer.send(HEADERS, END_HEADERS, stream, &[OK]).await;
        };
        let (opened, (), ()) = tokio::join!(open(&client, &early), leaving, hearing);
        opened.unwrap();
    });
}

/// On another connection it would hardly take any.
#[test]
fn who_wants_a_tunnel_of_a_peer_that_takes_none_waits_there() {
    on_one_thread(async {
        let (client, mut peer, _drain) = connected(NO_STREAM).await;
        peer.hears_nothing().await;
        assert!(client.has_room(1) && !client.is_closing());
        let request = connect_to("10.0.0.1:80".parse().unwrap());
        let (opened, ()) = tokio::join!(client.connect(request), async {
            peer.hears_nothing().await;
            assert!(!client.has_room(1), "one waits");
            peer.send(SETTINGS, 0, 0, ONE_STREAM).await;
            let stream = peer.asked().await;
            peer.send(HEADERS, END_HEADERS, stream, &[OK]).await;
        });
        opened.unwrap();
    });
}

#[test]
fn only_a_proxy_that_surely_let_go_of_the_bytes_leaves_them_to_another() {
    /// What the peer does with the request.
    async fn refuse(peer: &mut Peer, stream: u32, how: &str) {
        match how {
            "503" => peer.send(HEADERS, END_HEADERS | END_STREAM, stream, UNAVAILABLE).await,
            "refused" => peer.send(RST_STREAM, 0, stream, &[0, 0, 0, 7]).await,
            // GOAWAY of a peer that has seen to the stream before, not to this one.
            "untouched" => {
                let before = (stream - 2).to_be_bytes();
                peer.send(GOAWAY, 0, 0, &[&before[..], &[0; 4]].concat()).await;
            }
            "reset" => peer.send(RST_STREAM, 0, stream, &[0, 0, 0, 10]).await,
            _ => peer.io.shutdown().await.unwrap(),
        }
    }

    on_one_thread(async {
        for (how, is_spent) in [
            ("503", false),
            ("refused", false),
            ("untouched", false),
            ("reset", true),
            ("closed", true),
        ] {
            let (client, mut peer, _drain) = connected(TAKES_EARLY_DATA).await;
            warm(&client, &mut peer).await;
            let (_application, socket) = talker(b"hello").await;
            let early = Early::of(&socket);
            let (opened, ()) = tokio::join!(open(&client, &early), async {
                let stream = peer.asked().await;
                peer.expect(DATA, 0, stream, b"hello").await;
                assert!(early.is_spent(), "{how}: it may pass them on now");
                refuse(&mut peer, stream, how).await;
            });
            assert!(opened.is_err(), "{how}");
            assert_eq!(early.is_spent(), is_spent, "{how}");
            // They are still there for whoever is asked next.
            let mut words = [0; 5];
            let mut socket = socket;
            socket.read_exact(&mut words).await.unwrap();
            assert_eq!(&words, b"hello", "{how}");
        }
    });
}

/// The kernel tells an error of a socket once: it must not look like an orderly end later.
#[test]
fn a_client_that_has_reset_its_connection_gets_no_tunnel() {
    on_one_thread(async {
        let (client, mut peer, _drain) = connected(TAKES_EARLY_DATA).await;
        warm(&client, &mut peer).await;
        let (application, socket) = tcp_pair().await;
        crate::reset(application);
        tokio::time::sleep(Duration::from_millis(20)).await;
        let early = Early::of(&socket);
        let opened = open(&client, &early).await;
        assert!(matches!(opened, Err(HboneError::Client(_))));
        assert!(!early.is_spent());
        peer.hears_nothing().await;
    });
}

/// Whose turn never comes.
struct Idle;

impl Wake for Idle {
    fn wake(self: Arc<Self>) {}
}

#[test]
fn who_gives_up_waiting_for_a_peer_that_takes_nobody_leaves_nothing_there() {
    on_one_thread(async {
        let (client, mut peer, _drain) = connected(NO_STREAM).await;
        peer.hears_nothing().await;
        let idle = Arc::new(Idle);
        let waker = Waker::from(idle.clone());
        for _ in 0..3 {
            let request = connect_to("10.0.0.1:80".parse().unwrap());
            let mut asking = pin!(client.connect(request));
            for _ in 0..2 {
                assert!(asking.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
                assert_eq!(Arc::strong_count(&idle), 3, "one waits");
            }
        }
        assert_eq!(Arc::strong_count(&idle), 2, "nobody waits");
    });
}
