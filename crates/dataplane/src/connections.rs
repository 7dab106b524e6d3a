//! The live connections of one data-plane thread, and what ends them before their time.
//!
//! A connection enters the table before its destination is dialled and leaves with its last byte.
//! While it is in the table it is judged again whenever the view changes in a way that matters to
//! authorization, and whenever a certificate is revoked. A connection that is no longer allowed is
//! cut within a second; none is cut for a policy that has not arrived yet. When the waypoint of its
//! destination changes, it goes on for a time, and is judged by the policies alone meanwhile.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::error::Error;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ambit_model::authorize::{Decision, Denial, JudgedBefore, Judgement, Source};
use ambit_model::names::WorkloadName;
use ambit_model::view::View;
use ambit_model::workload::Workload;
use ambit_net::copy::{CopyError, End, Flow, copy};
use ambit_net::kernel_path::Shortcut;
use ambit_tls::{Peer, RevocationList};
use ambit_wire::admin;
use slab::Slab;
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep};

use crate::certificates::Chain;
use crate::failure::ResponseFlags;
use crate::lately::{PAST_WAYPOINT_MAX, WITHDRAWN_MAX};
use crate::mesh::Mesh;
use crate::metrics::{Reporter, Traffic};
use crate::own::OwnWorkload;
use crate::record::{Bytes, Record, Tally};

/// Connections judged in one go; the thread serves traffic in between.
const JUDGED_AT_ONCE: usize = 256;
/// Changes of the view that come faster than this are answered together.
const JUDGE_INTERVAL: Duration = Duration::from_millis(100);
/// How often the counters of long connections are brought up to date.
const COUNT_INTERVAL: Duration = Duration::from_secs(5);

/// Why a connection was ended before its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CutReason {
    /// A policy denies it now.
    Denied(Denial),
    /// A certificate of its peer was revoked.
    Revoked,
    /// Its pod is gone, and so is the time it had to finish.
    PodGone,
    /// Control has said that its workload, outside of the cluster, is none of the mesh any more.
    Disowned,
}

impl Error for CutReason {}

impl CutReason {
    /// Istio's letters for it.
    pub fn flags(&self) -> ResponseFlags {
        match self {
            Self::Denied(_) => ResponseFlags::Deny,
            Self::Revoked => ResponseFlags::CertificateRevoked,
            Self::PodGone | Self::Disowned => ResponseFlags::Connect,
        }
    }
}

impl fmt::Display for CutReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Denied(denial) => write!(f, "cut because the policies changed: {denial}"),
            Self::Revoked => f.write_str("cut because the peer's certificate was revoked"),
            Self::PodGone => f.write_str("cut because the pod was deleted"),
            Self::Disowned => f.write_str("cut because its WorkloadEntry is gone or has changed"),
        }
    }
}

/// What a connection needs to be judged again.
#[derive(Clone, Debug)]
pub struct Judged {
    /// The workload that was connected to.
    pub workload: WorkloadName,
    /// Who connected.
    pub source: Source,
    /// Where to.
    pub destination: std::net::SocketAddr,
    /// What has judged it before.
    pub waypoint: Waypoint,
}

/// What the waypoint of a destination, if it had one, had to do with a connection when it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waypoint {
    /// What it had judged.
    pub judged: JudgedBefore,
    /// Whether the destination had another or none even then, for the proxies disagree a moment.
    pub is_former: bool,
}

/// One live connection, or one HBONE connection that others live in.
pub struct Connection {
    /// Its bytes, and the way to cut it.
    flow: Flow,
    /// The pods of this proxy that it belongs to.
    pods: Vec<Arc<OwnWorkload>>,
    /// Set when the destination is a pod of this proxy.
    judged: Option<Judged>,
    /// Since when the destination's waypoint is not the one that it came through.
    astray_since: Cell<Option<Instant>>,
    peer: RefCell<Option<Arc<Peer>>>,
    /// Certificates that nobody has shown; when one of them is revoked it ends nevertheless.
    chains: RefCell<Vec<Chain>>,
    details: RefCell<Option<Details>>,
    cut_for: RefCell<Option<CutReason>>,
}

/// What is reported about an established connection: the record of each pod of this proxy that it
/// belongs to, the client's first.
struct Details {
    records: Vec<(Record, Arc<Traffic>)>,
    counted: Cell<Bytes>,
}

