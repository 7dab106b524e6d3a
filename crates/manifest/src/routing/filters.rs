//! The filters of rules and backends.
//!
//! A filter that is not known, or that cannot be made, is a problem of its rule, never left out: a
//! rule without one of its filters would mean something else.

use std::collections::BTreeSet;
use std::time::Duration;

use ambit_model::Text;
use ambit_model::http::matching::{Pattern, ValueMatch};
use ambit_model::http::rule::{
    Cors, Fraction, HeaderChanges, Mirror, PathChange, Redirect, RedirectPort, Rewrite, RouteKind,
};

use super::backends::Lookup;
use super::problem::{Problems, Reason};
use crate::FieldPath;
use crate::routes::{
    CorsFilter, HeaderModifier, HeaderValue, PathModifier, RequestMirror, RequestRedirect,
    RouteFilter, UrlRewrite,
};
use crate::validate::names;

/// How long a browser may remember, when nothing is said.
const DEFAULT_MAX_AGE_SECONDS: u64 = 5;
/// The status of a redirect, when nothing is said.
const DEFAULT_STATUS: i64 = 302;

/// What the filters of a rule or of a backend make.
#[derive(Debug, Default)]
pub(super) struct Filters {
    /// Changes of the request's fields.
    pub(super) request_headers: HeaderChanges,
    /// Changes of the response's fields.
    pub(super) response_headers: HeaderChanges,
    /// Who else gets a copy.
    pub(super) mirrors: Vec<Mirror>,
    /// How requests of pages of other origins are answered.
    pub(super) cors: Option<Cors>,
    /// Where the client is sent.
    pub(super) redirect: Option<Redirect>,
    /// What changes of the target.
    pub(super) rewrite: Option<Rewrite>,
}

/// Where filters stand.
pub(super) struct Place<'a> {
    /// Looks up mirrors.
    pub(super) lookup: &'a Lookup<'a>,
    /// They are a backend's.
    pub(super) is_of_backend: bool,
    /// All matches of the rule are of a prefix, which can be replaced.
    pub(super) has_prefix: bool,
}

/// Reads the filters at `at`.
pub(super) fn read(
    written: &[RouteFilter],
    place: &Place<'_>,
    at: &FieldPath,
    problems: &mut Problems,
) -> Filters {
    let mut filters = Filters::default();
    let mut seen = BTreeSet::new();
    for (index, filter) in written.iter().enumerate() {
        let at = at.index(index);
        let kind = filter.kind.as_str();
        if !seen.insert(kind) && kind != "RequestMirror" {
            let what = format!("`{kind}` is there twice");
            problems.add(Reason::IncompatibleFilters, &at, what, "make one of the two");
        }
        if let Some(what) = not_usable(filter, place) {
            problems.unsupported(&at.field("type"), what, "use another filter");
        } else if !filters.take(filter, place, &at, problems) {
            let what = format!("a filter of type `{kind}` has exactly the field of its type");
            problems.unsupported(&at, what, "add what is missing, and remove the others");
        }
    }
    if filters.redirect.is_some() && filters.rewrite.is_some() {
        let what = "a request is either redirected or rewritten";
        problems.add(Reason::IncompatibleFilters, at, what, "remove one of the two filters");
    }
    filters
}

/// Why a filter cannot be used where it stands.
fn not_usable(filter: &RouteFilter, place: &Place<'_>) -> Option<String> {
    let kind = filter.kind.as_str();
    let is_http = place.lookup.kind == RouteKind::HttpRoute;
    match kind {
        "RequestHeaderModifier" | "ResponseHeaderModifier" => None,
        "RequestMirror" if !place.is_of_backend => None,
        "RequestRedirect" | "URLRewrite" | "CORS" if is_http && !place.is_of_backend => None,
        "RequestMirror" | "RequestRedirect" | "URLRewrite" | "CORS" if is_http => {
            Some(format!("`{kind}` cannot be a filter of a single backend"))
        }
        "ExtensionRef" => {
            let reference = filter.extension_ref.as_ref().map(ToString::to_string);
            let reference = reference.unwrap_or_default();
            Some(format!("no filter of another API is known, and so not {reference}"))
        }
        _ => Some(format!("a filter of type `{kind}` cannot be made")),
    }
}

