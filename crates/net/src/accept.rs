//! Accepting connections that have a place in an [`Admission`].
//!
//! An accepted connection reads and writes like a socket until it must close: then both fail, and
//! the client sees a reset. So the code that serves it need not know the bounds, whatever layers
//! lie between.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use crate::admission::{Admission, Leave, Place, Proof, Source};
use crate::socket;

/// Pause after the kernel could not give a connection (out of file descriptors), so that it can
/// recover.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Where connections come from.
#[derive(Debug)]
pub enum Listener {
    /// The network.
    Tcp(TcpListener),
    /// This machine.
    Unix(UnixListener),
}

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// A connection with its place.
#[derive(Debug)]
pub struct Admitted {
    stream: Stream,
    remote: Option<SocketAddr>,
    place: Place,
}

/// The next connection. A failure of the kernel's is logged and outlasted.
pub async fn next(listener: &Listener, admission: &Arc<Admission>) -> Admitted {
    loop {
        match accept(listener).await {
            Ok((stream, remote)) => {
                let source = remote.map_or(Source::Local, |remote| remote.ip().into());
                return Admitted { stream, remote, place: admission.admit(source).await };
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn accept(listener: &Listener) -> io::Result<(Stream, Option<SocketAddr>)> {
    Ok(match listener {
        Listener::Tcp(listener) => {
            let (stream, remote) = listener.accept().await?;
            // Small messages both ways; a failure costs latency only.
            let _ = stream.set_nodelay(true);
            (Stream::Tcp(stream), Some(remote))
        }
        Listener::Unix(listener) => (Stream::Unix(listener.accept().await?.0), None),
    })
}

impl Admitted {
    /// The client's address, but for Unix sockets.
    pub fn remote(&self) -> Option<SocketAddr> {
        self.remote
    }

    /// What declares the connection proven.
    pub fn proof(&self) -> Proof {
        self.place.proof().clone()
    }

    /// Ends the connection when sent bytes stay unacknowledged for so long, even after it was
    /// closed here.
    pub(crate) fn limit_unread(&self, time: Duration) {
        if let Stream::Tcp(stream) = &self.stream {
            // A failure costs the kernel's memory for longer.
            let _ = socket::set_user_timeout(stream, time);
        }
    }

    /// Waits for the client's first byte, or until the connection must go.
    pub async fn readable(&mut self) -> io::Result<()> {
        std::future::poll_fn(|cx| {
            self.check(cx)?;
            match &self.stream {
                Stream::Tcp(stream) => stream.poll_read_ready(cx),
                Stream::Unix(stream) => stream.poll_read_ready(cx),
            }
        })
        .await
    }

    /// Waits for something else, or until the connection must go.
    pub async fn stay_for<F: Future>(&mut self, other: F) -> io::Result<F::Output> {
        let mut other = std::pin::pin!(other);
        std::future::poll_fn(|cx| {
            self.check(cx)?;
            other.as_mut().poll(cx).map(Ok)
        })
        .await
    }

    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.place.poll_leave(cx) {
            Poll::Pending => Ok(()),
            Poll::Ready(leave) => Err(self.leave(leave)),
        }
    }

    /// A reset leaves nothing behind in the kernel, where a flood could collect it.
    fn leave(&self, leave: Leave) -> io::Error {
        if let Stream::Tcp(stream) = &self.stream {
            let _ = socket::set_linger_reset(stream);
        }
        io::Error::new(io::ErrorKind::ConnectionAborted, leave)
    }
}

impl AsyncRead for Admitted {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.check(cx)?;
        match &mut this.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            Stream::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Admitted {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.check(cx)?;
        match &mut this.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_write(cx, buf),
            Stream::Unix(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Unix(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.place.has_left() {
            // An orderly end would come before the reset.
            return Poll::Ready(Ok(()));
        }
        match &mut this.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
