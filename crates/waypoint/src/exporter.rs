//! The thread that sends spans and log records to collectors of OpenTelemetry (OTLP).
//!
//! It takes records out of their queue now and then, so that no request has to wake it, and sends
//! them in batches. A collector that is a service of the mesh is reached like every endpoint:
//! through HBONE, with the waypoint's identity.
//!
//! | module | holds |
//! |---|---|
//! | `outlet` | what waits for one collector, and its way there |
//! | `call` | one export, over gRPC or HTTP |

mod call;
mod outlet;

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ambit_dataplane::handshakes::handshakes;
use ambit_dataplane::own::Served;
use ambit_dataplane::plane::Plane;
use ambit_model::http::telemetry::Collector;
use ambit_net::drain::Drain;
use tokio::sync::oneshot;
use tokio::task::LocalSet;
use tokio::time::{sleep, timeout};

use crate::exports::{Counts, Records};
use crate::position::Here;
use crate::shared::Shared;
use outlet::Outlet;

/// How often the thread looks for records.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Collectors at once. Telemetry names them, and it can be written in every namespace.
const MAX_COLLECTORS: usize = 32;
/// How long the last records may take when the waypoint ends.
const LAST_EXPORT: Duration = Duration::from_secs(3);

/// The exporting thread.
pub(crate) struct Exporter {
    finish: oneshot::Sender<()>,
    ended: oneshot::Receiver<()>,
}

impl Exporter {
    /// Starts the thread.
    pub(crate) fn start(shared: &Arc<Shared>, records: Records) -> std::io::Result<Self> {
        let (finish, finishing) = oneshot::channel();
        let (done, ended) = oneshot::channel();
        let shared = shared.clone();
        std::thread::Builder::new().name("export".to_owned()).spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            match runtime {
                Ok(runtime) => LocalSet::new().block_on(&runtime, run(shared, records, finishing)),
                Err(error) => tracing::error!(%error, "cannot start the exporter's runtime"),
            }
            let _gone = done.send(());
        })?;
        Ok(Self { finish, ended })
    }

    /// Sends what is left; to be called when no request is left.
    pub(crate) async fn finish(self) {
        let _gone = self.finish.send(());
        if timeout(LAST_EXPORT, self.ended).await.is_err() {
            tracing::warn!("the last spans and log records could not be sent in time");
        }
    }
}

async fn run(shared: Arc<Shared>, records: Records, mut finishing: oneshot::Receiver<()>) {
    let everything = Drain::new();
    let plane = Rc::new(Plane::new(shared.mesh.clone(), everything.guard()));
    let admission = handshakes(shared.mesh.descriptors.used().1, shared.config.threads);
    let served = Rc::new(Served::new(shared.own.clone(), admission));
    let counts = shared.reports.exports.counts();
    let here = Rc::new(Here::new(shared, plane.clone(), served));
    let mut outlets = Outlets { here, counts, all: HashMap::new() };
    let exporting = async {
        loop {
            let is_last = tokio::select! {
                _ = &mut finishing => true,
                () = sleep(LOOK_INTERVAL) => false,
            };
            outlets.sort(&records);
            if is_last {
                return outlets.end().await;
            }
        }
    };
    tokio::select! {
        () = exporting => {}
        () = plane.connections.keep_judged() => {}
    }
}

/// What waits for each collector.
struct Outlets {
    here: Rc<Here>,
    counts: Counts,
    all: HashMap<Arc<Collector>, Rc<Outlet>>,
}

impl Outlets {
    fn sort(&mut self, records: &Records) {
        self.all.retain(|_, outlet| !outlet.is_unused());
        while let Some((collector, record)) = records.next() {
            if !self.all.contains_key(&collector) && self.all.len() >= MAX_COLLECTORS {
                self.counts.dropped(record.signal(), "too_many_collectors", 1);
                continue;
            }
            let (here, counts) = (&self.here, &self.counts);
            let outlet = self.all.entry(collector.clone());
            outlet.or_insert_with(|| Outlet::open(here, collector, counts)).put(record);
        }
    }

    /// Waits until everything is sent or given up.
    async fn end(&mut self) {
        for outlet in self.all.values() {
            outlet.emptied().await;
        }
    }
}
