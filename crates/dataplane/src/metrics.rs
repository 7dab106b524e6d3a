//! Counters with Istio's names and labels.
//!
//! A connection holds one `Traffic`, which is looked up once by its labels and then counts without
//! a look-up. Nothing here logs, and nothing here decides.

mod process;
mod traffic;

use std::sync::{Arc, Mutex};

use ambit_model::names::PolicyName;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::descriptors::Descriptors;
use process::{Account, Process, Runtimes};
use traffic::TrafficTable;
pub(crate) use traffic::{EndLabels, Traffic, TrafficLabels};

/// Which side of a connection reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, EncodeLabelValue)]
#[expect(non_camel_case_types, reason = "the names are the label's values")]
enum ReporterLabel {
    source,
    destination,
    waypoint,
}

/// Which side of a connection reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reporter {
    /// The proxy of the client.
    Source,
    /// The proxy of the server.
    Destination,
    /// A waypoint in between.
    Waypoint,
}

impl From<Reporter> for ReporterLabel {
    fn from(reporter: Reporter) -> Self {
        match reporter {
            Reporter::Source => Self::source,
            Reporter::Destination => Self::destination,
            Reporter::Waypoint => Self::waypoint,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HandshakeLabels {
    reporter: ReporterLabel,
    group: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusalLabels {
    reporter: ReporterLabel,
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PolicyLabels {
    policy: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MessageLabels {
    url: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

/// All counters of a worker. Clones share them.
#[derive(Clone, Debug)]
pub struct Metrics(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    registry: Mutex<Registry>,
    traffic: Arc<TrafficTable>,
    runtimes: Arc<Runtimes>,
    account: Arc<Account>,
    counters: Counters,
}

/// What is counted beside traffic.
#[derive(Debug, Default)]
struct Counters {
    handshakes: Family<HandshakeLabels, Counter>,
    refusals: Family<RefusalLabels, Counter>,
    dry_run_denials: Family<PolicyLabels, Counter>,
    revocation_rejections: Counter,
    discovery_ends: Family<ReasonLabels, Counter>,
    discovery_messages: Family<MessageLabels, Counter>,
    discovery_resources: Family<MessageLabels, Counter>,
    discovery_refusals: Family<MessageLabels, Counter>,
    certificates_obtained: Counter,
    certificates_failed: Counter,
    revocations_failed: Counter,
}

impl Metrics {
    /// Nothing is counted yet by this part of Ambit.
    pub fn new(component: &'static str) -> Self {
        let mut registry = Registry::default();
        let traffic = Arc::new(TrafficTable::default());
        let runtimes = Arc::new(Runtimes::default());
        let account = Arc::new(Account::default());
        let counters = Counters::default();
        registry.register_collector(Box::new(account.clone()));
        registry.register_collector(Box::new(traffic.clone()));
        registry.register_collector(Box::new(runtimes.clone()));
        registry.register_collector(Box::new(Process));
        // A gauge as in Istio, whose dashboards ask for it; as an info it had another name.
        let build = Family::<[(&str, &str); 2], Gauge>::default();
        let labels = [("component", component), ("tag", env!("CARGO_PKG_VERSION"))];
        build.get_or_create(&labels).set(1);
        registry.register("istio_build", "Version of this proxy", build);
        counters.register(&mut registry);
        let registry = Mutex::new(registry);
        Self(Arc::new(Inner { registry, traffic, runtimes, account, counters }))
    }
}

impl Counters {
    fn register(&self, into: &mut Registry) {
        let mut counter = |name: &str, help: &str, it: &Counter| {
            into.register(name, help, it.clone());
        };
        let rejections = &self.revocation_rejections;
        let text = "Connections cut because a peer's certificate was revoked";
        counter("istio_crl_policy_rejections", text, rejections);
        let text = "Certificates obtained from the authority";
        counter("ambit_certificates_obtained", text, &self.certificates_obtained);
        let text = "Failed attempts to obtain a certificate";
        counter("ambit_certificate_failures", text, &self.certificates_failed);
        let text = "Revocation lists that could not be used";
        counter("ambit_revocation_list_failures", text, &self.revocations_failed);
        let text = "TLS handshakes between proxies, by key exchange group";
        into.register("ambit_tls_handshakes", text, self.handshakes.clone());
        let text = "Connections refused, by reason";
        into.register("ambit_refusals", text, self.refusals.clone());
        let text = "Connections and requests that a policy on trial would have denied";
        into.register("ambit_dry_run_denials", text, self.dry_run_denials.clone());
        let text = "Ends of discovery streams, by reason";
        into.register("istio_xds_connection_terminations", text, self.discovery_ends.clone());
        let text = "Discovery responses, by type";
        into.register("istio_xds_message", text, self.discovery_messages.clone());
        let text = "Resources received, by type";
        into.register("ambit_xds_resources", text, self.discovery_resources.clone());
        let text = "Resources not taken as they came, by type";
        into.register("ambit_xds_refusals", text, self.discovery_refusals.clone());
    }
}

impl Metrics {
    /// The counters of a label set; ask once per connection.
    pub(crate) fn traffic(&self, labels: &TrafficLabels) -> Arc<Traffic> {
        self.0.traffic.of(labels)
    }

    /// The counters of a label set that holds words of its source; those of `without` when that
    /// source has used up its share.
    pub(crate) fn traffic_as_told(
        &self,
        told: &TrafficLabels,
        without: &TrafficLabels,
    ) -> Arc<Traffic> {
        self.0.traffic.of_told(told, without)
    }

    /// A TLS handshake between proxies succeeded with this key exchange group.
    pub fn handshake(&self, reporter: Reporter, group: &'static str) {
        let labels = HandshakeLabels { reporter: reporter.into(), group };
        self.0.counters.handshakes.get_or_create(&labels).inc();
    }

    /// A connection was refused; `reason` is one word of a fixed set, such as the plan's refusal.
    pub fn refused(&self, reporter: Reporter, reason: &'static str) {
        let labels = RefusalLabels { reporter: reporter.into(), reason };
        self.0.counters.refusals.get_or_create(&labels).inc();
    }

    /// A policy on trial would have denied a connection or a request.
    pub fn dry_run_denial(&self, policy: &PolicyName) {
        let labels = PolicyLabels { policy: policy.to_string() };
        self.0.counters.dry_run_denials.get_or_create(&labels).inc();
    }

    /// A live connection was cut because a certificate of its peer was revoked.
    pub fn revocation_rejection(&self) {
        self.0.counters.revocation_rejections.inc();
    }

    /// A discovery stream ended.
    pub(crate) fn discovery_ended(&self, reason: &'static str) {
        self.0.counters.discovery_ends.get_or_create(&ReasonLabels { reason }).inc();
    }

    /// A discovery response came; so many of its resources were not accepted unchanged.
    pub(crate) fn discovery_message(&self, type_url: &str, resources: usize, refused: usize) {
        let labels = MessageLabels { url: type_url.to_owned() };
        let counters = &self.0.counters;
        counters.discovery_messages.get_or_create(&labels).inc();
        counters.discovery_resources.get_or_create(&labels).inc_by(resources as u64);
        counters.discovery_refusals.get_or_create(&labels).inc_by(refused as u64);
    }

    /// A certificate was obtained.
    pub(crate) fn certificate_obtained(&self) {
        self.0.counters.certificates_obtained.inc();
    }

    /// A certificate was not obtained.
    pub(crate) fn certificate_failed(&self) {
        self.0.counters.certificates_failed.inc();
    }

    /// A revocation list could not be used.
    pub(crate) fn revocations_failed(&self) {
        self.0.counters.revocations_failed.inc();
    }

    /// Shows what a role counts besides.
    pub fn register(&self, role: impl FnOnce(&mut Registry)) {
        role(&mut self.0.registry.lock().expect("encoding does not panic"));
    }

    /// Shows the account of descriptors among the metrics.
    pub fn watch_descriptors(&self, descriptors: Arc<Descriptors>) {
        self.0.account.watch(descriptors);
    }

    /// Shows a thread's runtime among the metrics.
    pub fn watch_runtime(&self, thread: String, runtime: tokio::runtime::Handle) {
        self.0.runtimes.watch(thread, runtime);
    }

    /// All of it in OpenMetrics text.
    pub fn encode(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        let registry = self.0.registry.lock().expect("encoding does not panic");
        prometheus_client::encoding::text::encode(&mut text, &registry)?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests;
