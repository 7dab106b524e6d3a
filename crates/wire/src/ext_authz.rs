//! Envoy's authorization service over gRPC: what it is asked, and what it answers.
//!
//! An answer is foreign bytes: it is read whole or refused, and every number in it has a bound.
//! Whether a field may be changed at all is for the caller to say.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use prost::Message as _;

use crate::proto::envoy::service::auth::v3 as proto;

/// The path of the call that asks.
pub const CHECK: &str = "/envoy.service.auth.v3.Authorization/Check";
/// Most changes that one answer asks for.
const MAX_CHANGES: usize = 256;

/// What an authorization service is told of a request.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Who asks.
    pub source: Peer,
    /// What is asked.
    pub destination: Peer,
    /// When the request came.
    pub received: SystemTime,
    /// The request's own name, `x-request-id`.
    pub id: String,
    /// The method.
    pub method: String,
    /// Path and query.
    pub path: String,
    /// The host, with its port if one is written.
    pub host: String,
    /// `http` or `https`.
    pub scheme: &'static str,
    /// `HTTP/1.0`, `HTTP/1.1` or `HTTP/2`.
    pub protocol: &'static str,
    /// The length of its body, if it is known.
    pub size_bytes: Option<u64>,
    /// Its fields: names in lower case, each once.
    pub headers: BTreeMap<String, String>,
    /// What of its body is shown.
    pub body: Body,
}

/// One end of a request.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its address.
    pub address: SocketAddr,
    /// The service; empty if there is none.
    pub service: String,
    /// Its proven identity; empty if there is none.
    pub principal: String,
}

/// A body, or its beginning.
#[derive(Clone, Debug, Default)]
pub enum Body {
    /// Nothing of it is shown.
    #[default]
    Hidden,
    /// As text; what is none is replaced.
    Text(Bytes),
    /// As it is.
    Raw(Bytes),
}

/// What an authorization service answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The request may pass.
    Allowed(Allowed),
    /// It may not.
    Denied(Denied),
}

/// Changes of a request that may pass, and of its response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    /// Fields of the request to remove.
    pub remove: Vec<String>,
    /// Fields of the request to set.
    pub request: Vec<FieldChange>,
    /// Fields of the response to set.
    pub response: Vec<FieldChange>,
    /// Parameters of the query to remove.
    pub remove_parameters: Vec<String>,
    /// Parameters of the query to set: name and value.
    pub parameters: Vec<(String, String)>,
}

/// What the client of a request that may not pass is answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Denied {
    /// The status, if one is given.
    pub status: Option<u16>,
    /// Fields.
    pub fields: Vec<FieldChange>,
    /// The body.
    pub body: Bytes,
}

/// A change of one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldChange {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: Bytes,
    /// What becomes of a field of this name that is there.
    pub how: Change,
}

/// What becomes of a field that is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It stays, beside the new one.
    Append,
    /// It is replaced.
    Set,
    /// It stays, and there is no new one.
    SetIfAbsent,
    /// It is replaced; without one there is no new one.
    SetIfPresent,
}

/// Why an answer cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    /// It is no message.
    #[error("the answer is no CheckResponse")]
    Decode(#[from] prost::DecodeError),
    /// It says nothing at all, of which Envoy would make an allowance.
    #[error("the answer has neither a status nor an http_response")]
    Empty,
    /// It allows with the response of a denial, or denies with that of an allowance.
    #[error("the answer's status contradicts its http_response")]
    Contradiction,
    /// It asks for more than anybody needs.
    #[error("the answer changes more than {MAX_CHANGES} fields")]
    TooMany,
    /// A change without a field.
    #[error("the answer changes a field that it does not name")]
    NoField,
}

