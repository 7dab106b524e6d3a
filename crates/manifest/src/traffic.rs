//! What a DestinationRule means: traffic policies, and subsets by labels.
//!
//! Istio's way of inheriting is kept. A subset takes over what it does not say itself, field by
//! field; what a host or a subset says of a port holds instead of everything else that it says.
//! What cannot be honoured is a remark. A rule that cannot be read refuses requests: it might have
//! asked for TLS.

mod place;
mod tls;

use std::collections::BTreeMap;

use ambit_model::Text;
use ambit_model::http::service::Traffic;
use ambit_model::http::traffic::{
    Balancing, Ejection, HashKey, Limits, RetryBudget, TrafficPolicy,
};

use crate::destination_rule::{
    ClientTls, ConnectionPool, ConsistentHash, DestinationRule, HttpSettings, LoadBalancer,
    OutlierDetection, PortPolicy, TcpSettings, TrafficPolicy as Written, WrittenBudget,
};
use crate::remarks::{Remark, Remarks};
use crate::validate::names;
use crate::{FieldPath, ObjectIssues, remarks};

/// What a DestinationRule means.
#[derive(Debug, Clone, PartialEq)]
pub struct DestinationTraffic {
    /// What holds for the whole host, if it says so.
    pub traffic: Option<Traffic>,
    /// Whether requests to the host are refused, because the rule cannot be read.
    pub is_refused: bool,
    /// Its subsets.
    pub subsets: Vec<LabelledSubset>,
    /// What of it is wrong, or is not honoured.
    pub remarks: Vec<Remark>,
}

impl DestinationTraffic {
    /// The subset of this name.
    pub fn subset(&self, name: &str) -> Option<&LabelledSubset> {
        self.subsets.iter().find(|subset| *subset.name == *name)
    }
}

/// The endpoints that carry labels.
#[derive(Debug, Clone, PartialEq)]
pub struct LabelledSubset {
    /// Its name.
    pub name: Text,
    /// The labels that an endpoint must carry.
    pub labels: BTreeMap<String, String>,
    /// What holds for it, if that is not what holds for the host.
    pub traffic: Option<Traffic>,
}

/// What a DestinationRule means.
pub fn read(rule: &DestinationRule) -> DestinationTraffic {
    let at = FieldPath::at("spec");
    let mut remarks = Remarks::default();
    let spec = &rule.spec;
    if let Some(what) = unread(rule, &at, &mut remarks) {
        let refusal = Some(format!("its DestinationRule {}: {what}", named(rule)).into());
        let all = TrafficPolicy { refusal, ..TrafficPolicy::default() };
        let traffic = Some(Traffic { all, ports: BTreeMap::new() });
        let remarks = remarks.0;
        return DestinationTraffic { traffic, is_refused: true, subsets: Vec::new(), remarks };
    }
    if spec.host.is_empty() {
        remarks.wrong(&at.field("host"), "no host is named", "name a service");
    }
    remarks.unhonoured(
        spec.workload_selector.is_some(),
        &at.field("workloadSelector"),
        "a waypoint stands for no single client, so nothing of this rule is in force",
        "remove `workloadSelector`",
    );
    let nothing = Written::default();
    let own = spec.traffic_policy.as_ref();
    let at_policy = at.field("trafficPolicy");
    let traffic = own.map(|own| traffic(own, &at_policy, &mut remarks));
    let mut subsets: Vec<LabelledSubset> = Vec::new();
    for (index, subset) in spec.subsets.iter().enumerate() {
        let at = at.field("subsets").index(index);
        if let Some(what) = names::dns_label(&subset.name) {
            remarks.wrong(&at.field("name"), what, "correct the name");
        }
        if subsets.iter().any(|it| *it.name == *subset.name) {
            let what = format!("the subset `{}` is there twice", subset.name);
            remarks.wrong(&at.field("name"), what, "rename one of the two");
            continue;
        }
        let of_subset = subset.traffic_policy.as_ref();
        let of_subset = of_subset.map(|of_subset| {
            let at = at.field("trafficPolicy");
            // Said once, where it is written.
            drop(self::traffic(of_subset, &at, &mut remarks));
            let whole = inherited(of_subset, own.unwrap_or(&nothing));
            self::traffic(&whole, &at, &mut Remarks::default())
        });
        let (name, labels) = (subset.name.as_str().into(), subset.labels.clone());
        subsets.push(LabelledSubset { name, labels, traffic: of_subset });
    }
    DestinationTraffic { traffic, is_refused: false, subsets, remarks: remarks.0 }
}

