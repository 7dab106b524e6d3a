//! What `/config_dump` and `/certificates` show, in ztunnel's shape.
//!
//! Nothing secret can get in: certificates are shown by their summaries, which hold no key, and the
//! settings redact tokens and headers themselves.

use std::time::SystemTime;

use ambit_dataplane::certificates::Holding;
use ambit_model::policy::{Action, Match, Policy, PolicyScope, TextMatch};
use ambit_model::service::{IpFamilies, Mode, Scope, Service};
use ambit_model::view::View;
use ambit_model::workload::{
    ApplicationProtocol, GatewayAddress, GatewayDestination, Tunnel, Workload, WorkloadKind,
};
use ambit_tls::WorkloadCertificate;
use ambit_tls::certificate::CertificateSummary;
use ambit_wire::admin::{Certificate, CertificateState, HeldCertificate};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::shared::Shared;

/// Everything.
pub(super) fn config_dump(shared: &Shared) -> Value {
    let view = shared.mesh.view.load();
    let mut dump = view_dump(&view);
    let pods = shared.pods.load();
    let pods = pods.iter().map(|pod| {
        let info = json!({
            "name": pod.name.name,
            "namespace": pod.name.namespace,
            "serviceAccount": pod.identity.service_account,
        });
        (pod.uid.to_string(), json!({ "state": "Up", "info": info }))
    });
    dump.insert("workloadState".into(), Value::Object(pods.collect()));
    dump.insert("stagedServices".into(), json!({}));
    dump.insert("staticConfig".into(), json!({}));
    dump.insert("version".into(), json!({ "version": env!("CARGO_PKG_VERSION") }));
    dump.insert("config".into(), json!(shared.config));
    dump.insert("certificates".into(), json!(certificates(shared)));
    Value::Object(dump)
}

/// The view alone.
fn view_dump(view: &View) -> Map<String, Value> {
    let mut workloads: Vec<_> = view.workloads().collect();
    workloads.sort_by(|a, b| a.uid.cmp(&b.uid));
    let mut services: Vec<_> = view.services().collect();
    services.sort_by(|a, b| a.key.hostname.cmp(&b.key.hostname).then_with(|| a.key.cmp(&b.key)));
    let mut policies: Vec<_> = view.policies().collect();
    policies.sort_by(|a, b| a.key.cmp(&b.key));
    let mut dump = Map::new();
    dump.insert("workloads".into(), workloads.iter().map(|it| workload(it)).collect());
    dump.insert("services".into(), services.iter().map(|it| service(view, it)).collect());
    dump.insert("policies".into(), policies.iter().map(|it| policy(it)).collect());
    dump
}

/// The certificates of this node's pods.
pub(super) fn certificates(shared: &Shared) -> Vec<HeldCertificate> {
    let certificates = &shared.mesh.certificates;
    let now = certificates.now();
    certificates.list().into_iter().map(|it| held(it, now)).collect()
}

fn held(holding: Holding, now: SystemTime) -> HeldCertificate {
    let Holding { identity, credentials, failure } = holding;
    let state = match (&credentials, &failure) {
        (Some(credentials), _) if credentials.is_revoked => CertificateState::Revoked,
        (Some(it), _) if it.certificate.is_expired(now) => CertificateState::Expired,
        (Some(it), _) if it.certificate.not_before() > now => CertificateState::NotYetValid,
        (Some(_), _) => CertificateState::Available,
        (None, Some(reason)) => CertificateState::Unavailable(reason.to_string()),
        (None, None) => CertificateState::Initializing,
    };
    let chain = |of: fn(&WorkloadCertificate) -> &[CertificateSummary]| {
        let summaries = credentials.iter().flat_map(|it| of(&it.certificate));
        summaries.map(certificate).collect()
    };
    HeldCertificate {
        identity: identity.to_string(),
        state,
        cert_chain: chain(|it| it.chain()),
        root_certs: chain(|it| it.roots()),
        last_failure: failure.map(|it| it.to_string()),
    }
}

fn certificate(summary: &CertificateSummary) -> Certificate {
    Certificate {
        pem: STANDARD.encode(&summary.pem),
        serial: Some(summary.serial.to_string()),
        serial_number: summary.serial.to_decimal(),
        valid_from: rfc3339(summary.not_before),
        expiration_time: rfc3339(summary.not_after),
    }
}

