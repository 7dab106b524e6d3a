//! A collector in memory.

use std::cell::RefCell;
use std::rc::Rc;

use ambit_wire::proto::opentelemetry::{ExportTraceRequest, PartialSuccess, ResourceSpans};
use http::HeaderName;
use hyper::server::conn::{http1 as server1, http2 as server2};
use hyper::service::service_fn;
use tokio::io::duplex;
use tokio::task::{LocalSet, spawn_local};

use super::*;

/// What a collector was sent: path, fields, body.
type Heard = Rc<RefCell<Vec<(String, HeaderMap, Bytes)>>>;

/// What a collector answers: a status of HTTP, one of gRPC, records that are rejected.
#[derive(Clone, Copy)]
struct Answers(u16, u32, i64);

fn collector(way: Way) -> Collector {
    let place = Place::Host("collector".into(), 4317);
    Collector { place, way, timeout: Duration::from_secs(1) }
}

fn grpc() -> Way {
    Way::Grpc(vec![("x-key".into(), "secret".into())])
}

fn over_http() -> Way {
    Way::Http { path: Way::TRACES.into(), headers: Vec::new() }
}

/// One export to a collector that answers so.
fn exported(way: Way, signal: Signal, answers: Answers) -> (Result<u64, CallError>, Heard) {
    let heard = Heard::default();
    let keeps = heard.clone();
    let is_grpc = matches!(way, Way::Grpc(_));
    let service = service_fn(move |request: Request<Incoming>| {
        let heard = keeps.clone();
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await?.to_bytes();
            heard.borrow_mut().push((head.uri.path().to_owned(), head.headers, body));
            Ok::<_, hyper::Error>(response(is_grpc, answers))
        }
    });
    let to = collector(way);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let outcome = LocalSet::new().block_on(&runtime, async move {
        let (near, far) = duplex(64 << 10);
        let far = TokioIo::new(far);
        spawn_local(async move {
            let served = match is_grpc {
                true => server2::Builder::new(Local).serve_connection(far, service).await,
                false => server1::Builder::new().serve_connection(far, service).await,
            };
            drop(served);
        });
        let mut line = Line::open(Box::new(near), &to).await?;
        assert!(line.is_open());
        let resource_spans = vec![ResourceSpans::default()];
        let message = ExportTraceRequest { resource_spans }.encode_to_vec();
        line.export(&to, signal, message.into()).await
    });
    (outcome, heard)
}

type Body = http_body_util::combinators::UnsyncBoxBody<Bytes, std::convert::Infallible>;

fn response(is_grpc: bool, Answers(status, grpc, rejected): Answers) -> Response<Body> {
    let partial = PartialSuccess { rejected, error_message: String::new() };
    let message = ExportResponse { partial_success: Some(partial) }.encode_to_vec();
    let body = if is_grpc {
        let length = u32::try_from(message.len()).expect("a small message");
        let framed = [&[0], &length.to_be_bytes()[..], &message].concat();
        let mut trailers = HeaderMap::new();
        trailers.insert(HeaderName::from_static("grpc-status"), grpc.into());
        let trailers = std::future::ready(Some(Ok(trailers)));
        Full::new(Bytes::from(framed)).with_trailers(trailers).boxed_unsync()
    } else {
        Full::new(Bytes::from(message)).boxed_unsync()
    };
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(status).expect("a status");
    response
}

#[test]
fn spans_and_logs_go_to_the_methods_of_grpc() {
    let (outcome, heard) = exported(grpc(), Signal::Spans, Answers(200, 0, 2));
    assert_eq!(outcome.expect("taken"), 2);
    let heard = heard.borrow();
    let (path, fields, body) = &heard[0];
    assert_eq!(path, "/opentelemetry.proto.collector.trace.v1.TraceService/Export");
    assert_eq!(fields[CONTENT_TYPE], "application/grpc");
    assert_eq!(fields["x-key"], "secret");
    let message = ExportTraceRequest::decode(&body[GRPC_PREFIX_BYTES..]).expect("a message");
    assert_eq!(message.resource_spans.len(), 1);
    let (outcome, heard) = exported(grpc(), Signal::Logs, Answers(200, 0, 0));
    assert_eq!(outcome.expect("taken"), 0);
    let path = heard.borrow()[0].0.clone();
    assert_eq!(path, "/opentelemetry.proto.collector.logs.v1.LogsService/Export");
}

#[test]
fn spans_and_logs_go_to_the_paths_of_http() {
    for (signal, path) in [(Signal::Spans, "/v1/traces"), (Signal::Logs, "/v1/logs")] {
        let (outcome, heard) = exported(over_http(), signal, Answers(200, 0, 1));
        assert_eq!(outcome.expect("taken"), 1);
        let heard = heard.borrow();
        assert_eq!(heard[0].0, path);
        assert_eq!(heard[0].1[HOST], "collector:4317");
        assert_eq!(heard[0].1[CONTENT_TYPE], "application/x-protobuf");
        ExportTraceRequest::decode(&*heard[0].2).expect("a message");
    }
}

#[test]
fn only_what_may_be_taken_later_is_sent_again() {
    let check = |way: Way, answers, expected: (bool, &str)| {
        let (outcome, _) = exported(way, Signal::Spans, answers);
        let error = outcome.expect_err("it is not taken");
        assert_eq!((error.is_temporary(), &*error.to_string()), expected);
    };
    check(grpc(), Answers(200, 14, 0), (true, "it answers gRPC 14: "));
    check(grpc(), Answers(200, 3, 0), (false, "it answers gRPC 3: "));
    check(over_http(), Answers(429, 0, 0), (true, "it answers HTTP 429 Too Many Requests"));
    check(over_http(), Answers(400, 0, 0), (false, "it answers HTTP 400 Bad Request"));
}

#[test]
fn a_header_that_is_none_is_an_error_without_its_value() {
    let way = Way::Grpc(vec![("x-key".into(), "sec\nret".into())]);
    let (outcome, heard) = exported(way, Signal::Spans, Answers(200, 0, 0));
    let error = outcome.expect_err("it makes no request");
    assert_eq!(error.to_string(), "a header or its value makes no request of HTTP");
    assert!(!error.is_temporary() && heard.borrow().is_empty());
}
