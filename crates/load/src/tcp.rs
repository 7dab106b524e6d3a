//! Bare TCP: a number of bytes to the server and a number back, or one way to a sink.

use std::cmp::Ordering;
use std::rc::Rc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::plan::Plan;
use super::response::ResponseError;
use super::transport::{Answer, Failure, Sockets, Transport};

/// Request and response of fixed sizes.
#[derive(Debug)]
pub(super) struct Tcp {
    sockets: Rc<Sockets>,
    request: Rc<[u8]>,
    response_bytes: u64,
    close: bool,
    stream: Option<TcpStream>,
}

impl Tcp {
    pub(super) fn new(plan: &Plan, sockets: Rc<Sockets>, request: Rc<[u8]>) -> Self {
        let response_bytes = plan.request.response_bytes as u64;
        Self { sockets, request, response_bytes, close: plan.close, stream: None }
    }
}

impl Transport for Tcp {
    async fn open(&mut self) -> Result<(), Failure> {
        self.stream = Some(self.sockets.connect().await?);
        Ok(())
    }

    async fn exchange(&mut self) -> Result<Answer, Failure> {
        let kept = self.stream.take().filter(|stream| self.sockets.is_open(stream));
        let mut stream = match kept {
            Some(stream) => stream,
            None => self.sockets.connect().await?,
        };
        let (mut reads, mut bytes_in) = (0, 0);
        let (mut from, mut to) = stream.split();
        // Who answers while it is still being asked must not make both sides wait for each other.
        let sending = async { to.write_all(&self.request).await.map_err(Failure::Write) };
        let receiving = async {
            let mut buffer = [0; 16 << 10];
            while bytes_in < self.response_bytes {
                match from.read(&mut buffer).await.map_err(Failure::Read)? {
                    0 => return Err(ResponseError::Truncated.into()),
                    count => bytes_in += count as u64,
                }
                reads += 1;
            }
            if bytes_in == self.response_bytes {
                Ok(())
            } else {
                Err(ResponseError::Surplus.into())
            }
        };
        tokio::try_join!(sending, receiving)?;
        if !self.close {
            self.stream = Some(stream);
        }
        let bytes_out = self.request.len() as u64;
        Ok(Answer { status: None, bytes_in, body_bytes_in: bytes_in, bytes_out, reads })
    }

    fn abandon(&mut self) {
        self.stream = None;
    }

    async fn finish(&mut self) -> Result<(), Failure> {
        Ok(())
    }
}

/// One way, to a sink that says in the end how many bytes arrived.
#[derive(Debug)]
pub(super) struct TcpStreamOut {
    sockets: Rc<Sockets>,
    chunk: Rc<[u8]>,
    stream: Option<TcpStream>,
    sent: u64,
}

impl TcpStreamOut {
    pub(super) fn new(sockets: Rc<Sockets>, chunk: Rc<[u8]>) -> Self {
        Self { sockets, chunk, stream: None, sent: 0 }
    }
}

impl Transport for TcpStreamOut {
    async fn open(&mut self) -> Result<(), Failure> {
        (self.stream, self.sent) = (Some(self.sockets.connect().await?), 0);
        Ok(())
    }

    async fn exchange(&mut self) -> Result<Answer, Failure> {
        if self.stream.is_none() {
            self.open().await?;
        }
        let stream = self.stream.as_mut().expect("it was just opened");
        if !self.sockets.is_open(stream) {
            // A sink says nothing before the end.
            return Err(Failure::NoSink);
        }
        stream.write_all(&self.chunk).await.map_err(Failure::Write)?;
        let bytes_out = self.chunk.len() as u64;
        self.sent += bytes_out;
        Ok(Answer { bytes_out, ..Answer::default() })
    }

    fn abandon(&mut self) {
        self.stream = None;
    }

    async fn finish(&mut self) -> Result<(), Failure> {
        let Some(mut stream) = self.stream.take() else { return Ok(()) };
        stream.shutdown().await.map_err(Failure::Write)?;
        let arrived = stream.read_u64().await.map_err(|_| Failure::NoSink)?;
        let sent = self.sent;
        match arrived.cmp(&sent) {
            Ordering::Equal => Ok(()),
            Ordering::Less => Err(Failure::Lost { sent, arrived }),
            // It is no count.
            Ordering::Greater => Err(Failure::NoSink),
        }
    }
}
