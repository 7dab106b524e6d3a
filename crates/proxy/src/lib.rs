//! Role: the node proxy, layer 4.
//!
//! `ambit proxy` is two processes. The *supervisor* talks to the node agent, opens listeners in the
//! pods' network namespaces and keeps what must survive: listeners, the view as it came off the
//! wire, certificates and keys. The *worker* moves the bytes: one control thread, one DNS thread
//! and N data-plane threads. A dead worker is replaced in milliseconds; the new one continues with
//! its listeners, view and keys.
//!
//! | module | holds |
//! |---|---|
//! | [`config`] | flags and Istio's environment variables, as written and as used |
//! | `supervisor`, `handover`, `snapshot` | the process that stays, and what it hands to workers |
//! | `worker`, `link`, `shared` | the process that moves bytes, and what its threads share |
//! | `dataplane`, `thread` | one thread: its pods, and what their connections use |
//! | `outbound`, `inbound`, `plaintext`, `local` | the directions, from accept to record |
//! | `phases` | a connection's set-up and what carries it, each with its own memory |
//! | `fence` | what a pod says first, where only what is declared may be reached |
//! | `pods` | the pods that are served |
//! | `dns` | names of the mesh, answered inside the pod |
//! | `admin`, `metrics` | what an operator sees |
//!
//! The parts that every proxy has are in `ambit_dataplane`. This crate never decides a plan or a
//! permission (`ambit_model` does), and never talks to Kubernetes.

mod admin;
pub mod config;
#[cfg(test)]
mod datapath_tests;
mod dataplane;
mod dns;
mod fence;
#[cfg(test)]
mod future_sizes;
mod handover;
mod inbound;
mod link;
mod local;
mod metrics;
mod outbound;
mod phases;
mod plaintext;
mod pods;
mod shared;
mod snapshot;
mod supervisor;
mod thread;
mod worker;

pub use config::Args;

/// The parser of DNS messages, for the fuzzer: no bytes may panic, and every refusal is a message.
#[cfg(any(fuzzing, test))]
pub use dns::fuzz as fuzz_dns;

use ambit_dataplane::logging::Levels;
use anyhow::Context as _;

use config::{Config, Environment};

/// Runs the proxy: the supervisor, or the worker that a supervisor starts.
pub fn run(args: Args) -> anyhow::Result<()> {
    let config = Config::new(&args, &Environment::of_process())?;
    let levels = Levels::start(&args.log_level, args.log_format).context("start logging")?;
    // Keys are in memory: no other process of this user may look at it.
    ambit_net::sys::process::set_not_dumpable().context("protect the memory")?;
    // Each pod costs a handful of descriptors, each connection two.
    ambit_net::sys::process::raise_open_files_limit().context("raise the limit of open files")?;
    let outcome =
        if args.worker { worker::run(config, levels.clone()) } else { supervisor::run(&config) };
    levels.flush();
    outcome
}
