//! `ambit lab-scale`: simulates the node proxies of a cluster of a thousand nodes.
//!
//! `populate` writes nodes, namespaces, services and pods to a real API server, where kwok
//! simulates their kubelets. `fleet` is one node proxy for each node, as far as a control plane can
//! tell: each authenticates with its own token, follows everything over its own connection, keeps
//! names and versions, and reconnects with them when the connection ends. It takes one command a
//! line and answers each with a line of JSON ([`fleet`]).
//!
//! Nothing here judges what it measures.

mod api;
mod call;
mod changes;
mod fleet;
mod follower;
mod held;
mod population;
mod spread;
mod viewer;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use ambit_net::sys::process::raise_open_files_limit;
use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

/// Threads of a fleet: it shares its machine with everything that it measures.
const THREADS: usize = 2;

#[derive(Debug, Parser)]
#[command(name = "ambit lab-scale", about = "Plays a large cluster and prints what it measured")]
struct Args {
    #[command(subcommand)]
    part: Part,
}

#[derive(Debug, Subcommand)]
enum Part {
    /// Writes nodes, namespaces, services and pods until there are as many as asked for.
    Populate(PopulateArgs),
    /// Follows a control plane as the proxies of all nodes.
    Fleet(FleetArgs),
}

/// How large the cluster is.
#[derive(Clone, Copy, Debug, clap::Args)]
struct Size {
    /// Nodes, each with the pod of a proxy.
    #[arg(long)]
    nodes: u32,
    /// Namespaces that services and pods are spread over.
    #[arg(long)]
    namespaces: u32,
    /// Services that pods are spread over.
    #[arg(long)]
    services: u32,
    /// Pods beside those of the proxies.
    #[arg(long)]
    pods: u32,
}

#[derive(Debug, clap::Args)]
struct PopulateArgs {
    /// The way to the API server.
    #[arg(long)]
    kubeconfig: PathBuf,
    #[command(flatten)]
    size: Size,
    /// How many pods there are already.
    #[arg(long, default_value_t = 0)]
    pods_before: u32,
    /// How many services there are already.
    #[arg(long, default_value_t = 0)]
    services_before: u32,
    /// Requests under way at the same time.
    #[arg(long, default_value_t = 16)]
    writers: usize,
}

#[derive(Debug, clap::Args)]
struct FleetArgs {
    /// The way to the API server.
    #[arg(long)]
    kubeconfig: PathBuf,
    #[command(flatten)]
    size: Size,
    /// The control plane, https://HOST:PORT.
    #[arg(long)]
    server: http::Uri,
    /// What the control plane's certificate is issued by.
    #[arg(long)]
    roots: PathBuf,
}

/// Runs the part that the words ask for.
pub(crate) fn run(words: &[OsString]) -> Result<ExitCode> {
    let args = match ambit_load::arguments::<Args>("ambit lab-scale", words)? {
        Ok(args) => args,
        Err(code) => return Ok(code),
    };
    raise_open_files_limit().context("raise the limit of open files")?;
    let runtime = || {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        runtime.worker_threads(THREADS).enable_all().build()
    };
    let (main, of_fleet) = (runtime()?, runtime()?);
    main.block_on(async {
        match args.part {
            Part::Populate(args) => population::run(&args).await,
            Part::Fleet(args) => fleet::run(args, of_fleet.handle()).await,
        }
    })?;
    Ok(ExitCode::SUCCESS)
}
