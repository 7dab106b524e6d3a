//! Admission: checks an applied object against the others and completes it as an API server would.
//!
//! The command line has already checked each object alone; here are the checks that need the whole
//! machine: references, addresses, immutable fields. An error names the object and the remedy, and
//! ends the apply.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ambit_kubeapi::forget_defaults;
use ambit_manifest::gateway::{Gateway, GatewayClass};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::{
    ConfigMap, Namespace, Node, PersistentVolumeClaim, Pod, Secret, Service, ServiceAccount,
};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use serde_json::{Value, json};

use super::host_programs::HostPrograms;
use super::pod_fields::Limited;
use super::store::{Draft, MANAGED_FIELDS, Settled, Store};
use super::without_effect::{fields_without_effect, warnings};
use super::{Change, Changes, Kind, ObjectRef, Outcome, StoreError, families};
use crate::addresses;
use crate::image::{ImageError, ImageMap, command_line};
use crate::node_labels::NodeLabels;
use crate::record::RecordError;

/// Most objects that one apply may name.
const APPLY_OBJECTS_MAX: usize = 100_000;

/// Highest number of a user or group, as in Kubernetes.
const USER_MAX: u64 = i32::MAX as u64;
/// Fields of a pod's spec whose empty name means none.
const NAMES: [&str; 3] = ["nodeName", "serviceAccount", "serviceAccountName"];
/// Fields of a security context that are such numbers, or lists of them.
const USER_FIELDS: [&str; 4] = ["runAsUser", "runAsGroup", "fsGroup", "supplementalGroups"];

