//! Behaviour of HBONE connections: refusals, going away, keepalive.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use crate::{Hop, Joined, connect_to, in_simulated_time, on_one_thread, tcp_pair};
use ambit_net::copy::{CopyError, End, EndError, Flow, SocketEnd, copy};
use ambit_net::drain::Drain;
use ambit_net::hbone::{Client, Connect, HboneError, Settings, Transport, serve};
use ambit_net::pool::Connection;
use http::{HeaderMap, StatusCode};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, duplex};
use tokio::task::{spawn_local, yield_now};
use tokio::time::{Instant, sleep};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
const SETTINGS_ACK: &[u8] = &[0, 0, 0, 4, 1, 0, 0, 0, 0];
const WINDOW_UPDATE: &[u8] = &[0, 0, 4, 8, 0, 0, 0, 0, 0, 0, 0, 0, 1];

#[test]
fn a_refusal_is_told_with_its_status() {
    on_one_thread(async {
        let (near, far) = tcp_pair().await;
        let drain = Drain::new();
        let guard = drain.guard();
        guard.clone().spawn_local(async move {
            let (transport, settings) = (Transport::new(far), Settings::default());
            let activity = transport.activity();
            serve(transport, activity, &settings, &guard, |connect| {
                connect.refuse(StatusCode::UNAUTHORIZED).unwrap();
            })
            .await
            .unwrap();
        });
        let transport = Transport::new(near);
        let activity = transport.activity();
        let (settings, guard) = (Settings::default(), drain.guard());
        let client = Client::start(transport, activity, &settings, &guard);
        drop(guard);
        let answer = client.connect(connect_to("127.0.0.1:1".parse().unwrap())).await;
        let error = answer.err().expect("no tunnel");
        assert!(matches!(error, HboneError::Refused(StatusCode::UNAUTHORIZED)), "{error:?}");
        assert_eq!(client.tunnels(), 0);
        drop(client);
        drain.finished().await;
    });
}

#[test]
fn going_away_keeps_tunnels_and_refuses_new_ones() {
    on_one_thread(async {
        let hop = Hop::new().await;
        let Joined { mut client, mut server, ended, .. } = hop.joined().await;
        assert!(hop.client.has_room(1 + 1));
        hop.server.start(None);
        let refused = loop {
            let answer = hop.client.connect(connect_to("127.0.0.1:1".parse().unwrap())).await;
            match answer.err().expect("the port is closed, there is no tunnel") {
                HboneError::Broken(_) => yield_now().await,
                other => break other,
            }
        };
        assert!(matches!(refused, HboneError::Closing(_)), "{refused:?}");
        assert!(hop.client.is_closing() && !hop.client.has_room(100));
        client.write_all(b"still").await.unwrap();
        let mut word = [0; 5];
        server.read_exact(&mut word).await.unwrap();
        drop((client, server));
        ended.await.unwrap().unwrap();
        drop(hop.client);
        hop.server.finished().await;
    });
}

#[test]
fn a_deadline_closes_what_is_left() {
    on_one_thread(async {
        let hop = Hop::new().await;
        let Joined { client, server, ended, .. } = hop.joined().await;
        hop.server.start(Some(Instant::now() + Duration::from_millis(50)));
        ended.await.unwrap().unwrap_err();
        drop((client, server));
        hop.server.finished().await;
    });
}

/// A peer that finished its half of the handshake and from then on does nothing by itself.
async fn silent_peer(settings: &Settings, drain: &Drain) -> (Client, DuplexStream) {
    let (near, mut far) = duplex(1 << 20);
    far.write_all(SETTINGS).await.unwrap();
    far.write_all(SETTINGS_ACK).await.unwrap();
    let transport = Transport::new(near);
    let activity = transport.activity();
    let client = Client::start(transport, activity, settings, &drain.guard());
    (client, far)
}

