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
use ambit_words::names::{DEFAULT_CLUSTER_DOMAIN, RESOLV_CONF, ROOTS, TOKENS};
use k8s_openapi::api::core::v1::{
    Container, EnvVar, EnvVarSource, LifecycleHandler, Pod, SecurityContext,
};

use super::probe;
use super::resources;
use super::sources::{Sources, hostname};
use crate::cgroups::{Cgroups, Limits};
use crate::image::{StoredImage, command_line, expand, is_users_choice, own_user};
use crate::join::CarriedWorkload;
use crate::layout::LAYER;
use crate::pod::{
    ContainerPlan, GRACE_SECONDS_MAX, Hook, PodPlan, Probes, ProcessPlan, RestartPolicy, RootPlan,
    UserPlan, VolumePlan,
};
use crate::registry::Mirror;

pub(crate) use super::sources::{Place, PlanError, PodName};

/// Uid and resourceVersion of an object, if it is there.
pub(crate) type Version = Option<(String, String)>;

/// The name itself is the UTS namespace's; the file is for those who read it.
const HOSTNAME: &str = "/etc/hostname";
/// What a container's programs are looked for in; the first is [`crate::image::PROGRAMS`].
const PATH: &str =
    "/run/ambit-programs:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What an image's programs are looked for in, if it does not say.
const IMAGE_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// How long a pod that does not say gets to end.
const GRACE_SECONDS: u64 = 30;
/// What ends a container politely, unless its image says otherwise.
const SIGTERM: i32 = 15;
/// Signals by their names and numbers on all processors that Ambit runs on, as images name them.
const SIGNALS: [(&str, i32); 18] = [
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("ABRT", 6),
    ("KILL", 9),
    ("USR1", 10),
    ("USR2", 12),
    ("PIPE", 13),
    ("ALRM", 14),
    ("TERM", SIGTERM),
    ("CHLD", 17),
    ("CONT", 18),
    ("STOP", 19),
    ("TSTP", 20),
    ("TTIN", 21),
    ("TTOU", 22),
    ("WINCH", 28),
    ("PWR", 30),
];
/// The first of the signals without a meaning, `SIGRTMIN`, and the last.
const REAL_TIME_SIGNALS: (i32, i32) = (34, 64);

/// The files that a pod sees instead of the host's or its image's, by name, with their content.
pub(crate) fn files(
    pod: &Pod,
    pod_ips: &[IpAddr],
    workload: Option<&CarriedWorkload>,
) -> Vec<(&'static str, String)> {
    let names = PodName::of(pod);
    let spec = pod.spec.as_ref();
    let domain = workload.map_or(DEFAULT_CLUSTER_DOMAIN, |it| &it.cluster_domain);
    let hostname = hostname(pod);
    let subdomain = spec.and_then(|spec| spec.subdomain.as_deref());
    let full = subdomain
        .map(|subdomain| format!("{hostname}.{subdomain}.{}.svc.{domain}\t", names.namespace));
    let mut hosts = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n".to_owned();
    // Others know it by that address.
    let own = workload.map(|it| it.address);
    for ip in own.iter().chain(pod_ips) {
        hosts += &format!("{ip}\t{}{hostname}\n", full.as_deref().unwrap_or_default());
    }
    let dns = crate::addresses::DNS;
    let resolv = format!(
        "search {}.svc.{domain} svc.{domain} {domain}\n\
         nameserver {}\nnameserver {}\noptions ndots:5\n",
        names.namespace, dns.v4, dns.v6
    );
    let hostname = format!("{hostname}\n");
    vec![("/etc/hosts", hosts), (RESOLV_CONF, resolv), (HOSTNAME, hostname)]
}

