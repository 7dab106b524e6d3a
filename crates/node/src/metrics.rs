//! What the agent counts about itself, in the text format of Prometheus.
//!
//! Plain atomics: counting never waits. No label names a pod, so the number of series is fixed.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

/// The agent's counters and gauges.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    /// Pods captured now.
    pub(crate) enrolled: AtomicU64,
    /// Pods that should be captured and are not yet.
    pub(crate) pending: AtomicU64,
    /// How often altered capture rules were repaired.
    pub(crate) repairs: AtomicU64,
    /// Proxies connected now.
    pub(crate) zds_connections: AtomicU64,
    /// Pods that a proxy refused.
    pub(crate) zds_refusals: AtomicU64,
    /// Connections that were turned away: wrong user, broken protocol, no answer in time.
    pub(crate) zds_failures: AtomicU64,
    /// Kernel operations that failed and are tried again.
    pub(crate) failures: AtomicU64,
}

/// Adds one.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Metrics {
    /// Every metric as `/metrics` shows it.
    pub(crate) fn render(&self) -> String {
        let rows = [
            ("ambit_node_enrolled_pods", "gauge", "Pods captured", &self.enrolled),
            ("ambit_node_pending_pods", "gauge", "Pods to be captured, not yet", &self.pending),
            ("ambit_node_repairs_total", "counter", "Altered rules put right", &self.repairs),
            ("ztunnel_connected", "gauge", "Proxies connected over ZDS", &self.zds_connections),
            ("ambit_node_zds_refusals_total", "counter", "Pods refused", &self.zds_refusals),
            (
                "ambit_node_zds_failures_total",
                "counter",
                "ZDS connections that ended in an error",
                &self.zds_failures,
            ),
            (
                "ambit_node_failures_total",
                "counter",
                "Failed operations, tried again",
                &self.failures,
            ),
        ];
        // Of the part in whose place the agent is, by Istio's name of it.
        let mut text = concat!(
            "# HELP istio_build Version of this program.\n# TYPE istio_build gauge\n",
            "istio_build{component=\"cni\",tag=\"",
            env!("CARGO_PKG_VERSION"),
            "\"} 1\n",
        )
        .to_owned();
        for (name, kind, help, value) in rows {
            let value = value.load(Ordering::Relaxed);
            writeln!(text, "# HELP {name} {help}.\n# TYPE {name} {kind}\n{name} {value}")
                .expect("writing to a String does not fail");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_has_help_type_and_value() {
        let metrics = Metrics::default();
        count(&metrics.repairs);
        let text = metrics.render();
        assert!(
            text.contains("# TYPE ambit_node_repairs_total counter\nambit_node_repairs_total 1\n")
        );
        assert!(text.contains("ztunnel_connected 0\n"));
        let tag = ambit_words::exposition::build_tag(&text);
        assert_eq!(tag, Some(env!("CARGO_PKG_VERSION")));
    }
}
