//! Waits that end: clients that are gone, endpoints that hang, policies that change meanwhile.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use ambit_http::engine::record::Flags;
use ambit_http::engine::{Settings, Speaks};
use ambit_model::http::rule::{Abort, Action, Destination, Fraction, PathChange, Rewrite};
use ambit_model::names::ServiceName;
use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::task::spawn_local;
use tokio::time::{sleep, timeout};

use crate::world::{Bed, backend, run, run_with};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: web\r\n\r\n";
const SWITCH: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\n\
                        Upgrade: websocket\r\n\r\n";
/// Whatever has not happened by then does not happen.
const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(40);

fn settings() -> Settings {
    Settings { half_close_timeout: SHORT, ..Settings::default() }
}

fn impatient() -> Settings {
    Settings { stream_idle_timeout: SHORT, ..Settings::default() }
}

/// An endpoint that sends these bytes and then waits; says whether its connection has ended.
fn hangs(bed: &Bed, first: &'static [u8]) -> Rc<Cell<bool>> {
    let ended = Rc::new(Cell::new(false));
    let says = ended.clone();
    bed.serve("web-1", move |mut stream, _| {
        let says = says.clone();
        spawn_local(async move {
            let mut bytes = vec![0; 4096];
            let _read = stream.read(&mut bytes).await;
            stream.write_all(first).await.unwrap();
            while !matches!(stream.read(&mut bytes).await, Ok(0) | Err(_)) {}
            says.set(true);
        });
    });
    ended
}

