//! `ambit lab-node`: what a cluster's node runs besides the mesh: pods, service addresses, cluster
//! DNS.
//!
//! One process per node, in the node's network namespace. It reads the registry and reports the
//! state of its pods there. It may die and restart at any time without effect on a pod. It never
//! decides where a pod runs.

mod addresses_in_use;
mod cni;
pub(crate) mod dns;
mod launch;
pub(crate) mod memory;
pub(crate) mod network;
mod plan;
mod pod_run;
mod probe;
mod references;
mod resources;
mod runner;
pub(crate) mod services;
mod sources;
pub(crate) mod vips;
mod volumes;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use ambit_log::{LineFormat, LogFormat};
use ambit_net::nftables::{Nftables, Table};
use ambit_words::names::DEFAULT_CLUSTER_DOMAIN;
use anyhow::Context as _;
use clap::Parser;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::addresses::{DNS, NodeNetwork};
use crate::layout::Layout;
use crate::reaper::Reaper;
use crate::record::Record;
use crate::registry::{Mirror, Watch};
use dns::{Names, Outside, SharedZone, Zone};
use runner::Runner;

pub(crate) use launch::ask_with as ask_pod;
pub(crate) use references::references;

/// Wait before service addresses that could not be set are set again.
const SERVICES_RETRY: Duration = Duration::from_secs(1);

#[derive(Debug, Parser)]
#[command(name = "lab-node", hide = true)]
struct Arguments {
    /// Which node.
    #[arg(long)]
    node_name: String,
    /// The machine's state directory.
    #[arg(long)]
    state: PathBuf,
}

/// What the tasks of a node share.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) layout: Layout,
    pub(crate) node: String,
    pub(crate) network: NodeNetwork,
    pub(crate) record: Record,
    pub(crate) reaper: Reaper,
    pub(crate) mirror: RwLock<Mirror>,
    /// Counts the changes of the mirror.
    pub(crate) changes: watch::Sender<u64>,
    pub(crate) addresses: addresses_in_use::AddressesInUse,
}

impl Context {
    fn mirror_mut(&self) -> std::sync::RwLockWriteGuard<'_, Mirror> {
        self.mirror.write().expect("nothing panics while it holds the lock")
    }

    pub(crate) fn mirror(&self) -> std::sync::RwLockReadGuard<'_, Mirror> {
        self.mirror.read().expect("nothing panics while it holds the lock")
    }
}

/// Runs a node until it is killed.
pub(crate) fn run(words: &[OsString]) -> anyhow::Result<ExitCode> {
    start_log();
    let name = OsString::from("lab-node");
    let arguments = Arguments::try_parse_from(std::iter::once(&name).chain(words))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(serve(arguments))
}

/// Log lines to standard error, for programs whose output is collected.
pub(crate) fn start_log() {
    tracing_subscriber::fmt()
        .event_format(LineFormat(LogFormat::Plain))
        .with_writer(std::io::stderr)
        .with_max_level(tracing::Level::INFO)
        .init();
}

async fn serve(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let layout = Layout::new(arguments.state);
    let record = Record::read(&layout)?;
    let network = NodeNetwork::of_name(&arguments.node_name)
        .with_context(|| format!("{:?} is not the name of a node", arguments.node_name))?;
    network::set_up_node(network)?;
    let zone = SharedZone::default();
    let outside = {
        let domain = record.workload.as_ref().map(|it| it.cluster_domain.as_str());
        let domain = domain.unwrap_or(DEFAULT_CLUSTER_DOMAIN);
        record.egress.as_ref().map(|_| Outside::new(layout.resolve_socket(), domain))
    };
    let names = Names { zone: Arc::clone(&zone), outside };
    dns::serve(&DNS.both(), names).context("serve cluster DNS")?;
    let mut watch = Watch::new(&[layout.objects(), layout.pod_statuses()])?;
    let context = Arc::new(Context {
        mirror: RwLock::new(Mirror::new(&layout)),
        addresses: addresses_in_use::AddressesInUse::default(),
        changes: watch::channel(0).0,
        reaper: Reaper::start()?,
        node: arguments.node_name,
        network,
        record,
        layout,
    });
    let mut addresses = ServiceAddresses { nftables: Nftables::open()?, set: None };
    let mut runner = Runner::new(Arc::clone(&context));
    let mut up_to_date = true;
    loop {
        tokio::select! {
            changes = watch.changes() => {
                context.mirror_mut().read(&changes?);
                context.changes.send_modify(|count| *count += 1);
                up_to_date = addresses.set(&context, &zone);
            }
            () = runner.pod_ended() => {}
            () = sleep(SERVICES_RETRY), if !up_to_date => {
                up_to_date = addresses.set(&context, &zone);
            }
        }
        runner.reconcile();
    }
}

/// The node's service addresses and names, kept as the registry has them.
struct ServiceAddresses {
    nftables: Nftables,
    set: Option<[Table; 2]>,
}

impl ServiceAddresses {
    /// Brings service addresses and DNS up to date; whether that worked.
    fn set(&mut self, context: &Context, zone: &SharedZone) -> bool {
        let mirror = context.mirror();
        let services = services::services(&mirror);
        let pods = mirror
            .statuses()
            .map(|((namespace, _), status)| (namespace.as_str(), status.pod_ips.as_slice()));
        *zone.write().expect("nothing panics while it holds the lock") =
            Arc::new(Zone::build(&services, pods));
        let tables = vips::tables(&services, &context.node);
        if self.set.as_ref() == Some(&tables) {
            return true;
        }
        match self.nftables.replace(&tables) {
            Ok(()) => self.set = Some(tables),
            Err(error) => {
                let error = anyhow::Error::new(error);
                tracing::error!(error = format!("{error:#}"), "cannot set the service addresses");
                self.set = None;
            }
        }
        self.set.is_some()
    }
}
