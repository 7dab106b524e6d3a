//! Which fields of a pod take effect on a machine.
//!
//! A machine gives a pod namespaces, a file tree if its image is in the store, and control groups
//! where it may make them. A warning names the fields of a manifest that need more, so nobody
//! believes that they are in effect. This file never changes a pod.

use serde_json::{Map, Value};

use super::{Kind, workload_fields};
use crate::cgroups::Cgroups;

/// Fields of a pod's spec that take effect, or whose absence of effect harms nobody.
const POD: &[&str] = &[
    "affinity",
    "automountServiceAccountToken",
    "containers",
    "dnsPolicy",
    "enableServiceLinks",
    "hostNetwork",
    "hostname",
    "initContainers",
    "nodeName",
    "nodeSelector",
    "priority",
    "restartPolicy",
    "schedulerName",
    "securityContext",
    "serviceAccount",
    "serviceAccountName",
    "subdomain",
    "terminationGracePeriodSeconds",
    "tolerations",
    "topologySpreadConstraints",
    "volumes",
];

/// Likewise of a container.
const CONTAINER: &[&str] = &[
    "args",
    "command",
    "env",
    "envFrom",
    "image",
    "imagePullPolicy",
    "lifecycle",
    "livenessProbe",
    "name",
    "ports",
    "readinessProbe",
    "resources",
    "securityContext",
    "startupProbe",
    "terminationMessagePath",
    "terminationMessagePolicy",
    "volumeMounts",
    "workingDir",
];

/// Likewise of an init container alone: `Always` makes it a sidecar.
const RESTART_POLICY: &str = "restartPolicy";
/// Likewise of a lifecycle, and of each of its two hooks.
const LIFECYCLE: &[&str] = &["postStart", "preStop"];
const HOOK: &[&str] = &["exec", "sleep"];

/// Likewise of a volume, and of the sources of a projected one.
const VOLUME: &[&str] = &[
    "configMap",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "hostPath",
    "name",
    "persistentVolumeClaim",
    "projected",
    "secret",
];
const PROJECTED: &[&str] = &["configMap", "downwardAPI", "secret"];
/// Likewise of what a container mounts.
const MOUNT: &[&str] = &["mountPath", "name", "readOnly", "subPath", "subPathExpr"];

/// Likewise of a security context: either granted, or held by every pod anyway.
const SECURITY: &[&str] = &[
    "allowPrivilegeEscalation",
    "fsGroup",
    "fsGroupChangePolicy",
    "readOnlyRootFilesystem",
    "runAsGroup",
    "runAsNonRoot",
    "runAsUser",
    "seccompProfile",
    "supplementalGroups",
];

/// The probes of a container.
const PROBES: &[&str] = &["startupProbe", "livenessProbe", "readinessProbe"];
/// Likewise of a probe.
const PROBE: &[&str] = &[
    "exec",
    "failureThreshold",
    "grpc",
    "httpGet",
    "initialDelaySeconds",
    "periodSeconds",
    "successThreshold",
    "tcpSocket",
    "terminationGracePeriodSeconds",
    "timeoutSeconds",
];

/// Likewise of a container's resources.
const RESOURCES: &[&str] = &["limits", "requests"];
/// Likewise of requests: a machine sets nothing aside, and every pod has a place on it.
const REQUESTS: &[&str] = &["cpu", "memory"];

/// `false` asks for user namespaces; of every other switch without effect it asks for nothing.
const HOST_USERS: &str = "hostUsers";
/// Fields without effect, with the value that is so anyway.
const DEFAULTS: [(&str, &str); 3] =
    [("mountPropagation", "None"), ("procMount", "Default"), ("recursiveReadOnly", "Disabled")];

/// Which limits of containers a machine holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limited {
    /// Those of processor time.
    pub(crate) cpu: bool,
    /// Those of memory.
    pub(crate) memory: bool,
}

impl Limited {
    /// Of a machine with these groups.
    pub(crate) fn of(cgroups: &Cgroups) -> Self {
        Self { cpu: cgroups.cpu.is_some(), memory: cgroups.memory.is_some() }
    }
}

