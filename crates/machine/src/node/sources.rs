//! What a pod's object refers to: ConfigMaps, Secrets, its own fields; and why it cannot be
//! planned.
//!
//! Pure, like the plan. A missing object is an error that names it; the runner retries when the
//! registry changes.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};

use crate::cgroups::Cgroups;
use crate::host_path::HostPath;
use crate::image::{ImageError, ImageMap};
use crate::layout::Layout;
use crate::registry::Mirror;

/// Most volumes of a pod; each is a mount.
pub(super) const VOLUMES_MAX: usize = 100;

/// Why a pod cannot be started from its object.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlanError {
    /// The image means nothing.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// A ConfigMap or Secret is not there.
    #[error("{kind} {name:?} does not exist in its namespace; apply it")]
    NoSource {
        /// ConfigMap or Secret.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// A ConfigMap or Secret has no such key, or its value is no text.
    #[error("{kind} {name:?} has no text under key {key:?}")]
    NoKey {
        /// ConfigMap or Secret.
        kind: &'static str,
        /// Its name.
        name: String,
        /// The key.
        key: String,
    },
    /// A field of the pod that has no value here.
    #[error("{place}: a machine cannot give {source_name}")]
    Field {
        /// The variable or volume.
        place: String,
        /// What it asks for.
        source_name: String,
    },
    /// A claim without its volume.
    #[error("PersistentVolumeClaim {claim:?} has no volume yet; see logs/lab.log of the machine")]
    Unbound {
        /// Which.
        claim: String,
    },
    /// A claim of the name that the pod's own would have.
    #[error(
        "PersistentVolumeClaim {claim:?} was not created for this pod (pod is not owner); delete \
         the claim and the pod"
    )]
    NotOwner {
        /// Which.
        claim: String,
    },
    /// A mount of nothing.
    #[error(
        "container {container:?} mounts volume {volume:?}, which is not in spec.volumes; add it"
    )]
    NoVolume {
        /// Which.
        container: String,
        /// The volume's name.
        volume: String,
    },
    /// A place where nothing can be mounted.
    #[error(
        "container {container:?}: nothing can be mounted at {path:?}; name a place below / and \
         outside of /proc, without \"..\""
    )]
    MountPath {
        /// Which.
        container: String,
        /// As written.
        path: String,
    },
    /// A file of a volume that cannot be one.
    #[error("volume {volume:?}: {path:?} is no path in a volume; write names, without \"..\"")]
    FilePath {
        /// The volume's name.
        volume: String,
        /// As written.
        path: String,
    },
    /// A part of a volume that it cannot have.
    #[error(
        "container {container:?} mounts {path:?} of volume {volume:?}, which has no such part; \
         correct subPath"
    )]
    NoPart {
        /// Which.
        container: String,
        /// The volume's name.
        volume: String,
        /// As written.
        path: PathBuf,
    },
    /// More volumes than a pod may have.
    #[error("the pod has {count} volumes, more than {VOLUMES_MAX}; remove some")]
    Volumes {
        /// How many.
        count: usize,
    },
    /// A size that is none.
    #[error("volume {volume:?}: sizeLimit {size:?} is no size; write it as 64Mi or 1.5Gi")]
    Size {
        /// The volume's name.
        volume: String,
        /// As written.
        size: String,
    },
    /// A path of the host that no pod sees.
    #[error(
        "volume {volume:?}: pods see nothing of {path} on this machine; name a path elsewhere, or \
         allow a directory with --host-path DIR of `ambit up` or `ambit join`"
    )]
    HostPath {
        /// The volume's name.
        volume: String,
        /// As written.
        path: String,
    },
    /// A program of a computer whose user has not chosen it.
    #[error(
        "container {container:?} would run a program of the computer that joined, by its image, \
         command, probes or hooks; import an image there with `ambit join --image`, or allow \
         programs with `ambit join --trust-home`"
    )]
    HostProgram {
        /// Which.
        container: String,
    },
    /// A container that insists on not being root and names no user.
    #[error(
        "container {container:?} has runAsNonRoot, but neither runAsUser nor an image of the store \
         names another user than root"
    )]
    NonRoot {
        /// Which.
        container: String,
    },
}

/// Where a pod will run.
#[derive(Clone, Debug)]
pub(crate) struct Place<'a> {
    /// The machine's state directory.
    pub(crate) layout: &'a Layout,
    /// The node.
    pub(crate) node: &'a str,
    /// The node's addresses.
    pub(crate) host_ips: [IpAddr; 2],
    /// The pod's addresses.
    pub(crate) pod_ips: &'a [IpAddr],
    /// What images mean.
    pub(crate) images: &'a ImageMap,
    /// The machine has one user only.
    pub(crate) is_rootless: bool,
    /// Directories of the host that pods may write.
    pub(crate) host_paths: &'a [HostPath],
    /// Pods run no programs of the host, and see of its files only these directories.
    pub(crate) is_confined: bool,
    /// The machine's control groups.
    pub(crate) cgroups: &'a Cgroups,
    /// Of the host.
    pub(crate) memory_bytes: u64,
    /// Of the host.
    pub(crate) processor_count: u64,
}

