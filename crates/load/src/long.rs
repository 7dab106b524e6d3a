//! Long-lived connections to an echo server: each pings now and then, and a cut is counted.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

/// The longest wait for a connection or an echo.
const ECHO_TIMEOUT: Duration = Duration::from_secs(10);
/// As many cuts keep their moment.
const MAX_CUT_AT: usize = 1000;
const PING: &[u8; 8] = b"ambit-42";

/// What to hold open.
#[derive(Clone, Debug, clap::Args)]
pub struct LongArgs {
    /// An echo server, as host:port.
    pub address: String,
    /// How many connections.
    #[arg(long, default_value = "100", value_parser = super::flags::connections)]
    pub connections: usize,
    /// How many of them send nothing between their first ping and their last, at the end.
    #[arg(long, default_value_t = 0)]
    pub idle: usize,
    /// How long.
    #[arg(long, default_value = "5", value_parser = super::plan::duration)]
    pub seconds: Duration,
    /// The time between two pings.
    #[arg(long, default_value = "0.1", value_parser = super::plan::duration)]
    pub interval: Duration,
}

/// What became of the connections.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct LongResult {
    pub opened: u64,
    pub failed_to_open: u64,
    pub cut: u64,
    pub pings: u64,
    pub slowest_ping_us: u64,
    pub errors: BTreeMap<String, u64>,
    /// When connections were cut, in milliseconds from the start; the first 1,000.
    pub cut_at_ms: Vec<u64>,
}

/// Holds the connections open and pings.
pub(super) async fn run(args: &LongArgs) -> Result<LongResult> {
    let address = super::flags::resolve(&args.address).await?;
    let result = Rc::new(RefCell::new(LongResult::default()));
    let start = Instant::now();
    let end = start + args.seconds;
    let local = tokio::task::LocalSet::new();
    for index in 0..args.connections {
        let (result, interval) = (result.clone(), args.interval);
        let idle = index < args.idle;
        local.spawn_local(async move {
            let connected = tokio::time::timeout(ECHO_TIMEOUT, TcpStream::connect(address)).await;
            let mut stream = match connected {
                Ok(Ok(stream)) => stream,
                Ok(Err(error)) => return failed(&result, &error.kind().to_string()),
                Err(_) => return failed(&result, "timeout"),
            };
            result.borrow_mut().opened += 1;
            let pinging = hold(&mut stream, &result, idle, interval, end);
            if let Err(reason) = pinging.await {
                cut(&result, reason, start);
            }
        });
    }
    local.await;
    let result = result.borrow().clone();
    Ok(result)
}

fn failed(result: &RefCell<LongResult>, reason: &str) {
    let mut result = result.borrow_mut();
    result.failed_to_open += 1;
    *result.errors.entry(format!("connect: {reason}")).or_default() += 1;
}

fn cut(result: &RefCell<LongResult>, reason: String, start: Instant) {
    let mut result = result.borrow_mut();
    result.cut += 1;
    *result.errors.entry(reason).or_default() += 1;
    if result.cut_at_ms.len() < MAX_CUT_AT {
        let at = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
        result.cut_at_ms.push(at);
    }
}

async fn hold(
    stream: &mut TcpStream,
    result: &RefCell<LongResult>,
    idle: bool,
    interval: Duration,
    end: Instant,
) -> Result<(), String> {
    loop {
        let sent = Instant::now();
        match tokio::time::timeout(ECHO_TIMEOUT, ping(stream)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(error.kind().to_string()),
            Err(_) => return Err("timeout".to_owned()),
        }
        {
            let micros = u64::try_from(sent.elapsed().as_micros()).unwrap_or(u64::MAX);
            let mut result = result.borrow_mut();
            result.pings += 1;
            result.slowest_ping_us = result.slowest_ping_us.max(micros);
        }
        let next = if idle { end } else { (sent + interval).min(end) };
        if Instant::now() >= end {
            return Ok(());
        }
        let mut byte = [0];
        tokio::select! {
            () = tokio::time::sleep_until(next) => {}
            read = stream.read(&mut byte) => return match read {
                Ok(0) => Err("closed by the other side".to_owned()),
                Ok(_) => Err("bytes that were not asked for".to_owned()),
                Err(error) => Err(error.kind().to_string()),
            },
        }
    }
}

async fn ping(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.write_all(PING).await?;
    let mut echo = [0; PING.len()];
    stream.read_exact(&mut echo).await?;
    if &echo != PING {
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, "a foreign echo"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tokio::task::LocalSet;

    use super::*;
    use crate::sample::tests::start;

    fn args(address: std::net::SocketAddr, idle: usize) -> LongArgs {
        LongArgs {
            address: address.to_string(),
            connections: 20,
            idle,
            seconds: Duration::from_millis(400),
            interval: Duration::from_millis(50),
        }
    }

    #[tokio::test]
    async fn connections_that_last_are_not_counted_as_cut() {
        let running = async {
            let (address, _drain) = start(&["tcp-echo"], &[]);
            let result = run(&args(address, 10)).await.unwrap();
            assert_eq!((result.opened, result.failed_to_open, result.cut), (20, 0, 0));
            // Idle ones ping at the start and at the end.
            assert!(result.pings >= 10 * 2 + 10 * 4, "{}", result.pings);
            assert!(result.slowest_ping_us > 0);
        };
        LocalSet::new().run_until(running).await;
    }

    #[tokio::test]
    async fn cuts_are_counted_also_of_idle_connections() {
        let running = async {
            let (address, drain) = start(&["tcp-echo"], &[]);
            let ending = async {
                tokio::time::sleep(Duration::from_millis(200)).await;
                drain.start(None);
            };
            let args = args(address, 10);
            let (result, ()) = tokio::join!(run(&args), ending);
            let result = result.unwrap();
            assert_eq!((result.opened, result.cut), (20, 20));
            assert_eq!(result.errors.values().sum::<u64>(), 20);
            assert_eq!(result.cut_at_ms.len(), 20);
        };
        LocalSet::new().run_until(running).await;
    }

    #[tokio::test]
    async fn refused_connections_are_no_cuts() {
        let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let result = run(&args(gone, 0)).await.unwrap();
        assert_eq!((result.opened, result.failed_to_open, result.cut), (0, 20, 0));
        assert_eq!(result.errors["connect: connection refused"], 20);
    }
}
