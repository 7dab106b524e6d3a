//! The `ambit` command: parses the command line and calls the crates that do the work.
//!
//! The hidden subcommands of the machine come first, because some of them enter namespaces, which a
//! process with threads cannot. Nothing here decides anything about traffic.

mod args;
mod colour;
mod commands;
mod jsonpath;
mod progress;
mod table;

use std::ffi::{OsStr, OsString};
use std::process::ExitCode;

use ambit_log::{LineFormat, LogFormat};
use ambit_model::printable::printable_lines;
use anyhow::Context;
use clap::Parser;

use args::{Cli, Command};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// What a command that could not do its work exits with.
const FAILURE: u8 = 1;

fn main() -> ExitCode {
    if is_cni_plugin() {
        return ambit_node::cni_plugin();
    }
    if let Some(code) = hidden_command(&std::env::args_os().collect::<Vec<_>>()) {
        return code;
    }
    let state = std::env::var_os("AMBIT_STATE");
    let command = Cli::parse().into_command(state).unwrap_or_else(|error| error.exit());
    let is_role = matches!(command, Command::Control(_) | Command::Node(_) | Command::Proxy(_));
    if is_role || is_waypoint(&command) {
        return_memory();
    }
    let outcome = match command {
        Command::Control(args) => role(async {
            // The authority's key is in no core dump, and no other process of the user reads it.
            ambit_net::sys::process::set_not_dumpable().context("protect the memory")?;
            Ok(ambit_control::run(*args).await?)
        }),
        Command::Node(args) => role(async { Ok(ambit_node::run(*args).await?) }),
        Command::Proxy(args) => ambit_proxy::run(*args).map(|()| ExitCode::SUCCESS),
        Command::Waypoint(args) if args.command.is_none() => match args.role {
            Some(role) => ambit_waypoint::run(role, &args.further).map(|()| ExitCode::SUCCESS),
            None => Err(anyhow::anyhow!("name what to do, such as `ambit waypoint list`")),
        },
        command => commands::run(command),
    };
    outcome.unwrap_or_else(|error| {
        let reason = format!("{error:#}");
        ambit_load::tell(format_args!("ambit: {}", printable_lines(&reason)));
        ExitCode::from(FAILURE)
    })
}

/// Whether the command is a waypoint itself.
fn is_waypoint(command: &Command) -> bool {
    matches!(command, Command::Waypoint(args) if args.command.is_none())
}

/// Runs what the words (program name first) ask for, if it is none of the visible command line.
fn hidden_command(words: &[OsString]) -> Option<ExitCode> {
    let (program, words) = words.split_first()?;
    if let Some(outcome) = ambit_load::called_as(program, words) {
        return Some(exit(program, outcome));
    }
    let (word, words) = words.split_first()?;
    let outcome = ambit_machine::hidden_command(word, words)
        .or_else(|| ambit_load::hidden_command(word, words))
        .or_else(|| ambit_bench::hidden_command(word, words))?;
    Some(exit(word, outcome))
}

fn exit(word: &OsStr, outcome: anyhow::Result<ExitCode>) -> ExitCode {
    outcome.unwrap_or_else(|error| {
        ambit_load::tell(format_args!("ambit {}: {error:#}", word.to_string_lossy()));
        ExitCode::FAILURE
    })
}

/// Has a thread give memory back that is not used any more: a role that does nothing would else
/// keep what its last burst took, and most of them do nothing most of the time.
fn return_memory() {
    use tikv_jemalloc_ctl::{background_thread, max_background_threads};
    let started = max_background_threads::write(1).and_then(|()| background_thread::write(true));
    if let Err(error) = started {
        eprintln!("ambit: memory is given back late: {error}");
    }
}

/// Whether a container runtime starts the program as its plugin: `ambit-cni`, or `ambit cni`.
fn is_cni_plugin() -> bool {
    let mut words = std::env::args_os();
    let program = words.next().map(std::path::PathBuf::from).unwrap_or_default();
    program.file_name().is_some_and(|name| name == ambit_words::names::CNI_PLUGIN)
        || words.next().is_some_and(|word| word == "cni")
}

/// Runs a long-lived role whose work is control, not data: two threads are enough.
fn role(work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<ExitCode> {
    start_log();
    // Each node, proxy and pod costs descriptors.
    ambit_net::sys::process::raise_open_files_limit().context("raise the limit of open files")?;
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).enable_all().build()?.block_on(work)?;
    Ok(ExitCode::SUCCESS)
}

/// Log lines to standard error, at `RUST_LOG`'s level, as JSON with `LOG_FORMAT=json`.
fn start_log() {
    let filter = tracing_subscriber::EnvFilter::builder()
        .with_default_directive(tracing_subscriber::filter::LevelFilter::INFO.into())
        .from_env_lossy();
    let is_json = std::env::var_os("LOG_FORMAT").is_some_and(|format| format == "json");
    let format = if is_json { LogFormat::Json } else { LogFormat::Plain };
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    log.event_format(LineFormat(format)).init();
}
