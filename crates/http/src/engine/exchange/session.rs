//! What keeps the requests of one client with one endpoint: a session, or a hash of something that
//! the request says.

use std::hash::{Hash as _, Hasher as _};
use std::time::Duration;

use ambit_model::http::rule::{Session, SessionKeeper};
use ambit_model::http::traffic::{Balancing, HashKey};

use crate::engine::position::Arrival;
use crate::fields::{Fields, known::Known};
use crate::head::RequestHead;

/// What decides the endpoint of a request.
#[derive(Debug, Default)]
pub(super) struct Sticky {
    /// The hash of the endpoint that the client's session names.
    pub(super) pinned: Option<u64>,
    /// A hash of something of the request.
    pub(super) hash: Option<u64>,
    /// A cookie that is to be set, so that the next request has it.
    pub(super) new_cookie: Option<String>,
}

/// The hash by which a session names an endpoint; its name itself is not for clients.
pub fn hash_of(uid: &str) -> u64 {
    let mut hasher = rustc_hash::FxHasher::default();
    uid.hash(&mut hasher);
    // The hasher's low bits alone are weak.
    hasher.finish().wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Reads what the request says.
pub(super) fn sticky(
    head: &RequestHead,
    arrival: &Arrival,
    session: Option<&Session>,
    balancing: &Balancing,
    random: impl FnOnce() -> u64,
) -> Sticky {
    let mut sticky = Sticky::default();
    if let Some(session) = session {
        let value = match &session.keeper {
            SessionKeeper::Cookie { name, .. } => cookie(&head.fields, name),
            SessionKeeper::Header(name) => text(&head.fields, name),
        };
        sticky.pinned = value.and_then(|it| u64::from_str_radix(it, 16).ok());
    }
    let Balancing::Hash(key) = balancing else { return sticky };
    sticky.hash = match key {
        HashKey::Header(name) => text(&head.fields, name).map(hash_of),
        HashKey::Cookie { name, path, lifetime } => match cookie(&head.fields, name) {
            Some(value) => Some(hash_of(value)),
            None => lifetime.map(|lifetime| {
                let value = format!("{:016x}", random());
                let age = Some(lifetime).filter(|it| !it.is_zero());
                let path = path.as_deref().unwrap_or("/");
                sticky.new_cookie = Some(set_cookie(name, &value, path, age));
                hash_of(&value)
            }),
        },
        HashKey::Parameter(name) => parameter(head, name).map(hash_of),
        HashKey::SourceIp => Some(hash_of(&arrival.client.ip().to_string())),
    };
    sticky
}

/// The field that tells a client its session's endpoint, if that is not the one that it named.
pub(super) fn answer(
    session: &Session,
    pinned: Option<u64>,
    uid: &str,
) -> Option<(String, String)> {
    let hash = hash_of(uid);
    if pinned == Some(hash) {
        return None;
    }
    let value = format!("{hash:016x}");
    Some(match &session.keeper {
        SessionKeeper::Cookie { name, is_permanent } => {
            let age = session.absolute_timeout.filter(|_| *is_permanent);
            ("set-cookie".to_owned(), set_cookie(name, &value, "/", age))
        }
        SessionKeeper::Header(name) => (name.to_string(), value),
    })
}

fn set_cookie(name: &str, value: &str, path: &str, age: Option<Duration>) -> String {
    let age = age.map(|age| format!("; Max-Age={}", age.as_secs())).unwrap_or_default();
    format!("{name}={value}; Path={path}{age}; HttpOnly; SameSite=Lax")
}

fn text<'a>(fields: &'a Fields, name: &str) -> Option<&'a str> {
    let named = fields.iter().find(|it| it.name.eq_ignore_ascii_case(name.as_bytes()))?;
    std::str::from_utf8(named.value).ok()
}

fn cookie<'a>(fields: &'a Fields, name: &str) -> Option<&'a str> {
    let lines = fields.all(Known::Cookie).filter_map(|it| std::str::from_utf8(it).ok());
    let pairs = lines.flat_map(|line| line.split(';'));
    let mut named = pairs.filter_map(|pair| pair.trim().split_once('='));
    named.find(|(key, _)| *key == name).map(|(_, value)| value)
}

fn parameter<'a>(head: &'a RequestHead, name: &str) -> Option<&'a str> {
    let pairs = head.path()?.query()?.split('&');
    let mut named = pairs.filter_map(|pair| pair.split_once('='));
    named.find(|(key, _)| *key == name).map(|(_, value)| value)
}
