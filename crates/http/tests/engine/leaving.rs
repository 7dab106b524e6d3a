//! Connections that are to end, because the proxy ends or stands before their destination no more:
//! their clients are told, and what is under way goes on.

use std::time::Duration;

use ambit_http::engine::Speaks;
use ambit_http::engine::position::Version;
use bytes::Bytes;
use http::Request;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::task::{spawn_local, yield_now};
use tokio::time::{Instant, timeout};

use crate::world::{Bed, run};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const LAST: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";

/// Why connections are to end.
#[derive(Clone, Copy, Debug)]
enum Why {
    Drain,
    Withdrawn,
}

impl Why {
    const ALL: [Self; 2] = [Self::Drain, Self::Withdrawn];

    async fn begin(self, bed: &Bed) {
        match self {
            Self::Drain => bed.drain.start(Some(Instant::now() + Duration::from_secs(25))),
            Self::Withdrawn => drop(bed.world.withdrawn.send_replace(true)),
        }
        // Every task has heard of it.
        for _ in 0..10 {
            yield_now().await;
        }
    }
}

async fn exchange(client: &mut DuplexStream, expected: &str) {
    client.write_all(b"GET / HTTP/1.1\r\nHost: web\r\n\r\n").await.unwrap();
    let mut answer = vec![0; expected.len()];
    client.read_exact(&mut answer).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&answer), expected);
}

#[test]
fn a_client_of_http1_is_told_with_the_next_answer() {
    for why in Why::ALL {
        run(async |bed| {
            bed.answers("web-1", OK);
            let mut client = bed.connect(Speaks::Http);
            exchange(&mut client, OK).await;
            why.begin(bed).await;
            let quiet = timeout(Duration::from_millis(50), client.read_u8()).await;
            assert!(quiet.is_err(), "{why:?}: it is not closed under a client's hands");
            exchange(&mut client, LAST).await;
            assert_eq!(client.read(&mut [0]).await.unwrap(), 0, "{why:?}");
        });
    }
}

#[test]
fn a_connection_of_http1_without_requests_ends_soon() {
    for why in Why::ALL {
        run(async |bed| {
            tokio::time::pause();
            bed.answers("web-1", OK);
            let mut client = bed.connect(Speaks::Http);
            exchange(&mut client, OK).await;
            why.begin(bed).await;
            let start = Instant::now();
            assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
            let waited = start.elapsed();
            assert!((2..5).contains(&waited.as_secs()), "{why:?}: {waited:?}");
        });
    }
}

#[test]
fn a_client_of_http2_is_told_at_once_and_its_streams_go_on() {
    for why in Why::ALL {
        run(async |bed| {
            *bed.world.version.borrow_mut() = Some(Version::Http1);
            bed.serve("web-1", |mut stream, _| {
                spawn_local(async move {
                    let mut head = [0; 1024];
                    let _read = stream.read(&mut head).await.unwrap();
                    let begun = b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhalf";
                    stream.write_all(begun).await.unwrap();
                    tokio::time::sleep(Duration::from_millis(200)).await;
                    stream.write_all(b"half").await.unwrap();
                });
            });
            let stream = bed.connect(Speaks::Http2);
            let (sender, connection) = h2::client::handshake(stream).await.unwrap();
            let connection = spawn_local(connection);
            let mut sender: h2::client::SendRequest<Bytes> = sender.ready().await.unwrap();
            let request = || Request::get("http://web/").body(()).unwrap();
            let (response, _) = sender.send_request(request(), true).unwrap();
            let mut body = response.await.unwrap().into_body();
            assert_eq!(body.data().await.unwrap().unwrap(), "half");
            why.begin(bed).await;
            let refused = timeout(Duration::from_millis(100), async {
                while sender.clone().ready().await.is_ok() {
                    yield_now().await;
                }
            });
            refused.await.expect("no further stream is begun");
            assert_eq!(body.data().await.unwrap().unwrap(), "half", "{why:?}");
            drop(sender);
            connection.await.unwrap().unwrap();
        });
    }
}
