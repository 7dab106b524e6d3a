//! Bidirectional streaming calls, message by message.
//!
//! tonic's own streams keep the buffer of their largest message for as long as they live. A
//! discovery stream lives for ever, and its first message is the whole view, so both ends would
//! keep that much memory. Here each message has its own buffer, which is freed with it. Messages
//! are never compressed. Nothing here interprets a message.
//!
//! On the wire (gRPC over HTTP/2): a message is one byte that says whether it is compressed, its
//! length in four bytes, big-endian, and its protobuf. Messages need not start or end at the bounds
//! of a DATA frame. The status of a call is in the trailers (`grpc-status`, `grpc-message`), or in
//! the headers if there was no message at all. Both sides may send at any time.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures::stream::{self, Stream};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Method, Uri, Version, header};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use prost::encoding::{DecodeContext, decode_key, skip_field};
use prost::{DecodeError, Message};
use tokio::sync::mpsc;
use tonic::Status;
use tonic::body::Body;
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;
use tower::{Service as _, ServiceExt as _};

/// A byte for "not compressed", and the length.
const PREFIX_BYTES: usize = 5;
const GRPC_TYPE: &str = "application/grpc";
const GRPC: HeaderValue = HeaderValue::from_static(GRPC_TYPE);
const ENCODING: &str = "grpc-encoding";
const IDENTITY: &str = "identity";
const STATUS_DETAILS: &str = "grpc-status-details-bin";
/// The most that is reserved because a length announces it; the rest as it comes.
const TRUSTED_BYTES: usize = 8 << 20;

/// Most bytes of the messages in a message whose elements are not counted.
pub(crate) const NESTED_BYTES_MAX: usize = 64 << 10;

/// The messages of one direction, as they arrive. Cancel safe: a caller that stops waiting loses
/// nothing.
#[derive(Debug)]
pub struct Messages {
    body: Body,
    /// What came of the next message; its prefix is gone once its length is known.
    buffer: BytesMut,
    /// The rest of the last piece that came.
    piece: Bytes,
    length: Option<usize>,
    limit: Limit,
    /// The other side has still to say how the call ended.
    owes_status: bool,
}

/// What one message may take.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// Its bytes.
    pub bytes: usize,
    /// Most fields and elements of repeated fields: each takes memory, however few its bytes are.
    /// Those of nested messages do not count.
    pub fields: usize,
    /// Numbers of the fields that are messages with elements of their own: all of them together
    /// take at most `NESTED_BYTES_MAX`.
    pub nested: &'static [u32],
}

impl Messages {
    /// Reads the body of a request with these headers. The error, which the caller should send to
    /// the client, is that messages are compressed.
    pub fn of_request(headers: &HeaderMap, body: Body, limit: Limit) -> Result<Self, Status> {
        match headers.get(ENCODING) {
            Some(encoding) if encoding != IDENTITY => {
                Err(Status::unimplemented("messages must not be compressed"))
            }
            _ => {
                let (buffer, piece) = (BytesMut::new(), Bytes::new());
                Ok(Self { body, buffer, piece, length: None, limit, owes_status: false })
            }
        }
    }

    /// Reads the body of a response with these headers, which may already hold the status of the
    /// call.
    pub fn of_response(headers: &HeaderMap, body: Body, limit: Limit) -> Result<Self, Status> {
        let it = Self::of_request(headers, body, limit)?;
        Ok(Self { owes_status: !headers.contains_key(Status::GRPC_STATUS), ..it })
    }

    /// The next message; none when the other side has ended the call without an error.
    ///
    /// Fails with the status in the other side's trailers, with `UNKNOWN` when a response ends
    /// without a status, with `INTERNAL` when a message is not of its type or the body ends within
    /// one, with `OUT_OF_RANGE` when it is over the limit. After an error nothing more can be read.
    /// A message may share its buffer with its fields (`Bytes`).
    pub async fn next<M: Message + Default>(&mut self) -> Result<Option<M>, Status> {
        let Some(message) = self.next_bytes().await? else { return Ok(None) };
        let broken = |error| Status::internal(format!("a message cannot be decoded: {error}"));
        if let Some(excess) = excess(&message, self.limit).map_err(broken)? {
            return Err(Status::out_of_range(excess));
        }
        M::decode(message).map(Some).map_err(broken)
    }