impl Filters {
    /// Takes one filter in; answers whether it has the field of its type and no other.
    fn take(
        &mut self,
        filter: &RouteFilter,
        place: &Place<'_>,
        at: &FieldPath,
        problems: &mut Problems,
    ) -> bool {
        let given = [
            filter.request_header_modifier.is_some(),
            filter.response_header_modifier.is_some(),
            filter.request_mirror.is_some(),
            filter.request_redirect.is_some(),
            filter.url_rewrite.is_some(),
            filter.cors.is_some(),
            filter.external_auth.is_some(),
            filter.extension_ref.is_some(),
        ];
        if given.iter().filter(|is_given| **is_given).count() != 1 {
            return false;
        }
        match filter.kind.as_str() {
            "RequestHeaderModifier" => {
                let Some(written) = &filter.request_header_modifier else { return false };
                let at = at.field("requestHeaderModifier");
                self.request_headers = header_changes(written, &at, problems);
            }
            "ResponseHeaderModifier" => {
                let Some(written) = &filter.response_header_modifier else { return false };
                let at = at.field("responseHeaderModifier");
                self.response_headers = header_changes(written, &at, problems);
            }
            "RequestMirror" => {
                let Some(written) = &filter.request_mirror else { return false };
                let at = at.field("requestMirror");
                self.mirrors.push(mirror(written, place.lookup, &at, problems));
            }
            "RequestRedirect" => {
                let Some(written) = &filter.request_redirect else { return false };
                let at = at.field("requestRedirect");
                self.redirect = Some(redirect(written, place.has_prefix, &at, problems));
            }
            "URLRewrite" => {
                let Some(written) = &filter.url_rewrite else { return false };
                let at = at.field("urlRewrite");
                self.rewrite = Some(rewrite(written, place.has_prefix, &at, problems));
            }
            _ => {
                let Some(written) = &filter.cors else { return false };
                self.cors = Some(cors(written, &at.field("cors"), problems));
            }
        }
        true
    }
}

fn header_changes(
    written: &HeaderModifier,
    at: &FieldPath,
    problems: &mut Problems,
) -> HeaderChanges {
    let mut remove = Vec::new();
    for (index, name) in written.remove.iter().enumerate() {
        remove.push(changeable(name, &at.field("remove").index(index), problems));
    }
    HeaderChanges {
        remove,
        set: fields(&written.set, &at.field("set"), problems),
        add: fields(&written.add, &at.field("add"), problems),
    }
}

/// Fields with their values. Of several of the same name only the first counts (Gateway API).
fn fields(written: &[HeaderValue], at: &FieldPath, problems: &mut Problems) -> Vec<(Text, Text)> {
    let mut seen = BTreeSet::new();
    let mut fields = Vec::new();
    for (index, field) in written.iter().enumerate() {
        let at = at.index(index);
        let name = changeable(&field.name, &at.field("name"), problems);
        let is_plain = |byte: u8| byte == b'\t' || (byte >= b' ' && byte != 0x7f);
        if !field.value.bytes().all(is_plain) {
            let what = "the value has control characters in it";
            problems.unsupported(&at.field("value"), what, "remove them");
        }
        if seen.insert(name.clone()) {
            fields.push((name, field.value.trim_matches([' ', '\t']).into()));
        }
    }
    fields
}

/// The name of a field that a filter may change, in lower case.
fn changeable(name: &str, at: &FieldPath, problems: &mut Problems) -> Text {
    let name = name.to_ascii_lowercase();
    if let Some(what) = names::field_name(&name) {
        problems.unsupported(at, what, "correct the name");
    } else if name == "host" {
        let what = "the host is no field that a filter may change";
        problems.unsupported(at, what, "use `hostname` of a URLRewrite");
    } else if names::is_fixed_field(&name) {
        let what = format!("`{name}` says how a message is sent, and is no filter's to change");
        problems.unsupported(at, what, "leave it out");
    }
    name.into()
}

