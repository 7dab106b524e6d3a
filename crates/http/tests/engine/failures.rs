//! Endpoints that fail, and what is tried again.

use std::time::Duration;

use ambit_http::engine::Speaks;
use ambit_http::engine::record::Flags;
use ambit_model::http::rule::{Destination, Fraction, Mirror, Retry, RetryOn};
use ambit_model::http::traffic::{Ejection, RetryBudget, TrafficPolicy};
use ambit_model::names::ServiceName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::spawn_local;

use crate::world::run;

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const BAD: &str = "HTTP/1.1 503 No\r\nContent-Length: 3\r\n\r\nbad";

fn retry(on: &[RetryOn]) -> Option<Retry> {
    Some(Retry {
        attempts: 2,
        on: on.to_vec(),
        backoff: Duration::from_millis(1),
        is_for_all_methods: false,
    })
}

fn request(method: &str) -> String {
    format!(
        "{method} / HTTP/1.1\r\nHost: web\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbody"
    )
}

#[test]
fn another_endpoint_is_tried_with_the_whole_body() {
    run(async |bed| {
        bed.answers("web-1", BAD);
        let heard = bed.hears("web-2", OK);
        bed.route(|rule| rule.retry = retry(&[RetryOn::Status(503)]));
        assert!(bed.ask(&request("PUT")).await.starts_with("HTTP/1.1 200 "));
        assert!(heard.borrow().ends_with("\r\n\r\nbody"), "{}", heard.borrow());
        assert_eq!((bed.last().attempts, bed.last().flags), (2, Flags::None));
    });
}

#[test]
fn what_is_unsafe_is_not_tried_again() {
    run(async |bed| {
        bed.answers("web-1", BAD);
        bed.answers("web-2", OK);
        bed.route(|rule| rule.retry = retry(&[RetryOn::Status(503)]));
        let answer = bed.ask(&request("POST")).await;
        assert!(answer.starts_with("HTTP/1.1 503 ") && answer.ends_with("bad"), "{answer}");
        assert_eq!(bed.last().attempts, 1);
    });
}

#[test]
fn the_last_attempt_is_what_the_client_gets() {
    run(async |bed| {
        bed.answers("web-1", BAD);
        bed.answers("web-2", BAD);
        bed.route(|rule| rule.retry = retry(&[RetryOn::Status(503)]));
        let answer = bed.ask(&request("PUT")).await;
        assert!(answer.ends_with("bad"), "{answer}");
        assert_eq!((bed.last().attempts, bed.last().status), (3, 503));
    });
}

#[test]
fn an_endpoint_that_closes_is_an_answer_of_503() {
    run(async |bed| {
        bed.serve("web-1", |mut stream, _| {
            spawn_local(async move {
                let mut bytes = [0; 4096];
                let _read = stream.read(&mut bytes).await;
            });
        });
        bed.answers("web-2", OK);
        let answer = bed.ask(&request("PUT")).await;
        assert!(answer.starts_with("HTTP/1.1 503 "), "it may have been read: {answer}");
        assert_eq!(bed.last().flags, Flags::UpstreamClosed);
        bed.route(|rule| rule.retry = retry(&[RetryOn::Reset]));
        assert!(bed.ask(&request("PUT")).await.starts_with("HTTP/1.1 200 "));
    });
}

#[test]
fn what_was_sent_on_a_connection_that_was_closed_is_sent_again_if_it_is_safe() {
    run(async |bed| {
        // Each connection answers once. The second request finds it open, and then it is closed.
        bed.serve("web-1", |mut stream, _| {
            spawn_local(async move {
                let mut bytes = [0; 4096];
                let _read = stream.read(&mut bytes).await;
                stream.write_all(OK.as_bytes()).await.unwrap();
                let _read = stream.read(&mut bytes).await;
            });
        });
        let mut client = bed.connect(Speaks::Http);
        for method in ["GET", "GET", "DELETE"] {
            let request = format!("{method} / HTTP/1.1\r\nHost: web\r\n\r\n");
            client.write_all(request.as_bytes()).await.unwrap();
            let mut answer = vec![0; OK.len()];
            client.read_exact(&mut answer).await.unwrap();
            assert_eq!(String::from_utf8_lossy(&answer), OK);
        }
        // That nothing was answered does not say that nothing was done.
        client.write_all(b"POST / HTTP/1.1\r\nHost: web\r\n\r\n").await.unwrap();
        let mut answer = [0; 12];
        client.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 503");
    });
}

#[test]
fn an_answer_that_is_no_http_is_a_bad_gateway() {
    run(async |bed| {
        bed.answers("web-1", "HTTP/1.1 200 OK\nContent-Length: 2\n\nok");
        let answer = bed.ask(&request("GET")).await;
        assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
        assert_eq!(bed.last().flags, Flags::UpstreamMalformed);
    });
}

#[test]
fn a_response_that_breaks_off_is_not_made_whole() {
    run(async |bed| {
        bed.serve("web-1", |mut stream, _| {
            spawn_local(async move {
                let mut bytes = [0; 4096];
                let _read = stream.read(&mut bytes).await;
                let half = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n";
                stream.write_all(half.as_bytes()).await.unwrap();
            });
        });
        let answer = bed.ask("GET / HTTP/1.1\r\nHost: web\r\n\r\n").await;
        assert!(answer.ends_with("3\r\nabc\r\n"), "no last chunk: {answer}");
        assert_eq!(bed.last().flags, Flags::UpstreamClosed);
    });
}