fn rfc3339(time: SystemTime) -> String {
    let time = OffsetDateTime::from(time).replace_nanosecond(0);
    time.ok().and_then(|time| time.format(&Rfc3339).ok()).unwrap_or_default()
}

fn workload(workload: &Workload) -> Value {
    let protocol = match workload.tunnel {
        Tunnel::None => "TCP",
        Tunnel::Hbone => "HBONE",
        Tunnel::LegacyIstioMtls => "LegacyIstioMtls",
    };
    let kind = match workload.kind {
        WorkloadKind::Deployment => "deployment",
        WorkloadKind::CronJob => "cronjob",
        WorkloadKind::Pod => "pod",
        WorkloadKind::Job => "job",
    };
    let tunnel = workload.application_tunnel.map(|tunnel| {
        let protocol = match tunnel.protocol {
            ApplicationProtocol::None => "NONE",
            ApplicationProtocol::Proxy => "PROXY",
        };
        json!({ "protocol": protocol, "port": tunnel.port })
    });
    let policies: Vec<_> = workload.policies.iter().map(ToString::to_string).collect();
    json!({
        "uid": workload.uid,
        "name": workload.name,
        "namespace": workload.namespace,
        "workloadIps": &*workload.addresses,
        "hostname": workload.hostname,
        "network": workload.network,
        "networkMode": if workload.host_network { "HostNetwork" } else { "Standard" },
        "protocol": protocol,
        "trustDomain": workload.trust_domain,
        "serviceAccount": workload.service_account,
        "waypoint": workload.waypoint.as_deref().map(gateway),
        "networkGateway": workload.network_gateway.as_deref().map(gateway),
        "node": workload.node,
        "canonicalName": workload.canonical_name,
        "canonicalRevision": workload.canonical_revision,
        "workloadType": kind,
        "workloadName": workload.workload_name,
        "nativeTunnel": workload.native_tunnel,
        "applicationTunnel": tunnel,
        "authorizationPolicies": policies,
        "services": workload.services.keys().map(ToString::to_string).collect::<Vec<_>>(),
        "status": health(workload.healthy),
        "clusterId": workload.cluster_id,
        "locality": {
            "region": workload.locality.region,
            "zone": workload.locality.zone,
            "subzone": workload.locality.subzone,
        },
        "capacity": workload.capacity,
    })
}

fn health(healthy: bool) -> &'static str {
    if healthy { "Healthy" } else { "Unhealthy" }
}

fn gateway(gateway: &GatewayAddress) -> Value {
    let destination = match &gateway.destination {
        GatewayDestination::Hostname(name) => name.to_string(),
        GatewayDestination::Refused(name) => name.to_string(),
        GatewayDestination::Address(address) => address.to_string(),
    };
    json!({ "destination": destination, "hboneMtlsPort": gateway.hbone_mtls_port })
}

fn service(view: &View, service: &Service) -> Value {
    let (blocks, single): (Vec<_>, Vec<_>) =
        service.addresses.iter().partition(|address| address.prefix_len.is_some());
    let ports = service.ports.iter().map(|port| (port.service_port.to_string(), port.target_port));
    let ports: Map<_, _> = ports.map(|(name, target)| (name, target.into())).collect();
    let endpoints = view.endpoints(&service.key).into_iter().flat_map(|endpoints| endpoints.iter());
    let endpoints = endpoints.map(|workload| {
        let ports = workload.services.get(&service.key).into_iter().flatten();
        let ports = ports.map(|port| (port.service_port.to_string(), port.target_port.into()));
        let ports: Map<String, Value> = ports.collect();
        let endpoint = json!({
            "workloadUid": workload.uid,
            "port": ports,
            "status": health(workload.healthy),
        });
        (workload.uid.to_string(), endpoint)
    });
    let waypoints = service.weighted_waypoints.iter();
    let waypoints =
        waypoints.map(|(to, weight)| json!({ "destination": gateway(to), "weight": weight }));
    let mut dump = json!({
        "name": service.name,
        "namespace": service.key.namespace,
        "hostname": service.key.hostname,
        "vips": single.iter().map(|it| it.address.to_string()).collect::<Vec<_>>(),
        "cidrVips": blocks
            .iter()
            .map(|it| format!("{}/{}", it.address, it.prefix_len.unwrap_or_default()))
            .collect::<Vec<_>>(),
        "ports": ports,
        "endpoints": endpoints.collect::<Map<_, _>>(),
        "subjectAltNames": service.subject_alt_names,
        "waypoint": service.waypoint.as_ref().map(gateway),
        "weightedWaypoints": waypoints.collect::<Vec<_>>(),
        "loadBalancer": load_balancer(service),
        "ipFamilies": match service.ip_families {
            IpFamilies::Automatic => None,
            IpFamilies::Ipv4Only => Some("IPv4"),
            IpFamilies::Ipv6Only => Some("IPv6"),
            IpFamilies::Dual => Some("Dual"),
        },
        "canonical": service.canonical,
        "visibility": if service.namespace_only { "Namespace" } else { "Public" },
    });
    // ztunnel's dump has no name for them.
    if !service.entrances.is_empty() {
        let entrances = service.entrances.iter().map(ToString::to_string);
        dump["entrances"] = entrances.collect::<Vec<_>>().into();
    }
    dump
}

