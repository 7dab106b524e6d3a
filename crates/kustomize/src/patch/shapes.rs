//! Which lists of Kubernetes' objects are merged element by element, and by which fields.
//!
//! This is what the OpenAPI document that kustomize carries (Kubernetes 1.21) says with
//! `x-kubernetes-patch-strategy: merge`, `x-kubernetes-patch-merge-key` and
//! `x-kubernetes-list-map-keys`, reduced to the types that lead to such a list; `autoscaling/v2`,
//! which is younger, is as Kubernetes 1.23 has it. A list that is not here is replaced as a whole,
//! and so is every list of a custom resource.
//!
//! Of a map that Kubernetes marks as atomic, who applies it with server-side apply has all: those
//! that stand alone here are selectors of labels and of nodes, and references to keys and fields.

use std::collections::HashMap;
use std::sync::LazyLock;

/// Types: each field as `name[keys]=type`. Without keys in the brackets, a list of scalars is
/// merged by their values; without brackets, the field is no such list but leads to one. `name!` is
/// a map that is one value for server-side apply. `~name` is a union (`retainKeys`): of a map that
/// a manifest changes, only the fields stay that it names.
const SHAPES: &str = "
CSINode: metadata=ObjectMeta spec=CSINodeSpec
CSINodeSpec: drivers[name]
ComponentStatus: conditions[type] metadata=ObjectMeta
Conditions: conditions[type]
Container: env[name]=EnvVar ports[containerPort,protocol] volumeDevices[devicePath]
    volumeMounts[mountPath]
CronJob: metadata=ObjectMeta spec=CronJobSpec
CronJobSpec: jobTemplate=JobTemplateSpec
EnvVar: valueFrom=EnvVarSource
EnvVarSource: configMapKeyRef! fieldRef! resourceFieldRef! secretKeyRef!
EphemeralContainer: env[name]=EnvVar volumeDevices[devicePath] volumeMounts[mountPath]
EphemeralVolumeSource: volumeClaimTemplate=Object
JobTemplateSpec: metadata=ObjectMeta spec=WorkloadSpec
Node: metadata=ObjectMeta spec=NodeSpec status=NodeStatus
NodeSpec: podCIDRs[]
NodeStatus: addresses[type] conditions[type]
Object: metadata=ObjectMeta
ObjectMeta: finalizers[] ownerReferences[uid]
ObjectWithConditions: metadata=ObjectMeta status=Conditions
Pod: metadata=ObjectMeta spec=PodSpec status=PodStatus
PodSpec: containers[name]=Container ephemeralContainers[name]=EphemeralContainer hostAliases[ip]
    imagePullSecrets[name] initContainers[name]=Container nodeSelector!
    topologySpreadConstraints[topologyKey,whenUnsatisfiable]=Selecting ~volumes[name]=Volume
PodStatus: conditions[type] podIPs[ip]
PodTemplate: metadata=ObjectMeta template=PodTemplateSpec
PodTemplateSpec: metadata=ObjectMeta spec=PodSpec
Selecting: labelSelector! podSelector! selector!
SelectingObject: metadata=ObjectMeta spec=Selecting
SelectingObjectWithConditions: metadata=ObjectMeta spec=Selecting status=Conditions
Service: metadata=ObjectMeta spec=ServiceSpec status=Conditions
ServiceAccount: metadata=ObjectMeta secrets[name]
ServiceSpec: ports[port,protocol] selector!
StatefulSet: metadata=ObjectMeta spec=StatefulSetSpec status=Conditions
StatefulSetSpec: selector! template=PodTemplateSpec volumeClaimTemplates=ObjectWithConditions
Volume: ephemeral=EphemeralVolumeSource
Webhooks: metadata=ObjectMeta webhooks[name]
Workload: metadata=ObjectMeta spec=WorkloadSpec status=Conditions
WorkloadSpec: selector! ~strategy template=PodTemplateSpec
";

/// Kinds: `apiVersion`, type, and the kinds of that type.
const KINDS: &str = "
admissionregistration.k8s.io/v1 Webhooks: MutatingWebhookConfiguration
    ValidatingWebhookConfiguration
admissionregistration.k8s.io/v1beta1 Webhooks: MutatingWebhookConfiguration
    ValidatingWebhookConfiguration
apiextensions.k8s.io/v1 Object: CustomResourceDefinition
apiextensions.k8s.io/v1beta1 Object: CustomResourceDefinition
apiregistration.k8s.io/v1 ObjectWithConditions: APIService
apiregistration.k8s.io/v1beta1 ObjectWithConditions: APIService
apps/v1 Object: ControllerRevision
apps/v1 Workload: DaemonSet Deployment ReplicaSet
apps/v1 StatefulSet: StatefulSet
authentication.k8s.io/v1 Object: TokenRequest TokenReview
authentication.k8s.io/v1beta1 Object: TokenReview
authorization.k8s.io/v1 Object: LocalSubjectAccessReview SelfSubjectAccessReview
    SelfSubjectRulesReview SubjectAccessReview