fn mirror(
    written: &RequestMirror,
    lookup: &Lookup<'_>,
    at: &FieldPath,
    problems: &mut Problems,
) -> Mirror {
    let at_backend = at.field("backendRef");
    if written.backend_ref.weight.is_some() || !written.backend_ref.filters.is_empty() {
        let what = "a mirror has neither a weight nor filters";
        problems.unsupported(&at_backend, what, "use `percent` or `fraction`");
    }
    let (numerator, denominator) = match (written.percent, &written.fraction) {
        (None, None) => (1, 1),
        (Some(percent), None) => (percent, 100),
        (None, Some(fraction)) => (fraction.numerator, fraction.denominator.unwrap_or(100)),
        (Some(_), Some(_)) => {
            let what = "a mirror has either `percent` or `fraction`";
            problems.unsupported(at, what, "remove one of the two");
            (0, 1)
        }
    };
    let fraction = match (u32::try_from(numerator), u32::try_from(denominator)) {
        (Ok(numerator), Ok(denominator)) if numerator <= denominator && denominator > 0 => {
            Fraction { numerator, denominator }
        }
        _ => {
            let what = format!("{numerator} of {denominator} is no part of all requests");
            problems.unsupported(at, what, "use a percentage of 0 to 100, or a fraction of 0 to 1");
            Fraction { numerator: 0, denominator: 1 }
        }
    };
    let destination = lookup.destination(&written.backend_ref, &at_backend, problems);
    Mirror { destination, fraction }
}

fn redirect(
    written: &RequestRedirect,
    has_prefix: bool,
    at: &FieldPath,
    problems: &mut Problems,
) -> Redirect {
    if let Some(scheme) = written.scheme.as_deref().filter(|it| !["http", "https"].contains(it)) {
        let what = format!("nobody can be sent to the scheme `{scheme}`");
        problems.unsupported(&at.field("scheme"), what, "use http or https");
    }
    let port = match written.port.map(u16::try_from) {
        Some(Ok(port @ 1..)) => RedirectPort::Given(port),
        Some(_) => {
            let what = format!("{} is no port", written.port.unwrap_or_default());
            problems.unsupported(&at.field("port"), what, "use 1 to 65535");
            RedirectPort::OfListener
        }
        None if written.scheme.is_some() => RedirectPort::OfScheme,
        None => RedirectPort::OfListener,
    };
    let status = match written.status_code.unwrap_or(DEFAULT_STATUS) {
        301 => 301,
        302 => 302,
        303 => 303,
        307 => 307,
        308 => 308,
        other => {
            let what = format!("{other} is no status of a redirect");
            problems.unsupported(&at.field("statusCode"), what, "use 301, 302, 303, 307 or 308");
            302
        }
    };
    Redirect {
        scheme: written.scheme.as_deref().map(Text::from),
        host: host(written.hostname.as_deref(), &at.field("hostname"), problems),
        port,
        path: path_change(written.path.as_ref(), has_prefix, &at.field("path"), problems),
        status,
    }
}

fn rewrite(
    written: &UrlRewrite,
    has_prefix: bool,
    at: &FieldPath,
    problems: &mut Problems,
) -> Rewrite {
    Rewrite {
        host: host(written.hostname.as_deref(), &at.field("hostname"), problems),
        path: path_change(written.path.as_ref(), has_prefix, &at.field("path"), problems),
    }
}

fn host(written: Option<&str>, at: &FieldPath, problems: &mut Problems) -> Option<Text> {
    let host = written?;
    if let Some(what) = names::dns_subdomain(host) {
        problems.unsupported(at, what, "correct the name");
    }
    Some(host.into())
}

fn path_change(
    written: Option<&PathModifier>,
    has_prefix: bool,
    at: &FieldPath,
    problems: &mut Problems,
) -> Option<PathChange> {
    let written = written?;
    let both = (&written.replace_full_path, &written.replace_prefix_match);
    match (written.kind.as_str(), both) {
        ("ReplaceFullPath", (Some(path), None)) => {
            replacement(path, false, &at.field("replaceFullPath"), problems);
            Some(PathChange::Full(path.as_str().into()))
        }
        ("ReplacePrefixMatch", (None, Some(path))) => {
            if !has_prefix {
                let what = "a prefix can be replaced only where every match is of a PathPrefix";
                problems.unsupported(at, what, "match by PathPrefix, or use ReplaceFullPath");
            }
            replacement(path, true, &at.field("replacePrefixMatch"), problems);
            Some(PathChange::Segments(path.as_str().into()))
        }
        (kind @ ("ReplaceFullPath" | "ReplacePrefixMatch"), _) => {
            let what = format!("a change of type `{kind}` has exactly the field of its type");
            problems.unsupported(at, what, "add what is missing, and remove the other");
            None
        }
        (other, _) => {
            let what = format!("no path is changed by `{other}`");
            let remedy = "use ReplaceFullPath or ReplacePrefixMatch";
            problems.unsupported(&at.field("type"), what, remedy);
            None
        }
    }
}

