//! Machines of namespaces, sample applications, load generator.
//!
//! This crate is what Kubernetes would bring, on one machine: an object store, a Deployment
//! controller, a scheduler, a pod runner, service addresses and cluster DNS. The mesh itself
//! (control plane, agent, proxy) is the shipped binary, which it starts as processes of their own;
//! it never links them.
//!
//! | module | what the command line calls |
//! |---|---|
//! | [`machine`] | `up`, `down`, [`machine::Client`], `exec`, `processes` |
//! | [`layout`] | where everything lies in the state directory |
//! | [`objects`] | references to objects and what became of them |
//! | [`image`] | what a container image means on a machine without images |
//! | [`logs`] | reading and following logs that are rotated |
//! | [`sample`], [`load`] | applications and load for experiments |
//! | [`mod@bench`] | the experiments, mode beside mode |
//! | `scale` | a cluster of a thousand nodes and their proxies, for `cargo xtask e2e kubernetes` |
//!
//! [`hidden_command`] must be the first thing that `main` calls: some of the hidden subcommands
//! enter namespaces, which a process with threads cannot.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser;

pub mod bench;
pub mod demo;
pub mod handshake;
pub mod image;
pub mod layout;
pub mod load;
pub mod logs;
pub mod machine;
pub mod objects;
pub mod ownership;
pub mod sample;

mod addresses;
mod controller;
mod go_duration;
mod node;
mod pod;
mod reaper;
mod registry;
mod scale;

/// What was built; where it is not what is shipped, it says which profile compiled it.
pub const VERSION: &str = env!("AMBIT_VERSION");

/// Runs the hidden subcommand that `arguments` (program name first) ask for, if it is one of this
/// crate's.
///
/// `None` means that the words are for the visible command line.
pub fn hidden_command(arguments: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let (program, arguments) = arguments.split_first()?;
    if let Some(shim) = load::shim::Shim::named(program) {
        return Some(exit(program, shim.run(arguments)));
    }
    let (word, rest) = arguments.split_first()?;
    let outcome = match word.to_str()? {
        "vegeta" => load::shim::Shim::Vegeta.run(rest),
        "fortio" => load::shim::Shim::Fortio.run(rest),
        "lab-machine" => machine::run(rest),
        "lab-node" => node::run(rest),
        "lab-pod-init" => pod::run_init(rest),
        "lab-container" => pod::run_container(rest),
        "lab-handshake" => handshake::run(rest),
        "lab-load" => load::run(rest),
        "lab-scale" => scale::run(rest),
        "sample" => sample::run(rest),
        _ => return None,
    };
    Some(exit(word, outcome))
}

/// Tells the user a line. That nobody hears it is no reason to stop half way: the terminal may be
/// gone, or what read from a pipe, and `eprintln` would panic before what was started is ended.
pub fn tell(line: fmt::Arguments<'_>) {
    let _unheard = writeln!(std::io::stderr(), "{line}");
}

fn exit(word: &OsStr, outcome: anyhow::Result<ExitCode>) -> ExitCode {
    outcome.unwrap_or_else(|error| {
        tell(format_args!("ambit {}: {error:#}", word.to_string_lossy()));
        ExitCode::FAILURE
    })
}

/// The words of a hidden command; the exit status when they are wrong or ask for help.
fn arguments<A: Parser>(name: &str, words: &[OsString]) -> anyhow::Result<Result<A, ExitCode>> {
    let name = OsString::from(name);
    match A::try_parse_from(std::iter::once(&name).chain(words)) {
        Ok(arguments) => Ok(Ok(arguments)),
        Err(error) => {
            error.print().context("print the usage")?;
            Ok(Err(ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    /// Set for a child of its own.
    const CHILD: &str = "AMBIT_TEST_TELLS";

    #[test]
    fn telling_nobody_is_no_end() {
        if std::env::var_os(CHILD).is_some() {
            tell(format_args!("nobody reads this"));
            return;
        }
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let own = std::env::current_exe().unwrap();
        let words = ["tests::telling_nobody_is_no_end", "--exact", "--nocapture"];
        let child = Command::new(own)
            .args(words)
            .env(CHILD, "")
            .stderr(writer)
            .stdout(Stdio::piped())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success() && said.contains("1 passed"), "{said}");
    }
}