/// Why nothing was applied, or deleted.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// Somebody else was faster.
    #[error("{object} has been changed meanwhile; read it again")]
    Conflict {
        /// Which.
        object: ObjectRef,
    },
    /// A manifest that cannot be merged into the object that is there.
    #[error("{object}")]
    Merge {
        /// Which; boxed, so that errors stay small.
        object: Box<ObjectRef>,
        /// Why not.
        source: ambit_kubeapi::MergeError,
    },
    /// What a manifest and others have made of an object together cannot be.
    #[error(
        "{object}: {field}: {what}; {remedy}, in the manifest or in what others have set and the \
         manifest does not name"
    )]
    Mixed {
        /// Which; boxed, so that errors stay small.
        object: Box<ObjectRef>,
        /// Where.
        field: String,
        /// What is wrong.
        what: String,
        /// What to do.
        remedy: String,
    },
    /// Not an object of a kind that a machine keeps.
    #[error("{api_version:?} {kind:?} is no kind that a machine keeps")]
    Kind {
        /// As written.
        api_version: String,
        /// As written.
        kind: String,
    },
    /// `metadata.name` is missing.
    #[error("a {kind} without metadata.name; give it one")]
    Name {
        /// Its kind.
        kind: &'static str,
    },
    /// A name that cannot be one.
    #[error("{kind} {name:?}: a name is at most 253 of a-z, 0-9, '-' and '.', as in DNS")]
    BadName {
        /// Its kind.
        kind: &'static str,
        /// As written, of the object or its namespace.
        name: String,
    },
    /// An object that is not of its kind's shape.
    #[error(
        "{object} is not of the shape of its kind; compare it with the Kubernetes API reference"
    )]
    Shape {
        /// Which.
        object: ObjectRef,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// Two documents mean the same object.
    #[error("{object} is given twice; remove one")]
    Twice {
        /// Which.
        object: ObjectRef,
    },
    /// More objects than one apply may name.
    #[error("{count} objects at once, at most {APPLY_OBJECTS_MAX} are taken; split the input")]
    TooMany {
        /// How many.
        count: usize,
    },
    /// Nodes are not deleted.
    #[error(
        "{object} is the machine's own and stays; choose the number of nodes with `ambit up \
         --nodes`, and take labels and taints back by a Node manifest without them"
    )]
    Node {
        /// Which.
        object: ObjectRef,
    },
    /// Namespaces that stay, as in Kubernetes.
    #[error("{object} always exists and stays; leave it out, and delete what is in it")]
    LastingNamespace {
        /// Which.
        object: ObjectRef,
    },
    /// The machine has no such node.
    #[error(
        "{object} is none of the machine's nodes, which are node-1, node-2 and so on; name one of \
         them, and choose their number with `ambit up --nodes`"
    )]
    NoNode {
        /// Which.
        object: ObjectRef,
    },
    /// Something that the object refers to is not there.
    #[error("{object}: {field} names {missing}, which does not exist; apply it first or together")]
    Missing {
        /// Which.
        object: ObjectRef,
        /// Where.
        field: &'static str,
        /// What is not there.
        missing: Box<ObjectRef>,
    },
    /// The object, or its namespace, is still going away.
    #[error("{object} is still being deleted; wait until it is gone, then apply again")]
    Terminating {
        /// Which.
        object: ObjectRef,
    },
    /// A field that may not change was changed.
    #[error("{object}: {field} cannot change on a live object; delete it first, then apply again")]
    Immutable {
        /// Which.
        object: ObjectRef,
        /// Where.
        field: &'static str,
    },
    /// A service address that is not available.
    #[error("{object}: address {address} is {problem}; leave spec.clusterIP out to be given one")]
    Address {
        /// Which.
        object: ObjectRef,
        /// As written.
        address: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// There is no service address left.
    #[error("{object}: no service address is left; delete services that are not needed")]
    AddressesExhausted {
        /// Which.
        object: ObjectRef,
    },
    /// A service that is only a name.
    #[error(
        "{object}: type ExternalName is not supported, the mesh has no address for its \
         traffic; use a ServiceEntry"
    )]
    ExternalName {
        /// Which.
        object: ObjectRef,
    },
    /// A container whose image means nothing.
    #[error("{object}: container {container:?}")]
    Image {
        /// Which.
        object: ObjectRef,
        /// Its container.
        container: String,
        /// Why.
        source: Box<ImageError>,
    },
    /// A container that wants to be another user where there is only one.
    #[error(
        "{object}: container {container:?} has runAsUser or runAsGroup {id}, but without root a \
         machine has one user only; run `ambit up` as root or leave it out"
    )]
    User {
        /// Which.
        object: ObjectRef,
        /// Its container.
        container: String,
        /// The user or group.
        id: u64,
    },
    /// A user or group that cannot be one.
    #[error(
        "{object}: securityContext has {field} {id}; the number of a user or group is 0 to \
         {USER_MAX}"
    )]
    UserNumber {
        /// Which.
        object: ObjectRef,
        /// Where.
        field: &'static str,
        /// As written.
        id: Value,
    },
    /// A field that means what a machine cannot do.
    #[error("{object}: {field}: {what}; {remedy}")]
    Refused {
        /// Which; boxed, so that errors stay small.
        object: Box<ObjectRef>,
        /// Where.
        field: String,
        /// Why not.
        what: &'static str,
        /// What to do instead.
        remedy: &'static str,
    },
    /// A name from which the names of pods cannot be made.
    #[error("{object}: its pods add to its name, which may have {most} characters; shorten it")]
    LongName {
        /// Which.
        object: ObjectRef,
        /// How many it may have.
        most: usize,
    },
    /// An object without a number of replicas.
    #[error("{object} has no replicas; name a Deployment or a StatefulSet")]
    Unscalable {
        /// Which.
        object: ObjectRef,
    },
    /// An object whose pods are not replaced.
    #[error("{object} has no pods to restart; name a Deployment, a StatefulSet or a DaemonSet")]
    Unrestartable {
        /// Which.
        object: ObjectRef,
    },
    /// It is in no time zone that is known.
    #[error("{object}: spec.timeZone: {problem}; write a name such as Europe/Berlin")]
    TimeZone {
        /// Which.
        object: ObjectRef,
        /// What is wrong.
        problem: String,
    },
    /// It is never due.
    #[error("{object}: spec.schedule {written:?}: {problem}; write it as `*/5 * * * *`")]
    Schedule {
        /// Which; boxed, so that errors stay small.
        object: Box<ObjectRef>,
        /// As it is written.
        written: String,
        /// What is wrong.
        problem: String,
    },
    /// An object that would not find its own pods.
    #[error("{object}: spec.selector.matchLabels does not match spec.template.metadata.labels")]
    Selector {
        /// Which.
        object: ObjectRef,
    },
    /// An object that was to be deleted, scaled or restarted is not there.
    #[error("{object} does not exist")]
    Absent {
        /// Which.
        object: ObjectRef,
    },
    /// The change could not be made durable.
    #[error("the change was not made")]
    Store(#[from] StoreError),
    /// What images mean could not be written down.
    #[error("the change was not made")]
    Record(#[from] RecordError),
}

/// What admission must know of the machine besides its objects.
#[derive(Clone, Debug)]
pub(crate) struct Admission {
    /// What images mean.
    pub(crate) images: ImageMap,
    /// Only one user exists.
    pub(crate) rootless: bool,
    /// Labels of nodes that the machine was started with.
    pub(crate) node_labels: NodeLabels,
    /// Which limits of containers hold.
    pub(crate) limited: Limited,
}

impl Store {
    /// Stores a list of objects: all of them, or none and an error.
    pub(crate) fn apply(
        &mut self,
        objects: Vec<Value>,
        admission: &Admission,
        now: &str,
    ) -> Result<Changes, ApplyError> {
        let (settled, changes) = self.draft_apply(objects, admission, now)?;
        self.commit(settled)?;
        Ok(changes)
    }

    /// The same without the commit: what would change.
    pub(crate) fn draft_apply(
        &self,
        objects: Vec<Value>,
        admission: &Admission,
        now: &str,
    ) -> Result<(Settled, Changes), ApplyError> {
        let named = name_all(objects)?;
        let order: Vec<ObjectRef> = named.iter().map(|(_, object, _)| object.clone()).collect();
        let mut by_rank: Vec<_> = named;
        by_rank.sort_by_key(|(kind, ..)| kind.rank());
        let mut draft = self.draft();
        let mut outcomes = BTreeMap::new();
        let mut ineffective: BTreeMap<String, Vec<ObjectRef>> = BTreeMap::new();
        let mut host_programs = HostPrograms::default();
        for (kind, object, value) in by_rank {
            for field in fields_without_effect(kind, &value, admission.limited) {
                ineffective.entry(field).or_default().push(object.clone());
            }
            host_programs.note(&object, &value, &admission.images);
            let outcome = draft.admit(kind, &object, value, admission, now)?;
            outcomes.insert(object, outcome);
        }
        let changes =
            order.into_iter().map(|object| Change { outcome: outcomes[&object], object }).collect();
        let warnings = warnings(ineffective).chain(host_programs.warnings()).collect();
        Ok((draft.settle(), Changes { changes, warnings }))
    }
}

/// Names the objects, each once.
pub(super) fn name_all(objects: Vec<Value>) -> Result<Vec<(Kind, ObjectRef, Value)>, ApplyError> {
    if objects.len() > APPLY_OBJECTS_MAX {
        return Err(ApplyError::TooMany { count: objects.len() });
    }
    let mut seen = BTreeSet::new();
    let mut named = Vec::with_capacity(objects.len());
    for value in objects {
        let text = |pointer| value.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let (api_version, kind) = (text("/apiVersion"), text("/kind"));
        let kind = Kind::of_manifest(api_version, kind).ok_or_else(|| ApplyError::Kind {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
        })?;
        let namespace = Some(text("/metadata/namespace")).filter(|text| !text.is_empty());
        let name = Some(text("/metadata/name")).filter(|text| !text.is_empty());
        let name = name.ok_or(ApplyError::Name { kind: kind.name() })?;
        if let Some(name) = [Some(name), namespace].into_iter().flatten().find(|n| !is_dns_name(n))
        {
            return Err(ApplyError::BadName { kind: kind.name(), name: name.to_owned() });
        }
        let object = ObjectRef::new(kind, Some(namespace.unwrap_or("default")), name);
        if !seen.insert(object.clone()) {
            return Err(ApplyError::Twice { object });
        }
        named.push((kind, object, value));
    }
    Ok(named)
}

/// Whether a name may be one; names become file names.
fn is_dns_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
    name.len() <= 253 && name.chars().all(allowed) && !name.starts_with('.')
}

