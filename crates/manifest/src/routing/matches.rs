//! The matches of routes.
//!
//! A part of a match that cannot be read is widened: it then holds for everything of its kind, and
//! keeps its place in the order of precedence. The rule that it belongs to answers 500, so a
//! request that its author meant never goes elsewhere.

use std::collections::BTreeSet;

use ambit_model::Text;
use ambit_model::http::matching::{Match, NamedMatch, PathMatch, Pattern, ValueMatch};

use super::problem::Problems;
use crate::FieldPath;
use crate::routes;
use crate::validate::names;

/// How values are compared, when nothing is said.
const EXACT: &str = "Exact";
const REGULAR_EXPRESSION: &str = "RegularExpression";
/// How paths are compared, when nothing is said.
const PATH_PREFIX: &str = "PathPrefix";
const METHODS: [&str; 9] =
    ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];
/// What a path must not have in it: it would not be there once the path of a request is
/// normalised.
const NEVER_IN_PATHS: [&str; 6] = ["//", "/./", "/../", "%2f", "%2F", "#"];
/// Any service or method of gRPC.
const ANY_SEGMENT: &str = "[^/]+";

/// A match of an HTTPRoute.
pub(super) fn http(
    written: &routes::HttpRouteMatch,
    at: &FieldPath,
    problems: &mut Problems,
) -> Match {
    let path = written.path.as_ref().map(|path| self::path(path, &at.field("path"), problems));
    if let Some(method) = &written.method
        && !METHODS.contains(&method.as_str())
    {
        let what = format!("`{method}` is no method");
        problems.unsupported(&at.field("method"), what, format!("use {}", METHODS.join(", ")));
    }
    Match {
        path,
        method: written.method.as_deref().map(|method| ValueMatch::Exact(method.into())),
        headers: headers(&written.headers, &at.field("headers"), problems),
        parameters: named(
            &written.query_params,
            &at.field("queryParams"),
            |name| name.into(),
            problems,
        ),
        ..Match::default()
    }
}

/// Whether a match of an HTTPRoute is of a prefix, which can be replaced.
pub(super) fn is_of_prefix(written: &routes::HttpRouteMatch) -> bool {
    let kind = written.path.as_ref().and_then(|path| path.kind.as_deref());
    kind.is_none_or(|kind| kind == PATH_PREFIX)
}

pub(super) fn path(
    written: &routes::PathMatch,
    at: &FieldPath,
    problems: &mut Problems,
) -> PathMatch {
    let value = written.value.as_deref().unwrap_or("/");
    let at_value = at.field("value");
    match written.kind.as_deref().unwrap_or(PATH_PREFIX) {
        REGULAR_EXPRESSION => match Pattern::new(value) {
            Ok(pattern) => PathMatch::Regex(pattern),
            Err(error) => {
                problems.unsupported(&at_value, error.to_string(), "correct the expression");
                every_path()
            }
        },
        EXACT => {
            literal_path(value, &at_value, problems);
            PathMatch::Exact(value.into())
        }
        PATH_PREFIX => {
            literal_path(value, &at_value, problems);
            let prefix = value.trim_end_matches('/');
            PathMatch::Segments(if prefix.is_empty() { "/" } else { prefix }.into())
        }
        other => {
            let what = format!("paths cannot be compared by `{other}`");
            problems.unsupported(
                &at.field("type"),
                what,
                "use Exact, PathPrefix or RegularExpression",
            );
            every_path()
        }
    }
}

/// What takes the place of a path that cannot be read.
fn every_path() -> PathMatch {
    PathMatch::Regex(Pattern::new("(?s).*").expect("it is an expression"))
}

/// Checks a path that is compared with those of requests, as the API's definition does.
fn literal_path(value: &str, at: &FieldPath, problems: &mut Problems) {
    let is_known =
        |byte: u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@%/".contains(&byte);
    let what = if !value.starts_with('/') {
        "does not begin with `/`".to_owned()
    } else if let Some(part) = NEVER_IN_PATHS.iter().find(|part| value.contains(**part)) {
        format!("has `{part}` in it, which no path of a request has")
    } else if value.ends_with("/.") || value.ends_with("/..") {
        "ends with a dot segment, which no path of a request has".to_owned()
    } else if !value.bytes().all(is_known) {
        "has characters in it that a path can only have percent-encoded".to_owned()
    } else {
        return;
    };
    problems.unsupported(at, format!("the path `{value}` {what}"), "correct the path");
}

/// Fields that must have these values.
fn headers(
    written: &[routes::NamedMatch],
    at: &FieldPath,
    problems: &mut Problems,
) -> Vec<NamedMatch> {
    for (index, one) in written.iter().enumerate() {
        if one.name.starts_with('@') {
            let what = "claims of a token choose no route here";
            let remedy = "use a VirtualService, which may compare @request.auth.claims";
            problems.unsupported(&at.index(index).field("name"), what, remedy);
        } else if let Some(what) = names::field_name(&one.name) {
            problems.unsupported(&at.index(index).field("name"), what, "correct the name");
        }
    }
    named(written, at, |name| name.to_ascii_lowercase().into(), problems)
}

