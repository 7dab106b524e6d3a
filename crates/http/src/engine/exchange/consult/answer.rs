//! What an authorization service answers, over gRPC or HTTP.

use ambit_model::http::authorizer::HttpCall;
use ambit_model::policy::TextMatch;
use ambit_wire::ext_authz::{self, Allowed, AnswerError, Change, Denied, FieldChange, Verdict};
use bytes::Bytes;

use super::question::{AUTHORIZATION, is_any};
use crate::engine::exchange::call::Called;
use crate::engine::exchange::changes::is_framing;
use crate::engine::exchange::grpc;
use crate::fields::Fields;

/// What of a denial the client always gets, as in Envoy, and what says how its body is to be read.
const ALWAYS_DOWNSTREAM: [&str; 4] =
    ["content-encoding", "content-type", "location", "www-authenticate"];
/// What describes the answer's own body, and is none of the request's.
const OF_THE_ANSWER: [&str; 4] = ["content-encoding", "content-type", "date", "server"];
/// Names fields of the request to remove.
const TO_REMOVE: &str = "x-envoy-auth-headers-to-remove";

/// Why an answer says nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unclear {
    /// A status that is none of an answer over HTTP.
    #[error("it answers {0}")]
    Status(u16),
    /// No answer over gRPC.
    #[error(transparent)]
    Grpc(#[from] grpc::Unclear),
    /// A message that says nothing.
    #[error("what it answers is unclear")]
    Message(#[from] AnswerError),
}

/// Reads an answer over gRPC.
pub(super) fn grpc(called: &Called) -> Result<Verdict, Unclear> {
    Ok(ext_authz::decode(&grpc::answer(called)?)?)
}

/// Reads an answer over HTTP: 200 allows, an error of the server's says nothing, the rest denies.
/// `asked` are the fields of the request.
pub(super) fn http(call: &HttpCall, asked: &Fields, called: &Called) -> Result<Verdict, Unclear> {
    let fields = &called.head.fields;
    match called.head.status.code() {
        200 => {
            let remove = fields.all(TO_REMOVE).flat_map(|line| line.split(|byte| *byte == b','));
            let remove = remove.map(|name| String::from_utf8_lossy(name).trim().to_owned());
            let is_upstream = |name: &str| {
                let exact = TextMatch::Exact(name.into());
                is_any(&call.to_upstream_on_allow, name)
                    && (!OF_THE_ANSWER.contains(&name)
                        || call.to_upstream_on_allow.contains(&exact))
            };
            let mut response = changes(fields, |name| is_any(&call.to_downstream_on_allow, name));
            // Cookies of several parties are set beside one another.
            for it in response.iter_mut().filter(|it| it.name == "set-cookie") {
                it.how = Change::Append;
            }
            Ok(Verdict::Allowed(Allowed {
                remove: remove.filter(|name| !name.is_empty()).chain(unseen(call, asked)).collect(),
                request: changes(fields, is_upstream),
                response,
                ..Allowed::default()
            }))
        }
        status @ 500.. => Err(Unclear::Status(status)),
        status => {
            let is_sent = |name: &str| match &call.to_downstream_on_deny {
                None => true,
                Some(matches) => is_any(matches, name) || ALWAYS_DOWNSTREAM.contains(&name),
            };
            let body: Bytes = called.body.clone();
            Ok(Verdict::Denied(Denied {
                status: Some(status),
                fields: changes(fields, is_sent),
                body,
            }))
        }
    }
}

/// Fields of a request in which its endpoint reads the service's word, but which the service was
/// not sent: a client's own must not pass for it where the service says nothing. A pattern for all
/// fields means none in particular.
fn unseen(call: &HttpCall, asked: &Fields) -> Vec<String> {
    let particular = call.to_upstream_on_allow.iter().filter(|it| !it.matches(""));
    let particular: Vec<&TextMatch> =
        particular.filter(|it| !matches!(it, TextMatch::Presence)).collect();
    let names = asked.iter().map(|it| String::from_utf8_lossy(it.name).to_ascii_lowercase());
    names
        .filter(|name| particular.iter().any(|it| it.matches(name)))
        .filter(|name| name != AUTHORIZATION && !is_any(&call.include, name))
        .collect()
}

/// The fields that are chosen: the first of a name replaces, the others stand beside it.
fn changes(fields: &Fields, is_chosen: impl Fn(&str) -> bool) -> Vec<FieldChange> {
    let mut all: Vec<FieldChange> = Vec::new();
    for field in fields.iter() {
        let name = String::from_utf8_lossy(field.name).to_ascii_lowercase();
        if is_framing(&name) || name == TO_REMOVE || !is_chosen(&name) {
            continue;
        }
        let is_first = all.iter().all(|it| it.name != name);
        let how = if is_first { Change::Set } else { Change::Append };
        all.push(FieldChange { name, value: Bytes::copy_from_slice(field.value), how });
    }
    all
}
