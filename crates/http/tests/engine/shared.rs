//! Connections of HTTP/2 to endpoints, which all clients share: none of them can spoil one.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use ambit_http::engine::Speaks;
use ambit_http::engine::position::Version;
use ambit_model::http::rule::{Action, Fraction, HeaderChanges, Mirror, Rewrite};
use ambit_model::http::traffic::Ejection;
use bytes::Bytes;
use http::{Request, Response};
use tokio::io::AsyncWriteExt;
use tokio::sync::Notify;
use tokio::task::spawn_local;
use tokio::time::{sleep, timeout};

use crate::world::{Bed, backend, run};

const GET: &str = "GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n";
/// Whatever has not happened by then does not happen.
const LONG: Duration = Duration::from_secs(20);

/// An endpoint of HTTP/2 that answers all but `/never` at once.
fn serves(bed: &Bed, name: &str, grpc_status: Option<&'static str>) {
    *bed.world.version.borrow_mut() = Some(Version::Http2);
    bed.serve(name, move |stream, _| {
        spawn_local(async move {
            let mut connection = h2::server::handshake(stream).await.unwrap();
            let mut silent = Vec::new();
            while let Some(Ok((request, mut respond))) = connection.accept().await {
                if request.uri().path() == "/never" {
                    silent.push(respond);
                    continue;
                }
                let mut head = Response::builder();
                if let Some(status) = grpc_status {
                    head = head.header("grpc-status", status);
                }
                let _sent = respond.send_response(head.body(()).unwrap(), true);
            }
        });
    });
}

fn opened(bed: &Bed, name: &str) -> usize {
    bed.world.servers.borrow()[name].1
}

#[test]
fn a_client_that_wants_trailers_in_capital_letters_is_understood() {
    run(async |bed| {
        serves(bed, "web-1", None);
        let answer =
            bed.ask("GET / HTTP/1.1\r\nHost: web\r\nTE: Trailers\r\nConnection: TE, close\r\n\r\n");
        let answer = answer.await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    });
}

#[test]
fn a_request_that_cannot_be_sent_is_neither_the_endpoints_fault_nor_the_connections() {
    run(async |bed| {
        serves(bed, "web-1", None);
        serves(bed, "web-2", None);
        bed.world.traffic.borrow_mut().ejection =
            Some(Ejection { consecutive_5xx: 1, max_percent: 50, ..Ejection::default() });
        assert!(bed.ask(GET).await.starts_with("HTTP/1.1 200 "));
        bed.route(|rule| {
            let set = vec![("te".into(), "gzip".into())];
            rule.request_headers = HeaderChanges { set, ..HeaderChanges::default() };
        });
        for _ in 0..3 {
            let answer = bed.ask(GET).await;
            assert!(answer.starts_with("HTTP/1.1 500 "), "{answer}");
            assert_eq!((bed.last().reason, bed.last().attempts), ("route", 1));
        }
        bed.world.rules.borrow_mut().clear();
        assert!(bed.ask(GET).await.starts_with("HTTP/1.1 200 "));
        assert_eq!((opened(bed, "web-1"), opened(bed, "web-2")), (1, 0));
    });
}

#[test]
fn a_request_that_is_late_leaves_a_connection_that_answers_others() {
    run(async |bed| {
        serves(bed, "web-1", None);
        bed.route(|rule| rule.timeouts.request = Some(Duration::from_millis(200)));
        let late = "GET /never HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n";
        let others = async {
            sleep(Duration::from_millis(50)).await;
            bed.ask(GET).await
        };
        let (late, other) = futures::join!(bed.ask(late), others);
        assert!(late.starts_with("HTTP/1.1 504 ") && other.starts_with("HTTP/1.1 200 "));
        assert!(bed.ask(GET).await.starts_with("HTTP/1.1 200 "));
        assert_eq!(opened(bed, "web-1"), 1);
        // One that has answered nobody since may be dead.
        let late = "GET /never HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n";
        assert!(bed.ask(late).await.starts_with("HTTP/1.1 504 "));
        assert!(bed.ask(GET).await.starts_with("HTTP/1.1 200 "));
        assert_eq!(opened(bed, "web-1"), 2);
    });
}