/// Makes the plan of a pod.
pub(crate) fn plan(pod: &Pod, place: &Place<'_>, mirror: &Mirror) -> Result<PodPlan, PlanError> {
    let names = PodName::of(pod);
    let spec = pod.spec.clone().unwrap_or_default();
    let sources = Sources { pod, place, mirror, names: &names };
    let volumes = sources.volumes()?;
    let builder = Builder { sources: &sources, volumes: &volumes };
    let build = |containers: &[Container]| -> Result<Vec<ContainerPlan>, PlanError> {
        containers.iter().map(|container| builder.container(container)).collect()
    };
    let mut containers = build(&spec.containers)?;
    // Only an init container can be one.
    containers.iter_mut().for_each(|container| container.is_sidecar = false);
    let mut init_containers = build(spec.init_containers.as_deref().unwrap_or_default())?;
    // One that is none ends by itself, and has neither probes nor hooks.
    for container in init_containers.iter_mut().filter(|container| !container.is_sidecar) {
        (container.post_start, container.pre_stop) = (None, None);
        container.probes = Probes::default();
    }
    let mut files = builder.files();
    // A host without it has no place for it.
    files.retain(|(path, _)| path != Path::new(HOSTNAME) || path.exists());
    let limits = init_containers.iter().chain(&containers).map(|container| &container.limits);
    Ok(PodPlan {
        cgroups: place.cgroups.of_pod(&names.uid, limits),
        hostname: hostname(pod),
        hidden: place.layout.root().to_owned(),
        files,
        directories: directories(pod, place),
        directory: sources.directory(),
        logs: (place.layout.pod_logs(), format!("{}_{}", names.namespace, names.name)),
        restart: match spec.restart_policy.as_deref() {
            Some("Never") => RestartPolicy::Never,
            Some("OnFailure") => RestartPolicy::OnFailure,
            _ => RestartPolicy::Always,
        },
        grace_seconds: spec
            .termination_grace_period_seconds
            .and_then(|seconds| u64::try_from(seconds).ok())
            .unwrap_or(GRACE_SECONDS)
            .min(GRACE_SECONDS_MAX),
        init_containers,
        containers,
        volumes,
    })
}

/// The volumes alone, as they are now, and why others cannot be planned, by their names.
pub(crate) fn volumes(
    pod: &Pod,
    place: &Place<'_>,
    mirror: &Mirror,
) -> (Vec<VolumePlan>, Vec<(String, PlanError)>) {
    let names = PodName::of(pod);
    let (mut planned, mut failed) = (Vec::new(), Vec::new());
    for (name, plan) in (Sources { pod, place, mirror, names: &names }).each_volume() {
        match plan {
            Ok(plan) => planned.push(plan),
            Err(error) => failed.push((name.to_owned(), error)),
        }
    }
    (planned, failed)
}

/// The versions of the objects that the volumes have files of, in their order. They have the same
/// files as long as these are the same.
pub(crate) fn versions(pod: &Pod, mirror: &Mirror) -> Vec<Version> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let version = |(plural, name): (&str, &str)| {
        let object = mirror.object(plural, namespace, name)?;
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
        Some((text("uid"), text("resourceVersion")))
    };
    super::volumes::objects(pod).into_iter().map(version).collect()
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
    sources: &'a Sources<'a>,
    volumes: &'a [VolumePlan],
}

