//! The threads of a worker: starts them, sends them pods, notices their end.
//!
//! Each thread has its own runtime and its own listeners. A thread that panics ends the worker, and
//! the supervisor starts another: half a worker would leave half of the connections unserved.

use std::sync::Arc;
use std::time::Duration;

use ambit_model::Text;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::sync::{mpsc, oneshot};
use tokio::task::LocalSet;
use tracing::error;

use crate::dataplane::{self, Command, Listeners};
use crate::dns;
use crate::pods::Pod;
use crate::shared::Shared;

/// Commands to a data-plane thread.
type Orders = mpsc::Sender<Command>;

/// Commands that may wait for a thread; the control thread waits beyond.
const COMMANDS: usize = 1024;

/// The threads of a worker.
pub(super) struct Threads {
    data: Vec<Orders>,
    dns: mpsc::Sender<dns::Command>,
    running: FuturesUnordered<oneshot::Receiver<()>>,
}

impl Threads {
    /// Starts them.
    pub(super) fn start(shared: &Arc<Shared>) -> anyhow::Result<Self> {
        let mut data = Vec::new();
        let running = FuturesUnordered::new();
        for number in 0..shared.config.worker_threads {
            let (orders, commands) = mpsc::channel(COMMANDS);
            let plane = shared.clone();
            let work = move || dataplane::run(plane, commands);
            running.push(spawn(format!("data-{number}"), shared, work)?);
            data.push(orders);
        }
        let (dns, commands) = mpsc::channel(COMMANDS);
        let names = shared.clone();
        running.push(spawn("dns".to_owned(), shared, move || dns::run(names, commands))?);
        Ok(Self { data, dns, running })
    }

    /// The data-plane threads.
    pub(super) fn commands(&self) -> &[Orders] {
        &self.data
    }

    /// Serves a pod; each thread gets its own listeners.
    pub(super) async fn add(
        &self,
        pod: &Arc<Pod>,
        listeners: Vec<Listeners>,
        sockets: dns::Sockets,
    ) {
        for (thread, listeners) in self.data.iter().zip(listeners) {
            tell(thread, Command::Add { pod: pod.clone(), listeners }).await;
        }
        tell(&self.dns, dns::Command::Add { pod: pod.clone(), sockets }).await;
    }

    /// Gives a pod up; its connections may finish until the deadline.
    pub(super) async fn remove(&self, uid: &Text, deadline: Duration) {
        for thread in &self.data {
            tell(thread, Command::Remove { uid: uid.clone(), deadline }).await;
        }
        tell(&self.dns, dns::Command::Remove { uid: uid.clone() }).await;
    }

    /// Takes no more connections and queries.
    pub(super) async fn stop_accepting(&self) {
        for thread in &self.data {
            tell(thread, Command::StopAccepting).await;
        }
        tell(&self.dns, dns::Command::Stop).await;
    }

    /// Has the connections of pods that were given up end by then.
    pub(super) async fn end_by(&self, deadline: Duration) {
        for thread in &self.data {
            tell(thread, Command::EndBy(deadline)).await;
        }
    }

    /// Waits until all threads have ended; an error when one panicked.
    pub(super) async fn finished(&mut self) -> Result<(), oneshot::error::RecvError> {
        while let Some(ended) = self.running.next().await {
            ended?;
        }
        Ok(())
    }
}

/// A thread that has ended needs no command; that it ended is learned elsewhere.
async fn tell<T>(thread: &mpsc::Sender<T>, command: T) {
    drop(thread.send(command).await);
}

fn spawn<W, F>(name: String, shared: &Arc<Shared>, work: W) -> anyhow::Result<oneshot::Receiver<()>>
where
    W: FnOnce() -> F + Send + 'static,
    F: Future<Output = ()>,
{
    let (ended, running) = oneshot::channel();
    let metrics = shared.mesh.metrics.clone();
    std::thread::Builder::new().name(name.clone()).spawn(move || {
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => return error!(%error, name, "cannot start a thread's runtime"),
        };
        metrics.watch_runtime(name, runtime.handle().clone());
        LocalSet::new().block_on(&runtime, work());
        // Nobody waits only when the worker has ended.
        let _gone = ended.send(());
    })?;
    Ok(running)
}
