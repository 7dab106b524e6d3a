//! Bodies by HTTP/2 that come and are not read: they count, and have a bound.

use std::sync::Arc;
use std::time::Duration;

use ambit_http::engine::overload::{Bounds, Pressure, Shed};
use ambit_http::engine::record::Flags;
use ambit_http::engine::{Settings, Speaks};
use ambit_model::http::rule::Fraction;
use bytes::Bytes;
use h2::SendStream;
use h2::client::{ResponseFuture, SendRequest};
use http::Request;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::{sleep, timeout};

use crate::world::{Bed, run_with};

/// Whatever has not happened by then does not happen.
const LONG: Duration = Duration::from_secs(20);
/// A body that just fits in the window of its request.
const BODY_BYTES: usize = 256 * 1024 - 1;
/// What a test holds beside these bodies.
const OTHER_BYTES: usize = 64 * 1024;

struct Client {
    sender: SendRequest<Bytes>,
    connection: JoinHandle<()>,
}

type Uploading = (ResponseFuture, SendStream<Bytes>);

impl Client {
    async fn new(bed: &Bed) -> Self {
        let (sender, connection) = h2::client::handshake(bed.connect(Speaks::Http2)).await.unwrap();
        let connection = spawn_local(async move {
            let _ended = connection.await;
        });
        Self { sender, connection }
    }

    async fn begin(&self) -> Uploading {
        let mut sender = self.sender.clone().ready().await.unwrap();
        sender.send_request(Request::post("http://web/").body(()).unwrap(), false).unwrap()
    }

    async fn begin_four(&self) -> Vec<Uploading> {
        let mut all = Vec::new();
        for _ in 0..4 {
            all.push(self.begin().await);
        }
        all
    }
}

fn fill(uploading: &mut [Uploading]) {
    for (_, send) in uploading {
        send.send_data(Bytes::from(vec![b'x'; BODY_BYTES]), false).unwrap();
    }
}

/// Runs a test where requests are not read for long, and so many bytes may be in buffers.
fn check(held_bytes: Option<usize>, test: impl AsyncFnOnce(&Bed, &Pressure)) {
    let pressure = Arc::new(Pressure::new(Bounds { held_bytes, ..Bounds::default() }));
    run_with(Settings { pressure: pressure.clone(), ..Settings::default() }, async |bed| {
        bed.route(|rule| rule.faults.delay = Some((Fraction::ALL, LONG * 100)));
        bed.keep_watch();
        tokio::time::pause();
        test(bed, &pressure).await;
    });
}

async fn until(what: impl Fn() -> bool) {
    let waiting = async {
        while !what() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LONG, waiting).await.expect("it happens");
}

fn is_about(pressure: &Pressure, bytes: usize) -> bool {
    (bytes..=bytes + OTHER_BYTES).contains(&pressure.held_bytes())
}

#[test]
fn uploads_that_nobody_reads_count_until_they_end() {
    check(None, async |bed, pressure| {
        let client = Client::new(bed).await;
        let mut uploading = client.begin_four().await;
        fill(&mut uploading);
        until(|| is_about(pressure, 4 * BODY_BYTES)).await;
        for (_, mut send) in uploading.drain(..2) {
            send.send_reset(h2::Reason::CANCEL);
        }
        until(|| is_about(pressure, 2 * BODY_BYTES)).await;
        client.connection.abort();
        until(|| pressure.held_bytes() == 0).await;
        assert_eq!(bed.world.records.borrow().len(), 4);
    });
}

#[test]
fn a_body_that_is_read_counts_no_more() {
    check(None, async |bed, pressure| {
        bed.world.rules.borrow_mut().clear();
        bed.answers("web-1", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        *bed.world.version.borrow_mut() = Some(ambit_http::engine::position::Version::Http1);
        let client = Client::new(bed).await;
        let (response, mut send) = client.begin().await;
        send.send_data(Bytes::from(vec![b'x'; 8 * BODY_BYTES]), true).unwrap();
        let answer = timeout(LONG, response).await.unwrap().unwrap();
        assert_eq!(answer.status(), 200);
        until(|| pressure.held_bytes() == 0).await;
    });
}

#[test]
fn requests_are_shed_while_uploads_fill_the_memory_and_no_more_is_read() {
    const MOST: usize = 3 * BODY_BYTES;
    check(Some(MOST), async |bed, pressure| {
        let (first, second) = (Client::new(bed).await, Client::new(bed).await);
        // They are under way before there is too much.
        let mut of_second = second.begin_four().await;
        let mut of_first = first.begin_four().await;
        sleep(Duration::from_millis(20)).await;
        fill(&mut of_first);
        let shed = || pressure.shed().find(|(why, _)| *why == Shed::Memory).unwrap().1;
        until(|| pressure.held_bytes() >= MOST).await;
        sleep(Duration::from_millis(60)).await;
        let answer = bed.ask("GET / HTTP/1.1\r\nHost: web\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
        assert!(answer.contains("x-ambit-reason: overload\r\n"), "{answer}");
        assert_eq!((shed(), bed.last().flags), (1, Flags::Overflow));
        // What is sent for those that are under way waits at their senders.
        fill(&mut of_second);
        sleep(Duration::from_millis(300)).await;
        let most = 4 * BODY_BYTES + 2 * OTHER_BYTES;
        assert!(pressure.held_bytes() < most, "{}", pressure.held_bytes());
        // It comes when there is room: the first one's end is not seen before it is cut.
        first.connection.abort();
        until(|| pressure.held_bytes() < MOST / 2).await;
        until(|| pressure.held_bytes() >= MOST).await;
    });
}

#[test]
fn a_connection_whose_uploads_are_stuck_while_the_memory_is_full_is_cut() {
    check(Some(2 * BODY_BYTES), async |bed, pressure| {
        let (client, small) = (Client::new(bed).await, Client::new(bed).await);
        let (mut little, mut uploading) = (small.begin().await, client.begin_four().await);
        little.1.send_data(Bytes::from_static(b"little"), false).unwrap();
        fill(&mut uploading);
        sleep(Duration::from_secs(9)).await;
        assert!(bed.world.cuts.borrow().is_empty() && pressure.held_bytes() > 2 * BODY_BYTES);
        sleep(Duration::from_secs(2)).await;
        assert_eq!(*bed.world.cuts.borrow(), ["unread"]);
        let (response, _) = uploading.remove(0);
        assert!(response.await.is_err(), "it is cut");
        sleep(Duration::from_secs(1)).await;
        assert!(is_about(pressure, 6), "{}", pressure.held_bytes());
        assert!(!small.connection.is_finished(), "of the other one little waits");
    });
}