/// A server that drains closes its connection as soon as its own side of the streams is over; the
/// client's application may still be reading.
#[test]
fn what_both_sides_have_ended_cannot_fail_any_more() {
    const OK: &[u8] = &[0, 0, 1, 1, 4, 0, 0, 0, 1, 0x88];
    const LAST_DATA: &[u8] = b"\0\0\x06\0\x01\0\0\0\x01answer";

    on_one_thread(async {
        let drain = Drain::new();
        let (client, mut far) = silent_peer(&Settings::default(), &drain).await;
        let opening = client.connect(connect_to("127.0.0.1:1".parse().unwrap()));
        far.write_all(&[OK, LAST_DATA].concat()).await.unwrap();
        let (_, mut tunnel) = opening.await.unwrap();
        tunnel.shutdown().await.unwrap();
        drop(far);
        while !client.is_closing() {
            yield_now().await;
        }
        assert!(poll_fn(|cx| Poll::Ready(tunnel.poll_gone(cx).is_pending())).await);
        let mut answer = String::new();
        tunnel.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, "answer");
    });
}

/// Envoy resets a tunnel right behind the last bytes of a server that has closed; all of it comes
/// in one record.
#[test]
fn what_comes_in_one_go_with_a_reset_is_delivered() {
    const OK: &[u8] = &[0, 0, 1, 1, 4, 0, 0, 0, 1, 0x88];
    const DATA: &[u8] = b"\0\0\x06\0\0\0\0\0\x01answer";
    const CONNECT_ERROR: &[u8] = &[0, 0, 4, 3, 0, 0, 0, 0, 1, 0, 0, 0, 10];

    on_one_thread(async {
        let drain = Drain::new();
        let (client, mut far) = silent_peer(&Settings::default(), &drain).await;
        let opening = client.connect(connect_to("127.0.0.1:1".parse().unwrap()));
        let answering = async {
            // Until the CONNECT is out.
            sleep(Duration::from_millis(50)).await;
            far.write_all(OK).await.unwrap();
        };
        let (opened, ()) = tokio::join!(opening, answering);
        let (_, mut tunnel) = opened.unwrap();
        far.write_all(&[DATA, CONNECT_ERROR].concat()).await.unwrap();
        // Until both frames are in.
        sleep(Duration::from_millis(50)).await;
        let (mut application, socket) = tcp_pair().await;
        socket.writable().await.unwrap();
        let flow = Flow::new();
        let ended = copy(&mut SocketEnd::new(socket), &mut tunnel, &flow).await;
        assert!(matches!(ended, Err(CopyError::Server(EndError::Tunnel(_)))), "{ended:?}");
        assert_eq!(flow.to_client(), 6, "{ended:?}");
        let mut answer = [0; 6];
        application.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"answer");
    });
}

#[test]
fn a_silent_peer_is_given_up_after_interval_and_timeout() {
    in_simulated_time(async {
        let drain = Drain::new();
        let start = Instant::now();
        let (client, _far) = silent_peer(&Settings::default(), &drain).await;
        while !client.is_closing() {
            sleep(Duration::from_secs(1)).await;
            assert!(start.elapsed() < Duration::from_secs(60), "never given up");
        }
        // 10 s until the first PING, or 20 s when the handshake's bytes came late; 20 s for it.
        assert!(start.elapsed() >= Duration::from_secs(30), "{:?}", start.elapsed());
        assert!(start.elapsed() <= Duration::from_secs(41), "{:?}", start.elapsed());
    });
}

#[test]
fn a_lost_ping_ends_nothing_while_bytes_arrive() {
    in_simulated_time(async {
        let drain = Drain::new();
        let (client, mut far) = silent_peer(&Settings::default(), &drain).await;
        let client = Rc::new(client);
        let watched = client.clone();
        let feeding = spawn_local(async move {
            // Slower than PINGs are sent, faster than they time out; they are never answered.
            for _ in 0..20 {
                sleep(Duration::from_secs(13)).await;
                far.write_all(WINDOW_UPDATE).await.unwrap();
                assert!(!watched.is_closing());
            }
            far
        });
        let _far = feeding.await.unwrap();
        assert!(!client.is_closing());
        sleep(Duration::from_secs(60)).await;
        assert!(client.is_closing(), "silent for a minute");
    });
}