impl Builder<'_> {
    fn container(&self, container: &Container) -> Result<ContainerPlan, PlanError> {
        let image = container.image.as_deref().unwrap_or_default();
        let stored = self.sources.place.images.stored(image);
        let environment = self.environment(container, stored.is_none())?;
        let expanded = |words: &Option<Vec<String>>| -> Vec<String> {
            let value = |name: &str| environment.get(name).cloned();
            words.iter().flatten().map(|word| expand(word, value)).collect()
        };
        let (command, args) = (expanded(&container.command), expanded(&container.args));
        let signal = stored.and_then(|stored| stored.config.stop_signal.as_deref());
        let lifecycle = container.lifecycle.as_ref();
        let images = self.sources.place.images;
        let line = command_line(image, &command, &args, images)?;
        let post_start = lifecycle.and_then(|it| hook(it.post_start.as_ref()?));
        let pre_stop = lifecycle.and_then(|it| hook(it.pre_stop.as_ref()?));
        let probes = probe::probes(container);
        if self.sources.place.is_confined && stored.is_none() {
            let is_hook = |hook: &Option<Hook>| matches!(hook, Some(Hook::Exec(_)));
            let has_hooks = [&post_start, &pre_stop].into_iter().any(is_hook);
            let is_chosen = is_users_choice(image, &command, &args, images);
            if has_hooks || probes.run_commands() || !is_chosen {
                return Err(PlanError::HostProgram { container: container.name.clone() });
            }
        }
        Ok(ContainerPlan {
            name: container.name.clone(),
            command: line,
            probes,
            is_sidecar: is_sidecar(container),
            post_start,
            pre_stop,
            limits: self.limits(container),
            stop_signal: signal.and_then(signal_number).unwrap_or(SIGTERM),
            process: self.process(container, stored, &environment)?,
            environment: match stored {
                Some(stored) => with_own_variables(environment, stored),
                None => environment,
            },
        })
    }

    fn process(
        &self,
        container: &Container,
        stored: Option<&StoredImage>,
        environment: &BTreeMap<String, String>,
    ) -> Result<ProcessPlan, PlanError> {
        let value = |name: &str| environment.get(name).cloned();
        let own = stored.map(|stored| stored.config.working_dir.as_path());
        let given = container.working_dir.as_deref().filter(|path| !path.is_empty());
        let directory = given.map(Path::new).or(own).unwrap_or(Path::new("/"));
        Ok(ProcessPlan {
            // In an image everything is below its root.
            working_directory: Path::new("/").join(directory),
            user: self.user(container, stored)?,
            groups: self.groups(),
            is_rootless: self.sources.place.is_rootless,
            root: stored.map(|stored| self.root(container, stored)),
            mounts: self.sources.mounts(container, self.volumes, value)?,
        })
    }

    /// The limits that this machine can hold a container to.
    fn limits(&self, container: &Container) -> Limits {
        let Cgroups { cpu, memory } = self.sources.place.cgroups;
        let Limits { cpu_milli, memory_bytes } = Limits::of(container);
        Limits {
            cpu_milli: cpu_milli.filter(|_| cpu.is_some()),
            memory_bytes: memory_bytes.filter(|_| memory.is_some()),
        }
    }

    /// The groups of the pod's volumes and files, where there is more than one.
    fn groups(&self) -> Vec<u32> {
        let spec = self.sources.pod.spec.as_ref();
        let context = spec.and_then(|spec| spec.security_context.as_ref());
        let context = context.filter(|_| !self.sources.place.is_rootless);
        let supplemental = context.and_then(|context| context.supplemental_groups.as_ref());
        let groups = supplemental.into_iter().flatten();
        let all = groups.chain(context.and_then(|context| context.fs_group.as_ref()));
        all.filter_map(|group| u32::try_from(*group).ok()).collect()
    }

    fn root(&self, container: &Container, stored: &StoredImage) -> RootPlan {
        let context = container.security_context.as_ref();
        let mut shown = self.files();
        shown.extend(directories(self.sources.pod, self.sources.place));
        RootPlan {
            image: stored.root.clone(),
            layer: self.sources.directory().join(LAYER),
            shown,
            is_read_only: context.and_then(|it| it.read_only_root_filesystem) == Some(true),
        }
    }

    /// The files of the pod's own: where, and the content's file.
    fn files(&self) -> Vec<(PathBuf, PathBuf)> {
        let directory = self.sources.directory();
        // Their names alone.
        let files = files(self.sources.pod, self.sources.place.pod_ips, None).into_iter();
        files.map(|(path, _)| (PathBuf::from(path), directory.join(file_name(path)))).collect()
    }

    /// Who the container runs as: what itself says, before the pod, before the image.
    fn user(
        &self,
        container: &Container,
        stored: Option<&StoredImage>,
    ) -> Result<UserPlan, PlanError> {
        let own = container.security_context.clone().unwrap_or_default();
        let SecurityContext { run_as_user, run_as_group, run_as_non_root, .. } = own;
        let spec = self.sources.pod.spec.as_ref();
        let pods = spec.and_then(|spec| spec.security_context.clone()).unwrap_or_default();
        let id = |own: Option<i64>, pods: Option<i64>| {
            own.or(pods).and_then(|id| u32::try_from(id).ok())
        };
        let user = id(run_as_user, pods.run_as_user);
        let group = id(run_as_group, pods.run_as_group);
        let is_non_root = run_as_non_root.or(pods.run_as_non_root) == Some(true);
        // Without root there is no other user, so a sample is one only where its manifest insists.
        let of_sample = || own_user(container.image.as_deref()?, self.sources.place.images);
        let user =
            user.or_else(|| if is_non_root && stored.is_none() { of_sample() } else { None });
        let uid = user.or(stored.map(|stored| stored.uid)).unwrap_or(0);
        if uid == 0 && is_non_root {
            return Err(PlanError::NonRoot { container: container.name.clone() });
        }
        let Some(stored) = stored else {
            return Ok(UserPlan::Numbers { user: uid, group: group.unwrap_or(0) });
        };
        Ok(UserPlan::OfImage(match (user, group) {
            (None, None) => stored.config.user.clone(),
            // The image's own group of root may be another.
            (Some(user), None) if self.sources.place.is_rootless => format!("{user}:0"),
            (Some(user), None) => user.to_string(),
            (_, Some(group)) => format!("{uid}:{group}"),
        }))
    }

    /// What the manifest says, and for a command of the host what its programs expect besides.
    fn environment(
        &self,
        container: &Container,
        is_of_host: bool,
    ) -> Result<BTreeMap<String, String>, PlanError> {
        let mut environment = BTreeMap::from([("HOSTNAME".to_owned(), hostname(self.sources.pod))]);
        if is_of_host {
            environment.insert("PATH".to_owned(), PATH.to_owned());
            environment.insert("HOME".to_owned(), "/root".to_owned());
        }
        for source in container.env_from.iter().flatten() {
            let prefix = source.prefix.as_deref().unwrap_or_default();
            let content = match (&source.config_map_ref, &source.secret_ref) {
                (Some(map), _) => self.sources.config_map(&map.name, map.optional)?,
                (None, Some(secret)) => self.sources.secret(&secret.name, secret.optional)?,
                (None, None) => BTreeMap::new(),
            };
            environment
                .extend(content.into_iter().map(|(key, value)| (prefix.to_owned() + &key, value)));
        }
        for variable in container.env.iter().flatten() {
            let value = match (&variable.value, &variable.value_from) {
                (Some(text), _) => Some(expand(text, |name| environment.get(name).cloned())),
                (None, Some(source)) => self.value_from(container, variable, source)?,
                (None, None) => Some(String::new()),
            };
            environment.extend(value.map(|value| (variable.name.clone(), value)));
        }
        Ok(environment)
    }

    fn value_from(
        &self,
        container: &Container,
        variable: &EnvVar,
        source: &EnvVarSource,
    ) -> Result<Option<String>, PlanError> {
        let unknown = |source_name: &str| PlanError::Field {
            place: format!("env {:?}", variable.name),
            source_name: source_name.to_owned(),
        };
        if let Some(field) = &source.field_ref {
            let value = self.sources.field(&field.field_path);
            return value.map(Some).ok_or_else(|| unknown(&field.field_path));
        }
        if let Some(resource) = &source.resource_field_ref {
            let Sources { pod, place, .. } = self.sources;
            let value = resources::amount(resource, Some(container), pod, place);
            return value.map(Some).ok_or_else(|| unknown(&resource.resource));
        }
        let (kind, name, key, optional, content) = if let Some(map) = &source.config_map_key_ref {
            let content = self.sources.config_map(&map.name, map.optional)?;
            ("ConfigMap", &map.name, &map.key, map.optional, content)
        } else if let Some(secret) = &source.secret_key_ref {
            let content = self.sources.secret(&secret.name, secret.optional)?;
            ("Secret", &secret.name, &secret.key, secret.optional, content)
        } else {
            return Err(unknown("the value of fileKeyRef"));
        };
        match content.get(key) {
            None if optional != Some(true) => {
                Err(PlanError::NoKey { kind, name: name.clone(), key: key.clone() })
            }
            value => Ok(value.cloned()),
        }
    }
}

