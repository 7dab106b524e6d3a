//! How long the requests of a rule may take, when they are made again, and what keeps a client with
//! one endpoint.

use std::time::Duration;

use ambit_model::http::rule::{Retry, RetryOn, Session, SessionKeeper, Timeouts};
use ambit_words::durations::parse_duration;

use super::problem::Problems;
use crate::FieldPath;
use crate::routes::{RouteRetry, RouteTimeouts, SessionPersistence};
use crate::validate::names;

/// Further attempts, where a `retry` does not say how many: Istio's number.
const DEFAULT_ATTEMPTS: u32 = 2;
/// Most further attempts.
const ATTEMPTS_MAX: u32 = 100;
/// The first pause, where a `retry` does not say how long: Envoy's.
const DEFAULT_BACKOFF: Duration = Duration::from_millis(25);
/// Most numbers with units in a duration, and most digits in each (GEP-2257).
const DURATION_PARTS_MAX: usize = 4;
const DURATION_DIGITS_MAX: usize = 5;

/// The limits of a rule.
pub(super) fn timeouts(
    written: Option<&RouteTimeouts>,
    at: &FieldPath,
    problems: &mut Problems,
) -> Timeouts {
    let Some(written) = written else { return Timeouts::default() };
    let request = limit(written.request.as_deref(), &at.field("request"), problems);
    let at_backend = at.field("backendRequest");
    let backend = limit(written.backend_request.as_deref(), &at_backend, problems);
    if let (Some(all), Some(one)) = (request, backend)
        && one > all
    {
        let what = "one attempt may take longer than the whole request";
        problems.unsupported(&at_backend, what, "make it at most as long as `request`");
    }
    Timeouts { request, backend, response_head: None }
}

/// A limit; zero is none.
fn limit(text: Option<&str>, at: &FieldPath, problems: &mut Problems) -> Option<Duration> {
    duration(text?, at, problems).filter(|limit| !limit.is_zero())
}

/// A duration as the Gateway API writes it: GEP-2257.
fn duration(text: &str, at: &FieldPath, problems: &mut Problems) -> Option<Duration> {
    let parsed = is_duration(text).then(|| parse_duration(text).ok()).flatten();
    if parsed.is_none() {
        let what = format!("`{text}` is not a duration");
        problems.unsupported(at, what, "write for example 500ms, 90s or 1h30m");
    }
    parsed
}

fn is_duration(text: &str) -> bool {
    let mut rest = text;
    for _ in 0..DURATION_PARTS_MAX {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        if !(1..=DURATION_DIGITS_MAX).contains(&digits) {
            return false;
        }
        let unit = ["ms", "h", "m", "s"].into_iter().find(|unit| rest[digits..].starts_with(unit));
        let Some(unit) = unit else { return false };
        rest = &rest[digits + unit.len()..];
        if rest.is_empty() {
            return true;
        }
    }
    false
}

/// When a rule's requests are made again. Whoever writes a `retry` asks for it: the Gateway API
/// makes no difference between methods, and wants failed connections retried too.
pub(super) fn retry(
    written: Option<&RouteRetry>,
    at: &FieldPath,
    problems: &mut Problems,
) -> Option<Retry> {
    let written = written?;
    let mut on = vec![RetryOn::ConnectFailure, RetryOn::RefusedStream, RetryOn::Reset];
    for (index, code) in written.codes.iter().enumerate() {
        match u16::try_from(*code) {
            Ok(code @ 400..=599) => on.push(RetryOn::Status(code)),
            _ => {
                let at = at.field("codes").index(index);
                problems.unsupported(
                    &at,
                    format!("{code} is no status of an error"),
                    "use 400 to 599",
                );
            }
        }
    }
    let attempts = match written.attempts.map(u32::try_from) {
        None => DEFAULT_ATTEMPTS,
        Some(Ok(attempts)) if attempts <= ATTEMPTS_MAX => attempts,
        Some(_) => {
            let what = format!("{} attempts cannot be made", written.attempts.unwrap_or_default());
            problems.unsupported(&at.field("attempts"), what, format!("use 0 to {ATTEMPTS_MAX}"));
            0
        }
    };
    let backoff = written.backoff.as_deref();
    let backoff = backoff.and_then(|text| duration(text, &at.field("backoff"), problems));
    (attempts > 0).then(|| Retry {
        attempts,
        on,
        backoff: backoff.unwrap_or(DEFAULT_BACKOFF),
        is_for_all_methods: true,
    })
}

/// What keeps a client of a rule with one endpoint; `own_name` is the name of a session that has
/// none.
pub(super) fn session(
    written: Option<&SessionPersistence>,
    own_name: &str,
    at: &FieldPath,
    problems: &mut Problems,
) -> Option<Session> {
    let written = written?;
    let name = written.session_name.as_deref().unwrap_or(own_name);
    if let Some(what) = names::field_name(name) {
        problems.unsupported(&at.field("sessionName"), what, "correct the name");
    }
    let absolute = written.absolute_timeout.as_deref();
    let absolute_timeout = limit(absolute, &at.field("absoluteTimeout"), problems);
    let idle_timeout = limit(written.idle_timeout.as_deref(), &at.field("idleTimeout"), problems);
    let keeper = match written.kind.as_deref().unwrap_or("Cookie") {
        "Cookie" => {
            let is_permanent = is_permanent(written, at, problems);
            if is_permanent && absolute_timeout.is_none() {
                let what = "a permanent cookie needs an end";
                problems.unsupported(at, what, "add `absoluteTimeout`");
            }
            SessionKeeper::Cookie { name: name.into(), is_permanent }
        }
        "Header" => {
            if written.cookie_config.is_some() {
                let at = at.field("cookieConfig");
                let what = "a session in a field has no cookie";
                problems.unsupported(&at, what, "remove it, or use `type: Cookie`");
            }
            SessionKeeper::Header(name.to_ascii_lowercase().into())
        }
        other => {
            let what = format!("a session cannot be kept by `{other}`");
            problems.unsupported(&at.field("type"), what, "use Cookie or Header");
            return None;
        }
    };
    Some(Session { keeper, absolute_timeout, idle_timeout })
}

fn is_permanent(written: &SessionPersistence, at: &FieldPath, problems: &mut Problems) -> bool {
    let lifetime = written.cookie_config.as_ref().and_then(|it| it.lifetime_type.as_deref());
    match lifetime.unwrap_or("Session") {
        "Session" => false,
        "Permanent" => true,
        other => {
            let at = at.field("cookieConfig").field("lifetimeType");
            let what = format!("a cookie has no lifetime `{other}`");
            problems.unsupported(&at, what, "use Session or Permanent");
            false
        }
    }
}
