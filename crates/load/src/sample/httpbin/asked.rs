//! A request, as httpbin tells it.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE};
use clap::ValueEnum;
use http::header::{self, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Response, StatusCode};
use http_body_util::Full;
use hyper::body::Bytes;
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use serde_json::Value;

/// What the Python program does not show: header fields that the proxies before it wrote.
const HIDDEN: [&str; 9] = [
    "connect-time",
    "total-route-time",
    "via",
    "x-forwarded-for",
    "x-forwarded-port",
    "x-forwarded-proto",
    "x-forwarded-protocol",
    "x-real-ip",
    "x-request-id",
];

/// The program whose JSON is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Original {
    /// mccutchen/go-httpbin: headers and arguments are lists.
    Mccutchen,
    /// kennethreitz/httpbin: they are texts.
    Kennethreitz,
}

impl Original {
    /// The type of its JSON.
    pub(super) fn json(self) -> &'static str {
        match self {
            Self::Mccutchen => "application/json; charset=utf-8",
            Self::Kennethreitz => "application/json",
        }
    }
}

pub(super) type Answer = Response<Full<Bytes>>;

/// A request that gets an error.
#[derive(Debug)]
pub(super) struct Refused(pub(super) StatusCode, pub(super) String);

/// Longest body that is told as JSON, too.
const JSON_MAX_BYTES: usize = 64 << 10;

/// A JSON object in the order in which it is written.
pub(super) type Fields = Vec<(&'static str, Value)>;

/// What is the same for each request.
#[derive(Debug)]
pub(crate) struct Httpbin {
    /// The program whose JSON is written.
    pub(in crate::sample) original: Original,
    /// What `/hostname` says.
    pub(in crate::sample) hostname: String,
}

/// A request.
pub(super) struct Asked<'a> {
    pub(super) head: &'a Parts,
    pub(super) body: &'a [u8],
    pub(super) client: SocketAddr,
    pub(super) bin: &'a Httpbin,
}

