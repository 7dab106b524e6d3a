//! One question to an endpoint, which shows whether it is well.
//!
//! It goes the way of requests, over a connection that a position has opened, and is nobody's
//! request: no route, no policy, no record.

use ambit_model::http::health::Probe;
use ambit_words::names::GRPC_HEALTH_CHECK;
use bytes::{BufMut as _, Bytes, BytesMut};

use crate::authority::Authority;
use crate::engine::halves::BoxStream;
use crate::engine::piece::{Broken, Piece, grpc_status};
use crate::engine::position::Version;
use crate::engine::upstream::heard::Heard;
use crate::engine::upstream::{h1, h2};

use crate::fields::Fields;
use crate::h1::framing::{RequestBody, RequestFraming};
use crate::h1::parse::Limits;
use crate::head::{Method, RequestHead, Target, Version as Written};
use crate::path::Path;
use crate::refused::Refused;

/// What a probe calls itself.
const USER_AGENT: &[u8] = b"ambit-health-check";
/// How much of an answer of gRPC is read: a status in a message.
const GRPC_BYTES_MAX: usize = 1024;
/// The message of one that serves: field 1 is `SERVING`.
const SERVING: [u8; 2] = [0x08, 1];

/// Why an endpoint is not well.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// What is to be asked is no request.
    #[error("the check is no request")]
    Request(#[source] Refused),
    /// There was no answer.
    #[error("it did not answer")]
    Broken(#[from] Broken),
    /// It has answered something else.
    #[error("it has answered {0}")]
    Status(u16),
    /// It speaks gRPC, and has answered with an error.
    #[error("it has answered with the gRPC status {0}")]
    GrpcStatus(u32),
    /// It says that it does not serve.
    #[error("it says that it does not serve")]
    NotServing,
}

/// Asks an endpoint. `host` is the service's; `version` is what its port speaks. The caller limits
/// the time.
pub async fn probe(
    stream: BoxStream,
    probe: &Probe,
    host: &str,
    version: Version,
    limits: Limits,
) -> Result<(), ProbeError> {
    match (probe, version) {
        // That there is a connection is the answer.
        (Probe::Tcp, _) => Ok(()),
        (Probe::Http { path, host: other, statuses }, version) => {
            let host = other.as_deref().unwrap_or(host);
            let head = head("GET", path, host, limits).map_err(ProbeError::Request)?;
            let status = match version {
                Version::Http1 => over_http1(stream, &head, limits).await?,
                Version::Http2 => over_http2(stream, &head, None, limits).await?.0,
            };
            let is_expected = match &statuses[..] {
                [] => status == 200,
                all => all.iter().any(|(from, to)| (*from..=*to).contains(&status)),
            };
            if is_expected { Ok(()) } else { Err(ProbeError::Status(status)) }
        }
        (Probe::Grpc { service }, _) => {
            let mut head =
                head("POST", GRPC_HEALTH_CHECK, host, limits).map_err(ProbeError::Request)?;
            for (name, value) in [("content-type", "application/grpc"), ("te", "trailers")] {
                let put = head.fields.append(name, value.as_bytes());
                put.map_err(|_| ProbeError::Request(Refused::HeadTooLarge))?;
            }
            let asked = Some(question(service));
            let (status, grpc, message) = over_http2(stream, &head, asked, limits).await?;
            match (status, grpc) {
                (200, Some(0)) if message.get(5..7) == Some(&SERVING[..]) => Ok(()),
                (200, None | Some(0)) => Err(ProbeError::NotServing),
                (200, Some(grpc)) => Err(ProbeError::GrpcStatus(grpc)),
                (status, _) => Err(ProbeError::Status(status)),
            }
        }
    }
}

fn head(method: &str, path: &str, host: &str, limits: Limits) -> Result<RequestHead, Refused> {
    let (path, host) = (Path::parse(path.as_bytes())?, Authority::parse(host.as_bytes())?);
    let mut fields = Fields::new(limits.fields);
    fields.append("user-agent", USER_AGENT).map_err(|_| Refused::HeadTooLarge)?;
    let target = Target::Origin { path, host };
    RequestHead::new(Method::parse(method)?, target, Written::Http11, fields)
}

async fn over_http1(stream: BoxStream, head: &RequestHead, limits: Limits) -> Result<u16, Broken> {
    let mut connection = h1::Connection::new(stream, limits, None);
    let framing = RequestFraming {
        body: RequestBody::Absent,
        is_persistent: false,
        expects_continue: false,
        upgrade: None,
    };
    connection.send(head, &framing);
    let (outbox, mut reading) = connection.sides();
    outbox.flush().await?;
    loop {
        if let Heard::Final(head, _) = reading.head().await? {
            return Ok(head.status.code());
        }
    }
}

/// Status, that of gRPC, and the first bytes of the body.
type Answered = (u16, Option<u32>, Vec<u8>);

async fn over_http2(
    stream: BoxStream,
    head: &RequestHead,
    body: Option<Bytes>,
    limits: Limits,
) -> Result<Answered, Broken> {
    let mut builder = ::h2::client::Builder::new();
    builder.enable_push(false).max_header_list_size(limits.fields.bytes);
    let (sender, connection) = builder.handshake::<_, Bytes>(stream).await?;
    let asking = async {
        let mut sender = sender.ready().await?;
        let opened = h2::open(&mut sender, head, "http", body.is_some(), limits.fields);
        let (mut sending, mut reading) = opened?;
        if let Some(body) = body {
            sending.put(body);
            sending.finish(None);
            sending.flush().await?;
        }
        let head = loop {
            if let Heard::Final(head, _) = reading.head().await? {
                break head;
            }
        };
        let (mut grpc, mut message) = (grpc_status(&head.fields), Vec::new());
        while let Some(piece) = reading.piece().await? {
            match piece {
                Piece::Data(data) if message.len() + data.len() > GRPC_BYTES_MAX => break,
                Piece::Data(data) => message.extend_from_slice(&data),
                Piece::Trailers(fields) => grpc = grpc.or(grpc_status(&fields)),
            }
        }
        Ok((head.status.code(), grpc, message))
    };
    tokio::select! {
        biased;
        answered = asking => answered,
        ended = connection => {
            ended?;
            Err(Broken::Closed)
        }
    }
}

/// A message of gRPC that asks about a service: its name is field 1.
fn question(service: &str) -> Bytes {
    let mut message = BytesMut::new();
    if !service.is_empty() {
        message.put_u8(0x0a);
        let mut length = service.len();
        while length >= 0x80 {
            message.put_u8((length & 0x7f) as u8 | 0x80);
            length >>= 7;
        }
        message.put_u8(length as u8);
        message.put_slice(service.as_bytes());
    }
    let mut framed = BytesMut::with_capacity(5 + message.len());
    framed.put_u8(0);
    framed.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    framed.extend_from_slice(&message);
    framed.freeze()
}
