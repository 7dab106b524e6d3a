//! Reads bytes as a connection's requests twice, with the codec and with hyper, and compares.
//!
//! hyper's server runs over a buffer in memory: it reads all bytes, then the end. Each request is
//! answered with 200 and no body, so that it goes on as long as it takes the connection for usable.

use std::cell::RefCell;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use ambit_http::h1::chunks::{Decoder, Piece};
use ambit_http::h1::framing::{self, RequestBody};
use ambit_http::h1::parse::{self, Limits, Parsed, Progress};
use ambit_http::{Fields, Refused, Scheme};
use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::server::conn::http1;
use hyper::{Request, Response};

/// How often hyper is polled; it never has to wait, but yields at times.
pub(crate) const MOST_POLLS: usize = 1000;

/// How both ends took the bytes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// Ours: how many whole requests, and what came then: `end`, `partial`, `switch` or a refusal.
    pub(crate) ours: String,
    /// How many whole requests hyper read.
    pub(crate) hyper: usize,
}

/// A request that was read whole, in a form that both have.
#[derive(Debug, PartialEq, Eq)]
struct Message {
    method: String,
    authority: String,
    path: String,
    fields: Lines,
    body: Vec<u8>,
    trailers: Lines,
}

/// Fields with names in lower case; those of one name keep their order.
pub(crate) type Lines = Vec<(String, Vec<u8>)>;

/// Compares; an error is a difference that must not be.
pub(crate) fn compare(input: &[u8]) -> Result<Verdict, String> {
    let (ours, end) = ours(input);
    let theirs = theirs(input);
    for (number, (our, their)) in ours.iter().zip(&theirs).enumerate() {
        let mut their_trailers = their.trailers.iter();
        // We drop some trailers, hyper none.
        let has_trailers = our.trailers.iter().all(|it| their_trailers.any(|other| other == it));
        // `OPTIONS http://h` is for the server as a whole; hyper shows it with a path.
        let is_whole_server = our.path.is_empty() && our.method == "OPTIONS" && their.path == "/";
        let same = our.method == their.method
            && our.authority == their.authority
            && (our.path == their.path || is_whole_server)
            && our.fields == their.fields
            && our.body == their.body
            && has_trailers;
        if !same {
            return Err(format!("request {number} differs\nours:  {our:?}\nhyper: {their:?}"));
        }
    }
    let verdict = Verdict { ours: format!("{} {end}", ours.len()), hyper: theirs.len() };
    if ours.len() > theirs.len() {
        return Err(format!("hyper refuses what we accept: {verdict:?}"));
    }
    Ok(verdict)
}

/// The whole requests at the front, and what comes behind them.
fn ours(mut input: &[u8]) -> (Vec<Message>, String) {
    let mut messages = Vec::new();
    loop {
        if input.is_empty() {
            return (messages, "end".to_owned());
        }
        let (limits, mut progress) = (Limits::default(), Progress::default());
        let (mut head, used) = match parse::request(input, Scheme::Http, &limits, &mut progress) {
            Ok(Parsed::Complete { head, used }) => (head, used),
            Ok(Parsed::Partial) => return (messages, "partial".to_owned()),
            Err(refused) => return (messages, format!("{refused:?}")),
        };
        input = &input[used..];
        let fields = lines(&head.fields);
        let framing = match framing::request(&mut head) {
            Ok(framing) => framing,
            Err(refused) => return (messages, format!("{refused:?}")),
        };
        let (body, trailers) = match body(&mut input, framing.body, limits) {
            Ok(Some(body)) => body,
            Ok(None) => return (messages, "partial".to_owned()),
            Err(refused) => return (messages, format!("{refused:?}")),
        };
        messages.push(Message {
            method: head.method().as_str().to_owned(),
            authority: head.authority().as_str().to_owned(),
            path: head.path().map_or("", |it| it.as_str()).to_owned(),
            fields,
            body,
            trailers,
        });
        // What follows CONNECT or an upgrade belongs to another protocol.
        if head.method().as_str() == "CONNECT" || framing.upgrade.is_some() {
            return (messages, "switch".to_owned());
        }
        if !framing.is_persistent {
            return (messages, "end".to_owned());
        }
    }
}

