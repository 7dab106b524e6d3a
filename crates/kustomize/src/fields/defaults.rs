//! kustomize's own table of fields, as of version 5.
//!
//! The pod's fields are the same in every kind that has a pod; only the way to the pod differs.
//! What is missing for some kinds (a ReplicationController's ConfigMaps) is missing in kustomize.

use std::sync::LazyLock;

use super::{FieldSpec, FieldTable, NameReference};

const RBAC: &str = "rbac.authorization.k8s.io";
const ADMISSION: &str = "admissionregistration.k8s.io";

/// Kinds whose pods name ConfigMaps and Secrets, and where the pod's spec is.
const CONFIGURED: &[(&str, &str)] = &[
    ("Pod", "spec"),
    ("PodTemplate", "template/spec"),
    ("Deployment", "spec/template/spec"),
    ("ReplicaSet", "spec/template/spec"),
    ("DaemonSet", "spec/template/spec"),
    ("StatefulSet", "spec/template/spec"),
    ("Job", "spec/template/spec"),
    ("CronJob", "spec/jobTemplate/spec/template/spec"),
];

/// Kinds whose pods name accounts, claims and priority classes.
const PLACED: &[(&str, &str)] = &[
    ("Pod", "spec"),
    ("StatefulSet", "spec/template/spec"),
    ("Deployment", "spec/template/spec"),
    ("ReplicationController", "spec/template/spec"),
    ("CronJob", "spec/jobTemplate/spec/template/spec"),
    ("Job", "spec/template/spec"),
    ("DaemonSet", "spec/template/spec"),
];

/// Where a pod names a ConfigMap.
const CONFIG_MAPS: &[&str] = &[
    "volumes/configMap/name",
    "containers/env/valueFrom/configMapKeyRef/name",
    "initContainers/env/valueFrom/configMapKeyRef/name",
    "containers/envFrom/configMapRef/name",
    "initContainers/envFrom/configMapRef/name",
    "volumes/projected/sources/configMap/name",
];

/// Where a pod names a Secret.
const SECRETS: &[&str] = &[
    "volumes/secret/secretName",
    "containers/env/valueFrom/secretKeyRef/name",
    "initContainers/env/valueFrom/secretKeyRef/name",
    "containers/envFrom/secretRef/name",
    "initContainers/envFrom/secretRef/name",
    "imagePullSecrets/name",
    "volumes/projected/sources/secret/name",
];

/// Where a pod's variables are replaced.
const VARIABLES: &[&str] = &[
    "containers/args",
    "containers/command",
    "containers/env/value",
    "containers/volumeMounts/mountPath",
    "initContainers/args",
    "initContainers/command",
    "initContainers/env/value",
    "initContainers/volumeMounts/mountPath",
];

static DEFAULTS: LazyLock<FieldTable> = LazyLock::new(|| {
    let mut sorted = FieldTable::default();
    sorted.merge(&table()).expect("kustomize's own fields do not contradict one another");
    sorted
});

/// The table that every build starts with, sorted.
pub(crate) fn defaults() -> FieldTable {
    DEFAULTS.clone()
}

fn table() -> FieldTable {
    let name = vec![FieldSpec::any("metadata/name", false)];
    let claims =
        vec![field("apps", "", "StatefulSet", "spec/volumeClaimTemplates[]/metadata/labels", true)];
    let mut common_labels = selectors();
    common_labels.extend(templates("labels", "apps"));
    common_labels.extend(claims.clone());
    FieldTable {
        name_prefix: name.clone(),
        name_suffix: name,
        namespace: namespaces(),
        common_labels,
        labels: Vec::new(),
        template_labels: templates("labels", "apps"),
        volume_claim_template_labels: claims,
        common_annotations: templates("annotations", ""),
        name_reference: references(),
        var_reference: variables(),
        images: images(),
        replicas: ["Deployment", "ReplicationController", "ReplicaSet", "StatefulSet"]
            .map(|kind| field("", "", kind, "spec/replicas", true))
            .to_vec(),
    }
}

fn field(group: &str, version: &str, kind: &str, path: &str, create: bool) -> FieldSpec {
    FieldSpec {
        group: group.to_owned(),
        version: version.to_owned(),
        kind: kind.to_owned(),
        path: path.to_owned(),
        create,
    }
}

fn namespaces() -> Vec<FieldSpec> {
    vec![
        field("", "", "Namespace", "metadata/name", true),
        field("apiregistration.k8s.io", "", "APIService", "spec/service/namespace", true),
        field(
            "apiextensions.k8s.io",
            "",
            "CustomResourceDefinition",
            "spec/conversion/webhook/clientConfig/service/namespace",
            false,
        ),
    ]
}

fn images() -> Vec<FieldSpec> {
    let mut fields = Vec::new();
    for pod in ["spec", "spec/template/spec"] {
        for path in ["containers[]/image", "initContainers[]/image", "volumes[]/image/reference"] {
            fields.push(FieldSpec::any(&format!("{pod}/{path}"), true));
        }
    }
    fields
}

