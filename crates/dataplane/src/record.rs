//! The facts about one connection, and its end: one log line, its metrics, nothing else.
//!
//! Facts are gathered while a connection is set up and are written once. A record never influences
//! what happens to its connection.

use std::cell::RefCell;
use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;

use ambit_log::{KNOWN, PODS, STRANGERS};
use ambit_model::Text;
use ambit_model::authorize::RuleName;
use ambit_model::identity::Identity;
use ambit_model::service::Service;
use ambit_model::workload::Workload;
use ambit_tls::Peer;
use ambit_wire::hbone::Baggage;
use ambit_words::error_chain;
use rustc_hash::FxHashMap;
use tokio::time::Instant;

use crate::failure::{Failure, ResponseFlags};
use crate::metrics::{EndLabels, Metrics, Reporter, Traffic, TrafficLabels};

/// Label sets that a thread remembers; with more of them it starts afresh.
const MAX_REMEMBERED_LABELS: usize = 4096;

/// How a connection reached, or was to reach, its destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// It is not decided, or came to nothing.
    Undecided,
    /// Joined to a pod of this node.
    Local,
    /// In a tunnel to the destination's proxy.
    Tunnel,
    /// In a tunnel to a waypoint.
    Waypoint,
    /// As plain TCP.
    Direct,
}

impl Way {
    /// The word for it.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Undecided => "undecided",
            Self::Local => "local",
            Self::Tunnel => "tunnel",
            Self::Waypoint => "waypoint",
            Self::Direct => "direct",
        }
    }
}

/// One end of a connection.
#[derive(Clone, Debug)]
pub struct Party {
    /// The address of its socket.
    pub address: SocketAddr,
    /// What the view knows of it.
    pub workload: Option<Arc<Workload>>,
    /// Who it is, as proven.
    pub identity: Option<Identity>,
    /// What it claimed about itself, where the view knows nothing.
    pub baggage: Option<Box<Baggage>>,
}

impl Party {
    /// An end with only its address known.
    pub fn at(address: SocketAddr) -> Self {
        Self { address, workload: None, identity: None, baggage: None }
    }

    fn labels(&self) -> EndLabels {
        let principal = self.identity.as_ref().map(|id| Text::from(id.to_string()));
        let principal = principal.unwrap_or_default();
        if let Some(workload) = &self.workload {
            return EndLabels {
                workload: workload.workload_name.clone(),
                canonical_service: workload.canonical_name.clone(),
                canonical_revision: workload.canonical_revision.clone(),
                namespace: workload.namespace.clone(),
                principal,
                cluster: workload.cluster_id.clone(),
                region: workload.locality.region.clone(),
                zone: workload.locality.zone.clone(),
            };
        }
        let said = self.baggage.as_deref().cloned().unwrap_or_default();
        let proven = self.identity.as_ref().map(|id| id.namespace.clone());
        EndLabels {
            workload: said.workload.map(|(_, name)| name).unwrap_or_default(),
            canonical_service: said.service_name.unwrap_or_default(),
            canonical_revision: said.service_version.unwrap_or_default(),
            namespace: proven.or(said.namespace).unwrap_or_default(),
            principal,
            cluster: said.cluster.unwrap_or_default(),
            region: said.region.unwrap_or_default(),
            zone: said.zone.unwrap_or_default(),
        }
    }

    fn name(&self) -> Option<&str> {
        self.workload.as_ref().map(|workload| &*workload.name)
    }

    /// What it calls itself, where the view has no name for it.
    fn told_name(&self) -> Option<&str> {
        let told = self.baggage.as_ref().filter(|_| self.workload.is_none())?;
        told.service_name.as_deref()
    }

    fn namespace(&self) -> Option<&str> {
        let workload = self.workload.as_ref().map(|workload| &*workload.namespace);
        workload.or(self.identity.as_ref().map(|identity| &*identity.namespace))
    }