#[test]
fn an_endpoint_that_fails_in_grpc_is_left_out() {
    run(async |bed| {
        serves(bed, "web-1", Some("14"));
        serves(bed, "web-2", Some("0"));
        bed.world.traffic.borrow_mut().ejection = Some(Ejection {
            consecutive_gateway_errors: 2,
            max_percent: 50,
            ..Ejection::default()
        });
        let mut statuses = Vec::new();
        let call = "POST /a.B/C HTTP/1.1\r\nHost: web\r\nContent-Type: application/grpc\r\n\
                    Content-Length: 0\r\nConnection: close\r\n\r\n";
        for _ in 0..4 {
            let answer = bed.ask(call).await;
            let status = answer.split("grpc-status: ").nth(1).and_then(|it| it.split('\r').next());
            statuses.push(status.map(str::to_owned).unwrap());
        }
        assert_eq!(statuses, ["14", "14", "0", "0"]);
    });
}

#[test]
fn a_copy_is_sent_in_the_version_of_its_port_and_without_the_backends_own_changes() {
    run(async |bed| {
        serves(bed, "web-1", None);
        let copied = Rc::<RefCell<Vec<String>>>::default();
        let copies = copied.clone();
        bed.serve("shadow-1", move |stream, _| {
            let copies = copies.clone();
            spawn_local(async move {
                let mut connection = h2::server::handshake(stream).await.unwrap();
                while let Some(Ok((request, mut respond))) = connection.accept().await {
                    let fields = ["x-all", "x-web"].map(|it| request.headers().contains_key(it));
                    let _sent = respond.send_response(Response::new(()), true);
                    let copies = copies.clone();
                    spawn_local(async move {
                        let data = request.into_body().data().await.unwrap().unwrap();
                        let body = String::from_utf8_lossy(&data).into_owned();
                        copies.borrow_mut().push(format!("{body} {fields:?}"));
                    });
                }
            });
        });
        let adds = |name: &str| HeaderChanges {
            set: vec![(name.into(), "1".into())],
            ..HeaderChanges::default()
        };
        bed.route(|rule| {
            rule.request_headers = adds("x-all");
            let mut web = backend("web");
            web.request_headers = adds("x-web");
            let rewrite = Rewrite::default();
            rule.action = Action::Forward { backends: vec![web], rewrite };
            let destination = backend("shadow").destination;
            rule.mirrors = vec![Mirror { destination, fraction: Fraction::ALL }];
        });
        let post =
            "POST / HTTP/1.1\r\nHost: web\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi";
        assert!(bed.ask(post).await.starts_with("HTTP/1.1 200 "));
        let comes = async {
            while copied.borrow().is_empty() {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(LONG, comes).await.unwrap();
        assert_eq!(*copied.borrow(), ["hi [true, false]"]);
    });
}

#[test]
fn a_stream_whose_client_does_not_read_holds_little() {
    run(async |bed| {
        *bed.world.version.borrow_mut() = Some(Version::Http1);
        let (wrote, begin) = (Rc::new(Cell::new(0)), Rc::new(Notify::new()));
        let (counts, begins) = (wrote.clone(), begin.clone());
        bed.serve("web-1", move |mut stream, _| {
            let (counts, begins) = (counts.clone(), begins.clone());
            spawn_local(async move {
                begins.notified().await;
                let head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n";
                stream.write_all(head).await.unwrap();
                while let Ok(bytes) = stream.write(&[0; 4096]).await {
                    counts.set(counts.get() + bytes);
                }
            });
        });
        let stream = bed.connect(Speaks::Http2);
        let (mut sender, mut connection) = h2::client::Builder::new()
            .initial_window_size(8 << 20)
            .initial_connection_window_size(64 << 20)
            .handshake::<_, Bytes>(stream)
            .await
            .unwrap();
        let request = Request::get("http://web/").body(()).unwrap();
        let _response = sender.send_request(request, true).unwrap();
        let asked = timeout(Duration::from_millis(100), &mut connection).await;
        assert!(asked.is_err(), "the request is sent, and waits for its answer");
        // From here on the client reads nothing.
        begin.notify_one();
        let stands_still = async {
            let mut before = usize::MAX;
            while before != wrote.get() {
                before = wrote.get();
                sleep(Duration::from_millis(50)).await;
            }
        };
        timeout(LONG, stands_still).await.unwrap();
        let pipes_of_the_test = 2 * (64 << 10);
        let held = wrote.get().saturating_sub(pipes_of_the_test);
        assert!((1..232 << 10).contains(&held), "{held}");
    });
}
