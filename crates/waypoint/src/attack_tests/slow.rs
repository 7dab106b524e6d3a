//! Clients that take their time: heads, bodies and readers.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::{JoinSet, spawn_local};
use tokio::time::{Instant, sleep};

use super::frames::{get, preface, stream};
use super::world::{Count, HTTP, HTTP2, UNDECLARED, World, answer, run, text};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
/// Slow clients at once.
const SLOW: usize = 10_000;
/// Readers that stand still.
const READERS: usize = 300;
/// What the engine may hold for one of them: a full outbox, a read for it, and heads.
const READER_BYTES: usize = 160 * 1024;

/// What a client is answered that sends this and then one byte after the other.
async fn trickle(world: &World, port: u16, first: &[u8]) -> String {
    let mut client = world.connect(port).await;
    client.write_all(first).await.unwrap();
    let (mut read, mut write) = tokio::io::split(client);
    let trickling = async {
        loop {
            sleep(Duration::from_millis(20)).await;
            if write.write_all(b"a").await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    };
    let mut all = Vec::new();
    tokio::select! {
        _ended = read.read_to_end(&mut all) => {}
        () = trickling => {}
    }
    String::from_utf8_lossy(&all).into_owned()
}

#[test]
fn a_head_has_its_time_from_the_first_byte() {
    run(&["--head-timeout=300ms"], async |world| {
        world.serve(HTTP, |stream| answer(stream, OK));
        for first in ["G", "GET ", "GET /", "GET / HTTP/1.1\r\n", "GET / HTTP/1.1\r\nHost: w"] {
            let started = Instant::now();
            let answer = trickle(world, HTTP, first.as_bytes()).await;
            let is_refused =
                answer.starts_with("HTTP/1.1 408 ") || answer.starts_with("HTTP/1.1 4");
            assert!(is_refused, "{first:?}: {answer}");
            assert!(started.elapsed() < Duration::from_secs(10), "{first:?}");
        }
        let answer = trickle(world, UNDECLARED, b"GET / HTTP/1.1\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
        world.stays_good().await;
    });
}

#[test]
fn a_body_that_stops_is_given_up() {
    run(&["--stream-idle-timeout=300ms"], async |world| {
        world.serve(HTTP, |mut stream| async move {
            while let Ok(1..) = stream.read(&mut [0; 4096]).await {}
        });
        for half in
            ["Content-Length: 1000000000\r\n\r\nhalf", "Transfer-Encoding: chunked\r\n\r\n4"]
        {
            let mut client = world.connect(HTTP).await;
            let request = format!("POST / HTTP/1.1\r\nHost: web\r\n{half}");
            client.write_all(request.as_bytes()).await.unwrap();
            let answer = text(&mut client).await;
            assert!(answer.starts_with("HTTP/1.1 408 "), "{half}: {answer}");
            assert!(answer.contains("x-ambit-reason: stream_idle\r\n"), "{answer}");
        }
        world.stays_good().await;
    });
}

/// Ten thousand clients that have begun a head and send a byte now and then. All of them are
/// answered 408 when their time is up, a good client at once, and each holds one small buffer.
#[test]
fn ten_thousand_slow_clients() {
    run(&["--head-timeout=8s"], async |world| {
        let started = Instant::now();
        let mut clients = Vec::with_capacity(SLOW);
        for _ in 0..SLOW {
            let mut client = world.connect(HTTP).await;
            client.write_all(b"GET /slow HTTP/1.1\r\nHost: web\r\nX-Slow: ").await.unwrap();
            clients.push(client);
            if clients.len().is_multiple_of(2_000) {
                let asked = Instant::now();
                world.stays_good().await;
                println!(
                    "{} slow clients after {:?}: {} bytes held by the engine, {} by the tunnels; \
                     a good one is answered within {:?}",
                    clients.len(),
                    started.elapsed(),
                    world.held_bytes(),
                    world.reserved_bytes(),
                    asked.elapsed(),
                );
            }
        }
        let most = SLOW * 8 * 1024;
        assert!(world.held_bytes() < most, "{}", world.held_bytes());
        let mut refused = JoinSet::new();
        for mut client in clients {
            refused.spawn_local(async move { text(&mut client).await });
        }
        let (mut timeouts, mut others) = (0, 0);
        while let Some(answer) = refused.join_next().await {
            match answer.unwrap().starts_with("HTTP/1.1 408 ") {
                true => timeouts += 1,
                false => others += 1,
            }
        }
        println!("all of them gone after {:?}: {timeouts} times 408", started.elapsed());
        assert_eq!((timeouts, others), (SLOW, 0));
        world.stays_good().await;
    });
}

#[test]
fn readers_that_stand_still_hold_little_and_slow_their_servers() {
    run(&[], async |world| {
        let sent = Count::default();
        let counts = sent.clone();
        world.serve(HTTP, move |mut stream| {
            let sent = counts.clone();
            async move {
                let _read = stream.read(&mut [0; 4096]).await;
                let head = "HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n";
                let mut gushing = stream.write_all(head.as_bytes()).await;
                while gushing.is_ok() {
                    gushing = stream.write_all(&[b'x'; 16 * 1024]).await;
                    sent.add(16 * 1024);
                }
            }
        });
        let mut readers = Vec::new();
        for _ in 0..READERS {
            let mut client = world.connect(HTTP).await;
            client.write_all(b"GET / HTTP/1.1\r\nHost: web\r\n\r\n").await.unwrap();
            readers.push(client);
        }
        let mut before = usize::MAX;
        while sent.get() != before {
            before = sent.get();
            sleep(Duration::from_millis(300)).await;
        }
        super::world::until("what is held is known", || world.held_bytes() > 0).await;
        let held = world.held_bytes();
        println!("{READERS} readers that stand still: {held} bytes held, {before} sent to them");
        assert!(held < READERS * READER_BYTES, "{held}");
        world.stays_good().await;
        drop(readers);
        super::world::until("nothing is held", || world.held_bytes() < READER_BYTES).await;
    });
}

/// Streams of many clients share one connection of HTTP/2 to a server. Those that are not read must
/// not use up its window.
#[test]
fn readers_that_stand_still_do_not_stop_others_on_the_same_connection() {
    run(&[], async |world| {
        world.serve(HTTP2, |stream| async move {
            let mut connection = h2::server::handshake(stream).await.unwrap();
            while let Some(Ok((_, mut respond))) = connection.accept().await {
                spawn_local(async move {
                    let head = http::Response::new(());
                    let Ok(mut send) = respond.send_response(head, false) else { return };
                    loop {
                        send.reserve_capacity(16 * 1024);
                        let room = std::future::poll_fn(|cx| send.poll_capacity(cx)).await;
                        let Some(Ok(room)) = room else { return };
                        if send.send_data(vec![b'x'; room].into(), false).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        let mut still = Vec::new();
        for _ in 0..60 {
            let mut client = world.connect(HTTP2).await;
            let closed = [preface(&[(4, 0)]), get(stream(0))].concat();
            client.write_all(&closed).await.unwrap();
            still.push(client);
        }
        sleep(Duration::from_millis(500)).await;
        let mut client = world.connect(HTTP2).await;
        let open = [preface(&[(4, 1 << 20)]), get(stream(0))].concat();
        client.write_all(&open).await.unwrap();
        let mut read = 0;
        // As much as the connection's window lets come.
        while read < 60 * 1024 {
            let came = super::frames::next(&mut client).await.expect("its body");
            if came.kind == super::frames::DATA {
                read += came.payload.len();
            }
        }
        drop(still);
        world.stays_good().await;
    });
}
