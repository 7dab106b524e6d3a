//! `ambit bench`: the published experiments, side by side in one run; and `ambit demo`.
//!
//! A run ([`Run`]) brings up one machine for each mode, or on a cluster one namespace, loads them
//! in turn in an order that is shuffled each time, and keeps everything it measured as JSON. Every
//! table, chart and verdict is made from that JSON alone, so it can be made again, and compared
//! with another run's.
//!
//! | module | holds |
//! |---|---|
//! | `modes`, [`peer`] | what carries the traffic: one table, and other meshes' programs |
//! | `experiment`, [`manifest`], [`published`] | applications, loads, figures of others |
//! | `engine`, `bed` | the run, and the machine or the namespace of one mode |
//! | `kube`, `guests` | a run on a cluster: its checks, and its pods |
//! | `roles`, `calls`, `host` | processor and memory by role, system calls, the host |
//! | `record` | the JSON |
//! | `metrics` | the numbers of one measurement |
//! | `statistics`, `verdict` | medians, bootstrap intervals, and the verdicts they allow |
//! | `doubts` | reasons not to trust a measurement or a run |
//! | `figures` | all of these, calculated once for everything that shows a run |
//! | `table`, `chart`, `html` | a run for a terminal, as SVG, as a page |
//! | `compare` | two runs |
//! | `condense`, `keep` | histograms small enough to keep; the files of a run, written and read |
//! | `cost` | what a request costs the node proxies, for `ambit plan` |
//! | [`demo`], [`handshake`] | `ambit demo`, and certificates that must be refused |
//! | `scale` | a cluster of a thousand nodes and their proxies, for `cargo xtask e2e kubernetes` |

#![deny(
    clippy::print_stderr,
    reason = "it panics where nobody listens; `ambit_load::tell` does not"
)]

mod args;
mod bed;
mod calls;
mod chart;
mod command;
mod compare;
mod condense;
mod cost;
pub mod demo;
mod doubts;
mod engine;
mod experiment;
mod figures;
mod grid;
mod guests;
pub mod handshake;
mod host;
mod html;
mod keep;
mod kube;
pub mod manifest;
mod metrics;
mod modes;
mod order;
pub mod peer;
#[cfg(test)]
mod played;
pub mod published;
mod record;
mod roles;
mod scale;
mod statistics;
mod table;
#[cfg(test)]
mod testing;
mod verdict;
mod words;

use std::ffi::{OsStr, OsString};
use std::process::ExitCode;

pub use args::BenchArgs;
pub use command::{Site, help, run as run_bench};
pub use compare::{CompareError, RunComparison, compare};
pub use cost::{ProxyCost, ProxyCostError};
pub use experiment::OwnManifests;
pub use keep::{KeepError, ReadError, keep};
pub use record::{
    Calls, Case, Ending, Host, MachineSize, Meanwhile, Measurement, Memory, ModeOutcome, ModeRun,
    RUN_VERSION, Run, Usage,
};

use figures::Figures;

/// The version of this build; unless it is a shipped one, with the profile that compiled it.
pub const VERSION: &str = env!("AMBIT_VERSION");

/// Runs the hidden subcommand `word`; `None` where it is none of this crate's.
pub fn hidden_command(word: &OsStr, words: &[OsString]) -> Option<anyhow::Result<ExitCode>> {
    match word.to_str()? {
        "lab-handshake" => Some(handshake::run(words)),
        "lab-scale" => Some(scale::run(words)),
        _ => None,
    }
}

/// The run for a terminal: tables of at most 120 columns, verdicts, and why to be careful.
pub(crate) fn text(run: &Run) -> String {
    table::text(&Figures::of(run))
}