/// All live connections of a thread. Clones share them.
#[derive(Clone)]
pub struct Connections(Rc<Table>);

struct Table {
    /// What they are judged by.
    mesh: Arc<Mesh>,
    live: RefCell<Slab<Rc<Connection>>>,
    of_pods: RefCell<HashMap<*const OwnWorkload, OfPod>>,
}

/// Those of one pod, which is not another that has its uid later.
#[derive(Default)]
struct OfPod {
    count: usize,
    /// Told when the last one leaves.
    all_left: Rc<Notify>,
}

/// A connection's entry in the table, which it leaves when this is dropped.
pub struct Entered {
    table: Connections,
    key: usize,
    connection: Rc<Connection>,
}

impl Connections {
    /// None yet; they are judged by what this says.
    pub fn new(mesh: Arc<Mesh>) -> Self {
        Self(Rc::new(Table { mesh, live: RefCell::default(), of_pods: RefCell::default() }))
    }

    /// Enters a connection that belongs to these pods.
    pub fn enter(
        &self,
        pods: Vec<Arc<OwnWorkload>>,
        judged: Option<Judged>,
        peer: Option<Arc<Peer>>,
    ) -> Entered {
        let is_astray = judged.as_ref().is_some_and(|it| it.waypoint.is_former);
        for pod in &pods {
            self.0.of_pods.borrow_mut().entry(Arc::as_ptr(pod)).or_default().count += 1;
        }
        let connection = Rc::new(Connection {
            flow: Flow::new(),
            pods,
            judged,
            astray_since: Cell::new(is_astray.then(Instant::now)),
            peer: RefCell::new(peer),
            chains: RefCell::default(),
            details: RefCell::default(),
            cut_for: RefCell::default(),
        });
        let key = self.0.live.borrow_mut().insert(connection.clone());
        Entered { table: self.clone(), key, connection }
    }

    /// Waits until a pod has no connections.
    pub async fn all_left(&self, pod: &Arc<OwnWorkload>) {
        loop {
            let of_pod =
                self.0.of_pods.borrow().get(&Arc::as_ptr(pod)).map(|it| it.all_left.clone());
            let Some(all_left) = of_pod else { return };
            all_left.notified().await;
        }
    }

    /// Cuts all that is left of a pod's connections.
    pub fn cut_pod(&self, pod: &Arc<OwnWorkload>) {
        for (_, connection) in self.0.live.borrow().iter() {
            if connection.pods.iter().any(|it| Arc::ptr_eq(it, pod)) {
                connection.cut(CutReason::PodGone);
            }
        }
    }

    /// A description of every established connection.
    pub fn list(&self) -> Vec<admin::Connection> {
        self.0.live.borrow().iter().filter_map(|(_, connection)| connection.info()).collect()
    }

    /// Judges connections again whenever there is a reason, and keeps counters up to date. Never
    /// returns.
    pub async fn keep_judged(&self) {
        let mesh = &self.0.mesh;
        let mut view_changed = mesh.view_changed.subscribe();
        let mut trust_changed = mesh.certificates.trust_changed();
        let mut judged_at = mesh.view.load().authorization_version();
        let mut count_at = Instant::now() + COUNT_INTERVAL;
        loop {
            tokio::select! {
                _ = view_changed.changed() => {
                    let view = mesh.view.load_full();
                    if mesh.disowned.load(Ordering::Relaxed) {
                        self.visit(Connection::cut_if_disowned).await;
                    }
                    if view.authorization_version() != judged_at {
                        judged_at = view.authorization_version();
                        self.visit(|connection| connection.judge(&view)).await;
                        sleep(JUDGE_INTERVAL).await;
                    }
                }
                _ = trust_changed.changed() => {
                    let revocations = mesh.certificates.revocations();
                    let cut = Cell::new(0);
                    self.visit(|connection| {
                        cut.set(cut.get() + u32::from(connection.judge_peer(&revocations)));
                    })
                    .await;
                    (0..cut.get()).for_each(|_| mesh.metrics.revocation_rejection());
                }
                () = tokio::time::sleep_until(count_at) => {
                    let view = mesh.view.load_full();
                    self.visit(|connection| {
                        connection.count();
                        connection.judge_astray(&view);
                    })
                    .await;
                    count_at = Instant::now() + COUNT_INTERVAL;
                }
            }
        }
    }

