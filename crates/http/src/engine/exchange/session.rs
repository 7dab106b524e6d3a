//! What keeps the requests of one client with one endpoint: a session, or a hash of something that
//! the request says.
//!
//! What a client keeps of a session names its endpoint, the backend among several of a rule (also
//! one that no new session would be given: GEP-1619), and when it began and was last used where
//! that is limited. It is not signed: a client can name any endpoint of a backend of the rule, and
//! nothing else.

use std::hash::{Hash as _, Hasher as _};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ambit_model::http::rule::{Backend, Destination, Session, SessionKeeper};
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
    /// What the client keeps of its session, if that is in force.
    kept: Option<Kept>,
}

/// What a client keeps of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kept {
    /// The hash of its endpoint.
    endpoint: u64,
    /// The hash of its backend, of a rule that has several; else zero.
    backend: u64,
    /// When it began, in seconds since 1970; zero if that is not limited.
    began_unix_s: u64,
    /// When it was last noted as used, in seconds since 1970; zero if that is not limited.
    used_unix_s: u64,
}

impl Kept {
    /// Reads it: an endpoint alone, or all four, in hexadecimal digits.
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-').map(|part| u64::from_str_radix(part, 16).ok());
        let mut part = || parts.next().unwrap_or(Some(0));
        let kept = Self {
            endpoint: part()?,
            backend: part()?,
            began_unix_s: part()?,
            used_unix_s: part()?,
        };
        parts.next().is_none().then_some(kept)
    }

    fn text(self) -> String {
        let Self { endpoint, backend, began_unix_s, used_unix_s } = self;
        match (backend, began_unix_s, used_unix_s) {
            (0, 0, 0) => format!("{endpoint:016x}"),
            _ => format!("{endpoint:016x}-{backend:016x}-{began_unix_s:x}-{used_unix_s:x}"),
        }
    }

    /// Whether it is in force. What is not limited may say when it began anyway.
    fn holds(self, session: &Session, now_unix_s: u64) -> bool {
        let is_within = |since: u64, limit: Option<Duration>| {
            let age = now_unix_s.checked_sub(since);
            limit.is_none_or(|limit| age.is_some_and(|age| age < limit.as_secs()))
        };
        is_within(self.began_unix_s, session.absolute_timeout)
            && is_within(self.used_unix_s, session.idle_timeout)
    }
}

fn now_unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// What the client keeps of its session, if that is in force.
fn kept(fields: &Fields, session: &Session, now_unix_s: u64) -> Option<Kept> {
    let value = match &session.keeper {
        SessionKeeper::Cookie { name, .. } => cookie(fields, name),
        SessionKeeper::Header(name) => text(fields, name),
    };
    value.and_then(Kept::parse).filter(|it| it.holds(session, now_unix_s))
}

/// The name of a backend among those of its rule.
fn backend_hash(backend: &Backend) -> u64 {
    match &backend.destination {
        Destination::Service { name, port, subset } => {
            let subset = subset.as_deref().unwrap_or_default();
            hash_of(&format!("{name}:{port}/{subset}"))
        }
        Destination::Invalid(_) => 0,
    }
}

/// The backend of several that the client's session names, whatever its weight.
pub(super) fn backend<'b>(
    fields: &Fields,
    session: Option<&Session>,
    backends: &'b [Backend],
) -> Option<&'b Backend> {
    let session = session.filter(|_| backends.len() > 1)?;
    let kept = kept(fields, session, now_unix_s())?;
    let is_service = |it: &&Backend| matches!(it.destination, Destination::Service { .. });
    backends.iter().filter(is_service).find(|it| backend_hash(it) == kept.backend)
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
    sticky.kept = session.and_then(|it| kept(&head.fields, it, now_unix_s()));
    sticky.pinned = sticky.kept.map(|it| it.endpoint);
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

/// The field that tells a client what to keep of its session, if that is news. `backend` is that
/// of the answer, of a rule that has several.
pub(super) fn answer(
    session: &Session,
    sticky: &Sticky,
    backend: Option<&Backend>,
    uid: &str,
) -> Option<(String, String)> {
    let told = told(session, sticky.kept, backend, uid, now_unix_s())?;
    let value = told.text();
    Some(match &session.keeper {
        SessionKeeper::Cookie { name, is_permanent } => {
            let left = |whole: Duration| {
                let end = told.began_unix_s.saturating_add(whole.as_secs());
                Duration::from_secs(end.saturating_sub(now_unix_s()))
            };
            let age = session.absolute_timeout.filter(|_| *is_permanent).map(left);
            ("set-cookie".to_owned(), set_cookie(name, &value, "/", age))
        }
        SessionKeeper::Header(name) => (name.to_string(), value),
    })
}

