//! Starts a container's processes: first as `ambit lab-container`, which sets its user, session and
//! directory, then as the program.
//!
//! The step in between is a separate process with one thread, because sessions and users belong to
//! processes. If it fails, it prints the reason to the container's log and exits as a shell would.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use ambit_net::sys::process::{self, Pid, Signal};
use anyhow::Context;
use clap::Parser;

use super::ContainerPlan;
use crate::image::SHIPPED_BINARY;

/// The shipped binary, also where the pod's file tree does not show it.
const OWN_BINARY: &str = "/proc/self/exe";
/// What a shell answers when there is no such program.
const NOT_FOUND: u8 = 127;
/// What a shell answers when the program cannot be run.
const NOT_EXECUTABLE: u8 = 126;

#[derive(Debug, Parser)]
#[command(name = "lab-container", hide = true)]
struct Arguments {
    /// Who to run as; 0 stays.
    #[arg(long)]
    user: u32,
    /// With which group; 0 stays.
    #[arg(long)]
    group: u32,
    /// Where to start.
    #[arg(long)]
    directory: PathBuf,
    /// The program and its arguments.
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Becomes the program of a container.
pub(crate) fn run(words: &[OsString]) -> anyhow::Result<ExitCode> {
    let program_name = OsString::from("lab-container");
    let arguments = Arguments::try_parse_from(std::iter::once(&program_name).chain(words))?;
    process::new_session().context("start a session")?;
    process::default_signals().context("forget which signals were ignored")?;
    if (arguments.user, arguments.group) != (0, 0) {
        process::become_user(arguments.user, arguments.group, &[arguments.group])
            .with_context(|| format!("become user {}", arguments.user))?;
    }
    std::env::set_current_dir(&arguments.directory).with_context(|| {
        format!("workingDir {} cannot be entered", arguments.directory.display())
    })?;
    let (program, rest) = arguments.command.split_first().context("a command has a program")?;
    let path = if program == SHIPPED_BINARY { OWN_BINARY.into() } else { program.clone() };
    let error = Command::new(path).arg0(program).args(rest).exec();
    eprintln!("cannot run {}: {error}", program.to_string_lossy());
    let not_found = error.kind() == io::ErrorKind::NotFound;
    Ok(ExitCode::from(if not_found { NOT_FOUND } else { NOT_EXECUTABLE }))
}

/// What a container process reads and writes.
#[derive(Debug)]
pub(crate) struct Streams {
    /// Nothing, if absent.
    pub(crate) input: Option<OwnedFd>,
    /// Standard output.
    pub(crate) output: OwnedFd,
    /// Standard error.
    pub(crate) error: OwnedFd,
}

/// Starts a process of a container, in its own session. The caller's [`crate::reaper::Reaper`]
/// reports its end.
pub(crate) fn start(
    plan: &ContainerPlan,
    command: &[String],
    further: &BTreeMap<String, String>,
    streams: Streams,
) -> io::Result<Pid> {
    let child = Command::new(OWN_BINARY)
        .arg0(SHIPPED_BINARY)
        .arg("lab-container")
        .args(["--user", &plan.user.to_string()])
        .args(["--group", &plan.group.to_string()])
        .arg("--directory")
        .arg(&plan.working_directory)
        .arg("--")
        .args(command)
        .env_clear()
        .envs(&plan.environment)
        .envs(further)
        .stdin(streams.input.map_or_else(Stdio::null, Stdio::from))
        .stdout(streams.output)
        .stderr(streams.error)
        .spawn()?;
    Ok(Pid::try_from(child.id()).expect("process ids are positive"))
}

/// Signals a container's whole session, or at least its process while the session is being made.
pub(crate) fn signal(pid: Pid, signal: Signal) {
    // Either fails only when there is nobody left to hear it.
    if process::kill(-pid, signal).is_err() {
        let _gone = process::kill(pid, signal);
    }
}