#[test]
fn a_client_that_never_begins_is_given_up() {
    const PATIENCE: Duration = Duration::from_secs(10);
    // How much of its preface it sends, and how long it takes between two bytes.
    for (sent, interval) in [
        (0, Duration::ZERO),
        (PREFACE.len() - 1, Duration::ZERO),
        (PREFACE.len() - 1, Duration::from_secs(1)),
    ] {
        in_simulated_time(async {
            let (mut near, far) = duplex(1 << 20);
            let client = spawn_local(async move {
                for byte in &PREFACE[..sent] {
                    sleep(interval).await;
                    // Once it is given up nobody reads.
                    let _unread = near.write_all(&[*byte]).await;
                }
                let mut answer = Vec::new();
                near.read_to_end(&mut answer).await.map(|_| ())
            });
            let (drain, start) = (Drain::new(), Instant::now());
            let transport = Transport::new(far);
            let activity = transport.activity();
            let none = |_| unreachable!("it asks for nothing");
            let settings = Settings::default();
            let served = serve(transport, activity, &settings, &drain.guard(), none).await;
            assert!(matches!(served, Err(HboneError::Silent(PATIENCE))), "{sent}: {served:?}");
            // The clock of the runtime counts milliseconds.
            let taken = start.elapsed();
            assert!(taken.abs_diff(PATIENCE) <= Duration::from_millis(1), "{sent}: {taken:?}");
            client.await.unwrap().expect("its connection is closed");
        });
    }
}

#[test]
fn a_client_that_begins_late_is_served() {
    in_simulated_time(async {
        let (mut near, far) = duplex(1 << 20);
        let serving = spawn_local(async move {
            let drain = Drain::new();
            let transport = Transport::new(far);
            let activity = transport.activity();
            let none = |_| unreachable!("it asks for nothing");
            serve(transport, activity, &Settings::default(), &drain.guard(), none).await
        });
        sleep(Duration::from_secs(9)).await;
        near.write_all(PREFACE).await.unwrap();
        near.write_all(SETTINGS).await.unwrap();
        sleep(Duration::from_secs(9)).await;
        assert!(!serving.is_finished());
        drop(near);
        serving.await.unwrap().expect("its end is in order");
    });
}

/// Windows of 2^30.
const WIDE: &[u8] = b"\0\0\x06\x04\0\0\0\0\0\0\x04\x40\0\0\0\0\0\x04\x08\0\0\0\0\0\x40\0\0\0";
/// CONNECT a:1, and nothing more is said.
const CONNECT: &[u8] = b"\0\0\x0e\x01\x05\0\0\0\x01\x02\x07CONNECT\x01\x03a:1";
/// The answer to the PING that goes with GOAWAY.
const HEARD: &[u8] = b"\0\0\x08\x06\x01\0\0\0\0leaving.";

/// Serves one tunnel, which gets so many bytes.
async fn serve_bytes<IO>(io: IO, bytes: usize, drain: Drain) -> Result<(), HboneError>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let transport = Transport::new(io);
    let activity = transport.activity();
    let guard = drain.guard();
    let answer = |connect: Connect| {
        let mut tunnel = connect.accept(HeaderMap::new()).unwrap();
        // It is the last one.
        drain.start(None);
        spawn_local(async move {
            tunnel.write_all(&vec![7; bytes]).await.unwrap();
            tunnel.shutdown().await.unwrap();
            tunnel.read_to_end(&mut Vec::new()).await.unwrap();
        });
    };
    serve(transport, activity, &Settings::default(), &guard, answer).await
}

