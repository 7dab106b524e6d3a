//! What each command does: it calls the crate that knows, and prints the result.

mod acme;
mod analyze;
mod ask;
mod bench;
mod change;
mod check;
mod complete;
mod describe;
mod diff;
mod documents;
mod findings;
mod get;
mod inside;
mod join;
mod kubeconfig;
mod mesh;
mod objects;
mod plan;
mod port_forward;
mod probe;
mod publish;
mod registries;
mod settle;
mod status;
mod stored;
mod token;
mod top;
mod uninstall;
mod up;
mod version;
mod waypoint;
mod why;

use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use ambit_machine::layout::Layout;
use ambit_model::printable::{printable_json, printable_lines};
use anyhow::{Context, Result};

use crate::args::{Command, StateArgs};
use crate::colour;

/// Runs one command of the user.
pub(crate) fn run(command: Command) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match command {
            Command::Demo(args) => up::demo(args).await,
            Command::Up(args) => up::up(args).await,
            Command::Join(args) => join::join(args).await,
            Command::Token(args) => token::token(args).await,
            Command::Down(args) => up::down(&args).await,
            Command::Kubeconfig(args) => kubeconfig::kubeconfig(&args),
            Command::Acme(args) => acme::acme(&args).await,
            Command::Apply(args) => change::apply(args).await,
            Command::Delete(args) => change::delete(args).await,
            Command::Diff(args) => diff::diff(args).await,
            Command::Analyze(args) => analyze::analyze(args).await,
            Command::Get(args) => get::get(args).await,
            Command::Describe(args) => describe::describe(args).await,
            Command::Events(args) => get::events(args).await,
            Command::Top(args) => top::top(&args).await,
            Command::Label(args) => objects::set(args, objects::Metadata::Labels).await,
            Command::Annotate(args) => objects::set(args, objects::Metadata::Annotations).await,
            Command::Scale(args) => objects::scale(args).await,
            Command::Rollout(args) => objects::rollout(args).await,
            Command::Exec(args) => inside::exec(args).await,
            Command::PortForward(args) => port_forward::run(args).await,
            Command::Logs(args) => inside::logs(args).await,
            Command::Status(args) => status::status(args).await,
            Command::Version(args) => version::version(&args).await,
            Command::Why(args) => why::why(args).await,
            Command::Routes(args) => get::routes(args).await,
            Command::Check(args) => check::check(args).await,
            Command::Uninstall(args) => uninstall::uninstall(args).await,
            Command::Plan(args) => plan::plan(&args).await,
            Command::Completions(args) => documents::completions(&args),
            Command::CompleteNames(args) => complete::names(&args).await,
            Command::Man(args) => documents::man(&args),
            Command::Probe(args) => probe::probe(&args).await,
            Command::Bench(args) => bench::bench(*args).await,
            Command::Load(args) => ambit_load::run_load(*args).await,
            Command::Waypoint(args) => {
                let command = args.command.expect("main starts a waypoint itself");
                waypoint::waypoint(command).await
            }
            Command::Control(_) | Command::Node(_) | Command::Proxy(_) => {
                unreachable!("roles are started by main")
            }
        }
    })
}

/// Prints a result. Who stops reading, as `head` does, has read enough.
fn print(text: &str) -> Result<()> {
    let mut output = std::io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        printed => printed.context("print the result"),
    }
}

/// Prints lines for a person. They hold names that others chose, which command no terminal.
fn print_text(text: &str) -> Result<()> {
    print(&printable_lines(text))
}

/// The same, coloured for a person who wants that.
fn print_coloured(text: &str, paint: fn(&str) -> String) -> Result<()> {
    let text = printable_lines(text);
    if colour::is_wanted() { print(&paint(&text)) } else { print(&text) }
}

/// Prints a result as JSON.
fn print_json(value: &impl serde::Serialize) -> Result<()> {
    print(&printable_json(&format!("{}\n", serde_json::to_string_pretty(value)?)))
}

/// The state directory that is meant.
fn layout(args: &StateArgs) -> Layout {
    match &args.state {
        Some(state) => Layout::new(std::path::absolute(state).unwrap_or_else(|_| state.clone())),
        None => {
            let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(std::path::PathBuf::from);
            let is_root = ambit_net::sys::process::effective_uid() == 0;
            Layout::new(Layout::default_root(is_root, runtime.as_deref()))
        }
    }
}
