//! Rules for Pod, and for what the pods of a template are.
//!
//! They are Kubernetes'. Only the machine knows which fields take effect on it, and warns when it
//! admits pods; nothing here may guess that.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    Container, ContainerPort, EnvVar, ExecAction, Pod, PodSpec, Probe, ResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::claims;
use super::core::{number, one_of};
use super::downward::{self, Target};
use super::names::{self, require};
use super::{nodes, volumes};
use crate::finding::{Issues, Path};
use crate::quantity::quantity;

/// Thousandths, as a power of ten: fine enough for amounts of everything.
const MILLI: i32 = -3;

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
    // Templates write an empty name where they mean none.
    let written = |name: &Option<String>| name.clone().filter(|it| !it.is_empty());
    let account = written(&spec.service_account_name);
    if let Some(account) = &account {
        require(issues, &at.field("serviceAccountName"), names::dns_subdomain, account);
    }
    if let Some(old) = written(&spec.service_account)
        && account != Some(old)
    {
        issues.error(
            &at.field("serviceAccount"),
            "the field is the old name of serviceAccountName and does not agree with it",
            "write serviceAccountName only",
        );
    }
    for (index, volume) in spec.volumes.iter().flatten().enumerate() {
        if let Some(ephemeral) = &volume.ephemeral {
            let at = at.field("volumes").index(index).field("ephemeral.volumeClaimTemplate");
            match &ephemeral.volume_claim_template {
                Some(template) => claims::claim_spec(&template.spec, &at.field("spec"), issues),
                None => issues.error(&at, "the volume needs a claim", "add it, with its spec"),
            }
        }
    }
    nodes::tolerations(spec.tolerations.as_deref().unwrap_or_default(), at, issues);
    volumes::volumes(spec, at, issues);
    let mut names_seen = BTreeSet::new();
    let lists = [
        ("initContainers", spec.init_containers.as_deref().unwrap_or_default(), true),
        ("containers", spec.containers.as_slice(), false),
    ];
    let containers = lists.iter().flat_map(|(list, containers, is_init)| {
        let at = at.field(list);
        containers.iter().enumerate().map(move |(index, it)| (at.index(index), it, *is_init))
    });
    for (at, container, is_init) in containers {
        self::container(container, spec, &at, issues);
        if is_init && container.restart_policy.as_deref() != Some("Always") {
            ends_by_itself(container, &at, issues);
        }
        if !names_seen.insert(&container.name) {
            issues.error(
                &at.field("name"),
                format!("two containers are called `{}`", container.name),
                "give each container its own name",
            );
        }
    }
}

/// An init container that is no sidecar has nothing that belongs to one that goes on.
fn ends_by_itself(container: &Container, at: &Path, issues: &mut Issues) {
    for (field, is_set) in [
        ("livenessProbe", container.liveness_probe.is_some()),
        ("readinessProbe", container.readiness_probe.is_some()),
        ("startupProbe", container.startup_probe.is_some()),
        ("lifecycle", container.lifecycle.is_some()),
    ] {
        if is_set {
            issues.error(
                &at.field(field),
                "may not be set for init containers without restartPolicy=Always",
                "remove it, or make the container a sidecar with `restartPolicy: Always`",
            );
        }
    }
}

