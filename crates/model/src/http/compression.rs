//! Which responses are compressed (the section `compression` of a TrafficPolicy).
//!
//! A client never has to take a response that is compressed, and never gets one that it has not
//! asked for. So nothing here refuses: what cannot be honoured compresses nothing.

use std::sync::Arc;

use crate::Text;
use crate::http::rule::{Origin, RouteKind};
use crate::names::ServiceName;

/// How a body is compressed: a content coding (RFC 9110, 8.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Coding {
    /// Brotli (RFC 7932).
    Brotli,
    /// RFC 1952.
    Gzip,
}

/// Which responses are compressed, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compression {
    /// The codings, the best first; without any nothing is compressed.
    pub codings: Vec<Coding>,
    /// Bodies that say that they are smaller stay as they are.
    pub min_bytes: u64,
    /// The media types, in lower case: `type/subtype`, or `type/*` for all of a type.
    pub content_types: Vec<Text>,
}

/// Which responses to the requests to one service are compressed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compressions {
    /// Those to requests whose route says nothing itself.
    pub service: Option<Arc<Compression>>,
    /// What routes and single rules of them say.
    pub routes: Vec<RouteCompression>,
}

/// What a route says, or one of its rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteCompression {
    /// The route's kind.
    pub kind: RouteKind,
    /// The route's namespace.
    pub namespace: Text,
    /// The route's name.
    pub name: Text,
    /// The name of the rule; `None` for all rules that say nothing themselves.
    pub rule_name: Option<Text>,
    /// What it says.
    pub compression: Arc<Compression>,
}

impl Coding {
    /// All of them, the best first.
    pub const ALL: [Self; 2] = [Self::Brotli, Self::Gzip];

    /// Its name in `content-encoding`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Brotli => "br",
            Self::Gzip => "gzip",
        }
    }
}

impl Compression {
    /// The smallest body that is compressed, where nothing else is said: below that a response
    /// fills one packet anyway.
    pub const MIN_BYTES: u64 = 1024;

    /// The media types where none are said: text, and what is written in it. Images, films and
    /// archives are compressed already.
    pub const CONTENT_TYPES: [&str; 12] = [
        "text/*",
        "application/atom+xml",
        "application/javascript",
        "application/json",
        "application/ld+json",
        "application/manifest+json",
        "application/problem+json",
        "application/rss+xml",
        "application/wasm",
        "application/xhtml+xml",
        "application/xml",
        "image/svg+xml",
    ];

    /// Nothing is compressed.
    pub fn none() -> Self {
        Self { codings: Vec::new(), min_bytes: Self::MIN_BYTES, content_types: Vec::new() }
    }

    /// Whether it is for bodies of this type, which is the value of `content-type`.
    pub fn is_for(&self, content_type: &[u8]) -> bool {
        let end = content_type.iter().position(|byte| *byte == b';');
        let media = content_type[..end.unwrap_or(content_type.len())].trim_ascii();
        // RFC 9110, 8.3.1: no media type, so nobody knows what it is.
        let Some(slash) = media.iter().position(|byte| *byte == b'/') else { return false };
        let is_it = |it: &Text| match it.strip_suffix('*') {
            Some(all) => media[..=slash].eq_ignore_ascii_case(all.as_bytes()),
            None => media.eq_ignore_ascii_case(it.as_bytes()),
        };
        self.content_types.iter().any(is_it)
    }
}

impl Default for Compression {
    fn default() -> Self {
        Self {
            codings: Coding::ALL.to_vec(),
            min_bytes: Self::MIN_BYTES,
            content_types: Self::CONTENT_TYPES.map(Text::from).to_vec(),
        }
    }
}

impl Compressions {
    /// What holds for a request to `service` that this rule of a route answers. A route of another
    /// namespace says nothing: whether a service's secrets may be compressed is for its own to say.
    pub fn of(&self, route: Option<&Origin>, service: &ServiceName) -> Option<&Arc<Compression>> {
        let found = route.filter(|it| it.is_producers(service)).and_then(|origin| {
            let here = self.routes.iter().filter(|it| it.is_of(origin));
            let of = |rule: Option<&Text>| {
                here.clone().find(|it| it.rule_name.as_ref() == rule).map(|it| &it.compression)
            };
            origin.rule_name.as_ref().and_then(|rule| of(Some(rule))).or_else(|| of(None))
        });
        found.or(self.service.as_ref())
    }
}

impl RouteCompression {
    fn is_of(&self, origin: &Origin) -> bool {
        self.kind == origin.kind && self.name == origin.name && self.namespace == origin.namespace
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_media_type_is_compared_without_its_parameters_and_case() {
        let compression = Compression::default();
        for (content_type, expected) in [
            ("text/html", true),
            ("text/html; charset=utf-8", true),
            ("Text/Event-Stream ;a=b", true),
            ("application/json;charset=utf-8", true),
            ("APPLICATION/WASM", true),
            ("application/jsonx", false),
            ("application/*", false),
            ("image/png", false),
            ("textual/html", false),
            ("text", false),
            ("a; text/html", false),
            ("", false),
            ("/", false),
            ("application/grpc", false),
        ] {
            assert_eq!(compression.is_for(content_type.as_bytes()), expected, "{content_type}");
        }
        assert!(!Compression::none().is_for(b"text/html"));
    }

    #[test]
    fn a_rule_comes_before_its_route_and_that_before_the_service() {
        let from =
            |bytes: u64| Arc::new(Compression { min_bytes: bytes, ..Compression::default() });
        let of_route = |namespace: &str, rule: Option<&str>, bytes: u64| RouteCompression {
            kind: RouteKind::HttpRoute,
            namespace: namespace.into(),
            name: "a".into(),
            rule_name: rule.map(Text::from),
            compression: from(bytes),
        };
        let all = Compressions {
            service: Some(from(1)),
            routes: vec![
                of_route("app", None, 2),
                of_route("app", Some("pages"), 3),
                of_route("cli", None, 4),
            ],
        };
        let service = ServiceName::new("app", "web");
        for (route, rule, expected) in [
            (None, None, 1),
            (Some(("app", "other")), Some("pages"), 1),
            (Some(("app", "a")), None, 2),
            (Some(("app", "a")), Some("other"), 2),
            (Some(("app", "a")), Some("pages"), 3),
            // A consumer's route.
            (Some(("cli", "a")), None, 1),
        ] {
            let origin = route.map(|(namespace, name)| Origin {
                kind: RouteKind::HttpRoute,
                namespace: namespace.into(),
                name: name.into(),
                created_unix_s: 0,
                index: 0,
                rule_name: rule.map(Text::from),
            });
            let found = all.of(origin.as_ref(), &service).map(|it| it.min_bytes);
            assert_eq!(found, Some(expected), "{route:?} {rule:?}");
        }
        assert_eq!(Compressions::default().of(None, &service), None);
    }
}