/// What a client is to keep, if it keeps something else. A session goes on at another endpoint when
/// its own is gone. When it was used is noted ten times in the time that it may be idle.
fn told(
    session: &Session,
    kept: Option<Kept>,
    backend: Option<&Backend>,
    uid: &str,
    now_unix_s: u64,
) -> Option<Kept> {
    let (endpoint, backend) = (hash_of(uid), backend.map(backend_hash).unwrap_or_default());
    let began = kept.map_or(now_unix_s, |it| it.began_unix_s);
    let step = session.idle_timeout.map(|idle| idle.as_secs() / 10);
    let used = kept.map_or(now_unix_s, |it| match step {
        Some(step) if now_unix_s.saturating_sub(it.used_unix_s) > step => now_unix_s,
        _ => it.used_unix_s,
    });
    let new = Kept {
        endpoint,
        backend,
        began_unix_s: session.absolute_timeout.map(|_| began).unwrap_or_default(),
        used_unix_s: session.idle_timeout.map(|_| used).unwrap_or_default(),
    };
    (kept != Some(new)).then_some(new)
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

#[cfg(test)]
mod tests {
    use ambit_model::http::rule::HeaderChanges;
    use ambit_model::names::ServiceName;

    use super::*;
    use crate::fields::FieldLimits;

    fn session(absolute_s: u64, idle_s: u64) -> Session {
        let limit = |seconds: u64| (seconds > 0).then(|| Duration::from_secs(seconds));
        Session {
            keeper: SessionKeeper::Header("s".into()),
            absolute_timeout: limit(absolute_s),
            idle_timeout: limit(idle_s),
        }
    }

    fn to(name: &str, weight: u32) -> Backend {
        Backend {
            weight,
            destination: Destination::Service {
                name: ServiceName::new("app", name),
                port: 80,
                subset: None,
            },
            request_headers: HeaderChanges::default(),
            response_headers: HeaderChanges::default(),
        }
    }

    #[test]
    fn what_a_client_keeps_is_read_as_it_is_written() {
        for (endpoint, backend, began_unix_s, used_unix_s) in
            [(1, 0, 0, 0), (u64::MAX, 2, 0, 0), (3, 0, 4, 0), (5, 6, 7, 8)]
        {
            let kept = Kept { endpoint, backend, began_unix_s, used_unix_s };
            assert_eq!(Kept::parse(&kept.text()), Some(kept));
        }
        for text in ["", "x", "1-", "1-2-3-4-5", "1-2-3-y", "11111111111111111"] {
            assert_eq!(Kept::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_session_ends_at_its_age_and_when_it_is_not_used() {
        let kept =
            |began_unix_s, used_unix_s| Kept { endpoint: 1, backend: 0, began_unix_s, used_unix_s };
        for (absolute, idle, kept, now, expected) in [
            (0, 0, kept(0, 0), 1000, true),
            (100, 0, kept(1000, 0), 1099, true),
            (100, 0, kept(1000, 0), 1100, false),
            (0, 10, kept(0, 1000), 1009, true),
            (0, 10, kept(0, 1000), 1010, false),
            (100, 10, kept(1000, 1095), 1099, true),
            (100, 10, kept(1000, 1095), 1100, false),
            // A beginning that is yet to come would be no limit.
            (100, 0, kept(2000, 0), 1000, false),
            (100, 0, kept(0, 0), 1000, false),
        ] {
            let holds = kept.holds(&session(absolute, idle), now);
            assert_eq!(holds, expected, "{absolute} {idle} {kept:?} {now}");
        }
    }

    #[test]
    fn a_client_is_told_what_is_news() {
        let both = session(100, 50);
        let backend = to("web", 1);
        let first = told(&both, None, Some(&backend), "a", 1000).expect("it is new");
        let expected = Kept {
            endpoint: hash_of("a"),
            backend: backend_hash(&backend),
            began_unix_s: 1000,
            used_unix_s: 1000,
        };
        assert_eq!(first, expected);
        assert_eq!(told(&both, Some(first), Some(&backend), "a", 1005), None);
        let used = told(&both, Some(first), Some(&backend), "a", 1006);
        assert_eq!(used, Some(Kept { used_unix_s: 1006, ..first }));
        let moved = told(&both, Some(first), Some(&backend), "b", 1001).map(|it| it.endpoint);
        assert_eq!(moved, Some(hash_of("b")));
        let plain = told(&session(0, 0), None, None, "a", 1000).expect("it is new");
        assert_eq!(plain.text(), format!("{:016x}", hash_of("a")));
        assert_eq!(told(&session(0, 0), Some(plain), None, "a", 2000), None);
    }

    #[test]
    fn a_session_names_its_backend_whatever_its_weight() {
        let backends = [to("web", 1), to("old", 0)];
        let unlimited = session(0, 0);
        let of = |value: &str, backends: &[Backend]| {
            let mut fields = Fields::new(FieldLimits::default());
            fields.append("s", value.as_bytes()).expect("a field");
            let found = backend(&fields, Some(&unlimited), backends);
            found.map(|it| it.weight)
        };
        let kept = |it: &Backend| told(&unlimited, None, Some(it), "a", 0).expect("new").text();
        assert_eq!(of(&kept(&backends[1]), &backends), Some(0));
        assert_eq!(of(&kept(&backends[0]), &backends), Some(1));
        assert_eq!(of(&kept(&to("gone", 1)), &backends), None);
        assert_eq!(of("5", &backends), None);
        assert_eq!(of(&kept(&backends[0]), &backends[..1]), None, "there is nothing to choose");
    }
}
