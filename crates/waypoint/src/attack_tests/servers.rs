//! Servers that mean harm, or do not mean well.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::sleep;

use super::world::{Count, HTTP, HTTP2, World, run, text};

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n";
/// What one connection may make the engine hold: more than 1xx answers may be.
const MOST_HELD: usize = 1 << 20;

/// A server that sends this and then the same again and again.
fn sends(world: &World, first: &'static str, again: &'static str) {
    world.serve(HTTP, move |mut stream| async move {
        let _read = stream.read(&mut [0; 4096]).await;
        let mut sent = stream.write_all(first.as_bytes()).await;
        while sent.is_ok() {
            sent = stream.write_all(again.as_bytes()).await;
        }
    });
}

#[test]
fn answers_1xx_without_an_end_are_given_up() {
    run(&[], async |world| {
        sends(world, "", "HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n");
        let answer = world.ask(HTTP, GET).await;
        let (hints, last) = answer.rsplit_once("HTTP/1.1 5").expect("an answer");
        assert!(last.starts_with("02 "), "{last}");
        assert!(last.contains("x-ambit-reason: upstream_malformed"), "{last}");
        assert_eq!(hints.matches("HTTP/1.1 103 ").count(), 1_000);
        // A client that reads none of them keeps no more.
        let mut still = world.connect(HTTP).await;
        still.write_all(GET).await.unwrap();
        sleep(Duration::from_millis(300)).await;
        assert!(world.held_bytes() < MOST_HELD, "{}", world.held_bytes());
        world.stays_good().await;
    });
}

#[test]
fn heads_without_an_end_are_given_up() {
    run(&[], async |world| {
        sends(world, "HTTP/1.1 200 OK\r\n", "x-more: and more\r\n");
        let answer = world.ask(HTTP, GET).await;
        assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
        world.stays_good().await;
    });
}

#[test]
fn trailers_without_an_end_break_the_response() {
    run(&[], async |world| {
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n";
        sends(world, head, "x-more: and more\r\n");
        // It may be seen before anything is sent to the client, which gets nothing at all then.
        let answer = world.ask(HTTP, GET).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 200 "), "{answer}");
        assert!(!answer.contains("x-more") && !answer.contains("0\r\n\r\n"), "{answer}");
        assert!(world.held_bytes() < MOST_HELD, "{}", world.held_bytes());
        world.stays_good().await;
    });
}

/// What comes unasked on a connection that waits for the next request is no answer to it.
#[test]
fn an_answer_before_the_request_is_nobodys() {
    run(&[], async |world| {
        let opened = Count::default();
        let counts = opened.clone();
        world.serve(HTTP, move |mut stream| {
            counts.add(1);
            async move {
                let two = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok\
                           HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison";
                while let Ok(1..) = stream.read(&mut [0; 4096]).await {
                    if stream.write_all(two.as_bytes()).await.is_err() {
                        return;
                    }
                }
            }
        });
        for number in 1..=5 {
            let answer = world.ask(HTTP, GET).await;
            assert!(answer.ends_with("\r\n\r\nok"), "{answer}");
            assert_eq!(opened.get(), number, "no connection is used again");
        }
        world.stays_good().await;
    });
}

#[test]
fn a_server_that_never_reads_ends_by_the_clock_and_holds_little() {
    run(&["--stream-idle-timeout=1s"], async |world| {
        world.serve(HTTP, |stream| async move {
            sleep(Duration::from_secs(600)).await;
            drop(stream);
        });
        let client = world.connect(HTTP).await;
        let (mut read, mut write) = tokio::io::split(client);
        let head = "POST / HTTP/1.1\r\nHost: web\r\nTransfer-Encoding: chunked\r\n\r\n";
        write.write_all(head.as_bytes()).await.unwrap();
        let chunk = [&b"4000\r\n"[..], &[b'x'; 0x4000], b"\r\n"].concat();
        let writing = async {
            while write.write_all(&chunk).await.is_ok() {}
            std::future::pending::<()>().await;
        };
        let mut answer = Vec::new();
        tokio::select! {
            _ended = read.read_to_end(&mut answer) => {}
            () = writing => {}
        }
        let answer = String::from_utf8_lossy(&answer);
        // The request is not whole, whoever is to blame.
        assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
        assert!(world.held_bytes() < MOST_HELD, "{}", world.held_bytes());
        world.stays_good().await;
    });
}

#[test]
fn a_large_head_of_http2_breaks_one_request() {
    run(&[], async |world| {
        world.serve(HTTP2, |stream| async move {
            let mut connection = h2::server::handshake(stream).await.unwrap();
            while let Some(Ok((request, mut respond))) = connection.accept().await {
                let mut head = http::Response::new(());
                if request.uri().path() == "/large" {
                    for number in 0..90 {
                        let name = http::HeaderName::try_from(format!("x-{number}")).unwrap();
                        head.headers_mut().insert(name, "v".repeat(2_000).parse().unwrap());
                    }
                }
                let _gone = respond.send_response(head, true);
            }
        });
        let ask = |path| format!("GET {path} HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n");
        let answer = world.ask(HTTP2, ask("/large").as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 50"), "{answer}");
        let answer = world.ask(HTTP2, ask("/small").as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        let mut client = world.connect(HTTP2).await;
        client.write_all(ask("/small").as_bytes()).await.unwrap();
        assert!(text(&mut client).await.starts_with("HTTP/1.1 200 "));
    });
}