/// The metadata of an object and of the pods that it makes.
fn templates(of: &str, stateful_group: &str) -> Vec<FieldSpec> {
    let template = format!("spec/template/metadata/{of}");
    vec![
        FieldSpec::any(&format!("metadata/{of}"), true),
        field("", "v1", "ReplicationController", &template, true),
        field("", "", "Deployment", &template, true),
        field("", "", "ReplicaSet", &template, true),
        field("", "", "DaemonSet", &template, true),
        field(stateful_group, "", "StatefulSet", &template, true),
        field("batch", "", "Job", &template, true),
        field("batch", "", "CronJob", &format!("spec/jobTemplate/metadata/{of}"), true),
        field(
            "batch",
            "",
            "CronJob",
            &format!("spec/jobTemplate/spec/template/metadata/{of}"),
            true,
        ),
    ]
}

/// Where labels select.
fn selectors() -> Vec<FieldSpec> {
    let mut fields = vec![
        field("", "v1", "Service", "spec/selector", true),
        field("", "v1", "ReplicationController", "spec/selector", true),
        field("", "", "Deployment", "spec/selector/matchLabels", true),
        field("", "", "ReplicaSet", "spec/selector/matchLabels", true),
        field("", "", "DaemonSet", "spec/selector/matchLabels", true),
        field("apps", "", "StatefulSet", "spec/selector/matchLabels", true),
        field("batch", "", "Job", "spec/selector/matchLabels", false),
        field("batch", "", "CronJob", "spec/jobTemplate/spec/selector/matchLabels", false),
        field("policy", "", "PodDisruptionBudget", "spec/selector/matchLabels", false),
    ];
    for path in ["podSelector", "ingress/from/podSelector", "egress/to/podSelector"] {
        let path = format!("spec/{path}/matchLabels");
        fields.push(field("networking.k8s.io", "", "NetworkPolicy", &path, false));
    }
    for kind in ["Deployment", "StatefulSet"] {
        for affinity in ["podAffinity", "podAntiAffinity"] {
            for term in [
                "preferredDuringSchedulingIgnoredDuringExecution/podAffinityTerm",
                "requiredDuringSchedulingIgnoredDuringExecution",
            ] {
                let path = format!(
                    "spec/template/spec/affinity/{affinity}/{term}/labelSelector/matchLabels"
                );
                fields.push(field("apps", "", kind, &path, false));
            }
        }
        let path = "spec/template/spec/topologySpreadConstraints/labelSelector/matchLabels";
        fields.push(field("apps", "", kind, path, false));
    }
    fields
}

/// The same fields of the pods of several kinds. A pod's own have its version.
fn in_pods(kinds: &[(&str, &str)], paths: &[&str], pod_version: &str) -> Vec<FieldSpec> {
    let of_kind = |(kind, pod): &(&str, &str)| {
        let version = if *kind == "Pod" { pod_version } else { "" };
        let of_path = |path: &&str| field("", version, kind, &format!("{pod}/{path}"), false);
        paths.iter().map(of_path).collect::<Vec<_>>()
    };
    kinds.iter().flat_map(of_kind).collect()
}

fn reference(group: &str, version: &str, kind: &str, fields: Vec<FieldSpec>) -> NameReference {
    NameReference {
        group: group.to_owned(),
        version: version.to_owned(),
        kind: kind.to_owned(),
        fields,
    }
}

fn references() -> Vec<NameReference> {
    let scaled =
        || vec![field("", "", "HorizontalPodAutoscaler", "spec/scaleTargetRef/name", false)];
    let mut all: Vec<NameReference> =
        ["Deployment", "ReplicationController", "ReplicaSet", "StatefulSet"]
            .map(|kind| reference("", "", kind, scaled()))
            .to_vec();
    all.push(reference("", "v1", "ConfigMap", config_map_fields()));
    all.push(reference("", "v1", "Secret", secret_fields()));
    all.push(reference("", "v1", "Service", service_fields()));
    all.extend(access_references());
    let claims = in_pods(PLACED, &["volumes/persistentVolumeClaim/claimName"], "");
    all.push(reference("", "v1", "PersistentVolumeClaim", claims));
    let volumes = vec![
        field("", "", "PersistentVolumeClaim", "spec/volumeName", false),
        field("", "", "ClusterRole", "rules/resourceNames", false),
    ];
    all.push(reference("", "v1", "PersistentVolume", volumes));
    let storage = vec![
        field("", "", "PersistentVolume", "spec/storageClassName", false),
        field("", "", "PersistentVolumeClaim", "spec/storageClassName", false),
        field("", "", "StatefulSet", "spec/volumeClaimTemplates/spec/storageClassName", false),
    ];
    all.push(reference("storage.k8s.io", "v1", "StorageClass", storage));
    let priority = in_pods(PLACED, &["priorityClassName"], "");
    all.push(reference("scheduling.k8s.io", "v1", "PriorityClass", priority));
    // kustomize writes the version into the group, so it never applies.
    let class = vec![field("", "", "Ingress", "spec/ingressClassName", false)];
    all.push(reference("networking.k8s.io/v1", "v1", "IngressClass", class));
    let policy =
        vec![field(ADMISSION, "", "ValidatingAdmissionPolicyBinding", "spec/policyName", false)];
    all.push(reference(ADMISSION, "", "ValidatingAdmissionPolicy", policy));
    all
}