authorization.k8s.io/v1beta1 Object: LocalSubjectAccessReview SelfSubjectAccessReview
    SelfSubjectRulesReview SubjectAccessReview
autoscaling/v1 Object: HorizontalPodAutoscaler Scale
autoscaling/v2 ObjectWithConditions: HorizontalPodAutoscaler
autoscaling/v2beta1 Object: HorizontalPodAutoscaler
autoscaling/v2beta2 Object: HorizontalPodAutoscaler
batch/v1 CronJob: CronJob
batch/v1 Workload: Job
batch/v1beta1 CronJob: CronJob
certificates.k8s.io/v1 Object: CertificateSigningRequest
certificates.k8s.io/v1beta1 Object: CertificateSigningRequest
coordination.k8s.io/v1 Object: Lease
coordination.k8s.io/v1beta1 Object: Lease
discovery.k8s.io/v1 Object: EndpointSlice
discovery.k8s.io/v1beta1 Object: EndpointSlice
events.k8s.io/v1 Object: Event
events.k8s.io/v1beta1 Object: Event
extensions/v1beta1 Object: Ingress
flowcontrol.apiserver.k8s.io/v1beta1 Object: FlowSchema PriorityLevelConfiguration
networking.k8s.io/v1 Object: Ingress IngressClass
networking.k8s.io/v1 SelectingObject: NetworkPolicy
networking.k8s.io/v1beta1 Object: Ingress IngressClass
node.k8s.io/v1 Object: RuntimeClass
node.k8s.io/v1beta1 Object: RuntimeClass
policy/v1 SelectingObjectWithConditions: PodDisruptionBudget
policy/v1beta1 Object: Eviction PodSecurityPolicy
policy/v1beta1 SelectingObjectWithConditions: PodDisruptionBudget
rbac.authorization.k8s.io/v1 Object: ClusterRole ClusterRoleBinding Role RoleBinding
rbac.authorization.k8s.io/v1beta1 Object: ClusterRole ClusterRoleBinding Role RoleBinding
scheduling.k8s.io/v1 Object: PriorityClass
scheduling.k8s.io/v1beta1 Object: PriorityClass
storage.k8s.io/v1 CSINode: CSINode
storage.k8s.io/v1 Object: CSIDriver StorageClass VolumeAttachment
storage.k8s.io/v1beta1 CSINode: CSINode
storage.k8s.io/v1beta1 Object: CSIDriver CSIStorageCapacity StorageClass VolumeAttachment
v1 ComponentStatus: ComponentStatus
v1 Object: Binding ConfigMap Endpoints Event LimitRange PersistentVolume ResourceQuota Secret
v1 Workload: ReplicationController
v1 ObjectWithConditions: Namespace
v1 SelectingObjectWithConditions: PersistentVolumeClaim
v1 Node: Node
v1 Pod: Pod
v1 PodTemplate: PodTemplate
v1 Service: Service
v1 ServiceAccount: ServiceAccount
";

/// A type; `None` for one that leads to no merged list.
pub(crate) type Shape = Option<&'static str>;

/// What is known of a field.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Field {
    /// The keys of its elements, if it is a list that is merged.
    pub(crate) keys: Option<&'static [&'static str]>,
    /// The type of its value, or of its elements.
    pub(crate) shape: Shape,
    /// Whether it is a map that is one value for server-side apply.
    pub(crate) is_atomic: bool,
    /// Whether it, or each of its elements, is a union: a manifest names all fields that it has.
    pub(crate) is_union: bool,
}

/// What is known of a value of Kubernetes: how its lists are merged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Mergeable(Field);

impl Mergeable {
    /// Nothing is known.
    pub const UNKNOWN: Self =
        Self(Field { keys: None, shape: None, is_atomic: false, is_union: false });

    /// What is known of an object; of kinds of extensions nothing is.
    pub fn of(api_version: &str, kind: &str) -> Self {
        Self(Field { shape: shape_of(api_version, kind), ..Field::default() })
    }

    /// What is known of a field.
    pub fn field(self, name: &str) -> Self {
        Self(field(self.0.shape, name))
    }

    /// What is known of an element of a list.
    pub fn element(self) -> Self {
        Self(Field { shape: self.0.shape, ..Field::default() })
    }

    /// Whether it is a map that is one value: who applies a part of it has all of it.
    pub fn is_atomic(self) -> bool {
        self.0.is_atomic
    }

    /// By which fields elements are told apart, none of scalars; `None` for a list that is replaced
    /// as a whole.
    pub fn keys(self) -> Option<&'static [&'static str]> {
        self.0.keys
    }
}

struct Tables {
    shapes: HashMap<(&'static str, &'static str), Field>,
    kinds: HashMap<(&'static str, &'static str), &'static str>,
}

static TABLES: LazyLock<Tables> = LazyLock::new(|| Tables { shapes: shapes(), kinds: kinds() });

