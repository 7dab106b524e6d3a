//! Role: the layer-7 engine in a pod, behind HBONE or at the edge of the mesh.
//!
//! `ambit waypoint` is one process: a control thread that follows the control plane and answers
//! operators, and N data-plane threads. To a waypoint other proxies' tunnels come in at port 15008;
//! to a gateway the world connects, at the listeners of its Gateway. What is HTTP goes through the
//! engine ([`ambit_http::engine`]), request by request; everything else is judged, routed and
//! passed on as bytes. Endpoints are reached with the pod's own identity.
//!
//! | module | holds |
//! |---|---|
//! | [`config`] | flags and environment variables, as written and as used |
//! | `health`, `wellness` | health checks of endpoints, and what they find |
//! | `clients` | how many connections each client has |
//! | `worker` | one data-plane thread, from its start to its end |
//! | `tunnels` | a waypoint's listener: tunnels of other proxies, and what becomes of each |
//! | `edge` | a gateway's listeners: connections from outside, and what becomes of each |
//! | `datagrams` | a gateway's datagrams: a session for each client |
//! | `secured` | TLS that ends at a gateway |
//! | `thread` | what the connections of a thread share |
//! | `position` | where the engine is: routes, policies, endpoints and ways to them |
//! | `passage`, `refused` | connections that are no HTTP, and why they come to nothing |
//! | `watched` | an endpoint's connection, cut when its certificate is revoked |
//! | `possible` | why requests to a service cannot be sent at all |
//! | `alternatives` | how many endpoints a request could go to |
//! | `newcomers` | since when endpoints are there, for those that warm up |
//! | `originate` | TLS with endpoints that a DestinationRule or a BackendTLSPolicy asks for |
//! | `hello` | the name in a client's TLS handshake |
//! | `telemetry`, `checks` | metrics: of requests, of authorization services |
//! | `access_log` | a line for each request, in Ambit's form or in Envoy's |
//! | `reports` | who is told of a request: log and collectors, by settings and by Telemetry |
//! | `operator` | readiness and metrics |
//! | `exports`, `exporter` | spans and log records on their way to collectors (OTLP) |
//! | `load` | metrics of what there is to do |
//! | `shared` | what all threads share |
//!
//! Nothing here decides a route or a permission (`ambit_model` does) or reads a head
//! (`ambit_http` does).

mod access_log;
mod alternatives;
mod checks;
mod clients;
pub mod config;
mod datagrams;
mod edge;
mod exporter;
mod exports;
mod health;
mod hello;
mod load;
mod newcomers;
mod operator;
mod originate;
mod passage;
mod position;
mod possible;
mod refused;
mod reports;
mod secured;
mod shared;
mod telemetry;
mod thread;
mod tunnels;
mod watched;
mod wellness;
mod worker;

#[cfg(test)]
mod attack_tests;

use std::sync::Arc;

use ambit_dataplane::certificates::{CertificateAuthority, Certificates, Clock, Keeper};
use ambit_dataplane::demand::demand;
use ambit_dataplane::descriptors::Shares;
use ambit_dataplane::learned::Successor;
use ambit_dataplane::logging::Levels;
use ambit_dataplane::mesh::Mesh;
use ambit_dataplane::own::OwnWorkload;
use ambit_dataplane::views::Views;
use ambit_model::identity::Identity;
use ambit_model::names::WorkloadName;
use ambit_net::program;
use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};
use tracing::info;

pub use config::{Args, FurtherArgs};

use config::{Config, Place};
use exporter::Exporter;
use exports::Queue;
use shared::Shared;

/// Runs the waypoint until it is told to end.
pub fn run(args: Args, further: &FurtherArgs) -> anyhow::Result<()> {
    // Some of the settings follow from it.
    ambit_net::sys::process::raise_open_files_limit().context("raise the limit of open files")?;
    let variables = std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned());
    config::check_variables(variables)?;
    let config = Config::new(&args, further)?;
    let levels = Levels::start(&args.log_level, args.log_format).context("start logging")?;
    // Keys are in memory: no other process of this user may look at it.
    ambit_net::sys::process::set_not_dumpable().context("protect the memory")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(serve(config));
    levels.flush();
    // Tasks that wait for the control plane hold nobody up.
    runtime.shutdown_background();
    outcome
}

async fn serve(config: Config) -> anyhow::Result<()> {
    let (successor, learned) = Successor::new();
    // Nobody continues after this process.
    drop(learned);
    let (certificates, asks) = Certificates::new(Clock::system());
    let (demand, demands) = demand(false);
    let mesh = Arc::new(Mesh::new(config.settings(), certificates.clone(), demand));
    let authority = CertificateAuthority::new(config.authority_access(), config.certificate_ttl);
    let (metrics, crl) = (mesh.metrics.clone(), config.crl_path.clone());
    let keeper =
        Keeper::new(certificates.clone(), asks, authority, successor.clone(), metrics, crl);
    let (access, metadata) = (config.discovery_access(), config.metadata());
    let front = config.front();
    let views = Views::of_front(mesh.clone(), access, &metadata, successor, demands, front);
    mesh.metrics.watch_runtime("control".into(), tokio::runtime::Handle::current());
    mesh.metrics.watch_descriptors(mesh.descriptors.clone());
    let identity = Identity::new(config.trust_domain.clone(), &*config.namespace, &*config.account);
    let name = WorkloadName::new(&*config.namespace, &*config.pod);
    let shares = Shares::new(&mesh.descriptors, &name);
    let uid = name.to_string().into();
    let own = Arc::new(OwnWorkload {
        uid,
        name,
        netns: None,
        outside: None,
        identity: identity.clone(),
        shares,
    });
    let (exports, records) = Queue::new();
    let shared = Arc::new(Shared::new(config, mesh, own, exports));
    tokio::spawn(keeper.run());
    certificates.hold(identity).await;
    operator::start(&shared).await?;
    tokio::spawn(views.run());
    let mut complete = shared.mesh.view_complete.subscribe();
    let mut terminate = signal(SignalKind::terminate()).context("listen to signals")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen to signals")?;
    // Half a view would let through what the other half forbids.
    tokio::select! {
        known = complete.wait_for(|is_complete| *is_complete) => drop(known),
        _ = terminate.recv() => return Ok(()),
        _ = interrupt.recv() => return Ok(()),
    }
    let exporter = Exporter::start(&shared, records).context("start the exporter")?;
    let mut threads = worker::start(&shared)?;
    match shared.config.place {
        Place::Waypoint => {
            info!(threads = shared.config.threads, address = %shared.config.hbone, "ready");
        }
        Place::Gateway => info!(threads = shared.config.threads, "ready at the edge"),
    }
    program::give_back_start();
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        ended = threads.ended() => return ended,
    }
    info!(deadline_s = shared.config.drain.as_secs(), "told to end: not ready any more");
    shared.stopping.send_replace(true);
    // The threads end what is left by then.
    threads.ended().await?;
    exporter.finish().await;
    Ok(())
}
