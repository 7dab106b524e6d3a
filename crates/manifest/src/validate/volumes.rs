//! Rules for the volumes of a pod, and for what its containers mount.
//!
//! They are Kubernetes', and those of every runtime: a pod that breaks one waits for ever. What is
//! in a volume, and whether it is there, is for who runs the pod.

use std::path::{Component, Path as FilePath};

use k8s_openapi::api::core::v1::{
    DownwardAPIVolumeFile, KeyToPath, PodSpec, Volume, VolumeMount, VolumeProjection,
};

use super::downward::{self, Target};
use super::names::{self, require};
use crate::finding::{Issues, Path};

/// Checks the volumes of a pod. Its containers' mounts are checked by [`mounts`].
pub(crate) fn volumes(spec: &PodSpec, at: &Path, issues: &mut Issues) {
    for (index, volume) in spec.volumes.iter().flatten().enumerate() {
        let at = at.field("volumes").index(index);
        require(issues, &at.field("name"), names::dns_label, &volume.name);
        files(volume, spec, &at, issues);
    }
}

fn files(volume: &Volume, spec: &PodSpec, at: &Path, issues: &mut Issues) {
    if let Some(map) = &volume.config_map {
        keys(map.items.as_deref(), &at.field("configMap"), issues);
    }
    if let Some(secret) = &volume.secret {
        keys(secret.items.as_deref(), &at.field("secret"), issues);
    }
    if let Some(downward) = &volume.downward_api {
        fields(downward.items.as_deref(), spec, &at.field("downwardAPI"), issues);
    }
    let projected = volume.projected.iter().flat_map(|it| it.sources.iter().flatten());
    for (index, source) in projected.enumerate() {
        sources(source, spec, &at.field("projected").field("sources").index(index), issues);
    }
}

fn sources(source: &VolumeProjection, spec: &PodSpec, at: &Path, issues: &mut Issues) {
    if let Some(map) = &source.config_map {
        keys(map.items.as_deref(), &at.field("configMap"), issues);
    }
    if let Some(secret) = &source.secret {
        keys(secret.items.as_deref(), &at.field("secret"), issues);
    }
    if let Some(downward) = &source.downward_api {
        fields(downward.items.as_deref(), spec, &at.field("downwardAPI"), issues);
    }
}

fn keys(items: Option<&[KeyToPath]>, at: &Path, issues: &mut Issues) {
    let paths = items.into_iter().flatten().map(|it| it.path.as_str());
    paths.enumerate().for_each(|(index, path)| item(path, index, at, issues));
}

fn fields(items: Option<&[DownwardAPIVolumeFile]>, spec: &PodSpec, at: &Path, issues: &mut Issues) {
    for (index, file) in items.into_iter().flatten().enumerate() {
        item(&file.path, index, at, issues);
        let at = at.field("items").index(index);
        match (&file.field_ref, &file.resource_field_ref) {
            (Some(field), None) => downward::field(field, Target::File, &at, issues),
            (None, Some(resource)) => {
                downward::resource(resource, Target::File, spec, &at, issues);
            }
            _ => issues.error(
                &at,
                "a file needs exactly one source",
                "keep one of fieldRef and resourceFieldRef",
            ),
        }
    }
}

fn item(path: &str, index: usize, at: &Path, issues: &mut Issues) {
    inside(path, &at.field("items").index(index).field("path"), issues);
}

/// A path below a volume's root.
fn inside(path: &str, at: &Path, issues: &mut Issues) {
    let is_up = path.split('/').any(|part| part == "..");
    if path.is_empty() || path.starts_with('/') || is_up {
        let what = format!("`{path}` leads out of the volume");
        issues.error(
            at,
            what,
            "write names below the volume, without a first `/` and without `..`",
        );
    }
}

