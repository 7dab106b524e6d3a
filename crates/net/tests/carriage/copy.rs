//! Behaviour of copy between sockets, and between sockets through a tunnel.

use std::io::ErrorKind;
use std::rc::Rc;
use std::time::Duration;

use crate::{Hop, Joined, joined_by_sockets, on_one_thread, reset, tcp_pair};
use ambit_net::copy::{CopyError, EndError, Flow, SocketEnd, copy};
use ambit_net::hbone::Settings;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::spawn_local;

/// Runs a test for every way to join a client and a server.
fn check(test: impl AsyncFn(Joined)) {
    on_one_thread(async {
        test(joined_by_sockets().await).await;
        let hop = Hop::new().await;
        test(hop.joined().await).await;
        // A tunnel's end must leave its neighbours alone.
        test(hop.joined().await).await;
    });
}

/// Bytes that no shift or loss leaves unnoticed.
fn pattern(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// A reset, whatever arrived before it.
async fn expect_broken(mut stream: TcpStream) {
    let error = stream.read_to_end(&mut Vec::new()).await.expect_err("no orderly end");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

async fn expect_reset(mut stream: TcpStream) {
    let error = stream.read_u8().await.expect_err("no byte and no orderly end");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn bytes_arrive_unchanged_both_ways_at_once() {
    check(async |joined| {
        let Joined { mut client, mut server, flow, ended } = joined;
        let there = pattern(24 << 20);
        let back: Vec<u8> = there.iter().rev().copied().collect();
        let (mut client_reads, mut client_writes) = client.split();
        let (mut server_reads, mut server_writes) = server.split();
        let (mut arrived, mut returned) = (Vec::new(), Vec::new());
        let (written, answered, _, _) = tokio::join!(
            async {
                client_writes.write_all(&there).await?;
                client_writes.shutdown().await
            },
            async {
                server_writes.write_all(&back).await?;
                server_writes.shutdown().await
            },
            async { server_reads.read_to_end(&mut arrived).await.unwrap() },
            async { client_reads.read_to_end(&mut returned).await.unwrap() },
        );
        written.unwrap();
        answered.unwrap();
        assert!(arrived == there && returned == back, "bytes changed on the way");
        ended.await.unwrap().unwrap();
        assert_eq!((flow.to_server(), flow.to_client()), (24 << 20, 24 << 20));
    });
}

#[test]
fn each_direction_closes_on_its_own() {
    check(async |joined| {
        let Joined { mut client, mut server, ended, .. } = joined;
        client.write_all(b"question").await.unwrap();
        client.shutdown().await.unwrap();
        let mut question = Vec::new();
        server.read_to_end(&mut question).await.unwrap();
        assert_eq!(question, b"question");
        server.write_all(b"answer").await.unwrap();
        let mut answer = [0; 6];
        client.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"answer");
        assert!(!ended.is_finished());
        server.shutdown().await.unwrap();
        assert_eq!(client.read(&mut answer).await.unwrap(), 0);
        ended.await.unwrap().unwrap();
    });
}

#[test]
fn the_server_may_speak_and_close_first() {
    check(async |joined| {
        let Joined { mut client, mut server, ended, .. } = joined;
        server.write_all(b"220 ready").await.unwrap();
        server.shutdown().await.unwrap();
        let mut greeting = Vec::new();
        client.read_to_end(&mut greeting).await.unwrap();
        assert_eq!(greeting, b"220 ready");
        client.write_all(b"bye").await.unwrap();
        drop(client);
        let mut rest = Vec::new();
        server.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, b"bye");
        ended.await.unwrap().unwrap();
    });
}

#[test]
fn a_reset_by_the_client_reaches_the_server() {
    check(async |joined| {
        let Joined { mut client, mut server, ended, .. } = joined;
        client.write_all(b"x").await.unwrap();
        assert_eq!(server.read_u8().await.unwrap(), b'x');
        reset(client);
        expect_reset(server).await;
        let error = ended.await.unwrap().unwrap_err();
        assert!(matches!(error, CopyError::Client(EndError::Socket(_))), "{error:?}");
    });
}

#[test]
fn a_reset_by_the_server_reaches_the_client() {
    check(async |joined| {
        let Joined { mut client, server, ended, .. } = joined;
        client.write_all(b"x").await.unwrap();
        reset(server);
        expect_reset(client).await;
        let error = ended.await.unwrap().unwrap_err();
        assert!(matches!(error, CopyError::Server(_)), "{error:?}");
    });
}

/// Bytes and reset are there together before anybody has read.
#[test]
fn a_reset_right_behind_the_first_bytes_is_no_orderly_end() {
    check(async |joined| {
        let Joined { client, mut server, ended, .. } = joined;
        server.write_all(b"half an answer").await.unwrap();
        reset(server);
        expect_broken(client).await;
        ended.await.unwrap().unwrap_err();
    });
    check(async |joined| {
        let Joined { mut client, server, ended, .. } = joined;
        client.write_all(b"half a request").await.unwrap();
        reset(client);
        expect_broken(server).await;
        ended.await.unwrap().unwrap_err();
    });
}

#[test]
fn a_reset_after_half_close_reaches_the_client() {
    check(async |joined| {
        let Joined { mut client, mut server, ended, .. } = joined;
        server.shutdown().await.unwrap();
        assert_eq!(client.read(&mut [0; 1]).await.unwrap(), 0);
        client.write_all(b"x").await.unwrap();
        assert_eq!(server.read_u8().await.unwrap(), b'x');
        reset(server);
        // The client learns it at the latest when it writes again.
        while client.write_all(b"more").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        ended.await.unwrap().unwrap_err();
    });
}

#[test]
fn a_cut_resets_both_ends() {
    check(async |joined| {
        let Joined { client, server, flow, ended } = joined;
        flow.cut();
        assert!(matches!(ended.await.unwrap(), Err(CopyError::Cut)));
        expect_reset(client).await;
        expect_reset(server).await;
    });
}

#[test]
fn a_slow_reader_holds_up_only_its_own_stream() {
    on_one_thread(async {
        let hop = Hop::new().await;
        let slow = hop.joined().await;
        let (mut floods, _unread) = (slow.client, slow.server);
        // More than all windows and buffers on the way hold.
        let flood = spawn_local(async move { floods.write_all(&pattern(64 << 20)).await });
        let Joined { mut client, mut server, .. } = hop.joined().await;
        let bytes = pattern(32 << 20);
        let sent = bytes.clone();
        spawn_local(async move {
            client.write_all(&sent).await.unwrap();
            client.shutdown().await.unwrap();
        });
        let mut arrived = Vec::new();
        server.read_to_end(&mut arrived).await.unwrap();
        assert!(arrived == bytes);
        assert!(!flood.is_finished(), "backpressure reaches the sender");
        assert!(slow.flow.to_server() < 16 << 20, "{} bytes taken", slow.flow.to_server());
        flood.abort();
    });
}

#[test]
fn many_stuck_readers_hold_up_nobody_else() {
    on_one_thread(async {
        let hop = Hop::new().await;
        let bytes = Rc::new(pattern(3 << 20));
        let mut unread = Vec::new();
        for _ in 0..40 {
            let Joined { mut client, server, flow, .. } = hop.joined().await;
            let bytes = bytes.clone();
            spawn_local(async move { client.write_all(&bytes).await });
            unread.push((server, flow));
        }
        // Until the windows of all are full.
        for (_, flow) in &unread {
            while flow.to_server() < u64::from(Settings::default().stream_window_bytes) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        let Joined { mut client, mut server, .. } = hop.joined().await;
        client.write_all(b"word").await.unwrap();
        let mut word = [0; 4];
        server.read_exact(&mut word).await.unwrap();
        assert_eq!(&word, b"word");
    });
}

#[test]
fn tiny_messages_to_a_slow_reader_do_not_break_its_neighbours() {
    on_one_thread(async {
        let hop = Hop::new().await;
        let Joined { mut client, mut server, .. } = hop.joined().await;
        let mut neighbour = hop.joined().await;
        // Each message becomes a frame of its own; unread they would exceed what the connection
        // allows for them together.
        let messages = 50_000_u32;
        let writer = spawn_local(async move {
            for number in 0..messages {
                client.write_all(&number.to_be_bytes()).await.unwrap();
                tokio::task::yield_now().await;
            }
            client
        });
        let _client = writer.await.unwrap();
        neighbour.client.write_all(b"still here").await.unwrap();
        let mut word = [0; 10];
        neighbour.server.read_exact(&mut word).await.unwrap();
        assert_eq!(&word, b"still here");
        for number in 0..messages {
            assert_eq!(server.read_u32().await.unwrap(), number);
        }
    });
}

#[test]
fn an_idle_connection_is_small() {
    on_one_thread(async {
        let ((one, _client), (other, _server)) = (tcp_pair().await, tcp_pair().await);
        let (mut one, mut other) = (SocketEnd::new(one), SocketEnd::new(other));
        let flow = Flow::new();
        let future = copy(&mut one, &mut other, &flow);
        // Buffers are lent while bytes are in flight; here are only the two directions' states.
        assert!(size_of_val(&future) <= 320, "{} bytes", size_of_val(&future));
    });
}
