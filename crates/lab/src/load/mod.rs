//! `ambit lab-load`: enough load to drive a demonstration and to count what it loses.
//!
//! Four kinds: HTTP requests at a constant rate or as fast as they go, long-lived connections that
//! ping and count how many are cut, bulk transfer with checksums, and one stream to a sink. Latency
//! is counted from the intended moment of sending, so a stalled server cannot hide. Every run is
//! bounded in time and count; the result is one JSON object on standard output.

mod bulk;
mod http;
mod long;
mod stream;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use ambit_net::sys::process::raise_open_files_limit;
use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};

pub use bulk::{BulkArgs, BulkResult};
pub use http::{HttpArgs, HttpResult};
pub use long::{LongArgs, LongResult};
pub use stream::{StreamArgs, StreamResult};

/// The longest a run may take.
const MAX_SECONDS: u64 = 3600;
/// The most connections of one run.
const MAX_CONNECTIONS: usize = 20_000;

#[derive(Debug, Parser)]
#[command(name = "ambit lab-load", about = "Drives load and prints what it measured as JSON")]
struct Args {
    #[command(subcommand)]
    kind: Kind,
}

#[derive(Debug, Subcommand)]
enum Kind {
    /// HTTP requests at a rate, or as fast as they go.
    Http(HttpArgs),
    /// Long-lived connections that ping; counts how many are cut.
    Long(LongArgs),
    /// Sends and receives bytes and compares checksums.
    Bulk(BulkArgs),
    /// One stream, one way, as fast as it goes, to a sink.
    Stream(StreamArgs),
}

/// Runs the load that the words ask for and prints its result.
pub(crate) fn run(words: &[OsString]) -> Result<ExitCode> {
    let name = OsString::from("ambit lab-load");
    let args = match Args::try_parse_from(std::iter::once(&name).chain(words)) {
        Ok(args) => args,
        Err(error) => {
            error.print().context("print the usage")?;
            return Ok(ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2)));
        }
    };
    raise_open_files_limit().context("raise the limit of open files")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(async {
        match args.kind {
            Kind::Http(args) => Ok(serde_json::to_string(&http::run(&args).await?)?),
            Kind::Long(args) => Ok(serde_json::to_string(&long::run(&args).await?)?),
            Kind::Stream(args) => Ok(serde_json::to_string(&stream::run(&args).await?)?),
            Kind::Bulk(args) => {
                Ok::<_, anyhow::Error>(serde_json::to_string(&bulk::run(&args).await?)?)
            }
        }
    })?;
    println!("{result}");
    Ok(ExitCode::SUCCESS)
}

/// Resolves `host:port` once, preferring the first answer, as most clients do.
async fn resolve(authority: &str) -> Result<SocketAddr> {
    let answers = tokio::net::lookup_host(authority).await;
    let mut answers = answers.with_context(|| format!("resolve {authority}"))?;
    match answers.next() {
        Some(address) => Ok(address),
        None => bail!("{authority} resolves to nothing"),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("{text:?} is not a number of seconds"))?;
    if !(0.0..=MAX_SECONDS as f64).contains(&seconds) {
        return Err(format!("{seconds} is not between 0 and {MAX_SECONDS} seconds"));
    }
    Ok(Duration::from_secs_f64(seconds))
}

fn connections(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count) if (1..=MAX_CONNECTIONS).contains(&count) => Ok(count),
        _ => Err(format!("{text:?} is not between 1 and {MAX_CONNECTIONS} connections")),
    }
}
