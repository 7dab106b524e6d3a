//! Requests of HTTP/1 to endpoints of HTTP/1.1.

use ambit_http::engine::Speaks;
use ambit_http::engine::record::Flags;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::world::run;

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

#[test]
fn a_request_is_sent_on_and_answered() {
    run(async |bed| {
        let heard =
            bed.hears("web-1", "HTTP/1.1 200 OK\r\nX-Case: a\r\nContent-Length: 2\r\n\r\nok");
        let answer = bed.ask("GET /a/./b?c HTTP/1.1\r\nHost: web\r\nX-Own: 1\r\n\r\n").await;
        assert_eq!(answer, "HTTP/1.1 200 OK\r\nX-Case: a\r\nContent-Length: 2\r\n\r\nok");
        let heard = heard.borrow().clone();
        assert!(heard.starts_with("GET /a/b?c HTTP/1.1\r\nHost: web\r\nX-Own: 1\r\n"), "{heard}");
        assert!(heard.contains("x-forwarded-for: 10.0.0.9\r\n"), "{heard}");
        let own = "x-forwarded-client-cert: By=spiffe://t/ns/app/sa/waypoint;\
                   URI=spiffe://t/ns/shop/sa/cart\r\n";
        assert!(heard.contains(own), "{heard}");
        let record = bed.last();
        assert_eq!((record.status, record.flags, record.sent_bytes), (200, Flags::None, 2));
    });
}

#[test]
fn a_connection_carries_one_request_after_the_other() {
    run(async |bed| {
        bed.answers("web-1", OK);
        let mut client = bed.connect(Speaks::Http);
        for _ in 0..3 {
            client.write_all(b"GET / HTTP/1.1\r\nHost: web\r\n\r\n").await.unwrap();
            let mut answer = vec![0; OK.len()];
            client.read_exact(&mut answer).await.unwrap();
            assert_eq!(String::from_utf8_lossy(&answer), OK);
        }
        let servers = bed.world.servers.borrow();
        assert_eq!(servers["web-1"].1, 1, "the endpoint's connection is used again");
    });
}

#[test]
fn what_is_no_request_is_refused() {
    run(async |bed| {
        bed.answers("web-1", OK);
        let answer = bed.ask("GET / HTTP/1.1\nHost: web\n\n").await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
        assert!(answer.contains("Connection: close"), "{answer}");
        assert_eq!(bed.last().flags, Flags::Malformed);
        assert_eq!(bed.world.servers.borrow()["web-1"].1, 0);
    });
}

#[test]
fn bodies_are_framed_anew_and_trailers_pass() {
    run(async |bed| {
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
                       3;x=y\r\nabc\r\n0\r\nX-Sum: 1\r\n\r\n";
        let heard = bed.hears("web-1", chunked);
        let answer = bed
            .ask(
                "POST / HTTP/1.1\r\nHost: web\r\nTE: trailers\r\nTransfer-Encoding: chunked\r\n\r\n\
                 4\r\nwxyz\r\n0\r\nX-End: 2\r\n\r\n",
            )
            .await;
        assert!(answer.ends_with("\r\n3\r\nabc\r\n0\r\nX-Sum: 1\r\n\r\n"), "{answer}");
        let heard = heard.borrow().clone();
        assert!(heard.ends_with("\r\n\r\n4\r\nwxyz\r\n0\r\nX-End: 2\r\n\r\n"), "{heard}");
        assert_eq!((bed.last().received_bytes, bed.last().sent_bytes), (4, 3));
    });
}

#[test]
fn old_clients_get_no_chunks() {
    run(async |bed| {
        bed.answers(
            "web-1",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        );
        let answer = bed.ask("GET / HTTP/1.0\r\nHost: web\r\n\r\n").await;
        assert!(answer.ends_with("Connection: close\r\n\r\nabc"), "{answer}");
    });
}

#[test]
fn a_body_that_ends_with_the_connection_is_whole() {
    run(async |bed| {
        bed.serve("web-1", |mut stream, _| {
            tokio::task::spawn_local(async move {
                let mut bytes = [0; 4096];
                let _read = stream.read(&mut bytes).await;
                stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nuntil the end").await.unwrap();
            });
        });
        let answer = bed.ask("GET / HTTP/1.1\r\nHost: web\r\n\r\n").await;
        assert!(answer.ends_with("\r\nd\r\nuntil the end\r\n0\r\n\r\n"), "{answer}");
        assert_eq!(bed.last().flags, Flags::None);
    });
}