/// Decodes what the machine itself reads, so that everything after it may rely on the shape.
pub(super) fn check_shape(kind: Kind, object: &ObjectRef, value: &Value) -> Result<(), ApplyError> {
    let decoded = match kind.name() {
        "Namespace" => Namespace::deserialize(value).map(drop),
        "Node" => Node::deserialize(value).map(drop),
        "ServiceAccount" => ServiceAccount::deserialize(value).map(drop),
        "ConfigMap" => ConfigMap::deserialize(value).map(drop),
        "Secret" => Secret::deserialize(value).map(drop),
        "Service" => Service::deserialize(value).map(drop),
        "Pod" => Pod::deserialize(value).map(drop),
        "Deployment" => Deployment::deserialize(value).map(drop),
        "StatefulSet" => StatefulSet::deserialize(value).map(drop),
        "DaemonSet" => DaemonSet::deserialize(value).map(drop),
        "Job" => Job::deserialize(value).map(drop),
        "CronJob" => CronJob::deserialize(value).map(drop),
        "PersistentVolumeClaim" => PersistentVolumeClaim::deserialize(value).map(drop),
        "PodDisruptionBudget" => PodDisruptionBudget::deserialize(value).map(drop),
        "HorizontalPodAutoscaler" => HorizontalPodAutoscaler::deserialize(value).map(drop),
        "Gateway" => Gateway::deserialize(value).map(drop),
        "GatewayClass" => GatewayClass::deserialize(value).map(drop),
        _ => ObjectMeta::deserialize(&value["metadata"]).map(drop),
    };
    decoded.map_err(|source| ApplyError::Shape { object: object.clone(), source })
}

