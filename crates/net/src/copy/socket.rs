//! A TCP socket as the end of a connection.

use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::BufMut;
use tokio::io::{AsyncReadExt, AsyncWrite};
use tokio::net::TcpStream;

use super::{Batch, End, EndError, READ_BYTES, Taken, arena};
use crate::socket::set_linger_reset;

/// A TCP socket as the end of a connection.
#[derive(Debug)]
pub struct SocketEnd {
    stream: TcpStream,
}

impl SocketEnd {
    /// Takes over a connected socket.
    pub fn new(stream: TcpStream) -> Self {
        Self { stream }
    }

    /// The socket.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }
}

impl End for SocketEnd {
    const SHARES_ITS_TRANSPORT: bool = false;

    fn poll_takeable(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), EndError>> {
        self.stream.poll_read_ready(cx).map_err(EndError::Socket)
    }

    fn poll_take(
        &mut self,
        cx: &mut Context<'_>,
        limit: usize,
        into: &mut Batch,
    ) -> Poll<Result<Taken, EndError>> {
        arena::with_room(|chunk| {
            // A read that does not fill the buffer also tells the runtime that the socket is
            // empty, which saves the read that would only return EAGAIN.
            let read = {
                let mut room = (&mut *chunk).limit(limit.min(READ_BYTES));
                pin!(self.stream.read_buf(&mut room)).poll(cx)
            };
            let bytes = ready!(read).map_err(EndError::Socket)?;
            if bytes == 0 {
                return Poll::Ready(Ok(Taken::Last));
            }
            into.push(chunk.split().freeze());
            Poll::Ready(Ok(Taken::Some))
        })
    }

    fn delivered(&mut self, _bytes: usize) {}

    fn poll_room(&mut self, _cx: &mut Context<'_>) -> Poll<Result<usize, EndError>> {
        // The kernel's buffer is the room; a write says whether there is any.
        Poll::Ready(Ok(READ_BYTES))
    }

    fn poll_give(
        &mut self,
        cx: &mut Context<'_>,
        batch: &mut Batch,
    ) -> Poll<Result<usize, EndError>> {
        let stream = Pin::new(&mut self.stream);
        let written = batch.write(|slices| {
            let result = match slices {
                [one] => stream.poll_write(cx, one),
                several => stream.poll_write_vectored(cx, several),
            };
            let bytes = if let Poll::Ready(Ok(bytes)) = &result { *bytes } else { 0 };
            (bytes, result)
        });
        written.map_err(EndError::Socket)
    }

    fn rest(&mut self) {}

    fn poll_gone(&mut self, _cx: &mut Context<'_>) -> Poll<EndError> {
        Poll::Pending
    }

    fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), EndError>> {
        Pin::new(&mut self.stream).poll_shutdown(cx).map_err(EndError::Socket)
    }

    fn reset(&mut self) {
        if let Err(error) = set_linger_reset(&self.stream) {
            tracing::debug!(%error, "socket could not be set to reset; it closes in order");
        }
    }
}