impl Asked<'_> {
    /// An answer in JSON.
    pub(super) fn json(&self, code: StatusCode, fields: Fields) -> Answer {
        respond(code, self.bin.original.json(), written(&self.ordered(fields)))
    }

    /// On one line.
    pub(super) fn compact(&self, fields: Fields) -> Vec<u8> {
        serde_json::to_vec(&Object(&self.ordered(fields))).expect("texts can be written as JSON")
    }

    fn ordered(&self, mut fields: Fields) -> Fields {
        if self.bin.original == Original::Kennethreitz {
            fields.sort_by_key(|(name, _)| *name);
        }
        fields
    }

    /// All of it, with the body or without.
    pub(super) fn told(&self, with_body: bool) -> Result<Fields, Refused> {
        let mut fields: Fields = vec![
            ("args", object(self.values(self.args()))),
            ("headers", self.headers()),
            ("method", self.head.method.as_str().into()),
            ("origin", self.origin().into()),
            ("url", format!("{}{}", self.base(), self.target()).into()),
        ];
        // Only `/anything` tells it there.
        let is_silent = self.bin.original == Original::Kennethreitz
            && !self.head.uri.path().starts_with("/anything");
        if is_silent {
            fields.retain(|(name, _)| *name != "method");
        }
        if with_body {
            fields.extend(self.body()?);
        }
        Ok(fields)
    }

    fn body(&self) -> Result<Fields, Refused> {
        let kind = self.header(&header::CONTENT_TYPE);
        let kind = kind.split(';').next().unwrap_or_default().trim();
        let is_form = kind == "application/x-www-form-urlencoded";
        let form = if is_form { pairs(self.body) } else { BTreeMap::new() };
        let text = str::from_utf8(self.body).ok();
        // Longer ones are not taken apart: written in lines they are many times as long.
        let is_short = self.body.len() <= JSON_MAX_BYTES;
        let json = serde_json::from_slice(self.body).ok().filter(|_| is_short && !is_form);
        let (data, json) = match self.bin.original {
            Original::Kennethreitz => {
                let data = match text {
                    _ if is_form => String::new(),
                    Some(text) => text.to_owned(),
                    None => {
                        let data = BASE64_STANDARD.encode(self.body);
                        format!("data:application/octet-stream;base64,{data}")
                    }
                };
                (data, json)
            }
            Original::Mccutchen => match (kind, text) {
                ("application/json", _) if json.is_none() && is_short && !self.body.is_empty() => {
                    return Err(bad("the body is no JSON".to_owned()));
                }
                ("application/json", Some(text)) => (text.to_owned(), json),
                ("text/html" | "text/plain", Some(text)) => (text.to_owned(), None),
                (_, Some(text)) if is_form || text.is_empty() => (text.to_owned(), None),
                _ => {
                    let kind = if kind.is_empty() { "application/octet-stream" } else { kind };
                    (format!("data:{kind};base64,{}", BASE64_URL_SAFE.encode(self.body)), None)
                }
            },
        };
        Ok(vec![
            ("data", data.into()),
            ("files", object(Vec::new())),
            ("form", object(self.values(form))),
            ("json", json.unwrap_or(Value::Null)),
        ])
    }

    /// The query.
    pub(super) fn args(&self) -> BTreeMap<String, Vec<String>> {
        pairs(self.head.uri.query().unwrap_or_default().as_bytes())
    }

    /// Lists, or texts where there is one.
    pub(super) fn values(&self, all: BTreeMap<String, Vec<String>>) -> Vec<(String, Value)> {
        let value = |mut values: Vec<String>| match self.bin.original {
            Original::Kennethreitz if values.len() == 1 => values.remove(0).into(),
            _ => values.into(),
        };
        all.into_iter().map(|(name, values)| (name, value(values))).collect()
    }

    /// The header fields, with the host.
    pub(super) fn headers(&self) -> Value {
        let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let is_python = self.bin.original == Original::Kennethreitz;
        let shows_all = !is_python || self.args().contains_key("show_env");
        for (name, value) in &self.head.headers {
            if shows_all || !HIDDEN.contains(&name.as_str()) {
                let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
                all.entry(title(name.as_str())).or_default().push(value);
            }
        }
        all.insert("Host".to_owned(), vec![self.host().to_owned()]);
        let joined = |values: Vec<String>| match is_python {
            true => values.join(",").into(),
            false => values.into(),
        };
        object(all.into_iter().map(|(name, values)| (name, joined(values))).collect())
    }

    /// The first value of a header field, or nothing.
    pub(super) fn header(&self, name: &HeaderName) -> &str {
        let value = self.head.headers.get(name);
        value.and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// The client, as far as proxies say who it is.
    pub(super) fn origin(&self) -> String {
        let forwarded = self.header(&HeaderName::from_static("x-forwarded-for"));
        let first = forwarded.split(',').next().unwrap_or_default().trim();
        match self.bin.original {
            _ if forwarded.is_empty() => self.client.ip().to_string(),
            Original::Mccutchen => first.to_owned(),
            Original::Kennethreitz => forwarded.to_owned(),
        }
    }

    /// The cookies that came.
    pub(super) fn cookies(&self) -> Vec<(String, Value)> {
        let pairs = self.header(&header::COOKIE).split(';').filter_map(|it| it.split_once('='));
        let cookies = pairs.map(|(name, value)| (name.trim().to_owned(), value.trim().into()));
        let mut sorted: Vec<(String, Value)> = cookies.collect();
        sorted.sort_by(|(a, _), (b, _)| a.cmp(b));
        sorted
    }

    fn host(&self) -> &str {
        let authority = self.head.uri.authority().map(|it| it.as_str());
        authority.unwrap_or_else(|| self.header(&header::HOST))
    }

    /// Scheme and host.
    pub(super) fn base(&self) -> String {
        let scheme = match self.header(&HeaderName::from_static("x-forwarded-proto")) {
            "https" => "https",
            _ => "http",
        };
        format!("{scheme}://{}", self.host())
    }

    fn target(&self) -> &str {
        self.head.uri.path_and_query().map_or("/", |it| it.as_str())
    }
}

pub(super) fn bad(text: String) -> Refused {
    Refused(StatusCode::BAD_REQUEST, text)
}

/// An answer of this type.
pub(super) fn respond(code: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = code;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

/// An object in lines, as both programs write it.
pub(super) fn written<N: AsRef<str>>(fields: &[(N, Value)]) -> Vec<u8> {
    let text = serde_json::to_vec_pretty(&Object(fields));
    let mut text = text.expect("texts can be written as JSON");
    text.push(b'\n');
    text
}

/// Written in its own order.
struct Object<'a, N>(&'a [(N, Value)]);

impl<N: AsRef<str>> Serialize for Object<'_, N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in self.0 {
            map.serialize_entry(name.as_ref(), value)?;
        }
        map.end()
    }
}

pub(super) fn object(fields: Vec<(String, Value)>) -> Value {
    Value::Object(fields.into_iter().collect())
}

fn pairs(text: &[u8]) -> BTreeMap<String, Vec<String>> {
    let mut pairs: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, value) in form_urlencoded::parse(text) {
        pairs.entry(name.into_owned()).or_default().push(value.into_owned());
    }
    pairs
}

/// `x-request-id` as `X-Request-Id`.
fn title(name: &str) -> String {
    let mut is_first = true;
    let letters = name.chars().map(|letter| {
        let letter = if is_first { letter.to_ascii_uppercase() } else { letter };
        is_first = letter == '-';
        letter
    });
    letters.collect()
}