/// Why requests are refused, if the rule, or what it says of TLS, cannot be read. Other fields
/// that this version does not know are remarks.
fn unread(rule: &DestinationRule, at: &FieldPath, remarks: &mut Remarks) -> Option<String> {
    let mut refusal = rule.unreadable.as_ref().map(|why| format!("it cannot be read: {why}"));
    for field in &rule.spec.unknown {
        if field.split('.').any(|part| part == "tls") {
            let what = || format!("this version does not know {}.{field}", at.as_str());
            refusal.get_or_insert_with(what);
            continue;
        }
        let what = "this version does not know it: it has no effect";
        remarks.unhonoured(true, &at.field(field), what, "use what this version knows");
    }
    if let Some(why) = &refusal {
        let what = format!("{why}: requests to the host are refused");
        remarks.wrong(at, what, "use what this version knows");
    }
    refusal
}

fn named(rule: &DestinationRule) -> String {
    let metadata = &rule.metadata;
    let namespace = metadata.namespace.as_deref().unwrap_or("default");
    format!("{namespace}/{}", metadata.name.as_deref().unwrap_or_default())
}

/// Checks a DestinationRule by itself.
pub(crate) fn check(rule: &DestinationRule, issues: &mut ObjectIssues) {
    remarks::report(&read(rule).remarks, issues);
}

/// A subset's policy with what it does not say itself. At a port of which the host says something
/// it takes over that, and its own word for all ports still comes before.
fn inherited(own: &Written, outer: &Written) -> Written {
    let mut ports = own.port_level_settings.clone();
    let is_said = |port: &PortPolicy| {
        own.port_level_settings.iter().any(|it| it.port.number == port.port.number)
    };
    let of_host = outer.port_level_settings.iter().filter(|it| !is_said(it));
    ports.extend(of_host.map(|it| PortPolicy {
        port: it.port.clone(),
        load_balancer: first(&own.load_balancer, &it.load_balancer),
        connection_pool: first(&own.connection_pool, &it.connection_pool),
        outlier_detection: first(&own.outlier_detection, &it.outlier_detection),
        tls: first(&own.tls, &it.tls),
    }));
    Written {
        load_balancer: first(&own.load_balancer, &outer.load_balancer),
        connection_pool: first(&own.connection_pool, &outer.connection_pool),
        outlier_detection: first(&own.outlier_detection, &outer.outlier_detection),
        tls: first(&own.tls, &outer.tls),
        retry_budget: first(&own.retry_budget, &outer.retry_budget),
        port_level_settings: ports,
        tunnel: None,
        proxy_protocol: None,
    }
}

fn first<T: Clone>(own: &Option<T>, outer: &Option<T>) -> Option<T> {
    own.clone().or_else(|| outer.clone())
}

