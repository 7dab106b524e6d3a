//! Copies of requests: whole or broken off, never short; and nobody waits for them.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ambit_http::engine::overload::{Cut, Pressure};
use ambit_http::engine::{Settings, Speaks};
use ambit_model::http::rule::{Fraction, Mirror};
use ambit_model::http::traffic::Limits;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::task::spawn_local;
use tokio::time::{sleep, timeout};

use crate::world::{Bed, backend, run_with};

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
/// Whatever has not happened by then does not happen.
const LONG: Duration = Duration::from_secs(20);
const MIB: usize = 1 << 20;

/// What an endpoint says of its messages and of the ends of its connections.
type Heard = Rc<RefCell<Vec<String>>>;

/// Reads until this is whole; false if the connection ends before.
async fn read_until(
    stream: &mut DuplexStream,
    bytes: &mut Vec<u8>,
    is_whole: impl Fn(&[u8]) -> bool,
) -> bool {
    while !is_whole(bytes) {
        if !matches!(stream.read_buf(bytes).await, Ok(1..)) {
            return false;
        }
    }
    true
}

fn head_end(bytes: &[u8]) -> Option<usize> {
    bytes.windows(4).position(|it| it == b"\r\n\r\n").map(|at| at + 4)
}

/// Answers whole messages whose bodies are of the letter x.
async fn answers(mut stream: DuplexStream, pause: Duration, heard: Heard) {
    let says = |what: String| heard.borrow_mut().push(what);
    loop {
        let mut bytes = Vec::new();
        if !read_until(&mut stream, &mut bytes, |it| head_end(it).is_some()).await {
            // The other side is there for a while yet, unless it has dropped everything.
            sleep(Duration::from_millis(5)).await;
            let is_there = stream.write_all(b"x").await.is_ok();
            return says(if is_there { "left" } else { "dropped" }.to_owned());
        }
        sleep(pause).await;
        let begin = head_end(&bytes).unwrap();
        let head = String::from_utf8_lossy(&bytes[..begin]).to_lowercase();
        let length = head.split("content-length: ").nth(1).and_then(|it| it.split('\r').next());
        let length: Option<usize> = length.map(|it| it.parse().unwrap());
        let is_whole = |bytes: &[u8]| match length {
            Some(length) => bytes.len() >= begin + length,
            None if head.contains("chunked") => bytes.ends_with(b"0\r\n\r\n"),
            None => true,
        };
        let is_whole = read_until(&mut stream, &mut bytes, is_whole).await;
        let body = bytes[begin..].iter().filter(|it| **it == b'x').count();
        if !is_whole {
            return says(format!("broken {}", body < length.unwrap_or(usize::MAX)));
        }
        says(format!("whole {body}"));
        if stream.write_all(OK).await.is_err() {
            return says("gone".to_owned());
        }
    }
}

fn serves(bed: &Bed, name: &str, pause: Duration) -> Heard {
    let heard = Heard::default();
    let says = heard.clone();
    bed.serve(name, move |stream, _| {
        spawn_local(answers(stream, pause, says.clone()));
    });
    heard
}

/// Runs a test whose requests go to `web`, and copies of them to these.
fn check(mirrors: &[&str], test: impl AsyncFnOnce(&Bed, &Pressure)) {
    let pressure = Arc::new(Pressure::default());
    run_with(Settings { pressure: pressure.clone(), ..Settings::default() }, async |bed| {
        serves(bed, "web-1", Duration::ZERO);
        let mirror =
            |it: &&str| Mirror { destination: backend(it).destination, fraction: Fraction::ALL };
        bed.route(|rule| rule.mirrors = mirrors.iter().map(mirror).collect());
        test(bed, &pressure).await;
    });
}

fn cut(pressure: &Pressure) -> Vec<(Cut, usize)> {
    pressure.copies().cut().filter(|(_, number)| *number > 0).collect()
}

