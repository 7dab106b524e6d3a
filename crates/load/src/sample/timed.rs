//! HTTP with known delays, to measure load generators against.
//!
//! By default it answers at once, cheaply enough not to be the bottleneck. It can delay each
//! request by a different time, spread evenly between two bounds, so that every percentile is known
//! beforehand. Or it can stall at intervals, during which no request is answered. HTTP is done by
//! hand, since a library would cost more than the load generator.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::str::FromStr;
use std::time::{Duration, Instant};

use ambit_net::drain::Guard;
use ambit_net::sys::clock::Timer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::duration::duration;
use super::raw_echo::until_asked;
use super::server;

/// Largest answer.
const SIZE_MAX_BYTES: usize = 8 << 20;
const READ_BUFFER_BYTES: usize = 16 << 10;
/// The golden ratio's fraction: its multiples fill an interval evenly, however many there are.
const GOLDEN: f64 = 0.618_033_988_749_894_9;

/// How it answers.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Timing {
    /// How late each answer is, spread evenly: 10ms, or 5ms..15ms.
    #[arg(long, default_value = "0s..0s", value_name = "FROM..TO")]
    delay: Delay,
    /// Stall for a time within each period, as 200ms/1s.
    #[arg(long, value_name = "FOR/EVERY")]
    stall: Option<Stall>,
    /// Bytes of body.
    #[arg(long, default_value_t = 0)]
    size: usize,
}

/// Between two bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Delay {
    from: Duration,
    to: Duration,
}

/// The first `length` of every `period`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stall {
    length: Duration,
    period: Duration,
}

impl FromStr for Delay {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (from, to) = text.split_once("..").unwrap_or((text, text));
        match (duration(from), duration(to)) {
            (Some(from), Some(to)) if from <= to => Ok(Self { from, to }),
            _ => Err("write 10ms, or 5ms..15ms, at most 24h".to_owned()),
        }
    }
}

impl FromStr for Stall {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let halves = text.split_once('/').unwrap_or_default();
        match (duration(halves.0), duration(halves.1)) {
            (Some(length), Some(period)) if length < period => Ok(Self { length, period }),
            _ => Err("write 200ms/1s, the first shorter than the second, at most 24h".to_owned()),
        }
    }
}

impl Delay {
    /// The delay of the n-th answer.
    fn of(self, number: u64) -> Duration {
        self.from + (self.to - self.from).mul_f64((number as f64 * GOLDEN).fract())
    }
}

impl Stall {
    /// How long it still lasts, so long after the start.
    fn left(self, elapsed: Duration) -> Duration {
        let into = elapsed.as_nanos() % self.period.as_nanos();
        let into = Duration::from_nanos(u64::try_from(into).unwrap_or(u64::MAX));
        self.length.saturating_sub(into)
    }
}

/// What all connections share.
#[derive(Debug)]
struct Server {
    delay: Delay,
    stall: Option<Stall>,
    start: Instant,
    answered: Cell<u64>,
    response: Vec<u8>,
    last_response: Vec<u8>,
}

impl Server {
    fn new(timing: &Timing) -> Self {
        let body = ".".repeat(timing.size.min(SIZE_MAX_BYTES));
        let response = |connection: &str| {
            let length = body.len();
            format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n{connection}\r\n{body}")
        };
        Self {
            delay: timing.delay,
            stall: timing.stall,
            start: Instant::now(),
            answered: Cell::new(0),
            response: response("").into_bytes(),
            last_response: response("Connection: close\r\n").into_bytes(),
        }
    }

    /// When to answer what arrives now.
    fn moment(&self) -> Option<Instant> {
        let number = self.answered.get();
        self.answered.set(number + 1);
        let now = Instant::now();
        let stalled = self.stall.map_or(Duration::ZERO, |stall| stall.left(now - self.start));
        let wait = stalled + self.delay.of(number);
        (!wait.is_zero()).then(|| now + wait)
    }
}

/// Serves until it is asked to end.
pub(super) async fn serve(listener: TcpListener, guard: Guard, timing: &Timing) {
    let all = Rc::new(Server::new(timing));
    let connections = guard.clone();
    server::serve(listener, guard, |stream, _| {
        let all = all.clone();
        until_asked(connections.clone(), async move { connection(stream, &all).await })
    })
    .await;
}

async fn connection(mut stream: TcpStream, server: &Server) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut timer = None;
    let mut buffer = vec![0; READ_BUFFER_BYTES];
    let mut filled = 0;
    loop {
        match stream.read(&mut buffer[filled..]).await? {
            0 => return Ok(()),
            count => filled += count,
        }
        // A request ends where the read does, unless its head is still coming.
        if !buffer[..filled].windows(4).any(|bytes| bytes == b"\r\n\r\n") {
            if filled == buffer.len() {
                return Ok(());
            }
            continue;
        }
        let is_last = wants_close(&buffer[..filled]);
        filled = 0;
        if let Some(moment) = server.moment() {
            let timer = match &mut timer {
                Some(timer) => timer,
                none => none.insert(Timer::new()?),
            };
            timer.sleep_until(moment).await?;
        }
        let response = if is_last { &server.last_response } else { &server.response };
        stream.write_all(response).await?;
        if is_last {
            return stream.shutdown().await;
        }
    }
}

fn wants_close(head: &[u8]) -> bool {
    const FIELD: &[u8] = b"\nconnection: close\r";
    head.windows(FIELD.len()).any(|bytes| bytes[0] == b'\n' && bytes.eq_ignore_ascii_case(FIELD))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_are_spread_evenly() {
        let delay: Delay = "5ms..15ms".parse().unwrap();
        let mut all: Vec<_> = (0..1000).map(|number| delay.of(number).as_micros()).collect();
        all.sort_unstable();
        for (index, expected) in [(0, 5000), (500, 10_000), (900, 14_000), (999, 15_000)] {
            assert!(all[index].abs_diff(expected) < 25, "{index}: {}", all[index]);
        }
        assert_eq!("10ms".parse::<Delay>().unwrap().of(7), Duration::from_millis(10));
        for text in ["", "5", "5ms..1ms", "a..b", "25h", "1s..25h"] {
            assert!(text.parse::<Delay>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_stall_is_the_beginning_of_its_period() {
        let stall: Stall = "200ms/1s".parse().unwrap();
        for (at_ms, left_ms) in [(0, 200), (150, 50), (200, 0), (999, 0), (3100, 100)] {
            let left = stall.left(Duration::from_millis(at_ms));
            assert_eq!(left, Duration::from_millis(left_ms), "{at_ms}");
        }
        for text in ["", "1s", "1s/1s", "200ms/", "1s/25h"] {
            assert!(text.parse::<Stall>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn the_wish_to_close_is_heard() {
        assert!(wants_close(b"GET / HTTP/1.1\r\nConnection: Close\r\n\r\n"));
        assert!(!wants_close(b"GET / HTTP/1.1\r\nConnection: keep-alive\r\n\r\n"));
    }
}