fn traffic(written: &Written, at: &FieldPath, remarks: &mut Remarks) -> Traffic {
    for (is_there, field) in
        [(written.tunnel.is_some(), "tunnel"), (written.proxy_protocol.is_some(), "proxyProtocol")]
    {
        let what = "it is not honoured: endpoints are connected to as without it";
        remarks.unhonoured(is_there, &at.field(field), what, "remove it");
    }
    let retry_budget = written.retry_budget.as_ref();
    let all = Parts {
        load_balancer: written.load_balancer.as_ref(),
        connection_pool: written.connection_pool.as_ref(),
        outlier_detection: written.outlier_detection.as_ref(),
        tls: written.tls.as_ref(),
        retry_budget: retry_budget.map(|it| budget(it, &at.field("retryBudget"), remarks)),
    };
    let all = all.policy(at, remarks);
    let mut ports = BTreeMap::new();
    for (index, port) in written.port_level_settings.iter().enumerate() {
        let at = at.field("portLevelSettings").index(index);
        let number = u16::try_from(port.port.number).ok().filter(|it| *it > 0);
        let Some(number) = number else {
            let at = at.field("port").field("number");
            let what = format!("{} is no port", port.port.number);
            remarks.wrong(&at, what, "use 1 to 65535");
            continue;
        };
        let parts = Parts {
            load_balancer: port.load_balancer.as_ref(),
            connection_pool: port.connection_pool.as_ref(),
            outlier_detection: port.outlier_detection.as_ref(),
            tls: port.tls.as_ref(),
            retry_budget: all.retry_budget,
        };
        ports.insert(number, parts.policy(&at, remarks));
    }
    Traffic { all, ports }
}

/// What can be said of a host and of a port of it alike.
struct Parts<'a> {
    load_balancer: Option<&'a LoadBalancer>,
    connection_pool: Option<&'a ConnectionPool>,
    outlier_detection: Option<&'a OutlierDetection>,
    tls: Option<&'a ClientTls>,
    retry_budget: Option<RetryBudget>,
}

impl Parts<'_> {
    fn policy(&self, at: &FieldPath, remarks: &mut Remarks) -> TrafficPolicy {
        let (written, at_balancing) = (self.load_balancer, at.field("loadBalancer"));
        let balancing = written.map(|it| balancing_of(it, &at_balancing, remarks));
        let pool = self.connection_pool;
        let limits = pool.map(|it| limits(it, &at.field("connectionPool"), remarks));
        let outliers = self.outlier_detection;
        let ejection = outliers.map(|it| ejection(it, &at.field("outlierDetection"), remarks));
        let spoken = tls::spoken(self.tls, at, remarks);
        TrafficPolicy {
            balancing: balancing.unwrap_or_default(),
            limits: limits.unwrap_or_default(),
            retry_budget: self.retry_budget,
            nearness: place::nearness(written, ejection.is_some(), &at_balancing, remarks),
            warmup: place::warmup(written, &at_balancing, remarks),
            ejection,
            origination: spoken.origination,
            refusal: spoken.refusal,
        }
    }
}

fn balancing_of(written: &LoadBalancer, at: &FieldPath, remarks: &mut Remarks) -> Balancing {
    remarks.unhonoured(
        written.zone_aware_lb_setting.is_some(),
        &at.field("zoneAwareLbSetting"),
        "it is not honoured, as at Istio's waypoints",
        "use `localityLbSetting`",
    );
    if let Some(hash) = &written.consistent_hash {
        if written.simple.is_some() {
            let what = "`simple` and `consistentHash` exclude each other";
            remarks.wrong(at, what, "remove one of the two");
        }
        return hashed(hash, &at.field("consistentHash"), remarks);
    }
    match written.simple.as_deref().unwrap_or("UNSPECIFIED") {
        "UNSPECIFIED" | "LEAST_REQUEST" | "LEAST_CONN" => Balancing::LeastRequest,
        "RANDOM" => Balancing::Random,
        "ROUND_ROBIN" => Balancing::RoundRobin,
        "PASSTHROUGH" => {
            let what = "a waypoint always chooses the endpoint itself: the least busy one";
            remarks.unhonoured(true, &at.field("simple"), what, "use another value");
            Balancing::LeastRequest
        }
        other => {
            let what = format!("endpoints cannot be chosen by `{other}`");
            let remedy = "use LEAST_REQUEST, RANDOM or ROUND_ROBIN";
            remarks.wrong(&at.field("simple"), what, remedy);
            Balancing::LeastRequest
        }
    }
}