async fn until(what: impl Fn() -> bool) {
    let waiting = async {
        while !what() {
            sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(LONG, waiting).await.expect("it happens");
}

fn sized(bytes: usize) -> String {
    let body = "x".repeat(bytes);
    format!("POST / HTTP/1.1\r\nHost: web\r\nContent-Length: {bytes}\r\n\r\n{body}")
}

async fn is_answered(bed: &Bed, request: &str) {
    let answer = timeout(LONG, bed.ask(request)).await.expect("nobody waits for a mirror");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[test]
fn a_body_of_many_small_chunks_arrives_whole() {
    check(&["shadow"], async |bed, pressure| {
        let heard = serves(bed, "shadow-1", Duration::from_millis(30));
        for (number, chunks) in [15, 16, 17, 4_000].into_iter().enumerate() {
            let body = "5\r\nxxxxx\r\n".repeat(chunks);
            let head = "POST / HTTP/1.1\r\nHost: web\r\nTransfer-Encoding: chunked\r\n\r\n";
            is_answered(bed, &format!("{head}{body}0\r\n\r\n")).await;
            until(|| heard.borrow().len() > number).await;
            assert_eq!(heard.borrow()[number], format!("whole {}", chunks * 5));
        }
        assert_eq!(cut(pressure), []);
    });
}

#[test]
fn large_bodies_arrive_whole_and_their_connection_is_used_again() {
    check(&["shadow"], async |bed, pressure| {
        let heard = serves(bed, "shadow-1", Duration::ZERO);
        for (number, bytes) in [0, 100_000, 400_000, MIB, 4 * MIB].into_iter().enumerate() {
            is_answered(bed, &sized(bytes)).await;
            until(|| heard.borrow().len() > number).await;
            assert_eq!(heard.borrow()[number], format!("whole {bytes}"));
        }
        assert_eq!(bed.world.servers.borrow()["shadow-1"].1, 1);
        bed.close_pool();
        until(|| heard.borrow().len() > 5).await;
        assert_eq!(heard.borrow()[5], "left");
        assert_eq!((cut(pressure), pressure.held_bytes()), (vec![], 0));
    });
}

#[test]
fn a_mirror_may_begin_to_read_late() {
    check(&["shadow"], async |bed, pressure| {
        let heard = serves(bed, "shadow-1", Duration::from_millis(200));
        is_answered(bed, &sized(900_000)).await;
        assert!(heard.borrow().is_empty(), "nobody waits for it");
        until(|| !heard.borrow().is_empty()).await;
        assert_eq!((heard.borrow()[0].as_str(), cut(pressure)), ("whole 900000", vec![]));
    });
}

#[test]
fn a_mirror_that_is_too_slow_gets_a_message_that_breaks_off() {
    check(&["shadow"], async |bed, pressure| {
        let heard = serves(bed, "shadow-1", Duration::from_millis(300));
        is_answered(bed, &sized(4 * MIB)).await;
        until(|| !heard.borrow().is_empty()).await;
        assert_eq!(*heard.borrow(), ["broken true"]);
        assert_eq!((cut(pressure), pressure.held_bytes()), (vec![(Cut::Slow, 1)], 0));
    });
}

#[test]
fn a_mirror_that_cannot_be_reached_costs_nothing_for_long() {
    check(&["lost"], async |bed, pressure| {
        bed.serve("lost-1", |_, _| {});
        is_answered(bed, &sized(4 * MIB)).await;
        until(|| cut(pressure) == [(Cut::Slow, 1)]).await;
        let connect_timeout = Some(Duration::from_millis(50));
        bed.world.traffic.borrow_mut().limits = Limits { connect_timeout, ..Limits::default() };
        is_answered(bed, &sized(100)).await;
        assert_eq!(pressure.held_bytes(), 100, "it waits for the connection");
        until(|| cut(pressure) == [(Cut::Slow, 1), (Cut::Unreachable, 1)]).await;
        assert_eq!(pressure.held_bytes(), 0);
    });
}

#[test]
fn a_request_that_breaks_off_breaks_its_copy_off() {
    check(&["shadow"], async |bed, pressure| {
        let heard = serves(bed, "shadow-1", Duration::ZERO);
        let mut client = bed.connect(Speaks::Http);
        let request = sized(100_000);
        client.write_all(&request.as_bytes()[..50_000]).await.unwrap();
        sleep(Duration::from_millis(20)).await;
        drop(client);
        until(|| !heard.borrow().is_empty()).await;
        assert_eq!(*heard.borrow(), ["broken true"]);
        assert_eq!(cut(pressure), [(Cut::Request, 1)]);
    });
}

#[test]
fn a_request_without_a_body_is_copied_even_if_it_cannot_be_sent() {
    check(&["shadow"], async |bed, pressure| {
        let heard = serves(bed, "shadow-1", Duration::ZERO);
        bed.serve("web-1", |stream, _| drop(stream));
        let answer = bed.ask("GET / HTTP/1.1\r\nHost: web\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
        until(|| !heard.borrow().is_empty()).await;
        assert_eq!((heard.borrow()[0].as_str(), cut(pressure)), ("whole 0", vec![]));
    });
}

#[test]
fn limits_of_a_destination_hold_for_its_copies_apart_from_its_requests() {
    check(&["web"], async |bed, pressure| {
        let heard = serves(bed, "web-1", Duration::from_millis(50));
        let limits = Limits { connections: Some(1), requests: Some(1), ..Limits::default() };
        bed.world.traffic.borrow_mut().limits = limits;
        is_answered(bed, &sized(10)).await;
        until(|| heard.borrow().len() == 2).await;
        assert_eq!(*heard.borrow(), ["whole 10", "whole 10"]);
        assert_eq!(bed.world.servers.borrow()["web-1"].1, 2, "a connection of its own");
        assert_eq!(cut(pressure), []);
    });
}