fn container(container: &Container, spec: &PodSpec, at: &Path, issues: &mut Issues) {
    require(issues, &at.field("name"), names::dns_label, &container.name);
    if container.image.as_deref().unwrap_or_default().trim().is_empty() {
        issues.error(&at.field("image"), "the container has no image", "add an image");
    }
    let ports = container.ports.as_deref().unwrap_or_default();
    container_ports(ports, &at.field("ports"), issues);
    volumes::mounts(container.volume_mounts.as_deref(), at, issues);
    for (index, variable) in container.env.iter().flatten().enumerate() {
        env(variable, spec, &at.field("env").index(index), issues);
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
    if let Some(of_container) = &container.resources {
        resources(of_container, &at.field("resources"), issues);
    }
    let probes = [
        ("readinessProbe", &container.readiness_probe),
        ("livenessProbe", &container.liveness_probe),
        ("startupProbe", &container.startup_probe),
    ];
    for (field, probe) in probes {
        if let Some(probe) = probe {
            let at = at.field(field);
            self::probe(probe, ports, &at, issues);
            probe_numbers(probe, field == "readinessProbe", &at, issues);
        }
    }
    let hooks = container.lifecycle.as_ref();
    for (field, hook) in [
        ("lifecycle.postStart", hooks.and_then(|hooks| hooks.post_start.as_ref())),
        ("lifecycle.preStop", hooks.and_then(|hooks| hooks.pre_stop.as_ref())),
    ] {
        command(hook.and_then(|hook| hook.exec.as_ref()), &at.field(field), issues);
    }
}

/// Amounts are quantities, and what is asked for is no more than what is allowed.
fn resources(resources: &ResourceRequirements, at: &Path, issues: &mut Issues) {
    let limits = resources.limits.iter().flatten().map(|it| ("limits", it));
    let requests = resources.requests.iter().flatten().map(|it| ("requests", it));
    let milli = |amount: &Quantity| quantity(&amount.0, MILLI);
    for (list, (name, amount)) in limits.chain(requests) {
        let at = at.field(list).field(name);
        let limit = resources.limits.as_ref().and_then(|limits| limits.get(name));
        match (milli(amount), limit.and_then(milli)) {
            (None, _) => issues.error(
                &at,
                format!("`{}` is not a quantity", amount.0),
                "write for example `500m` of processors or `128Mi` of memory",
            ),
            (Some(asked), Some(allowed)) if asked > allowed => {
                let limit = limit.map_or("", |it| &it.0);
                issues.error(
                    &at,
                    format!("must be less than or equal to the {name} limit of {limit}"),
                    "ask for less, or raise the limit",
                );
            }
            _ => {}
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

fn env(variable: &EnvVar, spec: &PodSpec, at: &Path, issues: &mut Issues) {
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
            "keep one of value, configMapKeyRef, secretKeyRef, fieldRef, resourceFieldRef",
        );
    }
    let at = at.field("valueFrom");
    if let Some(field) = &source.field_ref {
        downward::field(field, Target::Variable, &at, issues);
    }
    if let Some(resource) = &source.resource_field_ref {
        downward::resource(resource, Target::Variable, spec, &at, issues);
    }
    if source.file_key_ref.is_some() {
        let what = "is not supported: few releases of Kubernetes have it, and off by default";
        issues.error(&at.field("fileKeyRef"), what, "use a Secret, or read the file itself");
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
    command(probe.exec.as_ref(), at, issues);
    let scheme = probe.http_get.as_ref().and_then(|action| action.scheme.as_deref());
    if let Some(scheme) = scheme.filter(|scheme| !["", "HTTP", "HTTPS"].contains(scheme)) {
        let what = format!("`{scheme}` is not a scheme of probes");
        issues.error(&at.field("httpGet.scheme"), what, "write HTTP or HTTPS, in capitals");
    }
    if let Some(grpc) = &probe.grpc {
        number(i64::from(grpc.port), &at.field("grpc.port"), issues);
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

/// The command of a probe or a hook.
fn command(exec: Option<&ExecAction>, at: &Path, issues: &mut Issues) {
    let command = exec.map(|exec| exec.command.as_deref().unwrap_or_default());
    if command.is_some_and(<[String]>::is_empty) {
        let what = "is empty, and would never succeed";
        issues.error(&at.field("exec.command"), what, "write a program and its arguments");
    }
}

/// The numbers of a probe. As in Kubernetes, 0 stands for a field that is left out, except where it
/// means something.
fn probe_numbers(probe: &Probe, is_readiness: bool, at: &Path, issues: &mut Issues) {
    for (field, value) in [
        ("initialDelaySeconds", probe.initial_delay_seconds),
        ("periodSeconds", probe.period_seconds),
        ("timeoutSeconds", probe.timeout_seconds),
        ("successThreshold", probe.success_threshold),
        ("failureThreshold", probe.failure_threshold),
    ] {
        if let Some(value) = value.filter(|value| *value < 0) {
            let what = format!("{value} is negative");
            issues.error(&at.field(field), what, "write 0 or a positive number");
        }
    }
    let threshold = probe.success_threshold.filter(|threshold| *threshold > 1);
    if let Some(threshold) = threshold.filter(|_| !is_readiness) {
        issues.error(
            &at.field("successThreshold"),
            format!("is {threshold}, and must be 1 for a liveness or startup probe"),
            "remove it",
        );
    }
    if let Some(seconds) = probe.termination_grace_period_seconds {
        let at = at.field("terminationGracePeriodSeconds");
        if is_readiness {
            let what = "must not be set for a readiness probe, which ends nothing";
            issues.error(&at, what, "remove it");
        } else if seconds < 1 {
            let what = format!("{seconds} is less than a second");
            issues.error(&at, what, "write 1 or more, or remove it");
        }
    }
}
