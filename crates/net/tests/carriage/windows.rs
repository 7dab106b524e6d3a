//! Behaviour of windows and queues when memory is short, as a peer sees it in raw frames.

use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use crate::frames::{
    DATA, END_HEADERS, HEADERS, PING, PREFACE, RST_STREAM, SETTINGS, WINDOW_UPDATE,
};
use crate::{Hop, Joined, on_one_thread, tcp_pair};
use ambit_net::copy::{Flow, SocketEnd, copy};
use ambit_net::drain::Drain;
use ambit_net::hbone::{Connect, Settings, Transport, serve};
use ambit_net::memory::{Account, Accounts, MIN_WINDOW_BYTES, Owner};
use http::HeaderMap;
use tokio::io::{
    AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, duplex,
};
use tokio::task::spawn_local;
use tokio::time::{sleep, timeout};

const ACK: u8 = 1;
/// SETTINGS_INITIAL_WINDOW_SIZE.
const INITIAL_WINDOW: u16 = 4;
const FLOW_CONTROL_ERROR: [u8; 4] = [0, 0, 0, 3];
/// `:method: CONNECT`, `:authority: a:1`, both literal behind an index of HPACK's static table.
const CONNECT: &[u8] = b"\x02\x07CONNECT\x01\x03a:1";
const MIB: u32 = 1 << 20;

/// A client that sends frames as it likes.
struct Raw(DuplexStream);

impl Raw {
    /// Begins a connection to a server with these accounts.
    async fn new(accounts: Accounts, drain: &Drain, tunnel: impl FnMut(Connect) + 'static) -> Self {
        let (near, far) = duplex(64 * 1024);
        Self::over(near, far, accounts, drain, tunnel).await
    }

    /// The same, over this transport of the server's.
    async fn over(
        near: DuplexStream,
        far: impl AsyncRead + AsyncWrite + Unpin + 'static,
        accounts: Accounts,
        drain: &Drain,
        mut tunnel: impl FnMut(Connect) + 'static,
    ) -> Self {
        let guard = drain.guard();
        drain.guard().spawn_local(async move {
            let settings = Settings { accounts, ..Settings::default() };
            let transport = Transport::new(far);
            let activity = transport.activity();
            // How it ends is not what is tested here.
            let _ended = serve(transport, activity, &settings, &guard, &mut tunnel).await;
        });
        let mut raw = Self(near);
        raw.0.write_all(PREFACE).await.unwrap();
        raw.send(SETTINGS, 0, 0, &[]).await;
        raw
    }

    async fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let mut frame = vec![length[1], length[2], length[3], kind, flags];
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        self.0.write_all(&frame).await.unwrap();
    }

    /// The next frame of one kind that is no acknowledgement.
    async fn next(&mut self, wanted: u8) -> Vec<u8> {
        loop {
            let mut head = [0; 9];
            self.0.read_exact(&mut head).await.unwrap();
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let mut payload = vec![0; length];
            self.0.read_exact(&mut payload).await.unwrap();
            if head[3] == wanted && (wanted == RST_STREAM || head[4] & ACK == 0) {
                return payload;
            }
        }
    }

    /// Takes so many bytes of DATA, or what comes until nothing does for a while.
    async fn drain(&mut self, most: u64) -> u64 {
        let mut bytes = 0;
        while bytes < most {
            let mut head = [0; 9];
            let read = timeout(Duration::from_millis(200), self.0.read_exact(&mut head)).await;
            let Ok(read) = read else { break };
            read.unwrap();
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            self.0.read_exact(&mut vec![0; length as usize]).await.unwrap();
            bytes += if head[3] == DATA { u64::from(length) } else { 0 };
        }
        bytes
    }

    /// The window of the next SETTINGS, which are acknowledged.
    async fn window(&mut self) -> u32 {
        let settings = self.next(SETTINGS).await;
        self.send(SETTINGS, ACK, 0, &[]).await;
        let window = settings.chunks(6).find(|it| it[..2] == INITIAL_WINDOW.to_be_bytes());
        u32::from_be_bytes(window.unwrap()[2..].try_into().unwrap())
    }
}

fn one(share_bytes: usize) -> (Arc<Account>, Accounts) {
    let account = Arc::new(Account::new(Owner::One, share_bytes));
    (account.clone(), [account].into_iter().collect())
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    for _ in 0..10_000 {
        if holds() {
            return;
        }
        sleep(Duration::from_millis(2)).await;
    }
    panic!("{what}: never");
}