    async fn next_bytes(&mut self) -> Result<Option<Bytes>, Status> {
        loop {
            if let Some(message) = self.assemble()? {
                return Ok(Some(message));
            }
            let Some(frame) = self.body.frame().await.transpose()? else { return self.ended() };
            match frame.into_data() {
                Ok(data) => self.piece = data,
                Err(frame) => {
                    let told = frame.trailers_ref().and_then(told_status);
                    self.owes_status &= told.is_none();
                    if let Some(status) = told.filter(|it| it.code() != tonic::Code::Ok) {
                        return Err(status);
                    }
                }
            }
        }
    }

    /// Moves what came into the message; answers it once it is whole.
    fn assemble(&mut self) -> Result<Option<Bytes>, Status> {
        if self.length.is_none() {
            self.fill(PREFIX_BYTES);
            if self.buffer.len() < PREFIX_BYTES {
                return Ok(None);
            }
            if self.buffer.get_u8() != 0 {
                return Err(Status::unimplemented("messages must not be compressed"));
            }
            let length = usize::try_from(self.buffer.get_u32()).unwrap_or(usize::MAX);
            let limit = self.limit.bytes;
            if length > limit {
                let what = format!("a message of {length} bytes; {limit} is the limit");
                return Err(Status::out_of_range(what));
            }
            self.buffer = BytesMut::with_capacity(length.min(TRUSTED_BYTES));
            self.length = Some(length);
        }
        let length = self.length.unwrap_or_default();
        self.fill(length);
        if self.buffer.len() < length {
            return Ok(None);
        }
        self.length = None;
        Ok(Some(std::mem::take(&mut self.buffer).freeze()))
    }

    /// Fills the buffer up to this length, as far as the piece goes.
    fn fill(&mut self, length: usize) {
        let missing = length.saturating_sub(self.buffer.len()).min(self.piece.len());
        self.buffer.extend_from_slice(&self.piece.split_to(missing));
    }

    /// A body may end between two messages, not within one.
    fn ended(&self) -> Result<Option<Bytes>, Status> {
        if self.length.is_some() || !self.buffer.is_empty() {
            return Err(Status::internal("the stream ended within a message"));
        }
        match self.owes_status {
            true => Err(Status::unknown("the stream ended without a status")),
            false => Ok(None),
        }
    }
}

/// What a message has more of than it may. Reads no further than there.
fn excess(mut message: &[u8], limit: Limit) -> Result<Option<String>, DecodeError> {
    let (mut fields, mut nested) = (0, 0);
    while !message.is_empty() {
        fields += 1;
        if fields > limit.fields {
            let what =
                format!("a message of more than {} fields, which is the limit", limit.fields);
            return Ok(Some(what));
        }
        let before = message.len();
        let (number, wire_type) = decode_key(&mut message)?;
        skip_field(wire_type, number, &mut message, DecodeContext::default())?;
        if limit.nested.contains(&number) {
            nested += before - message.len();
        }
        if nested > NESTED_BYTES_MAX {
            let what = format!("more than {NESTED_BYTES_MAX} bytes in fields {:?}", limit.nested);
            return Ok(Some(what));
        }
    }
    Ok(None)
}

/// One message as it goes into the connection.
pub fn framed(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut frame = BytesMut::with_capacity(PREFIX_BYTES + length);
    frame.put_u8(0);
    frame.put_u32(u32::try_from(length).expect("messages are far below 4 GiB"));
    message.encode(&mut frame).expect("there is room for it");
    frame.freeze()
}

