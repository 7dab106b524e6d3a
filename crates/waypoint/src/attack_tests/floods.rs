//! Floods of HTTP/2: what costs its sender nothing ends the connection, and only that.

use std::time::Duration;

use ambit_net::hbone::Tunnel;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, split};
use tokio::time::{Instant, timeout};

use super::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, GOAWAY, HEADERS, PING,
    PRIORITY, PROTOCOL_ERROR, REFUSED_STREAM, RST_STREAM, SETTINGS, WINDOW_UPDATE, fields, frame,
    get, next, preface, request, stream,
};
use super::world::{Count, HTTP, World, answer, run};

/// More than any allowance.
const MANY: u32 = 20_000;
/// What one client may make the engine hold.
const MOST_HELD: usize = 1 << 20;
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// Writes until the connection ends; answers how it ended: the code of GOAWAY.
async fn flood(client: Tunnel, first: Vec<u8>, unit: impl Fn(u32) -> Vec<u8>) -> Option<u32> {
    let (mut read, mut write) = split(client);
    let writing = async {
        let mut wrote = write.write_all(&first).await;
        for number in 0..MANY {
            if wrote.is_ok() {
                wrote = write.write_all(&unit(number)).await;
            }
        }
        // What it was told is still to be read.
        std::future::pending().await
    };
    let reading = async {
        while let Some(came) = next(&mut read).await {
            if came.kind == GOAWAY {
                return Some(came.code());
            }
        }
        None
    };
    tokio::select! {
        code = reading => code,
        code = writing => code,
    }
}

/// A flood gets this code, while a good client is answered.
async fn check(world: &World, name: &str, unit: impl Fn(u32) -> Vec<u8>, expected: u32) {
    let started = Instant::now();
    let client = world.connect(HTTP).await;
    let flooding = flood(client, preface(&[]), unit);
    let (code, ()) = tokio::join!(flooding, world.stays_good());
    assert_eq!(code, Some(expected), "{name}");
    let held = world.held_bytes();
    assert!(held < MOST_HELD, "{name}: {held} held");
    println!("{name}: GOAWAY {expected} after {:?}, {held} bytes held", started.elapsed());
    world.stays_good().await;
}

#[test]
fn frames_that_carry_nothing_end_the_connection_that_sends_many() {
    run(&[], async |world| {
        world.serve(HTTP, |stream| answer(stream, OK));
        let calm = ENHANCE_YOUR_CALM;
        check(world, "PING", |_| frame(PING, 0, 0, &[0; 8]), calm).await;
        check(world, "SETTINGS", |_| frame(SETTINGS, 0, 0, &[0, 4, 0, 1, 0, 0]), calm).await;
        let priority = |number| frame(PRIORITY, 0, stream(number), &[0, 0, 0, 0, 16]);
        check(world, "PRIORITY", priority, calm).await;
        check(world, "WINDOW_UPDATE", |_| frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]), calm).await;
        check(world, "unknown frames", |_| frame(0xfa, 0, 0, &[]), calm).await;
        let empty = |number| match number {
            0 => frame(HEADERS, END_HEADERS, 1, &request("POST", "/")),
            _ => frame(DATA, 0, 1, &[]),
        };
        check(world, "empty DATA", empty, calm).await;
        let cuts = world.metric(r#"ambit_http_cuts_total{reason="control_flood"}"#);
        assert!(cuts >= 5.0, "{cuts}");
    });
}

