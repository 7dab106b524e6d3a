//! Heads and bodies that are too much, and requests sent ahead.
//!
//! There is no bomb of compression: bodies are passed on as they are, and nothing is unpacked.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, split};
use tokio::time::sleep;

use super::world::{Count, HTTP, answer, run, text};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
/// What one connection may make the engine hold.
const MOST_HELD: usize = 512 * 1024;

#[test]
fn heads_that_are_too_much_are_refused() {
    run(&[], async |world| {
        world.serve(HTTP, |stream| answer(stream, OK));
        let head = |fields: &str| format!("GET / HTTP/1.1\r\nHost: web\r\n{fields}\r\n\r\n");
        for (name, request, status) in [
            ("many fields", head("a: b\r\n".repeat(10_000).trim_end()), 431),
            ("101 fields", head("a: b\r\n".repeat(101).trim_end()), 431),
            ("a large field", head(&format!("a: {}", "b".repeat(1 << 20))), 431),
            ("a long name", head(&format!("{}: b", "a".repeat(70_000))), 431),
            ("a long target", format!("GET /{} HTTP/1.1\r\n", "a".repeat(1 << 20)), 414),
            ("a long method", format!("{} / HTTP/1.1\r\n\r\n", "A".repeat(1 << 20)), 414),
        ] {
            let answer = world.ask(HTTP, request.as_bytes()).await;
            let expected = format!("HTTP/1.1 {status} ");
            assert!(answer.starts_with(&expected), "{name}: {answer}");
            assert!(world.held_bytes() < MOST_HELD, "{name}: {}", world.held_bytes());
        }
        world.stays_good().await;
    });
}

#[test]
fn bodies_without_an_end_pass_and_are_not_kept() {
    run(&[], async |world| {
        let came = Count::default();
        let counts = came.clone();
        world.serve(HTTP, move |mut stream| {
            let came = counts.clone();
            async move {
                let mut bytes = vec![0; 64 * 1024];
                while let Ok(read @ 1..) = stream.read(&mut bytes).await {
                    came.add(read);
                }
            }
        });
        for (name, chunk) in [
            ("one byte", "1\r\nx\r\n".to_owned()),
            ("extensions", { format!("1;{}\r\nx\r\n", "e".repeat(8 * 1024)) }),
        ] {
            let client = world.connect(HTTP).await;
            let (mut read, mut write) = split(client);
            let head = "POST / HTTP/1.1\r\nHost: web\r\nTransfer-Encoding: chunked\r\n\r\n";
            write.write_all(head.as_bytes()).await.unwrap();
            let mut most = 0;
            for number in 0..20_000 {
                if write.write_all(chunk.as_bytes()).await.is_err() {
                    break;
                }
                // Each chunk comes by itself now and then, and is kept by itself.
                if number % 50 == 0 {
                    sleep(Duration::from_micros(200)).await;
                    most = most.max(world.held_bytes());
                }
            }
            println!("endless chunks, {name}: {most} bytes held, {} came", came.get());
            assert!(most < MOST_HELD, "{name}: {most}");
            if name == "extensions" {
                let mut answer = Vec::new();
                read.read_to_end(&mut answer).await.unwrap();
                assert!(answer.starts_with(b"HTTP/1.1 400 "), "{name}");
            }
        }
        assert!(came.get() > 100_000, "the chunks of one byte came");
        world.stays_good().await;
    });
}

#[test]
fn requests_sent_ahead_are_answered_in_turn_and_wait_where_they_are() {
    run(&[], async |world| {
        world.serve(HTTP, |stream| answer(stream, OK));
        let client = world.connect(HTTP).await;
        let (mut read, mut write) = split(client);
        let number = 2_000;
        let writing = async {
            for _ in 0..number {
                write.write_all(b"GET / HTTP/1.1\r\nHost: web\r\n\r\n").await.unwrap();
            }
            write.shutdown().await.unwrap();
        };
        let mut most = 0;
        let reading = async {
            let mut all = Vec::new();
            while let Ok(1..) = read.read_buf(&mut all).await {
                most = most.max(world.held_bytes());
            }
            String::from_utf8(all).unwrap()
        };
        let ((), answers) = tokio::join!(writing, reading);
        assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), number);
        println!("{number} requests sent ahead: {most} bytes held");
        assert!(most < MOST_HELD, "{most}");
    });
}

#[test]
fn upgrades_are_connections_like_others() {
    run(&[], async |world| {
        let switch = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\n\
                      Upgrade: websocket\r\n\r\n";
        world.serve(HTTP, move |stream| answer(stream, switch));
        let mut upgraded = Vec::new();
        for _ in 0..500 {
            let mut client = world.connect(HTTP).await;
            let ask = "GET / HTTP/1.1\r\nHost: web\r\nConnection: upgrade\r\n\
                       Upgrade: websocket\r\n\r\n";
            client.write_all(ask.as_bytes()).await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                assert!(client.read_buf(&mut head).await.unwrap() > 0);
            }
            assert!(head.starts_with(b"HTTP/1.1 101 "));
            upgraded.push(client);
        }
        let held = world.held_bytes();
        println!("500 upgraded connections: {held} bytes held");
        assert!(held < 500 * 20 * 1024, "{held}");
        world.stays_good().await;
        let other = "GET / HTTP/1.1\r\nHost: web\r\nConnection: upgrade, close\r\nUpgrade: h2c\r\n\
                     \r\n";
        let mut client = world.connect(HTTP).await;
        client.write_all(other.as_bytes()).await.unwrap();
        let answer = text(&mut client).await;
        assert!(answer.starts_with("HTTP/1.1 502 "), "nobody asked the server for it: {answer}");
    });
}
