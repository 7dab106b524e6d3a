//! What CEL expressions know of a request.
//!
//! What a request does not have (a token, a proven identity) has no value, so what an expression
//! makes of it is an error, and a policy fails closed. `has(source.principal)` asks first.

use std::borrow::Cow;

use crate::expression::{Attributes, Value};
use crate::http::authorize::Asked;
use crate::http::head::Fields;

/// The names that a condition of a policy may use.
pub const NAMES: [&str; 18] = [
    "request.method",
    "request.path",
    "request.url_path",
    "request.query",
    "request.host",
    "request.scheme",
    "request.headers",
    "request.size",
    "source.principal",
    "source.namespace",
    "source.service_account",
    "source.ip",
    "destination.ip",
    "destination.port",
    "destination.service",
    "auth.claims",
    "auth.principal",
    "auth.audiences",
];

impl Attributes for Asked<'_> {
    fn attribute(&self, name: &str) -> Option<Value<'_>> {
        let head = self.head;
        let identity = self.source.identity();
        Some(match name {
            "request.method" => Value::text(head.method),
            "request.path" if head.query.is_empty() => Value::text(head.path),
            "request.path" => Value::text(format!("{}?{}", head.path, head.query)),
            "request.url_path" => Value::text(head.path),
            "request.query" => Value::text(head.query),
            "request.host" => Value::text(head.host),
            "request.scheme" => Value::text(head.scheme),
            "request.headers" => Value::Fields(head.fields),
            "request.size" => Value::Int(announced_bytes(head.fields)?),
            "source.principal" => identity.map(|_| Value::text(self.source.principal()))?,
            "source.namespace" => Value::text(&*identity?.namespace),
            "source.service_account" => Value::text(&*identity?.service_account),
            "source.ip" => Value::text(self.source.ip().to_string()),
            "destination.ip" => Value::text(self.destination.ip().to_string()),
            "destination.port" => Value::Int(self.destination.port().into()),
            "destination.service" => Value::text(&*self.service?.hostname),
            "auth.claims" => Value::Named(self.token?.claims()),
            "auth.principal" => Value::text(self.token?.principal()?),
            "auth.audiences" => {
                let mut all = Vec::new();
                self.token?.any_audience(&mut |audience| {
                    all.push(Value::Text(Cow::Owned(audience.to_owned())));
                    false
                });
                Value::List(all.into())
            }
            _ => return None,
        })
    }
}

/// How long the body is, by `Content-Length`: a head of which it is not known passes on a body that
/// may have any length.
fn announced_bytes(fields: &dyn Fields) -> Option<i64> {
    let value = fields.value("content-length")?;
    std::str::from_utf8(&value).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::head::NamedValues;

    #[test]
    fn the_size_of_a_request_is_known_where_its_head_says_it_once() {
        for (lines, expected) in [
            (&["1024"][..], Some(1024)),
            (&[" 0 "], Some(0)),
            (&[], None),
            (&["1", "2"], None),
            (&["many"], None),
            (&["99999999999999999999"], None),
        ] {
            let pair = |line: &&str| ("content-length".to_owned(), (*line).to_owned());
            let fields: Vec<_> = lines.iter().map(pair).collect();
            assert_eq!(announced_bytes(&NamedValues(&fields)), expected, "{lines:?}");
        }
    }
}
