//! Checks a Gateway at the edge: hosts, TLS, addresses, and what its listeners are together.
//!
//! What Kubernetes' API refuses, or what can never work, is an error. What the Gateway's status
//! says while the rest of it works, such as a conflict of two listeners, is a warning.

use std::net::IpAddr;

use super::names::{dns_label, dns_subdomain, port_number, require};
use crate::finding::{Issues, Path};
use crate::gateway::listeners::{Judged, Protocol, judge, judge_set};
use crate::gateway::sets::ListenerSet;
use crate::gateway::{
    Address, CaCertificateRef, ClientValidation, FrontendTls, GatewaySpec, GatewayTls,
    HBONE_PROTOCOL, ListenerTls, SecretRef,
};

/// The modes of TLS.
const MODES: [&str; 2] = ["Terminate", "Passthrough"];
/// How clients prove themselves.
const VALIDATION_MODES: [&str; 2] = ["AllowValidOnly", "AllowInsecureFallback"];

/// Checks a Gateway of a class at the edge.
pub(super) fn gateway(spec: &GatewaySpec, issues: &mut Issues) {
    let at = Path::at("spec");
    for (index, judged) in judge(spec).iter().enumerate() {
        listener(judged, &at.field("listeners").index(index), issues);
    }
    for (index, it) in spec.addresses.iter().flatten().enumerate() {
        address(it, &at.field("addresses").index(index), issues);
    }
    if let Some(tls) = &spec.tls {
        gateway_tls(tls, &at.field("tls"), issues);
    }
}

/// Checks a ListenerSet, whose listeners are those of a Gateway at the edge.
pub(super) fn listener_set(set: &ListenerSet, issues: &mut Issues) {
    let at = Path::at("spec").field("listeners");
    for (index, judged) in judge_set(set).iter().enumerate() {
        listener(judged, &at.index(index), issues);
    }
}

fn listener(judged: &Judged<'_>, at: &Path, issues: &mut Issues) {
    let it = judged.listener;
    protocol(judged, at, issues);
    let host = it.hostname.as_deref().filter(|host| !host.is_empty());
    if let (Some(host), Some(Protocol::Tcp | Protocol::Udp)) = (host, judged.protocol()) {
        let what = format!("a listener of {} has no host, and `{host}` is one", it.protocol);
        issues.error(&at.field("hostname"), what, "remove it, or use protocol TLS");
    } else if let Some(what) = host.and_then(wrong_host) {
        issues.error(&at.field("hostname"), what, "write it as in example.com or *.example.com");
    }
    match (&it.tls, judged.protocol()) {
        (Some(_), Some(Protocol::Http | Protocol::Tcp | Protocol::Udp)) => {
            let what = format!("a listener of {} has no TLS", it.protocol);
            issues.error(&at.field("tls"), what, "remove it, or use protocol HTTPS or TLS");
        }
        (Some(tls), _) => listener_tls(tls, judged.protocol(), &at.field("tls"), issues),
        (None, Some(Protocol::Https | Protocol::TlsTerminate)) => {
            let what =
                format!("a listener of {} has a certificate, or mode Passthrough", it.protocol);
            issues.error(&at.field("tls"), what, "name a Secret in certificateRefs");
        }
        (None, _) => {}
    }
    if let Some(fault) = judged.unresolved().filter(|it| it.reason == "InvalidRouteKinds") {
        let at = at.field("allowedRoutes").field("kinds");
        let known: Vec<&str> = Judged::possible_kinds(judged.protocol()).collect();
        issues.error(&at, &fault.what, format!("use {}, or say nothing", known.join(" or ")));
    }
    if let Some(fault) = judged.conflict() {
        let what = format!("{}: neither is served ({})", fault.what, fault.reason);
        issues.warn(at, what, "give one of them another port or another host");
    }
}

/// What is spoken, and where.
fn protocol(judged: &Judged<'_>, at: &Path, issues: &mut Issues) {
    let (written, at_protocol) = (judged.listener.protocol.as_str(), at.field("protocol"));
    match judged.protocol() {
        None if written == HBONE_PROTOCOL => {
            let what =
                format!("{written} is spoken to waypoints, and this is a gateway at the edge");
            issues.error(&at_protocol, what, "use HTTP, or the class ambit-waypoint");
        }
        None if !written.contains('/') => {
            let what = format!("`{written}` is no protocol");
            issues.error(&at_protocol, what, "use HTTP, HTTPS, TLS or TCP");
        }
        // Words of other implementations, and what a later version may serve.
        None | Some(Protocol::Udp) => {
            let what = format!("{written} is not served: nothing listens there");
            issues.warn(&at_protocol, what, "use HTTP, HTTPS, TLS or TCP");
        }
        Some(_) => {}
    }
    let taken = judged.not_accepted().filter(|it| it.reason == "PortUnavailable");
    if let Some(fault) = taken.filter(|_| judged.port().is_some()) {
        issues.error(&at.field("port"), &fault.what, "use another port");
    }
}

fn wrong_host(host: &str) -> Option<String> {
    if host.parse::<IpAddr>().is_ok() {
        return Some(format!("`{host}` is an address, no host"));
    }
    dns_subdomain(host.strip_prefix("*.").unwrap_or(host))
}

