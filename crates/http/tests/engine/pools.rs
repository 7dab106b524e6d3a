//! Limits of connections to a service: circuit breakers, and how long a connection is kept.

use std::time::Duration;

use ambit_http::engine::Speaks;
use ambit_http::engine::position::Version;
use ambit_http::engine::record::Flags;
use ambit_model::http::rule::{Action, Destination, Rewrite};
use ambit_model::http::traffic::Limits;
use ambit_model::names::ServiceName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::spawn_local;
use tokio::time::sleep;

use crate::world::{Bed, backend, run};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const GET: &str = "GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n";
const PAUSE: Duration = Duration::from_millis(30);

fn limit(bed: &Bed, limits: Limits) {
    bed.world.traffic.borrow_mut().limits = limits;
}

/// An endpoint that takes a while for each answer.
fn slow(bed: &Bed) {
    bed.serve("web-1", |mut stream, _| {
        spawn_local(async move {
            let mut bytes = [0; 4096];
            while !matches!(stream.read(&mut bytes).await, Ok(0) | Err(_)) {
                sleep(PAUSE).await;
                stream.write_all(OK.as_bytes()).await.unwrap();
            }
        });
    });
}

fn opened(bed: &Bed) -> usize {
    bed.world.servers.borrow()["web-1"].1
}

#[test]
fn requests_wait_for_the_connections_that_there_may_be() {
    run(async |bed| {
        slow(bed);
        limit(bed, Limits { connections: Some(2), ..Limits::default() });
        let all = futures::future::join_all((0..8).map(|_| bed.ask(GET))).await;
        assert!(all.iter().all(|answer| answer.starts_with("HTTP/1.1 200 ")), "{all:?}");
        assert_eq!(opened(bed), 2);
    });
}

#[test]
fn each_port_and_each_subset_of_a_service_has_limits_of_its_own() {
    run(async |bed| {
        // Its first connection never answers.
        bed.serve("web-1", |mut stream, number| {
            spawn_local(async move {
                let mut bytes = [0; 4096];
                while !matches!(stream.read(&mut bytes).await, Ok(0) | Err(_)) {
                    if number > 1 {
                        stream.write_all(OK.as_bytes()).await.unwrap();
                    }
                }
            });
        });
        limit(bed, Limits { requests: Some(1), ..Limits::default() });
        let to = |port, subset: Option<&str>| {
            bed.world.rules.borrow_mut().clear();
            bed.route(|rule| {
                let (name, subset) = (ServiceName::new("app", "web"), subset.map(Into::into));
                let mut backend = backend("web");
                backend.destination = Destination::Service { name, port, subset };
                let rewrite = Rewrite::default();
                rule.action = Action::Forward { backends: vec![backend], rewrite };
            });
        };
        to(80, None);
        let mut first = bed.connect(Speaks::Http);
        first.write_all(GET.as_bytes()).await.unwrap();
        sleep(PAUSE).await;
        assert!(bed.ask(GET).await.starts_with("HTTP/1.1 503 "));
        to(81, None);
        assert!(bed.ask(GET).await.starts_with("HTTP/1.1 200 "));
        to(80, Some("v1"));
        assert!(bed.ask(GET).await.starts_with("HTTP/1.1 200 "));
    });
}

#[test]
fn no_more_requests_wait_than_may() {
    run(async |bed| {
        slow(bed);
        let (connections, pending_requests) = (Some(1), Some(2));
        limit(bed, Limits { connections, pending_requests, ..Limits::default() });
        let all = futures::future::join_all((0..8).map(|_| bed.ask(GET))).await;
        let refused = all.iter().filter(|it| it.contains("x-ambit-reason: overflow\r\n")).count();
        let answered = all.iter().filter(|it| it.starts_with("HTTP/1.1 200 ")).count();
        assert_eq!(answered + refused, 8, "{all:?}");
        assert!((2..=3).contains(&answered), "{answered}");
        assert!(bed.world.records.borrow().iter().any(|it| it.flags == Flags::Overflow));
        assert_eq!(opened(bed), 1);
        // What was refused has left nothing behind.
        assert!(bed.ask(GET).await.starts_with("HTTP/1.1 200 "));
    });
}

