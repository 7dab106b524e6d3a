//! What an authorization service is sent, over gRPC or HTTP.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::SystemTime;

use ambit_model::http::authorizer::{BodyCheck, HttpCall};
use ambit_model::policy::TextMatch;
use ambit_wire::ext_authz::{self, Asked, Body, Peer};
use bytes::Bytes;

use crate::engine::exchange::changes::is_framing;
use crate::engine::exchange::grpc;
use crate::engine::position::Arrival;
use crate::engine::record::Protocol;
use crate::fields::{FieldLimits, Fields};
use crate::head::{RequestHead, Target, Version};
use crate::path::Path;
use crate::refused::Refused;

/// Says whether a body was cut.
const PARTIAL_BODY: &str = "x-envoy-auth-partial-body";
/// The field that HTTP always gets besides the head's own parts, as in Envoy.
pub(super) const AUTHORIZATION: &str = "authorization";

/// What is judged.
pub(super) struct Judged<'a> {
    pub(super) arrival: &'a Arrival,
    pub(super) head: &'a RequestHead,
    pub(super) protocol: Protocol,
    /// The length of its body, if it is known.
    pub(super) size_bytes: Option<u64>,
    /// What of the body is shown, and how; nothing if it is hidden.
    pub(super) shown: Option<Shown>,
}

/// The part of a body that is shown.
#[derive(Clone)]
pub(super) struct Shown {
    pub(super) check: BodyCheck,
    pub(super) bytes: Bytes,
    pub(super) is_partial: bool,
}

impl Judged<'_> {
    /// The question over gRPC: its head, and its body.
    pub(super) fn grpc(&self, host: &str) -> Result<(RequestHead, Bytes), Refused> {
        let message = ext_authz::encode(self.asked());
        grpc::question((host, ext_authz::CHECK), self.head, &message)
    }

    fn asked(&self) -> Asked {
        let peer = |address: SocketAddr, principal: String| Peer {
            address,
            service: String::new(),
            principal,
        };
        let Arrival { source, client, destination, scheme, .. } = self.arrival;
        let principal = source.identity().map(ToString::to_string).unwrap_or_default();
        let path = self.head.path().map_or("*", Path::as_str).to_owned();
        let host = self.head.authority().as_str().to_owned();
        let id = self.head.fields.first("x-request-id").unwrap_or_default();
        Asked {
            source: peer(*client, principal),
            destination: peer(*destination, String::new()),
            received: SystemTime::now(),
            id: String::from_utf8_lossy(id).into_owned(),
            method: self.head.method().as_str().to_owned(),
            headers: self.headers(&path, &host),
            path,
            host,
            scheme: scheme.as_str(),
            protocol: self.protocol.as_str(),
            size_bytes: self.size_bytes,
            body: match &self.shown {
                None => Body::Hidden,
                Some(shown) if shown.check.as_bytes => Body::Raw(shown.bytes.clone()),
                Some(shown) => Body::Text(shown.bytes.clone()),
            },
        }
    }

    /// All fields, as Envoy lists them: names in lower case, with those of HTTP/2.
    fn headers(&self, path: &str, host: &str) -> BTreeMap<String, String> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let mut all = BTreeMap::new();
        for field in self.head.fields.iter() {
            let name = text(field.name).to_ascii_lowercase();
            let between = if name == "cookie" { "; " } else { "," };
            all.entry(name)
                .and_modify(|before: &mut String| {
                    before.push_str(between);
                    before.push_str(&text(field.value));
                })
                .or_insert_with(|| text(field.value));
        }
        let (method, scheme) = (self.head.method().as_str(), self.arrival.scheme.as_str());
        for (name, value) in
            [(":authority", host), (":method", method), (":path", path), (":scheme", scheme)]
        {
            all.insert(name.to_owned(), value.to_owned());
        }
        all.extend(self.partial().map(|(name, value)| (name.to_owned(), value.to_owned())));
        all
    }

    /// Says whether the body was cut, where it may be.
    fn partial(&self) -> Option<(&'static str, &'static str)> {
        let shown = self.shown.as_ref().filter(|it| it.check.allow_partial)?;
        Some((PARTIAL_BODY, if shown.is_partial { "true" } else { "false" }))
    }

    /// The question over HTTP: its head, and its body.
    pub(super) fn http(&self, call: &HttpCall) -> Result<(RequestHead, Bytes), Refused> {
        let mut fields = Fields::new(FieldLimits::default());
        for field in self.head.fields.iter() {
            let name = String::from_utf8_lossy(field.name).to_ascii_lowercase();
            let is_sent = name == AUTHORIZATION || is_any(&call.include, &name);
            if is_sent && !is_framing(&name) {
                fields.append(field.name, field.value).map_err(|_| Refused::HeadTooLarge)?;
            }
        }
        let additional = call.additional.iter().map(|(name, value)| (&**name, &**value));
        for (name, value) in additional.chain(self.partial()) {
            if !is_framing(name) {
                fields.set(name, value.as_bytes()).map_err(|_| Refused::HeadTooLarge)?;
            }
        }
        let path = self.head.path().map_or("/", Path::as_str);
        let path = Path::parse(format!("{}{path}", call.path_prefix).as_bytes())?;
        let target = Target::Origin { path, host: self.head.authority().clone() };
        let head = RequestHead::new(self.head.method().clone(), target, Version::Http11, fields)?;
        Ok((head, self.shown.as_ref().map(|it| it.bytes.clone()).unwrap_or_default()))
    }
}

/// Whether one of these is meant by a name in lower case.
pub(super) fn is_any(matches: &[TextMatch], name: &str) -> bool {
    matches.iter().any(|it| it.matches(name))
}
