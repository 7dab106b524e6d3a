//! HTTP/1.1 between processes of one machine: commands and the administration of the roles.
//!
//! The client sends one request to a unix socket or to a port on loopback. The server, [`serve`],
//! answers on unix sockets only. One request a connection, bounded answers, no keep-alive. Neither
//! side of a unix socket talks to another user, except root. Never used between machines.

mod server;

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

pub use self::server::serve;
use crate::socket::peer_credentials;

/// The largest answer that is read: a dump of a view with 100,000 workloads fits.
pub(crate) const MAX_ANSWER_BYTES: usize = 256 << 20;

/// Why a request over a unix socket was not answered.
#[derive(Debug, thiserror::Error)]
pub enum LocalHttpError {
    /// Nobody listens.
    #[error("connect to {path}: is the program that serves it running?")]
    Connect {
        /// The socket, or the address.
        path: String,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// Somebody else listens.
    #[error(
        "{path} is served by user {uid}, neither you nor root: nothing was sent; find out who \
         put it there, and run as that user if it is meant"
    )]
    Foreign {
        /// The socket.
        path: String,
        /// Whose it is.
        uid: u32,
    },
    /// The request could not be formed.
    #[error("form the request {0}")]
    Request(String, #[source] http::Error),
    /// The other side broke off.
    #[error("ask {0}")]
    Exchange(String, #[source] hyper::Error),
    /// The answer broke off or is larger than allowed.
    #[error("read the answer to {0} (at most {MAX_ANSWER_BYTES} bytes)")]
    Answer(String, #[source] Box<dyn std::error::Error + Send + Sync>),
    /// No answer came in time.
    #[error("no answer to {0} within {seconds} s", seconds = .1.as_secs_f64())]
    Timeout(String, Duration),
}

/// Sends one request to the socket at `path` and reads the whole answer.
pub async fn request(
    path: &Path,
    method: Method,
    target: &str,
    body: Bytes,
    patience: Duration,
) -> Result<(StatusCode, Bytes), LocalHttpError> {
    let name = format!("{method} {target}");
    let answered = async {
        let connected = UnixStream::connect(path).await;
        let path = path.display().to_string();
        let known = connected.and_then(|stream| Ok((peer_credentials(&stream)?, stream)));
        let (peer, stream) = match known {
            Ok((peer, stream)) => (peer, stream),
            Err(source) => return Err(LocalHttpError::Connect { path, source }),
        };
        if !peer.is_own_or_root() {
            return Err(LocalHttpError::Foreign { path, uid: peer.uid });
        }
        exchange(stream, method, target, body, &name).await
    };
    let answered = tokio::time::timeout(patience, answered).await;
    answered.unwrap_or_else(|_| Err(LocalHttpError::Timeout(name, patience)))
}

/// Asks the port at `address` and reads the whole answer.
pub async fn get(
    address: SocketAddr,
    target: &str,
    patience: Duration,
) -> Result<(StatusCode, Bytes), LocalHttpError> {
    let name = format!("GET {target}");
    let answered = async {
        let stream = TcpStream::connect(address).await;
        let path = address.to_string();
        let stream = stream.map_err(|source| LocalHttpError::Connect { path, source })?;
        exchange(stream, Method::GET, target, Bytes::new(), &name).await
    };
    let answered = tokio::time::timeout(patience, answered).await;
    answered.unwrap_or_else(|_| Err(LocalHttpError::Timeout(name, patience)))
}

/// Asks whoever is at the other end of a stream, and reads the whole answer.
pub async fn ask_over(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    target: &str,
    patience: Duration,
) -> Result<(StatusCode, Bytes), LocalHttpError> {
    let name = format!("GET {target}");
    let answered = exchange(stream, Method::GET, target, Bytes::new(), &name);
    let answered = tokio::time::timeout(patience, answered).await;
    answered.unwrap_or_else(|_| Err(LocalHttpError::Timeout(name, patience)))
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    method: Method,
    target: &str,
    body: Bytes,
    name: &str,
) -> Result<(StatusCode, Bytes), LocalHttpError> {
    let broken = |error| LocalHttpError::Exchange(name.to_owned(), error);
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.map_err(broken)?;
    let request = Request::builder()
        .method(method)
        .uri(target)
        .header(http::header::HOST, "localhost")
        .header(http::header::CONNECTION, "close")
        .body(Full::new(body))
        .map_err(|error| LocalHttpError::Request(name.to_owned(), error))?;
    let answer = async {
        let response = sender.send_request(request).await.map_err(broken)?;
        let status = response.status();
        let mut body = Limited::new(response.into_body(), MAX_ANSWER_BYTES);
        let mut whole = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| LocalHttpError::Answer(name.to_owned(), error))?;
            if let Ok(data) = frame.into_data() {
                whole.extend_from_slice(&data);
            }
        }
        Ok((status, whole.freeze()))
    };
    tokio::pin!(answer);
    tokio::select! {
        answer = &mut answer => answer,
        closed = connection => match closed {
            Ok(()) => answer.await,
            Err(error) => Err(broken(error)),
        },
    }
}