/// The paths, below `prefix`, of everything in a pod's spec that has no effect; whether an
/// autoscaler may scale such pods.
pub(crate) fn without_effect(
    spec: &Value,
    prefix: &str,
    is_scalable: bool,
    limited: Limited,
) -> Vec<String> {
    let mut found = Vec::new();
    unknown(spec, POD, prefix, &mut found);
    security(spec, prefix, &mut found);
    for (index, volume) in list_of(spec, "volumes").enumerate() {
        let path = format!("{prefix}.volumes[{index}]");
        unknown(volume, VOLUME, &path, &mut found);
        let claim = &volume["ephemeral"]["volumeClaimTemplate"];
        let of_claim = workload_fields::without_effect(Kind::PersistentVolumeClaim, claim);
        let path_of_claim = format!("{path}.ephemeral.volumeClaimTemplate");
        found.extend(of_claim.into_iter().map(|field| format!("{path_of_claim}.{field}")));
        for (index, source) in list_of(&volume["projected"], "sources").enumerate() {
            unknown(source, PROJECTED, &format!("{path}.projected.sources[{index}]"), &mut found);
        }
    }
    for list in ["initContainers", "containers"] {
        for (index, container) in list_of(spec, list).enumerate() {
            let path = format!("{prefix}.{list}[{index}]");
            unknown(container, CONTAINER, &path, &mut found);
            found.retain(|field| {
                list != "initContainers" || *field != format!("{path}.{RESTART_POLICY}")
            });
            let lasts = list == "containers" || container[RESTART_POLICY] == "Always";
            resources(container, &path, is_scalable && lasts, limited, &mut found);
            if let Some(lifecycle) = container.get("lifecycle") {
                let path = format!("{path}.lifecycle");
                unknown(lifecycle, LIFECYCLE, &path, &mut found);
                for hook in LIFECYCLE {
                    unknown(&lifecycle[*hook], HOOK, &format!("{path}.{hook}"), &mut found);
                }
            }
            security(container, &path, &mut found);
            for (index, mount) in list_of(container, "volumeMounts").enumerate() {
                unknown(mount, MOUNT, &format!("{path}.volumeMounts[{index}]"), &mut found);
            }
            for (field, probe) in PROBES.iter().filter_map(|it| Some((it, container.get(*it)?))) {
                unknown(probe, PROBE, &format!("{path}.{field}"), &mut found);
                // The node asks nobody but the pod.
                let asks = ["httpGet", "tcpSocket"].into_iter();
                let elsewhere = asks.filter(|it| probe[*it].get("host").is_some());
                found.extend(elsewhere.map(|it| format!("{path}.{field}.{it}.host")));
            }
        }
    }
    found
}

fn list_of<'v>(value: &'v Value, field: &str) -> impl Iterator<Item = &'v Value> {
    value.get(field).and_then(Value::as_array).into_iter().flatten()
}

fn resources(
    container: &Value,
    path: &str,
    is_scaled: bool,
    limited: Limited,
    found: &mut Vec<String>,
) {
    let Some(resources) = container.get("resources") else { return };
    let path = format!("{path}.resources");
    unknown(resources, RESOURCES, &path, found);
    unknown(&resources["requests"], REQUESTS, &format!("{path}.requests"), found);
    let held = [("cpu", limited.cpu), ("memory", limited.memory)];
    let held: Vec<&str> = held.iter().filter(|(_, holds)| *holds).map(|(name, _)| *name).collect();
    unknown(&resources["limits"], &held, &format!("{path}.limits"), found);
    if is_scaled {
        let of_cpu = format!("{path}.limits.cpu");
        let found = found.iter_mut().filter(|field| **field == of_cpu);
        found.for_each(|field| field.push_str(" (but for autoscalers)"));
    }
}

fn security(holder: &Value, path: &str, found: &mut Vec<String>) {
    if let Some(context) = holder.get("securityContext") {
        unknown(context, SECURITY, &format!("{path}.securityContext"), found);
    }
}

fn unknown(value: &Value, known: &[&str], path: &str, found: &mut Vec<String>) {
    let empty = Map::new();
    for (field, value) in value.as_object().unwrap_or(&empty) {
        if !known.contains(&field.as_str()) && !is_so_anyway(field, value) {
            found.push(format!("{path}.{field}"));
        }
    }
}