    fn cluster(&self) -> Option<&str> {
        self.workload.as_ref().map(|it| &*it.cluster_id).filter(|cluster| !cluster.is_empty())
    }
}

/// The facts about one connection.
#[derive(Clone, Debug)]
pub struct Record {
    /// Which end's proxy reports.
    pub reporter: Reporter,
    /// How it went.
    pub way: Way,
    /// The client.
    pub source: Party,
    /// The server.
    pub destination: Party,
    /// The service through which the server was chosen.
    pub service: Option<Arc<Service>>,
    /// The `:authority` of the tunnel; the destination's address is then that of the tunnel.
    pub authority: Option<SocketAddr>,
    /// The proxy at the other end of the tunnel.
    pub peer: Option<Arc<Peer>>,
    /// The rule that let it in.
    pub allowed_by: Option<RuleName>,
    /// When it was accepted.
    pub started: Instant,
}

/// Who has made a connection fail that came no further than its handshake. Each has log lines of
/// its own, so that no stranger hides what concerns the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A peer that proved nothing.
    Stranger,
    /// A peer that proved who it is or used a revoked certificate, or this proxy itself.
    Known,
    /// A pod of this node.
    OwnPod,
}

impl Record {
    /// A connection between two addresses, with nothing else known yet.
    pub fn new(reporter: Reporter, source: SocketAddr, destination: SocketAddr) -> Self {
        Self {
            reporter,
            way: Way::Undecided,
            source: Party::at(source),
            destination: Party::at(destination),
            service: None,
            authority: None,
            peer: None,
            allowed_by: None,
            started: Instant::now(),
        }
    }

    /// The connection is established: counts it and writes a debug line.
    pub(crate) fn opened(&self, tally: &Tally) -> Arc<Traffic> {
        let traffic = tally.traffic(self, ResponseFlags::None);
        traffic.opened();
        tracing::event!(
            target: "access",
            tracing::Level::DEBUG,
            src.addr = %self.source.address,
            src.workload = self.source.name(),
            src.told = self.source.told_name(),
            dst.addr = %self.destination.address,
            dst.workload = self.destination.name(),
            direction = self.direction(),
            "connection opened"
        );
        traffic
    }

    /// The connection stood and has ended.
    pub(crate) fn closed(&self, traffic: &Traffic, bytes: Bytes, error: Option<&dyn Error>) {
        traffic.closed();
        self.log("connection complete", bytes, error);
    }

    /// The connection never stood.
    pub fn failed(&self, tally: &Tally, failure: &dyn Failure) {
        self.count_failed(tally, failure);
        self.log("connection failed", Bytes::default(), Some(failure));
    }

    /// The same for a connection that came no further than its handshake. A peer can make as many
    /// as it likes: each is counted, and for each cause some are logged.
    pub fn failed_early(&self, tally: &Tally, failure: &dyn Failure, cause: Cause) {
        let lines = match cause {
            Cause::Stranger => &STRANGERS,
            Cause::Known => &KNOWN,
            Cause::OwnPod => &PODS,
        };
        if lines.admits(Instant::now().into_std()) {
            return self.failed(tally, failure);
        }
        self.count_failed(tally, failure);
    }

    fn count_failed(&self, tally: &Tally, failure: &dyn Failure) {
        self.count_refused(tally, failure.flags(), failure.reason());
    }

    /// The connection never stood, and its role logs it: counts it alone. `reason` is one word of a
    /// fixed set.
    pub fn count_refused(&self, tally: &Tally, flags: ResponseFlags, reason: &'static str) {
        tally.traffic(self, flags).failed();
        tally.metrics().refused(self.reporter, reason);
    }

    /// The connection is established, and its role logs it: counts it alone, for as long as what
    /// is returned lives.
    pub fn count_opened(&self, tally: &Tally) -> Counted {
        let traffic = tally.traffic(self, ResponseFlags::None);
        traffic.opened();
        Counted(traffic)
    }