fn hashed(written: &ConsistentHash, at: &FieldPath, remarks: &mut Remarks) -> Balancing {
    let size = "the algorithm is rendezvous hashing, which has no table: a size has no effect";
    for (is_there, field) in [
        (written.ring_hash.is_some(), "ringHash"),
        (written.maglev.is_some(), "maglev"),
        (written.minimum_ring_size.is_some(), "minimumRingSize"),
    ] {
        remarks.unhonoured(is_there, &at.field(field), size, "remove it");
    }
    let mut keys = Vec::new();
    if let Some(name) = &written.http_header_name {
        if let Some(what) = names::field_name(name) {
            remarks.wrong(&at.field("httpHeaderName"), what, "correct the name");
        }
        keys.push(HashKey::Header(name.to_ascii_lowercase().into()));
    }
    if let Some(cookie) = &written.http_cookie {
        let at = at.field("httpCookie");
        let what = "attributes of a cookie are not written";
        let is_there = cookie.attributes.is_some();
        remarks.unhonoured(is_there, &at.field("attributes"), what, "remove them");
        if names::field_name(&cookie.name).is_some() {
            let what = format!("`{}` is no name of a cookie", cookie.name);
            remarks.wrong(&at.field("name"), what, "correct the name");
        }
        keys.push(HashKey::Cookie {
            name: cookie.name.as_str().into(),
            path: cookie.path.as_deref().map(Text::from),
            lifetime: remarks.duration(cookie.ttl.as_deref(), &at.field("ttl")),
        });
    }
    if let Some(name) = &written.http_query_parameter_name {
        if name.is_empty() {
            let at = at.field("httpQueryParameterName");
            remarks.wrong(&at, "the name is empty", "write the name of a parameter");
        }
        keys.push(HashKey::Parameter(name.as_str().into()));
    }
    if written.use_source_ip == Some(true) {
        keys.push(HashKey::SourceIp);
    }
    if keys.len() != 1 {
        let what = format!("it names {} things to hash", keys.len());
        remarks.wrong(at, what, "name exactly one");
    }
    keys.into_iter().next().map_or(Balancing::LeastRequest, Balancing::Hash)
}

fn limits(written: &ConnectionPool, at: &FieldPath, remarks: &mut Remarks) -> Limits {
    let (tcp, http) = (TcpSettings::default(), HttpSettings::default());
    let tcp = written.tcp.as_ref().unwrap_or(&tcp);
    let http = written.http.as_ref().unwrap_or(&http);
    let (at_tcp, at_http) = (at.field("tcp"), at.field("http"));
    for (is_there, at) in [
        (tcp.tcp_keepalive.is_some(), at_tcp.field("tcpKeepalive")),
        (tcp.max_connection_duration.is_some(), at_tcp.field("maxConnectionDuration")),
        (http.max_concurrent_streams.is_some(), at_http.field("maxConcurrentStreams")),
        (http.http2_keep_alive.is_some(), at_http.field("http2KeepAlive")),
        (http.use_client_protocol == Some(true), at_http.field("useClientProtocol")),
        (
            http.h2_upgrade_policy.as_deref().is_some_and(|it| it == "UPGRADE"),
            at_http.field("h2UpgradePolicy"),
        ),
    ] {
        let remedy = "remove it; a port's version is set by its `appProtocol`";
        remarks.unhonoured(is_there, &at, "it is not honoured", remedy);
    }
    // Zero is Istio's way to say nothing.
    let mut limit = |number, at: FieldPath| remarks.number(number, &at).filter(|it| *it > 0);
    let connections = limit(tcp.max_connections, at_tcp.field("maxConnections"));
    let pending = at_http.field("http1MaxPendingRequests");
    let pending_requests = limit(http.max_pending_requests, pending);
    let requests = limit(http.max_requests, at_http.field("http2MaxRequests"));
    let per_connection = at_http.field("maxRequestsPerConnection");
    let requests_per_connection = limit(http.max_requests_per_connection, per_connection);
    let retries = limit(http.max_retries, at_http.field("maxRetries"));
    let at_connect = at_tcp.field("connectTimeout");
    let connect_timeout = remarks.duration(tcp.connect_timeout.as_deref(), &at_connect);
    let of_http = remarks.duration(http.idle_timeout.as_deref(), &at_http.field("idleTimeout"));
    let of_tcp = remarks.duration(tcp.idle_timeout.as_deref(), &at_tcp.field("idleTimeout"));
    Limits {
        connections,
        pending_requests,
        requests,
        retries,
        requests_per_connection,
        connect_timeout: connect_timeout.filter(|it| !it.is_zero()),
        idle_timeout: of_http.or(of_tcp).filter(|it| !it.is_zero()),
    }
}

