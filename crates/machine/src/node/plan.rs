//! From a Pod object to what its init needs: commands, environment, files.
//!
//! Pure: objects in, [`PodPlan`] out. A missing object that a pod refers to is an error that names
//! it; the runner retries when the registry changes.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ambit_manifest::gateway::Position;
use ambit_manifest::waypoint::SECRETS;
use ambit_words::labels::{GATEWAY_MANAGED, GATEWAY_NAME};
use ambit_words::names::{ROOTS, TOKENS};
use k8s_openapi::api::core::v1::{
    ConfigMap, Container, EnvVar, EnvVarSource, ObjectFieldSelector, Pod, Probe, Secret,
    SecurityContext,
};

use crate::image::{ImageError, ImageMap, command_line, expand};
use crate::layout::Layout;
use crate::pod::{ContainerPlan, ExecProbe, PodPlan, ProbeTiming, RestartPolicy};
use crate::registry::Mirror;

/// What a container's programs are looked for in; the first is [`crate::image::PROGRAMS`].
const PATH: &str =
    "/run/ambit-programs:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

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
    #[error("env {variable:?}: a machine cannot give {source_name}")]
    Field {
        /// The variable.
        variable: String,
        /// What it asks for.
        source_name: String,
    },
    /// A container that insists on not being root and names no user.
    #[error(
        "container {container:?} has runAsNonRoot and no runAsUser; \
         a machine has no image to take one from"
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

/// The files that a pod sees instead of the host's, by name, with their content.
pub(crate) fn files(pod: &Pod, pod_ips: &[IpAddr]) -> Vec<(&'static str, String)> {
    let names = PodName::of(pod);
    let spec = pod.spec.as_ref();
    let hostname = hostname(pod);
    let subdomain = spec.and_then(|spec| spec.subdomain.as_deref());
    let full = subdomain
        .map(|subdomain| format!("{hostname}.{subdomain}.{}.svc.cluster.local\t", names.namespace));
    let mut hosts = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n".to_owned();
    for ip in pod_ips {
        hosts += &format!("{ip}\t{}{hostname}\n", full.as_deref().unwrap_or_default());
    }
    let dns = crate::addresses::DNS;
    let resolv = format!(
        "search {}.svc.cluster.local svc.cluster.local cluster.local\n\
         nameserver {}\nnameserver {}\noptions ndots:5\n",
        names.namespace, dns.v4, dns.v6
    );
    let mut files = vec![("/etc/hosts", hosts), ("/etc/resolv.conf", resolv)];
    // The name itself is the UTS namespace's; the file is for those who read it, where there is
    // one.
    if Path::new("/etc/hostname").exists() {
        files.push(("/etc/hostname", format!("{hostname}\n")));
    }
    files
}

fn hostname(pod: &Pod) -> String {
    let given = pod.spec.as_ref().and_then(|spec| spec.hostname.clone());
    let mut name = given.or_else(|| pod.metadata.name.clone()).unwrap_or_default();
    // A host name has at most 63 characters, a pod's may have more.
    name.truncate(63);
    name.trim_end_matches(['-', '.']).to_owned()
}

/// Makes the plan of a pod.
pub(crate) fn plan(pod: &Pod, place: &Place<'_>, mirror: &Mirror) -> Result<PodPlan, PlanError> {
    let names = PodName::of(pod);
    let directory = place.layout.pod_directory(place.node, &names.uid);
    let spec = pod.spec.clone().unwrap_or_default();
    let builder = Builder { pod, place, mirror, names: &names };
    let build = |containers: &[Container]| -> Result<Vec<ContainerPlan>, PlanError> {
        containers.iter().map(|container| builder.container(container)).collect()
    };
    let files = files(pod, place.pod_ips)
        .into_iter()
        .map(|(path, _)| (PathBuf::from(path), directory.join(file_name(path))))
        .collect();
    Ok(PodPlan {
        hostname: hostname(pod),
        hidden: place.layout.root().to_owned(),
        files,
        directories: directories(pod, place),
        directory: directory.clone(),
        logs: (place.layout.logs().join("pods"), format!("{}_{}", names.namespace, names.name)),
        restart: match spec.restart_policy.as_deref() {
            Some("Never") => RestartPolicy::Never,
            Some("OnFailure") => RestartPolicy::OnFailure,
            _ => RestartPolicy::Always,
        },
        init_containers: build(spec.init_containers.as_deref().unwrap_or_default())?,
        containers: build(&spec.containers)?,
    })
}

/// The credentials of a Gateway's pod, as far as they are directories.
fn directories(pod: &Pod, place: &Place<'_>) -> Vec<(PathBuf, PathBuf)> {
    if !is_waypoint(pod) {
        return Vec::new();
    }
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let all = place.layout.waypoint_credentials(place.node, uid);
    [TOKENS, ROOTS].map(|name| (Path::new(SECRETS).join(name), all.join(name))).into()
}

/// Whether control gives the pod credentials: it says that it is a Gateway's. Control looks at the
/// Gateway too.
pub(crate) fn is_waypoint(pod: &Pod) -> bool {
    let label = |key| pod.metadata.labels.as_ref().and_then(|labels| labels.get(key));
    label(GATEWAY_MANAGED).is_some_and(|by| Position::of_label(by).is_some())
        && label(GATEWAY_NAME).is_some()
}

/// The name under which the content of a covered file is kept.
pub(crate) fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

struct Builder<'a> {
    pod: &'a Pod,
    place: &'a Place<'a>,
    mirror: &'a Mirror,
    names: &'a PodName,
}

