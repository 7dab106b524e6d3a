//! httpbin: answers with what it was asked.
//!
//! Istio's samples ran kennethreitz/httpbin and run mccutchen/go-httpbin. Their paths are the same,
//! their JSON differs, and this writes either. Multipart bodies come back as they came: nothing
//! here takes them apart.

mod asked;

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use ambit_net::drain::Guard;
use ambit_words::durations::parse_duration;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, StatusCode, Version};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::time::sleep;

use asked::{Answer, Asked, Fields, Refused, bad, object, respond, written};
pub(super) use asked::{Httpbin, Original};

use super::server;

/// Largest body that is read.
const BODY_MAX_BYTES: usize = 1 << 20;
/// Longest delay.
const DELAY_MAX: Duration = Duration::from_secs(10);
/// Most bytes that `/bytes/N` sends.
const BYTES_MAX: usize = 100 << 10;
/// Most lines that `/stream/N` sends.
const LINES_MAX: usize = 100;
/// Fewer, when they are so long.
const STREAM_MAX_BYTES: usize = 1 << 20;
/// What kennethreitz/httpbin says as a teapot, as far as anybody looks for it.
const TEAPOT: &str = "\n    -=[ teapot ]=-\n\n";
const HTML: &str = "text/html; charset=utf-8";
const PAGE: &str = "<!DOCTYPE html>\n<html><body><h1>httpbin</h1></body></html>\n";
const PATHS: &str = "/get /post /put /patch /delete /anything/... /headers /ip /user-agent /uuid \
                     /hostname /cookies /status/CODE[,CODE] /delay/SECONDS /bytes/N /stream/N \
                     /response-headers?NAME=VALUE /redirect/N /relative-redirect/N \
                     /absolute-redirect/N /redirect-to?url=URL&status_code=CODE \
                     /basic-auth/USER/PASSWORD /bearer /html\n";

/// Serves until it is asked to end.
pub(super) async fn serve(listener: TcpListener, guard: Guard, bin: Httpbin) {
    let bin = Rc::new(bin);
    let answer = move |request: Request<Incoming>, ends: server::Ends| {
        let bin = bin.clone();
        async move { bin.serve(request, ends.peer).await }
    };
    server::serve_http(listener, guard, true, answer).await;
}