#[test]
fn a_rapid_reset_ends_the_connection() {
    run(&[], async |world| {
        world.serve(HTTP, |stream| answer(stream, OK));
        let cancel = |number| {
            let number = stream(number);
            [get(number), frame(RST_STREAM, 0, number, &[0, 0, 0, 8])].concat()
        };
        check(world, "rapid reset", cancel, ENHANCE_YOUR_CALM).await;
        // Slowly enough for each to be taken, so that only their number tells.
        let mut client = world.connect(HTTP).await;
        client.write_all(&preface(&[])).await.unwrap();
        let (mut read, mut write) = split(client);
        let resetting = async {
            for number in 0..MANY {
                if write.write_all(&cancel(number)).await.is_err() {
                    return;
                }
                tokio::time::sleep(Duration::from_micros(100)).await;
            }
        };
        let reading = async {
            loop {
                let came = next(&mut read).await.expect("GOAWAY");
                if came.kind == GOAWAY {
                    return came.code();
                }
            }
        };
        tokio::select! {
            code = reading => assert_eq!(code, ENHANCE_YOUR_CALM),
            () = resetting => panic!("all of them were taken"),
        }
        assert!(world.held_bytes() < MOST_HELD);
        world.stays_good().await;
    });
}

/// MadeYouReset (CVE-2025-8671): the client breaks a rule for each stream, so that the waypoint
/// resets it, and the server goes on with its request.
#[test]
fn streams_that_the_waypoint_is_made_to_reset_end_the_connection() {
    run(&[], async |world| {
        let (open, most) = (Count::default(), Count::default());
        let (counts, peak) = (open.clone(), most.clone());
        world.serve(HTTP, move |mut stream| {
            let (open, most) = (counts.clone(), peak.clone());
            async move {
                open.add(1);
                most.at_least(open.get());
                while let Ok(1..) = stream.read(&mut [0; 4096]).await {}
                open.remove(1);
            }
        });
        let post = |number| frame(HEADERS, END_HEADERS, number, &request("POST", "/"));
        let overflow = |number| {
            let number = stream(number);
            let grow = frame(WINDOW_UPDATE, 0, number, &0x7fff_ffff_u32.to_be_bytes());
            [post(number), grow].concat()
        };
        check(world, "a window that overflows", overflow, ENHANCE_YOUR_CALM).await;
        let longer = |number| {
            let number = stream(number);
            let head = [request("POST", "/"), fields(&[("content-length", "1")])].concat();
            let head = frame(HEADERS, END_HEADERS, number, &head);
            [head, frame(DATA, 0, number, b"more")].concat()
        };
        check(world, "more than Content-Length", longer, ENHANCE_YOUR_CALM).await;
        println!("the server had {} connections at once", most.get());
        assert!(most.get() <= 2 * 256, "{}", most.get());
        super::world::until("the server is left alone", || open.get() == 0).await;
    });
}

#[test]
fn field_sections_without_an_end_and_bombs_of_hpack_end_the_connection() {
    run(&[], async |world| {
        world.serve(HTTP, |stream| answer(stream, OK));
        let endless = |number| match number {
            0 => frame(HEADERS, 0, 1, &request("GET", "/")),
            _ => frame(CONTINUATION, 0, 1, &fields(&[("x-more", "and more")])),
        };
        check(world, "CONTINUATION", endless, ENHANCE_YOUR_CALM).await;
        // An entry of 4,000 bytes, and one byte for each time that it is meant.
        let entry = [&[0x40, 1, b'a'][..], &super::frames::string(&[b'a'; 4_000])].concat();
        let head = [request("GET", "/"), entry, vec![0xbe; 16_000]].concat();
        let bomb =
            |number| frame(HEADERS, END_STREAM | END_HEADERS, stream(number), &head[..16_384]);
        check(world, "HPACK bomb", bomb, ENHANCE_YOUR_CALM).await;
        // A table larger than what was agreed upon (RFC 7541, 6.3): 1 MiB.
        let grow = [&[0x3f, 0xe1, 0xff, 0x3f][..], &request("GET", "/")].concat();
        let grows = |number| frame(HEADERS, END_STREAM | END_HEADERS, stream(number), &grow);
        check(world, "table size", grows, PROTOCOL_ERROR).await;
    });
}

