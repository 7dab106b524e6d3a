//! HTTP/1.1 requests over raw sockets, so that the reads of each response can be counted.
//!
//! Open loop: requests are due at fixed moments whatever the answers do. A request that is late
//! because its connection was busy counts as slow, and one that never got its turn counts as
//! failed.

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
/// The highest rate, in requests per second.
const MAX_RATE: f64 = 1e6;
/// The longest latency that is told apart, in microseconds: as long as a whole run.
const MAX_LATENCY_US: u64 = (2 * super::MAX_SECONDS + RESPONSE_TIMEOUT.as_secs()) * 1_000_000;
/// The pause after a failure when requests go as fast as they can, so that a refusal does not spin.
const FAILURE_PAUSE: Duration = Duration::from_millis(1);
/// Timers fire up to so much late: they count in milliseconds, and round up.
const TIMER_GRANULARITY: Duration = Duration::from_millis(2);
/// As many failures keep their moment.
const MAX_FAILED_AT: usize = 1000;
const READ_BUFFER_BYTES: usize = 4096;

/// What to send.
#[derive(Clone, Debug, clap::Args)]
pub struct HttpArgs {
    /// Where to, as http://host:port/path.
    pub url: String,
    /// Requests per second over all connections; 0 means as fast as they go.
    #[arg(long, default_value = "100", value_parser = rate)]
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
    #[arg(long = "header", value_parser = header)]
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
    let interval =
        (args.rate > 0.0).then(|| Duration::from_secs_f64(args.connections as f64 / args.rate));
    let plan = Rc::new(Plan {
        address,
        request: request_bytes(authority, path, args),
        close: args.close,
        interval,
        warm_until,
        end: warm_until + args.seconds,
    });
    let tally = Rc::new(RefCell::new(Tally {
        histogram: Histogram::new_with_bounds(1, MAX_LATENCY_US, 3)
            .context("make a histogram of three digits")?,
        result: HttpResult::default(),
        reads: 0,
        start,
    }));
    let local = tokio::task::LocalSet::new();
    for index in 0..args.connections {
        let offset = interval
            .map_or(Duration::ZERO, |every| every.mul_f64(index as f64 / args.connections as f64));
        local.spawn_local(connection(plan.clone(), tally.clone(), start + offset));
    }
    local.await;
    // The last request is due before the end, and the run lasts until then at least.
    let elapsed = start.elapsed().saturating_sub(args.warm_up).max(args.seconds);
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
    while due < plan.end {
        if Instant::now() >= plan.end + RESPONSE_TIMEOUT {
            return tally.borrow_mut().count_unsent(&plan, due);
        }
        let intended = intended(&plan, due).await;
        let exchange = exchange(&plan, &tally, &mut stream, &mut buffer);
        let outcome = match tokio::time::timeout(RESPONSE_TIMEOUT, exchange).await {
            Ok(outcome) => outcome,
            Err(_) => Err("timeout".to_owned()),
        };
        if plan.close || outcome.as_ref().map_or(true, |response| response.is_last) {
            stream = None;
        }
        let pause = if outcome.is_err() { FAILURE_PAUSE } else { Duration::ZERO };
        if intended >= plan.warm_until {
            tally.borrow_mut().count(intended, outcome);
        }
        due = match plan.interval {
            Some(interval) => due + interval,
            None => Instant::now() + pause,
        };
    }
}

/// Waits for the moment at which a request is due, and tells from when its latency counts.
///
/// A connection that was busy until later is late by the server's fault; one that was idle is late
/// only by the timer's.
async fn intended(plan: &Plan, due: Instant) -> Instant {
    let was_idle = Instant::now() < due;
    // The runtime's clock counts in milliseconds: a moment that has come must not wait for one.
    if was_idle {
        tokio::time::sleep_until(due).await;
    }
    match plan.interval {
        Some(_) if was_idle => Instant::now().min(due + TIMER_GRANULARITY),
        Some(_) => due,
        None => Instant::now(),
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
            Err(reason) => self.fail(reason, 1),
        }
    }

    /// Counts the requests that were due from this moment on and for which no time is left.
    fn count_unsent(&mut self, plan: &Plan, due: Instant) {
        let Some(interval) = plan.interval else { return };
        let left = plan.end.saturating_duration_since(due.max(plan.warm_until));
        let unsent = left.div_duration_f64(interval).ceil() as u64;
        self.result.requests += unsent;
        self.fail("no time left to send".to_owned(), unsent);
    }

    fn fail(&mut self, reason: String, count: u64) {
        self.result.failed += count;
        *self.result.errors.entry(reason).or_default() += count;
        let at = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        for _ in 0..count {
            if self.result.failed_at_ms.len() == MAX_FAILED_AT {
                return;
            }
            self.result.failed_at_ms.push(at);
        }
    }
}

