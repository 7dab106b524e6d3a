//! When a change is first seen: requests one after the other on a connection, and the moment at
//! which a field of the answer first had each of its values.
//!
//! Moments are those of the system's clock, so that another process of the same machine, which
//! made the change, can compare them with its own.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{HOST, HeaderName};
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use super::flags::resolve;
use super::plan::{Protocol, Target, duration};

/// The longest wait for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// As many values are kept.
const VALUES_MAX: usize = 100_000;

/// What to ask for, and what to look at.
#[derive(Clone, Debug, clap::Args)]
pub struct SeenArgs {
    /// What is asked for, as `http://HOST[:PORT]/PATH`.
    pub url: String,
    /// The field of the answers whose values are of interest.
    #[arg(long)]
    pub field: HeaderName,
    /// How long.
    #[arg(long, default_value = "5", value_parser = duration)]
    pub seconds: Duration,
    /// The time between an answer and the next request.
    #[arg(long, default_value = "1ms", value_parser = duration)]
    pub pause: Duration,
}

/// What was seen.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SeenResult {
    /// Requests that were sent.
    pub requests: u64,
    /// Of these, the ones without an answer of 200.
    pub failed: u64,
    /// The values in the order in which they came, each whenever it differs from the one before.
    pub values: Vec<Seen>,
}

/// A value that was not there with the answer before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// The value.
    pub value: String,
    /// When its answer was there, in microseconds since 1970.
    pub at_us: u64,
}

/// Asks until the time is over.
pub(super) async fn run(args: &SeenArgs) -> Result<SeenResult> {
    let target = Target::parse(&args.url, Some(Protocol::Http1))?;
    let end = Instant::now() + args.seconds;
    let mut seen = SeenResult::default();
    let mut sender = None;
    while Instant::now() < end {
        seen.requests += 1;
        match timeout(ANSWER_TIMEOUT, ask(&mut sender, &target, &args.field)).await {
            Ok(Ok(value)) => {
                let is_new = seen.values.last().is_none_or(|last| last.value != value);
                if is_new && seen.values.len() < VALUES_MAX {
                    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
                    let at_us = u64::try_from(now.as_micros())?;
                    seen.values.push(Seen { value, at_us });
                }
            }
            Ok(Err(_)) | Err(_) => {
                seen.failed += 1;
                sender = None;
            }
        }
        sleep(args.pause).await;
    }
    Ok(seen)
}

/// Sends a request on the connection, or on another where it has ended; returns the field's value.
async fn ask(
    sender: &mut Option<SendRequest<Empty<Bytes>>>,
    target: &Target,
    field: &HeaderName,
) -> Result<String> {
    let mut open = match sender.take().filter(|it| !it.is_closed()) {
        Some(open) => open,
        None => {
            let stream = TcpStream::connect(resolve(&target.address).await?).await?;
            stream.set_nodelay(true)?;
            let (open, connection) = handshake(TokioIo::new(stream)).await?;
            // Its end shows in the requests that it carries.
            tokio::task::spawn_local(async move { connection.await.is_ok() });
            open
        }
    };
    open.ready().await.context("the connection has ended")?;
    let request = hyper::Request::get(&target.path).header(HOST, &target.authority);
    let answer = open.send_request(request.body(Empty::new())?).await?;
    if answer.status() != hyper::StatusCode::OK {
        bail!("status {}", answer.status());
    }
    let value = answer.headers().get(field).map(|value| value.as_bytes()).unwrap_or_default();
    let value = String::from_utf8_lossy(value).into_owned();
    answer.into_body().collect().await?;
    *sender = Some(open);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use tokio::task::LocalSet;

    use super::*;
    use crate::sample::tests::start;

    fn args(url: String, field: HeaderName) -> SeenArgs {
        let (seconds, pause) = (Duration::from_millis(300), Duration::from_millis(1));
        SeenArgs { url, field, seconds, pause }
    }

    #[tokio::test]
    async fn a_value_is_seen_once_and_its_absence_too() {
        let running = async {
            let (address, _drain) = start(&["echo"], &[]);
            let url = format!("http://{address}/?size=5");
            for (field, value) in [("content-type", "text/plain"), ("x-edition", "")] {
                let seen = run(&args(url.clone(), field.parse().unwrap())).await.unwrap();
                assert!(seen.requests > 1 && seen.failed == 0, "{seen:?}");
                let values: Vec<_> = seen.values.iter().map(|seen| &*seen.value).collect();
                assert_eq!(values, [value]);
            }
        };
        LocalSet::new().run_until(running).await;
    }

    #[tokio::test]
    async fn what_is_not_answered_is_counted() {
        let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let asking = args(format!("http://{gone}/"), HOST);
        let seen = LocalSet::new().run_until(run(&asking)).await.unwrap();
        assert!(seen.failed == seen.requests && seen.values.is_empty(), "{seen:?}");
    }
}
