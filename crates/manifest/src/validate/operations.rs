//! Rules for what an AuthorizationPolicy says of operations: hosts, methods and paths.
//!
//! A waypoint compares the path once it is normalised, the method as it is sent and the host as an
//! authority can hold it. A value that none of these can ever be is refused, because a DENY of it
//! protects nothing. Nothing here may refuse a value that the default normalisation lets match.

use ambit_model::http::normal::{Normalisation, is_target_byte, normalised};
use ambit_model::http::policy::PathPattern;

use crate::matching::is_token;

/// The methods of HTTP (RFC 9110, and PATCH of RFC 5789).
const METHODS: [&str; 9] =
    ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];
/// What may follow a prefix so that it is a whole path: text, or the rest of an escape.
const ENDS: [&str; 6] = ["", "x", "2F", "0", "B", "F"];

/// A value as Istio's resources write it: what is fixed of it, and where it is open.
enum Pattern<'a> {
    Any,
    Exact(&'a str),
    Prefix(&'a str),
    Suffix(&'a str),
}

impl<'a> Pattern<'a> {
    fn of(value: &'a str) -> Self {
        match (value.strip_prefix('*'), value.strip_suffix('*')) {
            (Some(""), _) => Self::Any,
            (Some(end), _) => Self::Suffix(end),
            (None, Some(start)) => Self::Prefix(start),
            (None, None) => Self::Exact(value),
        }
    }

    fn fixed(&self) -> &'a str {
        match self {
            Self::Any => "",
            Self::Exact(text) | Self::Prefix(text) | Self::Suffix(text) => text,
        }
    }
}

/// What of a path never matches.
pub(super) fn path(value: &str) -> Option<(String, String)> {
    if PathPattern::is_template(value) {
        return template(value);
    }
    let pattern = Pattern::of(value);
    if can_match(&pattern) {
        return None;
    }
    let remedy = match normal_form(&pattern) {
        Some(normal) => format!("write it as the normalised path: `{normal}`"),
        None => "write it as the normalised path, as in `/abc`".to_owned(),
    };
    Some((format!("`{value}` never matches: {}", why_no_path(&pattern)), remedy))
}

fn template(value: &str) -> Option<(String, String)> {
    if let Err(error) = PathPattern::template(value) {
        return Some((format!("`{value}`: {error}"), "correct the template".to_owned()));
    }
    let filled = value.replace("{**}", "x").replace("{*}", "x");
    let pattern = Pattern::Exact(&filled);
    (!can_match(&pattern)).then(|| {
        let remedy = "write what is between the operators as it is in a normalised path";
        (format!("`{value}` never matches: {}", why_no_path(&pattern)), remedy.to_owned())
    })
}

/// A `*` inside of a path, where it is a letter as any other.
pub(super) fn doubtful_path(value: &str) -> Option<(String, &'static str)> {
    let is_text = !PathPattern::is_template(value);
    (is_text && Pattern::of(value).fixed().contains('*')).then(|| {
        let what = format!("in `{value}` a `*` is compared literally: it is no wildcard there");
        (what, "write `{*}` for one segment of the path, or `{**}` for several")
    })
}

fn can_match(pattern: &Pattern<'_>) -> bool {
    let is_normal = |path: &str| {
        let stays = |normal: Option<String>| normal.is_none_or(|it| it == path);
        path.starts_with('/')
            && path.bytes().all(is_path_byte)
            && normalised(path, Normalisation::Base).is_ok_and(stays)
    };
    match pattern {
        Pattern::Any => true,
        Pattern::Exact(path) => is_normal(path),
        Pattern::Prefix(start) => ENDS.iter().any(|end| is_normal(&format!("{start}{end}"))),
        Pattern::Suffix(end) => is_normal(&format!("/x{end}")) || is_normal(end),
    }
}

fn is_path_byte(byte: u8) -> bool {
    is_target_byte(byte) && byte != b'?'
}

/// Why no path is of this pattern.
fn why_no_path(pattern: &Pattern<'_>) -> &'static str {
    let text = pattern.fixed();
    if !matches!(pattern, Pattern::Suffix(_)) && !text.starts_with('/') {
        return "a path begins with `/`";
    }
    if text.contains(['?', '#']) {
        return "it is compared with the path alone, without query and fragment";
    }
    "paths are compared after normalisation, and none looks like this then"
}

/// The pattern as its author may have meant it.
fn normal_form(pattern: &Pattern<'_>) -> Option<String> {
    let text = pattern.fixed();
    let text = text.split(['?', '#']).next().unwrap_or_default();
    let mut path = match pattern {
        Pattern::Suffix(_) => "/x".to_owned(),
        _ if text.starts_with('/') => String::new(),
        _ => "/".to_owned(),
    };
    for byte in text.bytes() {
        match is_path_byte(byte) {
            true => path.push(char::from(byte)),
            false => path.push_str(&format!("%{byte:02X}")),
        }
    }
    let path = normalised(&path, Normalisation::Base).ok()?.unwrap_or(path);
    match pattern {
        Pattern::Any => None,
        Pattern::Exact(_) => can_match(&Pattern::Exact(&path)).then_some(path),
        Pattern::Prefix(_) => can_match(&Pattern::Prefix(&path)).then(|| format!("{path}*")),
        Pattern::Suffix(_) => {
            let end = path.strip_prefix("/x").filter(|it| !it.is_empty())?;
            can_match(&Pattern::Suffix(end)).then(|| format!("*{end}"))
        }
    }
}

/// What of a method never matches, or none that anybody sends.
pub(super) fn method(value: &str) -> Option<(String, String)> {
    let pattern = Pattern::of(value);
    let text = pattern.fixed();
    if matches!(pattern, Pattern::Any) {
        return None;
    }
    if !is_token(text) {
        let what = format!("`{value}` never matches: it is not the name of a method");
        return Some((what, "write a method, as in `GET`".to_owned()));
    }
    let upper = text.to_ascii_uppercase();
    let is_standard = |text: &str| {
        METHODS.iter().any(|method| match pattern {
            Pattern::Any => true,
            Pattern::Exact(_) => *method == text,
            Pattern::Prefix(_) => method.starts_with(text),
            Pattern::Suffix(_) => method.ends_with(text),
        })
    };
    (!is_standard(text) && is_standard(&upper)).then(|| {
        let what = format!("`{value}` never matches: methods are compared with regard to case");
        (what, format!("write `{}`", value.to_ascii_uppercase()))
    })
}

/// A method that is none of HTTP's, and is not written as methods are.
pub(super) fn doubtful_method(value: &str) -> Option<(String, &'static str)> {
    let text = Pattern::of(value).fixed();
    let is_doubtful = text.contains('*') || text.bytes().any(|it| it.is_ascii_lowercase());
    (is_doubtful && method(value).is_none()).then(|| {
        let what = format!(
            "`{value}` is no method of HTTP: methods are compared with regard to case, and a `*` \
             inside is a letter"
        );
        (what, "correct it, unless clients send this very method")
    })
}

/// What of a host never matches.
pub(super) fn host(value: &str) -> Option<(String, &'static str)> {
    host_and_port(value).err()
}

/// A host in lower case, with a port where one is written. `:*` is any port, as is no port at all.
pub(crate) fn host_and_port(value: &str) -> Result<(String, Option<u16>), (String, &'static str)> {
    let lower = value.to_ascii_lowercase();
    if lower.contains("://") {
        let what = format!("`{value}` never matches: hosts are compared without their scheme");
        return Err((what, "write the host alone, as in `example.com`"));
    }
    let (host, port) = match lower.rsplit_once(':') {
        // A colon within brackets is one of an IPv6 address.
        Some((host, port)) if !port.ends_with(']') => match port {
            "*" => (host, None),
            number => {
                let port = number.parse().ok().filter(|port| *port > 0);
                let what = || format!("`{number}` is not a port");
                let remedy = "write a number from 1 to 65535, and IPv6 addresses in brackets";
                (host, Some(port.ok_or_else(|| (what(), remedy))?))
            }
        },
        _ => (&*lower, None),
    };
    if host.contains(':') && !(host.starts_with('[') && host.ends_with(']')) {
        let what = format!("`{value}`: write an IPv6 address in brackets");
        return Err((what, "as in `[::1]:8080`"));
    }
    let digits = host.strip_prefix('*').unwrap_or_default();
    if !digits.is_empty() && digits.bytes().all(|it| it.is_ascii_digit()) {
        let what = format!("`{value}` could end in a host or in a port");
        return Err((what, "write `*:8080` for every host with a port"));
    }
    if host.is_empty() {
        return Err((format!("`{value}` names no host"), "write `*:8080` for every host"));
    }
    match is_host(&Pattern::of(host)) {
        true => Ok((host.to_owned(), port)),
        false => {
            let what = format!("`{value}` never matches: no host looks like this");
            Err((what, "write a host as in `example.com`, `*.example.com` or `[::1]`"))
        }
    }
}

/// Whether there may be a host of this pattern: a name, or an address, IPv6 in brackets.
fn is_host(pattern: &Pattern<'_>) -> bool {
    let text = pattern.fixed();
    if let Some(inner) = text.strip_prefix('[').and_then(|it| it.strip_suffix(']')) {
        return inner.parse::<std::net::Ipv6Addr>().is_ok();
    }
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remedies(rule: fn(&str) -> Option<(String, String)>, wrong: &[(&str, &str)]) {
        for (value, expected) in wrong {
            let (what, remedy) = rule(value).unwrap_or_else(|| panic!("{value} is taken"));
            assert!(what.contains(value), "{value}: {what}");
            assert!(remedy.contains(expected), "{value}: {remedy}");
        }
    }

    #[test]
    fn paths_that_no_request_has_are_refused() {
        let fine = [
            "*",
            "/",
            "/abc",
            "/abc/",
            "/abc*",
            "*/abc",
            "*.html",
            "/a//b",
            "/a%2Fb",
            "/a%2*",
            "/a%*",
            "/a%6*",
            "*2Fb",
            "/a/.*",
            "/a/..*",
            "*..",
            "/{*}/a",
            "/a/{**}",
            "/a*b",
            "/a[1]",
            "/~a;b=c,d:e@f",
            "/pkg.Service/Method",
            "*%2F",
            "*/",
            "/*",
        ];
        for value in fine {
            assert_eq!(path(value), None, "{value}");
        }
        remedies(
            path,
            &[
                ("/%61bc", "`/abc`"),
                ("/x/../y", "`/y`"),
                ("admin", "`/admin`"),
                ("/q?x=1", "`/q`"),
                ("/p#f", "`/p`"),
                ("/a b", "`/a%20b`"),
                ("/\u{e9}", "`/%C3%A9`"),
                ("/a%2fb", "`/a%2Fb`"),
                ("/a|b", "`/a%7Cb`"),
                ("/a\\b", "`/a/b`"),
                ("/100%", "as in `/abc`"),
                ("/a%00", "as in `/abc`"),
                ("admin*", "`/admin*`"),
                ("/%61*", "`/a*`"),
                ("/x/../*", "`/*`"),
                ("/a/./*", "`/a/*`"),
                ("/q?*", "`/q*`"),
                ("*?x=1", "as in `/abc`"),
                ("*%61bc", "`*abc`"),
                ("*/../y", "as in `/abc`"),
                ("*/..", "as in `/abc`"),
                ("/%61/{*}", "between the operators"),
                ("/x/../{**}", "between the operators"),
                ("/{*}/b?x", "between the operators"),
                ("/{*}a", "correct the template"),
            ],
        );
        assert!(doubtful_path("/a/*/b").is_some());
        assert_eq!(doubtful_path("/a/{*}/b*"), None);
        for value in ["/a*", "*a", "*"] {
            assert_eq!(doubtful_path(value), None, "{value}");
        }
    }

    #[test]
    fn methods_in_another_case_are_refused() {
        for value in ["GET", "DELETE", "*", "PURGE", "P*", "*T", "M-SEARCH"] {
            assert_eq!((method(value), doubtful_method(value)), (None, None), "{value}");
        }
        remedies(
            method,
            &[
                ("delete", "`DELETE`"),
                ("Get", "`GET`"),
                ("del*", "`DEL*`"),
                ("*ete", "`*ETE`"),
                ("GE T", "as in `GET`"),
                ("GET,PUT", "as in `GET`"),
            ],
        );
        for value in ["purge", "G*T", "foo*"] {
            assert!(method(value).is_none() && doubtful_method(value).is_some(), "{value}");
        }
    }

    #[test]
    fn hosts_that_no_request_has_are_refused() {
        let fine = [
            "*",
            "a",
            "A.example.com",
            "*.example.com",
            "10.0.*",
            "a:80",
            "a:*",
            "*:8080",
            "[::1]",
            "[::1]:80",
            "a_b",
            "a.",
        ];
        for value in fine {
            assert_eq!(host(value), None, "{value}");
        }
        for value in [
            "a b",
            "https://a",
            "a/b",
            "*.a/",
            "a*b",
            "\u{e9}.com",
            "[x]",
            "a:http",
            ":80",
            "::1",
            "*8080",
            "a@b",
            "a:0",
        ] {
            assert!(host(value).is_some(), "{value}");
        }
    }
}
