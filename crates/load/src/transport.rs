//! What all protocols have in common: an exchange, its failure, its sockets.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::ready;

use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::TcpStream;

use super::response::ResponseError;

/// Read at once, by whichever connection has something to read.
const READ_BUFFER_BYTES: usize = 64 << 10;

/// One worker's way to the server.
pub(super) trait Transport {
    /// Makes sure that there is a connection.
    async fn open(&mut self) -> Result<(), Failure>;

    /// One request and its answer, over a connection of its own if there is none.
    async fn exchange(&mut self) -> Result<Answer, Failure>;

    /// Forgets a connection on which an exchange failed.
    fn abandon(&mut self);

    /// Ends in good order.
    async fn finish(&mut self) -> Result<(), Failure>;
}

/// What came of an exchange.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Answer {
    /// HTTP's status.
    pub(super) status: Option<u16>,
    /// Read, framing included where it is ours to see.
    pub(super) bytes_in: u64,
    pub(super) body_bytes_in: u64,
    /// Written.
    pub(super) bytes_out: u64,
    /// Calls of read(2) that gave something.
    pub(super) reads: u32,
}

/// Why there was no answer. Its text is what failures are counted by.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("connect: {}", reason(.0))]
    Connect(io::Error),
    #[error("write: {}", reason(.0))]
    Write(io::Error),
    #[error("read: {}", reason(.0))]
    Read(io::Error),
    #[error("timeout")]
    Timeout,
    #[error(transparent)]
    Response(#[from] ResponseError),
    #[error("HTTP/2: {0}")]
    H2(#[from] h2::Error),
    #[error("the WebSocket was refused: {0}")]
    NoWebSocket(String),
    #[error("the WebSocket was closed in good order: {0}")]
    Closed(String),
    #[error("the WebSocket was cut: {0}")]
    Cut(String),
    #[error("the gRPC stream ended: {0}")]
    Ended(String),
    #[error("the server is no echo: it sent another message than it was sent")]
    NoEcho,
    #[error("the server is no sink: it did not say how many bytes arrived")]
    NoSink,
    #[error("{sent} bytes were sent and {arrived} arrived")]
    Lost { sent: u64, arrived: u64 },
}

/// The kind where it says enough, else the system's own words.
fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrNotAvailable => {
            "no local port is free; keep connections alive or lower the rate".to_owned()
        }
        _ if error.raw_os_error() == Some(TOO_MANY_FILES) => {
            "too many open files; raise ulimit -n or use fewer connections".to_owned()
        }
        // "uncategorized error" says nothing.
        io::ErrorKind::Other => error.to_string(),
        kind if format!("{kind:?}") == "Uncategorized" => error.to_string(),
        kind => kind.to_string(),
    }
}

/// EMFILE, for which there is no stable kind.
const TOO_MANY_FILES: i32 = 24;

/// What the connections of one thread share.
#[derive(Debug)]
pub(super) struct Sockets {
    address: SocketAddr,
    /// Bytes are parsed as soon as they are read, so one buffer is enough for all.
    buffer: RefCell<Vec<u8>>,
    pub(super) opened: Cell<u64>,
    /// Connections that the server had closed when they were wanted again.
    pub(super) lost_idle: Cell<u64>,
    /// WebSockets or gRPC streams that were answered.
    pub(super) streams_opened: Cell<u64>,
    /// Of these, the ones that the other side ended.
    pub(super) streams_cut: Cell<u64>,
}

impl Sockets {
    pub(super) fn new(address: SocketAddr) -> Self {
        let buffer = RefCell::new(vec![0; READ_BUFFER_BYTES]);
        Self {
            address,
            buffer,
            opened: Cell::new(0),
            lost_idle: Cell::new(0),
            streams_opened: Cell::new(0),
            streams_cut: Cell::new(0),
        }
    }

    pub(super) async fn connect(&self) -> Result<TcpStream, Failure> {
        let stream = TcpStream::connect(self.address).await.map_err(Failure::Connect)?;
        stream.set_nodelay(true).map_err(Failure::Connect)?;
        self.opened.update(|opened| opened + 1);
        Ok(stream)
    }

    /// Whether the server has not closed it, as far as the runtime knows: no system call.
    pub(super) fn is_open(&self, stream: &TcpStream) -> bool {
        let lost = !matches!(
            stream.try_read(&mut [0]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock
        );
        self.lost_idle.update(|count| count + u64::from(lost));
        !lost
    }

    /// Reads once and gives what came, possibly nothing, to `see`.
    pub(super) async fn read<T>(
        &self,
        stream: &mut TcpStream,
        mut see: impl FnMut(&[u8]) -> T,
    ) -> Result<T, Failure> {
        poll_fn(|context| {
            let mut buffer = self.buffer.borrow_mut();
            let mut read = ReadBuf::new(&mut buffer);
            let outcome = ready!(Pin::new(&mut *stream).poll_read(context, &mut read));
            outcome.map(|()| see(read.filled())).map_err(Failure::Read).into()
        })
        .await
    }
}
