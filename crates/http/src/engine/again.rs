//! Whether a failed attempt is made again.

use std::time::Duration;

use ambit_model::http::rule::{Retry, RetryOn};

use crate::head::Method;

/// Further attempts where no route says how many.
const ATTEMPTS: u32 = 2;
/// The first pause where no route says how long.
const BACKOFF: Duration = Duration::from_millis(25);
/// A pause grows to so many times the first.
const LONGEST: u32 = 10;

/// Why an attempt has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// No connection came about.
    NoConnection,
    /// The service has as many connections as it may have. Another attempt would be one more.
    Full,
    /// Policies at the endpoint do not admit this proxy. Another attempt would be denied too.
    Denied,
    /// The endpoint refused the stream: it has not looked at it.
    NotRead,
    /// A connection that was used before ended without an answer. As a rule the endpoint had closed
    /// it, but it may have read the request.
    Stale,
    /// The connection ended before an answer.
    Reset,
    /// No answer in time.
    Timeout,
    /// The answer's status, and that of gRPC if its head has one.
    Status(u16, Option<u32>),
}

impl Why {
    /// Whether the application cannot have seen the request.
    fn is_unseen(self) -> bool {
        matches!(self, Self::NoConnection | Self::NotRead)
    }
}

/// Whether one more attempt may be made, after so many.
pub(crate) fn may_try_again(
    retry: Option<&Retry>,
    why: Why,
    method: &Method,
    attempts: u32,
) -> bool {
    let most = retry.map_or(ATTEMPTS, |it| it.attempts);
    if attempts > most {
        return false;
    }
    // What nobody has seen can be sent again whatever it is, and whatever is asked for.
    if why.is_unseen() {
        return true;
    }
    if why == Why::Stale && is_idempotent(method) {
        return true;
    }
    let Some(retry) = retry else { return false };
    (retry.is_for_all_methods || is_idempotent(method)) && retry.on.iter().any(|on| is(*on, why))
}

fn is(on: RetryOn, why: Why) -> bool {
    match (on, why) {
        (RetryOn::ConnectFailure, Why::NoConnection) => true,
        (RetryOn::RefusedStream, Why::NotRead) => true,
        (RetryOn::Reset, Why::Reset | Why::Stale) => true,
        (RetryOn::Status(504) | RetryOn::GatewayError | RetryOn::ServerError, Why::Timeout) => true,
        (RetryOn::GatewayError | RetryOn::ServerError, Why::Reset | Why::Stale) => true,
        (RetryOn::Status(wanted), Why::Status(status, _)) => wanted == status,
        (RetryOn::ServerError, Why::Status(status, _)) => status >= 500,
        (RetryOn::GatewayError, Why::Status(status, _)) => (502..=504).contains(&status),
        (RetryOn::Grpc(wanted), Why::Status(_, status)) => status == Some(wanted),
        _ => false,
    }
}

/// RFC 9110, 9.2.2.
fn is_idempotent(method: &Method) -> bool {
    matches!(method.as_str(), "GET" | "HEAD" | "OPTIONS" | "TRACE" | "PUT" | "DELETE")
}

/// The bound of the pause before the next attempt, which doubles each time.
pub(crate) fn longest_pause(retry: Option<&Retry>, attempts: u32) -> Duration {
    let base = retry.map_or(BACKOFF, |it| it.backoff);
    base * 2_u32.saturating_pow(attempts.saturating_sub(1)).min(LONGEST)
}

/// How long to wait before the next attempt: at random up to the bound.
pub(crate) fn pause(
    retry: Option<&Retry>,
    attempts: u32,
    random_below: impl FnOnce(u64) -> u64,
) -> Duration {
    let bound = longest_pause(retry, attempts);
    let micros = u64::try_from(bound.as_micros()).unwrap_or(u64::MAX).max(1);
    Duration::from_micros(random_below(micros))
}