#[test]
fn a_head_that_does_not_end_in_time_ends_the_connection() {
    run(&["--head-timeout=200ms"], async |world| {
        for (name, half) in [
            ("a section", frame(HEADERS, 0, 1, &request("GET", "/"))),
            ("a frame", get(1)[..15].to_vec()),
            ("a frame's header", get(1)[..5].to_vec()),
        ] {
            let mut client = world.connect(HTTP).await;
            client.write_all(&[preface(&[]), half].concat()).await.unwrap();
            let code = loop {
                let came = next(&mut client).await.expect("GOAWAY");
                if came.kind == GOAWAY {
                    break came.code();
                }
            };
            assert_eq!(code, ENHANCE_YOUR_CALM, "{name}");
        }
        assert_eq!(world.metric(r#"ambit_http_cuts_total{reason="slow_head"}"#), 3.0);
        world.stays_good().await;
    });
}

#[test]
fn streams_beyond_the_limit_are_refused_and_the_others_answered() {
    run(&[], async |world| {
        // Answers only those whose body has come.
        world.serve(HTTP, |mut stream| async move {
            let mut heard = Vec::new();
            while let Ok(1..) = stream.read_buf(&mut heard).await {
                if heard.ends_with(b"0\r\n\r\n") {
                    heard.clear();
                    stream.write_all(OK.as_bytes()).await.unwrap();
                }
            }
        });
        let mut client = world.connect(HTTP).await;
        let post = |number| frame(HEADERS, END_HEADERS, stream(number), &request("POST", "/"));
        let all: Vec<u8> = (0..300).flat_map(post).collect();
        client.write_all(&[preface(&[]), all].concat()).await.unwrap();
        let mut refused = 0;
        while refused < 300 - 256 {
            let came = next(&mut client).await.expect("a refusal");
            if came.kind == RST_STREAM {
                assert_eq!(came.code(), REFUSED_STREAM);
                refused += 1;
            }
        }
        client.write_all(&frame(DATA, END_STREAM, 1, b"body")).await.unwrap();
        let answered = loop {
            let came = next(&mut client).await.expect("an answer");
            if came.kind == HEADERS {
                break came.stream;
            }
        };
        assert_eq!(answered, 1);
        world.stays_good().await;
    });
}

#[test]
fn windows_that_do_not_open_hold_little_and_end_by_the_clock() {
    run(&["--stream-idle-timeout=1s"], async |world| {
        world.serve(HTTP, |mut stream| async move {
            let _read = stream.read(&mut [0; 4096]).await;
            let head = "HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n";
            let mut gushing = stream.write_all(head.as_bytes()).await;
            while gushing.is_ok() {
                gushing = stream.write_all(&[b'x'; 16 * 1024]).await;
            }
        });
        let mut client = world.connect(HTTP).await;
        // No stream may send anything.
        let gets: Vec<u8> = (0..100).flat_map(|number| get(stream(number))).collect();
        client.write_all(&[preface(&[(4, 0)]), gets].concat()).await.unwrap();
        let mut resets = 0;
        let mut most = 0;
        while resets < 100 {
            let came = next(&mut client).await.expect("a reset");
            resets += usize::from(came.kind == RST_STREAM);
            most = most.max(world.held_bytes());
        }
        println!("100 closed windows: {most} bytes held");
        assert!(most < 100 * 200 * 1024, "{most}");
        world.stays_good().await;
        // A window that opens byte by byte: each is sent, and nothing gathers.
        let mut client = world.connect(HTTP).await;
        client.write_all(&[preface(&[(4, 0)]), get(1)].concat()).await.unwrap();
        let mut sent = 0;
        for _ in 0..200 {
            client.write_all(&frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1])).await.unwrap();
            let data = async {
                loop {
                    let came = next(&mut client).await.expect("a byte");
                    if came.kind == DATA {
                        return came.payload.len();
                    }
                }
            };
            sent += timeout(Duration::from_secs(5), data).await.expect("a byte in time");
        }
        assert_eq!(sent, 200);
        world.stays_good().await;
    });
}
