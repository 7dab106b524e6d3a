//! Counters with Istio's names and labels.
//!
//! A connection holds one [`Traffic`], which is found once by its labels and then counted without
//! looking anything up. Nothing here logs, and nothing here decides.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

use ambit_model::Text;

/// Which side of a connection reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Reporter {
    /// The proxy of the client.
    Source,
    /// The proxy of the server.
    Destination,
}

/// Why a connection failed, in Istio's letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum ResponseFlags {
    /// It did not: `-`.
    None,
    /// A policy denied it: `DENY`.
    Deny,
    /// The destination could not be reached: `CONNECT`.
    Connect,
    /// The TLS handshake failed: `TLS_FAILURE`.
    TlsFailure,
    /// The HTTP/2 handshake failed: `H2_HANDSHAKE_FAILURE`.
    H2HandshakeFailure,
    /// Something drops packets to port 15008: `NETWORK_POLICY`.
    NetworkPolicy,
    /// There is no certificate for this pod: `IDENTITY_ERROR`.
    IdentityError,
    /// The peer's certificate is revoked: `CERT_REVOKED`.
    CertificateRevoked,
}

/// One end of a connection, as labels name it. Empty texts are printed as `unknown`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct EndLabels {
    /// Name of what owns the pod.
    pub(crate) workload: Text,
    /// Canonical service.
    pub(crate) canonical_service: Text,
    /// Canonical revision.
    pub(crate) canonical_revision: Text,
    /// Namespace.
    pub(crate) namespace: Text,
    /// SPIFFE ID, as proven; empty when nothing is proven.
    pub(crate) principal: Text,
    /// Cluster.
    pub(crate) cluster: Text,
    /// Region.
    pub(crate) region: Text,
    /// Zone.
    pub(crate) zone: Text,
}

/// Everything by which traffic is counted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TrafficLabels {
    /// Which side reports.
    pub(crate) reporter: Reporter,
    /// The client.
    pub(crate) source: EndLabels,
    /// The server.
    pub(crate) destination: EndLabels,
    /// Hostname of the service, or empty.
    pub(crate) service: Text,
    /// Its namespace, or empty.
    pub(crate) service_namespace: Text,
    /// Its short name, or empty.
    pub(crate) service_name: Text,
    /// Whether both ends are proven (`mutual_tls`) or not (`unknown`).
    pub(crate) mutual_tls: bool,
    /// Why it failed, if it did.
    pub(crate) flags: ResponseFlags,
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

    /// Bytes from client to server and from server to client, since the last call.
    pub(crate) fn moved(&self, to_server: u64, to_client: u64) {
        self.sent_bytes.fetch_add(to_client, Ordering::Relaxed);
        self.received_bytes.fetch_add(to_server, Ordering::Relaxed);
    }
}

/// All counters of a worker.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    traffic: RwLock<HashMap<TrafficLabels, Arc<Traffic>>>,
}

impl Metrics {
    /// The counters of a label set; ask once per connection.
    pub(crate) fn traffic(&self, labels: &TrafficLabels) -> Arc<Traffic> {
        let read = self.traffic.read().expect("no holder of this lock panics");
        if let Some(found) = read.get(labels) {
            return found.clone();
        }
        drop(read);
        let mut write = self.traffic.write().expect("no holder of this lock panics");
        write.entry(labels.clone()).or_default().clone()
    }

    /// A TLS handshake between proxies succeeded with this key exchange group.
    pub(crate) fn handshake(&self, reporter: Reporter, group: &'static str) {
        let _ = (reporter, group);
    }

    /// A connection was refused; `reason` is one word of a fixed set, such as the plan's refusal.
    pub(crate) fn refused(&self, reporter: Reporter, reason: &'static str) {
        let _ = (reporter, reason);
    }

    /// A policy on trial would have denied a connection.
    pub(crate) fn dry_run_denial(&self, policy: &ambit_model::names::PolicyName) {
        let _ = policy;
    }

    /// A live connection was cut because a certificate of its peer was revoked.
    pub(crate) fn revocation_rejection(&self) {}
}
