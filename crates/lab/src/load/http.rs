//! HTTP/1.1 requests over raw sockets, so that the reads of each response can be counted.
//!
//! Open loop: requests are due at fixed moments whatever the answers do, and a request that is
//! late because its connection was busy counts as slow.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::Instant;

/// The longest wait for one response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// The largest response that is read.
const MAX_RESPONSE_BYTES: usize = 16 << 20;
const READ_BUFFER_BYTES: usize = 4096;

/// What to send.
#[derive(Clone, Debug, clap::Args)]
pub struct HttpArgs {
    /// Where to, as http://host:port/path.
    pub url: String,
    /// Requests per second over all connections; 0 means as fast as they go.
    #[arg(long, default_value_t = 100.0)]
    pub rate: f64,
    /// Concurrent connections.
    #[arg(long, default_value = "10", value_parser = super::connections)]
    pub connections: usize,
    /// How long.
    #[arg(long, default_value = "5", value_parser = super::seconds)]
    pub seconds: Duration,
    /// Load before anything is counted.
    #[arg(long, default_value = "0", value_parser = super::seconds)]
    pub warm_up: Duration,
    /// A new connection for each request.
    #[arg(long)]
    pub close: bool,
    /// A header, as Name:value; may be repeated.
    #[arg(long = "header")]
    pub headers: Vec<String>,
}

/// What was measured. Latencies are in microseconds from the intended moment of sending.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct HttpResult {
    pub requests: u64,
    pub failed: u64,
    pub errors: BTreeMap<String, u64>,
    pub connections_opened: u64,
    pub seconds: f64,
    pub rate: f64,
    pub mean_us: f64,
    pub p50_us: u64,
    pub p90_us: u64,
    pub p99_us: u64,
    pub p999_us: u64,
    pub max_us: u64,
    pub response_bytes: u64,
    pub reads_per_response: f64,
    /// When failures happened, in milliseconds from the start; the first 1,000.
    pub failed_at_ms: Vec<u64>,
}

struct Tally {
    histogram: Histogram<u64>,
    result: HttpResult,
    reads: u64,
    start: Instant,
}

struct Plan {
    address: SocketAddr,
    request: Vec<u8>,
    close: bool,
    interval: Option<Duration>,
    warm_until: Instant,
    end: Instant,
}

/// Runs the load.
pub(super) async fn run(args: &HttpArgs) -> Result<HttpResult> {
    let rest = args.url.strip_prefix("http://").context("the URL must start with http://")?;
    let (authority, path) = match rest.find('/') {
        Some(at) => rest.split_at(at),
        None => (rest, "/"),
    };
    let with_port = if authority.rsplit(']').next().is_some_and(|tail| tail.contains(':')) {
        authority.to_owned()
    } else {
        format!("{authority}:80")
    };
    let address = super::resolve(&with_port).await?;
    let start = Instant::now();
    let warm_until = start + args.warm_up;
    let interval = (args.rate > 0.0)
        .then(|| Duration::from_secs_f64(args.connections as f64 / args.rate));
    let plan = Rc::new(Plan {
        address,
        request: request_bytes(authority, path, args),
        close: args.close,
        interval,
        warm_until,
        end: warm_until + args.seconds,
    });
    let tally = Rc::new(RefCell::new(Tally {
        histogram: Histogram::new(3).context("a histogram of three digits")?,
        result: HttpResult::default(),
        reads: 0,
        start,
    }));
    let local = tokio::task::LocalSet::new();
    for index in 0..args.connections {
        let offset = interval.map_or(Duration::ZERO, |every| {
            every.mul_f64(index as f64 / args.connections as f64)
        });
        local.spawn_local(connection(plan.clone(), tally.clone(), start + offset));
    }
    local.await;
    let elapsed = start.elapsed().saturating_sub(args.warm_up);
    let tally = Rc::into_inner(tally).context("every connection has ended")?.into_inner();
    Ok(finish(tally, elapsed))
}

fn request_bytes(authority: &str, path: &str, args: &HttpArgs) -> Vec<u8> {
    let mut text = format!("GET {path} HTTP/1.1\r\nHost: {authority}\r\nUser-Agent: ambit\r\n");
    for header in &args.headers {
        text.push_str(header);
        text.push_str("\r\n");
    }
    if args.close {
        text.push_str("Connection: close\r\n");
    }
    text.push_str("\r\n");
    text.into_bytes()
}

fn finish(tally: Tally, elapsed: Duration) -> HttpResult {
    let Tally { histogram, mut result, reads, .. } = tally;
    let answered = result.requests - result.failed;
    result.seconds = elapsed.as_secs_f64();
    result.rate = answered as f64 / result.seconds.max(f64::EPSILON);
    result.mean_us = histogram.mean();
    result.p50_us = histogram.value_at_quantile(0.5);
    result.p90_us = histogram.value_at_quantile(0.9);
    result.p99_us = histogram.value_at_quantile(0.99);
    result.p999_us = histogram.value_at_quantile(0.999);
    result.max_us = histogram.max();
    result.reads_per_response = reads as f64 / answered.max(1) as f64;
    result
}

