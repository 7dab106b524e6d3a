//! What the agent knows of a pod, and the pure decision whether that pod belongs in the mesh.
//!
//! The facts come from the registry and from the CNI plugin; this module reads neither. It never
//! decides what happens to traffic: only which pods are captured, and with which options.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use ambit_words::annotations::{
    BYPASS_INBOUND_CAPTURE, CAPTURE_LACKS, NOT_CAPTURED, OLDER_CONNECTIONS, REDIRECTION,
};
use ambit_words::labels::{AMBIENT, CUT_OPEN_CONNECTIONS, DATAPLANE_MODE, NONE};

use crate::place::Place;

/// Annotation left by the sidecar injector: such a pod has a proxy of its own.
const SIDECAR_ANNOTATION: &str = "sidecar.istio.io/status";
/// Annotation that overrides the agent's `--dns-capture` for one pod.
const DNS_CAPTURE_ANNOTATION: &str = "ambient.istio.io/dns-capture";
/// Annotation of a static pod's object: the uid by which the kubelet and the runtime know the pod.
const STATIC_UID_ANNOTATION: &str = "kubernetes.io/config.hash";

/// The uid that Kubernetes gave a pod; unique for all time, unlike its name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PodUid(Arc<str>);

impl PodUid {
    /// Wraps the text of `metadata.uid`.
    pub(crate) fn new(uid: &str) -> Self {
        Self(uid.into())
    }

    /// The text, as ZDS and the captured file carry it.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PodUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for PodUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Namespace and name; another pod may bear them later.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PodName {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl PodName {
    /// A pod's full name.
    pub(crate) fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for PodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A Pod object, reduced to what enrolment depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PodObject {
    pub(crate) name: PodName,
    pub(crate) uid: PodUid,
    pub(crate) node: Option<String>,
    pub(crate) service_account: String,
    pub(crate) host_network: bool,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) annotations: BTreeMap<String, String>,
}

impl PodObject {
    /// Whether enrolment depends on this label or annotation.
    pub(crate) fn uses(key: &str) -> bool {
        [
            DATAPLANE_MODE,
            SIDECAR_ANNOTATION,
            BYPASS_INBOUND_CAPTURE,
            DNS_CAPTURE_ANNOTATION,
            REDIRECTION,
            CUT_OPEN_CONNECTIONS,
            OLDER_CONNECTIONS,
            CAPTURE_LACKS,
            NOT_CAPTURED,
            STATIC_UID_ANNOTATION,
        ]
        .contains(&key)
    }

    /// Whether it is this pod that the CNI plugin announced, as far as the plugin says.
    pub(crate) fn is_announced_by(&self, new_pod: &NewPod) -> bool {
        let of_object = |uid: &PodUid| {
            let of_static = self.annotations.get(STATIC_UID_ANNOTATION);
            *uid == self.uid || of_static.is_some_and(|of_static| uid.as_str() == of_static)
        };
        new_pod.uid.as_ref().is_none_or(of_object)
    }
}

/// A pod whose sandbox has been made and whose processes wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NewPod {
    pub(crate) name: PodName,
    /// As the container runtime knows it; istio-cni's plugin does not say.
    pub(crate) uid: Option<PodUid>,
    pub(crate) netns: PathBuf,
    pub(crate) ips: Vec<IpAddr>,
}

/// What runs: written by the pod runner, not by the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PodStatus {
    pub(crate) uid: PodUid,
    pub(crate) node: Option<String>,
    /// Whether every container has ended for good.
    pub(crate) terminated: bool,
    pub(crate) ips: Vec<IpAddr>,
    pub(crate) netns: Option<Place>,
}

/// Everything the registry says about pods at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RegistryView {
    pub(crate) pods: BTreeMap<PodName, PodObject>,
    pub(crate) statuses: BTreeMap<PodName, PodStatus>,
    /// Labels of each namespace.
    pub(crate) namespaces: BTreeMap<String, BTreeMap<String, String>>,
}

/// How a pod in the mesh is captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CaptureOptions {
    /// Send DNS queries to the proxy.
    pub(crate) dns: bool,
    /// Capture IPv6 too.
    pub(crate) ipv6: bool,
    /// Leave connections to the pod alone.
    pub(crate) bypass_inbound: bool,
    /// Cut connections that are older than the capture.
    pub(crate) cut_open: bool,
}

/// The agent-wide defaults that a pod's annotations may override.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Defaults {
    pub(crate) dns: bool,
    pub(crate) ipv6: bool,
}

/// Whether a pod belongs in the mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Membership {
    /// In, captured with these options.
    In(CaptureOptions),
    /// Out, for the reason given.
    Out(Exclusion),
}

/// Why a pod is not in the mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Exclusion {
    /// Neither the pod nor its namespace carries the label with the value `ambient`.
    #[error("neither the pod nor its namespace is labelled {DATAPLANE_MODE}={AMBIENT}")]
    NotLabelled,
    /// The pod's own label says `none`.
    #[error("the pod is labelled {DATAPLANE_MODE}={NONE}")]
    OptedOut,
    /// The pod shares the node's network namespace.
    #[error("the pod uses hostNetwork")]
    HostNetwork,
    /// The pod has a sidecar.
    #[error("the pod has a sidecar (annotation {SIDECAR_ANNOTATION})")]
    Sidecar,
}