    /// Visits every connection that is there now, a bounded number at once.
    async fn visit(&self, mut work: impl FnMut(&Connection)) {
        let mut next = 0;
        loop {
            let batch: Vec<Rc<Connection>> = {
                let table = self.0.live.borrow();
                let end = (next + JUDGED_AT_ONCE).min(table.capacity());
                let batch = (next..end).filter_map(|key| table.get(key).cloned()).collect();
                next = end;
                batch
            };
            batch.iter().for_each(|connection| work(connection));
            if next >= self.0.live.borrow().capacity() {
                return;
            }
            yield_now().await;
        }
    }
}

impl Connection {
    /// Ends the connection; the first reason stays.
    fn cut(&self, reason: CutReason) {
        self.cut_for.borrow_mut().get_or_insert(reason);
        self.flow.cut();
    }

    fn cut_if_disowned(&self) {
        if self.pods.iter().any(|it| it.is_disowned()) {
            self.cut(CutReason::Disowned);
        }
    }

    fn judge(&self, view: &View) {
        let Some(judged) = &self.judged else { return };
        // A workload that left the view takes its policies along; the agent ends its connections.
        let own = self.pods.iter().find(|it| it.name == judged.workload);
        let described = match own {
            // A pod of its name is another workload.
            Some(own) if own.outside.is_some() => own.described_in(view),
            _ => view.workload_named(&judged.workload),
        };
        let Some(workload) = described else { return };
        let judgement = match self.astray(view, workload, judged) {
            Some(judgement) => judgement,
            None => view.authorize(workload, &judged.source, judged.destination),
        };
        if let Decision::Deny(denial) = judgement.decision
            && !denial.is_pending()
        {
            self.cut(CutReason::Denied(denial));
        }
    }

    /// Judges what was let go on until now although the waypoint of its destination has changed.
    fn judge_astray(&self, view: &View) {
        if self.astray_since.get().is_some() {
            self.judge(view);
        }
    }

    /// Judges a connection whose destination has got another waypoint since, or has none any more,
    /// as long as it may go on. To cut it at once would lose what is under way.
    fn astray(&self, view: &View, workload: &Workload, judged: &Judged) -> Option<Judgement> {
        let Judged { source, destination, waypoint, .. } = judged;
        let limit = match (waypoint.judged, view.judged_before(workload, source)) {
            (JudgedBefore::Nothing, Err(_)) => PAST_WAYPOINT_MAX,
            (JudgedBefore::OfMesh | JudgedBefore::OfMeshAndNamespace, Err(_))
            | (
                JudgedBefore::OfMesh | JudgedBefore::OfMeshAndNamespace,
                Ok(JudgedBefore::Nothing),
            ) => WITHDRAWN_MAX,
            (_, Ok(_)) => {
                self.astray_since.set(None);
                return None;
            }
        };
        let now = Instant::now();
        let since = self.astray_since.get().unwrap_or(now);
        self.astray_since.set(Some(since));
        let goes_on = now < since + limit;
        goes_on.then(|| view.authorize_after(waypoint.judged, workload, source, *destination))
    }

    fn judge_peer(&self, revocations: &RevocationList) -> bool {
        let peer = self.peer.borrow();
        let revoked = peer.as_ref().is_some_and(|peer| revocations.revokes(peer))
            || self.chains.borrow().iter().any(|chain| revocations.revokes_any(chain));
        if revoked {
            self.cut(CutReason::Revoked);
        }
        revoked
    }

    /// Adds what moved since the last time to the counters.
    fn count(&self) {
        let details = self.details.borrow();
        let Some(details) = details.as_ref() else { return };
        let (now, before) = (self.bytes(), details.counted.replace(self.bytes()));
        if now != before {
            for (_, traffic) in &details.records {
                traffic.moved(now.to_server - before.to_server, now.to_client - before.to_client);
            }
        }
    }

    fn bytes(&self) -> Bytes {
        Bytes { to_server: self.flow.to_server(), to_client: self.flow.to_client() }
    }

