//! Bounds that operators set, and a pod that has too much to do.

use std::time::Duration;

use ambit_model::http::limits::RequestLimits;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::frames::{END_HEADERS, HEADERS, REFUSED_STREAM, RST_STREAM, frame, next, preface};
use super::frames::{request, stream};
use super::world::{HTTP, UNDECLARED, World, answer, run, text, until};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n";

/// A server that answers when it is told.
fn waits(world: &World) -> watch::Sender<bool> {
    let go = watch::Sender::new(false);
    let told = go.subscribe();
    world.serve(HTTP, move |mut stream| {
        let mut told = told.clone();
        async move {
            let _read = stream.read(&mut [0; 4096]).await;
            let _told = told.wait_for(|go| *go).await;
            let _gone = stream.write_all(OK.as_bytes()).await;
        }
    });
    go
}

#[test]
fn requests_beyond_the_bound_are_refused_and_the_others_go_on() {
    run(&["--max-requests=5"], async |world| {
        let go = waits(world);
        let mut under_way = Vec::new();
        for _ in 0..5 {
            let mut client = world.connect(HTTP).await;
            client.write_all(GET).await.unwrap();
            under_way.push(client);
        }
        until("five are under way", || world.metric("ambit_http_requests_under_way") == 5.0).await;
        for _ in 0..3 {
            let answer = world.ask(HTTP, GET).await;
            assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
            assert!(answer.contains("x-ambit-reason: overload\r\n"), "{answer}");
        }
        assert_eq!(world.metric(r#"ambit_http_shed_total{reason="requests"}"#), 3.0);
        go.send_replace(true);
        for mut client in under_way {
            assert!(text(&mut client).await.starts_with("HTTP/1.1 200 "));
        }
        world.stays_good().await;
    });
}

#[test]
fn full_buffers_refuse_requests_and_then_connections_until_there_is_room() {
    run(&["--max-buffered-bytes=200000"], async |world| {
        world.serve(HTTP, |mut stream| async move {
            let _read = stream.read(&mut [0; 4096]).await;
            let head = "HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n";
            let mut gushing = stream.write_all(head.as_bytes()).await;
            while gushing.is_ok() {
                gushing = stream.write_all(&[b'x'; 16 * 1024]).await;
            }
        });
        let mut open = world.connect_apart(HTTP).await;
        let mut still = Vec::new();
        for _ in 0..8 {
            let mut client = world.connect(HTTP).await;
            client.write_all(GET).await.unwrap();
            still.push(client);
        }
        until("the buffers are full", || world.held_bytes() >= 200_000).await;
        sleep(Duration::from_millis(200)).await;
        open.write_all(GET).await.unwrap();
        let answer = text(&mut open).await;
        assert!(answer.contains("x-ambit-reason: overload\r\n"), "{answer}");
        assert!(world.metric(r#"ambit_http_shed_total{reason="memory"}"#) >= 1.0);
        // After a while connections are refused too.
        while world.try_connect(HTTP).await.is_some() {
            sleep(Duration::from_millis(100)).await;
        }
        let refused = r#"ambit_http_refused_connections_total{reason="overload"}"#;
        assert_eq!(world.metric(refused), 1.0);
        drop(still);
        until("there is room", || world.held_bytes() < 100_000).await;
        sleep(Duration::from_millis(200)).await;
        world.stays_good().await;
    });
}

#[test]
fn a_body_has_a_size_and_a_time() {
    let flags = ["--max-body-bytes=10", "--body-timeout=400ms"];
    run(&flags, async |world| {
        world.serve(HTTP, |stream| answer(stream, OK));
        let post =
            |fields: &str| format!("POST / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n{fields}");
        for (fields, status) in [
            ("Content-Length: 10\r\n\r\n0123456789", 200),
            ("Content-Length: 11\r\n\r\n0123456789a", 413),
            ("Content-Length: 9000000000000000000\r\n\r\n", 413),
        ] {
            let answer = world.ask(HTTP, post(fields).as_bytes()).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{fields}: {answer}");
        }
        // This server answers only what is whole.
        let go = world.metric("ambit_http_requests_under_way");
        assert_eq!(go, 0.0);
        let drips = post("Transfer-Encoding: chunked\r\n\r\n");
        let mut client = world.connect(UNDECLARED).await;
        world.serve(UNDECLARED, |mut stream| async move {
            while let Ok(1..) = stream.read(&mut [0; 4096]).await {}
        });
        client.write_all(drips.as_bytes()).await.unwrap();
        let started = Instant::now();
        let (mut read, mut write) = tokio::io::split(client);
        let dripping = async {
            for _ in 0..9 {
                sleep(Duration::from_millis(60)).await;
                let _gone = write.write_all(b"1\r\nx\r\n").await;
            }
            std::future::pending::<()>().await;
        };
        let mut answer = Vec::new();
        tokio::select! {
            _ended = read.read_to_end(&mut answer) => {}
            () = dripping => {}
        }
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
        assert!(answer.contains("x-ambit-reason: slow_client\r\n"), "{answer}");
        assert!(started.elapsed() < Duration::from_secs(30));
        world.stays_good().await;
    });
}

#[test]
fn heads_streams_and_connections_of_a_client_have_bounds_that_are_set() {
    let flags = [
        "--max-head-bytes=2048",
        "--max-fields=5",
        "--max-streams=2",
        "--max-client-connections=4",
    ];
    run(&flags, async |world| {
        let go = waits(world);
        let head = |fields: String| format!("GET / HTTP/1.1\r\nHost: web\r\n{fields}\r\n");
        for fields in [format!("X: {}\r\n", "y".repeat(2048)), "X: y\r\n".repeat(6)] {
            let answer = world.ask(HTTP, head(fields).as_bytes()).await;
            assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
        }
        let mut client = world.connect(HTTP).await;
        let get = |number| frame(HEADERS, END_HEADERS, stream(number), &request("GET", "/"));
        let three: Vec<u8> = (0..3).flat_map(get).collect();
        client.write_all(&[preface(&[]), three].concat()).await.unwrap();
        let refused = loop {
            let came = next(&mut client).await.expect("a refusal");
            if came.kind == RST_STREAM {
                break came;
            }
        };
        assert_eq!((refused.stream, refused.code()), (stream(2), REFUSED_STREAM));
        let mut all = vec![client];
        while all.len() < 4 {
            // Those that were refused above may not have ended yet.
            match world.try_connect(HTTP).await {
                Some(client) => all.push(client),
                None => sleep(Duration::from_millis(10)).await,
            }
        }
        assert!(world.try_connect(HTTP).await.is_none(), "the fifth");
        go.send_replace(true);
        drop(all);
        until("they are closed", || world.metric("ambit_http_requests_under_way") == 0.0).await;
        sleep(Duration::from_millis(100)).await;
        world.stays_good().await;
    });
}

#[test]
fn a_services_own_limits_hold_for_its_requests() {
    run(&[], async |world| {
        world.serve(HTTP, |stream| answer(stream, OK));
        let limits = RequestLimits {
            head_bytes: Some(1_000),
            fields: Some(10),
            body_bytes: Some(10),
            idle_timeout: Some(Duration::from_millis(300)),
            ..RequestLimits::default()
        };
        world.change_http(|http| http.limits.service = Some(limits.clone()));
        let post =
            |fields: &str| format!("POST / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n{fields}");
        for (name, fields, status) in [
            ("within", "Content-Length: 10\r\n\r\n0123456789".to_owned(), 200),
            ("a large field", format!("X: {}\r\n\r\n", "y".repeat(1_000)), 431),
            ("many fields", format!("{}\r\n", "X: y\r\n".repeat(11)), 431),
            ("a large body", "Content-Length: 11\r\n\r\n0123456789a".to_owned(), 413),
        ] {
            let mut client = world.connect(HTTP).await;
            client.write_all(post(&fields).as_bytes()).await.unwrap();
            let answer = text(&mut client).await;
            let expected = format!("HTTP/1.1 {status} ");
            assert!(answer.starts_with(&expected), "{name}: {answer}");
        }
        world.serve(UNDECLARED, |mut stream| async move {
            while let Ok(1..) = stream.read(&mut [0; 4096]).await {}
        });
        let mut client = world.connect(UNDECLARED).await;
        client.write_all(post("Content-Length: 9\r\n\r\n").as_bytes()).await.unwrap();
        let answer = text(&mut client).await;
        assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
        assert!(answer.contains("x-ambit-reason: stream_idle\r\n"), "{answer}");
        let problem = Some("the time is no time".into());
        let broken = RequestLimits { problem, ..RequestLimits::default() };
        world.change_http(|http| http.limits.service = Some(broken));
        let answer = world.ask(HTTP, GET).await;
        assert!(answer.starts_with("HTTP/1.1 500 "), "{answer}");
        assert!(answer.contains("x-ambit-reason: limits\r\n"), "{answer}");
        world.change_http(|http| http.limits.service = None);
        world.stays_good().await;
    });
}