/// The body and its trailers; none if it is not whole.
pub(crate) fn body(
    input: &mut &[u8],
    framing: RequestBody,
    limits: Limits,
) -> Result<Option<(Vec<u8>, Lines)>, Refused> {
    match framing {
        RequestBody::Absent => Ok(Some((Vec::new(), Lines::new()))),
        RequestBody::Sized(size) => {
            let size = usize::try_from(size).unwrap_or(usize::MAX);
            let Some((body, rest)) = input.split_at_checked(size) else { return Ok(None) };
            *input = rest;
            Ok(Some((body.to_vec(), Lines::new())))
        }
        RequestBody::Chunked => {
            let (mut decoder, mut data) = (Decoder::new(limits), Vec::new());
            loop {
                let (used, piece) = decoder.decode(input)?;
                *input = &input[used..];
                match piece {
                    Piece::Data(piece) => data.extend_from_slice(piece),
                    Piece::Partial => return Ok(None),
                    Piece::End(trailers) => return Ok(Some((data, lines(&trailers)))),
                }
            }
        }
    }
}

pub(crate) fn lines(fields: &Fields) -> Lines {
    let name = |name: &[u8]| String::from_utf8_lossy(name).to_ascii_lowercase();
    sorted(fields.iter().map(|it| (name(it.name), it.value.to_vec())).collect())
}

fn sorted(mut lines: Lines) -> Lines {
    lines.sort_by(|one, other| one.0.cmp(&other.0));
    lines
}

/// The whole requests that hyper reads.
fn theirs(input: &[u8]) -> Vec<Message> {
    let messages = Rc::new(RefCell::new(Vec::new()));
    let service = hyper::service::service_fn(|request: Request<Incoming>| {
        let messages = messages.clone();
        async move {
            let (head, body) = request.into_parts();
            if let Ok(body) = body.collect().await {
                let trailers = body.trailers().map(map_lines).unwrap_or_default();
                let body = body.to_bytes().to_vec();
                messages.borrow_mut().push(their_message(&head, body, trailers));
            }
            Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
        }
    });
    let memory = Memory { input: input.to_vec(), at: 0, is_readable: true };
    let connection = http1::Builder::new()
        .half_close(true)
        .header_read_timeout(None)
        .serve_connection(memory, service);
    let mut connection = pin!(connection);
    let mut context = Context::from_waker(Waker::noop());
    let mut polls = 0..MOST_POLLS;
    while polls.next().is_some() && connection.as_mut().poll(&mut context).is_pending() {}
    assert!(polls.next().is_some(), "hyper comes to an end");
    messages.take()
}

fn their_message(head: &hyper::http::request::Parts, body: Vec<u8>, trailers: Lines) -> Message {
    let (uri, mut fields) = (&head.uri, map_lines(&head.headers));
    let host = fields.iter().find(|(name, _)| name == "host");
    let host = host.map(|(_, value)| String::from_utf8_lossy(value).into_owned());
    // An absolute target comes before Host (RFC 9112, 3.2.2).
    let authority = uri.authority().map(|it| it.as_str().to_owned()).or(host);
    fields.retain(|(name, _)| name != "host");
    let path = match uri.query() {
        _ if uri.path() == "*" => String::new(),
        _ if head.method == hyper::Method::CONNECT => String::new(),
        Some(query) => format!("{}?{query}", uri.path()),
        None => uri.path().to_owned(),
    };
    Message {
        method: head.method.as_str().to_owned(),
        authority: authority.unwrap_or_default(),
        path,
        fields,
        body,
        trailers,
    }
}

pub(crate) fn map_lines(map: &hyper::HeaderMap) -> Lines {
    let line = |(name, value): (&hyper::header::HeaderName, &hyper::header::HeaderValue)| {
        (name.as_str().to_owned(), value.as_bytes().to_vec())
    };
    sorted(map.iter().map(line).collect())
}

/// A connection whose bytes are all there; what is written to it is forgotten.
pub(crate) struct Memory {
    pub(crate) input: Vec<u8>,
    pub(crate) at: usize,
    /// A server's bytes come once something is written.
    pub(crate) is_readable: bool,
}

impl Read for Memory {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        mut buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.is_readable {
            return Poll::Pending;
        }
        let rest = &self.input[self.at..];
        let length = rest.len().min(buffer.remaining());
        buffer.put_slice(&rest[..length]);
        self.at += length;
        Poll::Ready(Ok(()))
    }
}

impl Write for Memory {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.is_readable = true;
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
