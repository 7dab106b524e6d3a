//! A connection to an endpoint that ends when its certificate is revoked, whoever uses it then: it
//! may be kept for hours, and carry the requests of many clients.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use ambit_dataplane::connections::CutReason;
use ambit_dataplane::plane::Plane;
use ambit_dataplane::tunnel::Opened;
use ambit_net::hbone::Tunnel;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What was opened, until its certificate is revoked; an error says that it is already.
pub(crate) fn watch(plane: &Plane, opened: Opened) -> Result<Watched<Tunnel>, CutReason> {
    let Opened { tunnel, peer } = opened;
    let entered = plane.connections.enter(Vec::new(), None, Some(peer.clone()));
    // From here on a revocation cuts the entry; one that came before is seen now.
    if plane.mesh.certificates.revocations().revokes(&peer) {
        plane.mesh.metrics.revocation_rejection();
        return Err(CutReason::Revoked);
    }
    Ok(Watched::new(tunnel, async move { entered.cut_off().await }))
}

/// A stream until it is cut.
pub(crate) struct Watched<S> {
    stream: S,
    cut: Cut,
}

enum Cut {
    /// Ends with the reason.
    Not(Pin<Box<dyn Future<Output = CutReason>>>),
    Because(CutReason),
}

impl<S> Watched<S> {
    /// `cut` ends when the stream is cut.
    fn new(stream: S, cut: impl Future<Output = CutReason> + 'static) -> Self {
        Self { stream, cut: Cut::Not(Box::pin(cut)) }
    }

    /// An error from the moment that it is cut. The task that asks is woken then.
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if let Cut::Not(cut) = &mut self.cut
            && let Poll::Ready(reason) = cut.as_mut().poll(cx)
        {
            self.cut = Cut::Because(reason);
        }
        match &self.cut {
            Cut::Not(_) => Ok(()),
            Cut::Because(reason) => {
                Err(io::Error::new(io::ErrorKind::ConnectionAborted, reason.clone()))
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn a_stream_that_is_cut_neither_reads_nor_writes() {
        let (near, mut far) = duplex(64);
        let (cut, cuts) = oneshot::channel();
        let mut near = Watched::new(near, async { cuts.await.expect("it is cut") });
        far.write_all(b"ab").await.expect("it takes bytes");
        near.write_all(b"c").await.expect("it is not cut");
        assert_eq!(near.read_u8().await.expect("it is not cut"), b'a');
        // It is kept idle meanwhile, and read when it is cut.
        let reading = async {
            assert_eq!(near.read_u8().await.expect("what was sent before"), b'b');
            near.read_u8().await.expect_err("nothing comes, and it is cut")
        };
        let cutting = async {
            tokio::task::yield_now().await;
            cut.send(CutReason::Revoked).expect("somebody waits");
        };
        let (error, ()) = tokio::join!(reading, cutting);
        assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
        assert!(error.to_string().contains("revoked"), "{error}");
        far.write_all(b"d").await.expect("it takes bytes");
        assert!(near.read_u8().await.is_err() && near.write_all(b"e").await.is_err());
    }
}
