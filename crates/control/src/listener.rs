//! TCP and TLS below discovery and certificates.
//!
//! Handshakes run beside one another, each with a deadline, so that one client that says nothing
//! delays nobody. The server certificate can be replaced while connections live. Nothing here knows
//! what is served.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use ambit_net::drain::Guard;
use ambit_tls::service::ServiceAcceptor;
use ambit_tls::{HandshakeError, ServerStream};
use arc_swap::ArcSwap;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tonic::transport::server::Connected;

/// Handshakes under way at the same time; further connections wait in the kernel's queue.
const HANDSHAKES_MAX: usize = 1024;
/// Longest handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Connections that are established and not yet taken by the server.
const ESTABLISHED_QUEUE: usize = 64;
/// Pause after the kernel could not give a connection (out of file descriptors), so that it can
/// recover.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Where a client connects from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Remote(pub(crate) SocketAddr);

/// One established connection.
pub(crate) struct Connection {
    transport: Transport,
    remote: SocketAddr,
}

enum Transport {
    Tls(Box<ServerStream<TcpStream>>),
    Plain(TcpStream),
}

/// Why a connection was not established.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("no handshake within {HANDSHAKE_TIMEOUT:?}")]
    Silent,
    #[error("TLS handshake")]
    Handshake(#[from] HandshakeError),
}

/// How connections of one port are established.
#[derive(Clone)]
pub(crate) enum Security {
    /// TLS with whatever certificate is current.
    Tls(Arc<ArcSwap<ServiceAcceptor>>),
    /// None; for loopback.
    Plain,
}

/// Accepts until asked to drain; established connections come out of the receiver.
pub(crate) fn accept(
    listener: TcpListener,
    security: Security,
    guard: Guard,
) -> mpsc::Receiver<io::Result<Connection>> {
    let (sender, receiver) = mpsc::channel(ESTABLISHED_QUEUE);
    let mut drain = guard.clone();
    guard.spawn(async move {
        let handshakes = Arc::new(Semaphore::new(HANDSHAKES_MAX));
        loop {
            let Ok(permit) = handshakes.clone().acquire_owned().await else { return };
            let accepted = tokio::select! {
                _ = drain.draining() => return,
                accepted = listener.accept() => accepted,
            };
            let (stream, remote) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let (sender, security) = (sender.clone(), security.clone());
            drain.spawn(async move {
                match establish(stream, &security).await {
                    Ok(transport) => {
                        // The server is gone when nobody takes it; then the client is told by the
                        // close.
                        let _ = sender.send(Ok(Connection { transport, remote })).await;
                    }
                    Err(error) => {
                        let error = crate::error_text::chain(&error);
                        tracing::info!(%remote, error, "connection refused");
                    }
                }
                drop(permit);
            });
        }
    });
    receiver
}

async fn establish(stream: TcpStream, security: &Security) -> Result<Transport, Refused> {
    // Small messages both ways; a failure costs latency only.
    let _ = stream.set_nodelay(true);
    match security {
        Security::Plain => Ok(Transport::Plain(stream)),
        Security::Tls(acceptor) => {
            let acceptor = acceptor.load_full();
            let handshake = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await;
            let (stream, _) = handshake.map_err(|_| Refused::Silent)??;
            Ok(Transport::Tls(Box::new(stream)))
        }
    }
}

impl Connected for Connection {
    type ConnectInfo = Remote;

    fn connect_info(&self) -> Remote {
        Remote(self.remote)
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.get_mut().transport {
            Transport::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
            Transport::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().transport {
            Transport::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
            Transport::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().transport {
            Transport::Tls(stream) => Pin::new(stream).poll_flush(cx),
            Transport::Plain(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().transport {
            Transport::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
            Transport::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
