//! HTTP/1.1 on a port that strangers may reach: small requests, whole responses.
//!
//! One request a connection, its head within two seconds, all of it within a bounded time.
//! Connections that have sent no head yet and connections that are being answered have separate
//! bounds, in total and for each source; [`crate::admission`] says which connection is closed at a
//! bound. Nothing here knows the requests.

mod pages;

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;

use crate::accept::{self, Admitted, Listener};
use crate::admission::{Admission, Bound, Bounds, Owner};
use crate::sys::process::open_files_limit;

/// How long a client may take to send the head of its request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(2);
/// Largest head of a request.
const MAX_HEAD_BYTES: usize = 16 << 10;

/// A port for everybody on the network.
///
/// Scrapers, probes and people open few connections each. What comes through one translated address
/// shares `each`: at a thousand new connections a second from there, one has an eighth of a second
/// to send its head.
pub const PUBLIC: Limits = Limits {
    name: "public",
    waiting: Bound { total: 512, each: 128 },
    answered: Bound { total: 64, each: 16 },
    exchange: Duration::from_secs(30),
    refuses_pages: false,
};

/// A port for the administrators of this machine, over loopback or a private socket. All of them
/// are one source. Their requests may be large and slow. Their browsers must not send requests of
/// other people's pages over TCP.
pub const PRIVATE: Limits = Limits {
    name: "private",
    waiting: Bound { total: 64, each: 64 },
    answered: Bound { total: 64, each: 64 },
    exchange: Duration::from_secs(600),
    refuses_pages: true,
};

/// The limits of a port.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The port's name, for the log.
    pub name: &'static str,
    /// Connections without a whole head, by source.
    pub waiting: Bound,
    /// Connections that are being answered, by source.
    pub answered: Bound,
    /// How long a connection may last.
    pub exchange: Duration,
    /// Whether web pages get no answer over TCP.
    pub refuses_pages: bool,
}

impl Limits {
    /// The same, or less where the process may open few files: ports like this one take an eighth
    /// of them at most.
    fn within(self, files: usize) -> Self {
        let less = |bound: Bound, most: usize| Bound {
            total: bound.total.min(most),
            each: bound.each.min(most.div_ceil(2)),
        };
        let (waiting, answered) = (less(self.waiting, files / 32), less(self.answered, files / 64));
        Self { waiting, answered, ..self }
    }

    /// The same for a port of this name.
    #[must_use]
    pub const fn named(self, name: &'static str) -> Self {
        Self { name, ..self }
    }
}

/// Answers questions until dropped. Each connection is given to `spawn`, which runs it.
pub async fn serve<A, F>(listener: Listener, limits: Limits, answer: A, spawn: impl Fn(Served))
where
    A: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<Full<Bytes>>> + Send + 'static,
{
    let limits = limits.within(open_files_limit());
    let (silent, proven) = (limits.waiting, limits.answered);
    let admission = Admission::new(
        limits.name,
        Bounds { silent, proven, guests: Bound::NONE, proof_within: HEAD_TIMEOUT },
    );
    loop {
        let admitted = accept::next(&listener, &admission).await;
        spawn(Box::pin(converse(admitted, limits, answer.clone())));
    }
}

/// A connection from its first byte to its end.
pub type Served = BoxFuture<'static, ()>;

async fn converse<A, F>(admitted: Admitted, limits: Limits, answer: A)
where
    A: Fn(Request<Incoming>) -> F + Send + Sync + 'static,
    F: Future<Output = Response<Full<Bytes>>> + Send + 'static,
{
    // Who does not read must not leave megabytes in the kernel's queue.
    admitted.limit_unread(limits.exchange);
    let proof = admitted.proof();
    let refuses_pages = limits.refuses_pages && admitted.remote().is_some();
    let service = service_fn(move |request: Request<Incoming>| {
        proof.prove(Owner::Source(proof.source()));
        let is_refused = refuses_pages && pages::asks(request.headers());
        let answer = (!is_refused).then(|| answer(request));
        async move {
            Ok::<_, Infallible>(match answer {
                Some(answer) => answer.await,
                None => no_page(),
            })
        }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .keep_alive(false)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(admitted), service);
    match tokio::time::timeout(limits.exchange, served).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(port = limits.name, %error, "a connection broke"),
        Err(_) => tracing::debug!(port = limits.name, "a connection took too long"),
    }
}

fn no_page() -> Response<Full<Bytes>> {
    let why = "not for web pages; ask with `Host: localhost` or an address, and no `Origin`\n";
    let mut response = Response::new(Full::new(Bytes::from_static(why.as_bytes())));
    *response.status_mut() = StatusCode::FORBIDDEN;
    response
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::Instant;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpSocket, TcpStream};

    use super::*;

    /// Long enough for a machine that is busy, short of what a probe waits.
    const SOON: Duration = Duration::from_secs(1);

    async fn port(limits: Limits) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let answer = |_| async { Response::new(Full::new(Bytes::from_static(b"answered"))) };
        let spawn = |served| drop(tokio::spawn(served));
        tokio::spawn(serve(Listener::Tcp(listener), limits, answer, spawn));
        address
    }

    /// Connects from an address of loopback's own.
    async fn from(last: u8, to: SocketAddr) -> TcpStream {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind(SocketAddr::from(([127, 0, 9, last], 0))).expect("bound");
        socket.connect(to).await.expect("connected")
    }

    async fn ask(mut stream: TcpStream) -> String {
        stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.expect("sent");
        let mut text = String::new();
        stream.read_to_string(&mut text).await.expect("answered");
        text
    }

    #[test]
    fn a_port_takes_an_eighth_of_the_files_at_most() {
        for limits in [PUBLIC, PRIVATE] {
            for files in [1024, 20_000, 1 << 20] {
                let Limits { waiting, answered, .. } = limits.within(files);
                let bounds = Bounds {
                    silent: waiting,
                    proven: answered,
                    guests: Bound::NONE,
                    proof_within: HEAD_TIMEOUT,
                };
                assert!(bounds.descriptors() <= files / 8, "{files}: {bounds:?}");
            }
        }
    }

    #[tokio::test]
    async fn who_says_nothing_keeps_nobody_out() {
        let port = port(PUBLIC).await;
        let mut silent = Vec::new();
        for _ in 0..2 * PUBLIC.waiting.total {
            silent.push(from(1, port).await);
        }
        for last in [2, 1] {
            let started = Instant::now();
            let answer = ask(from(last, port).await).await;
            assert!(answer.ends_with("answered"), "{answer}");
            assert!(answer.contains("connection: close"), "{answer}");
            assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
        }
        let mut byte = [0];
        let mut first = silent.swap_remove(0);
        assert!(first.read(&mut byte).await.is_err(), "it made room");
    }

    #[tokio::test]
    async fn a_page_is_answered_where_everybody_is() {
        for (limits, status) in [(PRIVATE, "403"), (PUBLIC, "200")] {
            let answer = ask(from(1, port(limits).await).await).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
        }
    }

    #[tokio::test]
    async fn a_head_comes_within_two_seconds_or_not_at_all() {
        let port = port(PUBLIC).await;
        let mut slow = from(1, port).await;
        slow.write_all(b"GET / HTTP/1.1\r\nhost").await.expect("sent");
        let started = Instant::now();
        let mut byte = [0];
        assert!(slow.read(&mut byte).await.is_err());
        let took = started.elapsed();
        assert!(took >= HEAD_TIMEOUT - SOON && took < HEAD_TIMEOUT + SOON, "{took:?}");
    }
}