fn listener_tls(tls: &ListenerTls, protocol: Option<Protocol>, at: &Path, issues: &mut Issues) {
    if let Some(mode) = tls.mode.as_deref().filter(|mode| !MODES.contains(mode)) {
        let what = format!("`{mode}` is no mode of TLS");
        issues.error(&at.field("mode"), what, "use Terminate or Passthrough");
        return;
    }
    let at_refs = at.field("certificateRefs");
    if tls.is_passed_through() {
        if protocol == Some(Protocol::Https) {
            let what = "a listener of HTTPS ends TLS, and mode Passthrough does not";
            issues.error(&at.field("mode"), what, "use Terminate, or protocol TLS");
        } else if !tls.certificate_refs.is_empty() {
            let what = "TLS is passed through: the certificates have no effect";
            issues.warn(&at_refs, what, "remove them, or use mode Terminate");
        }
        return;
    }
    if tls.certificate_refs.is_empty() {
        let what = "TLS ends here, and there is no certificate";
        issues.error(&at_refs, what, "name a Secret of type kubernetes.io/tls");
    }
    for (index, it) in tls.certificate_refs.iter().enumerate() {
        secret(it, &at_refs.index(index), issues);
    }
    if !tls.options.is_empty() {
        let what = "options of TLS have no effect";
        issues.warn(&at.field("options"), what, "remove them");
    }
}

/// A reference to a certificate with its key.
fn secret(it: &SecretRef, at: &Path, issues: &mut Issues) {
    if !it.is_secret() {
        let kind = it.kind.as_deref().unwrap_or("Secret");
        let group = it.group.as_deref().unwrap_or_default();
        let what = format!("{kind} of group {group:?} holds no certificate that is read");
        issues.error(at, what, "name a Secret of type kubernetes.io/tls");
    }
    reference(&it.name, it.namespace.as_deref(), at, issues);
}

fn reference(name: &str, namespace: Option<&str>, at: &Path, issues: &mut Issues) {
    require(issues, &at.field("name"), dns_subdomain, name);
    if let Some(namespace) = namespace {
        require(issues, &at.field("namespace"), dns_label, namespace);
    }
}

fn address(it: &Address, at: &Path, issues: &mut Issues) {
    let value = it.value.as_deref().filter(|value| !value.is_empty());
    let wrong = match (it.address_type.as_deref().unwrap_or("IPAddress"), value) {
        ("IPAddress", Some(value)) if value.parse::<IpAddr>().is_err() => {
            format!("`{value}` is no address")
        }
        ("Hostname", Some(value)) => match wrong_host(value) {
            Some(what) => what,
            None => return,
        },
        ("IPAddress" | "Hostname", _) => return,
        (other, _) => {
            let what = format!("addresses of type {other} are not known: the Gateway does not run");
            issues.warn(&at.field("type"), what, "use IPAddress or Hostname");
            return;
        }
    };
    issues.error(&at.field("value"), wrong, "correct it, or leave the value away");
}

fn gateway_tls(tls: &GatewayTls, at: &Path, issues: &mut Issues) {
    if let Some(it) = tls.backend.as_ref().and_then(|it| it.client_certificate_ref.as_ref()) {
        secret(it, &at.field("backend").field("clientCertificateRef"), issues);
    }
    if let Some(frontend) = &tls.frontend {
        frontend_tls(frontend, &at.field("frontend"), issues);
    }
}

fn frontend_tls(frontend: &FrontendTls, at: &Path, issues: &mut Issues) {
    if let Some(it) = &frontend.of_all.validation {
        validation(it, &at.field("default").field("validation"), issues);
    }
    for (index, it) in frontend.per_port.iter().enumerate() {
        let at = at.field("perPort").index(index);
        if let Some(what) = port_number(it.port.into()) {
            issues.error(&at.field("port"), what, "write a port number in that range");
        }
        if frontend.per_port[..index].iter().any(|other| other.port == it.port) {
            let what = format!("port {} is named before", it.port);
            issues.error(&at.field("port"), what, "name each port once");
        }
        if let Some(it) = &it.tls.validation {
            validation(it, &at.field("tls").field("validation"), issues);
        }
    }
}

/// Checks whether what holds root certificates is something that is read.
pub(crate) fn authority(it: &CaCertificateRef, at: &Path, issues: &mut Issues) {
    if it.is_trust_bundle() {
        let what = "clusters have ClusterTrustBundles, a machine has none";
        issues.warn(at, what, "on a machine, name a ConfigMap of group \"\" with the key ca.crt");
    } else if !it.is_config_map() {
        let what = format!("{} of group {:?} holds no roots that are read", it.kind, it.group);
        issues.error(at, what, "name a ConfigMap of group \"\" with the key ca.crt");
    }
}

fn validation(it: &ClientValidation, at: &Path, issues: &mut Issues) {
    if let Some(mode) = it.mode.as_deref().filter(|mode| !VALIDATION_MODES.contains(mode)) {
        let what = format!("`{mode}` is no way to validate clients");
        issues.error(&at.field("mode"), what, format!("use {}", VALIDATION_MODES.join(" or ")));
    }
    let at = at.field("caCertificateRefs");
    if it.ca_certificate_refs.is_empty() {
        let what = "clients cannot be validated without root certificates";
        issues.error(&at, what, "name a ConfigMap with the key ca.crt");
    }
    for (index, it) in it.ca_certificate_refs.iter().enumerate() {
        let at = at.index(index);
        authority(it, &at, issues);
        reference(&it.name, it.namespace.as_deref(), &at, issues);
    }
}
