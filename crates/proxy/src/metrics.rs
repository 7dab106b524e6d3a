//! What a node proxy counts in addition to any proxy: its pods and their DNS queries.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Upper bounds of the histogram of DNS latencies, seconds.
const DNS_BUCKETS: [f64; 10] = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0];

/// Counters of pods and of DNS.
#[derive(Debug)]
pub(crate) struct NodeMetrics {
    pods: Gauge,
    pods_pending: Gauge,
    pods_started: Counter,
    pods_stopped: Counter,
    dns_requests: Counter,
    dns_upstream_requests: Counter,
    dns_upstream_failures: Counter,
    dns_upstream_seconds: Histogram,
    dns_refused: Counter,
    kernel_path: Gauge,
    kernel_path_connections: Counter,
    kernel_path_bytes: Counter,
}

impl Default for NodeMetrics {
    fn default() -> Self {
        Self {
            pods: Gauge::default(),
            pods_pending: Gauge::default(),
            pods_started: Counter::default(),
            pods_stopped: Counter::default(),
            dns_requests: Counter::default(),
            dns_upstream_requests: Counter::default(),
            dns_upstream_failures: Counter::default(),
            dns_upstream_seconds: Histogram::new(DNS_BUCKETS),
            dns_refused: Counter::default(),
            kernel_path: Gauge::default(),
            kernel_path_connections: Counter::default(),
            kernel_path_bytes: Counter::default(),
        }
    }
}

impl NodeMetrics {
    /// Shows them.
    pub(crate) fn register(&self, into: &mut Registry) {
        let text = "Pods taken on";
        into.register("workload_manager_proxies_started", text, self.pods_started.clone());
        let text = "Pods given up";
        into.register("workload_manager_proxies_stopped", text, self.pods_stopped.clone());
        let text = "Pods that are served";
        into.register("workload_manager_active_proxy_count", text, self.pods.clone());
        let text = "Pods that wait for the first view";
        into.register("workload_manager_pending_proxy_count", text, self.pods_pending.clone());
        into.register("istio_dns_requests", "DNS queries of pods", self.dns_requests.clone());
        let text = "DNS queries handed on";
        into.register("istio_dns_upstream_requests", text, self.dns_upstream_requests.clone());
        let text = "DNS queries handed on and not answered";
        into.register("istio_dns_upstream_failures", text, self.dns_upstream_failures.clone());
        let text = "Time until a query that was handed on is answered";
        let name = "istio_dns_upstream_request_duration_seconds";
        into.register(name, text, self.dns_upstream_seconds.clone());
        let text = "DNS queries refused because too many were under way";
        into.register("ambit_dns_refused", text, self.dns_refused.clone());
        let text = "1 if the kernel can move bytes between two pods of this node past the proxy";
        into.register("ambit_kernel_path", text, self.kernel_path.clone());
        let text = "Ended connections of which the kernel moved bytes past the proxy";
        let name = "ambit_kernel_path_connections";
        into.register(name, text, self.kernel_path_connections.clone());
        let text = "Bytes of ended connections that the kernel moved past the proxy";
        into.register("ambit_kernel_path_bytes", text, self.kernel_path_bytes.clone());
    }

    /// Whether the kernel can move bytes past the proxy.
    pub(crate) fn kernel_path(&self, is_open: bool) {
        self.kernel_path.set(i64::from(is_open));
    }

    /// A connection has ended of which the kernel moved so many bytes.
    pub(crate) fn past(&self, bytes: u64) {
        if bytes > 0 {
            self.kernel_path_connections.inc();
            self.kernel_path_bytes.inc_by(bytes);
        }
    }

    /// A pod was taken on; it waits for the first view or is served at once.
    pub(crate) fn pod_started(&self) {
        self.pods_started.inc();
    }

    /// A pod was given up.
    pub(crate) fn pod_stopped(&self) {
        self.pods_stopped.inc();
    }

    /// How many pods are served, and how many wait for the first view.
    pub(crate) fn pods(&self, served: usize, pending: usize) {
        let gauge = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        self.pods.set(gauge(served));
        self.pods_pending.set(gauge(pending));
    }

    /// A pod sent a DNS query.
    pub(crate) fn dns_request(&self) {
        self.dns_requests.inc();
    }

    /// A DNS query was refused because too many are under way.
    pub(crate) fn dns_refused(&self) {
        self.dns_refused.inc();
    }

    /// A DNS query was handed on, and answered after so long or not at all.
    pub(crate) fn dns_upstream(&self, answered_after: Option<Duration>) {
        self.dns_upstream_requests.inc();
        match answered_after {
            Some(took) => self.dns_upstream_seconds.observe(took.as_secs_f64()),
            None => drop(self.dns_upstream_failures.inc()),
        }
    }
}

#[cfg(test)]
mod tests {
    use ambit_dataplane::metrics::Metrics;

    use super::*;

    #[test]
    fn pods_and_queries_are_there_from_the_start() {
        let (metrics, of_node) = (Metrics::new("ambit-proxy"), NodeMetrics::default());
        metrics.register(|registry| of_node.register(registry));
        of_node.dns_upstream(None);
        of_node.dns_upstream(Some(Duration::from_millis(3)));
        of_node.pods(2, 1);
        let text = metrics.encode().expect("encoded");
        for line in [
            "istio_dns_requests_total 0",
            "istio_dns_upstream_requests_total 2",
            "istio_dns_upstream_failures_total 1",
            "istio_dns_upstream_request_duration_seconds_count 1",
            "workload_manager_active_proxy_count 2",
            "workload_manager_pending_proxy_count 1",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}\n{text}");
        }
    }
}
