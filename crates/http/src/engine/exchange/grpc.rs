//! gRPC with one question and one answer, as services of the mesh are asked about a request.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};

use super::call::Called;
use crate::authority::Authority;
use crate::engine::piece::grpc_status;
use crate::fields::{FieldLimits, Fields};
use crate::head::{Method, RequestHead, Target, Version};
use crate::path::Path;
use crate::refused::Refused;

/// A frame of gRPC: whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;
/// Longest text of a service that is repeated in a log.
const MAX_MESSAGE_BYTES: usize = 200;
/// Fields of a request that the question about it has too, so that traces go on.
const PASSED_ON: [&str; 3] = ["traceparent", "tracestate", "x-request-id"];

/// Why an answer is none.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unclear {
    /// A status that is none of an answer.
    #[error("it answers {0}")]
    Status(u16),
    /// A call that has failed.
    #[error("its call ends with status {status} of gRPC: {message}")]
    Failed {
        /// The status.
        status: u32,
        /// What the service says of it.
        message: String,
    },
    /// No call of gRPC.
    #[error("it answers no single message of gRPC")]
    NoMessage,
}

impl Unclear {
    /// Whether the service has not answered. An answer that cannot be used is a mistake that must
    /// be seen.
    pub(super) fn is_silence(&self) -> bool {
        match self {
            Self::Status(_) | Self::Failed { .. } => true,
            Self::NoMessage => false,
        }
    }
}

/// A question about a request: its head, and its body.
pub(super) fn question(
    (host, path): (&str, &str),
    about: &RequestHead,
    message: &[u8],
) -> Result<(RequestHead, Bytes), Refused> {
    let mut framed = BytesMut::with_capacity(PREFIX_BYTES + message.len());
    framed.put_u8(0);
    framed.put_u32(u32::try_from(message.len()).map_err(|_| Refused::HeadTooLarge)?);
    framed.put_slice(message);
    let mut fields = Fields::new(FieldLimits::default());
    for (name, value) in [("content-type", "application/grpc"), ("te", "trailers")] {
        fields.append(name, value.as_bytes()).map_err(|_| Refused::HeadTooLarge)?;
    }
    for name in PASSED_ON {
        if let Some(value) = about.fields.first(name) {
            fields.append(name, value).map_err(|_| Refused::HeadTooLarge)?;
        }
    }
    let (host, path) = (Authority::parse(host.as_bytes())?, Path::parse(path.as_bytes())?);
    let target = Target::Origin { path, host };
    let head = RequestHead::new(Method::parse("POST")?, target, Version::Http11, fields)?;
    Ok((head, framed.freeze()))
}

/// The message of an answer.
pub(super) fn answer(called: &Called) -> Result<Bytes, Unclear> {
    let status = called.head.status.code();
    if status != 200 {
        return Err(Unclear::Status(status));
    }
    // Without a message, the trailers are the head.
    let last = called.trailers.as_ref().unwrap_or(&called.head.fields);
    let status = grpc_status(last);
    if let Some(status @ 1..) = status {
        let message = last.first("grpc-message").unwrap_or_default();
        let mut message = String::from_utf8_lossy(message).into_owned();
        message.truncate(message.floor_char_boundary(MAX_MESSAGE_BYTES));
        return Err(Unclear::Failed { status, message });
    }
    let mut body = called.body.clone();
    if status.is_none() || body.len() < PREFIX_BYTES || body.get_u8() != 0 {
        return Err(Unclear::NoMessage);
    }
    match body.get_u32() as usize == body.len() {
        true => Ok(body),
        false => Err(Unclear::NoMessage),
    }
}
