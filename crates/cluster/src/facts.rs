//! What `ambit check` knows about a cluster before it judges: objects as JSON, read with a bounded
//! number of requests.
//!
//! A list that cannot be read is reported as unknown, and never treated as empty. Fields that no
//! rule reads are dropped on arrival, so a cluster of many pods fits into memory.

use std::collections::BTreeMap;
use std::time::SystemTime;

use ambit_wire::admin::{HeldCertificate, List as Listed, Status, node_proxy};
use ambit_words::annotations::LAST_APPLIED;
use ambit_words::error_chain;
use ambit_words::names::{CONTROL, ROOT_CONFIG_MAP};
use futures::StreamExt;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::access::{ASKED_AT_ONCE, Right};
use crate::api::{ClusterError, Form};
use crate::json::{items, text};
use crate::parts::{AGENT, is_ours, proxies};

/// Lists that are read at the same time.
const READ_AT_ONCE: usize = 6;
/// Most proxies that are asked for their certificates; a sample shows whether renewal works.
const PROXIES_ASKED_MAX: usize = 64;

/// The definitions of Istio's kinds that the chart brings.
pub(crate) const DEFINITIONS: [&str; 8] = [
    "authorizationpolicies.security.istio.io",
    "destinationrules.networking.istio.io",
    "peerauthentications.security.istio.io",
    "requestauthentications.security.istio.io",
    "serviceentries.networking.istio.io",
    "telemetries.telemetry.istio.io",
    "virtualservices.networking.istio.io",
    "workloadentries.networking.istio.io",
];
/// The version of them that is read, and their groups.
const VERSION: &str = "v1";
const SECURITY: &str = "security.istio.io";
const NETWORKING: &str = "networking.istio.io";

/// When a cluster is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Before Ambit is installed: can the cluster run it?
    Before,
    /// While it runs: is everything well?
    Running,
    /// Before it is uninstalled: what changes for those who are in it?
    Leaving,
}

/// A list of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum List {
    Nodes,
    Namespaces,
    Pods,
    Services,
    DaemonSets,
    Deployments,
    NetworkPolicies,
    CustomResourceDefinitions,
    RootConfigMaps,
    Leases,
    PodWarnings,
    AdmissionPolicies,
    AdmissionBindings,
    AdmissionWebhooks,
    PeerAuthentications,
    AuthorizationPolicies,
}

impl List {
    const LEAVING: [Self; 4] =
        [Self::Pods, Self::DaemonSets, Self::PeerAuthentications, Self::AuthorizationPolicies];
    const BEFORE: [Self; 7] = [
        Self::Nodes,
        Self::Namespaces,
        Self::Pods,
        Self::DaemonSets,
        Self::Deployments,
        Self::NetworkPolicies,
        Self::CustomResourceDefinitions,
    ];
    const RUNNING: [Self; 7] = [
        Self::Services,
        Self::RootConfigMaps,
        Self::Leases,
        Self::PodWarnings,
        Self::AdmissionPolicies,
        Self::AdmissionBindings,
        Self::AdmissionWebhooks,
    ];

    fn path(self, mesh_namespace: &str) -> String {
        let admission = "/apis/admissionregistration.k8s.io/v1";
        let security = format!("/apis/{SECURITY}/{VERSION}");
        match self {
            Self::Nodes => "/api/v1/nodes".to_owned(),
            Self::Namespaces => "/api/v1/namespaces".to_owned(),
            Self::Pods => "/api/v1/pods".to_owned(),
            Self::Services => "/api/v1/services".to_owned(),
            Self::DaemonSets => "/apis/apps/v1/daemonsets".to_owned(),
            Self::Deployments => "/apis/apps/v1/deployments?labelSelector=app%3Distiod".to_owned(),
            Self::NetworkPolicies => "/apis/networking.k8s.io/v1/networkpolicies".to_owned(),
            Self::CustomResourceDefinitions => {
                "/apis/apiextensions.k8s.io/v1/customresourcedefinitions".to_owned()
            }
            Self::RootConfigMaps => {
                format!("/api/v1/configmaps?fieldSelector=metadata.name%3D{ROOT_CONFIG_MAP}")
            }
            Self::Leases => {
                format!("/apis/coordination.k8s.io/v1/namespaces/{mesh_namespace}/leases")
            }
            Self::PodWarnings => {
                "/api/v1/events?fieldSelector=type%3DWarning%2CinvolvedObject.kind%3DPod".to_owned()
            }
            Self::AdmissionPolicies => format!("{admission}/validatingadmissionpolicies"),
            Self::AdmissionBindings => format!("{admission}/validatingadmissionpolicybindings"),
            Self::AdmissionWebhooks => format!("{admission}/validatingwebhookconfigurations"),
            Self::PeerAuthentications => format!("{security}/peerauthentications"),
            Self::AuthorizationPolicies => format!("{security}/authorizationpolicies"),
        }
    }