/// The type of a kind.
pub(crate) fn shape_of(api_version: &str, kind: &str) -> Shape {
    TABLES.kinds.get(&(api_version, kind)).copied()
}

/// What is known of a type's field.
pub(crate) fn field(shape: Shape, name: &str) -> Field {
    let known = shape.and_then(|shape| TABLES.shapes.get(&(shape, name)));
    known.copied().unwrap_or_default()
}

/// The entries of a table: a head that ends with a colon, and the words behind it.
fn entries(table: &'static str) -> Vec<(&'static str, Vec<&'static str>)> {
    let mut entries: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in table.lines() {
        let (head, words) = match line.split_once(": ") {
            Some((head, words)) => (Some(head), words),
            None => (None, line),
        };
        entries.extend(head.map(|head| (head, Vec::new())));
        if let Some((_, all)) = entries.last_mut() {
            all.extend(words.split_whitespace());
        }
    }
    entries
}

fn shapes() -> HashMap<(&'static str, &'static str), Field> {
    let mut shapes = HashMap::new();
    for (shape, fields) in entries(SHAPES) {
        for field in fields {
            let (left, of) = field.split_once('=').map_or((field, None), |(l, r)| (l, Some(r)));
            let (name, keys) = match left.strip_suffix(']').and_then(|it| it.split_once('[')) {
                Some((name, keys)) => (name, Some(key_list(keys))),
                None => (left, None),
            };
            let (name, is_atomic) = name.strip_suffix('!').map_or((name, false), |it| (it, true));
            let (name, is_union) = name.strip_prefix('~').map_or((name, false), |it| (it, true));
            shapes.insert((shape, name), Field { keys, shape: of, is_atomic, is_union });
        }
    }
    shapes
}

/// The tables are made once, so that their lists may stay for ever.
fn key_list(keys: &'static str) -> &'static [&'static str] {
    let keys: Vec<&str> = keys.split(',').filter(|key| !key.is_empty()).collect();
    Vec::leak(keys)
}

fn kinds() -> HashMap<(&'static str, &'static str), &'static str> {
    let mut all = HashMap::new();
    for (head, kinds) in entries(KINDS) {
        if let Some((api_version, shape)) = head.split_once(' ') {
            all.extend(kinds.into_iter().map(|kind| ((api_version, kind), shape)));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(api_version: &str, kind: &str, path: &[&str], keys: Option<&[&str]>) {
        let start = Field { shape: shape_of(api_version, kind), ..Field::default() };
        let found = path.iter().fold(start, |at, name| field(at.shape, name));
        assert_eq!(found.keys, keys, "{kind} {path:?}");
    }

    #[test]
    fn lists_are_merged_by_the_keys_of_kubernetes() {
        let pod = ["spec", "template", "spec"];
        let of_pod = |more: &[&'static str]| [&pod[..], more].concat();
        check("apps/v1", "Deployment", &of_pod(&["containers"]), Some(&["name"]));
        check("apps/v1", "Deployment", &of_pod(&["containers", "env"]), Some(&["name"]));
        let ports = of_pod(&["containers", "ports"]);
        check("apps/v1", "Deployment", &ports, Some(&["containerPort", "protocol"]));
        check("apps/v1", "Deployment", &of_pod(&["tolerations"]), None);
        check("v1", "Service", &["spec", "ports"], Some(&["port", "protocol"]));
        check("v1", "Pod", &["metadata", "finalizers"], Some(&[]));
        check("autoscaling/v2", "HorizontalPodAutoscaler", &["spec", "metrics"], None);
        let conditions = ["status", "conditions"];
        check("autoscaling/v2", "HorizontalPodAutoscaler", &conditions, Some(&["type"]));
        check("example.org/v1", "Deployment", &pod, None);
    }

    #[test]
    fn selectors_are_one_value() {
        let check = |api_version: &str, kind: &str, path: &[&str]| {
            let found = path.iter().fold(Mergeable::of(api_version, kind), |at, it| at.field(it));
            assert!(found.is_atomic(), "{kind} {path:?}");
        };
        check("v1", "Service", &["spec", "selector"]);
        check("apps/v1", "Deployment", &["spec", "selector"]);
        check("apps/v1", "StatefulSet", &["spec", "selector"]);
        check("v1", "Pod", &["spec", "nodeSelector"]);
        check("policy/v1", "PodDisruptionBudget", &["spec", "selector"]);
        check("networking.k8s.io/v1", "NetworkPolicy", &["spec", "podSelector"]);
        let labels = Mergeable::of("v1", "Service").field("metadata").field("labels");
        assert!(!labels.is_atomic());
    }

    #[test]
    fn every_type_that_is_named_is_there() {
        let tables = &*TABLES;
        let named = tables.shapes.values().filter_map(|it| it.shape);
        for shape in named.chain(tables.kinds.values().copied()) {
            assert!(tables.shapes.keys().any(|(it, _)| *it == shape), "{shape}");
        }
    }
}
