//! The load generator, its reports, and the sample applications that it loads.
//!
//! `ambit load` (`command.rs`) makes a [`Plan`] from its flags, runs it ([`Run`]) and writes the
//! [`Report`]; `vegeta` and `fortio`, when the binary is called by these names, do the same with
//! their flags. Latency counts from the moment a request was due (`turns.rs`), so a stalled server
//! cannot hide.
//!
//! `ambit lab-load` has the other loads of the experiments: long-lived connections that ping and
//! count how many are cut, bulk transfer with checksums, and requests that look for a change. Every
//! run is bounded in time and count.

mod args;
mod bulk;
mod command;
mod engine;
mod flags;
mod grpc_stream;
mod h2c;
mod http1;
mod long;
mod output;
mod plan;
mod progress;
mod report;
mod response;
mod sample;
mod seen;
mod serve;
mod shim;
mod tally;
mod tcp;
mod terminal;
mod transport;
mod turns;
mod websocket;
mod worker;

use std::ffi::{OsStr, OsString};
use std::process::ExitCode;

use ambit_net::sys::process::raise_open_files_limit;
use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

pub use args::LoadArgs;
pub use bulk::{BulkArgs, BulkResult};
pub use command::run as run_load;
pub use engine::{LoadError, Run, Stop};
pub use long::{LongArgs, LongResult};
pub use output::Output;
pub use plan::{Extent, Pace, Plan, PlanError, Protocol, Request, Target, duration};
pub use report::{
    BUSY_MAX, Generator, LateAdds, Latencies, PrintedLatency, REPORT_VERSION, Report,
};
pub use seen::{Seen, SeenArgs, SeenResult};
pub use terminal::{arguments, print, tell};

use shim::Shim;

/// Whether the words, `load` first, are a load that can be driven.
pub fn check(words: &[String]) -> Result<()> {
    #[derive(Parser)]
    #[command(disable_help_flag = true)]
    struct Words {
        #[command(flatten)]
        args: LoadArgs,
    }
    let wrong = |error: &clap::Error| {
        let text = error.to_string();
        let line = text.lines().next().unwrap_or_default();
        anyhow::anyhow!("{}", line.trim_start_matches("error: "))
    };
    let words = Words::try_parse_from(words).map_err(|error| wrong(&error))?;
    words.args.check()
}

#[derive(Debug, Parser)]
#[command(name = "ambit lab-load", about = "Drives load and prints what it measured as JSON")]
struct Args {
    #[command(subcommand)]
    kind: Kind,
}

#[derive(Debug, Subcommand)]
enum Kind {
    /// Long-lived connections that ping; counts how many are cut.
    Long(LongArgs),
    /// Sends and receives bytes and compares checksums.
    Bulk(BulkArgs),
    /// Asks again and again, and notes when a field of the answers changes.
    Seen(SeenArgs),
}

/// Runs the program that the binary is called as; `None` where that is no load generator.
pub fn called_as(program: &OsStr, words: &[OsString]) -> Option<Result<ExitCode>> {
    Shim::named(program).map(|shim| shim.run(words))
}

/// Runs the hidden subcommand `word`; `None` where it is none of this crate's.
pub fn hidden_command(word: &OsStr, words: &[OsString]) -> Option<Result<ExitCode>> {
    match word.to_str()? {
        "vegeta" => Some(Shim::Vegeta.run(words)),
        "fortio" => Some(Shim::Fortio.run(words)),
        "lab-load" => Some(run(words)),
        "sample" => Some(sample::run(words)),
        _ => None,
    }
}

/// Runs the load that the words ask for and prints its result.
fn run(words: &[OsString]) -> Result<ExitCode> {
    let args = match arguments::<Args>("ambit lab-load", words)? {
        Ok(args) => args,
        Err(code) => return Ok(code),
    };
    raise_open_files_limit().context("raise the limit of open files")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let running = async {
        Ok::<_, anyhow::Error>(match args.kind {
            Kind::Long(args) => serde_json::to_string(&long::run(&args).await?)?,
            Kind::Bulk(args) => serde_json::to_string(&bulk::run(&args).await?)?,
            Kind::Seen(args) => serde_json::to_string(&seen::run(&args).await?)?,
        })
    };
    let result = tokio::task::LocalSet::new().block_on(&runtime, running)?;
    println!("{result}");
    Ok(ExitCode::SUCCESS)
}