#[test]
fn a_request_that_waits_in_vain_is_refused_in_time() {
    run(async |bed| {
        bed.serve("web-1", |stream, _| std::mem::forget(stream));
        let (connections, connect_timeout) = (Some(1), Some(PAUSE));
        limit(bed, Limits { connections, connect_timeout, ..Limits::default() });
        let mut first = bed.connect(Speaks::Http);
        first.write_all(GET.as_bytes()).await.unwrap();
        sleep(PAUSE).await;
        let answer = bed.ask(GET).await;
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
        assert_eq!((bed.last().flags, bed.last().attempts), (Flags::Overflow, 1));
    });
}

#[test]
fn an_idle_connection_to_another_endpoint_makes_room() {
    for version in [Version::Http1, Version::Http2] {
        run(async |bed| {
            *bed.world.version.borrow_mut() = Some(version);
            let serve = |name| match version {
                Version::Http1 => bed.answers(name, OK),
                Version::Http2 => bed.serve(name, |stream, _| {
                    spawn_local(async move {
                        let Ok(mut connection) = h2::server::handshake(stream).await else {
                            return;
                        };
                        while let Some(Ok((_, mut respond))) = connection.accept().await {
                            let _sent = respond.send_response(http::Response::new(()), true);
                        }
                    });
                }),
            };
            serve("web-2");
            limit(bed, Limits { connections: Some(1), ..Limits::default() });
            assert!(bed.ask(GET).await.starts_with("HTTP/1.1 200 "));
            // It is chosen first.
            serve("web-1");
            assert!(bed.ask(GET).await.starts_with("HTTP/1.1 200 "));
            assert_eq!(opened(bed), 1);
            assert!(bed.open().await.is_ok(), "for what is no HTTP too: {version:?}");
        });
    }
}

#[test]
fn where_it_is_over_no_connection_outlasts_its_requests() {
    for version in [Version::Http1, Version::Http2] {
        run(async |bed| {
            *bed.world.version.borrow_mut() = Some(version);
            let (gone, goes) = tokio::sync::mpsc::unbounded_channel();
            let mut goes = goes;
            bed.serve("web-1", move |mut stream, _| {
                let gone = gone.clone();
                spawn_local(async move {
                    if version == Version::Http2 {
                        let mut connection = h2::server::handshake(stream).await.unwrap();
                        while let Some(Ok((_, mut respond))) = connection.accept().await {
                            let _sent = respond.send_response(http::Response::new(()), true);
                        }
                    } else {
                        let mut bytes = [0; 4096];
                        while !matches!(stream.read(&mut bytes).await, Ok(0) | Err(_)) {
                            stream.write_all(OK.as_bytes()).await.unwrap();
                        }
                    }
                    gone.send(()).unwrap();
                });
            });
            assert!(bed.ask(GET).await.starts_with("HTTP/1.1 200 "));
            bed.close_pool();
            goes.recv().await.unwrap();
            assert!(bed.ask(GET).await.starts_with("HTTP/1.1 200 "));
            goes.recv().await.unwrap();
            assert_eq!(opened(bed), 2);
        });
    }
}

#[test]
fn a_connection_carries_no_more_requests_than_it_may() {
    run(async |bed| {
        bed.answers("web-1", OK);
        limit(bed, Limits { requests_per_connection: Some(2), ..Limits::default() });
        for _ in 0..5 {
            assert!(bed.ask(GET).await.starts_with("HTTP/1.1 200 "));
        }
        assert_eq!(opened(bed), 3);
    });
}

#[test]
fn a_connection_is_kept_as_long_as_the_service_says() {
    run(async |bed| {
        bed.answers("web-1", OK);
        limit(bed, Limits { idle_timeout: Some(PAUSE), ..Limits::default() });
        for pause in [Duration::ZERO, PAUSE * 2] {
            assert!(bed.ask(GET).await.starts_with("HTTP/1.1 200 "));
            sleep(pause).await;
        }
        assert_eq!(opened(bed), 1);
        assert!(bed.ask(GET).await.starts_with("HTTP/1.1 200 "));
        assert_eq!(opened(bed), 2);
    });
}