#[test]
fn time_limits_hold() {
    run(async |bed| {
        bed.serve("web-1", |stream, _| std::mem::forget(stream));
        bed.route(|rule| rule.timeouts.request = Some(Duration::from_millis(30)));
        let answer = bed.ask(&request("GET")).await;
        assert!(answer.starts_with("HTTP/1.1 504 "), "{answer}");
        assert_eq!(bed.last().flags, Flags::Timeout);
    });
}

#[test]
fn a_late_endpoint_is_left_for_another() {
    run(async |bed| {
        bed.serve("web-1", |stream, _| std::mem::forget(stream));
        bed.answers("web-2", OK);
        bed.route(|rule| {
            rule.timeouts.backend = Some(Duration::from_millis(30));
            rule.retry = retry(&[RetryOn::Status(504)]);
        });
        assert!(bed.ask(&request("GET")).await.starts_with("HTTP/1.1 200 "));
    });
}

#[test]
fn a_try_has_its_time_until_the_response_begins() {
    run(async |bed| {
        bed.serve("web-1", |mut stream, _| {
            spawn_local(async move {
                let mut bytes = [0; 4096];
                let _read = stream.read(&mut bytes).await;
                let head = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbe";
                stream.write_all(head).await.unwrap();
                tokio::time::sleep(Duration::from_millis(300)).await;
                let _sent = stream.write_all(b"at").await;
            });
        });
        bed.route(|rule| rule.timeouts.response_head = Some(Duration::from_millis(100)));
        let answer = bed.ask(&request("GET")).await;
        assert!(answer.ends_with("\r\n\r\nbeat"), "what has begun is not cut: {answer}");
        bed.serve("web-1", |stream, _| std::mem::forget(stream));
        bed.answers("web-2", OK);
        bed.world.rules.borrow_mut()[0].retry = retry(&[RetryOn::Status(504)]);
        assert!(bed.ask(&request("GET")).await.starts_with("HTTP/1.1 200 "), "the next try");
        assert_eq!(bed.last().attempts, 2);
    });
}

#[test]
fn endpoints_that_fail_are_left_out() {
    run(async |bed| {
        bed.answers("web-1", BAD);
        bed.answers("web-2", OK);
        let ejection =
            Some(Ejection { consecutive_5xx: 2, max_percent: 50, ..Ejection::default() });
        *bed.world.traffic.borrow_mut() = TrafficPolicy { ejection, ..TrafficPolicy::default() };
        let mut answers = String::new();
        for _ in 0..4 {
            answers.push_str(&bed.ask(&request("GET")).await[9..12]);
            answers.push(' ');
        }
        assert_eq!(answers, "503 503 200 200 ");
    });
}

#[test]
fn there_are_no_more_requests_than_allowed() {
    run(async |bed| {
        bed.serve("web-1", |stream, _| std::mem::forget(stream));
        bed.world.traffic.borrow_mut().limits.requests = Some(1);
        let mut waits = bed.connect(Speaks::Http);
        waits.write_all(b"GET / HTTP/1.1\r\nHost: web\r\n\r\n").await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        let answer = bed.ask(&request("GET")).await;
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
        assert!(answer.contains("x-ambit-reason: overflow\r\n"), "{answer}");
        assert_eq!(bed.last().flags, Flags::Overflow);
    });
}

#[test]
fn a_response_is_given_up_only_for_an_attempt_that_follows() {
    run(async |bed| {
        bed.answers("web-1", BAD);
        bed.answers("web-2", OK);
        bed.route(|rule| rule.retry = retry(&[RetryOn::Status(503)]));
        *bed.world.traffic.borrow_mut() = TrafficPolicy {
            retry_budget: Some(RetryBudget { percent: 0, min_retries: 0 }),
            ..TrafficPolicy::default()
        };
        let answer = bed.ask(&request("PUT")).await;
        assert!(answer.ends_with("bad"), "the endpoint's own: {answer}");
        // A failure of gRPC stays one.
        bed.answers("web-0", "HTTP/1.1 200 OK\r\ngrpc-status: 14\r\nContent-Length: 0\r\n\r\n");
        bed.world.rules.borrow_mut()[0].retry = retry(&[RetryOn::Grpc(14)]);
        let answer = bed.ask(&request("PUT")).await;
        assert!(answer.contains("grpc-status: 14\r\n"), "{answer}");
    });
}

#[test]
fn a_slow_client_is_not_the_endpoints_fault() {
    run(async |bed| {
        bed.serve("web-1", |stream, _| std::mem::forget(stream));
        bed.route(|rule| rule.timeouts.request = Some(Duration::from_millis(30)));
        let mut client = bed.connect(Speaks::Http);
        let half = "POST / HTTP/1.1\r\nHost: web\r\nContent-Length: 10\r\n\r\n1";
        client.write_all(half.as_bytes()).await.unwrap();
        let mut answer = [0; 12];
        client.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 408");
    });
}

#[test]
fn a_copy_is_whole_and_sent_once_although_the_request_is_sent_again() {
    run(async |bed| {
        bed.answers("web-1", BAD);
        bed.answers("web-2", OK);
        let copied = bed.hears("shadow-1", OK);
        bed.route(|rule| {
            rule.retry = retry(&[RetryOn::Status(503)]);
            let name = ServiceName::new("app", "shadow");
            let destination = Destination::Service { name, port: 80, subset: None };
            rule.mirrors = vec![Mirror { destination, fraction: Fraction::ALL }];
        });
        assert!(bed.ask(&request("PUT")).await.starts_with("HTTP/1.1 200 "));
        assert_eq!(bed.last().attempts, 2);
        for _ in 0..100 {
            if copied.borrow().ends_with("body") {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(copied.borrow().matches("body").count(), 1, "{}", copied.borrow());
    });
}