/// Whether a field without effect asks for nothing, or for what every pod has.
fn is_so_anyway(field: &str, value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(is_on) => !is_on && field != HOST_USERS,
        Value::Array(list) => list.is_empty(),
        Value::Object(fields) => fields.iter().all(|(field, value)| is_so_anyway(field, value)),
        Value::String(text) => DEFAULTS.contains(&(field, text)),
        Value::Number(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Limited, without_effect};

    const NONE: Limited = Limited { cpu: false, memory: false };

    #[test]
    fn fields_without_effect_are_named() {
        let spec = json!({
            "serviceAccountName": "a",
            "volumes": [
                {"name": "v", "emptyDir": {"medium": "Memory"}},
                {"name": "w", "nfs": {"server": "a"}},
                {"name": "y", "ephemeral": {"volumeClaimTemplate": {"spec": {
                    "accessModes": ["ReadWriteOnce"], "selector": {"matchLabels": {"a": "b"}},
                }}}},
                {"name": "x", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}},
            ],
            "securityContext": {"runAsUser": 1, "fsGroup": 2, "seLinuxOptions": {}},
            "initContainers": [{"name": "s", "image": "i", "restartPolicy": "Always"}],
            "containers": [{
                "restartPolicy": "Never",
                "lifecycle": {
                    "postStart": {"exec": {"command": ["a"]}, "tcpSocket": {"port": 1}},
                    "preStop": {"httpGet": {"port": 1}, "sleep": {"seconds": 1}},
                },
                "name": "c", "image": "i", "resources": {"claims": [{"name": "gpu"}]},
                "startupProbe": {
                    "tcpSocket": {"port": 1, "host": "10.0.0.1"},
                    "terminationGracePeriodSeconds": 1,
                },
                "livenessProbe": {"httpGet": {"port": 1, "scheme": "HTTPS"}},
                "readinessProbe": {"udpSocket": {"port": 1}},
                "volumeMounts": [
                    {"name": "v", "mountPath": "/v", "mountPropagation": "Bidirectional"},
                ],
            }],
        });
        let mut found = without_effect(&spec, "spec", false, NONE);
        found.sort();
        assert_eq!(
            found,
            [
                "spec.containers[0].lifecycle.postStart.tcpSocket",
                "spec.containers[0].lifecycle.preStop.httpGet",
                "spec.containers[0].readinessProbe.udpSocket",
                "spec.containers[0].resources.claims",
                "spec.containers[0].restartPolicy",
                "spec.containers[0].startupProbe.tcpSocket.host",
                "spec.containers[0].volumeMounts[0].mountPropagation",
                "spec.volumes[1].nfs",
                "spec.volumes[2].ephemeral.volumeClaimTemplate.spec.selector",
                "spec.volumes[3].projected.sources[0].serviceAccountToken",
            ]
        );
    }

    #[test]
    fn what_is_so_anyway_is_not_named() {
        let check = |spec: serde_json::Value, expected: &[&str]| {
            assert_eq!(without_effect(&spec, "spec", false, NONE), expected, "{spec}");
        };
        let of = |context| json!({"containers": [{"name": "c", "securityContext": context}]});
        check(of(json!({"privileged": false, "procMount": "Default"})), &[]);
        let privileged = "spec.containers[0].securityContext.privileged";
        check(of(json!({"privileged": true})), &[privileged]);
        let mount = json!({"name": "v", "mountPath": "/v", "mountPropagation": "None"});
        check(json!({"containers": [{"name": "c", "volumeMounts": [mount]}]}), &[]);
        check(json!({"dnsConfig": {"options": []}, "hostPID": false}), &[]);
        check(json!({"dnsConfig": {"options": [{"name": "ndots"}]}}), &["spec.dnsConfig"]);
        check(json!({"hostUsers": false}), &["spec.hostUsers"]);
        check(json!({"hostPID": true}), &["spec.hostPID"]);
    }

    #[test]
    fn limits_are_named_where_nothing_holds_them() {
        let check = |limited, restart: &str, is_scalable, of_init: &[&str], of_main: &[&str]| {
            let resources = json!({
                "requests": {"cpu": "1", "memory": "1Gi"},
                "limits": {"cpu": "1", "memory": "1Gi", "example.com/gpu": "1"},
            });
            let init = json!({"restartPolicy": restart, "resources": resources});
            let spec = json!({"initContainers": [init], "containers": [{"resources": resources}]});
            let of = |list: &str, fields: &[&str]| {
                let path = |field: &&str| format!("spec.{list}[0].resources.limits.{field}");
                fields.iter().map(path).collect::<Vec<_>>()
            };
            let expected = [of("initContainers", of_init), of("containers", of_main)].concat();
            assert_eq!(without_effect(&spec, "spec", is_scalable, limited), expected);
        };
        let all = Limited { cpu: true, memory: true };
        let plain = ["cpu", "example.com/gpu", "memory"];
        let scaled = ["cpu (but for autoscalers)", "example.com/gpu", "memory"];
        check(all, "Always", true, &["example.com/gpu"], &["example.com/gpu"]);
        check(NONE, "Always", true, &scaled, &scaled);
        check(NONE, "Never", true, &plain, &scaled);
        check(NONE, "Always", false, &plain, &plain);
        let rest = ["cpu", "example.com/gpu"];
        check(Limited { memory: true, ..NONE }, "Never", false, &rest, &rest);
    }
}