/// Begins a call: sends the messages of `requests` until it is closed, and returns the messages
/// that follow the response headers. The path is `/package.Service/Method`.
///
/// Returns when the server's headers have arrived, which some servers send only with their first
/// message: what they must answer has to be in `requests` by then. Fails with the server's status,
/// or `UNAVAILABLE` when what answers is no gRPC server.
pub async fn call<M: Message + 'static>(
    mut channel: Channel,
    path: &'static str,
    metadata: MetadataMap,
    requests: mpsc::Receiver<M>,
    limit: Limit,
) -> Result<(HeaderMap, Messages), Status> {
    let mut request = http::Request::new(Body::new(StreamBody::new(frames(requests))));
    *request.method_mut() = Method::POST;
    *request.version_mut() = Version::HTTP_2;
    // The channel adds the authority.
    *request.uri_mut() = Uri::from(PathAndQuery::from_static(path));
    *request.headers_mut() = metadata.into_headers();
    request.headers_mut().insert(header::TE, HeaderValue::from_static("trailers"));
    request.headers_mut().insert(header::CONTENT_TYPE, GRPC);
    let broken = |error: tonic::transport::Error| Status::from_error(error.into());
    let response = channel.ready().await.map_err(broken)?.call(request).await.map_err(broken)?;
    let (parts, body) = response.into_parts();
    if let Some(status) = told_status(&parts.headers)
        && status.code() != tonic::Code::Ok
    {
        return Err(status);
    }
    let kind = parts.headers.get(header::CONTENT_TYPE).and_then(|it| it.to_str().ok());
    if !parts.status.is_success() || !kind.is_some_and(|kind| kind.starts_with(GRPC_TYPE)) {
        let kind = kind.unwrap_or("nothing");
        let what = format!("the server answers HTTP {} with {kind}, not gRPC", parts.status);
        return Err(Status::unavailable(what));
    }
    let messages = Messages::of_response(&parts.headers, body, limit)?;
    Ok((parts.headers, messages))
}

/// A response: messages as they come, then how the call ended. A closed channel ends it well, an
/// error in it ends it with that status; nothing after an error is sent.
pub fn response<M: Message + 'static>(
    responses: mpsc::Receiver<Result<M, Status>>,
) -> http::Response<Body> {
    let frames = stream::unfold(Some(responses), |responses| async {
        let mut responses = responses?;
        let (frame, rest) = match responses.recv().await {
            Some(Ok(response)) => (Frame::data(framed(&response)), Some(responses)),
            Some(Err(status)) => (Frame::trailers(trailers(&status)), None),
            None => (Frame::trailers(trailers(&Status::ok(""))), None),
        };
        Some((Ok::<_, Status>(frame), rest))
    });
    let mut response = http::Response::new(Body::new(StreamBody::new(frames)));
    response.headers_mut().insert(header::CONTENT_TYPE, GRPC);
    response
}

fn frames<M: Message + 'static>(
    requests: mpsc::Receiver<M>,
) -> impl Stream<Item = Result<Frame<Bytes>, Status>> + Send {
    stream::unfold(requests, |mut requests| async {
        let request = requests.recv().await?;
        Some((Ok(Frame::data(framed(&request))), requests))
    })
}

/// How the other side says that the call ended, if it does; its details, which nobody reads, are
/// left out: tonic panics over those that are not base64.
fn told_status(headers: &HeaderMap) -> Option<Status> {
    let mut headers = headers.clone();
    headers.remove(STATUS_DETAILS);
    Status::from_header_map(&headers)
}

