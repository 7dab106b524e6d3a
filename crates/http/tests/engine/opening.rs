//! Endpoints' connections for clients' that are no HTTP: what they share with requests.

use ambit_model::http::traffic::{Ejection, Limits};

use crate::world::{Bed, run};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const GET: &str = "GET / HTTP/1.1\r\nHost: web\r\n\r\n";

/// How often an endpoint was asked for a connection.
fn asked(bed: &Bed, name: &str) -> usize {
    bed.world.servers.borrow()[name].1
}

/// An endpoint that takes no connection.
fn refuses(bed: &Bed, name: &str) {
    bed.answers(name, OK);
    bed.world.servers.borrow_mut().get_mut(name).unwrap().1 = 1_000;
}

#[test]
fn an_endpoint_that_takes_no_connections_is_left_out() {
    run(async |bed| {
        refuses(bed, "web-1");
        bed.answers("web-2", OK);
        let rules = Ejection { consecutive_5xx: 2, max_percent: 50, ..Ejection::default() };
        bed.world.traffic.borrow_mut().ejection = Some(rules);
        for _ in 0..5 {
            assert!(bed.open().await.is_ok(), "the other one takes it");
        }
        assert_eq!((asked(bed, "web-1"), asked(bed, "web-2")), (1_002, 5));
        let answer = bed.ask(GET).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        assert_eq!(asked(bed, "web-1"), 1_002, "requests know it too");
    });
}

#[test]
fn an_endpoint_whose_policies_deny_the_waypoint_is_asked_once_and_stays() {
    run(async |bed| {
        for name in ["web-1", "web-2"] {
            bed.answers(name, OK);
            bed.world.servers.borrow_mut().get_mut(name).unwrap().1 = 2_000;
        }
        let rules = Ejection { consecutive_5xx: 1, max_percent: 100, ..Ejection::default() };
        bed.world.traffic.borrow_mut().ejection = Some(rules);
        for asked_before in [2_000, 2_001] {
            let answer = bed.ask(GET).await;
            assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
            assert!(answer.contains("x-ambit-reason: denied_at_destination\r\n"), "{answer}");
            assert_eq!((asked(bed, "web-1"), asked(bed, "web-2")), (asked_before + 1, 2_000));
        }
        let denied = bed.open().await.err().expect("bytes are denied too");
        assert_eq!(denied.reason, "denied_at_destination");
        assert_eq!((asked(bed, "web-1"), asked(bed, "web-2")), (2_003, 2_000));
    });
}

#[test]
fn requests_and_connections_have_one_limit_of_connections() {
    run(async |bed| {
        bed.answers("web-1", OK);
        let limits = Limits { connections: Some(1), ..Limits::default() };
        bed.world.traffic.borrow_mut().limits = limits;
        let first = bed.open().await;
        let full = bed.open().await.err().expect("there is one");
        assert_eq!(full.reason, "overflow");
        assert!(full.text.contains("as many connections as it may have"), "{}", full.text);
        drop(first);
        // One that waits for the next request gives way.
        let answer = bed.ask(GET).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        assert!(bed.open().await.is_ok());
    });
}