impl Draft<'_> {
    fn admit(
        &mut self,
        kind: Kind,
        object: &ObjectRef,
        mut value: Value,
        admission: &Admission,
        now: &str,
    ) -> Result<Outcome, ApplyError> {
        check_shape(kind, object, &value)?;
        self.require_namespace(object)?;
        value["metadata"]["name"] = json!(object.name);
        if let Some(namespace) = &object.namespace {
            value["metadata"]["namespace"] = json!(namespace);
        }
        let old = self.object(object).cloned();
        if old.as_ref().is_some_and(is_terminating) {
            return Err(ApplyError::Terminating { object: object.clone() });
        }
        if let Some(old) = &old {
            // Whoever got the object from the API has seen defaults that it does not have.
            forget_defaults(kind.api_versions()[0], kind.plural(), &mut value, old);
        }
        match kind.name() {
            "Node" => {
                Self::refuse(kind, object, &value)?;
                self.admit_node(object, &mut value, admission, now)?;
            }
            "Namespace" => default_to(&mut value, "/status", json!({"phase": "Active"})),
            "Service" => self.admit_service(object, &mut value, old.as_ref())?,
            "Pod" => {
                Self::refuse(kind, object, &value)?;
                self.admit_pod_spec(object, &mut value["spec"], admission)?;
                keep_pod(object, &mut value, old.as_ref())?;
            }
            _ if kind.has_pod_template() => {
                self.admit_workload(kind, object, &mut value, old.as_ref(), admission)?;
            }
            "CronJob" => self.admit_cron_job(object, &mut value, old.as_ref(), admission)?,
            "HorizontalPodAutoscaler" => {
                Self::admit_autoscaler(object, &mut value, old.as_ref())?;
            }
            "PersistentVolumeClaim" => Self::admit_claim(object, &mut value, old.as_ref())?,
            "Gateway" | "ListenerSet" | "PodDisruptionBudget" => {
                keep_status(&mut value, old.as_ref());
            }
            _ => {}
        }
        if let Some(old) = &old
            && same(old, &value)
        {
            return Ok(Outcome::Unchanged);
        }
        self.put(object.clone(), value, now);
        if kind.name() == "Namespace" && old.is_none() {
            self.create_default_account(&object.name, now);
        }
        Ok(if old.is_some() { Outcome::Configured } else { Outcome::Created })
    }

    fn require_namespace(&self, object: &ObjectRef) -> Result<(), ApplyError> {
        let Some(namespace) = &object.namespace else { return Ok(()) };
        let missing =
            ObjectRef { plural: "namespaces".to_owned(), namespace: None, name: namespace.clone() };
        match self.object(&missing) {
            Some(value) if is_terminating(value) => {
                Err(ApplyError::Terminating { object: missing })
            }
            Some(_) => Ok(()),
            None => {
                let object = object.clone();
                let missing = Box::new(missing);
                Err(ApplyError::Missing { object, field: "metadata.namespace", missing })
            }
        }
    }

    /// Every namespace has a ServiceAccount `default`.
    fn create_default_account(&mut self, namespace: &str, now: &str) {
        if self.contains("serviceaccounts", Some(namespace), "default") {
            return;
        }
        let kind = Kind::ServiceAccount;
        let value = json!({
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": "default", "namespace": namespace},
        });
        self.put(ObjectRef::new(kind, Some(namespace), "default"), value, now);
    }

    pub(super) fn admit_pod_spec(
        &self,
        object: &ObjectRef,
        spec: &mut Value,
        admission: &Admission,
    ) -> Result<(), ApplyError> {
        if let Some(spec) = spec.as_object_mut() {
            spec.retain(|field, value| !NAMES.contains(&&**field) || value != "");
        }
        default_to(spec, "/serviceAccountName", json!("default"));
        default_to(spec, "/restartPolicy", json!("Always"));
        default_to(spec, "/terminationGracePeriodSeconds", json!(30));
        let account = spec["serviceAccountName"].as_str().unwrap_or_default();
        if !self.contains("serviceaccounts", object.namespace.as_deref(), account) {
            let kind = Kind::ServiceAccount;
            return Err(ApplyError::Missing {
                object: object.clone(),
                field: "spec.serviceAccountName",
                missing: Box::new(ObjectRef::new(kind, object.namespace.as_deref(), account)),
            });
        }
        let pod_context = spec.get("securityContext").cloned().unwrap_or_default();
        check_users(object, &pod_context)?;
        for list in ["initContainers", "containers"] {
            let containers = spec.get_mut(list).and_then(Value::as_array_mut);
            for container in containers.into_iter().flatten() {
                check_container(object, container, &pod_context, admission)?;
                default_protocols(container);
            }
        }
        Ok(())
    }

    fn admit_service(
        &self,
        object: &ObjectRef,
        value: &mut Value,
        old: Option<&Value>,
    ) -> Result<(), ApplyError> {
        let spec = &mut value["spec"];
        if spec.get("type").and_then(Value::as_str) == Some("ExternalName") {
            return Err(ApplyError::ExternalName { object: object.clone() });
        }
        default_to(spec, "/type", json!("ClusterIP"));
        default_to(spec, "/sessionAffinity", json!("None"));
        default_to(spec, "/internalTrafficPolicy", json!("Cluster"));
        for port in spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
            default_to(port, "/protocol", json!("TCP"));
            let number = port.get("port").cloned().unwrap_or_default();
            default_to(port, "/targetPort", number);
        }
        self.assign_node_ports(object, spec, old)?;
        let families = families::of_service(spec, old).map_err(|(what, remedy)| {
            let (object, field) = (Box::new(object.clone()), "spec.ipFamilies".to_owned());
            ApplyError::Refused { object, field, what, remedy }
        })?;
        let headless = spec.get("clusterIP").and_then(Value::as_str) == Some("None");
        if headless {
            spec["clusterIPs"] = json!(["None"]);
            spec["ipFamilies"] = json!(families);
            return Ok(());
        }
        let number = self.service_number(object, spec, old)?;
        let addresses: Vec<IpAddr> = addresses::service(number)
            .both()
            .into_iter()
            .filter(|address| families.contains(&family(address)))
            .collect();
        spec["clusterIP"] = json!(addresses.first());
        spec["clusterIPs"] = json!(addresses);
        spec["ipFamilies"] = json!(addresses.iter().map(family).collect::<Vec<_>>());
        let policy = if addresses.len() == 2 { "PreferDualStack" } else { "SingleStack" };
        default_to(spec, "/ipFamilyPolicy", json!(policy));
        Ok(())
    }

    /// The number of a service's addresses: the one asked for, the one it has, or a free one.
    fn service_number(
        &self,
        object: &ObjectRef,
        spec: &Value,
        old: Option<&Value>,
    ) -> Result<u16, ApplyError> {
        let had = old.and_then(number_of_service);
        let taken: BTreeSet<u16> = self
            .iter()
            .filter(|(other, _)| other.plural == "services" && *other != object)
            .filter_map(|(_, value)| number_of_service(value))
            .collect();
        if let Some(asked) =
            spec.get("clusterIP").and_then(Value::as_str).filter(|ip| !ip.is_empty())
        {
            let wrong = |problem| ApplyError::Address {
                object: object.clone(),
                address: asked.to_owned(),
                problem,
            };
            let number = asked.parse().ok().and_then(addresses::service_number);
            let number = number.ok_or_else(|| wrong("not in 10.96.0.0/16 or fd00:10:96::/112"))?;
            return match had {
                Some(had) if had != number => {
                    Err(ApplyError::Immutable { object: object.clone(), field: "spec.clusterIP" })
                }
                _ if taken.contains(&number) => Err(wrong("taken by another service")),
                _ => Ok(number),
            };
        }
        had.or_else(|| addresses::service_numbers().find(|number| !taken.contains(number)))
            .ok_or_else(|| ApplyError::AddressesExhausted { object: object.clone() })
    }
}