fn ejection(written: &OutlierDetection, at: &FieldPath, remarks: &mut Remarks) -> Ejection {
    let usual = Ejection::default();
    let has_codes = written.outlier_detection_http_error_codes.is_some();
    let what = "it is not honoured: statuses from 500 count as errors";
    let at_codes = at.field("outlierDetectionHttpErrorCodes");
    remarks.unhonoured(has_codes, &at_codes, what, "remove it");
    let min_health = remarks.number(written.min_health_percent, &at.field("minHealthPercent"));
    if min_health.is_some_and(|it| it > 100) {
        let what = "there are no more than 100 percent";
        remarks.wrong(&at.field("minHealthPercent"), what, "use 0 to 100");
    }
    let older = remarks.number(written.consecutive_errors, &at.field("consecutiveErrors"));
    let gateway =
        remarks.number(written.consecutive_gateway_errors, &at.field("consecutiveGatewayErrors"));
    let all = remarks.number(written.consecutive_5xx_errors, &at.field("consecutive5xxErrors"));
    let at_local = at.field("consecutiveLocalOriginFailures");
    let local = remarks.number(written.consecutive_local_origin_failures, &at_local);
    let interval = remarks.duration(written.interval.as_deref(), &at.field("interval"));
    let at_base = at.field("baseEjectionTime");
    let base_time = remarks.duration(written.base_ejection_time.as_deref(), &at_base);
    let at_percent = at.field("maxEjectionPercent");
    let max_percent = remarks.number(written.max_ejection_percent, &at_percent);
    if max_percent.is_some_and(|it| it > 100) {
        remarks.wrong(&at_percent, "there are no more than 100 percent", "use 0 to 100");
    }
    Ejection {
        consecutive_5xx: all.unwrap_or(usual.consecutive_5xx),
        consecutive_gateway_errors: gateway.or(older).unwrap_or(usual.consecutive_gateway_errors),
        splits_local_errors: written.split_external_local_origin_errors.unwrap_or_default(),
        consecutive_local_errors: local.unwrap_or(usual.consecutive_local_errors),
        interval: interval.filter(|it| !it.is_zero()).unwrap_or(usual.interval),
        base_time: base_time.filter(|it| !it.is_zero()).unwrap_or(usual.base_time),
        max_percent: max_percent.filter(|it| *it > 0).unwrap_or(usual.max_percent).min(100),
        min_health_percent: min_health.unwrap_or_default().min(100),
    }
}

fn budget(written: &WrittenBudget, at: &FieldPath, remarks: &mut Remarks) -> RetryBudget {
    let what = "it is not honoured: requests that are under way count";
    let at_interval = at.field("budgetInterval");
    remarks.unhonoured(written.budget_interval.is_some(), &at_interval, what, "remove it");
    let at_percent = at.field("percent");
    let percent = written.percent.unwrap_or(f64::from(RetryBudget::DEFAULT.percent));
    if !(0.0..=100.0).contains(&percent) {
        remarks.wrong(&at_percent, format!("{percent} is no percentage"), "use 0 to 100");
    }
    let min = remarks.number(written.min_retry_concurrency, &at.field("minRetryConcurrency"));
    RetryBudget {
        // A number of percent is at most 100, and whole.
        percent: format!("{:.0}", percent.clamp(0.0, 100.0)).parse().unwrap_or_default(),
        min_retries: min.unwrap_or(RetryBudget::DEFAULT.min_retries),
    }
}

#[cfg(test)]
mod tests;