    fn info(&self) -> Option<admin::Connection> {
        let details = self.details.borrow();
        let (record, _) = details.as_ref()?.records.first()?;
        let name = |party: &crate::record::Party| {
            party.workload.as_ref().map(|it| format!("{}/{}", it.namespace, it.name))
        };
        let identity =
            |party: &crate::record::Party| party.identity.as_ref().map(|it| it.to_string());
        Some(admin::Connection {
            direction: match record.reporter {
                Reporter::Source => "outbound".into(),
                Reporter::Destination | Reporter::Waypoint => "inbound".into(),
            },
            plan: record.way.as_str().into(),
            source_address: record.source.address.to_string(),
            source_workload: name(&record.source),
            source_identity: identity(&record.source),
            destination_address: record.authority.unwrap_or(record.destination.address).to_string(),
            destination_workload: name(&record.destination),
            destination_identity: identity(&record.destination),
            service: record.service.as_ref().map(|service| service.key.hostname.to_string()),
            hbone_peer: record.authority.map(|_| match record.reporter {
                Reporter::Source => record.destination.address.to_string(),
                Reporter::Destination | Reporter::Waypoint => record.source.address.to_string(),
            }),
            tls_group: record.peer.as_ref().map(|peer| peer.group.as_str().into()),
            policy: record.allowed_by.as_ref().map(|rule| rule.to_string()),
            bytes_to_server: self.flow.to_server(),
            bytes_to_client: self.flow.to_client(),
            age_ms: u64::try_from(record.started.elapsed().as_millis()).unwrap_or(u64::MAX),
        })
    }
}

impl Entered {
    fn flow(&self) -> &Flow {
        &self.connection.flow
    }

    /// Waits until the connection is cut, and says why.
    pub async fn cut_off(&self) -> CutReason {
        self.flow().cut_off().await;
        // Only `Connection::cut` cuts, and it sets the reason first.
        self.cut_for().unwrap_or(CutReason::PodGone)
    }

    /// Why it was cut, if it was.
    fn cut_for(&self) -> Option<CutReason> {
        self.connection.cut_for.borrow().clone()
    }

    /// It ends when one of these is revoked, too.
    pub fn depend_on(&self, chains: Vec<Chain>) {
        *self.connection.chains.borrow_mut() = chains;
    }

    /// Counts what the kernel moves past [`Self::carry`] as well. To be called once.
    pub fn count_past(&self, to_server: Rc<Shortcut>, to_client: Rc<Shortcut>) {
        self.flow().count_past(to_server, to_client);
    }

    /// Carries the connection to its end: opens its records, moves its bytes, closes its records.
    ///
    /// It lives as long as the connection. So it is a block that uses in place what it captures:
    /// an `async fn` has room for its arguments twice.
    pub fn carry<C: End, S: End>(
        self,
        mut client: C,
        mut server: S,
        records: Vec<Record>,
        tally: &Tally,
    ) -> impl Future<Output = ()> + use<C, S> {
        let opened = records.into_iter().map(|record| {
            let traffic = record.opened(tally);
            (record, traffic)
        });
        self.stands(opened.collect());
        // The table's judge has not seen a revocation since the tunnel was proven.
        if self.connection.judge_peer(&self.table.0.mesh.certificates.revocations()) {
            tally.metrics().revocation_rejection();
        }
        async move {
            let result = copy(&mut client, &mut server, self.flow()).await;
            self.closed(result);
        }
    }

    fn closed(&self, result: Result<(), CopyError>) {
        self.connection.count();
        let cut = self.cut_for();
        let error = match (&result, &cut) {
            (Ok(()), _) => None,
            (Err(CopyError::Cut), Some(reason)) => Some(reason as &dyn Error),
            (Err(error), _) => Some(error as &dyn Error),
        };
        let details = self.connection.details.borrow();
        for (record, traffic) in details.iter().flat_map(|details| &details.records) {
            record.closed(traffic, self.connection.bytes(), error);
        }
    }

    fn stands(&self, records: Vec<(Record, Arc<Traffic>)>) {
        let peer = records.iter().find_map(|(record, _)| record.peer.clone());
        if peer.is_some() {
            *self.connection.peer.borrow_mut() = peer;
        }
        let counted = Cell::default();
        *self.connection.details.borrow_mut() = Some(Details { records, counted });
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.table.0.live.borrow_mut().remove(self.key);
        let mut of_pods = self.table.0.of_pods.borrow_mut();
        for pod in &self.connection.pods {
            let Entry::Occupied(mut of_pod) = of_pods.entry(Arc::as_ptr(pod)) else { continue };
            of_pod.get_mut().count -= 1;
            if of_pod.get().count == 0 {
                of_pod.remove().all_left.notify_waiters();
            }
        }
    }
}

#[cfg(test)]
mod tests;