    fn direction(&self) -> &'static str {
        match self.reporter {
            Reporter::Source => "outbound",
            Reporter::Destination | Reporter::Waypoint => "inbound",
        }
    }

    fn log(&self, message: &'static str, bytes: Bytes, error: Option<&dyn Error>) {
        let error = error.map(error_chain);
        // The view of the workload that this proxy stands for: sent is what its application sent.
        let (sent, received) = match self.reporter {
            Reporter::Source => (bytes.to_server, bytes.to_client),
            Reporter::Destination | Reporter::Waypoint => (bytes.to_client, bytes.to_server),
        };
        let named = self.service.as_ref().map(|it| &*it.key.hostname);
        let (told_service, service) =
            if self.names_foreign_service() { (named, None) } else { (None, named) };
        macro_rules! line {
            ($level:expr) => {
                tracing::event!(
                    target: "access",
                    $level,
                    src.addr = %self.source.address,
                    src.workload = self.source.name(),
                    src.told = self.source.told_name(),
                    src.namespace = self.source.namespace(),
                    src.identity = self.source.identity.as_ref().map(tracing::field::display),
                    src.cluster = self.source.cluster(),
                    dst.addr = %self.destination.address,
                    dst.hbone_addr = self.authority.map(tracing::field::display),
                    dst.service = service,
                    dst.told_service = told_service,
                    dst.workload = self.destination.name(),
                    dst.namespace = self.destination.namespace(),
                    dst.identity = self.destination.identity.as_ref().map(tracing::field::display),
                    dst.cluster = self.destination.cluster(),
                    direction = self.direction(),
                    bytes_sent = sent,
                    bytes_recv = received,
                    duration = %format_args!("{}ms", self.started.elapsed().as_millis()),
                    error = error.as_deref(),
                    "{message}"
                )
            };
        }
        if error.is_some() { line!(tracing::Level::ERROR) } else { line!(tracing::Level::INFO) }
    }

    /// Whether its labels hold what the peer chose: its own description, or a service that its
    /// destination is no endpoint of, as a waypoint's client names them.
    fn hears_peer(&self) -> bool {
        let describes = self.source.workload.is_none() && self.source.baggage.is_some();
        describes || self.names_foreign_service()
    }

    fn names_foreign_service(&self) -> bool {
        let Some(service) = &self.service else { return false };
        let server = self.destination.workload.as_ref();
        let is_own = server.is_some_and(|server| server.services.contains_key(&service.key));
        self.reporter == Reporter::Destination && !is_own
    }

    /// The same without what the peer chose.
    fn without_words(&self) -> Self {
        let service = self.service.clone().filter(|_| !self.names_foreign_service());
        let source = Party { baggage: None, ..self.source.clone() };
        Self { source, service, ..self.clone() }
    }

    fn labels(&self, flags: ResponseFlags) -> TrafficLabels {
        let service = self.service.as_ref();
        let text = |of: fn(&Service) -> &Text| service.map(|it| of(it).clone()).unwrap_or_default();
        // A waypoint reports how the client came to it, as of requests.
        let is_server_proven =
            self.reporter == Reporter::Waypoint || self.destination.identity.is_some();
        TrafficLabels {
            reporter: self.reporter,
            source: self.source.labels(),
            destination: self.destination.labels(),
            service: text(|service| &service.key.hostname),
            service_namespace: text(|service| &service.key.namespace),
            service_name: text(|service| &service.name),
            mutual_tls: self.source.identity.is_some() && is_server_proven,
            flags,
        }
    }
}

/// Counts one connection, which has ended when this is dropped.
pub struct Counted(Arc<Traffic>);

impl Counted {
    /// Bytes that moved from client to server and from server to client.
    pub fn moved(&self, to_server: u64, to_client: u64) {
        self.0.moved(to_server, to_client);
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.closed();
    }
}