/// One connection's requests, each due at its moment.
async fn connection(plan: Rc<Plan>, tally: Rc<RefCell<Tally>>, first: Instant) {
    let mut stream = None;
    let mut due = first;
    let mut buffer = vec![0; READ_BUFFER_BYTES];
    while due < plan.end && Instant::now() < plan.end + RESPONSE_TIMEOUT {
        tokio::time::sleep_until(due).await;
        let intended = if plan.interval.is_some() { due } else { Instant::now() };
        let exchange = exchange(&plan, &tally, &mut stream, &mut buffer);
        let outcome = match tokio::time::timeout(RESPONSE_TIMEOUT, exchange).await {
            Ok(outcome) => outcome,
            Err(_) => Err("timeout".to_owned()),
        };
        if outcome.is_err() || plan.close {
            stream = None;
        }
        if intended >= plan.warm_until {
            tally.borrow_mut().count(intended, outcome);
        }
        due = match plan.interval {
            Some(interval) => due + interval,
            None => Instant::now(),
        };
    }
}

impl Tally {
    fn count(&mut self, intended: Instant, outcome: Result<Response, String>) {
        self.result.requests += 1;
        match outcome {
            Ok(response) => {
                let micros = u64::try_from(intended.elapsed().as_micros()).unwrap_or(u64::MAX);
                self.histogram.saturating_record(micros);
                self.result.response_bytes += response.bytes as u64;
                self.reads += response.reads;
            }
            Err(reason) => {
                self.result.failed += 1;
                *self.result.errors.entry(reason).or_default() += 1;
                if self.result.failed_at_ms.len() < 1000 {
                    let at = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
                    self.result.failed_at_ms.push(at);
                }
            }
        }
    }
}

struct Response {
    bytes: usize,
    reads: u64,
}

async fn exchange(
    plan: &Plan,
    tally: &RefCell<Tally>,
    stream: &mut Option<TcpStream>,
    buffer: &mut [u8],
) -> Result<Response, String> {
    let stream = match stream {
        Some(stream) => stream,
        none => {
            tally.borrow_mut().result.connections_opened += 1;
            let fresh = TcpStream::connect(plan.address).await;
            let fresh = fresh.map_err(|error| format!("connect: {}", error.kind()))?;
            fresh.set_nodelay(true).map_err(|error| format!("nodelay: {}", error.kind()))?;
            none.insert(fresh)
        }
    };
    let sent = stream.write_all(&plan.request).await;
    sent.map_err(|error| format!("write: {}", error.kind()))?;
    read_response(stream, buffer).await
}

async fn read_response(stream: &mut TcpStream, buffer: &mut [u8]) -> Result<Response, String> {
    let mut head = Vec::new();
    let mut response = Response { bytes: 0, reads: 0 };
    let mut whole: Option<usize> = None;
    loop {
        // One system call at a time, so that they can be counted.
        stream.readable().await.map_err(|error| format!("read: {}", error.kind()))?;
        let count = match stream.try_read(buffer) {
            Ok(0) => return Err("closed before the whole response".to_owned()),
            Ok(count) => count,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(format!("read: {}", error.kind())),
        };
        response.reads += 1;
        response.bytes += count;
        if whole.is_none() {
            head.extend_from_slice(&buffer[..count]);
            whole = whole_length(&head)?;
        }
        if response.bytes > MAX_RESPONSE_BYTES {
            return Err("response too large".to_owned());
        }
        if whole.is_some_and(|whole| response.bytes >= whole) {
            return Ok(response);
        }
    }
}

/// The length of the whole response once its head is complete.
fn whole_length(head: &[u8]) -> Result<Option<usize>, String> {
    let Some(end) = head.windows(4).position(|window| window == b"\r\n\r\n") else {
        return Ok(None);
    };
    let text = std::str::from_utf8(&head[..end]).map_err(|_| "response head is not text")?;
    let mut lines = text.split("\r\n");
    let status = lines.next().unwrap_or_default().split(' ').nth(1).unwrap_or_default();
    if !status.starts_with('2') {
        return Err(format!("status {status}"));
    }
    let length = lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    match length {
        Some(length) => Ok(Some(end + 4 + length)),
        None => Err("response without Content-Length".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::whole_length;

    #[test]
    fn response_heads() {
        let ok = b"HTTP/1.1 200 OK\r\ncontent-LENGTH: 5\r\n\r\nhel";
        assert_eq!(whole_length(ok), Ok(Some(ok.len() + 2)));
        assert_eq!(whole_length(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n"), Ok(None));
        let refused = whole_length(b"HTTP/1.1 503 Service Unavailable\r\n\r\n");
        assert_eq!(refused, Err("status 503".to_owned()));
    }
}