#[test]
fn a_response_to_head_has_no_body() {
    run(async |bed| {
        bed.answers("web-1", "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n");
        let two = "HEAD / HTTP/1.1\r\nHost: web\r\n\r\n".repeat(2);
        let answer = bed.ask(&two).await;
        assert_eq!(answer, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n".repeat(2));
    });
}

#[test]
fn answers_before_the_response_pass() {
    run(async |bed| {
        bed.serve("web-1", |mut stream, _| {
            tokio::task::spawn_local(async move {
                let mut bytes = vec![0; 4096];
                let read = stream.read(&mut bytes).await.unwrap();
                assert!(String::from_utf8_lossy(&bytes[..read]).contains("100-continue"));
                stream.write_all(b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n").await.unwrap();
                stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await.unwrap();
                let read = stream.read(&mut bytes).await.unwrap();
                assert_eq!(&bytes[..read], b"body");
                stream.write_all(OK.as_bytes()).await.unwrap();
            });
        });
        let mut client = bed.connect(Speaks::Http);
        let head =
            "PUT / HTTP/1.1\r\nHost: web\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n";
        client.write_all(head.as_bytes()).await.unwrap();
        let early = "HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n";
        let mut heard = vec![0; early.len()];
        client.read_exact(&mut heard).await.unwrap();
        assert_eq!(String::from_utf8_lossy(&heard), early);
        client.write_all(b"body").await.unwrap();
        let mut heard = vec![0; OK.len()];
        client.read_exact(&mut heard).await.unwrap();
        assert_eq!(String::from_utf8_lossy(&heard), OK);
    });
}

#[test]
fn a_websocket_becomes_a_tunnel() {
    run(async |bed| {
        bed.serve("web-1", |mut stream, _| {
            tokio::task::spawn_local(async move {
                let mut bytes = vec![0; 4096];
                let read = stream.read(&mut bytes).await.unwrap();
                assert!(String::from_utf8_lossy(&bytes[..read]).contains("Upgrade: websocket"));
                let switch = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\n\
                              Upgrade: websocket\r\n\r\nhello";
                stream.write_all(switch.as_bytes()).await.unwrap();
                let (mut read, mut write) = tokio::io::split(stream);
                let _ended = tokio::io::copy(&mut read, &mut write).await;
                let _ended = write.shutdown().await;
            });
        });
        let mut client = bed.connect(Speaks::Http);
        let head =
            "GET / HTTP/1.1\r\nHost: web\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
        client.write_all(head.as_bytes()).await.unwrap();
        let mut heard = Vec::new();
        while !heard.ends_with(b"hello") {
            client.read_buf(&mut heard).await.unwrap();
        }
        assert!(heard.starts_with(b"HTTP/1.1 101 "));
        client.write_all(b"\x00ping\xff").await.unwrap();
        let mut echoed = [0; 6];
        client.read_exact(&mut echoed).await.unwrap();
        assert_eq!(&echoed, b"\x00ping\xff");
        client.shutdown().await.unwrap();
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).await.unwrap();
        assert!(rest.is_empty());
        assert_eq!((bed.last().status, bed.last().received_bytes), (101, 6));
    });
}

#[test]
fn what_is_no_http_is_handed_back() {
    run(async |bed| {
        let mut client = bed.connect(Speaks::Unknown);
        client.write_all(b"\x16\x03\x01").await.unwrap();
        let mut heard = Vec::new();
        client.read_to_end(&mut heard).await.unwrap();
        assert_eq!(heard, b"no HTTP: \x16\x03\x01");
        // A client that waits for its server's first word.
        let mut client = bed.connect(Speaks::Unknown);
        let mut heard = Vec::new();
        client.read_to_end(&mut heard).await.unwrap();
        assert_eq!(heard, b"no HTTP: ");
        bed.answers("web-1", OK);
        let mut client = bed.connect(Speaks::Unknown);
        client
            .write_all(b"GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n")
            .await
            .unwrap();
        let mut heard = Vec::new();
        client.read_to_end(&mut heard).await.unwrap();
        assert!(heard.starts_with(b"HTTP/1.1 200 OK"));
    });
}