struct Response {
    bytes: usize,
    reads: u64,
    /// The server closes the connection after it.
    is_last: bool,
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
    let mut response = Response { bytes: 0, reads: 0, is_last: false };
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
            if let Some(read) = read_head(&head)? {
                whole = Some(read.whole_length);
                response.is_last = read.is_last;
            }
        }
        if response.bytes > MAX_RESPONSE_BYTES {
            return Err("response too large".to_owned());
        }
        if whole.is_some_and(|whole| response.bytes >= whole) {
            return Ok(response);
        }
    }
}

/// What a response's head says.
#[derive(Debug, PartialEq, Eq)]
struct Head {
    /// The length of head and body.
    whole_length: usize,
    is_last: bool,
}

/// The head, once it is complete.
fn read_head(read: &[u8]) -> Result<Option<Head>, String> {
    let Some(end) = read.windows(4).position(|window| window == b"\r\n\r\n") else {
        return Ok(None);
    };
    let text = std::str::from_utf8(&read[..end]).map_err(|_| "response head is not text")?;
    let mut lines = text.split("\r\n");
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (version, status) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    if !version.starts_with("HTTP/1.") {
        return Err("response is not HTTP/1.1".to_owned());
    }
    if !status.starts_with('2') {
        return Err(format!("status {status}"));
    }
    let mut length = None;
    let mut is_last = version == "HTTP/1.0";
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse::<usize>().ok();
        } else if name.eq_ignore_ascii_case("connection") {
            is_last = value.trim().eq_ignore_ascii_case("close");
        }
    }
    let length = length.ok_or("response without Content-Length")?;
    Ok(Some(Head { whole_length: length.saturating_add(end + 4), is_last }))
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if (0.0..=MAX_RATE).contains(&rate) => Ok(rate),
        _ => Err(format!("{text:?} is not a rate between 0 and {MAX_RATE} per second")),
    }
}

fn header(text: &str) -> Result<String, String> {
    let name = text.split_once(':').map(|(name, _)| name).unwrap_or_default();
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic());
    if is_name && !text.contains(['\r', '\n']) {
        Ok(text.to_owned())
    } else {
        Err(format!("{text:?} is not of the form Name:value"))
    }
}

#[cfg(test)]
mod tests {
    use ambit_net::drain::Drain;
    use tokio::task::LocalSet;

    use super::*;
    use crate::sample::tests::start;

    async fn load(url: String, words: &[&str]) -> HttpResult {
        #[derive(clap::Parser)]
        struct Words {
            #[command(flatten)]
            args: HttpArgs,
        }
        let all = ["http", &url].into_iter().chain(words.iter().copied());
        let words = <Words as clap::Parser>::try_parse_from(all).unwrap();
        run(&words.args).await.unwrap()
    }

    /// Runs load against a sample.
    async fn check(sample: &[&str], path: &str, words: &[&str], see: impl FnOnce(HttpResult)) {
        let running = async {
            let (address, _drain) = start(sample, &[]);
            see(load(format!("http://{address}{path}"), words).await);
        };
        LocalSet::new().run_until(running).await;
    }

    #[test]
    fn response_heads() {
        let ok = b"HTTP/1.1 200 OK\r\ncontent-LENGTH: 5\r\n\r\nhel";
        let head = Head { whole_length: ok.len() + 2, is_last: false };
        assert_eq!(read_head(ok), Ok(Some(head)));
        assert_eq!(read_head(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n"), Ok(None));
        let last = b"HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 0\r\n\r\n";
        assert!(read_head(last).unwrap().unwrap().is_last);
        for (head, reason) in [
            ("HTTP/1.1 503 Service Unavailable\r\n\r\n", "status 503"),
            ("HTTP/1.1 200 OK\r\n\r\n", "response without Content-Length"),
            ("SSH-2.0-x 200\r\n\r\n", "response is not HTTP/1.1"),
        ] {
            assert_eq!(read_head(head.as_bytes()), Err(reason.to_owned()));
        }
    }

    #[tokio::test]
    async fn every_request_of_the_rate_is_sent_and_answered() {
        let words = ["--rate", "200", "--connections", "4", "--seconds", "0.5"];
        check(&["echo"], "/?size=2000", &words, |result| {
            assert_eq!((result.requests, result.failed), (100, 0));
            assert_eq!(result.connections_opened, 4);
            assert!(result.response_bytes > 200_000);
            assert!(result.p50_us > 0 && result.p50_us <= result.p99_us);
        })
        .await;
    }

    #[tokio::test]
    async fn a_connection_per_request() {
        let words = ["--rate", "100", "--connections", "2", "--seconds", "0.2", "--close"];
        check(&["echo"], "/", &words, |result| {
            assert_eq!((result.requests, result.failed), (20, 0));
            assert_eq!(result.connections_opened, 20);
        })
        .await;
    }

    /// Runs load against a sample on a thread of its own, so that each side reads while the other
    /// writes.
    async fn check_apart(
        sample: &'static [&str],
        path: &str,
        words: &[&str],
        see: impl FnOnce(HttpResult),
    ) {
        let (started, address) = tokio::sync::oneshot::channel();
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        let server = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            LocalSet::new().block_on(&runtime.unwrap(), async {
                let (address, _drain) = start(sample, &[]);
                started.send(address).unwrap();
                let _told_to = ended.await;
            });
        });
        let address = address.await.unwrap();
        see(load(format!("http://{address}{path}"), words).await);
        drop(end);
        server.join().unwrap();
    }

