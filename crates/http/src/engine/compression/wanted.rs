//! Which responses are compressed, and what that changes of their heads.
//!
//! A response says itself what may be done with it. One that is compressed is another
//! representation of the same thing (RFC 9110, 8.8.3.3): caches must tell it from the plain one,
//! and no tag of the plain one's bytes is one of its bytes.

use std::sync::Arc;

use ambit_model::http::compression::{Coding, Compression};

use super::accepted;
use super::encoder::Encoder;
use super::room::Room;
use crate::fields::{FieldError, Fields, known::Known};
use crate::grammar;
use crate::h1::framing::ResponseBody;
use crate::head::{RequestHead, ResponseHead};

/// Fields that say something of the bytes of a plain body, or offer parts of it.
pub(super) const OF_PLAIN_BYTES: [&str; 5] =
    ["accept-ranges", "content-digest", "content-md5", "digest", "repr-digest"];

/// What holds for the response to one request.
pub(crate) struct Wanted {
    compression: Arc<Compression>,
    /// What the client accepts.
    coding: Option<Coding>,
}

impl Wanted {
    /// For a request as its client has sent it: what routes change of it is for endpoints.
    pub(crate) fn of(compression: &Arc<Compression>, head: &RequestHead) -> Self {
        let may_transform = !head.method().is_head() && !is_whole(&head.fields);
        let coding = accepted::best(&head.fields, &compression.codings);
        Self { compression: compression.clone(), coding: coding.filter(|_| may_transform) }
    }

    /// Decides whether a response is compressed, and changes its head then; `asked` are the fields
    /// of its request.
    pub(crate) fn decide(
        &self,
        asked: &Fields,
        head: &mut ResponseHead,
        body: ResponseBody,
        room: &Arc<Room>,
    ) -> Option<Box<Encoder>> {
        if head.status.code() == 304 {
            self.weaken_as_asked(asked, &mut head.fields);
            return None;
        }
        if !self.is_eligible(head, body) {
            return None;
        }
        let has_body = !matches!(body, ResponseBody::Absent { .. });
        let encoder = self.coding.filter(|_| has_body).and_then(|it| Encoder::new(it, room));
        let mut fields = head.fields.clone();
        let changed = match &encoder {
            Some(encoder) => encode(&mut fields, encoder.coding()),
            None => vary(&mut fields),
        };
        // A head that takes no more fields is sent as it is.
        changed.ok()?;
        head.fields = fields;
        encoder.map(Box::new)
    }

    fn is_eligible(&self, head: &ResponseHead, body: ResponseBody) -> bool {
        let fields = &head.fields;
        let is_large = match body {
            ResponseBody::Sized(size) | ResponseBody::Absent { length: Some(size) } => {
                size >= self.compression.min_bytes.max(1)
            }
            ResponseBody::Chunked
            | ResponseBody::UntilClose
            | ResponseBody::Absent { length: None } => true,
            ResponseBody::Tunnel => false,
        };
        let is_of_type = |it: &[u8]| !is_grpc(it) && self.compression.is_for(it);
        is_large
            && !self.compression.codings.is_empty()
            // A part of a body is no body; and of 204 and 205 there is none.
            && !matches!(head.status.code(), ..200 | 204..=206)
            && fields.first(Known::ContentRange).is_none()
            && fields.first(Known::ContentEncoding).is_none()
            && fields.first(Known::ContentType).is_some_and(is_of_type)
            && !is_whole(fields)
    }

    /// A client that has a compressed response asks whether it is still good by the weak form of
    /// its tag, and must be answered with that.
    fn weaken_as_asked(&self, asked: &Fields, fields: &mut Fields) {
        let Some(weak) = fields.first("etag").and_then(weak) else { return };
        let mut tags = asked.all(Known::IfNoneMatch);
        if self.compression.codings.is_empty()
            || !tags.any(|it| memchr::memmem::find(it, &weak).is_some())
        {
            return;
        }
        if fields.set("etag", &weak).and_then(|()| vary(fields)).is_err() {
            tracing::debug!("fields of a response that has not changed are left out");
        }
    }
}

/// Whether a message asks for its body to be left as it is (RFC 9110, 7.7).
fn is_whole(fields: &Fields) -> bool {
    let mut directives = fields.all(Known::CacheControl).flat_map(grammar::members);
    directives.any(|it| it.eq_ignore_ascii_case(b"no-transform"))
}

/// gRPC compresses its messages itself.
fn is_grpc(content_type: &[u8]) -> bool {
    const GRPC: &[u8] = b"application/grpc";
    content_type.get(..GRPC.len()).is_some_and(|it| it.eq_ignore_ascii_case(GRPC))
}

/// Makes the head of a response that of its compressed form.
fn encode(fields: &mut Fields, coding: Coding) -> Result<(), FieldError> {
    fields.remove(Known::ContentLength);
    for name in OF_PLAIN_BYTES {
        fields.remove(name);
    }
    fields.set(Known::ContentEncoding, coding.name().as_bytes())?;
    match fields.first("etag") {
        None => {}
        Some(tag) if tag.starts_with(b"W/") => {}
        Some(tag) => match weak(tag) {
            Some(weak) => fields.set("etag", &weak)?,
            None => _ = fields.remove("etag"),
        },
    }
    vary(fields)
}

/// The weak form of a strong tag; `None` if it is no such tag.
fn weak(tag: &[u8]) -> Option<Vec<u8>> {
    (tag.len() > 1 && tag.starts_with(b"\"") && tag.ends_with(b"\"")).then(|| [b"W/", tag].concat())
}

/// Tells caches that the response depends on what the client accepts.
fn vary(fields: &mut Fields) -> Result<(), FieldError> {
    let is_it = |it: &[u8]| it == b"*" || it.eq_ignore_ascii_case(b"accept-encoding");
    if fields.all(Known::Vary).flat_map(grammar::members).any(is_it) {
        return Ok(());
    }
    fields.append(Known::Vary, b"Accept-Encoding")
}

#[cfg(test)]
mod tests;