async fn until(what: impl Fn() -> bool) {
    let waiting = async {
        while !what() {
            sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(LONG, waiting).await.expect("it happens");
}

async fn recorded(bed: &Bed) {
    until(|| !bed.world.records.borrow().is_empty()).await;
}

async fn h2_client(bed: &Bed) -> h2::client::SendRequest<Bytes> {
    let stream = bed.connect(Speaks::Unknown);
    let (sender, connection) = h2::client::handshake(stream).await.unwrap();
    spawn_local(async move {
        let _ended = connection.await;
    });
    sender.ready().await.unwrap()
}

async fn upgraded(bed: &Bed) -> DuplexStream {
    let mut client = bed.connect(Speaks::Http);
    let head = "GET /ws HTTP/1.1\r\nHost: web\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    client.write_all(head.as_bytes()).await.unwrap();
    let mut heard = Vec::new();
    while !heard.ends_with(b"\r\n\r\n") {
        client.read_buf(&mut heard).await.unwrap();
    }
    client
}

#[test]
fn a_client_of_http1_that_leaves_ends_its_request() {
    run_with(settings(), async |bed| {
        let ended = hangs(bed, b"");
        let mut client = bed.connect(Speaks::Http);
        client.write_all(GET).await.unwrap();
        until(|| bed.world.servers.borrow()["web-1"].1 == 1).await;
        drop(client);
        recorded(bed).await;
        assert_eq!((bed.last().flags, bed.last().reason), (Flags::DownstreamClosed, "client_gone"));
        until(|| ended.get()).await;
    });
}

#[test]
fn a_request_that_is_sent_ahead_is_answered_in_turn() {
    run_with(settings(), async |bed| {
        bed.answers("web-1", OK);
        let mut client = bed.connect(Speaks::Http);
        client.write_all(&GET.repeat(3)).await.unwrap();
        client.shutdown().await.unwrap();
        let mut answers = String::new();
        client.read_to_string(&mut answers).await.unwrap();
        assert_eq!(answers, OK.repeat(3));
    });
}

#[test]
fn a_client_that_has_closed_its_direction_reads_a_slow_response_to_its_end() {
    run_with(settings(), async |bed| {
        bed.serve("web-1", |mut stream, _| {
            spawn_local(async move {
                let mut bytes = vec![0; 4096];
                let _read = stream.read(&mut bytes).await;
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n").await.unwrap();
                sleep(SHORT * 3).await;
                stream.write_all(b"ok").await.unwrap();
            });
        });
        let answer = bed.ask("GET / HTTP/1.1\r\nHost: web\r\n\r\n").await;
        assert!(answer.ends_with("\r\n\r\nok"), "{answer}");
    });
}

#[test]
fn a_client_that_leaves_waits_for_no_fault() {
    run_with(settings(), async |bed| {
        bed.answers("web-1", OK);
        bed.route(|rule| {
            let always = Fraction { numerator: 1, denominator: 1 };
            rule.faults.delay = Some((always, LONG * 10));
            rule.faults.abort = Some((always, Abort::Http(500)));
        });
        let mut client = bed.connect(Speaks::Http);
        client.write_all(GET).await.unwrap();
        drop(client);
        let mut sender = h2_client(bed).await;
        let request = Request::get("http://web/").body(()).unwrap();
        let (response, mut send) = sender.send_request(request, false).unwrap();
        sleep(SHORT).await;
        send.send_reset(h2::Reason::CANCEL);
        drop(response);
        until(|| bed.world.records.borrow().len() == 2).await;
        let all = bed.world.records.borrow();
        assert!(all.iter().all(|it| it.flags == Flags::DownstreamClosed));
        assert_eq!(bed.world.servers.borrow()["web-1"].1, 0);
    });
}

#[test]
fn a_cancellation_of_http2_behind_the_responses_head_reaches_the_endpoint() {
    run(async |bed| {
        let ended = hangs(bed, b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n");
        *bed.world.version.borrow_mut() = Some(ambit_http::engine::position::Version::Http1);
        let mut sender = h2_client(bed).await;
        let request = Request::get("http://web/").body(()).unwrap();
        let (response, mut send) = sender.send_request(request, false).unwrap();
        let response = response.await.unwrap();
        send.send_reset(h2::Reason::CANCEL);
        drop(response);
        until(|| ended.get()).await;
        assert_eq!(bed.last().flags, Flags::DownstreamClosed);
    });
}

#[test]
fn an_endpoint_that_hangs_is_given_up() {
    for (first, begins) in [
        (&b""[..], "HTTP/1.1 504 "),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", "HTTP/1.1 200 "),
    ] {
        run_with(impatient(), async |bed| {
            let ended = hangs(bed, first);
            let mut client = bed.connect(Speaks::Http);
            client.write_all(GET).await.unwrap();
            recorded(bed).await;
            let mut heard = vec![0; begins.len()];
            client.read_exact(&mut heard).await.unwrap();
            assert_eq!(String::from_utf8_lossy(&heard), begins);
            let last = bed.last();
            assert_eq!((last.flags, last.reason), (Flags::StreamIdle, "stream_idle"));
            until(|| ended.get()).await;
        });
    }
}

#[test]
fn a_client_that_stops_within_its_first_line_is_let_go() {
    let settings = Settings { head_timeout: SHORT, ..Settings::default() };
    run_with(settings, async |bed| {
        for first in [&b"GE"[..], b"PRI * HTTP/2.0\r\n\r\nSM"] {
            let mut client = bed.connect(Speaks::Http);
            client.write_all(first).await.unwrap();
            let ended = timeout(LONG, client.read_to_end(&mut Vec::new())).await;
            assert!(matches!(ended, Ok(Ok(_))), "{ended:?}");
        }
    });
}

#[test]
fn a_client_that_stops_sending_is_told() {
    run_with(impatient(), async |bed| {
        hangs(bed, b"");
        let mut client = bed.connect(Speaks::Http);
        let half = b"POST / HTTP/1.1\r\nHost: web\r\nContent-Length: 10\r\n\r\n1";
        client.write_all(half).await.unwrap();
        let mut answer = [0; 12];
        client.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 408");
        assert_eq!(bed.last().flags, Flags::StreamIdle);
    });
}

#[test]
fn an_upgraded_connection_that_is_silent_or_half_closed_ends() {
    for is_half_closed in [false, true] {
        run_with(impatient(), async |bed| {
            bed.serve("web-1", |mut stream, _| {
                spawn_local(async move {
                    let _read = stream.read(&mut [0; 4096]).await;
                    stream.write_all(SWITCH).await.unwrap();
                    // Does not close its direction, whatever its client does.
                    sleep(LONG * 10).await;
                });
            });
            let mut client = upgraded(bed).await;
            if is_half_closed {
                client.shutdown().await.unwrap();
            }
            recorded(bed).await;
            assert_eq!((bed.last().status, bed.last().flags), (101, Flags::StreamIdle));
            assert_eq!(client.read(&mut [0; 8]).await.unwrap(), 0);
        });
    }
}

#[test]
fn a_client_that_does_not_read_the_proxys_own_answer_is_left() {
    run_with(impatient(), async |bed| {
        bed.route(|rule| {
            rule.action = Action::Respond { status: 200, body: "a".repeat(1 << 20).into() };
        });
        let mut client = bed.connect(Speaks::Http);
        client.write_all(GET).await.unwrap();
        recorded(bed).await;
        let mut heard = Vec::new();
        client.read_to_end(&mut heard).await.unwrap();
    });
}

#[test]
fn what_is_behind_an_upgrade_is_judged_again_when_policies_change() {
    run(async |bed| {
        let ended = hangs(bed, SWITCH);
        let mut client = upgraded(bed).await;
        // A change that concerns others.
        bed.world.policies.send_modify(|version| *version += 1);
        sleep(SHORT).await;
        assert!(bed.world.records.borrow().is_empty());
        *bed.world.denies.borrow_mut() = Some(|asked| asked.head.path == "/ws");
        bed.world.policies.send_modify(|version| *version += 1);
        recorded(bed).await;
        let last = bed.last();
        assert_eq!((last.status, last.flags, last.reason), (101, Flags::Denied, "denied"));
        assert!(last.details.contains("no"), "it names the policy: {}", last.details);
        assert_eq!(client.read(&mut [0; 8]).await.unwrap(), 0);
        until(|| ended.get()).await;
    });
}

#[test]
fn what_is_behind_an_upgrade_is_judged_again_by_what_holds_where_it_was_sent_on_to() {
    run(async |bed| {
        let ended = hangs(bed, SWITCH);
        bed.route(|rule| {
            let mut backend = backend("web");
            let name = ServiceName::new("elsewhere", "web");
            backend.destination = Destination::Service { name, port: 80, subset: None };
            let path = Some(PathChange::Full("/there".into()));
            let rewrite = Rewrite { path, ..Rewrite::default() };
            rule.action = Action::Forward { backends: vec![backend], rewrite };
        });
        let mut client = upgraded(bed).await;
        // It asks for this path there alone.
        *bed.world.denies.borrow_mut() = Some(|asked| asked.head.path == "/there");
        bed.world.policies.send_modify(|version| *version += 1);
        recorded(bed).await;
        assert_eq!((bed.last().status, bed.last().flags), (101, Flags::Denied));
        assert_eq!(client.read(&mut [0; 8]).await.unwrap(), 0);
        until(|| ended.get()).await;
    });
}

#[test]
fn what_is_behind_an_upgrade_goes_on_for_a_time_where_the_proxy_was_withdrawn() {
    run(async |bed| {
        let _ended = hangs(bed, SWITCH);
        let _client = upgraded(bed).await;
        bed.world.withdrawn.send_replace(true);
        *bed.world.is_gone.borrow_mut() = true;
        bed.world.policies.send_modify(|version| *version += 1);
        sleep(SHORT).await;
        assert!(bed.world.records.borrow().is_empty());
        bed.world.deserted.send_replace(true);
        recorded(bed).await;
        assert_eq!(bed.last().flags, Flags::Denied);
    });
}

#[test]
fn where_a_withdrawn_proxy_is_told_policies_again_they_count() {
    run(async |bed| {
        let _ended = hangs(bed, SWITCH);
        let _client = upgraded(bed).await;
        bed.world.withdrawn.send_replace(true);
        *bed.world.denies.borrow_mut() = Some(|asked| asked.head.path == "/ws");
        bed.world.policies.send_modify(|version| *version += 1);
        recorded(bed).await;
        assert_eq!(bed.last().flags, Flags::Denied);
    });
}

#[test]
fn what_is_behind_an_upgrade_ends_where_it_is_not_known_any_more_what_holds() {
    run(async |bed| {
        let _ended = hangs(bed, SWITCH);
        let _client = upgraded(bed).await;
        *bed.world.is_gone.borrow_mut() = true;
        bed.world.policies.send_modify(|version| *version += 1);
        recorded(bed).await;
        assert_eq!(bed.last().flags, Flags::Denied);
    });
}

#[test]
fn an_upgraded_connection_that_its_endpoint_breaks_is_not_the_clients_end() {
    run(async |bed| {
        *bed.world.version.borrow_mut() = None;
        bed.serve("web-1", |stream, _| {
            spawn_local(async move {
                let mut stream = stream;
                let mut bytes = vec![0; 4096];
                let _read = stream.read(&mut bytes).await;
                stream.write_all(SWITCH).await.unwrap();
                // Leaves without reading what comes.
            });
        });
        let mut client = upgraded(bed).await;
        while bed.world.records.borrow().is_empty() {
            if client.write_all(b"more").await.is_err() {
                break;
            }
            sleep(Duration::from_millis(2)).await;
        }
        recorded(bed).await;
        assert_ne!(bed.last().flags, Flags::DownstreamClosed);
    });
}

#[test]
fn a_body_that_is_no_http_is_the_clients_fault() {
    run(async |bed| {
        hangs(bed, b"");
        let chunk = "POST / HTTP/1.1\r\nHost: web\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n";
        let answer = bed.ask(chunk).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
        assert_eq!((bed.last().status, bed.last().flags), (400, Flags::Malformed));
    });
}

#[test]
fn the_status_of_grpc_is_read_from_trailers_and_trailers_of_http2_are_filtered() {
    run(async |bed| {
        bed.serve("web-1", |stream, _| {
            spawn_local(async move {
                let mut connection = h2::server::handshake(stream).await.unwrap();
                while let Some(Ok((_, mut respond))) = connection.accept().await {
                    let mut send = respond.send_response(Response::new(()), false).unwrap();
                    send.send_data("data".into(), false).unwrap();
                    let mut trailers = HeaderMap::new();
                    for (name, value) in [("grpc-status", "5"), ("x-forwarded-for", "1.2.3.4")] {
                        trailers.insert(name, value.parse().unwrap());
                    }
                    send.send_trailers(trailers).unwrap();
                }
            });
        });
        let mut sender = h2_client(bed).await;
        let request = Request::post("http://web/pkg.Svc/Method")
            .header("content-type", "application/grpc")
            .body(())
            .unwrap();
        let (response, _) = sender.send_request(request, true).unwrap();
        let mut body = response.await.unwrap().into_body();
        while body.data().await.is_some() {}
        let trailers = body.trailers().await.unwrap().unwrap();
        assert_eq!(trailers["grpc-status"], "5");
        assert!(trailers.get("x-forwarded-for").is_none());
        recorded(bed).await;
        assert_eq!(bed.last().grpc_status, Some(5));
    });
}

#[test]
fn the_service_of_a_routes_backend_is_recorded() {
    run(async |bed| {
        bed.answers("web-1", OK);
        bed.route(|_| {});
        bed.ask("GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n").await;
        let service = bed.last().service.expect("the backend's");
        assert_eq!(&*service.hostname, "web");
    });
}