impl Builder<'_> {
    fn container(&self, container: &Container) -> Result<ContainerPlan, PlanError> {
        let environment = self.environment(container)?;
        let expanded = |words: &Option<Vec<String>>| -> Vec<String> {
            let value = |name: &str| environment.get(name).cloned();
            words.iter().flatten().map(|word| expand(word, value)).collect()
        };
        let image = container.image.as_deref().unwrap_or_default();
        let (command, args) = (expanded(&container.command), expanded(&container.args));
        let (user, group) = self.identity(container)?;
        let probe = container.readiness_probe.as_ref();
        Ok(ContainerPlan {
            name: container.name.clone(),
            command: command_line(image, &command, &args, self.place.images)?,
            working_directory: container.working_dir.as_deref().unwrap_or("/").into(),
            user,
            group,
            exec_probe: probe.and_then(exec_probe),
            environment,
        })
    }

    /// User and group, the container's own before the pod's.
    fn identity(&self, container: &Container) -> Result<(u32, u32), PlanError> {
        let own = container.security_context.clone().unwrap_or_default();
        let SecurityContext { run_as_user, run_as_group, run_as_non_root, .. } = own;
        let spec = self.pod.spec.as_ref();
        let pods = spec.and_then(|spec| spec.security_context.clone()).unwrap_or_default();
        let id = |own: Option<i64>, pods: Option<i64>| {
            own.or(pods).and_then(|id| u32::try_from(id).ok()).unwrap_or(0)
        };
        let user = id(run_as_user, pods.run_as_user);
        if user == 0 && run_as_non_root.or(pods.run_as_non_root) == Some(true) {
            return Err(PlanError::NonRoot { container: container.name.clone() });
        }
        Ok((user, id(run_as_group, pods.run_as_group)))
    }

    fn environment(&self, container: &Container) -> Result<BTreeMap<String, String>, PlanError> {
        let mut environment = BTreeMap::from([
            ("PATH".to_owned(), PATH.to_owned()),
            ("HOSTNAME".to_owned(), hostname(self.pod)),
            ("HOME".to_owned(), "/root".to_owned()),
        ]);
        for source in container.env_from.iter().flatten() {
            let prefix = source.prefix.as_deref().unwrap_or_default();
            let content = match (&source.config_map_ref, &source.secret_ref) {
                (Some(map), _) => self.config_map(&map.name, map.optional)?,
                (None, Some(secret)) => self.secret(&secret.name, secret.optional)?,
                (None, None) => BTreeMap::new(),
            };
            environment
                .extend(content.into_iter().map(|(key, value)| (prefix.to_owned() + &key, value)));
        }
        for variable in container.env.iter().flatten() {
            let value = match (&variable.value, &variable.value_from) {
                (Some(text), _) => Some(expand(text, |name| environment.get(name).cloned())),
                (None, Some(source)) => self.value_from(variable, source)?,
                (None, None) => Some(String::new()),
            };
            environment.extend(value.map(|value| (variable.name.clone(), value)));
        }
        Ok(environment)
    }

    fn value_from(
        &self,
        variable: &EnvVar,
        source: &EnvVarSource,
    ) -> Result<Option<String>, PlanError> {
        if let Some(field) = &source.field_ref {
            return self.field(variable, field).map(Some);
        }
        let (kind, name, key, optional, content) = if let Some(map) = &source.config_map_key_ref {
            let content = self.config_map(&map.name, map.optional)?;
            ("ConfigMap", &map.name, &map.key, map.optional, content)
        } else if let Some(secret) = &source.secret_key_ref {
            let content = self.secret(&secret.name, secret.optional)?;
            ("Secret", &secret.name, &secret.key, secret.optional, content)
        } else {
            let source_name = "the value of resourceFieldRef or fileKeyRef".to_owned();
            return Err(PlanError::Field { variable: variable.name.clone(), source_name });
        };
        match content.get(key) {
            None if optional != Some(true) => {
                Err(PlanError::NoKey { kind, name: name.clone(), key: key.clone() })
            }
            value => Ok(value.cloned()),
        }
    }

    fn field(&self, variable: &EnvVar, field: &ObjectFieldSelector) -> Result<String, PlanError> {
        let path = field.field_path.as_str();
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
                let Some((map, key)) = found else {
                    let (variable, source_name) = (variable.name.clone(), path.to_owned());
                    return Err(PlanError::Field { variable, source_name });
                };
                map.as_ref().and_then(|map| map.get(key)).cloned().unwrap_or_default()
            }
        };
        Ok(value)
    }

    fn config_map(
        &self,
        name: &str,
        optional: Option<bool>,
    ) -> Result<BTreeMap<String, String>, PlanError> {
        let map: Option<ConfigMap> = self.source("ConfigMap", "configmaps", name, optional)?;
        Ok(map.and_then(|map| map.data).unwrap_or_default())
    }

    fn secret(
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

    fn source<T: serde::de::DeserializeOwned>(
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

fn exec_probe(probe: &Probe) -> Option<ExecProbe> {
    let command = probe.exec.as_ref()?.command.clone().unwrap_or_default();
    Some(ExecProbe { command, timing: timing(probe) })
}

/// A probe's timing with Kubernetes' defaults.
pub(crate) fn timing(probe: &Probe) -> ProbeTiming {
    let or = |value: Option<i32>, default: u32| {
        value.and_then(|value| u32::try_from(value).ok()).unwrap_or(default)
    };
    ProbeTiming {
        initial_delay_seconds: or(probe.initial_delay_seconds, 0),
        period_seconds: or(probe.period_seconds, 10),
        timeout_seconds: or(probe.timeout_seconds, 1),
        success_threshold: or(probe.success_threshold, 1),
        failure_threshold: or(probe.failure_threshold, 3),
    }
}