fn config_map_fields() -> Vec<FieldSpec> {
    let mut fields = in_pods(CONFIGURED, CONFIG_MAPS, "v1");
    let annotation = "metadata/annotations/nginx.ingress.kubernetes.io\\/fastcgi-params-configmap";
    for (kind, path) in [
        ("Node", "spec/configSource/configMap"),
        ("Role", "rules/resourceNames"),
        ("ClusterRole", "rules/resourceNames"),
        ("Ingress", annotation),
    ] {
        fields.push(field("", "", kind, path, false));
    }
    fields
}

fn secret_fields() -> Vec<FieldSpec> {
    let mut fields = in_pods(CONFIGURED, SECRETS, "v1");
    for (kind, path) in [
        ("Ingress", "spec/tls/secretName"),
        ("Ingress", "metadata/annotations/ingress.kubernetes.io\\/auth-secret"),
        ("Ingress", "metadata/annotations/nginx.ingress.kubernetes.io\\/auth-secret"),
        ("Ingress", "metadata/annotations/nginx.ingress.kubernetes.io\\/auth-tls-secret"),
        ("ServiceAccount", "imagePullSecrets/name"),
        ("StorageClass", "parameters/secretName"),
        ("StorageClass", "parameters/adminSecretName"),
        ("StorageClass", "parameters/userSecretName"),
        ("StorageClass", "parameters/secretRef"),
        ("Role", "rules/resourceNames"),
        ("ClusterRole", "rules/resourceNames"),
        ("PersistentVolume", "spec/azureFile/secretName"),
    ] {
        fields.push(field("", "", kind, path, false));
    }
    let variable = "spec/template/spec/containers/env/valueFrom/secretKeyRef/name";
    fields.push(field("serving.knative.dev", "v1", "Service", variable, false));
    fields
}

fn service_fields() -> Vec<FieldSpec> {
    let mut fields = vec![
        field("apps", "", "StatefulSet", "spec/serviceName", false),
        field("apiregistration.k8s.io", "", "APIService", "spec/service/name", false),
    ];
    for path in [
        "spec/rules/http/paths/backend/serviceName",
        "spec/backend/serviceName",
        "spec/rules/http/paths/backend/service/name",
        "spec/defaultBackend/service/name",
    ] {
        fields.push(field("", "", "Ingress", path, false));
    }
    for kind in ["ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"] {
        fields.push(field(ADMISSION, "", kind, "webhooks/clientConfig/service", false));
    }
    fields
}

/// Roles and accounts.
fn access_references() -> Vec<NameReference> {
    let role = |kinds: &[&str]| {
        kinds.iter().map(|kind| field(RBAC, "", kind, "roleRef/name", false)).collect::<Vec<_>>()
    };
    let mut accounts = vec![
        field(RBAC, "", "RoleBinding", "subjects", false),
        field(RBAC, "", "ClusterRoleBinding", "subjects", false),
    ];
    accounts.extend(in_pods(PLACED, &["serviceAccountName"], ""));
    vec![
        reference(RBAC, "", "Role", role(&["RoleBinding"])),
        reference(RBAC, "", "ClusterRole", role(&["RoleBinding", "ClusterRoleBinding"])),
        reference("", "v1", "ServiceAccount", accounts),
    ]
}

fn variables() -> Vec<FieldSpec> {
    let kinds: Vec<(&str, &str)> =
        CONFIGURED.iter().filter(|(kind, _)| *kind != "PodTemplate").copied().collect();
    let mut fields = in_pods(&kinds, VARIABLES, "");
    let pods = kinds.iter().filter(|(kind, _)| !["CronJob", "StatefulSet"].contains(kind));
    fields.extend(
        pods.map(|(kind, pod)| field("", "", kind, &format!("{pod}/volumes/nfs/server"), false)),
    );
    for (kind, path) in [
        ("CronJob", "spec/jobTemplate/spec/template/volumes/nfs/server"),
        ("Deployment", "spec/template/metadata/annotations"),
        ("Ingress", "spec/rules/host"),
        ("Ingress", "spec/tls/hosts"),
        ("Ingress", "spec/tls/secretName"),
        ("Service", "spec/ports/port"),
        ("Service", "spec/ports/targetPort"),
        ("StatefulSet", "spec/volumeClaimTemplates/spec/nfs/server"),
        ("PersistentVolume", "spec/nfs/server"),
        ("", "metadata/labels"),
        ("", "metadata/annotations"),
    ] {
        fields.push(field("", "", kind, path, false));
    }
    fields
}