    /// Schemas of resources are large, and no rule reads them.
    fn form(self) -> Form {
        match self {
            Self::CustomResourceDefinitions => Form::Metadata,
            _ => Form::Whole,
        }
    }

    /// Its name in the finding when it cannot be read.
    fn name(self) -> &'static str {
        match self {
            Self::Nodes => "nodes",
            Self::Namespaces => "namespaces",
            Self::Pods => "pods",
            Self::Services => "services",
            Self::DaemonSets => "daemonsets",
            Self::Deployments => "deployments",
            Self::NetworkPolicies => "networkpolicies",
            Self::CustomResourceDefinitions => "customresourcedefinitions",
            Self::RootConfigMaps => "configmaps istio-ca-root-cert",
            Self::Leases => "leases",
            Self::PodWarnings => "events",
            Self::AdmissionPolicies => "validatingadmissionpolicies",
            Self::AdmissionBindings => "validatingadmissionpolicybindings",
            Self::AdmissionWebhooks => "validatingwebhookconfigurations",
            Self::PeerAuthentications => "peerauthentications",
            Self::AuthorizationPolicies => "authorizationpolicies",
        }
    }

    /// The list that an object of this kind belongs to.
    #[cfg(test)]
    pub(crate) fn of_kind(kind: &str) -> Self {
        match kind {
            "Node" => Self::Nodes,
            "Namespace" => Self::Namespaces,
            "Pod" => Self::Pods,
            "Service" => Self::Services,
            "DaemonSet" => Self::DaemonSets,
            "Deployment" => Self::Deployments,
            "NetworkPolicy" => Self::NetworkPolicies,
            "CustomResourceDefinition" => Self::CustomResourceDefinitions,
            "ConfigMap" => Self::RootConfigMaps,
            "Lease" => Self::Leases,
            "Event" => Self::PodWarnings,
            "ValidatingAdmissionPolicy" => Self::AdmissionPolicies,
            "ValidatingAdmissionPolicyBinding" => Self::AdmissionBindings,
            "ValidatingWebhookConfiguration" => Self::AdmissionWebhooks,
            "PeerAuthentication" => Self::PeerAuthentications,
            "AuthorizationPolicy" => Self::AuthorizationPolicies,
            other => panic!("no list holds the kind {other}"),
        }
    }
}

/// Something that somebody must be allowed: the chart's installer, or one of the parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    /// The part's service account; empty for the calling user.
    pub(crate) account: &'static str,
    pub(crate) group: &'static str,
    pub(crate) resource: &'static str,
    pub(crate) verb: &'static str,
    pub(crate) allowed: bool,
}

/// What the chart holds, and so what its installer has to create: group, resource, and whether it
/// lies in a namespace.
const INSTALLED: [(&str, &str, bool); 14] = [
    ("", "namespaces", false),
    ("", "serviceaccounts", true),
    ("", "secrets", true),
    ("", "services", true),
    ("apps", "deployments", true),
    ("apps", "daemonsets", true),
    ("policy", "poddisruptionbudgets", true),
    ("rbac.authorization.k8s.io", "roles", true),
    ("rbac.authorization.k8s.io", "rolebindings", true),
    ("rbac.authorization.k8s.io", "clusterroles", false),
    ("rbac.authorization.k8s.io", "clusterrolebindings", false),
    ("apiextensions.k8s.io", "customresourcedefinitions", false),
    ("admissionregistration.k8s.io", "validatingadmissionpolicies", false),
    ("admissionregistration.k8s.io", "validatingadmissionpolicybindings", false),
];