#[test]
fn a_peer_that_sends_more_than_the_small_window_loses_the_stream() {
    on_one_thread(async {
        let (drain, (_account, accounts)) = (Drain::new(), one(0));
        let mut kept = Vec::new();
        let keep = move |connect: Connect| kept.push(connect.accept(HeaderMap::new()).unwrap());
        let mut raw = Raw::new(accounts, &drain, keep).await;
        assert_eq!(raw.window().await, MIN_WINDOW_BYTES);
        raw.send(HEADERS, END_HEADERS, 1, CONNECT).await;
        raw.next(HEADERS).await;
        raw.send(DATA, 0, 1, &[0; MIN_WINDOW_BYTES as usize]).await;
        raw.send(DATA, 0, 1, &[0; 1]).await;
        assert_eq!(raw.next(RST_STREAM).await, FLOW_CONTROL_ERROR);
    });
}

#[test]
fn windows_narrow_beside_stuck_readers_and_come_back() {
    const SHARE: usize = 8 << 20;
    const READERS: usize = 20;
    on_one_thread(async {
        let (drain, (account, accounts)) = (Drain::new(), one(SHARE));
        let mut raw = Raw::new(accounts.clone(), &drain, |_| {}).await;
        assert_eq!(raw.window().await, MIB);
        let of_server = Settings { accounts, ..Settings::default() };
        let hop = Hop::with(Settings::default(), of_server).await;
        let mut unread = Vec::new();
        for _ in 0..READERS {
            let Joined { mut client, server, flow, .. } = hop.joined().await;
            spawn_local(async move { client.write_all(&vec![7; 16 << 20]).await });
            unread.push((server, flow));
        }
        until("all hold bytes", || account.holders() >= READERS).await;
        // Kernel buffers take what they like; the proxy's part is what is reserved.
        assert!(account.reserved_bytes() <= SHARE, "{}", account.reserved_bytes());
        let Joined { mut client, mut server, .. } = hop.joined().await;
        client.write_all(b"word").await.unwrap();
        let mut word = [0; 4];
        server.read_exact(&mut word).await.unwrap();
        assert_eq!(&word, b"word", "a neighbour on the same connection");
        // What is not acknowledged yet holds up the next change.
        let mut narrow = MIB;
        while narrow > MIB / 32 {
            raw.send(PING, 0, 0, &[1; 8]).await;
            narrow = raw.window().await;
        }
        drop((unread, client, server, hop));
        until("nothing is held", || account.holders() == 0).await;
        let mut wide = 0;
        while wide < MIB {
            raw.send(PING, 0, 0, &[2; 8]).await;
            wide = raw.window().await;
        }
        until("nothing is reserved", || account.reserved_bytes() == 0).await;
    });
}

/// A transport that takes much at once and sends it later, as TLS does.
struct Keeping {
    io: DuplexStream,
    kept: Vec<u8>,
}