/// Bytes that a connection moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bytes {
    /// From client to server.
    pub(crate) to_server: u64,
    /// From server to client.
    pub(crate) to_client: u64,
}

/// Finds the counters of connections. A thread caches them by source and destination, so the usual
/// connection compares a few pointers instead of twenty texts.
pub struct Tally {
    metrics: Metrics,
    remembered: RefCell<FxHashMap<Remembered, Arc<Traffic>>>,
}

impl Tally {
    /// Remembers nothing yet.
    pub fn new(metrics: Metrics) -> Self {
        Self { metrics, remembered: RefCell::default() }
    }

    /// All counters of the worker.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    fn traffic(&self, record: &Record, flags: ResponseFlags) -> Arc<Traffic> {
        if record.source.workload.is_none() || record.destination.workload.is_none() {
            return self.look_up(record, flags);
        }
        let key = Remembered {
            reporter: record.reporter,
            flags,
            source: Same(record.source.workload.clone()),
            destination: Same(record.destination.workload.clone()),
            service: Same(record.service.clone()),
            identities: (record.source.identity.clone(), record.destination.identity.clone()),
        };
        let mut remembered = self.remembered.borrow_mut();
        if let Some(traffic) = remembered.get(&key) {
            return traffic.clone();
        }
        if remembered.len() >= MAX_REMEMBERED_LABELS {
            remembered.clear();
        }
        let traffic = self.look_up(record, flags);
        remembered.insert(key, traffic.clone());
        traffic
    }

    fn look_up(&self, record: &Record, flags: ResponseFlags) -> Arc<Traffic> {
        let labels = record.labels(flags);
        if !record.hears_peer() {
            return self.metrics().traffic(&labels);
        }
        let without = record.without_words().labels(flags);
        self.metrics().traffic_as_told(&labels, &without)
    }
}

#[derive(PartialEq, Eq, Hash)]
struct Remembered {
    reporter: Reporter,
    flags: ResponseFlags,
    source: Same<Workload>,
    destination: Same<Workload>,
    service: Same<Service>,
    identities: (Option<Identity>, Option<Identity>),
}

/// Compares by place in memory, which holding on to it keeps from being used again.
struct Same<T>(Option<Arc<T>>);

impl<T> Same<T> {
    fn place(&self) -> *const T {
        self.0.as_ref().map_or(std::ptr::null(), Arc::as_ptr)
    }
}

impl<T> PartialEq for Same<T> {
    fn eq(&self, other: &Self) -> bool {
        self.place() == other.place()
    }
}

impl<T> Eq for Same<T> {}

