//! A tunnel as a stream of bytes, for code that reads the bytes instead of only copying them.
//!
//! Bytes count as delivered when they are read, so a reader that stops reading stops its sender.
//! [`copy`](crate::copy::copy) is faster where nobody looks at the bytes: here they are copied once
//! more.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::tunnel::Tunnel;
use crate::copy::{Batch, End, EndError};

impl AsyncRead for Tunnel {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let tunnel = self.get_mut();
        if buffer.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let mut taken = Batch::default();
        let polled = tunnel.poll_take(cx, buffer.remaining(), &mut taken);
        let mut bytes = 0;
        while let Some(piece) = taken.pop() {
            bytes += piece.len();
            buffer.put_slice(&piece);
        }
        if bytes > 0 {
            // An error after them is there at the next read, too.
            tunnel.delivered(bytes);
            return Poll::Ready(Ok(()));
        }
        ready!(polled).map(|_end| ()).map_err(broken).into()
    }
}

impl AsyncWrite for Tunnel {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let tunnel = self.get_mut();
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let room = ready!(tunnel.poll_room(cx)).map_err(broken)?;
        let mut batch = Batch::default();
        batch.push(Bytes::copy_from_slice(&bytes[..bytes.len().min(room)]));
        tunnel.poll_give(cx, &mut batch, false).map_err(broken)
    }

    /// The task that drives the connection sends what was written.
    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// Sends END_STREAM; what the peer sends can still be read.
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_finish(cx).map_err(broken)
    }
}

fn broken(error: EndError) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, error)
}