/// Writes a question.
pub fn encode(asked: Asked) -> Vec<u8> {
    let (body, raw_body) = match asked.body {
        Body::Hidden => (String::new(), Bytes::new()),
        Body::Text(text) => (String::from_utf8_lossy(&text).into_owned(), Bytes::new()),
        Body::Raw(bytes) => (String::new(), bytes),
    };
    let since = asked.received.duration_since(UNIX_EPOCH).unwrap_or_default();
    let http = proto::HttpRequest {
        id: asked.id,
        method: asked.method,
        headers: asked.headers,
        path: asked.path,
        host: asked.host,
        scheme: asked.scheme.to_owned(),
        size: asked.size_bytes.and_then(|it| i64::try_from(it).ok()).unwrap_or(-1),
        protocol: asked.protocol.to_owned(),
        body,
        raw_body,
    };
    let time = prost_types::Timestamp {
        seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(since.subsec_nanos()).expect("below a billion"),
    };
    let attributes = proto::AttributeContext {
        source: Some(peer(asked.source)),
        destination: Some(peer(asked.destination)),
        request: Some(proto::Request { time: Some(time), http: Some(http) }),
    };
    proto::CheckRequest { attributes: Some(attributes) }.encode_to_vec()
}

fn peer(peer: Peer) -> proto::Peer {
    let socket_address = proto::SocketAddress {
        address: peer.address.ip().to_string(),
        port_value: peer.address.port().into(),
    };
    proto::Peer {
        address: Some(proto::Address { socket_address: Some(socket_address) }),
        service: peer.service,
        principal: peer.principal,
    }
}

/// Reads an answer.
pub fn decode(bytes: &[u8]) -> Result<Verdict, AnswerError> {
    use proto::check_response::HttpResponse;
    let message = proto::CheckResponse::decode(bytes)?;
    let is_ok = message.status.map(|status| status.code == 0);
    match (is_ok, message.http_response) {
        (None, None) => Err(AnswerError::Empty),
        (Some(true), None) => Ok(Verdict::Allowed(Allowed::default())),
        (Some(false), None) => Ok(Verdict::Denied(Denied::default())),
        (Some(true) | None, Some(HttpResponse::OkResponse(it))) => {
            Ok(Verdict::Allowed(allowed(it)?))
        }
        (Some(false) | None, Some(HttpResponse::DeniedResponse(it))) => {
            Ok(Verdict::Denied(denied(it)?))
        }
        _ => Err(AnswerError::Contradiction),
    }
}

fn allowed(message: proto::OkHttpResponse) -> Result<Allowed, AnswerError> {
    let removed = message.headers_to_remove.len() + message.query_parameters_to_remove.len();
    let set = message.headers.len() + message.query_parameters_to_set.len();
    if removed + set + message.response_headers_to_add.len() > MAX_CHANGES {
        return Err(AnswerError::TooMany);
    }
    let parameters = message.query_parameters_to_set.into_iter();
    Ok(Allowed {
        remove: message.headers_to_remove,
        request: changes(message.headers, Change::Set)?,
        response: changes(message.response_headers_to_add, Change::Append)?,
        remove_parameters: message.query_parameters_to_remove,
        parameters: parameters.map(|it| (it.key, it.value)).collect(),
    })
}

fn denied(message: proto::DeniedHttpResponse) -> Result<Denied, AnswerError> {
    if message.headers.len() > MAX_CHANGES {
        return Err(AnswerError::TooMany);
    }
    let code = message.status.map(|it| it.code).and_then(|it| u16::try_from(it).ok());
    Ok(Denied {
        // What is no status of a response is none: the caller has a default.
        status: code.filter(|it| (200..600).contains(it)),
        fields: changes(message.headers, Change::Set)?,
        body: message.body.into_bytes().into(),
    })
}

/// Reads changes. `unsaid` is what Envoy takes the default action for, which differs by the place.
fn changes(
    messages: Vec<proto::HeaderValueOption>,
    unsaid: Change,
) -> Result<Vec<FieldChange>, AnswerError> {
    use proto::header_value_option::HeaderAppendAction as Action;
    let change = |message: proto::HeaderValueOption| {
        let action = message.append_action();
        let header = message.header.ok_or(AnswerError::NoField)?;
        let how = match (message.append, action) {
            (Some(true), _) => Change::Append,
            (Some(false), _) => Change::Set,
            (None, Action::AppendIfExistsOrAdd) => unsaid,
            (None, Action::AddIfAbsent) => Change::SetIfAbsent,
            (None, Action::OverwriteIfExistsOrAdd) => Change::Set,
            (None, Action::OverwriteIfExists) => Change::SetIfPresent,
        };
        let value = match header.value.is_empty() {
            true => header.raw_value,
            false => header.value.into_bytes().into(),
        };
        Ok(FieldChange { name: header.key, value, how })
    };
    messages.into_iter().map(change).collect()
}