/// Where `restart` writes when it happened, as `kubectl rollout restart` does.
pub(crate) const RESTARTED_AT_ANNOTATION: &str = "kubectl.kubernetes.io/restartedAt";

/// Whether the object is going away.
pub(crate) fn is_terminating(value: &Value) -> bool {
    value.pointer("/metadata/deletionTimestamp").is_some()
}

/// Whether an object names this uid among its owners.
pub(crate) fn is_owned_by(value: &Value, uid: &str) -> bool {
    let owners = value.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    owners.is_some_and(|owners| owners.iter().any(|reference| reference["uid"] == uid))
}

fn number_of_service(value: &Value) -> Option<u16> {
    let address = value.pointer("/spec/clusterIP")?.as_str()?.parse().ok()?;
    addresses::service_number(address)
}

fn family(address: &IpAddr) -> &'static str {
    if address.is_ipv4() { "IPv4" } else { "IPv6" }
}

fn check_container(
    object: &ObjectRef,
    container: &Value,
    pod_context: &Value,
    admission: &Admission,
) -> Result<(), ApplyError> {
    let name = container.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    let words = |field| -> Vec<String> {
        let list = container.get(field).and_then(Value::as_array);
        list.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let image = container.get("image").and_then(Value::as_str).unwrap_or_default();
    let unusable = |source| ApplyError::Image {
        object: object.clone(),
        container: name.clone(),
        source: Box::new(source),
    };
    command_line(image, &words("command"), &words("args"), &admission.images).map_err(unusable)?;
    let own_context = container.get("securityContext").unwrap_or(&Value::Null);
    check_users(object, own_context)?;
    for field in ["runAsUser", "runAsGroup"] {
        let id = own_context.get(field).or_else(|| pod_context.get(field)).and_then(Value::as_u64);
        if let Some(id) = id.filter(|id| *id != 0 && admission.rootless) {
            let (object, container) = (object.clone(), name.clone());
            return Err(ApplyError::User { object, container, id });
        }
    }
    // What is set is 0 here.
    let has = |field| [own_context, pod_context].iter().any(|it| it.get(field).is_some());
    let stored = admission.images.stored(image).filter(|_| admission.rootless);
    let user = stored.filter(|_| !has("runAsUser")).map(|stored| (stored.uid, stored.gid));
    match user.map(|(uid, gid)| (uid, if has("runAsGroup") { 0 } else { gid })) {
        None | Some((0, 0)) => Ok(()),
        Some((uid, gid)) => Err(unusable(ImageError::User { image: image.to_owned(), uid, gid })),
    }
}

/// Refuses numbers of users and groups that mean something else, or nothing, to the kernel.
fn check_users(object: &ObjectRef, context: &Value) -> Result<(), ApplyError> {
    for field in USER_FIELDS {
        let value = context.get(field).filter(|value| !value.is_null());
        let list = value.and_then(Value::as_array);
        let ids = list.into_iter().flatten().chain(value.filter(|value| !value.is_array()));
        for id in ids {
            if id.as_u64().is_none_or(|id| id > USER_MAX) {
                let (object, id) = (object.clone(), id.clone());
                return Err(ApplyError::UserNumber { object, field, id });
            }
        }
    }
    Ok(())
}

fn default_protocols(container: &mut Value) {
    for port in container.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        default_to(port, "/protocol", json!("TCP"));
    }
}