    #[tokio::test]
    async fn two_writes_take_two_reads() {
        // Slow enough that the client's kernel acknowledges the first write when it is read, and so
        // often that the first answers of a connection, for which it does so at once, are the fewer
        // ones.
        let words = ["--rate", "20", "--connections", "1", "--seconds", "2"];
        check_apart(&["details", "--two-writes"], "/details/0", &words, |result| {
            assert_eq!(result.failed, 0);
            assert!(result.reads_per_response > 1.2, "{}", result.reads_per_response);
        })
        .await;
        let words = ["--rate", "20", "--connections", "1", "--seconds", "0.5"];
        check_apart(&["details"], "/details/0", &words, |result| {
            assert_eq!((result.failed, result.reads_per_response), (0, 1.0));
            assert_eq!(result.response_bytes, result.requests * 358);
        })
        .await;
    }

    #[tokio::test]
    async fn a_slow_server_cannot_hide() {
        // One request per 20 ms is asked of a connection that takes 100 ms for each: the last of
        // ten is 0.8 s late.
        let words = ["--rate", "50", "--connections", "1", "--seconds", "0.2"];
        check(&["echo"], "/?delay=100ms", &words, |result| {
            assert_eq!((result.requests, result.failed), (10, 0));
            assert!(result.max_us >= 800_000, "{}", result.max_us);
            assert!(result.p50_us >= 400_000, "{}", result.p50_us);
        })
        .await;
    }

    #[tokio::test]
    async fn failures_are_counted_with_their_reason() {
        let words = ["--rate", "50", "--connections", "1", "--seconds", "0.2"];
        check(&["details"], "/unknown", &words, |result| {
            assert_eq!((result.requests, result.failed), (10, 10));
            assert_eq!(result.errors["status 404"], 10);
            assert_eq!(result.failed_at_ms.len(), 10);
        })
        .await;
        let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let result = load(format!("http://{gone}/"), &words).await;
        assert_eq!((result.requests, result.failed), (10, 10));
        assert_eq!(result.errors["connect: connection refused"], 10);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_that_never_got_their_turn_are_failures() {
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", silent.local_addr().unwrap());
        let result = load(url, &["--rate", "10", "--connections", "1", "--seconds", "25"]).await;
        assert_eq!((result.requests, result.failed), (250, 250));
        assert_eq!(result.errors["timeout"] + result.errors["no time left to send"], 250);
    }

    #[tokio::test]
    async fn a_server_that_ends_between_requests_is_noticed() {
        let running = async {
            let (address, drain): (_, Drain) = start(&["echo"], &[]);
            let words = ["--rate", "50", "--connections", "1", "--seconds", "0.4"];
            let ending = async {
                tokio::time::sleep(Duration::from_millis(200)).await;
                drain.start(None);
            };
            let (result, ()) = tokio::join!(load(format!("http://{address}/"), &words), ending);
            assert_eq!(result.requests, 20);
            assert!((5..=15).contains(&result.failed), "{:?}", result.errors);
        };
        LocalSet::new().run_until(running).await;
    }

    #[test]
    fn wrong_words_are_refused() {
        for text in ["-1", "nan", "1e9", "x"] {
            assert!(rate(text).is_err(), "{text}");
        }
        for text in ["", "Name", ":x", "A b:c", "A:b\r\nC:d"] {
            assert!(header(text).is_err(), "{text:?}");
        }
        assert_eq!(header("X-A: b"), Ok("X-A: b".to_owned()));
    }
}
