//! HTTP/1.1 over a unix socket, for processes of this user and of root, as this process' user
//! namespace numbers users.
//!
//! It refuses nobody because too many others are there, as [`crate::http_port`] does for strangers:
//! a client waits in the socket's queue. Nothing here knows what is asked.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;

use crate::http_port::Served;
use crate::socket::{PeerCredentials, peer_credentials};

/// Connections served at a time.
const CONNECTIONS_MAX: usize = 64;
/// How long a client may take to send the head of its request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after a failed accept, such as for too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Answers one question a connection until dropped. Each connection is given to `spawn`, which runs
/// it. `name` is the socket's, for the log.
pub async fn serve<A, F>(
    listener: UnixListener,
    name: &'static str,
    answer: A,
    spawn: impl Fn(Served),
) where
    A: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<Full<Bytes>>> + Send + 'static,
{
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let place = places.clone().acquire_owned().await.expect("the semaphore is never closed");
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(socket = name, %error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        match peer_credentials(&stream) {
            Ok(peer) if peer.is_own_or_root() => {}
            Ok(PeerCredentials { pid, uid, .. }) => {
                tracing::warn!(socket = name, uid, pid, "refused a process of another user");
                continue;
            }
            Err(error) => {
                tracing::warn!(socket = name, %error, "refused a process of an unknown user");
                continue;
            }
        }
        let answer = answer.clone();
        spawn(Box::pin(async move {
            converse(stream, name, answer).await;
            drop(place);
        }));
    }
}

async fn converse<A, F>(stream: UnixStream, name: &'static str, answer: A)
where
    A: Fn(Request<Incoming>) -> F + Send + Sync + 'static,
    F: Future<Output = Response<Full<Bytes>>> + Send + 'static,
{
    let service = service_fn(move |request| {
        let answer = answer(request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.await {
        tracing::debug!(socket = name, %error, "a connection broke");
    }
}

#[cfg(test)]
mod tests {
    use http::{Method, StatusCode};

    use super::*;
    use crate::local_http::request;

    #[tokio::test]
    async fn whoever_waits_for_a_place_gets_one() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("test.sock");
        let listener = UnixListener::bind(&path).expect("a socket");
        let answer = |asked: Request<Incoming>| async move {
            Response::new(Full::new(asked.uri().path().to_owned().into()))
        };
        let spawn = |served| drop(tokio::spawn(served));
        tokio::spawn(serve(listener, "test", answer, spawn));
        let ask = |number: usize| {
            let (path, target) = (path.clone(), format!("/{number}"));
            async move {
                let patience = Duration::from_secs(30);
                let (status, body) =
                    request(&path, Method::GET, &target, Bytes::new(), patience).await?;
                assert_eq!((status, &body[..]), (StatusCode::OK, target.as_bytes()));
                Ok::<(), crate::local_http::LocalHttpError>(())
            }
        };
        let asked = (0..2 * CONNECTIONS_MAX).map(ask);
        let answered = futures::future::try_join_all(asked).await;
        answered.expect("all are answered");
    }
}