fn load_balancer(service: &Service) -> Value {
    let load_balancing = &service.load_balancing;
    let preference = load_balancing.routing_preference.iter().map(|scope| match scope {
        Scope::Region => "Region",
        Scope::Zone => "Zone",
        Scope::Subzone => "Subzone",
        Scope::Node => "Node",
        Scope::Cluster => "Cluster",
        Scope::Network => "Network",
    });
    json!({
        "routingPreferences": preference.collect::<Vec<_>>(),
        "mode": match load_balancing.mode {
            Mode::Unspecified => "Standard",
            Mode::Strict => "Strict",
            Mode::Failover => "Failover",
            Mode::Passthrough => "Passthrough",
        },
        "healthPolicy": if load_balancing.allow_unhealthy { "AllowAll" } else { "OnlyHealthy" },
        "clientAffinitySeconds": load_balancing.client_affinity_seconds,
    })
}

fn policy(policy: &Policy) -> Value {
    let rules = policy.rules.iter().map(|rule| {
        let clauses = rule.clauses.iter();
        clauses.map(|it| it.matches.iter().map(one_match).collect::<Value>()).collect::<Value>()
    });
    json!({
        "name": policy.key.name,
        "namespace": policy.key.namespace,
        "scope": match policy.scope {
            PolicyScope::Global => "Global",
            PolicyScope::Namespace => "Namespace",
            PolicyScope::WorkloadSelector => "WorkloadSelector",
        },
        "action": match policy.action {
            Action::Allow => "Allow",
            Action::Deny => "Deny",
        },
        "rules": rules.collect::<Vec<_>>(),
        "dryRun": policy.dry_run,
    })
}

fn one_match(one: &Match) -> Value {
    let texts = |texts: &[TextMatch]| texts.iter().map(text_match).collect::<Vec<_>>();
    let accounts = |accounts: &[ambit_model::policy::ServiceAccountMatch]| {
        let names = accounts.iter().map(|it| format!("{}/{}", it.namespace, it.service_account));
        names.collect::<Vec<_>>()
    };
    let fields = [
        ("namespaces", json!(texts(&one.namespaces))),
        ("notNamespaces", json!(texts(&one.not_namespaces))),
        ("principals", json!(texts(&one.principals))),
        ("notPrincipals", json!(texts(&one.not_principals))),
        ("serviceAccounts", json!(accounts(&one.service_accounts))),
        ("notServiceAccounts", json!(accounts(&one.not_service_accounts))),
        ("sourceIps", json!(one.source_ips.as_slice())),
        ("notSourceIps", json!(one.not_source_ips.as_slice())),
        ("destinationIps", json!(one.destination_ips.as_slice())),
        ("notDestinationIps", json!(one.not_destination_ips.as_slice())),
        ("destinationPorts", json!(one.destination_ports.as_slice())),
        ("notDestinationPorts", json!(one.not_destination_ports.as_slice())),
    ];
    let set =
        fields.into_iter().filter(|(_, value)| value.as_array().is_some_and(|it| !it.is_empty()));
    Value::Object(set.map(|(name, value)| (name.to_owned(), value)).collect())
}

fn text_match(text: &TextMatch) -> Value {
    match text {
        TextMatch::Exact(text) => json!({ "Exact": text }),
        TextMatch::Prefix(text) => json!({ "Prefix": text }),
        TextMatch::Suffix(text) => json!({ "Suffix": text }),
        TextMatch::Presence => json!({ "Presence": {} }),
    }
}