const AGENT_ACCOUNT: &str = "istio-cni";
/// What each part cannot do without: account, group, resource (or resource/part), verb, and whether
/// it is asked for in the mesh's namespace only.
const NEEDED: [(&str, &str, &str, &str, bool); 29] = [
    (CONTROL, "", "namespaces", "watch", false),
    (CONTROL, "", "nodes", "watch", false),
    (CONTROL, "", "pods", "watch", false),
    (CONTROL, "", "services", "watch", false),
    (CONTROL, "discovery.k8s.io", "endpointslices", "watch", false),
    (CONTROL, "security.istio.io", "authorizationpolicies", "watch", false),
    (CONTROL, "security.istio.io", "peerauthentications", "watch", false),
    (CONTROL, "networking.istio.io", "serviceentries", "watch", false),
    (CONTROL, "networking.istio.io", "workloadentries", "watch", false),
    (CONTROL, "security.istio.io", "authorizationpolicies/status", "patch", false),
    (CONTROL, "security.istio.io", "requestauthentications/status", "patch", false),
    (CONTROL, "networking.istio.io", "serviceentries/status", "patch", false),
    (CONTROL, "networking.istio.io", "workloadentries/status", "patch", false),
    (CONTROL, "", "services/status", "patch", false),
    (CONTROL, "", "serviceaccounts", "patch", false),
    (CONTROL, "", "services", "patch", false),
    (CONTROL, "apps", "deployments", "patch", false),
    (CONTROL, "policy", "poddisruptionbudgets", "patch", false),
    (CONTROL, "autoscaling", "horizontalpodautoscalers", "patch", false),
    (CONTROL, "", "configmaps", "get", false),
    (CONTROL, "authentication.k8s.io", "tokenreviews", "create", false),
    (CONTROL, "", "configmaps", "create", false),
    (CONTROL, "coordination.k8s.io", "leases", "create", true),
    (CONTROL, "", "secrets", "create", true),
    (AGENT_ACCOUNT, "", "namespaces", "watch", false),
    (AGENT_ACCOUNT, "", "pods", "watch", false),
    (AGENT_ACCOUNT, "", "pods", "get", false),
    (AGENT_ACCOUNT, "", "pods/status", "patch", false),
    (AGENT_ACCOUNT, "", "nodes", "patch", false),
];

/// What is known about a cluster.
#[derive(Clone, Debug)]
pub struct Facts {
    pub(crate) stage: Stage,
    pub(crate) mesh_namespace: String,
    pub(crate) now: Timestamp,
    /// The API server's `/version`.
    pub(crate) version: Option<Value>,
    lists: BTreeMap<List, Vec<Value>>,
    /// Definitions of kinds that are served in other versions only than Ambit reads, and which.
    pub(crate) outdated: Vec<(String, String)>,
    /// What could not be read, and why.
    pub(crate) unknown: Vec<(String, String)>,
    pub(crate) access: Vec<Access>,
    /// Cilium's settings, if it has any.
    pub(crate) cilium: Option<Value>,
    /// Control's status, or why it could not be read.
    pub(crate) control: Option<Result<Status, String>>,
    /// The certificates that proxies hold, by node.
    pub(crate) certificates: Vec<(String, Result<Vec<HeldCertificate>, String>)>,
}

impl Facts {
    /// Nothing yet.
    pub(crate) fn new(stage: Stage, mesh_namespace: &str, now: Timestamp) -> Self {
        Self {
            stage,
            mesh_namespace: mesh_namespace.to_owned(),
            now,
            version: None,
            lists: BTreeMap::new(),
            outdated: Vec::new(),
            unknown: Vec::new(),
            access: Vec::new(),
            cilium: None,
            control: None,
            certificates: Vec::new(),
        }
    }

    /// The objects of a list, unless it could not be read.
    pub(crate) fn list(&self, list: List) -> Option<&[Value]> {
        self.lists.get(&list).map(Vec::as_slice)
    }

    /// The objects of a list as far as they are known, for rules that need not know the whole list.
    pub(crate) fn known(&self, list: List) -> &[Value] {
        self.list(list).unwrap_or_default()
    }

    /// Adds what a list holds.
    pub(crate) fn add(&mut self, list: List, objects: Vec<Value>) {
        self.lists.entry(list).or_default().extend(objects);
    }

