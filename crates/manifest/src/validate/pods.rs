//! Rules for Pod, and for what the pods of a template are.
//!
//! They are Kubernetes'. Only the machine knows which fields take effect on it, and warns when it
//! admits pods; nothing here may guess that.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, ContainerPort, EnvVar, Pod, PodSpec, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::core::{number, one_of};
use super::names::{self, require};
use crate::finding::{Issues, Path};

/// Checks a Pod.
pub(crate) fn pod(pod: &Pod, issues: &mut Issues) {
    let at = Path::at("spec");
    match &pod.spec {
        Some(spec) => pod_spec(spec, &at, issues),
        None => issues.error(&at, "a Pod needs a spec", "add `spec.containers`"),
    }
}

/// Checks what pods of a template are.
pub(crate) fn pod_spec(spec: &PodSpec, at: &Path, issues: &mut Issues) {
    if spec.containers.is_empty() {
        issues.error(&at.field("containers"), "a pod needs a container", "list at least one");
    }
    let policies = ["Always", "OnFailure", "Never"];
    one_of(spec.restart_policy.as_deref(), &policies, &at.field("restartPolicy"), issues);
    if let Some(account) = &spec.service_account_name {
        require(issues, &at.field("serviceAccountName"), names::dns_subdomain, account);
    }
    if let Some(account) = &spec.service_account
        && spec.service_account_name.as_ref() != Some(account)
    {
        issues.error(
            &at.field("serviceAccount"),
            "the field is the old name of serviceAccountName and does not agree with it",
            "write serviceAccountName only",
        );
    }
    let mut names_seen = BTreeSet::new();
    let lists = [
        ("initContainers", spec.init_containers.as_deref().unwrap_or_default()),
        ("containers", &spec.containers),
    ];
    let containers = lists.iter().flat_map(|(list, containers)| {
        let at = at.field(list);
        containers.iter().enumerate().map(move |(index, it)| (at.index(index), it))
    });
    for (at, container) in containers {
        self::container(container, &at, issues);
        if !names_seen.insert(&container.name) {
            issues.error(
                &at.field("name"),
                format!("two containers are called `{}`", container.name),
                "give each container its own name",
            );
        }
    }
}

fn container(container: &Container, at: &Path, issues: &mut Issues) {
    require(issues, &at.field("name"), names::dns_label, &container.name);
    if container.image.as_deref().unwrap_or_default().trim().is_empty() {
        issues.error(&at.field("image"), "the container has no image", "add an image");
    }
    let ports = container.ports.as_deref().unwrap_or_default();
    container_ports(ports, &at.field("ports"), issues);
    for (index, variable) in container.env.iter().flatten().enumerate() {
        env(variable, &at.field("env").index(index), issues);
    }
    for (index, source) in container.env_from.iter().flatten().enumerate() {
        if source.config_map_ref.is_some() == source.secret_ref.is_some() {
            issues.error(
                &at.field("envFrom").index(index),
                "must name exactly one of configMapRef and secretRef",
                "keep one of the two",
            );
        }
    }
    let probes = [
        ("readinessProbe", &container.readiness_probe),
        ("livenessProbe", &container.liveness_probe),
        ("startupProbe", &container.startup_probe),
    ];
    for (field, probe) in probes {
        if let Some(probe) = probe {
            self::probe(probe, ports, &at.field(field), issues);
        }
    }
}

fn container_ports(ports: &[ContainerPort], at: &Path, issues: &mut Issues) {
    let mut names_seen = BTreeSet::new();
    for (index, port) in ports.iter().enumerate() {
        let at = at.index(index);
        number(i64::from(port.container_port), &at.field("containerPort"), issues);
        one_of(port.protocol.as_deref(), &["TCP", "UDP", "SCTP"], &at.field("protocol"), issues);
        let Some(name) = &port.name else { continue };
        require(issues, &at.field("name"), names::port_name, name);
        if !names_seen.insert(name) {
            issues.error(
                &at.field("name"),
                format!("two ports are called `{name}`"),
                "give each port its own name",
            );
        }
    }
}

fn env(variable: &EnvVar, at: &Path, issues: &mut Issues) {
    require(issues, &at.field("name"), names::env_name, &variable.name);
    let Some(source) = &variable.value_from else { return };
    let has_value = variable.value.as_ref().is_some_and(|value| !value.is_empty());
    let sources = [
        source.config_map_key_ref.is_some(),
        source.secret_key_ref.is_some(),
        source.field_ref.is_some(),
        source.resource_field_ref.is_some(),
        source.file_key_ref.is_some(),
    ];
    let count = sources.iter().filter(|is_set| **is_set).count();
    if has_value || count != 1 {
        issues.error(
            &at.field("valueFrom"),
            "must name exactly one source, and no `value` beside it",
            "keep one of value, configMapKeyRef, secretKeyRef, fieldRef",
        );
    }
}

fn probe(probe: &Probe, ports: &[ContainerPort], at: &Path, issues: &mut Issues) {
    let http = probe.http_get.as_ref().map(|action| (&action.port, "httpGet.port"));
    let tcp = probe.tcp_socket.as_ref().map(|action| (&action.port, "tcpSocket.port"));
    let handlers = [http.is_some(), tcp.is_some(), probe.exec.is_some(), probe.grpc.is_some()];
    if handlers.iter().filter(|is_set| **is_set).count() != 1 {
        issues.error(
            at,
            "a probe must have exactly one of httpGet, tcpSocket, exec and grpc",
            "keep one of them",
        );
    }
    for (port, field) in [http, tcp].into_iter().flatten() {
        let at = at.field(field);
        match port {
            IntOrString::Int(port) => number(i64::from(*port), &at, issues),
            IntOrString::String(name) => {
                if !ports.iter().any(|port| port.name.as_deref() == Some(name)) {
                    issues.error(
                        &at,
                        format!("the container has no port called `{name}`"),
                        "use the number, or name the port in `ports`",
                    );
                }
            }
        }
    }
}
