//! From a pod's volumes and their mounts to what its init and its containers make of them.
//!
//! Pure, like the plan. Kinds of volumes that a machine does not have are left out, with their
//! mounts; admission names them in a warning.

use std::path::{Component, Path, PathBuf};

use ambit_manifest::{Kind, quantity};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{
    ConfigMap, ConfigMapVolumeSource, Container, DownwardAPIVolumeFile, EmptyDirVolumeSource,
    HostPathVolumeSource, KeyToPath, PersistentVolumeClaim, Pod, Secret, SecretVolumeSource,
    Volume, VolumeMount, VolumeProjection,
};

use super::resources;
use super::sources::{PlanError, Sources, VOLUMES_MAX};
use crate::claims::name_of_pod;
use crate::image::expand;
use crate::pod::{
    FilePlan, MountPlan, NOT_SHOWN, VolumeContent, VolumePlan, Writable, volume_place,
};

/// Room in an empty volume that does not say, unless its share of the memory is less.
const EMPTY_SIZE_BYTES: u64 = 1 << 30;
/// The least that an empty volume gets, however little memory there is.
const EMPTY_SIZE_MIN_BYTES: u64 = 1 << 20;
/// Of files whose volume does not say.
const FILE_MODE: u32 = 0o644;
const MODE_BITS: u32 = 0o777;

/// A key of an object, where it goes, and its mode.
type Item = (String, String, u32);