/// Namespace, name and uid of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodName {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
}

impl PodName {
    /// The names of a Pod object.
    pub(crate) fn of(pod: &Pod) -> Self {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        Self {
            namespace: text(&pod.metadata.namespace),
            name: text(&pod.metadata.name),
            uid: text(&pod.metadata.uid),
        }
    }
}

/// A pod's host name.
pub(super) fn hostname(pod: &Pod) -> String {
    let given = pod.spec.as_ref().and_then(|spec| spec.hostname.clone());
    let mut name = given.or_else(|| pod.metadata.name.clone()).unwrap_or_default();
    // A host name has at most 63 characters, a pod's may have more.
    name.truncate(63);
    name.trim_end_matches(['-', '.']).to_owned()
}

/// A pod, and where what it refers to is found.
pub(super) struct Sources<'a> {
    pub(super) pod: &'a Pod,
    pub(super) place: &'a Place<'a>,
    pub(super) mirror: &'a Mirror,
    pub(super) names: &'a PodName,
}

impl Sources<'_> {
    /// The pod's own directory.
    pub(super) fn directory(&self) -> PathBuf {
        self.place.layout.pod_directory(self.place.node, &self.names.uid)
    }

    /// The value of a field of the pod, as variables and files get it.
    pub(super) fn field(&self, path: &str) -> Option<String> {
        let spec = self.pod.spec.as_ref();
        let joined =
            |ips: &[IpAddr]| ips.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(",");
        let first = |ips: &[IpAddr]| ips.first().map(IpAddr::to_string).unwrap_or_default();
        let metadata = &self.pod.metadata;
        let value = match path {
            "metadata.name" => self.names.name.clone(),
            "metadata.namespace" => self.names.namespace.clone(),
            "metadata.uid" => self.names.uid.clone(),
            "spec.nodeName" => self.place.node.to_owned(),
            "spec.serviceAccountName" => {
                spec.and_then(|spec| spec.service_account_name.clone()).unwrap_or_default()
            }
            "status.podIP" => first(self.place.pod_ips),
            "status.podIPs" => joined(self.place.pod_ips),
            "status.hostIP" => first(&self.place.host_ips),
            "status.hostIPs" => joined(&self.place.host_ips),
            _ => {
                let key =
                    |map: &str| path.strip_prefix(map)?.strip_prefix("['")?.strip_suffix("']");
                let label = key("metadata.labels").map(|key| (&metadata.labels, key));
                let found = label.or_else(|| {
                    key("metadata.annotations").map(|key| (&metadata.annotations, key))
                });
                let (map, key) = found?;
                map.as_ref().and_then(|map| map.get(key)).cloned().unwrap_or_default()
            }
        };
        Some(value)
    }

    /// The texts of a ConfigMap.
    pub(super) fn config_map(
        &self,
        name: &str,
        optional: Option<bool>,
    ) -> Result<BTreeMap<String, String>, PlanError> {
        let map: Option<ConfigMap> = self.source("ConfigMap", "configmaps", name, optional)?;
        Ok(map.and_then(|map| map.data).unwrap_or_default())
    }

    /// The texts of a Secret.
    pub(super) fn secret(
        &self,
        name: &str,
        optional: Option<bool>,
    ) -> Result<BTreeMap<String, String>, PlanError> {
        let secret: Option<Secret> = self.source("Secret", "secrets", name, optional)?;
        let Some(secret) = secret else { return Ok(BTreeMap::new()) };
        let mut content = secret.string_data.unwrap_or_default();
        for (key, value) in secret.data.unwrap_or_default() {
            let no_key =
                || PlanError::NoKey { kind: "Secret", name: name.into(), key: key.clone() };
            let text = String::from_utf8(value.0).map_err(|_| no_key())?;
            content.entry(key).or_insert(text);
        }
        Ok(content)
    }

    /// An object of the pod's namespace that it refers to.
    pub(super) fn source<T: serde::de::DeserializeOwned>(
        &self,
        kind: &'static str,
        plural: &str,
        name: &str,
        optional: Option<bool>,
    ) -> Result<Option<T>, PlanError> {
        let value = self.mirror.object(plural, &self.names.namespace, name);
        match value.and_then(|value| T::deserialize(value).ok()) {
            None if optional != Some(true) => {
                Err(PlanError::NoSource { kind, name: name.to_owned() })
            }
            found => Ok(found),
        }
    }
}