/// What a peer still sends is read until it has closed its side: else the kernel would answer with
/// a reset, and throw away what the peer has not got.
#[test]
fn a_server_that_leaves_does_not_lose_its_last_bytes() {
    const BYTES: usize = 1 << 20;

    on_one_thread(async {
        let (mut near, far) = tcp_pair().await;
        let served = spawn_local(serve_bytes(far, BYTES, Drain::new()));
        near.write_all(&[PREFACE, WIDE, CONNECT].concat()).await.unwrap();
        // The server has handed all to its kernel, where most of it waits.
        sleep(Duration::from_millis(200)).await;
        near.write_all(HEARD).await.unwrap();
        sleep(Duration::from_millis(50)).await;
        assert!(!served.is_finished(), "it reads until the peer has closed");
        near.write_all(WINDOW_UPDATE).await.unwrap();
        sleep(Duration::from_millis(50)).await;
        let mut got = Vec::new();
        // The end comes before the peer closes its side: the server has closed its own.
        near.read_to_end(&mut got).await.expect("no reset");
        assert!(got.len() > BYTES, "{} bytes", got.len());
        assert!(!served.is_finished(), "it reads until the peer has closed");
        drop(near);
        served.await.unwrap().expect("its end is in order");
    });
}

/// Who is slow is waited for, also while what it is sent waits on our side.
#[test]
fn a_slow_peer_gets_all_of_a_server_that_leaves() {
    const BYTES: usize = 200 << 10;

    in_simulated_time(async {
        let (mut near, far) = duplex(4096);
        let served = spawn_local(serve_bytes(far, BYTES, Drain::new()));
        near.write_all(&[PREFACE, WIDE, CONNECT].concat()).await.unwrap();
        sleep(Duration::from_secs(1)).await;
        near.write_all(HEARD).await.unwrap();
        let mut got = 0;
        loop {
            // It says something every ten seconds, and for two minutes in all.
            for _ in 0..10 {
                got += near.read(&mut [0; 2048]).await.unwrap();
                sleep(Duration::from_secs(1)).await;
            }
            if served.is_finished() || got > BYTES {
                break;
            }
            near.write_all(WINDOW_UPDATE).await.unwrap();
        }
        got += near.read_to_end(&mut Vec::new()).await.unwrap();
        assert!(got > BYTES, "{got} bytes");
        drop(near);
        served.await.unwrap().expect("its end is in order");
    });
}

/// A peer that says something again and again and reads nothing holds up nobody.
#[test]
fn a_peer_that_takes_nothing_is_given_up() {
    in_simulated_time(async {
        let (mut near, far) = duplex(4096);
        let served = spawn_local(serve_bytes(far, 100 << 10, Drain::new()));
        near.write_all(&[PREFACE, WIDE, CONNECT].concat()).await.unwrap();
        sleep(Duration::from_secs(1)).await;
        near.write_all(HEARD).await.unwrap();
        let start = Instant::now();
        while !served.is_finished() {
            // It fails when the server has gone.
            let _sent = near.write_all(WINDOW_UPDATE).await;
            sleep(Duration::from_secs(5)).await;
            assert!(start.elapsed() < Duration::from_secs(60), "it is never given up");
        }
        served.await.unwrap().expect("its end is in order");
    });
}

/// A client whose peer never closes its side, and says something at intervals; how long it takes.
async fn left_alone(interval: Duration, deadline: Option<Duration>) -> Duration {
    let (drain, start) = (Drain::new(), Instant::now());
    let (client, mut far) = silent_peer(&Settings::default(), &drain).await;
    drop(client);
    let talking = spawn_local(async move {
        while far.write_all(WINDOW_UPDATE).await.is_ok() {
            sleep(interval).await;
        }
    });
    drain.start(deadline.map(|it| start + it));
    drain.finished().await;
    let taken = start.elapsed();
    talking.await.unwrap();
    taken
}

#[test]
fn a_peer_that_never_closes_its_side_is_left_alone() {
    in_simulated_time(async {
        let seconds = Duration::from_secs;
        for (interval, deadline, expected) in [
            (seconds(4), None, seconds(30)),
            (seconds(60), None, seconds(15)),
            // Nobody who drains waits longer than meant.
            (seconds(4), Some(seconds(2)), seconds(2)),
        ] {
            let taken = left_alone(interval, deadline).await;
            assert!(taken.abs_diff(expected) < seconds(1), "{taken:?}, not {expected:?}");
        }
    });
}