    /// Asks the cluster. Fails only when its API server does not answer at all.
    pub async fn gather(cluster: &crate::Cluster, stage: Stage) -> Result<Self, ClusterError> {
        let version = cluster.read("/version").await?;
        let now = Timestamp::try_from(SystemTime::now()).unwrap_or(Timestamp::UNIX_EPOCH);
        let mut facts = Self::new(stage, cluster.mesh_namespace(), now);
        facts.version = Some(version);
        facts.read_lists(cluster).await;
        facts.read_versions(cluster).await;
        match stage {
            Stage::Before => {
                facts.read_cilium(cluster).await;
                facts.review_access(cluster).await;
            }
            Stage::Running => {
                facts.read_cilium(cluster).await;
                facts.review_parts(cluster).await;
                facts.ask_parts(cluster).await;
            }
            Stage::Leaving => {}
        }
        Ok(facts)
    }

    async fn read_lists(&mut self, cluster: &crate::Cluster) {
        let (first, more) = match self.stage {
            Stage::Before => (&List::BEFORE[..], &[][..]),
            Stage::Running => (&List::BEFORE[..], &List::RUNNING[..]),
            Stage::Leaving => (&List::LEAVING[..], &[][..]),
        };
        let reads = first.iter().chain(more).map(|list| async move {
            let path = list.path(cluster.mesh_namespace());
            (*list, cluster.list(&path, list.form(), |object| trim(*list, object)).await)
        });
        let mut reads = futures::stream::iter(reads).buffered(READ_AT_ONCE);
        while let Some((list, read)) = reads.next().await {
            match read {
                Ok(objects) => self.add(list, objects),
                // A cluster without the kind has no object of it.
                Err(ClusterError::Absent(_)) => self.add(list, Vec::new()),
                Err(error) => self.unknown.push((list.name().to_owned(), error_chain(&error))),
            }
        }
    }

    async fn read_versions(&mut self, cluster: &crate::Cluster) {
        let groups = match self.stage {
            Stage::Before | Stage::Running => &[SECURITY, NETWORKING][..],
            Stage::Leaving => &[SECURITY],
        };
        for group in groups {
            match outdated(cluster, group).await {
                Ok(outdated) => self.outdated.extend(outdated),
                // A cluster without the group has no object of it.
                Err(ClusterError::Absent(_)) => {}
                Err(error) => {
                    self.unknown.push((format!("versions of {group}"), error_chain(&error)))
                }
            }
        }
    }

    async fn read_cilium(&mut self, cluster: &crate::Cluster) {
        let agents = self.known(List::DaemonSets).iter();
        let Some(agent) = agents.into_iter().find(|it| crate::json::name(it) == "cilium") else {
            return;
        };
        let namespace = crate::json::namespace(agent);
        let path = format!("/api/v1/namespaces/{namespace}/configmaps/cilium-config");
        match cluster.read(&path).await {
            Ok(config) => self.cilium = Some(config),
            Err(error) => {
                self.unknown.push(("configmap cilium-config".to_owned(), error_chain(&error)))
            }
        }
    }

    /// Whether the user may create what the chart holds.
    async fn review_access(&mut self, cluster: &crate::Cluster) {
        let wanted = INSTALLED.map(|(group, resource, here)| {
            let access = Access { account: "", group, resource, verb: "create", allowed: false };
            (access, here)
        });
        self.ask_access(cluster, "your own permissions", &wanted).await;
    }

    /// Whether our parts that are there may do what they have to.
    async fn review_parts(&mut self, cluster: &crate::Cluster) {
        let runs = |list: List, name: &str| {
            self.known(list).iter().any(|it| crate::json::name(it) == name && is_ours(it))
        };
        let accounts = [
            (CONTROL, runs(List::Deployments, CONTROL)),
            (AGENT_ACCOUNT, runs(List::DaemonSets, AGENT)),
        ];
        let is_asked = |account: &str| accounts.contains(&(account, true));
        let of_those = NEEDED.iter().filter(|(account, ..)| is_asked(account));
        let wanted: Vec<(Access, bool)> = of_those
            .map(|&(account, group, resource, verb, here)| {
                (Access { account, group, resource, verb, allowed: false }, here)
            })
            .collect();
        self.ask_access(cluster, "permissions of the parts", &wanted).await;
    }