/// What the image says besides. As in Kubernetes, the manifest's variables do not refer to these.
fn with_own_variables(
    mut environment: BTreeMap<String, String>,
    stored: &StoredImage,
) -> BTreeMap<String, String> {
    for (name, value) in &stored.config.env {
        environment.entry(name.clone()).or_insert_with(|| value.clone());
    }
    environment.entry("PATH".to_owned()).or_insert_with(|| IMAGE_PATH.to_owned());
    environment
}

/// The number of a signal as an image names it: `SIGQUIT`, `QUIT`, `SIGRTMIN+3`, `3`.
fn signal_number(text: &str) -> Option<i32> {
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    let (first, last) = REAL_TIME_SIGNALS;
    let real_time = name.strip_prefix("RTMIN").map(|more| match more {
        "" => Some(first),
        more => more.strip_prefix('+')?.parse::<i32>().ok().map(|more| first + more),
    });
    let named = SIGNALS.iter().find(|(known, _)| *known == name).map(|(_, number)| *number);
    let number = real_time.flatten().or(named).or_else(|| name.parse().ok());
    number.filter(|number| (1..=last).contains(number))
}

/// Whether an init container runs beside those that come after it.
pub(crate) fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

fn hook(handler: &LifecycleHandler) -> Option<Hook> {
    let command = handler.exec.as_ref().and_then(|exec| exec.command.clone());
    let sleep = || u64::try_from(handler.sleep.as_ref()?.seconds).ok();
    command.map(Hook::Exec).or_else(|| Some(Hook::Sleep { seconds: sleep()? }))
}