/// Keeps what the machine itself wrote into a pod, and refuses a change of the rest of its spec.
fn keep_pod(object: &ObjectRef, value: &mut Value, old: Option<&Value>) -> Result<(), ApplyError> {
    let Some(old) = old else {
        default_to(value, "/status", json!({"phase": "Pending"}));
        return Ok(());
    };
    if let Some(node) = old.pointer("/spec/nodeName") {
        default_to(&mut value["spec"], "/nodeName", node.clone());
    }
    if let Some(status) = old.get("status") {
        value["status"] = status.clone();
    }
    if let Some(owners) = old.pointer("/metadata/ownerReferences") {
        value["metadata"]["ownerReferences"] = owners.clone();
    }
    if old.get("spec") != value.get("spec") {
        return Err(ApplyError::Immutable { object: object.clone(), field: "spec of a Pod" });
    }
    Ok(())
}

/// The status is the controllers' to change.
pub(super) fn keep_status(value: &mut Value, old: Option<&Value>) {
    match (old.and_then(|old| old.get("status")), value.as_object_mut()) {
        (Some(status), _) => value["status"] = status.clone(),
        (None, Some(object)) => drop(object.remove("status")),
        (None, None) => {}
    }
}

/// Sets the field at `pointer` (an existing parent's) unless it has a value.
pub(super) fn default_to(value: &mut Value, pointer: &str, default: Value) {
    let mut at = value;
    for field in pointer.split('/').skip(1) {
        at = &mut at[field];
    }
    if at.is_null() {
        *at = default;
    }
}

/// Whether two objects say the same, apart from what [`Draft::put`] writes.
fn same(old: &Value, new: &Value) -> bool {
    // Who does not say whose the fields are leaves that as it is.
    let says_owners = new.pointer("/metadata/managedFields").is_some();
    let said = |value: &Value| {
        let mut value = value.clone();
        if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
            for field in ["uid", "creationTimestamp", "generation", "resourceVersion"] {
                metadata.remove(field);
            }
            if !says_owners {
                metadata.remove(MANAGED_FIELDS);
            }
        }
        if let Some(object) = value.as_object_mut() {
            object.remove("status");
        }
        value
    };
    said(old) == said(new)
}