fn trailers(status: &Status) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    match status.add_header(&mut trailers) {
        Ok(()) => trailers,
        Err(error) => {
            // A message that no header can carry; the code says enough.
            let mut trailers = HeaderMap::new();
            trailers.insert(Status::GRPC_STATUS, (error.code() as i32).into());
            trailers
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(body: Body, bytes: usize) -> Messages {
        let limit = Limit { bytes, fields: 10, nested: &[] };
        Messages::of_request(&HeaderMap::new(), body, limit).expect("plain")
    }

    fn body(bytes: &[u8], piece: usize) -> Body {
        let pieces: Vec<_> = bytes.chunks(piece).map(Bytes::copy_from_slice).collect();
        let frames = pieces.into_iter().map(|it| Ok::<_, Status>(Frame::data(it)));
        Body::new(StreamBody::new(stream::iter(frames)))
    }

    #[tokio::test]
    async fn messages_come_out_as_they_went_in_however_they_were_cut() {
        // To prost a string is a message with one field.
        let sent = ["", "one", "a second, longer one", ""].map(str::to_owned);
        let bytes: Vec<u8> = sent.iter().flat_map(framed).collect();
        for piece in 1..=bytes.len() {
            let body = body(&bytes, piece);
            let mut messages = request(body, 100);
            for expected in &sent {
                assert_eq!(messages.next::<String>().await.unwrap().as_ref(), Some(expected));
            }
            assert_eq!(messages.next::<String>().await.unwrap(), None);
        }
    }

    #[tokio::test]
    async fn what_is_no_message_is_an_error() {
        let framed = framed(&"twelve bytes".to_owned());
        let compressed: Vec<u8> = [&[1], &framed[1..]].concat();
        let undecodable = [0, 0, 0, 0, 1, 0xff];
        let cases: [(&[u8], usize, &str); 5] = [
            (&framed[..framed.len() - 1], 100, "within a message"),
            (&framed[..3], 100, "within a message"),
            (&framed, 13, "14 bytes; 13 is the limit"),
            (&compressed, 100, "compressed"),
            (&undecodable, 100, "cannot be decoded"),
        ];
        for (bytes, limit, expected) in cases {
            let error = request(body(bytes, 4), limit).next::<String>().await.expect_err(expected);
            assert!(error.message().contains(expected), "{error}");
        }
        let mut headers = HeaderMap::new();
        headers.insert(ENCODING, HeaderValue::from_static("gzip"));
        let limit = Limit { bytes: 100, fields: 10, nested: &[] };
        assert!(Messages::of_request(&headers, body(&framed, 4), limit).is_err());
    }

    #[tokio::test]
    async fn the_end_of_a_call_says_how_it_ended() {
        for status in [Status::ok(""), Status::aborted("because\nof this")] {
            let (sender, receiver) = mpsc::channel(2);
            sender.send(Ok("first".to_owned())).await.expect("open");
            if status.code() != tonic::Code::Ok {
                sender.send(Err(status.clone())).await.expect("open");
            }
            drop(sender);
            let (parts, body) = response(receiver).into_parts();
            let limit = Limit { bytes: 100, fields: 10, nested: &[] };
            let mut messages = Messages::of_response(&parts.headers, body, limit).expect("plain");
            assert_eq!(messages.next::<String>().await.unwrap(), Some("first".to_owned()));
            match messages.next::<String>().await {
                Ok(end) => assert_eq!((end, status.code()), (None, tonic::Code::Ok)),
                Err(error) => {
                    assert_eq!((error.code(), error.message()), (status.code(), status.message()));
                }
            }
        }
    }

    #[tokio::test]
    async fn an_end_with_broken_details_is_an_end() {
        for code in [tonic::Code::Ok, tonic::Code::Aborted] {
            let mut trailers = trailers(&Status::new(code, ""));
            trailers.append(STATUS_DETAILS, HeaderValue::from_static("no base64"));
            let frame = Ok::<_, Status>(Frame::trailers(trailers));
            let body = Body::new(StreamBody::new(stream::iter([frame])));
            let end = request(body, 100).next::<String>().await;
            assert_eq!(end.map_or_else(|error| error.code(), |_| tonic::Code::Ok), code);
        }
    }

    #[tokio::test]
    async fn a_response_that_is_cut_off_has_not_ended_well() {
        let framed = framed(&"first".to_owned());
        let limit = Limit { bytes: 100, fields: 10, nested: &[] };
        let response = |headers| Messages::of_response(&headers, body(&framed, 4), limit);
        let mut cut = response(HeaderMap::new()).expect("plain");
        assert_eq!(cut.next::<String>().await.unwrap(), Some("first".to_owned()));
        let error = cut.next::<String>().await.expect_err("nobody said how it ended");
        assert_eq!(error.code(), tonic::Code::Unknown);
        let told =
            HeaderMap::from_iter([(header::HeaderName::from_static("grpc-status"), 0.into())]);
        let mut told = response(told).expect("plain");
        told.next::<String>().await.unwrap();
        assert_eq!(told.next::<String>().await.unwrap(), None);
    }

    #[test]
    fn fields_are_counted_before_they_take_memory() {
        let fields = [&b"\x0a\x00"[..], b"\x10\x05", b"\x2a\x02ab"].concat();
        let limit = |fields| Limit { bytes: 100, fields, nested: &[7] };
        for (fields_max, expected) in [(2, true), (3, false), (4, false)] {
            let excess = excess(&fields, limit(fields_max)).map(|excess| excess.is_some());
            assert_eq!(excess, Ok(expected), "{fields_max}");
        }
        assert!(excess(&fields[..3], limit(5)).is_err(), "cut off");
        // Field 7, twice as often as fits: parts of one message add up to it.
        let part = [&b"\x3a\xff\x7f"[..], &[0; 0x3fff]].concat();
        for (parts, expected) in [(3, false), (5, true)] {
            let excess = excess(&part.repeat(parts), limit(10)).map(|excess| excess.is_some());
            assert_eq!(excess, Ok(expected), "{parts}");
        }
    }
}