impl Sources<'_> {
    /// The volumes of the pod.
    pub(super) fn volumes(&self) -> Result<Vec<VolumePlan>, PlanError> {
        let spec = self.pod.spec.as_ref();
        let count = spec.and_then(|spec| spec.volumes.as_ref()).map_or(0, Vec::len);
        if count > VOLUMES_MAX {
            return Err(PlanError::Volumes { count });
        }
        let planned = self.each_volume().into_iter().map(|(_, planned)| planned);
        let mut plans = planned.collect::<Result<Vec<VolumePlan>, PlanError>>()?;
        share_memory(&mut plans, self.place.memory_bytes / 2);
        Ok(plans)
    }

    /// Each volume by its name, planned for itself.
    pub(super) fn each_volume(&self) -> Vec<(&str, Result<VolumePlan, PlanError>)> {
        let spec = self.pod.spec.as_ref();
        let context = spec.and_then(|spec| spec.security_context.as_ref());
        let group = context.and_then(|context| context.fs_group);
        // Where there is one user only, everything is its own.
        let group = group.and_then(|group| u32::try_from(group).ok());
        let group = group.filter(|_| !self.place.is_rootless);
        let volumes = spec.and_then(|spec| spec.volumes.as_ref()).into_iter().flatten();
        let plan = |volume: &Volume| {
            let is_own = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit();
            if volume.name.is_empty() || !volume.name.chars().all(|it| is_own(it) || it == '-') {
                let (volume, path) = (volume.name.clone(), volume.name.clone());
                return Err(PlanError::FilePath { volume, path });
            }
            let content = self.volume_content(volume)?;
            Ok(content.map(|content| VolumePlan { name: volume.name.clone(), group, content }))
        };
        let planned = volumes.map(|volume| (volume.name.as_str(), plan(volume).transpose()));
        planned.filter_map(|(name, planned)| Some((name, planned?))).collect()
    }

    /// `None` for a kind that a machine does not have.
    fn volume_content(&self, volume: &Volume) -> Result<Option<VolumeContent>, PlanError> {
        let name = &volume.name;
        let content = if let Some(empty) = &volume.empty_dir {
            empty_content(name, empty)?
        } else if let Some(map) = &volume.config_map {
            VolumeContent::Files(self.config_map_files(name, map, None)?)
        } else if let Some(secret) = &volume.secret {
            VolumeContent::Files(self.secret_files(name, secret, None)?)
        } else if let Some(downward) = &volume.downward_api {
            let mode = mode(downward.default_mode);
            let items = downward.items.as_deref().unwrap_or_default();
            VolumeContent::Files(self.downward_files(name, items, mode)?)
        } else if let Some(projected) = &volume.projected {
            let mode = mode(projected.default_mode);
            let mut files = Vec::new();
            for source in projected.sources.iter().flatten() {
                files.extend(self.projected_files(name, source, mode)?);
            }
            VolumeContent::Files(files)
        } else if let Some(claim) = &volume.persistent_volume_claim {
            self.claim_content(&claim.claim_name, claim.read_only == Some(true))?
        } else if volume.ephemeral.is_some() {
            self.own_claim_content(name)?
        } else if let Some(host) = &volume.host_path {
            self.host_content(name, host)?
        } else {
            return Ok(None);
        };
        Ok(Some(content))
    }

    fn claim_content(&self, name: &str, is_read_only: bool) -> Result<VolumeContent, PlanError> {
        let claim = self.claim(name)?;
        if claim.status.and_then(|status| status.phase).as_deref() != Some("Bound") {
            return Err(PlanError::Unbound { claim: name.to_owned() });
        }
        let directory = self.place.layout.claim(&claim.metadata.uid.unwrap_or_default());
        Ok(VolumeContent::Claim { directory, is_read_only })
    }

    /// The volume of the claim that the pod has brought along.
    fn own_claim_content(&self, volume: &str) -> Result<VolumeContent, PlanError> {
        let of_pod = &self.pod.metadata;
        let name = name_of_pod(of_pod.name.as_deref().unwrap_or_default(), volume);
        let owners = self.claim(&name)?.metadata.owner_references.unwrap_or_default();
        if owners.iter().all(|it| Some(&it.uid) != of_pod.uid.as_ref()) {
            return Err(PlanError::NotOwner { claim: name });
        }
        self.claim_content(&name, false)
    }

    fn claim(&self, name: &str) -> Result<PersistentVolumeClaim, PlanError> {
        let kind = Kind::PersistentVolumeClaim;
        let claim: Option<PersistentVolumeClaim> =
            self.source(kind.name(), kind.plural(), name, None)?;
        Ok(claim.unwrap_or_default())
    }

    fn projected_files(
        &self,
        volume: &str,
        source: &VolumeProjection,
        mode: u32,
    ) -> Result<Vec<FilePlan>, PlanError> {
        if let Some(map) = &source.config_map {
            let (name, items) = (Some(map.name.clone()), map.items.clone());
            let source = ConfigMapVolumeSource {
                name: name.unwrap_or_default(),
                items,
                optional: map.optional,
                default_mode: None,
            };
            return self.config_map_files(volume, &source, Some(mode));
        }
        if let Some(secret) = &source.secret {
            let source = SecretVolumeSource {
                secret_name: Some(secret.name.clone()),
                items: secret.items.clone(),
                optional: secret.optional,
                default_mode: None,
            };
            return self.secret_files(volume, &source, Some(mode));
        }
        let items = source.downward_api.as_ref().and_then(|downward| downward.items.as_deref());
        self.downward_files(volume, items.unwrap_or_default(), mode)
    }

    fn config_map_files(
        &self,
        volume: &str,
        source: &ConfigMapVolumeSource,
        mode_of_all: Option<u32>,
    ) -> Result<Vec<FilePlan>, PlanError> {
        let name = &source.name;
        let map: Option<ConfigMap> =
            self.source("ConfigMap", "configmaps", name, source.optional)?;
        let Some(map) = map else { return Ok(Vec::new()) };
        let texts = map.data.into_iter().flatten();
        let mut data: Vec<(String, ByteString)> =
            texts.map(|(key, text)| (key, ByteString(text.into_bytes()))).collect();
        data.extend(map.binary_data.into_iter().flatten());
        let mode = mode_of_all.unwrap_or_else(|| mode(source.default_mode));
        let items = items(source.items.as_deref(), mode);
        let object = ("ConfigMap", name.as_str(), source.optional);
        files(volume, object, &data, items, mode)
    }

    fn secret_files(
        &self,
        volume: &str,
        source: &SecretVolumeSource,
        mode_of_all: Option<u32>,
    ) -> Result<Vec<FilePlan>, PlanError> {
        let name = source.secret_name.as_deref().unwrap_or_default();
        let secret: Option<Secret> = self.source("Secret", "secrets", name, source.optional)?;
        let Some(secret) = secret else { return Ok(Vec::new()) };
        let mut content = secret.data.unwrap_or_default();
        let texts = secret.string_data.into_iter().flatten();
        content.extend(texts.map(|(key, text)| (key, ByteString(text.into_bytes()))));
        let data: Vec<(String, ByteString)> = content.into_iter().collect();
        let mode = mode_of_all.unwrap_or_else(|| mode(source.default_mode));
        let items = items(source.items.as_deref(), mode);
        files(volume, ("Secret", name, source.optional), &data, items, mode)
    }

    fn downward_files(
        &self,
        volume: &str,
        items: &[DownwardAPIVolumeFile],
        mode: u32,
    ) -> Result<Vec<FilePlan>, PlanError> {
        let metadata = &self.pod.metadata;
        let file = |item: &DownwardAPIVolumeFile| {
            let unknown = |source_name: &str| PlanError::Field {
                place: format!("volume {volume:?}"),
                source_name: source_name.to_owned(),
            };
            let field = item.field_ref.as_ref().map(|field| field.field_path.as_str());
            let lines = |map: &Option<std::collections::BTreeMap<String, String>>| {
                let line = |(key, value): (&String, &String)| format!("{key}={value:?}\n");
                map.iter().flatten().map(line).collect::<String>()
            };
            let text = match field {
                Some("metadata.labels") => Some(lines(&metadata.labels)),
                Some("metadata.annotations") => Some(lines(&metadata.annotations)),
                Some(path) => self.field(path),
                None => {
                    let resource = item.resource_field_ref.as_ref();
                    resource.and_then(|it| resources::amount(it, None, self.pod, self.place))
                }
            };
            let text = text.ok_or_else(|| unknown(field.unwrap_or("such a resource")))?;
            let mode = item.mode.map_or(mode, |mode| mode as u32 & MODE_BITS);
            Ok(FilePlan {
                path: file_path(volume, &item.path)?,
                mode,
                data: ByteString(text.into_bytes()),
            })
        };
        items.iter().map(file).collect()
    }

    fn host_content(
        &self,
        volume: &str,
        host: &HostPathVolumeSource,
    ) -> Result<VolumeContent, PlanError> {
        let path = Path::new(&host.path);
        let wrong = || PlanError::HostPath { volume: volume.to_owned(), path: host.path.clone() };
        let is_plain =
            |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
        if !path.is_absolute() || !path.components().all(is_plain) {
            return Err(wrong());
        }
        // One without a type need not be there either: container runtimes make it.
        let kind = host.type_.as_deref().unwrap_or_default();
        let is_optional = ["", "DirectoryOrCreate"].contains(&kind);
        let writable = self.place.host_paths.iter().find_map(|directory| {
            let below = directory.below(path)?;
            Some(Writable { directory: directory.clone(), below })
        });
        let is_hidden =
            self.place.is_confined || NOT_SHOWN.iter().any(|hidden| path.starts_with(hidden));
        if writable.is_none() && is_hidden {
            return Err(wrong());
        }
        Ok(VolumeContent::Host { path: path.to_owned(), is_optional, writable })
    }

    /// What a container mounts, outer places before inner ones.
    pub(super) fn mounts(
        &self,
        container: &Container,
        volumes: &[VolumePlan],
        value: impl Fn(&str) -> Option<String>,
    ) -> Result<Vec<MountPlan>, PlanError> {
        let mut plans = Vec::new();
        for mount in container.volume_mounts.iter().flatten() {
            plans.extend(self.mount(&container.name, mount, volumes, &value)?);
        }
        plans.sort_by_key(|plan| plan.target.components().count());
        Ok(plans)
    }

    fn mount(
        &self,
        container: &str,
        mount: &VolumeMount,
        volumes: &[VolumePlan],
        value: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<MountPlan>, PlanError> {
        let declared = self.pod.spec.as_ref().and_then(|spec| spec.volumes.as_ref());
        if !declared.into_iter().flatten().any(|volume| volume.name == mount.name) {
            let (container, volume) = (container.to_owned(), mount.name.clone());
            return Err(PlanError::NoVolume { container, volume });
        }
        let Some(volume) = volumes.iter().find(|volume| volume.name == mount.name) else {
            return Ok(None);
        };
        let target = Path::new("/").join(&mount.mount_path);
        let is_plain = |part| matches!(part, Component::RootDir | Component::Normal(_));
        let is_place = target.components().all(is_plain) && target.parent().is_some();
        if !is_place || target.starts_with("/proc") {
            let (container, path) = (container.to_owned(), mount.mount_path.clone());
            return Err(PlanError::MountPath { container, path });
        }
        let expanded = mount.sub_path_expr.as_ref().map(|text| expand(text, value));
        let sub_path = mount.sub_path.clone().or(expanded).filter(|path| !path.is_empty());
        let sub_path = sub_path.map(|path| sub_path_of(&volume.name, &path)).transpose()?;
        if let (VolumeContent::Files(files), Some(path)) = (&volume.content, &sub_path)
            && !is_part(path, files)
        {
            let (container, volume) = (container.to_owned(), volume.name.clone());
            return Err(PlanError::NoPart { container, volume, path: path.clone() });
        }
        let is_read_only = match &volume.content {
            VolumeContent::Empty { .. } => mount.read_only == Some(true),
            VolumeContent::Files(_) => true,
            VolumeContent::Claim { is_read_only, .. } => {
                *is_read_only || mount.read_only == Some(true)
            }
            VolumeContent::Host { writable, .. } => {
                writable.is_none() || mount.read_only == Some(true)
            }
        };
        let source = volume_place(&self.directory(), &volume.name);
        Ok(Some(MountPlan { source, sub_path, target, is_read_only }))
    }
}

