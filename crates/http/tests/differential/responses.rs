//! Reads bytes as the response to `GET /` twice, with the codec and with hyper's client.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use ambit_http::h1::framing::{self, Asked, RequestBody, ResponseBody};
use ambit_http::h1::parse::{self, Limits, Parsed, Progress};
use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1;

use super::compare::{Lines, MOST_POLLS, Memory, body, lines, map_lines};

/// A final response that was read whole. The reason is left out: hyper drops what is not ASCII.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    code: u16,
    fields: Lines,
    body: Vec<u8>,
    trailers: Lines,
}

/// Compares; an error is a difference that must not be. Otherwise what we read, `whole`, `partial`
/// or a refusal, and whether hyper read a whole response.
pub(crate) fn compare(input: &[u8]) -> Result<(String, bool), String> {
    let (ours, theirs) = (ours(input), theirs(input));
    match (ours, theirs) {
        (Ok(our), Some(their)) => {
            let mut their_trailers = their.trailers.iter();
            let has_trailers =
                our.trailers.iter().all(|it| their_trailers.any(|other| other == it));
            let same = our.code == their.code
                && our.fields == their.fields
                && our.body == their.body
                && has_trailers;
            let difference = || format!("a response differs\nours:  {our:?}\nhyper: {their:?}");
            if same { Ok(("whole".to_owned(), true)) } else { Err(difference()) }
        }
        (Ok(our), None) => Err(format!("hyper refuses what we accept: {our:?}")),
        (Err(why), theirs) => Ok((why, theirs.is_some())),
    }
}

fn ours(mut input: &[u8]) -> Result<Answer, String> {
    let limits = Limits::default();
    loop {
        let parsed = parse::response(input, &limits, &mut Progress::default());
        let (mut head, used) = match parsed.map_err(|refused| format!("{refused:?}"))? {
            Parsed::Complete { head, used } => (head, used),
            Parsed::Partial => return Err("partial".to_owned()),
        };
        input = &input[used..];
        let fields = lines(&head.fields);
        let framing = framing::response(&mut head, Asked::Other);
        let framing = framing.map_err(|refused| format!("{refused:?}"))?;
        if head.status.code() < 200 {
            continue;
        }
        let framed = match framing.body {
            ResponseBody::Absent { .. } | ResponseBody::Tunnel => RequestBody::Absent,
            ResponseBody::Sized(size) => RequestBody::Sized(size),
            ResponseBody::Chunked => RequestBody::Chunked,
            ResponseBody::UntilClose => RequestBody::Sized(input.len() as u64),
        };
        let read = body(&mut input, framed, limits).map_err(|refused| format!("{refused:?}"))?;
        let (body, trailers) = read.ok_or("partial")?;
        return Ok(Answer { code: head.status.code(), fields, body, trailers });
    }
}

fn theirs(input: &[u8]) -> Option<Answer> {
    let memory = Memory { input: input.to_vec(), at: 0, is_readable: false };
    let mut context = Context::from_waker(Waker::noop());
    let mut handshake = pin!(http1::handshake(memory));
    let Poll::Ready(Ok((mut sender, connection))) = handshake.as_mut().poll(&mut context) else {
        panic!("a handshake has nothing to wait for");
    };
    let request = Request::get("/").header("host", "h").body(Empty::<Bytes>::new());
    let answer = async {
        let response = sender.send_request(request.expect("a request")).await.ok()?;
        let (head, body) = response.into_parts();
        let body = body.collect().await.ok()?;
        let trailers = body.trailers().map(map_lines).unwrap_or_default();
        let (code, fields) = (head.status.as_u16(), map_lines(&head.headers));
        Some(Answer { code, fields, body: body.to_bytes().to_vec(), trailers })
    };
    let (mut answer, mut connection) = (pin!(answer), pin!(connection));
    let mut is_open = true;
    for _ in 0..MOST_POLLS {
        if let Poll::Ready(answer) = answer.as_mut().poll(&mut context) {
            return answer;
        }
        is_open = is_open && connection.as_mut().poll(&mut context).is_pending();
    }
    panic!("hyper comes to an end");
}
