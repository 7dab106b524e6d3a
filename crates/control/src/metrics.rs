//! What the control plane counts, under istiod's names where istiod counts the same.
//!
//! Nothing here may decide anything or keep an unbounded label: nodes and identities are not
//! labels.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TypeLabel {
    #[allow(non_snake_case, reason = "the label is called `type`, which is a keyword")]
    r#type: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BuildLabel {
    component: &'static str,
    tag: &'static str,
}

/// All counters of the control plane.
pub(crate) struct Metrics {
    registry: Registry,
    streams: Gauge,
    pushes: Family<TypeLabel, Counter>,
    rejections: Family<TypeLabel, Counter>,
    registry_events: Counter,
    changes: Counter,
    build_seconds: Histogram,
    requests: Counter,
    issued: Counter,
    refused: Family<ReasonLabel, Counter>,
    signer_expiry: Gauge,
    revoked: Gauge,
    orders: Family<OutcomeLabel, Counter>,
}

impl Metrics {
    /// Counters at zero.
    pub(crate) fn new() -> Self {
        let mut metrics = Self {
            registry: Registry::default(),
            streams: Gauge::default(),
            pushes: Family::default(),
            rejections: Family::default(),
            registry_events: Counter::default(),
            changes: Counter::default(),
            build_seconds: Histogram::new(exponential_buckets(0.0001, 4.0, 9)),
            requests: Counter::default(),
            issued: Counter::default(),
            refused: Family::default(),
            signer_expiry: Gauge::default(),
            revoked: Gauge::default(),
            orders: Family::default(),
        };
        metrics.register();
        metrics
    }

    fn register(&mut self) {
        let registry = &mut self.registry;
        registry.register("pilot_xds", "Connected discovery clients", self.streams.clone());
        registry.register("pilot_xds_pushes", "Discovery responses sent", self.pushes.clone());
        let help = "Discovery responses that a client refused";
        registry.register("pilot_total_xds_rejects", help, self.rejections.clone());
        let help = "Events read from the registry";
        registry.register("pilot_k8s_reg_events", help, self.registry_events.clone());
        let help = "Changes of the view";
        registry.register("ambit_view_changes", help, self.changes.clone());
        let help = "Time from a batch of events to the published view";
        registry.register("ambit_view_build_seconds", help, self.build_seconds.clone());
        let help = "Certificate requests received";
        registry.register("citadel_server_csr_count", help, self.requests.clone());
        let help = "Certificates issued";
        registry.register("citadel_server_success_cert_issuance_count", help, self.issued.clone());
        let help = "Certificate requests refused";
        registry.register("ambit_ca_refusals", help, self.refused.clone());
        let help = "When the signing certificate ends, seconds since 1970";
        registry.register(
            "citadel_server_root_cert_expiry_timestamp",
            help,
            self.signer_expiry.clone(),
        );
        registry.register(
            "ambit_ca_revoked",
            "Certificates on the revocation list",
            self.revoked.clone(),
        );
        let help = "Certificates ordered from directories for gateways";
        registry.register("ambit_acme_orders", help, self.orders.clone());
        let build = Family::<BuildLabel, Gauge>::default();
        let label = BuildLabel { component: "pilot", tag: env!("CARGO_PKG_VERSION") };
        build.get_or_create(&label).set(1);
        registry.register("istio_build", "Version of this program", build);
    }

    /// All counters in OpenMetrics text.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("writing to a String does not fail");
        text
    }

    /// A client came (1) or went (-1).
    pub(crate) fn stream(&self, step: i64) {
        self.streams.inc_by(step);
    }

    /// A response was sent.
    pub(crate) fn pushed(&self, kind: &'static str) {
        self.pushes.get_or_create(&TypeLabel { r#type: kind }).inc();
    }

    /// A client refused a response.
    pub(crate) fn rejected(&self, kind: &'static str) {
        self.rejections.get_or_create(&TypeLabel { r#type: kind }).inc();
    }

    /// A batch of events became a view.
    pub(crate) fn built(&self, events: usize, changes: usize, took: Duration) {
        self.registry_events.inc_by(events as u64);
        self.changes.inc_by(changes as u64);
        self.build_seconds.observe(took.as_secs_f64());
    }

    /// A certificate was asked for.
    pub(crate) fn requested(&self) {
        self.requests.inc();
    }

    /// A certificate was issued.
    pub(crate) fn issued(&self) {
        self.issued.inc();
    }

    /// A directory was asked for a certificate for a gateway, which has it now or has not.
    pub(crate) fn ordered(&self, is_issued: bool) {
        let outcome = if is_issued { "issued" } else { "failed" };
        self.orders.get_or_create(&OutcomeLabel { outcome }).inc();
    }

    /// A certificate was refused.
    pub(crate) fn refused(&self, reason: &'static str) {
        self.refused.get_or_create(&ReasonLabel { reason }).inc();
    }

    /// What the authority looks like now.
    pub(crate) fn authority(&self, signer_expiry_unix: u64, revoked: usize) {
        self.signer_expiry.set(i64::try_from(signer_expiry_unix).unwrap_or(i64::MAX));
        self.revoked.set(i64::try_from(revoked).unwrap_or(i64::MAX));
    }
}
