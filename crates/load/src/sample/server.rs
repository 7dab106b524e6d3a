//! What all samples have in common: a listener, an accept loop with a bound, HTTP connections that
//! end in good order.

use std::future::Future;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ambit_net::drain::Guard;
use ambit_net::socket::{self, ListenOptions};
use hyper::body::{Body, Incoming};
use hyper::rt::Executor;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;

/// Most connections at once; further ones wait in the kernel.
const CONNECTIONS_MAX: usize = 20_000;
/// Connections that wait in the kernel.
const BACKLOG: i32 = 4096;
/// Wait after `accept` failed, usually for lack of descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);
/// Largest head of a request.
const HEAD_SIZE_MAX_BYTES: usize = 64 << 10;

/// The listener could not be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ListenError {
    /// Not an address.
    #[error("{text:?} is not an address to listen on; write IP:PORT, [IP]:PORT or :PORT")]
    Address {
        /// As written.
        text: String,
    },
    /// The system refuses.
    #[error("cannot listen on {address}; choose another address or port")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
}

/// Listens. `:PORT` and `[::]:PORT` mean IPv4 and IPv6.
pub(crate) fn listen(text: &str) -> Result<TcpListener, ListenError> {
    let all = text.strip_prefix(':').map(|port| format!("[::]:{port}"));
    let address: SocketAddr = all
        .as_deref()
        .unwrap_or(text)
        .parse()
        .map_err(|_| ListenError::Address { text: text.to_owned() })?;
    let options = ListenOptions { backlog: BACKLOG, v6only: false, ..ListenOptions::default() };
    socket::tcp_listener(address, &options)
        .and_then(TcpListener::from_std)
        .map_err(|source| ListenError::Listen { address, source })
}

/// Writes lines to the log, which is standard output. Requests are answered without a log too.
pub(super) fn log(lines: &str) {
    let _nobody_reads = io::stdout().write_all(lines.as_bytes());
}

/// Accepts until it is asked to end, and starts `handle` for each connection.
pub(super) async fn serve<H, F>(listener: TcpListener, mut guard: Guard, handle: H)
where
    H: Fn(TcpStream, SocketAddr) -> F,
    F: Future<Output = ()> + 'static,
{
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    // The guard that waits is mutable, the one that starts tasks is shared with them.
    let tasks = guard.clone();
    loop {
        let (stream, peer, permit) = tokio::select! {
            _ = guard.draining() => return,
            accepted = accept(&listener, &room) => accepted,
        };
        let handling = handle(stream, peer);
        tasks.spawn_local(async move {
            handling.await;
            drop(permit);
        });
    }
}

async fn accept(
    listener: &TcpListener,
    room: &Arc<Semaphore>,
) -> (TcpStream, SocketAddr, OwnedSemaphorePermit) {
    let permit = Arc::clone(room).acquire_owned().await.expect("the semaphore is never closed");
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => return (stream, socket::normalise(peer), permit),
            Err(error) => {
                eprintln!("cannot accept a connection: {error}");
                sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

/// The two ends of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    /// The application's own address, as the client called it.
    pub(crate) local: SocketAddr,
    /// The client's.
    pub(crate) peer: SocketAddr,
}

/// The streams of a connection stay on its thread.
#[derive(Clone, Copy, Debug)]
struct OnThisThread;

impl<F: Future<Output = ()> + 'static> Executor<F> for OnThisThread {
    fn execute(&self, future: F) {
        tokio::task::spawn_local(future);
    }
}

/// Serves HTTP/1.1, and HTTP/2 without TLS to clients that begin with it (RFC 9113, 3.3): `answer`
/// makes the response of each request.
pub(crate) async fn serve_http<A, F, B>(
    listener: TcpListener,
    guard: Guard,
    keep_alive: bool,
    answer: A,
) where
    A: Fn(Request<Incoming>, Ends) -> F + Clone + 'static,
    F: Future<Output = Response<B>> + 'static,
    B: Body + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let connections = guard.clone();
    serve(listener, guard, |stream, peer| {
        let (answer, mut guard) = (answer.clone(), connections.clone());
        async move {
            let Ok(local) = stream.set_nodelay(true).and_then(|()| stream.local_addr()) else {
                return; // The client is gone already.
            };
            let ends = Ends { local: socket::normalise(local), peer };
            let service = service_fn(move |request| {
                let answering = answer(request, ends);
                async move { Ok::<_, std::convert::Infallible>(answering.await) }
            });
            let mut server = auto::Builder::new(OnThisThread);
            server
                .http1()
                .keep_alive(keep_alive)
                .header_read_timeout(None)
                .title_case_headers(true)
                .max_buf_size(HEAD_SIZE_MAX_BYTES);
            let connection = server.serve_connection_with_upgrades(TokioIo::new(stream), service);
            let mut connection = std::pin::pin!(connection);
            // An error is the client's: it went away, or sent no HTTP and got an error.
            let _client_error = tokio::select! {
                ended = connection.as_mut() => ended,
                _ = guard.draining() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
        }
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_ip_and_port() {
        for text in ["", "8080", "localhost:80", "[::]", ":http"] {
            let error = listen(text).unwrap_err().to_string();
            assert!(error.contains("write IP:PORT"), "{text:?}: {error}");
        }
    }
}