/// Values by name. Of several of the same name only the first counts (Gateway API).
fn named(
    written: &[routes::NamedMatch],
    at: &FieldPath,
    name_of: fn(&str) -> Text,
    problems: &mut Problems,
) -> Vec<NamedMatch> {
    let mut seen = BTreeSet::new();
    let mut matches = Vec::new();
    for (index, one) in written.iter().enumerate() {
        let name = name_of(&one.name);
        let value = value(one, &at.index(index), problems);
        if seen.insert(name.clone()) {
            matches.push(NamedMatch { name, value, is_inverted: false });
        }
    }
    matches
}

fn value(written: &routes::NamedMatch, at: &FieldPath, problems: &mut Problems) -> ValueMatch {
    match written.kind.as_deref().unwrap_or(EXACT) {
        EXACT => ValueMatch::Exact(written.value.as_str().into()),
        REGULAR_EXPRESSION => match Pattern::new(&written.value) {
            Ok(pattern) => ValueMatch::Regex(pattern),
            Err(error) => {
                let at = at.field("value");
                problems.unsupported(&at, error.to_string(), "correct the expression");
                ValueMatch::Present
            }
        },
        other => {
            let what = format!("values cannot be compared by `{other}`");
            problems.unsupported(&at.field("type"), what, "use Exact or RegularExpression");
            ValueMatch::Present
        }
    }
}

/// A match of a GRPCRoute: a method of gRPC is a path of two segments.
pub(super) fn grpc(
    written: &routes::GrpcRouteMatch,
    at: &FieldPath,
    problems: &mut Problems,
) -> Match {
    let method = written.method.as_ref();
    Match {
        path: method.map(|method| self::method(method, &at.field("method"), problems)),
        headers: headers(&written.headers, &at.field("headers"), problems),
        ..Match::default()
    }
}

fn method(written: &routes::GrpcMethodMatch, at: &FieldPath, problems: &mut Problems) -> PathMatch {
    let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let (service, method) = (given(&written.service), given(&written.method));
    if service.is_none() && method.is_none() {
        let what = "neither a service nor a method is named";
        problems.unsupported(at, what, "name one of the two, or leave `method` out");
        return every_path();
    }
    let parts = [("service", service), ("method", method)];
    match written.kind.as_deref().unwrap_or(EXACT) {
        EXACT => exact_method(parts, at, problems),
        REGULAR_EXPRESSION => regular_method(parts, at, problems),
        other => {
            let what = format!("methods cannot be compared by `{other}`");
            problems.unsupported(&at.field("type"), what, "use Exact or RegularExpression");
            every_path()
        }
    }
}

fn exact_method(
    parts: [(&str, Option<String>); 2],
    at: &FieldPath,
    problems: &mut Problems,
) -> PathMatch {
    for (name, part) in &parts {
        let is_known = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if let Some(part) = part
            && !part.bytes().all(is_known)
        {
            let what = format!("`{part}` is no name of a {name}");
            problems.unsupported(&at.field(name), what, "correct the name");
        }
    }
    match parts.map(|(_, part)| part) {
        [Some(service), Some(method)] => PathMatch::Exact(format!("/{service}/{method}").into()),
        [Some(service), None] => PathMatch::Segments(format!("/{service}").into()),
        [None, Some(method)] => {
            let literal: String = method.chars().map(literally).collect();
            Pattern::new(&format!("/{ANY_SEGMENT}/{literal}"))
                .map_or_else(|_| every_path(), PathMatch::Regex)
        }
        [None, None] => every_path(),
    }
}

/// A letter as an expression that matches it and nothing else.
fn literally(letter: char) -> String {
    match letter {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '_' => letter.to_string(),
        other => format!("\\x{{{:x}}}", u32::from(other)),
    }
}

fn regular_method(
    parts: [(&str, Option<String>); 2],
    at: &FieldPath,
    problems: &mut Problems,
) -> PathMatch {
    let mut expression = String::new();
    for (name, part) in parts {
        let part = part.unwrap_or_else(|| ANY_SEGMENT.to_owned());
        // By itself first: a bracket that closes the group around it would change its meaning.
        if let Err(error) = Pattern::new(&part) {
            problems.unsupported(&at.field(name), error.to_string(), "correct the expression");
            return every_path();
        }
        expression.push_str(&format!("/(?:{part})"));
    }
    match Pattern::new(&expression) {
        Ok(pattern) => PathMatch::Regex(pattern),
        Err(error) => {
            problems.unsupported(at, error.to_string(), "write shorter expressions");
            every_path()
        }
    }
}