impl AsyncRead for Keeping {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl AsyncWrite for Keeping {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let taken = buf.len().min((4 * MIB) as usize - self.kept.len());
        self.kept.extend_from_slice(&buf[..taken]);
        let _pending = self.as_mut().poll_flush(cx)?;
        if taken == 0 { Poll::Pending } else { Poll::Ready(Ok(taken)) }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { io, kept } = &mut *self;
        while !kept.is_empty() {
            let written = ready!(Pin::new(&mut *io).poll_write(cx, kept))?;
            kept.drain(..written);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// The flows of tunnels that were opened.
type Flows = Rc<std::cell::RefCell<Vec<Rc<Flow>>>>;

/// A server whose application sends so many bytes into every tunnel.
fn gushing(bytes: usize, opened: Flows) -> impl FnMut(Connect) {
    move |connect| {
        let mut tunnel = connect.accept(HeaderMap::new()).unwrap();
        let flow = Rc::new(Flow::new());
        opened.borrow_mut().push(flow.clone());
        spawn_local(async move {
            let (mut application, of_application) = tcp_pair().await;
            spawn_local(async move { application.write_all(&vec![7; bytes]).await });
            copy(&mut tunnel, &mut SocketEnd::new(of_application), &flow).await
        });
    }
}

#[test]
fn little_waits_for_a_peer_that_stops_reading() {
    const STREAMS: u32 = 40;
    on_one_thread(async {
        let (drain, (_account, accounts)) = (Drain::new(), one(0));
        let flows = Flows::default();
        let gush = gushing(4 << 20, flows.clone());
        let mut raw = Raw::new(accounts, &drain, gush).await;
        raw.window().await;
        // Windows of 1 GiB: nothing but the transport holds the server up.
        raw.send(SETTINGS, 0, 0, &[0, 4, 0x40, 0, 0, 0]).await;
        raw.send(WINDOW_UPDATE, 0, 0, &[0x40, 0, 0, 0]).await;
        for number in 0..STREAMS {
            raw.send(HEADERS, END_HEADERS, 2 * number + 1, CONNECT).await;
        }
        until("all are open", || flows.borrow().len() == STREAMS as usize).await;
        sleep(Duration::from_millis(300)).await;
        let taken: u64 = flows.borrow().iter().map(|flow| flow.to_client()).sum();
        // The transport's 64 KiB, the queue's 64 KiB and a read beyond.
        assert!(taken <= 256 << 10, "{taken} bytes wait");
        let mut first = vec![0; 1 << 20];
        raw.0.read_exact(&mut first).await.unwrap();
        let later: u64 = flows.borrow().iter().map(|flow| flow.to_client()).sum();
        assert!(later > taken, "it goes on when the peer reads again");
    });
}

/// A small request would wait behind all that the transport has.
#[test]
fn a_transport_that_keeps_much_is_given_little() {
    on_one_thread(async {
        let (drain, (_account, accounts)) = (Drain::new(), one(0));
        let flows = Flows::default();
        let gush = gushing(4 << 20, flows.clone());
        let (near, far) = duplex(64 * 1024);
        let far = Keeping { io: far, kept: Vec::new() };
        let mut raw = Raw::over(near, far, accounts, &drain, gush).await;
        raw.window().await;
        raw.send(SETTINGS, 0, 0, &[0, 4, 0x40, 0, 0, 0]).await;
        raw.send(WINDOW_UPDATE, 0, 0, &[0x40, 0, 0, 0]).await;
        raw.send(HEADERS, END_HEADERS, 1, CONNECT).await;
        until("it is open", || flows.borrow().len() == 1).await;
        sleep(Duration::from_millis(300)).await;
        let taken: u64 = flows.borrow().iter().map(|flow| flow.to_client()).sum();
        // 64 KiB on the way, as much in the transport's keeping and in the queue, a read beyond
        // each.
        assert!(taken <= 512 << 10, "{taken} bytes wait");
        assert_eq!(raw.drain(4 << 20).await, 4 << 20, "and all of it comes in the end");
    });
}

/// Bytes given to the library before a window shrank cannot be sent, and are still counted.
#[test]
fn what_a_shrunken_window_holds_back_is_bounded() {
    const ROUNDS: u32 = 7;
    const STEP: u32 = 720 * 1024;
    on_one_thread(async {
        let drain = Drain::new();
        let flows = Flows::default();
        let gush = gushing(8 << 20, flows.clone());
        let mut raw = Raw::new(Accounts::default(), &drain, gush).await;
        raw.window().await;
        raw.send(WINDOW_UPDATE, 0, 0, &[0x40, 0, 0, 0]).await;
        let given = || flows.borrow().iter().map(|flow| flow.to_client()).sum::<u64>();
        let mut received = 0;
        for round in 0..ROUNDS {
            // Less than each stream before has sent: those stay held back.
            let window = 6 * MIB - round * STEP;
            let [a, b, c, d] = window.to_be_bytes();
            raw.send(SETTINGS, 0, 0, &[0, 4, a, b, c, d]).await;
            raw.send(HEADERS, END_HEADERS, 2 * round + 1, CONNECT).await;
            received += raw.drain(u64::from(window - STEP + 20_000)).await;
            // The queue fills up behind the transport, and then the window goes.
            sleep(Duration::from_millis(100)).await;
            raw.send(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]).await;
            received += raw.drain(u64::MAX).await;
            println!("round {round}: {} bytes wait", given() - received);
        }
        let waiting = given() - received;
        // What is held back, what is queued, and a read beyond each.
        assert!(waiting <= 3 * 512 * 1024, "{waiting} bytes wait");
        // They stop nobody else.
        raw.send(SETTINGS, 0, 0, &[0, 4, 0, 0x10, 0, 0]).await;
        raw.send(HEADERS, END_HEADERS, 2 * ROUNDS + 1, CONNECT).await;
        assert_eq!(raw.drain(u64::MAX).await, u64::from(MIB), "a neighbour has its window");
    });
}