/// Decides membership: the pod's label wins over the namespace's.
pub(crate) fn membership(
    pod: &PodObject,
    namespace_labels: Option<&BTreeMap<String, String>>,
    defaults: Defaults,
) -> Membership {
    if pod.host_network {
        return Membership::Out(Exclusion::HostNetwork);
    }
    if pod.annotations.contains_key(SIDECAR_ANNOTATION) {
        return Membership::Out(Exclusion::Sidecar);
    }
    let of_namespace = namespace_labels.and_then(|labels| labels.get(DATAPLANE_MODE));
    match pod.labels.get(DATAPLANE_MODE).map(String::as_str) {
        Some(AMBIENT) => {}
        Some(NONE) => return Membership::Out(Exclusion::OptedOut),
        _ if of_namespace.map(String::as_str) == Some(AMBIENT) => {}
        _ => return Membership::Out(Exclusion::NotLabelled),
    }
    Membership::In(CaptureOptions {
        dns: flag(pod, DNS_CAPTURE_ANNOTATION).unwrap_or(defaults.dns),
        ipv6: defaults.ipv6,
        bypass_inbound: flag(pod, BYPASS_INBOUND_CAPTURE).unwrap_or(false),
        cut_open: cuts_open(pod, namespace_labels),
    })
}

/// Whether the pod's label, or else its namespace's, has connections cut that are older.
fn cuts_open(pod: &PodObject, namespace_labels: Option<&BTreeMap<String, String>>) -> bool {
    let of_namespace = || namespace_labels.and_then(|labels| labels.get(CUT_OPEN_CONNECTIONS));
    pod.labels.get(CUT_OPEN_CONNECTIONS).or_else(of_namespace).is_some_and(|it| it == "true")
}

/// A boolean annotation; anything but `true` and `false` counts as absent, as in Istio.
fn flag(pod: &PodObject, annotation: &str) -> Option<bool> {
    pod.annotations.get(annotation).and_then(|value| value.parse().ok())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const DEFAULTS: Defaults = Defaults { dns: true, ipv6: true };

    pub(crate) fn pod(uid: &str) -> PodObject {
        PodObject {
            name: PodName::new("shop", uid),
            uid: PodUid::new(uid),
            node: Some("node-1".into()),
            service_account: "default".into(),
            host_network: false,
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
        }
    }

    fn labels(value: &str) -> BTreeMap<String, String> {
        match value {
            "-" => BTreeMap::new(),
            value => BTreeMap::from([(DATAPLANE_MODE.to_owned(), value.to_owned())]),
        }
    }

    #[test]
    fn the_pods_label_wins_over_the_namespaces() {
        use Exclusion::{NotLabelled, OptedOut};
        let table = [
            ("-", "-", Some(NotLabelled)),
            ("-", "ambient", None),
            ("-", "none", Some(NotLabelled)),
            ("ambient", "-", None),
            ("ambient", "none", None),
            ("none", "ambient", Some(OptedOut)),
            ("none", "-", Some(OptedOut)),
            ("Ambient", "-", Some(NotLabelled)),
            ("sidecar", "ambient", None),
        ];
        for (of_pod, of_namespace, expected) in table {
            let mut pod = pod("a");
            pod.labels = labels(of_pod);
            let got = match membership(&pod, Some(&labels(of_namespace)), DEFAULTS) {
                Membership::In(_) => None,
                Membership::Out(exclusion) => Some(exclusion),
            };
            assert_eq!(got, expected, "pod {of_pod}, namespace {of_namespace}");
        }
    }

    #[test]
    fn host_network_and_sidecars_stay_out_whatever_the_labels_say() {
        let mut host = pod("a");
        host.labels = labels("ambient");
        let mut sidecar = host.clone();
        host.host_network = true;
        sidecar.annotations.insert(SIDECAR_ANNOTATION.into(), "{}".into());
        let out = |pod: &PodObject| membership(pod, None, DEFAULTS);
        assert_eq!(out(&host), Membership::Out(Exclusion::HostNetwork));
        assert_eq!(out(&sidecar), Membership::Out(Exclusion::Sidecar));
    }

    #[test]
    fn annotations_override_the_agents_defaults() {
        let mut pod = pod("a");
        pod.labels = labels("ambient");
        pod.annotations.insert(DNS_CAPTURE_ANNOTATION.into(), "false".into());
        pod.annotations.insert(BYPASS_INBOUND_CAPTURE.into(), "true".into());
        let expected =
            CaptureOptions { dns: false, ipv6: true, bypass_inbound: true, cut_open: false };
        assert_eq!(membership(&pod, None, DEFAULTS), Membership::In(expected));
        pod.annotations.insert(DNS_CAPTURE_ANNOTATION.into(), "perhaps".into());
        pod.annotations.remove(BYPASS_INBOUND_CAPTURE);
        let expected =
            CaptureOptions { dns: true, ipv6: true, bypass_inbound: false, cut_open: false };
        assert_eq!(membership(&pod, None, DEFAULTS), Membership::In(expected));
    }

    #[test]
    fn older_connections_are_cut_where_the_pod_or_its_namespace_asks_for_it() {
        let table = [
            (None, None, false),
            (None, Some("true"), true),
            (None, Some("yes"), false),
            (Some("true"), None, true),
            (Some("false"), Some("true"), false),
        ];
        for (of_pod, of_namespace, expected) in table {
            let label = |value: Option<&str>| -> BTreeMap<String, String> {
                let value = value.map(|it| (CUT_OPEN_CONNECTIONS.to_owned(), it.to_owned()));
                value
                    .into_iter()
                    .chain([(DATAPLANE_MODE.to_owned(), "ambient".to_owned())])
                    .collect()
            };
            let mut pod = pod("a");
            pod.labels = label(of_pod);
            let found = membership(&pod, Some(&label(of_namespace)), DEFAULTS);
            let Membership::In(options) = found else { panic!("in the mesh") };
            assert_eq!(options.cut_open, expected, "{of_pod:?} {of_namespace:?}");
        }
    }
}
