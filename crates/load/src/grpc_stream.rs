//! Bidirectional gRPC streams over h2c: a message to the server and its echo back, again and again
//! on the same stream.
//!
//! A stream that the other side ends is opened again for the next message, and counted as cut:
//! whoever holds a stream for days notices. What the messages hold means nothing here.

use std::rc::Rc;

use bytes::{BufMut, Bytes, BytesMut};
use futures::FutureExt;
use h2::client::ResponseFuture;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, HeaderValue};

use super::h2c::{ATTEMPTS_MAX, Shared, is_unseen};
use super::plan::MAX_BODY_BYTES;
use super::response::ResponseError;
use super::transport::{Answer, Failure, Sockets, Transport};

/// Before each message: whether it is compressed, and how long it is.
const PREFIX_BYTES: usize = 5;

/// One stream after the other.
#[derive(Debug)]
pub(super) struct GrpcStream {
    sockets: Rc<Sockets>,
    shared: Rc<Shared>,
    request: Rc<http::Request<()>>,
    /// With its prefix.
    message: Bytes,
    open: Option<Open>,
}

/// A stream that is open.
#[derive(Debug)]
struct Open {
    send: SendStream<Bytes>,
    /// The head may come with the first message only.
    answer: Receive,
    /// What came of the next message.
    rest: BytesMut,
}

#[derive(Debug)]
enum Receive {
    Head(Box<ResponseFuture>),
    Messages(RecvStream),
}

/// A message as it is sent.
pub(super) fn message(body: &[u8]) -> Bytes {
    let mut message = BytesMut::with_capacity(PREFIX_BYTES + body.len());
    message.put_u8(0);
    message.put_u32(u32::try_from(body.len()).expect("a body is bounded by the plan"));
    message.put_slice(body);
    message.freeze()
}

/// The next message, prefix included, once all of it is there.
fn next_message(rest: &mut BytesMut) -> Result<Option<BytesMut>, Failure> {
    let [_, length @ ..] = match rest.first_chunk::<PREFIX_BYTES>() {
        Some(prefix) => *prefix,
        None => return Ok(None),
    };
    let length = u32::from_be_bytes(length) as usize;
    if length > MAX_BODY_BYTES {
        return Err(Failure::NoEcho);
    }
    let whole = PREFIX_BYTES + length;
    Ok((rest.len() >= whole).then(|| rest.split_to(whole)))
}

/// The status that a stream ended with, for a person to read.
fn ended(headers: Option<&HeaderMap>) -> Failure {
    let text = |name| {
        let value: &HeaderValue = headers?.get(name)?;
        Some(String::from_utf8_lossy(value.as_bytes()).into_owned())
    };
    let status = text("grpc-status").unwrap_or_else(|| "missing".to_owned());
    let message = text("grpc-message").map(|it| format!(" ({it})")).unwrap_or_default();
    Failure::Ended(format!("grpc-status {status}{message}"))
}

impl GrpcStream {
    pub(super) fn new(
        sockets: &Rc<Sockets>,
        shared: Rc<Shared>,
        request: Rc<http::Request<()>>,
        message: Bytes,
    ) -> Self {
        Self { sockets: sockets.clone(), shared, request, message, open: None }
    }

    /// The stream, if the other side has neither ended it nor sent what nobody asked for.
    fn kept(&mut self) -> Option<Open> {
        let mut open = self.open.take()?;
        let Receive::Messages(stream) = &mut open.answer else { return Some(open) };
        if stream.data().now_or_never().is_some() {
            self.sockets.streams_cut.update(|count| count + 1);
            return None;
        }
        Some(open)
    }

    async fn begin(&self) -> Result<Open, Failure> {
        let mut sender = self.shared.sender().await?;
        let request = http::Request::clone(&self.request);
        let (response, send) = sender.send_request(request, false)?;
        Ok(Open { send, answer: Receive::Head(Box::new(response)), rest: BytesMut::new() })
    }

    async fn attempt(&mut self) -> Result<Answer, Failure> {
        let open = match self.kept() {
            Some(open) => open,
            None => self.begin().await?,
        };
        // It is there to be counted if the exchange ends early.
        let open = self.open.insert(open);
        let bytes_in = open.echo(&self.sockets, &self.message).await?;
        let body_bytes_in = (self.message.len() - PREFIX_BYTES) as u64;
        let bytes_out = self.message.len() as u64;
        Ok(Answer { status: None, bytes_in, body_bytes_in, bytes_out, reads: 0 })
    }

    /// Whether there is a stream, and the server has answered on it.
    fn is_answered(&self) -> bool {
        self.open.as_ref().is_some_and(|open| matches!(open.answer, Receive::Messages(_)))
    }
}