impl Httpbin {
    /// Answers, and says so on a line of the log as the originals do.
    async fn serve(&self, request: Request<Incoming>, client: SocketAddr) -> Answer {
        let (head, body) = request.into_parts();
        let answered = match Limited::new(body, BODY_MAX_BYTES).collect().await {
            Ok(body) => {
                let body = body.to_bytes();
                answer(&Asked { head: &head, body: &body, client, bin: self }).await
            }
            Err(error) => Err(bad(format!("cannot read the body: {error}"))),
        };
        let mut answer = answered.unwrap_or_else(|refused| refusal(self.original, &refused));
        let headers = answer.headers_mut();
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
        headers.insert(header::ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
        if head.method == Method::OPTIONS {
            let methods = HeaderValue::from_static("GET, POST, HEAD, PUT, DELETE, PATCH, OPTIONS");
            headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
        }
        if head.method == Method::HEAD && head.version == Version::HTTP_2 {
            // Of HTTP/1 hyper leaves it out by itself.
            *answer.body_mut() = Full::default();
        }
        let (method, uri, code) = (&head.method, &head.uri, answer.status().as_u16());
        let client = client.ip();
        server::log(&format!("{client} - - \"{method} {uri} {:?}\" {code}\n", head.version));
        answer
    }
}

async fn answer(asked: &Asked<'_>) -> Result<Answer, Refused> {
    let path = asked.head.uri.path().to_owned();
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    match parts[..] {
        _ if asked.head.method == Method::OPTIONS => Ok(plain_text(StatusCode::OK, "")),
        ["delay", text] => {
            sleep(delay(text, asked.bin.original)?).await;
            Ok(asked.json(StatusCode::OK, asked.told(true)?))
        }
        ["get"] => {
            allow(asked, &[Method::GET, Method::HEAD])?;
            Ok(asked.json(StatusCode::OK, asked.told(false)?))
        }
        [name @ ("post" | "put" | "patch" | "delete")] => {
            let method = Method::from_bytes(name.to_ascii_uppercase().as_bytes());
            allow(asked, &[method.expect("letters are a method")])?;
            Ok(asked.json(StatusCode::OK, asked.told(true)?))
        }
        ["anything", ..] => Ok(asked.json(StatusCode::OK, asked.told(true)?)),
        _ => plain(asked, &parts),
    }
}

/// What has nothing to do with the body.
fn plain(asked: &Asked<'_>, parts: &[&str]) -> Result<Answer, Refused> {
    let one = |name, value: Value| Ok(asked.json(StatusCode::OK, vec![(name, value)]));
    match *parts {
        [""] => Ok(plain_text(StatusCode::OK, PATHS)),
        ["headers"] => one("headers", asked.headers()),
        ["ip"] => one("origin", asked.origin().into()),
        ["user-agent"] => one("user-agent", asked.header(&header::USER_AGENT).into()),
        ["uuid"] => one("uuid", uuid().into()),
        ["hostname"] => one("hostname", asked.bin.hostname.as_str().into()),
        ["cookies"] if asked.bin.original == Original::Kennethreitz => {
            one("cookies", object(asked.cookies()))
        }
        ["cookies"] => {
            Ok(respond(StatusCode::OK, asked.bin.original.json(), written(&asked.cookies())))
        }
        ["html"] => Ok(respond(StatusCode::OK, HTML, PAGE)),
        ["status", codes] => status(codes, asked.bin.original),
        ["bytes", text] => {
            let bytes = number(text)?.min(BYTES_MAX);
            let body: Vec<u8> =
                (0..bytes.div_ceil(8)).flat_map(|_| random().to_le_bytes()).take(bytes).collect();
            Ok(respond(StatusCode::OK, "application/octet-stream", body))
        }
        ["stream", text] => stream(asked, number(text)?.clamp(1, LINES_MAX)),
        ["response-headers"] => response_headers(asked),
        ["redirect" | "relative-redirect", text] => redirect(asked, text, false),
        ["absolute-redirect", text] => redirect(asked, text, true),
        ["redirect-to"] => redirect_to(asked),
        ["basic-auth", user, password] => Ok(basic_auth(asked, user, password)),
        ["bearer"] => Ok(bearer(asked)),
        _ => Err(Refused(StatusCode::NOT_FOUND, format!("there is: {}", PATHS.trim_end()))),
    }
}

fn allow(asked: &Asked<'_>, methods: &[Method]) -> Result<(), Refused> {
    if methods.contains(&asked.head.method) {
        return Ok(());
    }
    let text = format!("{} only takes {}", asked.head.uri.path(), methods[0]);
    Err(Refused(StatusCode::METHOD_NOT_ALLOWED, text))
}

/// Seconds, or a duration with its unit.
fn delay(text: &str, original: Original) -> Result<Duration, Refused> {
    let seconds = text.parse().ok().and_then(|it| Duration::try_from_secs_f64(it).ok());
    let delay = seconds.or_else(|| parse_duration(text).ok());
    let delay = delay.ok_or_else(|| bad(format!("{text:?} is no number of seconds")))?;
    match original {
        Original::Mccutchen if delay > DELAY_MAX => {
            Err(bad(format!("a delay is at most {} s", DELAY_MAX.as_secs())))
        }
        _ => Ok(delay.min(DELAY_MAX)),
    }
}

/// One of the codes, which may have weights.
fn status(codes: &str, original: Original) -> Result<Answer, Refused> {
    let mut choices = Vec::new();
    for choice in codes.split(',') {
        let (code, weight) = choice.split_once(':').unwrap_or((choice, "1"));
        // One below 200 would not be the answer: another follows it.
        let code = code.parse().ok().filter(|code| (200..600).contains(code));
        let code = code.and_then(|code| StatusCode::from_u16(code).ok());
        let weight = weight.parse().ok().filter(|it: &f64| (0.0..=1e6).contains(it));
        let wrong = || bad(format!("{choice:?} is no status from 200 to 599, CODE or CODE:WEIGHT"));
        choices.push(code.zip(weight).ok_or_else(wrong)?);
    }
    let all: f64 = choices.iter().map(|(_, weight)| weight).sum();
    // Of a random number the highest 53 bits are a fraction.
    let mut left = all * ((random() >> 11) as f64 / (1_u64 << 53) as f64);
    let chosen = choices.iter().find(|(_, weight)| {
        left -= weight;
        left < 0.0
    });
    let (code, _) = *chosen.unwrap_or(&choices[0]);
    let mut answer = plain_text(code, "");
    let headers = answer.headers_mut();
    match code.as_u16() {
        301 | 302 | 303 | 305 | 307 => {
            headers.insert(header::LOCATION, HeaderValue::from_static("/redirect/1"));
        }
        401 => drop(headers.insert(header::WWW_AUTHENTICATE, REALM)),
        407 => drop(headers.insert(header::PROXY_AUTHENTICATE, REALM)),
        418 => {
            let is_go = original == Original::Mccutchen;
            *answer.body_mut() = Full::from(if is_go { "I'm a teapot!" } else { TEAPOT });
        }
        _ => {}
    }
    Ok(answer)
}

const REALM: HeaderValue = HeaderValue::from_static("Basic realm=\"Fake Realm\"");

fn stream(asked: &Asked<'_>, lines: usize) -> Result<Answer, Refused> {
    let mut text = Vec::new();
    let mut fields = asked.told(false)?;
    fields.retain(|(name, _)| *name != "method");
    for id in 0..lines {
        let mut line: Fields = vec![("id", id.into())];
        line.extend(fields.iter().cloned());
        text.extend(asked.compact(line));
        text.push(b'\n');
        if text.len() > STREAM_MAX_BYTES {
            break;
        }
    }
    Ok(respond(StatusCode::OK, asked.bin.original.json(), text))
}

fn response_headers(asked: &Asked<'_>) -> Result<Answer, Refused> {
    let mut headers = HeaderMap::new();
    for (name, values) in asked.args() {
        for value in values {
            let name = HeaderName::from_bytes(name.as_bytes());
            match (name, HeaderValue::from_str(&value)) {
                (Ok(name), Ok(value)) => drop(headers.append(name, value)),
                _ => return Err(bad("an argument is no header field".to_owned())),
            }
        }
    }
    // What says how long the body is, or how it is sent, is not for others to say.
    for own in [header::CONTENT_LENGTH, header::TRANSFER_ENCODING, header::CONNECTION] {
        headers.remove(own);
    }
    let body = written(&asked.values(asked.args()));
    let mut answer = respond(StatusCode::OK, asked.bin.original.json(), body);
    answer.headers_mut().extend(headers);
    Ok(answer)
}

fn redirect(asked: &Asked<'_>, text: &str, is_absolute: bool) -> Result<Answer, Refused> {
    let left = number(text)?.checked_sub(1);
    let left = left.ok_or_else(|| bad("a number of redirects is at least 1".to_owned()))?;
    let way = if is_absolute { "absolute" } else { "relative" };
    let path = if left == 0 { "/get".to_owned() } else { format!("/{way}-redirect/{left}") };
    let base = if is_absolute { asked.base() } else { String::new() };
    to(&format!("{base}{path}"), StatusCode::FOUND)
}

fn redirect_to(asked: &Asked<'_>) -> Result<Answer, Refused> {
    let mut args = asked.args();
    let mut take = |name| args.remove(name).and_then(|values| values.into_iter().next());
    let url = take("url").ok_or_else(|| bad("write ?url=URL".to_owned()))?;
    let code = take("status_code").map_or(Some(302), |code| code.parse().ok());
    let code = code.filter(|code| (300..400).contains(code));
    let code = code.and_then(|code| StatusCode::from_u16(code).ok());
    to(&url, code.ok_or_else(|| bad("status_code is a number from 300 to 399".to_owned()))?)
}

fn to(location: &str, code: StatusCode) -> Result<Answer, Refused> {
    let location = HeaderValue::from_str(location);
    let location = location.map_err(|_| bad("the URL is no header value".to_owned()))?;
    let mut answer = plain_text(code, "");
    answer.headers_mut().insert(header::LOCATION, location);
    Ok(answer)
}

fn basic_auth(asked: &Asked<'_>, user: &str, password: &str) -> Answer {
    let given = asked.header(&header::AUTHORIZATION);
    let given = given.strip_prefix("Basic ").and_then(|text| BASE64_STANDARD.decode(text).ok());
    let given = String::from_utf8(given.unwrap_or_default()).unwrap_or_default();
    let is_it = given.split_once(':') == Some((user, password));
    let code = if is_it { StatusCode::OK } else { StatusCode::UNAUTHORIZED };
    let user = given.split(':').next().unwrap_or_default();
    let mut fields: Fields = vec![("authenticated", is_it.into()), ("user", user.into())];
    if asked.bin.original == Original::Mccutchen {
        fields.push(("authorized", is_it.into()));
    }
    let mut answer = asked.json(code, fields);
    if !is_it {
        answer.headers_mut().insert(header::WWW_AUTHENTICATE, REALM);
    }
    answer
}

fn bearer(asked: &Asked<'_>) -> Answer {
    match asked.header(&header::AUTHORIZATION).strip_prefix("Bearer ") {
        Some(token) => {
            let fields = vec![("authenticated", true.into()), ("token", token.into())];
            asked.json(StatusCode::OK, fields)
        }
        None => {
            let mut answer = plain_text(StatusCode::UNAUTHORIZED, "");
            let scheme = HeaderValue::from_static("Bearer");
            answer.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
            answer
        }
    }
}

fn number(text: &str) -> Result<usize, Refused> {
    text.parse().map_err(|_| bad(format!("{text:?} is no number")))
}

fn plain_text(code: StatusCode, body: impl Into<Bytes>) -> Answer {
    respond(code, "text/plain; charset=utf-8", body)
}

fn refusal(original: Original, Refused(code, text): &Refused) -> Answer {
    match original {
        Original::Mccutchen => {
            let reason = code.canonical_reason().unwrap_or_default();
            let fields: Fields = vec![
                ("status_code", code.as_u16().into()),
                ("error", reason.into()),
                ("detail", text.as_str().into()),
            ];
            respond(*code, original.json(), written(&fields))
        }
        Original::Kennethreitz => plain_text(*code, format!("{text}\n")),
    }
}

/// Enough for a sample; no secret is made of it.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

fn uuid() -> String {
    let (high, low) = (random(), random());
    // Version 4, variant 10 (RFC 9562 section 5.4).
    let (high, low) = ((high & !0xf000) | 0x4000, (low & !(3 << 62)) | (1 << 63));
    let text = format!("{high:016x}{low:016x}");
    let parts = [&text[..8], &text[8..12], &text[12..16], &text[16..20], &text[20..]];
    parts.join("-")
}

#[cfg(test)]
mod tests;