    async fn ask_access(
        &mut self,
        cluster: &crate::Cluster,
        what: &str,
        wanted: &[(Access, bool)],
    ) {
        let namespace = cluster.mesh_namespace();
        let asked = wanted.iter().map(|(access, here)| async move {
            let &Access { account, group, resource, verb, .. } = access;
            let user = format!("system:serviceaccount:{namespace}:{account}");
            let namespace = if *here { namespace.to_owned() } else { String::new() };
            let right = Right { verb, group, resource, namespace };
            let user = Some(user).filter(|_| !account.is_empty());
            let allowed = cluster.may(user, &right).await?;
            Ok::<_, ClusterError>(Access { allowed, ..access.clone() })
        });
        let mut answers = futures::stream::iter(asked).buffered(ASKED_AT_ONCE);
        while let Some(answer) = answers.next().await {
            match answer {
                Ok(access) => self.access.push(access),
                Err(error) => {
                    self.unknown.push((what.to_owned(), error_chain(&error)));
                    return;
                }
            }
        }
    }

    async fn ask_parts(&mut self, cluster: &crate::Cluster) {
        let status = cluster.status().await;
        self.control = Some(status.map_err(|error| error_chain(&error)));
        let of_mesh = |pod: &&Value| crate::json::namespace(pod) == self.mesh_namespace;
        let pods: Vec<Value> = self.known(List::Pods).iter().filter(of_mesh).cloned().collect();
        let mut asked = proxies(&pods);
        if asked.len() > PROXIES_ASKED_MAX {
            let what = format!("certificates of {} proxies", asked.len() - PROXIES_ASKED_MAX);
            let why = format!("only {PROXIES_ASKED_MAX} are asked; see `ambit get certificates`");
            self.unknown.push((what, why));
            asked.truncate(PROXIES_ASKED_MAX);
        }
        let answers = cluster.ask_each(asked, node_proxy::CERTIFICATES).await.into_iter();
        let held = answers.map(|(node, answer): (_, Result<Listed<_>, _>)| {
            (node, answer.map(|list| list.items).map_err(|error| error_chain(&error)))
        });
        self.certificates = held.collect();
    }
}

/// The definitions of a group that serve other versions than is read, and those versions.
async fn outdated(
    cluster: &crate::Cluster,
    group: &str,
) -> Result<Vec<(String, String)>, ClusterError> {
    let mut served: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let described = cluster.read(&format!("/apis/{group}")).await?;
    for version in items(&described, "/versions").map(|it| text(it, "/version")) {
        let resources = cluster.read(&format!("/apis/{group}/{version}")).await?;
        for resource in items(&resources, "/resources") {
            let definition = format!("{}.{group}", text(resource, "/name"));
            served.entry(definition).or_default().push(version.to_owned());
        }
    }
    let is_outdated = |(definition, versions): &(String, Vec<String>)| {
        DEFINITIONS.contains(&&**definition) && !versions.iter().any(|it| it == VERSION)
    };
    let outdated = served.into_iter().filter(is_outdated);
    Ok(outdated.map(|(definition, versions)| (definition, versions.join(", "))).collect())
}

/// Drops what no rule looks at.
fn trim(list: List, object: &mut Value) {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("managedFields");
        if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
            annotations.remove(LAST_APPLIED);
        }
    }
    match list {
        List::Pods => *object = pod(object),
        List::Nodes => {
            object["status"].as_object_mut().map(|status| status.remove("images"));
        }
        _ => {}
    }
}

/// The fields of a pod that rules read; a cluster may have many thousands of pods.
fn pod(object: &Value) -> Value {
    let metadata = [
        "namespace",
        "name",
        "uid",
        "labels",
        "annotations",
        "ownerReferences",
        "creationTimestamp",
        "deletionTimestamp",
    ];
    let status = ["phase", "startTime", "podIPs", "conditions", "containerStatuses"];
    let mut spec = pick(&object["spec"], &["nodeName", "hostNetwork"]);
    for list in ["containers", "initContainers"] {
        spec[list] = items(object, &format!("/spec/{list}")).map(container).collect();
    }
    json!({
        "metadata": pick(&object["metadata"], &metadata),
        "spec": spec,
        "status": pick(&object["status"], &status),
    })
}

fn container(container: &Value) -> Value {
    let probes = ["livenessProbe", "readinessProbe", "startupProbe"];
    pick(container, &[&["name", "image", "args", "ports"][..], &probes].concat())
}

