//! Connections and bytes by source and destination, with Istio's label names.
//!
//! Label sets are interned: a connection holds a pointer to its counters, not its labels. The table
//! is bounded; beyond the bound further label sets are counted together, never lost. Labels that a
//! peer claims have a small bound for each identity and one for all, in sets and in bytes, so no
//! peer fills the table or a scrape.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use ambit_model::Text;
use ambit_words::names::UNKNOWN_LABEL;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabel, EncodeLabelSet, LabelSetEncoder,
};
use prometheus_client::metrics::MetricType;

use super::Reporter;
use crate::failure::ResponseFlags;

/// Most label sets that are counted separately.
const MAX_LABEL_SETS: usize = 100_000;
/// Label sets with words of the peer in them, for each identity: its versions, and what it calls.
const MAX_TOLD_PER_PEER: usize = 32;
/// Label sets with words of any peer in them: thirty-two each of 64 identities. Few peers are ever
/// unknown to the view, and a node of the mesh that is taken over has hundreds of identities.
const MAX_TOLD: usize = 2048;
/// Text of label sets with words of one identity. It is printed six times, once for each metric.
/// Names of usual length leave room for [`MAX_TOLD_PER_PEER`] sets.
const MAX_TOLD_BYTES_PER_PEER: usize = 40 << 10;
/// Text of label sets with words of any peer: with it, a scrape grows by 12 MiB at most.
const MAX_TOLD_BYTES: usize = 2 << 20;
/// How often it is looked which label sets with words of a peer are unused since the last look,
/// which give their places back. Their counters vanish from scrapes.
const TOLD_IDLE: Duration = Duration::from_secs(600);

/// One end of a connection, as labels name it. Empty texts are printed as `unknown`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct EndLabels {
    /// Name of what owns the pod.
    pub workload: Text,
    /// Canonical service.
    pub(crate) canonical_service: Text,
    /// Canonical revision.
    pub canonical_revision: Text,
    /// Namespace.
    pub namespace: Text,
    /// SPIFFE ID, as proven; empty when nothing is proven.
    pub principal: Text,
    /// Cluster.
    pub cluster: Text,
    /// Region.
    pub region: Text,
    /// Zone.
    pub zone: Text,
}

/// Everything by which traffic is counted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TrafficLabels {
    /// Which side reports.
    pub reporter: Reporter,
    /// The client.
    pub source: EndLabels,
    /// The server.
    pub destination: EndLabels,
    /// Hostname of the service, or empty.
    pub service: Text,
    /// Its namespace, or empty.
    pub(crate) service_namespace: Text,
    /// Its short name, or empty.
    pub(crate) service_name: Text,
    /// Whether both ends are proven (`mutual_tls`) or not (`unknown`).
    pub(crate) mutual_tls: bool,
    /// Why it failed, if it did.
    pub flags: ResponseFlags,
}

impl TrafficLabels {
    /// The set that takes what is beyond the bound.
    fn overflow(reporter: Reporter) -> Self {
        let overflow = || EndLabels { workload: "overflow".into(), ..Default::default() };
        Self {
            reporter,
            source: overflow(),
            destination: overflow(),
            service: Text::default(),
            service_namespace: Text::default(),
            service_name: Text::default(),
            mutual_tls: false,
            flags: ResponseFlags::None,
        }
    }
}

impl TrafficLabels {
    /// Calls `label` for every label as it is printed, before escapes.
    fn each(&self, mut label: impl FnMut(&str, &str) -> fmt::Result) -> fmt::Result {
        let mut label = |name: &str, value: &str| {
            label(name, if value.is_empty() { UNKNOWN_LABEL } else { value })
        };
        let reporter = match self.reporter {
            Reporter::Source => "source",
            Reporter::Destination => "destination",
            Reporter::Waypoint => "waypoint",
        };
        let security = if self.mutual_tls { "mutual_tls" } else { UNKNOWN_LABEL };
        label("reporter", reporter)?;
        for (side, end) in [("source", &self.source), ("destination", &self.destination)] {
            label(&format!("{side}_workload"), &end.workload)?;
            label(&format!("{side}_canonical_service"), &end.canonical_service)?;
            label(&format!("{side}_canonical_revision"), &end.canonical_revision)?;
            label(&format!("{side}_workload_namespace"), &end.namespace)?;
            label(&format!("{side}_principal"), &end.principal)?;
            label(&format!("{side}_app"), &end.canonical_service)?;
            label(&format!("{side}_version"), &end.canonical_revision)?;
            label(&format!("{side}_cluster"), &end.cluster)?;
            label(&format!("{side}_region"), &end.region)?;
            label(&format!("{side}_zone"), &end.zone)?;
        }
        label("destination_service", &self.service)?;
        label("destination_service_namespace", &self.service_namespace)?;
        label("destination_service_name", &self.service_name)?;
        label("request_protocol", "tcp")?;
        label("response_flags", self.flags.as_str())?;
        label("connection_security_policy", security)
    }

