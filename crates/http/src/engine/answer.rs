//! Answers that the proxy itself gives.

use std::borrow::Cow;

use bytes::Bytes;

use crate::engine::record::Flags;
use crate::fields::{FieldLimits, Fields, known::Known};
use crate::head::{Reason, ResponseHead, Status, Version};

/// An answer, and why.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Cow<'static, str>,
    pub(crate) fields: Vec<(&'static str, String)>,
    /// Fields and body of somebody else's, which are sent as they are.
    message: Option<Box<(Fields, Bytes)>>,
    /// The status of gRPC, where it does not follow from that of HTTP.
    pub(crate) grpc_status: Option<u32>,
    pub(crate) flags: Flags,
    pub(crate) reason: &'static str,
    pub(crate) details: String,
}

impl Answer {
    /// An answer whose body is empty.
    pub(crate) fn new(status: u16, flags: Flags, reason: &'static str, details: String) -> Self {
        Self {
            status,
            body: Cow::Borrowed(""),
            fields: Vec::new(),
            message: None,
            grpc_status: None,
            flags,
            reason,
            details,
        }
    }

    /// With a body of plain text.
    pub(crate) fn with_body(mut self, body: impl Into<Cow<'static, str>>) -> Self {
        self.body = body.into();
        self
    }

    /// With fields and a body of somebody else's.
    pub(crate) fn with_message(mut self, fields: Fields, body: Bytes) -> Self {
        self.message = Some(Box::new((fields, body)));
        self
    }

    /// With one more field.
    pub(crate) fn with_field(mut self, name: &'static str, value: String) -> Self {
        self.fields.push((name, value));
        self
    }

    /// Head and body. A client of gRPC is told by its own status, in a head that is also the end,
    /// and no more than one of HTTP: the details are for the log.
    pub(crate) fn message(&self, is_grpc: bool, says_why: bool) -> (ResponseHead, Bytes) {
        let (mut fields, given) = match &self.message {
            Some(message) => (message.0.clone(), message.1.clone()),
            None => (Fields::new(FieldLimits::default()), Bytes::new()),
        };
        // It speaks of a body that a client of gRPC is not sent.
        if is_grpc {
            fields.remove(Known::ContentType);
            fields.remove(Known::ContentEncoding);
        }
        let has_type = fields.first(Known::ContentType).is_some();
        let mut put = |name: &str, value: &str| {
            if let Err(error) = fields.append(name, value.as_bytes()) {
                tracing::debug!(name, %error, "a field of an answer is left out");
            }
        };
        for (name, value) in &self.fields {
            put(name, value);
        }
        if says_why {
            put("x-ambit-reason", self.reason);
        }
        let (status, body) = if is_grpc {
            put("content-type", "application/grpc");
            put("grpc-status", &self.grpc().to_string());
            let message = match &*self.body {
                "" if says_why => self.reason,
                body => body,
            };
            if !message.is_empty() {
                put("grpc-message", &percent_encoded(message));
            }
            (200, Bytes::new())
        } else {
            let body = match self.message {
                Some(_) => given,
                None => Bytes::copy_from_slice(self.body.as_bytes()),
            };
            if !body.is_empty() && !has_type {
                put("content-type", "text/plain");
            }
            (self.status, body)
        };
        let status = Status::new(status).unwrap_or(Status::INTERNAL_ERROR);
        let reason = http::StatusCode::from_u16(status.code()).ok();
        let reason = reason.and_then(|it| it.canonical_reason()).unwrap_or_default();
        let reason = Reason::new(reason.as_bytes()).unwrap_or_default();
        (ResponseHead { status, reason, version: Version::Http11, fields }, body)
    }

    /// The status of gRPC (its specification's "HTTP to gRPC Status Code Mapping").
    pub(crate) fn grpc(&self) -> u32 {
        self.grpc_status.unwrap_or(match self.status {
            200 => 0,
            400 => 13,
            401 => 16,
            403 => 7,
            404 => 12,
            429 | 502..=504 => 14,
            _ => 2,
        })
    }
}

/// The status of HTTP that a status of gRPC comes to (google.rpc.Code's mapping, as Envoy has it).
pub(crate) fn http_status(grpc: u32) -> u16 {
    match grpc {
        0 => 200,
        1 => 499,
        3 | 9 | 11 => 400,
        4 => 504,
        5 => 404,
        6 | 10 => 409,
        7 => 403,
        8 => 429,
        12 => 501,
        14 => 503,
        16 => 401,
        _ => 500,
    }
}

/// As `grpc-message` writes text.
fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => encoded.push(char::from(byte)),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

/// Whether a request is one of gRPC.
pub(crate) fn is_grpc(fields: &Fields) -> bool {
    let kind = fields.first(Known::ContentType).unwrap_or_default();
    let rest = kind.strip_prefix(b"application/grpc");
    rest.is_some_and(|rest| rest.is_empty() || matches!(rest[0], b'+' | b';'))
}