/// Kinds and names of the objects whose files a pod's volumes have.
pub(super) fn objects(pod: &Pod) -> Vec<(&'static str, &str)> {
    let config_map = |name| ("configmaps", name);
    let secret = |name| ("secrets", name);
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_ref());
    let mut found = Vec::new();
    for volume in volumes.into_iter().flatten() {
        found.extend(volume.config_map.as_ref().map(|map| config_map(map.name.as_str())));
        let own = volume.secret.as_ref().and_then(|it| it.secret_name.as_deref());
        found.extend(own.map(secret));
        let projected = volume.projected.as_ref().and_then(|it| it.sources.as_ref());
        for source in projected.into_iter().flatten() {
            found.extend(source.config_map.as_ref().map(|map| config_map(map.name.as_str())));
            found.extend(source.secret.as_ref().map(|it| secret(it.name.as_str())));
        }
    }
    found
}

/// Sees that no empty volume of a pod takes more memory than this. A size is a cap and reserves
/// nothing, so each may have as much; volumes without one share what the sizes leave.
fn share_memory(plans: &mut [VolumePlan], limit_bytes: u64) {
    // A file system in memory of size 0 would have no bound.
    let limit_bytes = limit_bytes.max(EMPTY_SIZE_MIN_BYTES);
    let sizes = plans.iter_mut().filter_map(|plan| match &mut plan.content {
        VolumeContent::Empty { size_bytes } => Some(size_bytes),
        _ => None,
    });
    let (unsized_ones, sizes): (Vec<&mut u64>, Vec<_>) = sizes.partition(|size| **size == 0);
    let mut rest = limit_bytes;
    for size in sizes {
        *size = limit_bytes.min(*size);
        rest = rest.saturating_sub(*size);
    }
    let share = rest.checked_div(unsized_ones.len() as u64).unwrap_or_default();
    for size in unsized_ones {
        *size = share.clamp(EMPTY_SIZE_MIN_BYTES, EMPTY_SIZE_BYTES);
    }
}