    /// How much text one metric with these labels has in a scrape.
    fn printed_bytes(&self) -> usize {
        let mut bytes = 0;
        let count = |name: &str, value: &str| {
            let escapes = value.bytes().filter(|it| matches!(it, b'"' | b'\\' | b'\n')).count();
            bytes += name.len() + value.len() + escapes + LABEL_MARKS_BYTES;
            Ok(())
        };
        self.each(count).expect("counting does not fail");
        bytes
    }
}

/// Of a printed label: the equals sign, two quotes and a comma.
const LABEL_MARKS_BYTES: usize = 4;

impl EncodeLabelSet for TrafficLabels {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        self.each(|name, value| (name, value).encode(encoder.encode_label()))
    }
}

/// Counters of one label set.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    opened: AtomicU64,
    closed: AtomicU64,
    failed: AtomicU64,
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
}

impl Traffic {
    /// A connection began.
    pub(crate) fn opened(&self) {
        self.opened.fetch_add(1, Ordering::Relaxed);
    }

    /// A connection that began has ended.
    pub(crate) fn closed(&self) {
        self.closed.fetch_add(1, Ordering::Relaxed);
    }

    /// A connection never began.
    pub(crate) fn failed(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    /// How many it has counted, those that failed included.
    fn connections(&self) -> u64 {
        self.opened.load(Ordering::Relaxed) + self.failed.load(Ordering::Relaxed)
    }

    /// Bytes from client to server and from server to client, since the last call. Istio's *sent*
    /// is what the server sent, whichever end reports it.
    pub(crate) fn moved(&self, to_server: u64, to_client: u64) {
        self.sent_bytes.fetch_add(to_client, Ordering::Relaxed);
        self.received_bytes.fetch_add(to_server, Ordering::Relaxed);
    }
}

/// All label sets with their counters.
#[derive(Debug, Default)]
pub(super) struct TrafficTable {
    sets: RwLock<HashMap<TrafficLabels, Arc<Traffic>>>,
    told: Mutex<Told>,
    /// Connections that were counted without their peer's own labels.
    told_overflow: AtomicU64,
}

/// The label sets that hold words of peers.
#[derive(Debug, Default)]
struct Told {
    sets: HashMap<TrafficLabels, ToldSet>,
    all: Share,
    by_principal: HashMap<Text, Share>,
    swept: Option<Instant>,
}

/// A label set that holds words of a peer.
#[derive(Debug)]
struct ToldSet {
    bytes: usize,
    /// Connections counted by it when it was last looked whether it is in use.
    seen: u64,
}

/// What label sets take, of one peer or of all.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    sets: usize,
    bytes: usize,
}

impl Share {
    fn has_room(self, bytes: usize, max_sets: usize, max_bytes: usize) -> bool {
        self.sets < max_sets && self.bytes + bytes <= max_bytes
    }

    fn add(&mut self, bytes: usize) {
        self.sets += 1;
        self.bytes += bytes;
    }

    fn give_back(&mut self, bytes: usize) {
        self.sets -= 1;
        self.bytes -= bytes;
    }
}

impl Told {
    /// Whether this peer may have one more.
    fn grant(&mut self, labels: &TrafficLabels) -> bool {
        let bytes = labels.printed_bytes();
        let own = self.by_principal.get(&labels.source.principal).copied().unwrap_or_default();
        let granted = own.has_room(bytes, MAX_TOLD_PER_PEER, MAX_TOLD_BYTES_PER_PEER)
            && self.all.has_room(bytes, MAX_TOLD, MAX_TOLD_BYTES);
        if granted {
            self.by_principal.entry(labels.source.principal.clone()).or_default().add(bytes);
            self.all.add(bytes);
            self.sets.insert(labels.clone(), ToldSet { bytes, seen: 0 });
        }
        granted
    }