/// Checks what takes the place of a path, or of a prefix, of which nothing may remain.
fn replacement(path: &str, may_be_empty: bool, at: &FieldPath, problems: &mut Problems) {
    let is_path = path.starts_with('/') || (path.is_empty() && may_be_empty);
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"?#".contains(&byte);
    if !is_path || !path.bytes().all(is_plain) {
        let what = format!("`{path}` is no path");
        problems.unsupported(at, what, "begin with `/`; use no query, fragment or blank");
    }
}

fn cors(written: &CorsFilter, at: &FieldPath, problems: &mut Problems) -> Cors {
    let mut allow_origins = Vec::new();
    for (index, origin) in written.allow_origins.iter().enumerate() {
        match self::origin(origin) {
            Some(origin) => allow_origins.push(origin),
            None => {
                let at = at.field("allowOrigins").index(index);
                let what = format!("`{origin}` is no origin");
                let remedy = "write it as in https://example.com, https://*.example.com or `*`";
                problems.unsupported(&at, what, remedy);
            }
        }
    }
    let max_age = match written.max_age.map(u64::try_from) {
        None => DEFAULT_MAX_AGE_SECONDS,
        Some(Ok(seconds)) => seconds,
        Some(Err(_)) => {
            let what = "nobody can remember for less than no time";
            problems.unsupported(&at.field("maxAge"), what, "use 1 or more");
            DEFAULT_MAX_AGE_SECONDS
        }
    };
    let mut names = |names: &[String], field: &str, is_lower: bool| {
        let mut texts: Vec<Text> = Vec::new();
        for (index, name) in names.iter().enumerate() {
            if let Some(what) = names::field_name(name).filter(|_| name != "*") {
                problems.unsupported(&at.field(field).index(index), what, "correct the name");
            }
            texts.push(if is_lower { name.to_ascii_lowercase().into() } else { (&**name).into() });
        }
        texts
    };
    Cors {
        allow_origins,
        allow_methods: names(&written.allow_methods, "allowMethods", false),
        allow_headers: names(&written.allow_headers, "allowHeaders", true),
        expose_headers: names(&written.expose_headers, "exposeHeaders", true),
        allow_credentials: written.allow_credentials.unwrap_or_default(),
        max_age: Some(Duration::from_secs(max_age)),
        forwards_unmatched: false,
    }
}

/// An origin, as browsers send it: in lower case. `*` in front of a host stands for any number of
/// labels, and as the whole host for every host.
fn origin(written: &str) -> Option<ValueMatch> {
    if written == "*" {
        return Some(ValueMatch::Present);
    }
    let lower = written.to_ascii_lowercase();
    let (scheme, authority) = lower.split_once("://")?;
    let is_scheme = scheme.starts_with(|c: char| c.is_ascii_lowercase())
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port.parse::<u16>().ok()?)),
        _ => (authority, None),
    };
    let rest = host.strip_prefix('*');
    let named = rest.map_or(host, |rest| rest.strip_prefix('.').unwrap_or(rest));
    let is_every_host = rest == Some("");
    let is_address = host.starts_with('[');
    let is_host = is_every_host || is_address || names::dns_subdomain(named).is_none();
    let is_wildcard_right = rest.is_none_or(|rest| rest.is_empty() || rest.starts_with('.'));
    if !is_scheme || !is_host || !is_wildcard_right {
        return None;
    }
    let Some(rest) = rest else { return Some(ValueMatch::Exact(lower.as_str().into())) };
    let port = port.map(|port| format!(":{port}")).unwrap_or_default();
    let (scheme, rest) = (scheme.replace('.', r"\.").replace('+', r"\+"), rest.replace('.', r"\."));
    Pattern::new(&format!("{scheme}://[^/:]+{rest}{port}")).ok().map(ValueMatch::Regex)
}