fn pick(value: &Value, fields: &[&str]) -> Value {
    let field = |name: &&str| Some(((*name).to_owned(), value.get(*name)?.clone()));
    fields.iter().filter_map(field).collect::<serde_json::Map<_, _>>().into()
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;
    use crate::api::playing;
    use crate::findings::findings;

    #[test]
    fn the_chart_brings_every_definition_in_the_version_that_is_read() {
        let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/chart/crds");
        for definition in DEFINITIONS {
            let (plural, group) = definition.split_once('.').expect("a plural and a group");
            let path = format!("{chart}/{group}_{plural}.yaml");
            let text = std::fs::read_to_string(&path).unwrap_or_else(|it| panic!("{path}: {it}"));
            for line in [
                &*format!("  name: {definition}\n"),
                &*format!("  group: {group}\n"),
                &*format!("  - name: {VERSION}\n    served: true\n    storage: true\n"),
                "    subresources: {status: {}}\n",
            ] {
                assert!(text.contains(line), "{path} lacks {line:?}");
            }
        }
    }

    #[tokio::test]
    async fn what_cannot_be_read_is_unknown_and_what_is_not_there_is_empty() {
        fn answer(method: &Method, path: &str) -> (u16, Value) {
            let path = path.split('?').next().unwrap_or_default();
            match (method, path) {
                (&Method::POST, _) => (201, json!({"status": {"allowed": false}})),
                (_, "/version") => (200, json!({"major": "1", "minor": "36"})),
                (_, "/api/v1/pods") => (403, json!({"kind": "Status", "code": 403})),
                (_, "/apis/apps/v1/daemonsets") => {
                    let cilium = json!({"metadata": {"namespace": "net", "name": "cilium"}});
                    (200, json!({"items": [cilium]}))
                }
                (_, "/api/v1/namespaces/net/configmaps/cilium-config") => {
                    (200, json!({"data": {"cni-exclusive": "true"}}))
                }
                (_, "/api/v1/nodes") => (200, json!({"items": []})),
                (_, "/apis/security.istio.io") => {
                    (200, json!({"versions": [{"version": "v1"}, {"version": "v1beta1"}]}))
                }
                (_, "/apis/security.istio.io/v1") => {
                    (200, json!({"resources": [{"name": "authorizationpolicies"}]}))
                }
                (_, "/apis/security.istio.io/v1beta1") => {
                    let names = ["authorizationpolicies", "peerauthentications", "others"];
                    let resources: Vec<Value> =
                        names.iter().map(|it| json!({ "name": it })).collect();
                    (200, json!({ "resources": resources }))
                }
                _ => (404, json!({"kind": "Status", "code": 404})),
            }
        }
        let cluster = playing(answer);
        let facts = Facts::gather(&cluster, Stage::Before).await.unwrap();
        assert_eq!(facts.list(List::Pods), None);
        assert_eq!(facts.list(List::NetworkPolicies), Some(&[][..]));
        assert_eq!(facts.unknown.len(), 1, "{:?}", facts.unknown);
        let outdated = ("peerauthentications.security.istio.io".to_owned(), "v1beta1".to_owned());
        assert_eq!(facts.outdated, [outdated]);
        assert_eq!(facts.access.len(), INSTALLED.len());
        let rules: Vec<_> = findings(&facts).iter().map(|it| it.rule).collect();
        assert_eq!(
            rules,
            ["old-definition", "cilium-exclusive", "permissions", "not-looked-at", "cni-plugin"]
        );

        let facts = Facts::gather(&cluster, Stage::Running).await.unwrap();
        let silent = facts.control.expect("control was asked").expect_err("it is not there");
        assert!(silent.contains("namespaces/istio-system/pods"), "{silent}");
    }

    #[test]
    fn only_what_is_looked_at_is_held() {
        let check = |list: List, mut object: Value, expected: Value| {
            trim(list, &mut object);
            assert_eq!(object, expected);
        };
        check(
            List::Pods,
            json!({"metadata": {"name": "a", "managedFields": [1]}, "status": {"phase": "Running",
                "podIP": "10.0.0.1"}, "spec": {"nodeName": "n1", "volumes": [1], "containers":
                [{"name": "c", "env": [1], "readinessProbe": {"tcpSocket": {"port": 1}}}]}}),
            json!({"metadata": {"name": "a"}, "status": {"phase": "Running"}, "spec":
                {"nodeName": "n1", "initContainers": [], "containers": [{"name": "c",
                "readinessProbe": {"tcpSocket": {"port": 1}}}]}}),
        );
        check(
            List::Nodes,
            json!({"metadata": {"managedFields": [1]}, "status": {"images": [1], "capacity": 1}}),
            json!({"metadata": {}, "status": {"capacity": 1}}),
        );
    }
}