impl Open {
    async fn echo(&mut self, sockets: &Sockets, message: &Bytes) -> Result<u64, Failure> {
        self.send.send_data(message.clone(), false)?;
        if let Receive::Head(response) = &mut self.answer {
            let response = response.as_mut().await?;
            if response.status() != http::StatusCode::OK {
                return Err(Failure::Ended(format!("HTTP status {}", response.status())));
            }
            if response.headers().contains_key("grpc-status") {
                return Err(ended(Some(response.headers())));
            }
            sockets.streams_opened.update(|count| count + 1);
            self.answer = Receive::Messages(response.into_body());
        }
        let Receive::Messages(stream) = &mut self.answer else {
            return Err(ResponseError::Truncated.into());
        };
        let mut bytes = 0;
        loop {
            if let Some(echo) = next_message(&mut self.rest)? {
                return if echo == *message { Ok(bytes) } else { Err(Failure::NoEcho) };
            }
            let Some(piece) = stream.data().await else {
                return Err(ended(stream.trailers().await?.as_ref()));
            };
            let piece = piece?;
            bytes += piece.len() as u64;
            stream.flow_control().release_capacity(piece.len())?;
            self.rest.extend_from_slice(&piece);
        }
    }

    /// Ends it, and expects the server to end it well.
    async fn end(mut self) -> Result<(), Failure> {
        self.send.send_data(Bytes::new(), true)?;
        let Receive::Messages(mut stream) = self.answer else { return Ok(()) };
        while let Some(piece) = stream.data().await {
            stream.flow_control().release_capacity(piece?.len())?;
        }
        let trailers = stream.trailers().await?;
        let status = trailers.as_ref().and_then(|trailers| trailers.get("grpc-status"));
        if status.is_some_and(|status| status == "0") {
            Ok(())
        } else {
            Err(ended(trailers.as_ref()))
        }
    }
}

impl Transport for GrpcStream {
    async fn open(&mut self) -> Result<(), Failure> {
        self.shared.sender().await.map(drop)
    }

    async fn exchange(&mut self) -> Result<Answer, Failure> {
        for _ in 1..ATTEMPTS_MAX {
            match self.attempt().await {
                Err(Failure::H2(error)) if !self.is_answered() && is_unseen(&error) => {
                    self.open = None;
                }
                result => return result,
            }
        }
        self.attempt().await
    }

    fn abandon(&mut self) {
        if self.is_answered() {
            self.sockets.streams_cut.update(|count| count + 1);
        }
        self.open = None;
    }

    async fn finish(&mut self) -> Result<(), Failure> {
        match self.kept() {
            Some(open) => open.end().await,
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::h2c::tests::with_a_server_that_leaves;

    #[test]
    fn a_message_is_there_when_all_of_it_is() {
        let message = message(b"hello");
        assert_eq!(&message[..], b"\0\0\0\0\x05hello");
        for cut in 0..message.len() {
            let mut rest = BytesMut::from(&message[..cut]);
            assert!(matches!(next_message(&mut rest), Ok(None)), "{cut}");
            rest.extend_from_slice(&message[cut..]);
            rest.extend_from_slice(b"\0\0");
            assert_eq!(next_message(&mut rest).unwrap().unwrap(), message, "{cut}");
            assert_eq!(&rest[..], b"\0\0");
        }
    }

    #[test]
    fn a_message_that_is_too_long_is_no_echo() {
        let mut rest = BytesMut::from(&b"\0\xff\xff\xff\xff"[..]);
        assert!(matches!(next_message(&mut rest), Err(Failure::NoEcho)));
    }

    /// A stream that was on its way when the server ended the connection is opened on another one,
    /// and nothing is cut.
    #[tokio::test]
    async fn a_stream_that_a_server_that_leaves_has_not_seen_is_opened_again() {
        let exchange = async |sockets: Rc<Sockets>, shared| {
            let request = http::Request::post("http://web/").body(()).unwrap();
            let mut stream = GrpcStream::new(&sockets, shared, Rc::new(request), message(b"hello"));
            let answer = stream.exchange().await.unwrap();
            assert_eq!(answer.body_bytes_in, 5);
            assert_eq!((sockets.streams_opened.get(), sockets.streams_cut.get()), (1, 0));
        };
        with_a_server_that_leaves(exchange, async |connection| {
            let (_, mut respond) = connection.accept().await.unwrap().unwrap();
            let mut send = respond.send_response(http::Response::new(()), false).unwrap();
            send.send_data(message(b"hello"), false).unwrap();
            send
        })
        .await;
    }
}