impl<T> std::hash::Hash for Same<T> {
    fn hash<H: std::hash::Hasher>(&self, hasher: &mut H) {
        self.place().hash(hasher);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use ambit_model::service::Service;
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;
    use crate::dial::DialError;

    fn inbound() -> Record {
        let address = SocketAddr::from(([10, 0, 0, 1], 80));
        let mut record = Record::new(Reporter::Destination, address, address);
        record.source.identity = Some(Identity::new("t", "app", "web"));
        record
    }

    /// Counts the lines of the access log.
    #[derive(Clone, Default)]
    struct Lines(Arc<AtomicUsize>);

    impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Lines {
        fn on_event(
            &self,
            event: &tracing::Event<'_>,
            _context: tracing_subscriber::layer::Context<'_, S>,
        ) {
            if event.metadata().target() == "access" {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    #[test]
    fn a_flood_of_handshakes_that_fail_fills_no_log() {
        let tally = Tally::new(Metrics::new("ambit-proxy"));
        let (lines, failure) = (Lines::default(), DialError::Timeout(inbound().source.address));
        let start = Instant::now();
        tracing::subscriber::with_default(
            tracing_subscriber::registry().with(lines.clone()),
            || {
                for _ in 0..10_000 {
                    inbound().failed_early(&tally, &failure, Cause::Stranger);
                }
            },
        );
        let (lines, seconds) = (lines.0.load(Ordering::Relaxed), start.elapsed().as_secs());
        assert!(lines <= 20 * (usize::try_from(seconds).unwrap() + 2), "{lines} in {seconds} s");
        let text = tally.metrics().encode().unwrap();
        let failed = text.lines().find(|it| it.starts_with("istio_tcp_connections_failed_total{"));
        assert!(failed.is_some_and(|it| it.ends_with(" 10000")), "each counts: {failed:?}");
    }

    #[test]
    fn a_waypoint_counts_a_connection_while_it_lasts() {
        let tally = Tally::new(Metrics::new("ambit-waypoint"));
        let mut record = Record { reporter: Reporter::Waypoint, ..inbound() };
        record.service = Some(Arc::new(Service::named("shop", "cart.shop")));
        let counted = record.count_opened(&tally);
        counted.moved(3, 5);
        let value = |metric: &str, part: &str| {
            let text = tally.metrics().encode().unwrap();
            let is_it = |it: &&str| {
                let is_ours = it.contains("reporter=\"waypoint\"") && it.contains(part);
                it.starts_with(metric) && is_ours
            };
            text.lines().find(is_it).and_then(|it| it.rsplit(' ').next()).map(str::to_owned)
        };
        let cart = "destination_service=\"cart.shop\"";
        for (metric, expected) in [
            ("istio_tcp_connections_opened_total", "1"),
            ("istio_tcp_connections_closed_total", "0"),
            ("istio_tcp_received_bytes_total", "3"),
            ("istio_tcp_sent_bytes_total", "5"),
        ] {
            assert_eq!(value(metric, cart).as_deref(), Some(expected), "{metric}");
        }
        assert!(value("istio_tcp", "connection_security_policy=\"mutual_tls\"").is_some());
        drop(counted);
        assert_eq!(value("istio_tcp_connections_closed_total", cart).as_deref(), Some("1"));
        record.count_refused(&tally, ResponseFlags::Overflow, "overflow");
        let failed = value("istio_tcp_connections_failed_total", "response_flags=\"UO\"");
        assert_eq!(failed.as_deref(), Some("1"));
        assert!(value("ambit_refusals_total", "reason=\"overflow\"").is_some());
    }

    #[test]
    fn a_peers_words_are_told_from_what_the_view_says() {
        let mut record = inbound();
        assert!(!record.hears_peer());
        let said = Baggage::parse([&b"service.name=a,k8s.pod.name=b"[..]]).unwrap();
        record.source.baggage = Some(Box::new(said));
        assert!(record.hears_peer());
        assert_eq!(&*record.labels(ResponseFlags::None).source.workload, "b");
        let names = (record.source.name(), record.source.told_name());
        assert_eq!(names, (None, Some("a")), "its word is in no field of what is proven");
        let without = record.without_words();
        assert!(!without.hears_peer());
        let labels = without.labels(ResponseFlags::None);
        assert_eq!((&*labels.source.workload, &*labels.source.namespace), ("", "app"));
    }

    #[test]
    fn a_service_that_a_peer_names_is_its_word_unless_the_server_is_an_endpoint() {
        let service = Arc::new(Service::named("shop", "cart.shop"));
        let mut server = Workload::named("k//Pod/shop/cart", "shop", "cart");
        let mut record = inbound();
        record.service = Some(service.clone());
        record.destination.workload = Some(Arc::new(server.clone()));
        assert!(record.hears_peer());
        assert!(record.without_words().service.is_none());
        server.serve(service.key.clone(), Vec::new());
        record.destination.workload = Some(Arc::new(server));
        assert!(!record.hears_peer());
        record.reporter = Reporter::Source;
        record.destination.workload = None;
        assert!(!record.hears_peer(), "this proxy's own choice");
    }
}