/// As in Kubernetes, a limit of 0 is none; here it is the same as one that is not written.
fn empty_content(volume: &str, empty: &EmptyDirVolumeSource) -> Result<VolumeContent, PlanError> {
    let written = empty.size_limit.as_ref().map(|limit| {
        quantity(&limit.0, 0)
            .ok_or_else(|| PlanError::Size { volume: volume.to_owned(), size: limit.0.clone() })
    });
    let written = written.transpose()?.filter(|size| *size > 0);
    Ok(VolumeContent::Empty { size_bytes: written.unwrap_or(0) })
}

fn mode(default: Option<i32>) -> u32 {
    default.map_or(FILE_MODE, |mode| mode as u32 & MODE_BITS)
}

fn items(items: Option<&[KeyToPath]>, mode: u32) -> Option<Vec<Item>> {
    let item = |item: &KeyToPath| {
        let mode = item.mode.map_or(mode, |mode| mode as u32 & MODE_BITS);
        (item.key.clone(), item.path.clone(), mode)
    };
    items.filter(|items| !items.is_empty()).map(|items| items.iter().map(item).collect())
}

/// The files of an object: those that `items` name, or all.
fn files(
    volume: &str,
    (kind, name, optional): (&'static str, &str, Option<bool>),
    data: &[(String, ByteString)],
    items: Option<Vec<Item>>,
    mode: u32,
) -> Result<Vec<FilePlan>, PlanError> {
    let all = || data.iter().map(|(key, _)| (key.clone(), key.clone(), mode)).collect();
    let mut files = Vec::new();
    for (key, path, mode) in items.unwrap_or_else(all) {
        match data.iter().find(|(known, _)| *known == key) {
            Some((_, data)) => {
                let path = file_path(volume, &path)?;
                files.push(FilePlan { path, mode, data: data.clone() });
            }
            None if optional == Some(true) => {}
            None => return Err(PlanError::NoKey { kind, name: name.to_owned(), key }),
        }
    }
    Ok(files)
}

/// The path of a file in a volume. Names that begin with two dots are the volume's own.
fn file_path(volume: &str, path: &str) -> Result<PathBuf, PlanError> {
    if path.starts_with("..") {
        return Err(PlanError::FilePath { volume: volume.to_owned(), path: path.to_owned() });
    }
    sub_path_of(volume, path)
}

/// Whether this can be a part of a volume of these files. As in Kubernetes, one that is not there
/// is an empty directory, but names that begin with two dots are the volume's own, and a file has
/// nothing below it.
fn is_part(path: &Path, files: &[FilePlan]) -> bool {
    let is_own = path.as_os_str().as_encoded_bytes().starts_with(b"..");
    let is_below = |file: &FilePlan| file.path != path && path.starts_with(&file.path);
    !is_own && !files.iter().any(is_below)
}

/// A path below a volume's directory.
fn sub_path_of(volume: &str, path: &str) -> Result<PathBuf, PlanError> {
    let is_name = |part: Component<'_>| matches!(part, Component::Normal(_));
    let read = Path::new(path);
    if path.is_empty() || !read.components().all(is_name) {
        return Err(PlanError::FilePath { volume: volume.to_owned(), path: path.to_owned() });
    }
    Ok(read.to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::{Value, json};

    use super::*;
    use crate::cgroups::Cgroups;
    use crate::host_path::HostPath;
    use crate::image::ImageMap;
    use crate::layout::Layout;
    use crate::node::sources::{Place, PodName};
    use crate::registry::Mirror;

    /// The volumes and mounts of a pod's only container, beside a ConfigMap and a Secret.
    fn planned(volumes: Value, mounts: Value) -> Result<(Vec<VolumePlan>, Vec<MountPlan>), String> {
        let state = tempfile::tempdir().unwrap();
        let layout = Layout::new(state.path());
        let objects = [
            ("configmaps", json!({"data": {"a": "1", "b": "2"}, "binaryData": {"c": "AAE="}})),
            ("secrets", json!({"data": {"k": "eA=="}, "stringData": {"k": "y", "l": "z"}})),
        ];
        let mut mirror = Mirror::new(&layout);
        for (plural, object) in objects {
            let path = layout.object(plural, Some("n"), "it");
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, object.to_string()).unwrap();
            mirror.read(&[path]);
        }
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {
                "name": "p", "namespace": "n", "uid": "u", "labels": {"x": "y", "a": "b"},
            },
            "spec": {
                "securityContext": {"fsGroup": 7},
                "volumes": volumes,
                "containers": [{"name": "c", "volumeMounts": mounts}],
            },
        }))
        .unwrap();
        let host_paths = HostPath::all(&["/var/lib".into()]).unwrap();
        let place = Place {
            layout: &Layout::new("/state"),
            node: "node-1",
            host_ips: ["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
            pod_ips: &[],
            images: &ImageMap::default(),
            is_rootless: false,
            host_paths: &host_paths,
            is_confined: false,
            cgroups: &Cgroups::default(),
            memory_bytes: 16 << 30,
            processor_count: 4,
        };
        let names = PodName::of(&pod);
        let sources = Sources { pod: &pod, place: &place, mirror: &mirror, names: &names };
        let plan = sources.volumes().and_then(|volumes| {
            let container = &pod.spec.as_ref().unwrap().containers[0];
            let value = |name: &str| (name == "NAME").then(|| "value".to_owned());
            let mounts = sources.mounts(container, &volumes, value)?;
            Ok((volumes, mounts))
        });
        plan.map_err(|error| error.to_string())
    }

    /// The files of a pod's only volume, as `path mode content`.
    fn files_of(volume: Value) -> Result<Vec<String>, String> {
        let mut named = json!({"name": "v"});
        named.as_object_mut().unwrap().extend(volume.as_object().unwrap().clone());
        let (volumes, _) = planned(json!([named]), json!([]))?;
        let VolumeContent::Files(files) = &volumes[0].content else { panic!("no files") };
        let file = |file: &FilePlan| {
            let text = String::from_utf8_lossy(&file.data.0).into_owned();
            format!("{} {:o} {text}", file.path.display(), file.mode)
        };
        Ok(files.iter().map(file).collect())
    }

    #[test]
    fn volumes_have_the_files_of_their_objects() {
        let check = |volume: Value, expected: &[&str]| {
            assert_eq!(files_of(volume).unwrap(), expected);
        };
        check(json!({"configMap": {"name": "it"}}), &["a 644 1", "b 644 2", "c 644 \0\u{1}"]);
        let items = json!([{"key": "a", "path": "d/e", "mode": 0o600}, {"key": "b", "path": "f"}]);
        let map = json!({"name": "it", "items": items, "defaultMode": 0o400});
        check(json!({"configMap": map}), &["d/e 600 1", "f 400 2"]);
        check(json!({"secret": {"secretName": "it"}}), &["k 644 y", "l 644 z"]);
        check(json!({"configMap": {"name": "none", "optional": true}}), &[]);
        let item =
            |path: &str, field: &str| json!({"path": path, "fieldRef": {"fieldPath": field}});
        let items = [item("labels", "metadata.labels"), item("name", "metadata.name")];
        let resource = json!({"resource": "limits.memory", "containerName": "c", "divisor": "1Gi"});
        let items = [&items[0], &items[1], &json!({"path": "r", "resourceFieldRef": resource})];
        let expected = ["labels 644 a=\"b\"\nx=\"y\"\n", "name 644 p", "r 644 16"];
        check(json!({"downwardAPI": {"items": items}}), &expected);
        let sources = json!([
            {"configMap": {"name": "it", "items": [{"key": "a", "path": "a"}]}},
            {"serviceAccountToken": {"path": "token"}},
            {"secret": {"name": "it", "items": [{"key": "l", "path": "l"}]}},
            {"downwardAPI": {"items": [item("uid", "metadata.uid")]}},
        ]);
        let projected = json!({"projected": {"defaultMode": 0o440, "sources": sources}});
        check(projected, &["a 440 1", "l 440 z", "uid 440 u"]);
    }

    #[test]
    fn wrong_volumes_are_refused_with_a_remedy() {
        let check = |volume: Value, part: &str| {
            let error = files_of(volume).unwrap_err();
            assert!(error.contains(part), "{error}");
        };
        let claim = json!({"persistentVolumeClaim": {"claimName": "none"}});
        check(claim, "PersistentVolumeClaim \"none\" does not exist");
        let own = json!({"ephemeral": {"volumeClaimTemplate": {"spec": {}}}});
        check(own, "PersistentVolumeClaim \"p-v\" does not exist");
        check(json!({"configMap": {"name": "none"}}), "ConfigMap \"none\" does not exist");
        let map = |key: &str, path: &str| {
            let items = json!([{"key": key, "path": path}]);
            json!({"configMap": {"name": "it", "items": items}})
        };
        check(map("x", "x"), "no text under key \"x\"");
        for path in ["../x", "a/../../x", "/x", "..data", ""] {
            check(map("a", path), "is no path in a volume");
        }
        check(json!({"emptyDir": {"sizeLimit": "1Zi"}}), "is no size; write it as 64Mi");
        check(json!({"hostPath": {"path": "/run/docker.sock"}}), "--host-path DIR");
        check(json!({"hostPath": {"path": "/tmp/tmux-0"}}), "pods see nothing of /tmp/tmux-0");
        check(json!({"hostPath": {"path": "/a/../etc"}}), "pods see nothing of /a/../etc");
        let resource = json!({"resource": "limits.cpu", "containerName": "none"});
        let field = json!({"items": [{"path": "a", "resourceFieldRef": resource}]});
        check(json!({"downwardAPI": field}), "volume \"v\": a machine cannot give");
        check(json!({"name": "../v", "emptyDir": {}}), "is no path in a volume");
    }

    #[test]
    fn mounts_come_outer_first_and_say_who_writes() {
        let volumes = json!([
            {"name": "map", "configMap": {"name": "it"}},
            {"name": "empty", "emptyDir": {"sizeLimit": "1Mi"}},
            {"name": "host", "hostPath": {"path": "/srv/ro"}},
            {"name": "rw", "hostPath": {"path": "/var/lib/x", "type": "DirectoryOrCreate"}},
            {"name": "nfs", "nfs": {"server": "a", "path": "/"}},
        ]);
        let mounts = json!([
            {"name": "map", "mountPath": "/a/b/c", "subPath": "a"},
            {"name": "empty", "mountPath": "/a/b", "subPathExpr": "x/$(NAME)"},
            {"name": "host", "mountPath": "/h"},
            {"name": "rw", "mountPath": "/rw"},
            {"name": "empty", "mountPath": "/ro", "readOnly": true},
            {"name": "nfs", "mountPath": "/nfs"},
        ]);
        let (volumes, mounts) = planned(volumes, mounts).unwrap();
        let names: Vec<&str> = volumes.iter().map(|volume| volume.name.as_str()).collect();
        assert_eq!(names, ["map", "empty", "host", "rw"], "a machine has no other servers");
        assert_eq!(volumes[1].content, VolumeContent::Empty { size_bytes: 1 << 20 });
        assert!(volumes.iter().all(|volume| volume.group == Some(7)));
        let shown = |mount: &MountPlan| {
            let part = mount.sub_path.as_deref().unwrap_or(Path::new("")).display();
            format!("{} {part} {}", mount.target.display(), mount.is_read_only)
        };
        let shown: Vec<String> = mounts.iter().map(shown).collect();
        let expected =
            ["/h  true", "/rw  false", "/ro  true", "/a/b x/value false", "/a/b/c a true"];
        assert_eq!(shown, expected);
        assert_eq!(mounts[0].source, Path::new("/state/nodes/node-1/pods/u/volumes/host"));
    }

    #[test]
    fn wrong_mounts_are_refused() {
        let volumes = || json!([{"name": "v", "emptyDir": {}}]);
        let check = |mount: Value, part: &str| {
            let error = planned(volumes(), json!([mount])).unwrap_err();
            assert!(error.contains(part), "{error}");
        };
        check(json!({"name": "w", "mountPath": "/w"}), "mounts volume \"w\", which is not in");
        for path in ["/", "/a/../..", "/proc", "/proc/sys"] {
            check(json!({"name": "v", "mountPath": path}), "nothing can be mounted at");
        }
        check(json!({"name": "v", "mountPath": "/v", "subPath": "../x"}), "is no path in a volume");
    }

    #[test]
    fn a_part_of_a_volume_of_files_is_a_file_or_directory() {
        let items = json!([{"key": "a", "path": "d/e"}, {"key": "b", "path": "f"}]);
        let volumes = json!([{"name": "v", "configMap": {"name": "it", "items": items}}]);
        let planned = |part: &str| {
            let mount = json!({"name": "v", "mountPath": "/v", "subPath": part});
            planned(volumes.clone(), json!([mount])).map(|(_, mounts)| mounts.len())
        };
        for part in ["d", "d/e", "f", "none", "d/none", "fe"] {
            assert_eq!(planned(part), Ok(1), "{part}");
        }
        for part in ["f/x", "..1", "..data", "..data/f"] {
            assert!(planned(part).unwrap_err().contains("has no such part"), "{part}");
        }
    }

    #[test]
    fn volumes_are_bounded() {
        let many = |count: usize, volume: fn(usize) -> Value| {
            let all: Vec<Value> = (0..count).map(volume).collect();
            planned(json!(all), json!([])).map(|(volumes, _)| volumes)
        };
        let small = |number| json!({"name": format!("v{number}"), "emptyDir": {"sizeLimit": "1k"}});
        assert_eq!(many(100, small).map(|volumes| volumes.len()), Ok(100));
        assert!(many(101, small).unwrap_err().contains("101 volumes"));
        let large =
            |number| json!({"name": format!("v{number}"), "emptyDir": {"sizeLimit": "9Gi"}});
        let half = VolumeContent::Empty { size_bytes: 8 << 30 };
        assert!(many(2, large).unwrap().iter().all(|volume| volume.content == half));
    }

    #[test]
    fn volumes_without_a_size_share_the_memory() {
        let check = |limit: u64, written: &[u64], expected: &[u64]| {
            let plan = |size: &u64| VolumePlan {
                name: "v".to_owned(),
                group: None,
                content: VolumeContent::Empty { size_bytes: *size },
            };
            let mut plans: Vec<VolumePlan> = written.iter().map(plan).collect();
            share_memory(&mut plans, limit);
            let wanted: Vec<VolumePlan> = expected.iter().map(plan).collect();
            assert_eq!(plans, wanted, "{limit} {written:?}");
        };
        let (mib, gib) = (1 << 20, 1 << 30);
        check(8 * gib, &[0, 0], &[gib, gib]);
        check(gib, &[0, 0], &[gib / 2, gib / 2]);
        check(gib, &[gib / 2, 0], &[gib / 2, gib / 2]);
        check(gib, &[gib], &[gib]);
        check(gib, &[gib, 0], &[gib, mib]);
        check(gib, &[gib, 1], &[gib, 1]);
        check(gib, &[2 * gib, gib], &[gib, gib]);
        check(gib, &[u64::MAX, u64::MAX, 0], &[gib, gib, mib]);
        check(2 * mib, &[0, 0, 0], &[mib, mib, mib]);
        check(0, &[gib, 0], &[mib, mib]);
        check(0, &[], &[]);
    }

    #[test]
    fn the_objects_of_volumes_are_known() {
        let sources = json!([
            {"configMap": {"name": "b"}}, {"secret": {"name": "c"}}, {"downwardAPI": {}},
        ]);
        let volumes = json!([
            {"name": "1", "configMap": {"name": "a"}},
            {"name": "2", "projected": {"sources": sources}},
            {"name": "3", "emptyDir": {}},
            {"name": "4", "secret": {"secretName": "d"}},
        ]);
        let pod = json!({"metadata": {}, "spec": {"containers": [], "volumes": volumes}});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let expected =
            [("configmaps", "a"), ("configmaps", "b"), ("secrets", "c"), ("secrets", "d")];
        assert_eq!(objects(&pod), expected);
    }
}