    /// Takes out what no connection holds and none has counted on since the last look.
    fn sweep(&mut self, now: Instant, table: &RwLock<HashMap<TrafficLabels, Arc<Traffic>>>) {
        let last = *self.swept.get_or_insert(now);
        if now.duration_since(last) < TOLD_IDLE {
            return;
        }
        self.swept = Some(now);
        let mut table = table.write().expect(UNBROKEN);
        let (all, by_principal) = (&mut self.all, &mut self.by_principal);
        self.sets.retain(|labels, set| {
            if let Some(traffic) = table.get(labels) {
                let counted = traffic.connections();
                // Under the table's lock nobody else can take hold of it now.
                if Arc::strong_count(traffic) > 1 || counted != set.seen {
                    set.seen = counted;
                    return true;
                }
            }
            table.remove(labels);
            all.give_back(set.bytes);
            if let Some(share) = by_principal.get_mut(&labels.source.principal) {
                share.give_back(set.bytes);
            }
            false
        });
        by_principal.retain(|_, share| share.sets > 0);
    }
}

const UNBROKEN: &str = "no holder of this lock panics";

impl TrafficTable {
    /// The counters of a label set.
    pub(super) fn of(&self, labels: &TrafficLabels) -> Arc<Traffic> {
        if let Some(found) = self.found(labels) {
            return found;
        }
        let mut table = self.sets.write().expect(UNBROKEN);
        if table.len() < MAX_LABEL_SETS {
            table.entry(labels.clone()).or_default().clone()
        } else {
            table.entry(TrafficLabels::overflow(labels.reporter)).or_default().clone()
        }
    }

    /// The counters of a label set that holds words of its source, within that source's share;
    /// beyond it, of the set without them.
    pub(super) fn of_told(&self, told: &TrafficLabels, without: &TrafficLabels) -> Arc<Traffic> {
        if let Some(found) = self.found(told) {
            return found;
        }
        let mut share = self.told.lock().expect(UNBROKEN);
        // Another thread may have come first; then nothing is added.
        if let Some(found) = self.found(told) {
            return found;
        }
        share.sweep(Instant::now(), &self.sets);
        if share.grant(told) {
            return self.of(told);
        }
        self.told_overflow.fetch_add(1, Ordering::Relaxed);
        self.of(without)
    }

    fn found(&self, labels: &TrafficLabels) -> Option<Arc<Traffic>> {
        self.sets.read().expect(UNBROKEN).get(labels).cloned()
    }
}

/// A metric, and how it is read from the counters.
type Column = (&'static str, &'static str, fn(&Traffic) -> &AtomicU64);

const COUNTERS: [Column; 5] = [
    ("istio_tcp_connections_opened", "TCP connections opened", |it| &it.opened),
    ("istio_tcp_connections_closed", "TCP connections closed", |it| &it.closed),
    ("istio_tcp_connections_failed", "TCP connections that never stood", |it| &it.failed),
    ("istio_tcp_sent_bytes", "Bytes from server to client", |it| &it.sent_bytes),
    ("istio_tcp_received_bytes", "Bytes from client to server", |it| &it.received_bytes),
];

impl Collector for TrafficTable {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        // Copied under the lock and printed without it: a scrape must not hold up connections.
        let table: Vec<_> = {
            let table = self.sets.read().expect(UNBROKEN);
            table.iter().map(|(labels, traffic)| (labels.clone(), traffic.clone())).collect()
        };
        for (name, help, column) in COUNTERS {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (labels, traffic) in &table {
                let value = column(traffic).load(Ordering::Relaxed);
                family
                    .encode_family(labels)?
                    .encode_counter::<TrafficLabels, u64, u64>(&value, None)?;
            }
        }
        let help = "TCP connections open";
        let name = "istio_tcp_sockets_open";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, traffic) in &table {
            let closed = traffic.closed.load(Ordering::Relaxed);
            let open = traffic.opened.load(Ordering::Relaxed).saturating_sub(closed);
            let open = i64::try_from(open).unwrap_or(i64::MAX);
            family.encode_family(labels)?.encode_gauge(&open)?;
        }
        let help = "Connections counted without what their peer says of itself: its share is full";
        let name = "ambit_told_labels_refused";
        let mut counter = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        let refused = self.told_overflow.load(Ordering::Relaxed);
        counter.encode_counter::<TrafficLabels, u64, u64>(&refused, None)
    }
}
