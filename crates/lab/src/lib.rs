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
//! | [`mod@bench`] | the experiments, mode beside mode |
//! | `scale` | a cluster of a thousand nodes and their proxies, for `cargo xtask e2e kubernetes` |
//!
//! [`hidden_command`] must be the first thing that `main` calls: some of the hidden subcommands
//! enter namespaces, which a process with threads cannot.

use std::ffi::{OsStr, OsString};
use std::process::ExitCode;

pub mod bench;
pub mod demo;
pub mod handshake;

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
    if let Some(outcome) = ambit_load::called_as(program, arguments) {
        return Some(exit(program, outcome));
    }
    let (word, rest) = arguments.split_first()?;
    let others = ambit_machine::hidden_command(word, rest)
        .or_else(|| ambit_load::hidden_command(word, rest));
    if let Some(outcome) = others {
        return Some(exit(word, outcome));
    }
    let outcome = match word.to_str()? {
        "lab-handshake" => handshake::run(rest),
        "lab-scale" => scale::run(rest),
        _ => return None,
    };
    Some(exit(word, outcome))
}

fn exit(word: &OsStr, outcome: anyhow::Result<ExitCode>) -> ExitCode {
    outcome.unwrap_or_else(|error| {
        ambit_load::tell(format_args!("ambit {}: {error:#}", word.to_string_lossy()));
        ExitCode::FAILURE
    })
}