#[cfg(test)]
mod tests {
    use ambit_image::{Digest, ImageConfig};
    use serde_json::{Value, json};

    use super::*;
    use crate::cgroups::Cgroup;
    use crate::image::ImageMap;
    use crate::layout::Layout;

    fn stored() -> StoredImage {
        let text = |text: &str| text.to_owned();
        let config = ImageConfig {
            entrypoint: vec![text("/run")],
            cmd: vec![text("own")],
            env: vec![(text("A"), text("image")), (text("B"), text("$(A)"))],
            user: text("web"),
            working_dir: "srv".into(),
            stop_signal: Some(text("SIGQUIT")),
            ..ImageConfig::default()
        };
        StoredImage { digest: Digest::of(b""), root: "/store/root".into(), config, uid: 7, gid: 8 }
    }

    /// The plan of a pod's only container; `shop/web` is in the store.
    fn planned(spec: Value) -> Result<ContainerPlan, PlanError> {
        planned_for(spec, false)
    }

    fn planned_for(spec: Value, is_confined: bool) -> Result<ContainerPlan, PlanError> {
        let layout = Layout::new("/state");
        let mut images = ImageMap::default();
        images.insert("shop/web".to_owned(), stored());
        images = images.extended(ImageMap::parse(["own=/bin/own"]).unwrap());
        // A host that limits memory alone.
        let memory = Some(Cgroup { directory: "/groups".into(), is_unified: false });
        let cgroups = Cgroups { cpu: None, memory };
        let place = Place {
            layout: &layout,
            node: "node-1",
            host_ips: ["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
            pod_ips: &[],
            images: &images,
            is_rootless: false,
            host_paths: &[],
            is_confined,
            cgroups: &cgroups,
            memory_bytes: 16 << 30,
            processor_count: 4,
        };
        let pod = json!({"metadata": {"name": "a", "namespace": "n", "uid": "u"}, "spec": spec});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        plan(&pod, &place, &Mirror::new(&layout)).map(|mut plan| plan.containers.remove(0))
    }

    fn container(more: Value) -> Value {
        let mut container = json!({"name": "c", "image": "shop/web:1"});
        container.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"containers": [container]})
    }

    #[test]
    fn command_and_args_replace_those_of_an_image() {
        for (more, expected) in [
            (json!({}), "/run own"),
            (json!({"args": ["a"]}), "/run a"),
            (json!({"command": ["b"]}), "b"),
            (json!({"command": ["b"], "args": ["a"]}), "b a"),
        ] {
            assert_eq!(planned(container(more)).unwrap().command.join(" "), expected);
        }
    }

    #[test]
    fn another_user_chooses_no_program_of_the_host() {
        let check = |image: &str, more: Value, is_taken: bool| {
            let mut spec = container(more);
            spec["containers"][0]["image"] = json!(image);
            assert!(planned_for(spec.clone(), false).is_ok(), "{spec}");
            match planned_for(spec.clone(), true) {
                Ok(_) => assert!(is_taken, "{spec}"),
                Err(PlanError::HostProgram { container }) => {
                    assert!(!is_taken && container == "c", "{spec}");
                }
                Err(other) => panic!("{spec}: {other}"),
            }
        };
        let exec = json!({"exec": {"command": ["a"]}});
        let (command, args) = (json!({"command": ["a"]}), json!({"args": ["echo"]}));
        let hook = json!({"args": ["echo"], "lifecycle": {"preStop": exec}});
        let probe = json!({"args": ["echo"], "readinessProbe": exec});
        // What is in the store has a root of its own.
        check("shop/web", command.clone(), true);
        check("shop/web", hook.clone(), true);
        check("shop/web", probe.clone(), true);
        check("ambit/sample", args.clone(), true);
        check("own", args.clone(), true);
        for image in ["ambit/sample", "own"] {
            check(image, command.clone(), false);
            check(image, hook.clone(), false);
            check(image, probe.clone(), false);
        }
        check("busybox", json!({}), false);
        check("busybox", args, false);
        check("curlimages/curl", json!({}), false);
        check("kennethreitz/httpbin", json!({"command": ["gunicorn", "-b", ":80"]}), true);
    }

    #[test]
    fn an_image_says_what_its_manifest_does_not() {
        let env = json!([{"name": "A", "value": "x$(B)"}]);
        let plan = planned(container(json!({"env": env}))).unwrap();
        let variable = |name: &str| plan.environment.get(name).map(String::as_str);
        assert_eq!(variable("A"), Some("x$(B)"), "its variables cannot be referred to");
        assert_eq!(variable("B"), Some("$(A)"), "and refer to nothing");
        assert_eq!((variable("PATH"), variable("HOME")), (Some(IMAGE_PATH), None));
        assert_eq!(plan.stop_signal, 3);
        assert_eq!(plan.process.working_directory, Path::new("/srv"));
        let plan = planned(container(json!({"workingDir": "/w"}))).unwrap();
        assert_eq!(plan.process.working_directory, Path::new("/w"));
        let root = plan.process.root.unwrap();
        assert_eq!(root.image, Path::new("/store/root"));
        let shown: Vec<_> = root.shown.iter().map(|(path, _)| path.to_str().unwrap()).collect();
        assert_eq!(shown, ["/etc/hosts", "/etc/resolv.conf", "/etc/hostname"]);
    }

    #[test]
    fn a_container_has_the_limits_that_the_machine_can_hold() {
        let limits = json!({"limits": {"cpu": "1", "memory": "1Ki"}});
        let plan = planned(container(json!({"resources": limits}))).unwrap();
        assert_eq!(plan.limits, Limits { cpu_milli: None, memory_bytes: Some(1024) });
    }

    #[test]
    fn a_container_runs_as_who_it_says_or_its_image() {
        for (context, expected) in [
            (json!({}), Some("web")),
            (json!({"runAsUser": 9}), Some("9")),
            (json!({"runAsGroup": 8}), Some("7:8")),
            (json!({"runAsUser": 9, "runAsGroup": 8}), Some("9:8")),
            (json!({"runAsNonRoot": true}), Some("web")),
            (json!({"runAsNonRoot": true, "runAsUser": 0}), None),
        ] {
            let plan = planned(container(json!({"securityContext": context})));
            match expected {
                Some(user) => {
                    assert_eq!(plan.unwrap().process.user, UserPlan::OfImage(user.to_owned()));
                }
                None => assert!(matches!(plan, Err(PlanError::NonRoot { .. })), "{plan:?}"),
            }
        }
    }

    #[test]
    fn a_sample_that_must_not_be_root_runs_as_the_user_of_its_image() {
        let check = |image: &str, context: Value, expected: Option<u32>| {
            let more = json!({"image": image, "securityContext": context});
            let user = planned(container(more)).map(|plan| plan.process.user).ok();
            assert_eq!(user, expected.map(|user| UserPlan::Numbers { user, group: 0 }), "{image}");
        };
        let non_root = || json!({"runAsNonRoot": true});
        let prefix = "registry.istio.io/release/examples-bookinfo";
        check(&format!("{prefix}-details-v1:1.20.3"), non_root(), Some(1000));
        check(&format!("{prefix}-reviews-v3:1.20.3"), non_root(), Some(1001));
        check(&format!("{prefix}-reviews-v3:1.20.3"), json!({}), Some(0));
        let other = json!({"runAsNonRoot": true, "runAsUser": 9});
        check(&format!("{prefix}-reviews-v3:1.20.3"), other, Some(9));
        let root = json!({"runAsNonRoot": true, "runAsUser": 0});
        check(&format!("{prefix}-reviews-v3:1.20.3"), root, None);
        check("busybox", non_root(), None);
    }

    #[test]
    fn a_command_of_the_host_gets_what_it_expects() {
        let plan = planned(container(json!({"image": "busybox"}))).unwrap();
        assert_eq!(plan.process.root, None);
        assert_eq!(plan.process.user, UserPlan::Numbers { user: 0, group: 0 });
        assert_eq!(plan.environment.get("PATH").map(String::as_str), Some(PATH));
    }

    #[test]
    fn signals_are_known_by_their_names() {
        for (text, expected) in [
            ("SIGQUIT", Some(3)),
            ("term", Some(15)),
            ("9", Some(9)),
            ("SIGRTMIN+3", Some(37)),
            ("RTMIN", Some(34)),
            ("SIGNONE", None),
            ("0", None),
            ("SIGRTMIN+99", None),
        ] {
            assert_eq!(signal_number(text), expected, "{text}");
        }
    }

    #[test]
    fn hooks_are_commands_or_pauses() {
        let lifecycle = json!({
            "postStart": {"exec": {"command": ["a", "b"]}},
            "preStop": {"sleep": {"seconds": 3}},
        });
        let plan = planned(container(json!({"lifecycle": lifecycle}))).unwrap();
        assert_eq!(plan.post_start, Some(Hook::Exec(vec!["a".to_owned(), "b".to_owned()])));
        assert_eq!(plan.pre_stop, Some(Hook::Sleep { seconds: 3 }));
        let lifecycle = json!({"postStart": {"httpGet": {"port": 80}}});
        let plan = planned(container(json!({"lifecycle": lifecycle}))).unwrap();
        assert_eq!((plan.post_start, plan.pre_stop), (None, None));
    }
}