/// Checks what a container mounts.
pub(crate) fn mounts(mounts: Option<&[VolumeMount]>, at: &Path, issues: &mut Issues) {
    for (index, mount) in mounts.into_iter().flatten().enumerate() {
        let at = at.field("volumeMounts").index(index);
        let at_path = at.field("mountPath");
        let path = mount.mount_path.as_str();
        let target = FilePath::new("/").join(path);
        let is_plain = |part| matches!(part, Component::RootDir | Component::Normal(_));
        let is_place = target.components().all(is_plain) && target.parent().is_some();
        if path.contains(':') {
            issues.error(&at_path, format!("`{path}` has a `:`"), "write a path without it");
        } else if !is_place || target.starts_with("/proc") {
            let what = format!("nothing can be mounted at `{path}`");
            issues.error(&at_path, what, "name a place below `/` and outside of /proc");
        }
        if let Some(path) = mount.sub_path.as_deref().filter(|it| !it.is_empty()) {
            inside(path, &at.field("subPath"), issues);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// The fields that are wrong.
    fn wrong(spec: Value) -> Vec<String> {
        let spec: PodSpec = serde_json::from_value(spec).expect("a pod's spec");
        let mut issues = Issues::default();
        volumes(&spec, &Path::at("spec"), &mut issues);
        mounts(spec.containers[0].volume_mounts.as_deref(), &Path::at("c"), &mut issues);
        issues.errors.iter().map(|it| it.path.as_str().to_owned()).collect()
    }

    #[test]
    fn a_volume_has_a_name_and_paths_inside() {
        let check = |volume: Value, expected: &[&str]| {
            let spec = json!({"containers": [{"name": "c"}], "volumes": [volume]});
            assert_eq!(wrong(spec), expected, "{volume}");
        };
        check(json!({"name": "v-1", "emptyDir": {}}), &[]);
        check(json!({"name": "../v", "emptyDir": {}}), &["spec.volumes[0].name"]);
        let items = |path: &str| json!([{"key": "k", "path": path}]);
        check(json!({"name": "v", "configMap": {"name": "m", "items": items("a/..b/c")}}), &[]);
        for path in ["../../x", "/etc", "a/../../b", "..", ""] {
            let of = |field: &str| format!("spec.volumes[0].{field}.items[0].path");
            let map = json!({"name": "m", "items": items(path)});
            check(json!({"name": "v", "configMap": map}), &[&of("configMap")]);
            let secret = json!({"secretName": "m", "items": items(path)});
            check(json!({"name": "v", "secret": secret}), &[&of("secret")]);
            let name = json!({"fieldPath": "metadata.name"});
            let downward = json!({"items": [{"path": path, "fieldRef": name}]});
            check(json!({"name": "v", "downwardAPI": downward}), &[&of("downwardAPI")]);
            let sources = json!([{"configMap": map}, {"downwardAPI": downward}]);
            let projected = json!({"name": "v", "projected": {"sources": sources}});
            let of = ["projected.sources[0].configMap", "projected.sources[1].downwardAPI"].map(of);
            check(projected, &[&of[0], &of[1]]);
        }
    }

    #[test]
    fn a_mount_has_a_place_and_a_part_inside() {
        let check = |mount: Value, expected: &[&str]| {
            let mounts = json!([mount]);
            let spec = json!({"containers": [{"name": "c", "volumeMounts": mounts}]});
            assert_eq!(wrong(spec), expected, "{mount}");
        };
        for path in ["/data", "data", "/a//b/", "/procs", "/run/proc"] {
            check(json!({"name": "v", "mountPath": path, "subPath": ""}), &[]);
        }
        for path in ["../x", "/", "", "/proc", "/proc/sys", "/a/../b", "/mnt:x"] {
            check(json!({"name": "v", "mountPath": path}), &["c.volumeMounts[0].mountPath"]);
        }
        for path in ["../../../etc", "/etc", "a/../../b"] {
            let mount = json!({"name": "v", "mountPath": "/v", "subPath": path});
            check(mount, &["c.volumeMounts[0].subPath"]);
        }
    }
}
