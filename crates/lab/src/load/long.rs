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
const PING: &[u8; 8] = b"ambit-42";

/// What to hold open.
#[derive(Clone, Debug, clap::Args)]
pub struct LongArgs {
    /// An echo server, as host:port.
    pub address: String,
    /// How many connections.
    #[arg(long, default_value = "100", value_parser = super::connections)]
    pub connections: usize,
    /// How many of them never send anything after the first ping.
    #[arg(long, default_value_t = 0)]
    pub idle: usize,
    /// How long.
    #[arg(long, default_value = "5", value_parser = super::seconds)]
    pub seconds: Duration,
    /// The time between two pings.
    #[arg(long, default_value = "0.1", value_parser = super::seconds)]
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
}

/// Holds the connections open and pings.
pub(super) async fn run(args: &LongArgs) -> Result<LongResult> {
    let address = super::resolve(&args.address).await?;
    let result = Rc::new(RefCell::new(LongResult::default()));
    let end = Instant::now() + args.seconds;
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
                let mut result = result.borrow_mut();
                result.cut += 1;
                *result.errors.entry(reason).or_default() += 1;
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
