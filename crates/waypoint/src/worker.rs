//! One data-plane thread, from its start to its end.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ambit_dataplane::handshakes::handshakes;
use ambit_dataplane::own::Served;
use ambit_dataplane::plane::Plane;
use ambit_http::engine::Engine;
use ambit_net::drain::Drain;
use ambit_net::socket::tcp_listener;
use anyhow::Context as _;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::sync::oneshot;
use tokio::task::LocalSet;
use tokio::time::Instant;

use crate::config::Place;
use crate::edge::OF_THREADS;
use crate::position::Here;
use crate::secured::Acceptors;
use crate::shared::Shared;
use crate::thread::Thread;
use crate::{edge, health, tunnels};

/// How long a waypoint that is told to end goes on as before: it is not ready any more, and by then
/// the other proxies have heard of it, so that what they are asked to open again they open
/// elsewhere.
const NOTICE: Duration = Duration::from_secs(2);

/// All threads.
pub(crate) struct Threads(FuturesUnordered<oneshot::Receiver<()>>);

impl Threads {
    /// Waits until all have ended; an error when one panicked.
    pub(crate) async fn ended(&mut self) -> anyhow::Result<()> {
        while let Some(ended) = self.0.next().await {
            ended.context("a data-plane thread panicked")?;
        }
        Ok(())
    }
}

/// Starts the threads. Each thread of a waypoint has a listener of its own; those of a gateway open
/// theirs as they are asked for.
pub(crate) fn start(shared: &Arc<Shared>) -> anyhow::Result<Threads> {
    let threads = FuturesUnordered::new();
    for number in 0..shared.config.threads {
        let address = shared.config.hbone;
        let listener = match shared.config.place {
            Place::Waypoint => {
                let listener = tcp_listener(address, &OF_THREADS);
                Some(listener.with_context(|| format!("listen at {address}"))?)
            }
            Place::Gateway => None,
        };
        let (ended, running) = oneshot::channel();
        let (shared, name) = (shared.clone(), format!("data-{number}"));
        std::thread::Builder::new().name(name.clone()).spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = match runtime {
                Ok(runtime) => runtime,
                Err(error) => return tracing::error!(%error, name, "cannot start a runtime"),
            };
            shared.mesh.metrics.watch_runtime(name, runtime.handle().clone());
            LocalSet::new().block_on(&runtime, run(shared, listener));
            // Nobody waits only when the process has ended.
            let _gone = ended.send(());
        })?;
        threads.push(running);
    }
    Ok(Threads(threads))
}

/// Runs one thread's part, until it is told to end.
pub(crate) async fn run(shared: Arc<Shared>, listener: Option<std::net::TcpListener>) {
    let everything = Drain::new();
    let plane = Rc::new(Plane::new(shared.mesh.clone(), everything.guard()));
    let descriptors = shared.mesh.descriptors.used().1;
    let admission = handshakes(descriptors, shared.config.threads);
    let served = Rc::new(Served::new(shared.own.clone(), admission));
    let here = Here::new(shared.clone(), plane.clone(), served.clone());
    let engine = Engine::new(here, shared.config.engine.clone(), everything.guard());
    let mut stopping = shared.stopping.subscribe();
    let (plane_of_all, served_of_all) = (plane.clone(), served.clone());
    let acceptors = Acceptors::default();
    let thread =
        Rc::new(Thread { shared, plane: plane_of_all, served: served_of_all, engine, acceptors });
    let entered = Rc::downgrade(&thread);
    thread.engine.position().serve_pipes(move |arrival, pipe| {
        if let Some(thread) = entered.upgrade() {
            tokio::task::spawn_local(async move { thread.enter(arrival, pipe).await });
        }
    });
    let (tidying, engine) = (thread.engine.clone(), thread.engine.clone());
    tokio::task::spawn_local(async move { tidying.keep_tidy().await });
    let watching = thread.engine.clone();
    tokio::task::spawn_local(async move { watching.keep_watch().await });
    if thread.shared.wellness.begin() {
        let checking = thread.engine.clone();
        let limits = thread.shared.config.engine.limits;
        let checks = async move { health::run(checking.position(), limits).await };
        tokio::task::spawn_local(checks);
    }
    let (accepting, open) = (thread.clone(), everything.guard());
    tokio::task::spawn_local(async move {
        match listener {
            Some(listener) => tunnels::accept(accepting, listener, open).await,
            None => edge::listen(accepting, open).await,
        }
    });
    let drain = thread.shared.config.drain;
    let leaving = async {
        drop(stopping.wait_for(|stopping| *stopping).await);
        let until = Instant::now() + drain;
        tokio::time::sleep(NOTICE.min(drain / 2)).await;
        served.drain.start(Some(until));
        // Idle connections to endpoints would hold the tunnels below them to the deadline.
        engine.close_pool();
        // Until the last one has left, connections are accepted: a proxy that comes here may know
        // of no other waypoint yet.
        if tokio::time::timeout_at(until, served.drain.finished()).await.is_err() {
            tracing::warn!("what is left at the deadline is cut");
        }
    };
    tokio::select! {
        () = leaving => {}
        () = plane.connections.keep_judged() => {}
    }
}
